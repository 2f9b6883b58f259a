#include "caller.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "c/blockmgr.h"
#include "device.h"
#include "sequences/facts.h"

namespace blockmgr::testing {

namespace {

constexpr std::uint32_t kNone = 0, kSkip = BLOCKMGR_SKIP_CACHE, kWithdraw = BLOCKMGR_WITHDRAW;

int digest_for_c(void* digester, const std::uint8_t* message, std::size_t length,
                 std::uint8_t* digest) {
  auto& own = *static_cast<TestDigester*>(digester);
  try {
    std::memcpy(own.message(length), message, length);
    std::uint8_t bytes[16];
    own.digest(length, bytes);
    std::memcpy(digest, bytes, sizeof bytes);
    return 0;
  } catch (const DigestFailed&) {
    digest[0] = 1;  // half written
    return 7;
  } catch (const std::bad_alloc&) {
    return 8;
  }
}

[[noreturn]] void throw_what_the_core_throws(blockmgr_status status) {
  const std::string text = blockmgr_last_error();
  std::int64_t needed, available, reserved;
  blockmgr_last_shortage(&needed, &available, &reserved);
  switch (status) {
    case BLOCKMGR_OUT_OF_BLOCKS:
    case BLOCKMGR_OUT_OF_NODES:
      throw OutOfBlocks(needed, available, reserved);
    case BLOCKMGR_OUT_OF_SEQUENCES:
      throw OutOfSequences(needed, available);
    case BLOCKMGR_PIN_BUDGET:
      throw PinBudget(needed, available, 0);
    case BLOCKMGR_STALE_MATCH:
      throw StaleMatch(1, 0);
    case BLOCKMGR_BAD_VALUE:
      throw Error(ErrorKind::kValue, text);
    case BLOCKMGR_NEVER_FITS:
      throw Error(ErrorKind::kNeverFits, text);
    case BLOCKMGR_UNKNOWN_SEQUENCE:
      throw UnknownSequence(0);
    case BLOCKMGR_UNKNOWN_PIN:
      throw UnknownPin(0);
    case BLOCKMGR_SEQUENCE_STATE:
      throw Error(ErrorKind::kSequenceState, text);
    case BLOCKMGR_BLOCK_STATE:
      throw WrongBlockState(0, text);
    case BLOCKMGR_STEP:
      throw Error(ErrorKind::kStep, text);
    case BLOCKMGR_TICKET:
      throw Error(ErrorKind::kTicket, text);
    case BLOCKMGR_REENTRANCY:
      throw Error(ErrorKind::kReentrancy, text);
    case BLOCKMGR_DIGEST_FAILED:
      if (text.ends_with("8")) throw std::bad_alloc();
      throw DigestFailed();
    case BLOCKMGR_OUT_OF_MEMORY:
      throw std::bad_alloc();
    default:
      throw Violation("the C interface answers " + std::to_string(status) + ": " + text);
  }
}

void expect_ok(blockmgr_status status) {
  if (status != BLOCKMGR_OK) throw_what_the_core_throws(status);
}

// A prompt in the form of the C interface.
struct PromptForC : blockmgr_prompt {
  explicit PromptForC(const Prompt& prompt) : blockmgr_prompt{} {
    struct_size = sizeof(blockmgr_prompt);
    tokens = prompt.tokens;
    num_tokens = prompt.num_tokens;
    name = prompt.name.data();
    name_size = prompt.name.size();
    for (const auto& [block, bytes] : prompt.extras)
      all.push_back({block, bytes.data(), bytes.size()});
    std::reverse(all.begin(), all.end());  // in any order
    extras = all.data();
    num_extras = all.size();
    num_slots = prompt.num_slots;
    num_loaded_tokens = prompt.num_loaded;
    session = prompt.session.data();
    session_size = prompt.session.size();
    if (!prompt.read_cache) flags |= BLOCKMGR_SKIP_CACHE;
    if (prompt.due_cached >= 0) {
      flags |= BLOCKMGR_EXACT_CACHED;
      max_cached_tokens = prompt.due_cached;
    } else if (prompt.most_cached != INT64_MAX) {
      flags |= BLOCKMGR_LIMIT_CACHED;
      max_cached_tokens = prompt.most_cached;
    }
    if (prompt.watermark_blocks < 0) return;
    flags |= BLOCKMGR_SET_WATERMARK;
    watermark_blocks = prompt.watermark_blocks;
  }

  std::vector<blockmgr_extra> all;
};

struct OptionsForC : blockmgr_options {
  OptionsForC(const Config& config, TestDigester* digester, const std::vector<Group>& all) {
    expect_ok(blockmgr_options_init(this, sizeof(blockmgr_options)));
    num_blocks = config.num_blocks;
    num_nodes = config.num_nodes;
    block_size = config.block_size;
    max_seqs = config.max_seqs;
    max_blocks_per_seq = config.row_width;
    min_partial_tokens = config.min_partial_tokens;
    watermark_blocks = config.watermark_blocks;
    steps_in_flight = config.steps_in_flight;
    hit_rate_window = config.hit_rate_window;
    ghost_blocks = config.ghost_blocks;
    max_pinned_blocks = config.max_pinned_blocks;
    event_blocks = config.event_blocks;
    max_rollback_tokens = config.max_rollback;
    halfway_stop_tokens = config.halfway_stop_tokens;
    prompt_end_stop = config.prompt_end_stop;
    stop_margin_tokens = config.stop_margin;
    prefix_caching = config.prefix_caching;
    append_only = !config.remap;
    early_commit = config.early_commit;
    null_block = config.null_block;
    retention = config.retention;
    max_sessions = config.max_sessions;
    events = config.event_blocks > 0;
    eviction = config.eviction.c_str();
    for (const Quota& quota : config.quotas)
      own_quotas.push_back({quota.name.data(), quota.name.size(), quota.blocks});
    quotas = own_quotas.data();
    num_quotas = own_quotas.size();
    for (const Group& group : all) {
      // A window that is computed again is a window with a detail.
      const auto kind = group.is_replayed() ? Group::kWindow : group.kind;
      const std::int64_t detail =
          group.is_ring() ? group.restart : group.replay + group.extra_blocks;
      own_groups.push_back({kind, static_cast<std::int32_t>(detail), group.width});
      own_sizes.push_back(group.num_slices > 1 ? config.block_size / group.num_slices : 0);
    }
    groups = own_groups.data();
    num_groups = own_groups.size();
    group_block_sizes = own_sizes.data();
    digest = digest_for_c;
    digest_context = digester;
  }

  std::vector<blockmgr_quota> own_quotas;
  std::vector<blockmgr_group> own_groups;
  std::vector<std::int64_t> own_sizes;
};

}  // namespace

Caller::Caller(const Config& config, TestDigester* digester, bool through_c,
               const PolicyMaker& make, const std::vector<Group>& groups, bool is_alone)
    : is_alone_(is_alone) {
  if (through_c) {
    digester_.reset(digester);
    const OptionsForC options(config, digester, groups);
    expect_ok(blockmgr_create(&options, &c_));
    core_ = &c_->core;
  } else {
    own_ = std::make_unique<Sequences>(config, std::unique_ptr<Digester>(digester), make);
    core_ = own_.get();
  }
}

void Caller::fail(const std::string& otherwise) { throw Violation(otherwise); }

Caller::~Caller() { blockmgr_destroy(c_); }

MatchResult Caller::match(const Prompt& prompt) {
  if (!c_) return core_->match(prompt);
  const PromptForC asked(prompt);
  blockmgr_match_result found{};
  found.struct_size = sizeof found;
  if (is_alone_) {
    std::int32_t none = -7;
    const blockmgr_status first = blockmgr_match(c_, &asked, &found, &none, 0);
    if (first != BLOCKMGR_OK && first != BLOCKMGR_TOO_SMALL) expect_ok(first);
    EXPECT((first == BLOCKMGR_TOO_SMALL) == (found.num_blocks > 0) && none == -7,
           "room for blocks is judged wrongly");
    EXPECT(first == BLOCKMGR_OK || !found.num_cached_tokens, "a refused match has a result");
  }
  MatchResult result;
  const std::int64_t room = is_alone_ ? found.num_blocks : core_->config().row_width;
  result.blocks.resize(static_cast<std::size_t>(room));
  expect_ok(blockmgr_match(c_, &asked, &found, result.blocks.data(), room));
  result.blocks.resize(static_cast<std::size_t>(found.num_blocks));
  result.num_cached = found.num_cached_tokens;
  result.num_replayed = found.num_replayed_tokens;
  result.num_partial = found.num_partial_tokens;
  result.num_idle = found.num_idle_blocks;
  result.num_computing = found.num_computing_tokens;
  std::copy(found.stops, found.stops + found.num_stops, result.stops.begin());
  return result;
}

Admission Caller::can_admit(const Prompt& prompt) {
  if (!c_) return core_->can_admit(prompt);
  const PromptForC asked(prompt);
  std::int32_t admission = -1;
  expect_ok(blockmgr_can_admit(c_, &asked, &admission));
  return static_cast<Admission>(admission);
}

Handle Caller::admit(const Prompt& prompt) {
  if (!c_) return core_->admit(prompt);
  const PromptForC asked(prompt);
  Handle handle = -1;
  expect_ok(blockmgr_admit(c_, &asked, &handle));
  return handle;
}

void Caller::resume(Handle handle, std::int64_t num_slots, bool read_cache) {
  if (!c_) return core_->resume(handle, num_slots, read_cache);
  expect_ok(blockmgr_resume(c_, handle, num_slots, read_cache ? kNone : kSkip));
}

void Caller::resume_together(const Handle* handles, std::int64_t count, std::int64_t num_slots,
                             bool read_cache) {
  if (!c_) return core_->resume_together(handles, count, num_slots, read_cache);
  expect_ok(blockmgr_resume_together(c_, handles, count, num_slots, read_cache ? kNone : kSkip));
}

void Caller::reserve(Handle handle, std::int64_t num_slots) {
  if (!c_) return core_->reserve(handle, num_slots);
  expect_ok(blockmgr_reserve(c_, handle, num_slots));
}

void Caller::append(Handle handle, const Token* tokens, std::int64_t count) {
  if (!c_) return core_->append(handle, tokens, count);
  expect_ok(blockmgr_append(c_, handle, tokens, count));
}

void Caller::place_state(Handle handle, std::int64_t slot) {
  if (!c_) return core_->place_state(handle, slot);
  expect_ok(blockmgr_place_state(c_, handle, slot));
}

void Caller::commit(Handle handle, std::int64_t num_computed) {
  if (!c_) return core_->commit(handle, num_computed);
  expect_ok(blockmgr_commit(c_, handle, num_computed));
}

void Caller::decode(const Handle* handles, const Token* tokens, std::int64_t count,
                    std::int64_t* slots) {
  if (!c_) return core_->decode(handles, tokens, count, slots);
  expect_ok(blockmgr_decode(c_, handles, tokens, count, slots));
}

std::int64_t Caller::truncate(Handle handle, std::int64_t num_tokens) {
  if (!c_) return core_->truncate(handle, num_tokens);
  std::int64_t left = -1;
  expect_ok(blockmgr_truncate(c_, handle, num_tokens, &left));
  return left;
}

void Caller::fork(Handle handle, std::int64_t count, Handle* children) {
  if (!c_) {
    core_->fork(handle, count, children);
    return;
  }
  expect_ok(blockmgr_fork(c_, handle, count, children));
}

void Caller::reparent(const Handle* handles, const std::int64_t* parents, std::int64_t count) {
  if (!c_) return core_->reparent(handles, parents, count);
  expect_ok(blockmgr_reparent(c_, handles, parents, count));
}

void Caller::free(Handle handle, bool withdraw) {
  if (!c_) return core_->free(handle, withdraw);
  expect_ok(blockmgr_free(c_, handle, withdraw ? kWithdraw : kNone));
}

void Caller::free_expecting(Handle handle, bool expect_reuse, bool withdraw) {
  if (!c_) return core_->free_expecting(handle, expect_reuse, withdraw);
  expect_ok(blockmgr_free_expecting(c_, handle, expect_reuse, withdraw ? kWithdraw : kNone));
}

void Caller::preempt(Handle handle, bool withdraw) {
  if (!c_) return core_->preempt(handle, withdraw);
  expect_ok(blockmgr_preempt(c_, handle, withdraw ? kWithdraw : kNone));
}

bool Caller::cache_state(Handle handle) {
  if (!c_) return core_->cache_state(handle);
  std::int32_t cached = -1;
  expect_ok(blockmgr_cache_state(c_, handle, &cached));
  return cached;
}

std::int64_t Caller::take_copies(std::vector<BlockCopy>& copies) {
  if (!c_) return core_->take_copies(copies);
  std::int64_t room = core_->config().num_blocks;  // destinations are distinct
  std::int64_t count = -1;
  std::int64_t ticket = -1;
  if (is_alone_) {
    const bool waits = core_->copies().num_pending();
    const std::string before = waits ? core_->fingerprint() : std::string();
    const blockmgr_status first = blockmgr_take_copies(c_, nullptr, 0, &count, &ticket);
    copies.clear();
    if (first == BLOCKMGR_OK) return ticket;
    if (first != BLOCKMGR_TOO_SMALL) expect_ok(first);
    EXPECT(ticket == -1 && (!waits || core_->fingerprint() == before),
           "copies without room were taken");
    room = count;
  }
  std::vector<blockmgr_copy> plan(static_cast<std::size_t>(room));
  std::vector<BlockCopy> made;
  made.reserve(plan.size());  // nothing may fail once the plan is taken
  expect_ok(blockmgr_take_copies(c_, plan.data(), room, &count, &ticket));
  EXPECT(!is_alone_ || count == room, "another number of copies was told");
  for (std::int64_t i = 0; i < count; ++i) {
    const blockmgr_copy& copy = plan[static_cast<std::size_t>(i)];
    made.push_back({copy.source, copy.destination, copy.num_tokens, copy.group});
  }
  copies = std::move(made);
  return ticket;
}

void Caller::copies_applied(std::int64_t ticket) {
  if (!c_) return core_->copies_applied(ticket);
  expect_ok(blockmgr_copies_applied(c_, ticket));
}

void Caller::copies_aborted(std::int64_t ticket) {
  if (!c_) return core_->copies_aborted(ticket);
  expect_ok(blockmgr_copies_aborted(c_, ticket));
}

void Caller::complete(std::int64_t ticket) {
  if (!c_) return core_->complete(ticket);
  expect_ok(blockmgr_complete(c_, ticket));
}

std::vector<RemapRecord> Caller::take_remaps() {
  if (!c_) return core_->take_remaps();
  std::int64_t count = 0;
  const blockmgr_status first = blockmgr_take_remaps(c_, nullptr, 0, &count);
  if (first == BLOCKMGR_OK) return {};
  if (first != BLOCKMGR_TOO_SMALL) expect_ok(first);
  std::vector<blockmgr_remap> all(static_cast<std::size_t>(count));
  std::vector<RemapRecord> remaps;
  remaps.reserve(all.size());
  expect_ok(blockmgr_take_remaps(c_, all.data(), count, &count));
  for (const blockmgr_remap& r : all)
    remaps.push_back({r.handle, r.index, r.old_block, r.new_block});
  return remaps;
}

std::int64_t Caller::retain(Handle handle, std::int64_t start, std::int64_t stop, int level,
                            double ttl) {
  if (!c_) return core_->retain(handle, start, stop, level, ttl);
  std::int64_t blocks = -1;
  expect_ok(blockmgr_retain(c_, handle, start, stop, level, ttl, &blocks));
  return blocks;
}

std::int64_t Caller::retain_prefix(const Prompt& prompt, int level, double ttl) {
  if (!c_) return core_->retain_prefix(prompt, level, ttl);
  const PromptForC asked(prompt);
  std::int64_t blocks = -1;
  expect_ok(blockmgr_retain_prefix(c_, &asked, level, ttl, &blocks));
  return blocks;
}

std::int64_t Caller::pin(const Prompt& prompt) {
  if (!c_) return core_->pin(prompt);
  const PromptForC asked(prompt);
  std::int64_t pin = -1;
  expect_ok(blockmgr_pin(c_, &asked, &pin));
  return pin;
}

void Caller::unpin(std::int64_t pin) {
  if (!c_) return core_->unpin(pin);
  expect_ok(blockmgr_unpin(c_, pin));
}

std::int64_t Caller::touch(const Prompt& prompt) {
  if (!c_) return core_->touch(prompt);
  const PromptForC asked(prompt);
  std::int64_t blocks = -1;
  expect_ok(blockmgr_touch(c_, &asked, &blocks));
  return blocks;
}

std::int64_t Caller::end_session(std::string_view name, std::string_view session) {
  std::int64_t count = -1;
  if (c_)
    expect_ok(
        blockmgr_end_session(c_, name.data(), name.size(), session.data(), session.size(), &count));
  else
    core_->end_session(name, session, [&](std::int64_t blocks) { count = blocks; });
  return count;
}

std::int64_t Caller::signal(std::string_view name, std::string_view session,
                            Sessions::Signal signal, double seconds) {
  std::int64_t count = -1;
  if (c_)
    expect_ok(blockmgr_signal(c_, name.data(), name.size(), session.data(), session.size(),
                              static_cast<std::int32_t>(signal), seconds, &count));
  else
    core_->signal(name, session, signal, seconds, [&](std::int64_t blocks) { count = blocks; });
  return count;
}

std::int64_t Caller::retire(std::string_view name) {
  if (!c_) return core_->retire(name);
  std::int64_t num_sequences = -1;
  expect_ok(blockmgr_retire(c_, name.data(), name.size(), &num_sequences));
  return num_sequences;
}

void Caller::set_time(double seconds) {
  if (!c_) return core_->set_time(seconds);
  expect_ok(blockmgr_set_time(c_, seconds));
}

std::int64_t Caller::reset_prefix_cache(bool reset_hit_rate) {
  if (!c_) return core_->reset_prefix_cache(reset_hit_rate);
  std::int64_t forgotten = -1;
  expect_ok(blockmgr_reset_prefix_cache(c_, reset_hit_rate, &forgotten));
  return forgotten;
}

void Caller::acquire(const std::int64_t* ids, std::int64_t count) {
  if (!c_) return core_->acquire(ids, count);
  expect_ok(blockmgr_acquire(c_, ids, count));
}

void Caller::release(const std::int64_t* ids, std::int64_t count) {
  if (!c_) return core_->release(ids, count);
  expect_ok(blockmgr_release(c_, ids, count));
}

void Caller::touch_blocks(const std::int64_t* ids, std::int64_t count) {
  if (!c_) return core_->touch_blocks(ids, count);
  expect_ok(blockmgr_touch_blocks(c_, ids, count));
}

std::int64_t Caller::forget(const std::int64_t* ids, std::int64_t count) {
  if (!c_) return core_->forget(ids, count);
  std::int64_t forgotten = -1;
  expect_ok(blockmgr_forget(c_, ids, count, &forgotten));
  return forgotten;
}

std::int64_t Caller::shrink(std::int64_t num_blocks) {
  if (!c_) return core_->shrink_pool(num_blocks);
  std::int64_t leaving = -1;
  expect_ok(blockmgr_shrink(c_, num_blocks, &leaving));
  return leaving;
}

void Caller::grow(std::int64_t num_blocks) {
  if (!c_) return core_->grow_pool(num_blocks);
  expect_ok(blockmgr_grow(c_, num_blocks));
}

void Caller::slot_mapping(Handle handle, std::int64_t start, std::int64_t stop,
                          std::int64_t* slots) const {
  if (!c_) return core_->slot_mapping(handle, start, stop, slots);
  expect_ok(blockmgr_slot_mapping(c_, handle, core_->config().full_group, start, stop, slots));
}

void Caller::group_slots(Handle handle, int group, int further, std::int64_t start,
                         std::int64_t stop, std::int64_t* slots) const {
  if (c_) return expect_ok(blockmgr_slot_mapping(c_, handle, group, start, stop, slots));
  if (further < 0) return core_->slot_mapping(handle, start, stop, slots);
  core_->group_slots(handle, further, start, stop, slots);
}

Caller::Table Caller::table(int group, int further) const {
  const Config& config = core_->config();
  if (!c_ && further < 0) return {core_->shown_tables.data(), core_->shown_width(config.row_width)};
  const std::int64_t width = config.row_width;
  if (!c_)
    return {core_->shown_groups.data() + further * config.max_seqs * width,
            config.groups[static_cast<std::size_t>(further)].num_slices * width};
  Table table{};
  std::int64_t rows = 0;
  expect_ok(blockmgr_table(c_, group, &table.first, &rows, &table.width));
  EXPECT(rows == config.max_seqs, "C tells another number of rows");
  return table;
}

EventColumns Caller::take_columns(bool snapshot) {
  if (!c_) {
    EventColumns columns = snapshot ? core_->residents() : core_->events();
    EXPECT(core_->drop_events(columns.version), "events came while they were read");
    return columns;
  }
  blockmgr_events* events = nullptr;
  expect_ok(snapshot ? blockmgr_take_snapshot(c_, &events) : blockmgr_take_events(c_, &events));
  const std::unique_ptr<blockmgr_events, decltype(&blockmgr_events_destroy)> owner(
      events, blockmgr_events_destroy);
  blockmgr_event_list list{};
  list.struct_size = sizeof list;
  expect_ok(blockmgr_events_list(events, &list));
  EventColumns columns;
  columns.num_lost = list.num_lost;
  columns.digest_size = static_cast<int>(list.digest_size);
  columns.digests.assign(list.digests, list.digests + list.num_digests * list.digest_size);
  for (std::int64_t i = 0; i < list.num_events; ++i) {
    const blockmgr_event& event = list.events[i];
    EventRun run{};
    run.kind = static_cast<EventKind>(event.kind);
    run.group = static_cast<std::uint8_t>(event.group);
    run.first = event.first_block;
    run.num_blocks = event.num_blocks;
    run.has_parent = event.parent;
    columns.runs.push_back(run);
    if (event.kind == BLOCKMGR_STORED)
      columns.tokens.insert(columns.tokens.end(), event.tokens,
                            event.tokens + event.num_blocks * core_->config().block_size);
  }
  return columns;
}

void Caller::check_reads() const {
  if (!c_) return;
  const Config& config = core_->config();
  std::vector<Handle> handles(static_cast<std::size_t>(config.max_seqs));
  std::int64_t count = 0;
  expect_ok(blockmgr_handles(c_, handles.data(), config.max_seqs, &count));
  handles.resize(static_cast<std::size_t>(count));
  EXPECT(handles == core_->handles(), "C tells of other sequences");
  const std::int32_t* table = nullptr;
  std::int64_t rows = 0, width = 0;
  expect_ok(blockmgr_table(c_, config.full_group, &table, &rows, &width));
  EXPECT(table == core_->shown_tables.data() && rows == config.max_seqs &&
             width == core_->shown_width(config.row_width),
         "C shows another table");
  for (const Handle handle : handles) {
    const Sequence& s = core_->view(handle);
    blockmgr_sequence view{};
    view.struct_size = sizeof view;
    expect_ok(blockmgr_view(c_, handle, &view));
    EXPECT(view.num_tokens == s.num_tokens && view.num_computed_tokens == core_->computed(s) &&
               view.num_cached_tokens == s.num_cached - core_->num_replayed(s) &&
               view.num_blocks == core_->num_full_blocks(s) &&
               view.num_slots == core_->num_slots(s) &&
               view.is_preempted == (s.state == Sequence::kPreempted),
           "C tells other facts of a sequence");
    std::vector<Token> told(static_cast<std::size_t>(s.num_tokens)), known(told);
    expect_ok(blockmgr_tokens(c_, handle, told.data(), s.num_tokens, &count));
    core_->copy_tokens(handle, known.data());
    EXPECT(told == known && count == s.num_tokens, "C tells other tokens");
  }
  blockmgr_stats stats{};
  stats.struct_size = sizeof stats;
  expect_ok(blockmgr_get_stats(c_, &stats));
  const std::int64_t* value = &stats.capacity;
  for (const auto& [name, fact] : facts_of(*core_))
    EXPECT(*value++ == fact, std::string("C tells another number of ") + name);
}

}  // namespace blockmgr::testing
