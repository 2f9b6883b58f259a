// The C interface: calls on prompts, namespaces and sessions.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "c/structs.h"

namespace blockmgr::c {

namespace {

constexpr std::uint32_t kPromptFlags =
    BLOCKMGR_SKIP_CACHE | BLOCKMGR_LIMIT_CACHED | BLOCKMGR_EXACT_CACHED | BLOCKMGR_SET_WATERMARK;

std::string_view bytes_of(const void* bytes, std::size_t size, const char* name) {
  if (size) not_null(static_cast<const char*>(bytes), name);
  return {static_cast<const char*>(bytes), size};
}

std::string_view namespace_of(const void* name, std::size_t size) {
  check_length("name", size, 0);
  return bytes_of(name, size, "name");
}

std::string_view session_of(const void* session, std::size_t size, std::size_t least) {
  check_length("session", size, least, SessionTable::kMostNameBytes);
  return bytes_of(session, size, "session");
}

ExtrasBytes extras_of(const blockmgr_prompt& given) {
  ExtrasBytes extras;
  if (!given.num_extras) return extras;
  not_null(given.extras, "extras");
  for (std::size_t i = 0; i < given.num_extras; ++i) {
    const blockmgr_extra& extra = given.extras[i];
    add_extra(extras, extra.block, bytes_of(extra.bytes, extra.size, "bytes of extras"));
  }
  sort_extras(extras);
  return extras;
}

// Reads the limits that one call sets for the cache and for the pool.
void read_terms(const blockmgr_prompt& given, Prompt& prompt) {
  const bool limited = given.flags & BLOCKMGR_LIMIT_CACHED;
  const bool exact = given.flags & BLOCKMGR_EXACT_CACHED;
  if (limited || exact) check_at_least("max_cached_tokens", given.max_cached_tokens, 0);
  if (exact) {
    take_exactly(prompt, given.max_cached_tokens, limited);
  } else if (limited) {
    prompt.most_cached = given.max_cached_tokens;
  }
  if (!(given.flags & BLOCKMGR_SET_WATERMARK)) return;
  check_at_least("watermark_blocks", given.watermark_blocks, 0);
  prompt.watermark_blocks = given.watermark_blocks;
}

// No more of a prompt is read than the cache can hold; its slots are those of all of it.
Prompt looked_up(const Sequences& core, Prompt prompt) {
  if (!prompt.num_slots) prompt.num_slots = prompt.num_tokens;
  blockmgr::checked_loaded(prompt);
  prompt.num_slots = std::min(prompt.num_slots, kPastAnyPool);
  prompt.num_tokens = std::min(prompt.num_tokens, core.most_matched());
  prompt.num_loaded = std::min(prompt.num_loaded, prompt.num_tokens);
  return prompt;
}

// Refers to the memory of the caller.
Prompt prompt_of(const blockmgr_prompt* given) {
  const blockmgr_prompt p = read_struct(given, "prompt", kFirstPrompt);
  check_at_least("num_tokens", p.num_tokens, 0);
  not_empty(p.num_tokens, "tokens");
  check_at_least("num_slots", p.num_slots, 0);
  if (p.reserved || p.flags & ~kPromptFlags)
    throw Error(ErrorKind::kValue,
                "flags must be those of this version, got " + std::to_string(p.flags));
  const std::string_view name = namespace_of(p.name, p.name_size);
  const bool reads = !(p.flags & BLOCKMGR_SKIP_CACHE);
  Prompt prompt{
      &not_null(p.tokens, "tokens"), p.num_tokens, name, extras_of(p), p.num_slots, reads};
  read_terms(p, prompt);
  check_at_least("num_loaded_tokens", p.num_loaded_tokens, 0);
  prompt.num_loaded = p.num_loaded_tokens;
  prompt.session = session_of(p.session, p.session_size, 0);
  return prompt;
}

// Blocks of a session, which is known only if they are announced.
template <class Tell>
void tell_blocks(std::int64_t* num_blocks, const Tell& tell_of) {
  std::int64_t count = -1;
  tell_of([&](std::int64_t blocks) { count = blocks; });
  tell(num_blocks, count);
}

}  // namespace

}  // namespace blockmgr::c

using namespace blockmgr::c;
using blockmgr::Sequences;

blockmgr_status blockmgr_match(blockmgr_manager* manager, const blockmgr_prompt* prompt,
                               blockmgr_match_result* result, int32_t* block_ids, int64_t room) {
  return change(manager, [&](Sequences& core) {
    const std::size_t size = checked_size(result, "result", kFirstMatch);
    blockmgr::check_at_least("room", room, 0);
    const blockmgr::MatchResult found = core.match(looked_up(core, prompt_of(prompt)));
    const auto num_blocks = static_cast<std::int64_t>(found.blocks.size());
    if (block_ids) check_room(room, num_blocks, result->num_blocks);
    blockmgr_match_result out{};
    out.num_cached_tokens = found.num_cached;
    out.num_partial_tokens = found.num_partial;
    out.num_idle_blocks = found.num_idle;
    out.num_computing_tokens = found.num_computing;
    out.num_blocks = num_blocks;
    out.num_stops = ascending(found.stops, 0, out.stops);
    out.num_shared_tokens = found.num_shared;
    out.num_replayed_tokens = found.num_replayed;
    write_struct(result, size, out);
    if (block_ids) std::copy(found.blocks.begin(), found.blocks.end(), block_ids);
  });
}

blockmgr_status blockmgr_can_admit(blockmgr_manager* manager, const blockmgr_prompt* prompt,
                                   int32_t* admission) {
  return change(manager, [&](Sequences& core) {
    not_null(admission, "admission");
    *admission = static_cast<int32_t>(core.can_admit(prompt_of(prompt)));
  });
}

blockmgr_status blockmgr_admit(blockmgr_manager* manager, const blockmgr_prompt* prompt,
                               blockmgr_handle* handle) {
  return change(manager, [&](Sequences& core) {
    not_null(handle, "handle");
    *handle = core.admit(prompt_of(prompt));
  });
}

blockmgr_status blockmgr_block_digests(blockmgr_manager* manager, const blockmgr_prompt* prompt,
                                       uint8_t* digests, int64_t room, int64_t* num_bytes) {
  return change(manager, [&](Sequences& core) {
    not_null(num_bytes, "num_bytes");
    elements(digests, "digests", room, "room");
    const blockmgr::Prompt asked = prompt_of(prompt);
    const std::int64_t needed = core.num_digests(asked) * core.nodes().digest_size;
    check_room(room, needed, *num_bytes);
    std::vector<std::uint8_t> all(static_cast<std::size_t>(needed));
    core.block_digests(asked, all.data());
    put_all(all, digests, room, *num_bytes);
  });
}

blockmgr_status blockmgr_retain_prefix(blockmgr_manager* manager, const blockmgr_prompt* prompt,
                                       int32_t priority, double seconds, int64_t* num_blocks) {
  return change(manager, [&](Sequences& core) {
    const blockmgr::Prompt asked = prompt_of(prompt);
    blockmgr::check_retention(priority, seconds);
    tell(num_blocks, core.retain_prefix(asked, priority, seconds));
  });
}

blockmgr_status blockmgr_pin(blockmgr_manager* manager, const blockmgr_prompt* prompt,
                             int64_t* pin) {
  return change(manager, [&](Sequences& core) {
    not_null(pin, "pin");
    *pin = core.pin(prompt_of(prompt));
  });
}

blockmgr_status blockmgr_touch(blockmgr_manager* manager, const blockmgr_prompt* prompt,
                               int64_t* num_blocks) {
  return change(manager, [&](Sequences& core) { tell(num_blocks, core.touch(prompt_of(prompt))); });
}

blockmgr_status blockmgr_retire(blockmgr_manager* manager, const void* name, size_t name_size,
                                int64_t* num_sequences) {
  return change(manager, [&](Sequences& core) {
    tell(num_sequences, core.retire(namespace_of(name, name_size)));
  });
}

blockmgr_status blockmgr_end_session(blockmgr_manager* manager, const void* name, size_t name_size,
                                     const void* session, size_t session_size,
                                     int64_t* num_blocks) {
  return change(manager, [&](Sequences& core) {
    tell_blocks(num_blocks, [&](const auto& announce) {
      core.end_session(namespace_of(name, name_size), session_of(session, session_size, 1),
                       announce);
    });
  });
}

blockmgr_status blockmgr_signal(blockmgr_manager* manager, const void* name, size_t name_size,
                                const void* session, size_t session_size, int32_t signal,
                                double seconds, int64_t* num_blocks) {
  return change(manager, [&](Sequences& core) {
    const auto checked = Sequences::checked_signal(signal, seconds);
    tell_blocks(num_blocks, [&](const auto& announce) {
      core.signal(namespace_of(name, name_size), session_of(session, session_size, 1), checked,
                  seconds, announce);
    });
  });
}
