// Wrong calls of the C interface: each is refused with the right status and a text that names the
// argument, and changes nothing.
//
// NULL for every pointer, sizes that no struct has, handles and pins that are gone, rooms that are
// too small or negative, and numbers at the ends of their types. Takes no arguments.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "c/blockmgr.h"
#include "c/status.h"

namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();

int calls = 0;
int failures = 0;
blockmgr_manager* manager = nullptr;

void fail(const char* call, const std::string& otherwise) {
  ++failures;
  std::printf("violation: %s: %s\n", call, otherwise.c_str());
}

// The text of the refusal has this word.
void refused(const char* call, blockmgr_status status, blockmgr_status due, const char* word,
             const std::string& before) {
  ++calls;
  const std::string text = blockmgr_last_error();
  if (status != due)
    fail(call, std::string("ended in ") + blockmgr_status_text(status) + " (" + text + ")");
  else if (text.find(word) == std::string::npos)
    fail(call, "the text does not name " + std::string(word) + ": " + text);
  if (manager && manager->core.fingerprint() != before) fail(call, "changed something");
}

std::string state() { return manager ? manager->core.fingerprint() : std::string(); }

#define REFUSED(due, word, call)             \
  do {                                       \
    const std::string before = state();      \
    refused(#call, call, due, word, before); \
  } while (false)
#define DONE(call)                                                         \
  if (const blockmgr_status status = call; ++calls, status != BLOCKMGR_OK) \
  fail(#call, blockmgr_last_error())

int refuse_to_digest(void*, const std::uint8_t*, std::size_t, std::uint8_t*) { return 3; }

blockmgr_options options() {
  blockmgr_options o;
  DONE(blockmgr_options_init(&o, sizeof o));
  o.num_blocks = 8;
  o.block_size = 4;
  o.max_seqs = 4;
  o.retention = 1;
  o.max_pinned_blocks = 4;
  o.events = 1;
  o.digest = [](void*, const std::uint8_t* message, std::size_t length, std::uint8_t* digest) {
    std::memset(digest, 0, 16);
    for (std::size_t i = 0; i < length; ++i)
      digest[i % 16] = static_cast<std::uint8_t>(digest[i % 16] * 31 + message[i]);
    return 0;
  };
  return o;
}

const std::uint32_t kTokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};

blockmgr_prompt prompt() {
  blockmgr_prompt p{};
  p.struct_size = sizeof p;
  p.tokens = kTokens;
  p.num_tokens = 9;
  return p;
}

template <class Change>
void refused_options(const char* word, Change change) {
  blockmgr_options o = options();
  change(o);
  blockmgr_manager* made = nullptr;
  REFUSED(BLOCKMGR_BAD_VALUE, word, blockmgr_create(&o, &made));
  if (made) fail(word, "a manager was made");
}

void wrong_options() {
  blockmgr_options o = options();
  blockmgr_manager* made = nullptr;
  REFUSED(BLOCKMGR_BAD_VALUE, "options", blockmgr_create(nullptr, &made));
  REFUSED(BLOCKMGR_BAD_VALUE, "manager", blockmgr_create(&o, nullptr));
  REFUSED(BLOCKMGR_BAD_VALUE, "options", blockmgr_options_init(nullptr, sizeof o));
  for (const std::size_t size :
       {std::size_t{0}, offsetof(blockmgr_options, digest_size), sizeof o + 8, SIZE_MAX}) {
    REFUSED(BLOCKMGR_BAD_VALUE, "struct_size", blockmgr_options_init(&o, size));
    refused_options("struct_size", [&](auto& wrong) { wrong.struct_size = size; });
  }
  const auto number = [](const char* name, std::int64_t blockmgr_options::* member) {
    for (const std::int64_t value : {kLeast, std::int64_t{-2}, std::int64_t{INT32_MAX} + 1, kMost})
      refused_options(name, [&](auto& wrong) { wrong.*member = value; });
  };
  number("num_blocks", &blockmgr_options::num_blocks);
  number("block_size", &blockmgr_options::block_size);
  number("max_seqs", &blockmgr_options::max_seqs);
  number("row_width", &blockmgr_options::max_blocks_per_seq);
  number("min_partial_tokens", &blockmgr_options::min_partial_tokens);
  number("watermark_blocks", &blockmgr_options::watermark_blocks);
  number("steps_in_flight", &blockmgr_options::steps_in_flight);
  number("hit_rate_window", &blockmgr_options::hit_rate_window);
  number("ghost_blocks", &blockmgr_options::ghost_blocks);
  number("max_pinned_blocks", &blockmgr_options::max_pinned_blocks);
  number("event_blocks", &blockmgr_options::event_blocks);
  number("max_rollback_tokens", &blockmgr_options::max_rollback_tokens);
  number("halfway_stop_tokens", &blockmgr_options::halfway_stop_tokens);
  number("prompt_end_stop", &blockmgr_options::prompt_end_stop);
  number("stop_margin_tokens", &blockmgr_options::stop_margin_tokens);
  number("digest_size", &blockmgr_options::digest_size);
  number("num_nodes", &blockmgr_options::num_nodes);
  number("max_sessions", &blockmgr_options::max_sessions);
  refused_options("max_sessions", [](auto& wrong) { wrong.max_sessions = (1 << 24) + 1; });
  const auto flag = [](const char* name, std::int32_t blockmgr_options::* member) {
    for (const std::int32_t value : {-1, 3})
      refused_options(name, [&](auto& wrong) { wrong.*member = value; });
  };
  flag("prefix_caching", &blockmgr_options::prefix_caching);
  flag("append_only", &blockmgr_options::append_only);
  flag("early_commit", &blockmgr_options::early_commit);
  flag("null_block", &blockmgr_options::null_block);
  flag("retention", &blockmgr_options::retention);
  flag("events", &blockmgr_options::events);
  flag("debug", &blockmgr_options::debug);
  flag("strict_decode", &blockmgr_options::strict_decode);
  refused_options("eviction", [](auto& wrong) { wrong.eviction = nullptr; });
  refused_options("eviction policy", [](auto& wrong) { wrong.eviction = "newest"; });
  refused_options("quotas", [](auto& wrong) { wrong.num_quotas = 1; });
  refused_options("groups", [](auto& wrong) { wrong.num_groups = 1; });
  refused_options("num_groups", [](auto& wrong) {
    static const blockmgr_group group{};
    wrong.groups = &group;
    wrong.num_groups = SIZE_MAX;
  });
  refused_options("kind", [](auto& wrong) {
    static const blockmgr_group group{7, 0, 0};
    wrong.groups = &group;
    wrong.num_groups = 1;
  });
  static const blockmgr_group details[] = {{BLOCKMGR_FULL, 1, 0},
                                           {BLOCKMGR_CHUNK, 1, 4},
                                           {BLOCKMGR_WINDOW, -1, 4},
                                           {BLOCKMGR_STATE, 1025, 0},
                                           {BLOCKMGR_RING, INT32_MIN, 4}};
  for (const blockmgr_group& group : details)
    refused_options("detail", [&](auto& wrong) {
      wrong.groups = &group;
      wrong.num_groups = 1;
    });
  refused_options("no ring", [](auto& wrong) {
    static const blockmgr_group group{BLOCKMGR_RING, 2, 4};
    wrong.groups = &group;
    wrong.num_groups = 1;
  });
  static const std::int64_t sizes[][3] = {{-1}, {kMost}, {3}, {5}, {0, 0, 1}};
  for (const auto& some : sizes)
    refused_options("group_block_sizes", [&](auto& wrong) {
      static const blockmgr_group kinds[] = {{}, {BLOCKMGR_WINDOW, 0, 4}, {BLOCKMGR_RING, 2, 4}};
      wrong.groups = kinds;
      wrong.num_groups = 3;
      wrong.null_block = 1;
      wrong.group_block_sizes = some;
    });
  refused_options("at most 254", [](auto& wrong) {
    static const blockmgr_group full{};
    static const std::int64_t ones[] = {1};
    wrong.groups = &full;
    wrong.num_groups = 1;
    wrong.null_block = 1;
    wrong.block_size = 255;
    wrong.group_block_sizes = ones;
  });
  refused_options("num_nodes", [](auto& wrong) { wrong.num_nodes = 1; });
  refused_options("width", [](auto& wrong) {
    static const blockmgr_group groups[] = {{}, {BLOCKMGR_WINDOW, 0, kMost}};
    wrong.groups = groups;
    wrong.num_groups = 2;
  });
  refused_options("null_block", [](auto& wrong) {
    static const blockmgr_group group{};
    wrong.groups = &group;
    wrong.num_groups = 1;
  });
  refused_options("once", [](auto& wrong) {
    static const blockmgr_quota quotas[] = {{"a", 1, 1}, {"a", 1, 1}};
    wrong.quotas = quotas;
    wrong.num_quotas = 2;
  });
  refused_options("capacity", [](auto& wrong) {
    static const blockmgr_quota quotas[] = {{"a", 1, 5}, {"b", 1, INT32_MAX}};
    wrong.quotas = quotas;
    wrong.num_quotas = 2;
  });
}

template <class Change>
void refused_prompt(const char* word, Change change) {
  blockmgr_prompt p = prompt();
  change(p);
  blockmgr_handle handle = -5;
  REFUSED(BLOCKMGR_BAD_VALUE, word, blockmgr_admit(manager, &p, &handle));
  if (handle != -5) fail(word, "a refused admission has written a handle");
}

void wrong_prompts() {
  blockmgr_prompt p = prompt();
  blockmgr_handle handle = 0;
  std::int64_t number = 0;
  std::int32_t admission = 0;
  REFUSED(BLOCKMGR_BAD_VALUE, "prompt", blockmgr_admit(manager, nullptr, &handle));
  REFUSED(BLOCKMGR_BAD_VALUE, "handle", blockmgr_admit(manager, &p, nullptr));
  REFUSED(BLOCKMGR_BAD_VALUE, "admission", blockmgr_can_admit(manager, &p, nullptr));
  REFUSED(BLOCKMGR_BAD_VALUE, "pin", blockmgr_pin(manager, &p, nullptr));
  REFUSED(BLOCKMGR_BAD_VALUE, "num_bytes",
          blockmgr_block_digests(manager, &p, nullptr, 0, nullptr));
  REFUSED(BLOCKMGR_BAD_VALUE, "room", blockmgr_block_digests(manager, &p, nullptr, -1, &number));
  REFUSED(BLOCKMGR_TOO_SMALL, "room", blockmgr_block_digests(manager, &p, nullptr, 0, &number));
  if (number != 32) fail("block_digests", "the needed room is wrong");
  refused_prompt("struct_size", [](auto& wrong) { wrong.struct_size = 0; });
  refused_prompt("struct_size", [](auto& wrong) { wrong.struct_size = sizeof wrong + 1; });
  refused_prompt("tokens", [](auto& wrong) { wrong.tokens = nullptr; });
  refused_prompt("tokens", [](auto& wrong) { wrong.num_tokens = 0; });
  refused_prompt("num_tokens", [](auto& wrong) { wrong.num_tokens = kLeast; });
  refused_prompt("num_slots", [](auto& wrong) { wrong.num_slots = -1; });
  refused_prompt("name", [](auto& wrong) { wrong.name_size = 3; });
  refused_prompt("name", [](auto& wrong) { wrong.name_size = SIZE_MAX; });
  refused_prompt("session", [](auto& wrong) { wrong.session_size = 3; });
  refused_prompt("session", [](auto& wrong) { wrong.session_size = SIZE_MAX; });
  refused_prompt("extras", [](auto& wrong) { wrong.num_extras = 1; });
  refused_prompt("flags", [](auto& wrong) { wrong.flags = 16; });
  refused_prompt("flags", [](auto& wrong) { wrong.reserved = 1; });
  refused_prompt("match",
                 [](auto& wrong) { wrong.flags = BLOCKMGR_EXACT_CACHED | BLOCKMGR_SKIP_CACHE; });
  refused_prompt("max_cached_tokens", [](auto& wrong) {
    wrong.flags = BLOCKMGR_LIMIT_CACHED;
    wrong.max_cached_tokens = -1;
  });
  refused_prompt("watermark_blocks", [](auto& wrong) {
    wrong.flags = BLOCKMGR_SET_WATERMARK;
    wrong.watermark_blocks = kLeast;
  });
  refused_prompt("num_loaded_tokens", [](auto& wrong) { wrong.num_loaded_tokens = -1; });
  refused_prompt("num_loaded_tokens",
                 [](auto& wrong) { wrong.num_loaded_tokens = wrong.num_tokens + 1; });
  static const blockmgr_extra extras[] = {
      {-1, "x", 1}, {kMost, "x", 1}, {0, "", 0}, {0, "x", SIZE_MAX}, {0, nullptr, 1}};
  for (const blockmgr_extra& extra : extras)
    refused_prompt("extras", [&](auto& wrong) {
      wrong.extras = &extra;
      wrong.num_extras = 1;
    });
  const blockmgr_extra twice[] = {{1, "x", 1}, {1, "y", 1}};
  refused_prompt("once", [&](auto& wrong) {
    wrong.extras = twice;
    wrong.num_extras = 2;
  });
  // Of a prompt that is too long nothing is read.
  p.num_tokens = kMost;
  REFUSED(BLOCKMGR_NEVER_FITS, "blocks", blockmgr_admit(manager, &p, &handle));
  DONE(blockmgr_can_admit(manager, &p, &admission));
  if (admission != BLOCKMGR_NEVER) fail("can_admit", "a prompt without end fits");
  p = prompt();
  p.num_slots = kMost;
  REFUSED(BLOCKMGR_NEVER_FITS, "blocks", blockmgr_admit(manager, &p, &handle));
  p = prompt();
  p.flags = BLOCKMGR_EXACT_CACHED;
  p.max_cached_tokens = kMost;
  REFUSED(BLOCKMGR_STALE_MATCH, "match", blockmgr_admit(manager, &p, &handle));
}

void wrong_handles(blockmgr_handle own, blockmgr_handle gone) {
  std::int64_t number = 0;
  std::int64_t slots[64];
  blockmgr_handle children[4];
  blockmgr_sequence view{};
  view.struct_size = sizeof view;
  for (const blockmgr_handle h : {gone, blockmgr_handle{0}, blockmgr_handle{-1}, kMost, kLeast,
                                  own + (blockmgr_handle{1} << 32), own ^ 0x7fffffff}) {
    const blockmgr_status due = BLOCKMGR_UNKNOWN_SEQUENCE;
    REFUSED(due, "handle", blockmgr_reserve(manager, h, 1));
    REFUSED(due, "handle", blockmgr_append(manager, h, kTokens, 1));
    REFUSED(due, "handle", blockmgr_commit(manager, h, 1));
    REFUSED(due, "handle", blockmgr_truncate(manager, h, 1, &number));
    REFUSED(due, "handle", blockmgr_fork(manager, h, 1, children));
    REFUSED(due, "handle", blockmgr_place_state(manager, h, 0));
    REFUSED(due, "handle", blockmgr_free(manager, h, 0));
    REFUSED(due, "handle", blockmgr_free_expecting(manager, h, 1, 0));
    REFUSED(due, "handle", blockmgr_preempt(manager, h, 0));
    REFUSED(due, "handle", blockmgr_resume(manager, h, 0, 0));
    REFUSED(due, "handle", blockmgr_resume_together(manager, &h, 1, 0, 0));
    REFUSED(due, "handle", blockmgr_retain(manager, h, 0, 1, BLOCKMGR_PRIORITY_HIGH, 1, &number));
    REFUSED(due, "handle", blockmgr_view(manager, h, &view));
    REFUSED(due, "handle", blockmgr_tokens(manager, h, nullptr, 0, &number));
    REFUSED(due, "handle", blockmgr_slot_mapping(manager, h, 0, 0, 1, slots));
    REFUSED(due, "handle", blockmgr_decode(manager, &h, kTokens, 1, slots));
    const std::int64_t itself = 0;
    REFUSED(due, "handle", blockmgr_reparent(manager, &h, &itself, 1));
  }
}

void wrong_numbers(blockmgr_handle own) {
  std::int64_t number = 0, ticket = 0;
  std::int64_t slots[64];
  blockmgr_handle children[4];
  for (const std::int64_t n : {kLeast, std::int64_t{-1}}) {
    REFUSED(BLOCKMGR_BAD_VALUE, "num_slots", blockmgr_reserve(manager, own, n));
    REFUSED(BLOCKMGR_BAD_VALUE, "num_tokens", blockmgr_append(manager, own, kTokens, n));
    REFUSED(BLOCKMGR_BAD_VALUE, "num_computed", blockmgr_commit(manager, own, n));
    REFUSED(BLOCKMGR_BAD_VALUE, "num_tokens", blockmgr_truncate(manager, own, n, nullptr));
    REFUSED(BLOCKMGR_BAD_VALUE, "n must", blockmgr_fork(manager, own, n, children));
    REFUSED(BLOCKMGR_BAD_VALUE, "count", blockmgr_decode(manager, &own, kTokens, n, slots));
    REFUSED(BLOCKMGR_BAD_VALUE, "count", blockmgr_reparent(manager, &own, slots, n));
    REFUSED(BLOCKMGR_BAD_VALUE, "count", blockmgr_resume_together(manager, &own, n, 0, 0));
    REFUSED(BLOCKMGR_BAD_VALUE, "count", blockmgr_acquire(manager, slots, n));
    REFUSED(BLOCKMGR_BAD_VALUE, "room", blockmgr_tokens(manager, own, nullptr, n, &number));
    REFUSED(BLOCKMGR_BAD_VALUE, "room", blockmgr_handles(manager, nullptr, n, &number));
    REFUSED(BLOCKMGR_BAD_VALUE, "room",
            blockmgr_take_copies(manager, nullptr, n, &number, &ticket));
    REFUSED(BLOCKMGR_BAD_VALUE, "room", blockmgr_take_remaps(manager, nullptr, n, &number));
    REFUSED(BLOCKMGR_BAD_VALUE, "start", blockmgr_slot_mapping(manager, own, 0, n, 1, slots));
    REFUSED(BLOCKMGR_BAD_VALUE, "start", blockmgr_slot_mapping(manager, own, 0, 0, n, slots));
    REFUSED(BLOCKMGR_BAD_VALUE, "num_slots", blockmgr_resume(manager, own, n, 0));
    REFUSED(BLOCKMGR_BAD_VALUE, "num_slots", blockmgr_resume_together(manager, &own, 1, n, 0));
  }
  REFUSED(BLOCKMGR_NEVER_FITS, "blocks", blockmgr_reserve(manager, own, kMost));
  REFUSED(BLOCKMGR_NEVER_FITS, "blocks", blockmgr_append(manager, own, kTokens, kMost));
  REFUSED(BLOCKMGR_BAD_VALUE, "num_computed", blockmgr_commit(manager, own, kMost));
  REFUSED(BLOCKMGR_BAD_VALUE, "num_tokens", blockmgr_truncate(manager, own, kMost, nullptr));
  REFUSED(BLOCKMGR_OUT_OF_SEQUENCES, "rows", blockmgr_fork(manager, own, kMost, children));
  REFUSED(BLOCKMGR_BAD_VALUE, "distinct", blockmgr_decode(manager, &own, kTokens, kMost, slots));
  REFUSED(BLOCKMGR_BAD_VALUE, "stop", blockmgr_slot_mapping(manager, own, 0, kLeast, kMost, slots));
  for (const std::int32_t group : {-1, 1, INT32_MIN, INT32_MAX})
    REFUSED(BLOCKMGR_BAD_VALUE, "group", blockmgr_slot_mapping(manager, own, group, 0, 1, slots));
  for (const std::int64_t slot : {kLeast, std::int64_t{-1}, std::int64_t{1}, kMost})
    REFUSED(BLOCKMGR_BAD_VALUE, "slot", blockmgr_place_state(manager, own, slot));
  REFUSED(BLOCKMGR_BAD_VALUE, "flags", blockmgr_free(manager, own, 2));
  REFUSED(BLOCKMGR_BAD_VALUE, "flags", blockmgr_preempt(manager, own, UINT32_MAX));
  REFUSED(BLOCKMGR_BAD_VALUE, "flags", blockmgr_resume(manager, own, 0, 2));
  REFUSED(BLOCKMGR_BAD_VALUE, "flags", blockmgr_resume_together(manager, &own, 1, 0, 2));
  REFUSED(BLOCKMGR_BAD_VALUE, "expect_reuse", blockmgr_free_expecting(manager, own, 2, 0));
  REFUSED(BLOCKMGR_BAD_VALUE, "reset_hit_rate", blockmgr_reset_prefix_cache(manager, -1, nullptr));
  REFUSED(BLOCKMGR_BAD_VALUE, "level", blockmgr_retain(manager, own, 0, 1, 9, 1, nullptr));
  REFUSED(BLOCKMGR_BAD_VALUE, "ttl", blockmgr_retain(manager, own, 0, 1, 3, std::nan(""), nullptr));
  REFUSED(BLOCKMGR_BAD_VALUE, "seconds", blockmgr_set_time(manager, std::nan("")));
  REFUSED(BLOCKMGR_BAD_VALUE, "seconds", blockmgr_set_time(manager, HUGE_VAL));
  for (const std::int64_t t : {kLeast, std::int64_t{0}, std::int64_t{99}, kMost}) {
    REFUSED(BLOCKMGR_TICKET, "ticket", blockmgr_copies_applied(manager, t));
    REFUSED(BLOCKMGR_TICKET, "ticket", blockmgr_copies_aborted(manager, t));
    REFUSED(BLOCKMGR_STEP, "complete", blockmgr_complete(manager, t));
    REFUSED(BLOCKMGR_UNKNOWN_PIN, "pin", blockmgr_unpin(manager, t));
  }
  for (const std::int64_t b : {kLeast, std::int64_t{-1}, std::int64_t{8}, kMost}) {
    REFUSED(BLOCKMGR_BAD_VALUE, "block", blockmgr_acquire(manager, &b, 1));
    REFUSED(BLOCKMGR_BAD_VALUE, "block", blockmgr_release(manager, &b, 1));
    REFUSED(BLOCKMGR_BAD_VALUE, "block", blockmgr_touch_blocks(manager, &b, 1));
    REFUSED(BLOCKMGR_BAD_VALUE, "block", blockmgr_forget(manager, &b, 1, nullptr));
  }
  for (const std::int64_t n : {kLeast, std::int64_t{-1}, std::int64_t{9}, kMost}) {
    REFUSED(BLOCKMGR_BAD_VALUE, "num_blocks", blockmgr_shrink(manager, n, nullptr));
    REFUSED(BLOCKMGR_BAD_VALUE, "num_blocks", blockmgr_grow(manager, n));
  }
}

void null_pointers(blockmgr_handle own) {
  std::int64_t number = 0, ticket = 0;
  std::int64_t slots[4];
  const std::int32_t* table = nullptr;
  blockmgr_prompt p = prompt();
  const blockmgr_status due = BLOCKMGR_BAD_VALUE;
  REFUSED(due, "manager", blockmgr_free(nullptr, own, 0));
  REFUSED(due, "manager", blockmgr_view(nullptr, own, nullptr));
  REFUSED(due, "manager", blockmgr_take_events(nullptr, nullptr));
  REFUSED(due, "result", blockmgr_match(manager, &p, nullptr, nullptr, 0));
  REFUSED(due, "tokens", blockmgr_append(manager, own, nullptr, 1));
  REFUSED(due, "handles", blockmgr_decode(manager, nullptr, kTokens, 1, slots));
  REFUSED(due, "tokens", blockmgr_decode(manager, &own, nullptr, 1, slots));
  REFUSED(due, "slots", blockmgr_decode(manager, &own, kTokens, 1, nullptr));
  REFUSED(due, "children", blockmgr_fork(manager, own, 1, nullptr));
  REFUSED(due, "parents", blockmgr_reparent(manager, &own, nullptr, 1));
  REFUSED(due, "sequence", blockmgr_view(manager, own, nullptr));
  REFUSED(due, "num_tokens", blockmgr_tokens(manager, own, nullptr, 0, nullptr));
  REFUSED(due, "tokens", blockmgr_tokens(manager, own, nullptr, 9, &number));
  REFUSED(due, "num_handles", blockmgr_handles(manager, nullptr, 0, nullptr));
  REFUSED(due, "num_handles", blockmgr_leaving(manager, nullptr, 0, nullptr));
  REFUSED(due, "table", blockmgr_table(manager, 0, nullptr, &number, &number));
  REFUSED(due, "num_rows", blockmgr_table(manager, 0, &table, nullptr, &number));
  REFUSED(due, "row_width", blockmgr_table(manager, 0, &table, &number, nullptr));
  REFUSED(due, "lengths", blockmgr_seq_lens(manager, nullptr, &number));
  REFUSED(due, "slots", blockmgr_slot_mapping(manager, own, 0, 0, 1, nullptr));
  REFUSED(due, "num_blocks", blockmgr_num_common_prefix_blocks(manager, nullptr, 0, nullptr));
  REFUSED(due, "num_copies", blockmgr_take_copies(manager, nullptr, 0, nullptr, &ticket));
  REFUSED(due, "ticket", blockmgr_take_copies(manager, nullptr, 0, &number, nullptr));
  REFUSED(due, "num_remaps", blockmgr_take_remaps(manager, nullptr, 0, nullptr));
  REFUSED(due, "blocks", blockmgr_acquire(manager, nullptr, 1));
  REFUSED(due, "events", blockmgr_take_events(manager, nullptr));
  REFUSED(due, "events", blockmgr_events_list(nullptr, nullptr));
  REFUSED(due, "stats", blockmgr_get_stats(manager, nullptr));
  REFUSED(due, "bytes", blockmgr_memory_usage(manager, nullptr));
  blockmgr_destroy(nullptr);
  blockmgr_events_destroy(nullptr);
  blockmgr_last_shortage(nullptr, nullptr, nullptr);
}

// Results that do not fit.
void little_room(blockmgr_handle own) {
  std::int64_t number = 0, ticket = -1;
  std::uint32_t tokens[9] = {};
  blockmgr_handle handles[4];
  REFUSED(BLOCKMGR_TOO_SMALL, "room", blockmgr_tokens(manager, own, tokens, 8, &number));
  if (number != 9 || tokens[0]) fail("tokens", "the needed room is wrong, or some were written");
  DONE(blockmgr_tokens(manager, own, tokens, number, &number));
  if (tokens[8] != 9) fail("tokens", "they are wrong");
  REFUSED(BLOCKMGR_TOO_SMALL, "room", blockmgr_handles(manager, handles, 0, &number));
  if (number != 1) fail("handles", "the needed room is wrong");
  DONE(blockmgr_commit(manager, own, 9));
  DONE(blockmgr_fork(manager, own, 1, handles));
  DONE(blockmgr_append(manager, handles[0], kTokens, 1));
  REFUSED(BLOCKMGR_TOO_SMALL, "room", blockmgr_take_copies(manager, nullptr, 0, &number, &ticket));
  if (number != 1 || ticket != -1) fail("take_copies", "the needed room is wrong");
  blockmgr_copy copy;
  DONE(blockmgr_take_copies(manager, &copy, 1, &number, &ticket));
  DONE(blockmgr_copies_applied(manager, ticket));
  DONE(blockmgr_free(manager, handles[0], 0));
  blockmgr_events* events = nullptr;
  DONE(blockmgr_take_events(manager, &events));
  blockmgr_event_list list{};
  REFUSED(BLOCKMGR_BAD_VALUE, "struct_size", blockmgr_events_list(events, &list));
  list.struct_size = sizeof list;
  DONE(blockmgr_events_list(events, &list));
  if (list.num_digests < 2 || list.num_lost) fail("take_events", "blocks are missing");
  blockmgr_events_destroy(events);
  DONE(blockmgr_shrink(manager, 0, &number));
  if (!number) fail("shrink", "blocks in use have left");
  REFUSED(BLOCKMGR_TOO_SMALL, "room", blockmgr_leaving(manager, handles, 0, &number));
  DONE(blockmgr_leaving(manager, handles, 1, &number));
  if (number != 1 || handles[0] != own) fail("leaving", "another sequence is told");
  DONE(blockmgr_grow(manager, 8));
}

void sessions_and_namespaces() {
  std::int64_t number = -7;
  const blockmgr_status due = BLOCKMGR_BAD_VALUE;
  for (const std::size_t size : {std::size_t{1025}, SIZE_MAX}) {
    REFUSED(due, "name", blockmgr_retire(manager, "a", size, &number));
    REFUSED(due, "name", blockmgr_end_session(manager, "a", size, "s", 1, &number));
    REFUSED(due, "name", blockmgr_signal(manager, "a", size, "s", 1, 0, 1, &number));
  }
  for (const std::size_t size : {std::size_t{0}, std::size_t{257}, SIZE_MAX}) {
    REFUSED(due, "session", blockmgr_end_session(manager, "a", 1, "s", size, &number));
    REFUSED(due, "session", blockmgr_signal(manager, "a", 1, "s", size, 0, 1, &number));
  }
  REFUSED(due, "name", blockmgr_retire(manager, nullptr, 1, &number));
  REFUSED(due, "session", blockmgr_end_session(manager, "a", 1, nullptr, 1, &number));
  REFUSED(due, "session", blockmgr_signal(manager, "a", 1, nullptr, 1, 0, 1, &number));
  for (const std::int32_t signal : {INT32_MIN, -1, 3, INT32_MAX})
    REFUSED(due, "signal", blockmgr_signal(manager, "a", 1, "s", 1, signal, 1, &number));
  for (const double seconds : {0.0, -1.0, std::nan(""), -HUGE_VAL})
    REFUSED(due, "seconds", blockmgr_signal(manager, "a", 1, "s", 1, 0, seconds, &number));
  if (number != -7) fail("sessions", "a refused call has written its answer");
  DONE(blockmgr_signal(manager, "a", 1, "s", 1, BLOCKMGR_DONE, HUGE_VAL, nullptr));
  DONE(blockmgr_end_session(manager, "a", 1, "s", 1, &number));
  if (number != -1) fail("end_session", "a session is known that no prompt had");
  DONE(blockmgr_retire(manager, "a", 1, nullptr));
}

// The number of bytes that an older caller knows of a struct is all that is read or written.
void older_callers() {
  blockmgr_stats stats{};
  REFUSED(BLOCKMGR_BAD_VALUE, "struct_size", blockmgr_get_stats(manager, &stats));
  stats.struct_size = sizeof stats + 1;
  REFUSED(BLOCKMGR_BAD_VALUE, "struct_size", blockmgr_get_stats(manager, &stats));
}

}  // namespace

// A prompt that asks for slots that no pool has finds what is cached, in a pool of several groups.
void slots_past_any_pool() {
  blockmgr_options o = options();
  const blockmgr_group groups[] = {{}, {BLOCKMGR_WINDOW, 0, 2}};
  o.groups = groups;
  o.num_groups = 2;
  o.block_size = 1;
  o.num_blocks = 32;
  o.null_block = 1;
  DONE(blockmgr_create(&o, &manager));
  blockmgr_prompt p = prompt();
  blockmgr_handle handle = 0;
  DONE(blockmgr_admit(manager, &p, &handle));
  DONE(blockmgr_commit(manager, handle, p.num_tokens));
  blockmgr_match_result due{}, found{};
  due.struct_size = found.struct_size = sizeof due;
  DONE(blockmgr_match(manager, &p, &due, nullptr, 0));
  for (const std::int64_t slots : {kMost, kMost / 2 + 1, kMost / 2}) {
    p.num_slots = slots;
    DONE(blockmgr_match(manager, &p, &found, nullptr, 0));
    if (!found.num_cached_tokens || found.num_cached_tokens != due.num_cached_tokens)
      fail("match", "many slots find other tokens than those of the prompt");
  }
  blockmgr_destroy(manager);
  manager = nullptr;
}

int main() {
  wrong_options();
  slots_past_any_pool();
  blockmgr_options o = options();
  DONE(blockmgr_create(&o, &manager));
  blockmgr_prompt p = prompt();
  blockmgr_handle own = 0, gone = 0;
  DONE(blockmgr_admit(manager, &p, &own));
  DONE(blockmgr_admit(manager, &p, &gone));
  DONE(blockmgr_free(manager, gone, 0));
  wrong_prompts();
  wrong_handles(own, gone);
  wrong_numbers(own);
  null_pointers(own);
  sessions_and_namespaces();
  older_callers();
  little_room(own);
  DONE(blockmgr_check_invariants(manager));
  blockmgr_destroy(manager);

  // A digest function that fails, and one that no such prompt fits.
  o.digest = refuse_to_digest;
  o.num_blocks = 4;
  DONE(blockmgr_create(&o, &manager));
  DONE(blockmgr_admit(manager, &p, &own));
  REFUSED(BLOCKMGR_DIGEST_FAILED, "digest", blockmgr_commit(manager, own, 9));
  blockmgr_handle other = -5;
  REFUSED(BLOCKMGR_OUT_OF_BLOCKS, "need 3 blocks, 1 available",
          blockmgr_admit(manager, &p, &other));
  std::int64_t needed = 0, available = 0, reserved = 0;
  blockmgr_last_shortage(&needed, &available, &reserved);
  if (needed != 3 || available != 1 || reserved || other != -5)
    fail("admit", "the numbers of a shortage are wrong");
  blockmgr_destroy(manager);
  std::printf("%d calls, %d violations\n", calls, failures);
  return failures ? 1 : 0;
}
