// The calls of an engine on its sequences, each with its expected outcome.
#include "world.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>

namespace blockmgr::testing {

namespace {

const std::string kNames[kNumNames] = {"", "a", "b", "tenant"};
const ExtrasBytes kExtras[kNumExtras] = {
    {}, {{0, "x"}}, {{1, "x"}}, {{0, "y"}, {1, "x"}}, {{2, "y"}}};
// The extra keys of a logical block as a number: 0 none, 1 "x", 2 "y".
int extras_number(int extras, std::int64_t block) {
  for (const auto& [index, bytes] : kExtras[extras])
    if (index == block) return bytes == "x" ? 1 : 2;
  return 0;
}

TestDigester* make_digester(const Settings& settings) {
  // Not drawn, so that other draws do not change.
  const bool never_fails = settings.core.num_blocks % 2;
  return settings.core.prefix_caching ? new TestDigester(settings.digest, never_fails) : nullptr;
}

// Creates the eviction policy of each partition inside a witness; empty: as in the config.
PolicyMaker watched(const Settings& settings, std::vector<Witness*>& out) {
  if (!settings.witness || settings.through_c) return nullptr;
  const Config& config = settings.core;
  return [&config, &out](Nodes& nodes, const PrefixIndex& index,
                         Range range) -> std::unique_ptr<Policy> {
    auto witness = std::make_unique<Witness>(nodes, index, range,
                                             make_policy(config.eviction, nodes, index, range));
    out.push_back(witness.get());
    return witness;
  };
}

}  // namespace

const std::string& World::text_of(int name) { return kNames[name]; }

int World::name_of_root(std::uint32_t root) const {
  for (int name = 0; name < kNumNames; ++name)
    if (core_.index().find_root(kNames[name]) == root) return name;
  throw Violation("a cached block belongs to no namespace in use");
}

std::uint32_t World::root_of_name(int name) const { return core_.index().find_root(kNames[name]); }

int World::extras_prefix(std::uint32_t id) const {
  if (!id) return 0;
  return core_.index().extras().bytes(id) == "x" ? 1 : 2;
}

const char* name_of(Op op) {
  static const char* const names[] = {"admit",        "can_admit", "match",       "resume",
                                      "reserve",      "append",    "commit",      "truncate",
                                      "fork",         "reparent",  "free",        "preempt",
                                      "decode",       "take",      "applied",     "aborted",
                                      "complete",     "remaps",    "retain",      "retain_prefix",
                                      "pin",          "unpin",     "touch",       "set_time",
                                      "reset",        "retire",    "acquire",     "release",
                                      "touch_blocks", "forget",    "cache_state", "resume_together",
                                      "shrink",       "grow",      "signal",      "end_session"};
  static_assert(std::size(names) == kNumOps);
  return names[op];
}

const char* name_of(Outcome outcome) {
  static const char* const names[] = {"done",        "out of blocks", "out of rows",   "unknown",
                                      "bad value",   "never fits",    "wrong state",   "step",
                                      "bad ticket",  "reentrancy",    "digest failed", "pin budget",
                                      "unknown pin", "bad block",     "stale match"};
  static_assert(std::size(names) == kNumOutcomes);
  return names[outcome];
}

World::World(const Settings& settings, Counts* counts)
    : settings_(settings),
      asked_(settings),
      config_(settings_.core),
      habits_(settings_.habits),
      digester_(make_digester(settings)),
      caller_(settings.core, digester_, settings.through_c, watched(settings, witnesses_)),
      core_(caller_.core()),
      levels_(core_),
      device_(settings.core.num_blocks, settings.core.block_size),
      counts_(counts),
      promised_(static_cast<std::size_t>(settings.core.num_blocks)),
      num_applied_(settings.habits.first_step),
      last_ticket_(settings.habits.first_step),
      tables_(static_cast<std::size_t>(settings.core.num_blocks)) {
  core_.set_debug(settings.debug);
  skip_steps(core_, habits_.first_step);
}

Outcome World::outcome_of(const Call& run) {
  try {
    run();
    return kDone;
  } catch (const OutOfBlocks& refusal) {
    bool known = false;
    for (int p = 0; p < core_.pool().num_partitions(); ++p)
      known |= refusal.available == core_.pool().partition(p).available();
    EXPECT(known, "a refusal reports a wrong number available");
    EXPECT(refusal.needed > refusal.available - refusal.watermark, "refused although it fits");
    return kOutOfBlocks;
  } catch (const OutOfSequences& refusal) {
    EXPECT(refusal.needed > refusal.available, "rows were refused although there are enough");
    return kOutOfSequences;
  } catch (const PinBudget& refusal) {
    EXPECT(refusal.needed > refusal.available, "a pin was refused although it fits");
    return kPinRefused;
  } catch (const UnknownPin&) {
    return kUnknownPin;
  } catch (const WrongBlockState&) {
    return kBadBlock;
  } catch (const StaleMatch& refusal) {
    EXPECT(refusal.found != refusal.expected, "refused although it was found");
    return kStale;
  } catch (const UnknownSequence&) {
    return kUnknownSequence;
  } catch (const DigestFailed&) {
    return kDigestFailed;
  } catch (const Error& error) {
    switch (error.kind) {
      case ErrorKind::kValue:
        return kBadValue;
      case ErrorKind::kNeverFits:
        return kNeverFits;
      case ErrorKind::kSequenceState:
        return kWrongState;
      case ErrorKind::kStep:
        return kStepRefused;
      case ErrorKind::kTicket:
        return kWrongTicket;
      case ErrorKind::kReentrancy:
        return kReentered;
      case ErrorKind::kFork:
        break;
    }
    throw;
  }
}

Outcome World::call(Op op, Outcomes due, const Call& run) {
  ++calls_;
  const bool snapshot = calls_ % settings_.snapshot_every == 0;
  const std::string before = snapshot ? core_.fingerprint() : std::string();
  if (digester_ && digester_->fails_in) due |= bit(kDigestFailed);
  const unsigned touched = std::exchange(touched_, 0u);
  const bool deep = snapshot && touched;
  const auto others = shares(deep);
  const bool merges = (config_.retention || config_.remap) && (op == kCommit || op == kDecode);
  std::vector<std::vector<Merging>> before_merging;
  if (merges) before_merging = merging();
  if (config_.retention) levels_.before_call();
  const bool moves = early() && !config_.remap && op != kCommit && op != kFree;
  const std::vector<bool> was_keyed = moves ? keyed() : std::vector<bool>();
  const Outcome outcome =
      settings_.trial ? outcome_of([&] { put_on_trial(op, run); }) : outcome_of(run);
  if (core_.debug()) {
    const std::vector<std::string> findings = core_.findings();
    EXPECT(findings.empty(), findings.front());
  }
  EXPECT(due & bit(outcome),
         std::string(name_of(op)) + " ended in \"" + name_of(outcome) + "\" unexpectedly");
  const bool reads_only = op == kMatch || op == kCanAdmit;
  if (snapshot && (outcome != kDone || reads_only))
    EXPECT(core_.fingerprint() == before, std::string(name_of(op)) + " ended in \"" +
                                              name_of(outcome) + "\" and changed something");
  if (counts_) ++(*counts_)[op][outcome];
  for (const Witness* witness : witnesses_) EXPECT(!witness->fault(), witness->fault());
  if (touched) check_others(others, touched, deep);
  if (merges && outcome == kDone) merged(before_merging);
  if (moves && outcome == kDone) note_moved(was_keyed);
  const bool forgets =
      op == kForget || op == kShrink || op == kRetire || op == kFree || op == kPreempt;
  if (config_.retention) levels_.after_call(core_.time(), forgets);
  if (config_.steps_in_flight && !reads_only) check_fences(op);
  return outcome;
}

void World::put_on_trial(Op op, const Call& run) {
  const int fails_in = digester_ ? digester_->fails_in : 0;
  const Subject subject{
      [this] { return core_.fingerprint(); },
      [this] { return core_.violations(); },
      [this] { return core_.memory() + (digester_ ? digester_->memory() : 0); },
      [this, fails_in] {
        if (digester_) digester_->fails_in = fails_in;
      },
  };
  settings_.trial->make(name_of(op), subject, run);
}

void World::fail(const std::string& otherwise) const {
  throw Violation("call " + std::to_string(calls_) + ": " + otherwise);
}

std::int64_t World::blocks_for(std::int64_t slots) const {
  return (slots + config_.block_size - 1) / config_.block_size;
}

std::int64_t World::slots_of(const Entry& entry) const {
  return static_cast<std::int64_t>(view(entry).num_blocks) * config_.block_size;
}

int World::partition_of(int name) const {
  for (std::size_t i = 0; i < config_.quotas.size(); ++i)
    if (config_.quotas[i].name == kNames[name]) return static_cast<int>(i) + 1;
  return 0;
}

int World::capacity_of(int name) const {
  int left = config_.num_blocks - config_.null_block;
  for (const Quota& quota : config_.quotas) {
    if (quota.name == kNames[name]) return quota.blocks;
    left -= quota.blocks;
  }
  return left;
}

// Each partition has a proportional share of the watermark. Requests that would then never fit are
// still admitted.
std::int64_t World::watermark_of(int name, std::int64_t most, std::int64_t asked) const {
  const std::int64_t all = config_.num_blocks - config_.null_block;
  const std::int64_t held_back = asked < 0 ? config_.watermark_blocks : std::min(asked, all);
  const std::int64_t share = held_back * capacity_of(name) / all;
  return std::min(share, most);
}

std::int64_t World::available_to(int name) const {
  return core_.pool().partition(partition_of(name)).available();
}

std::int64_t World::longest(int name) const {
  return std::min(config_.row_width, capacity_of(name));
}

std::int64_t World::needed_for(const MatchResult& match, std::int64_t slots) const {
  const auto found = static_cast<std::int64_t>(match.blocks.size());
  std::int64_t needed = std::max<std::int64_t>(blocks_for(slots) - found, 0);
  for (const std::int32_t b : match.blocks) needed += !used(b) && !record_of(b).fence;
  return needed;
}

std::int64_t World::computing_for(const Prompt& asked, int name, int extras,
                                  const MatchResult& match) const {
  const std::int64_t size = config_.block_size;
  const auto found = static_cast<std::int64_t>(match.blocks.size());
  const std::int64_t limit = std::min(asked.num_tokens - 1, asked.most_cached) / size;
  std::int64_t most = found;
  for (const EntryPtr& entry : entries_) {
    if (!digester_ || !entry->running || entry->name != name || view(*entry).outdated) continue;
    const auto end = std::min(limit, static_cast<std::int64_t>(entry->tokens.size()) / size);
    std::int64_t i = 0;
    while (i < end && extras_number(entry->extras, i) == extras_number(extras, i) &&
           std::equal(asked.tokens + i * size, asked.tokens + (i + 1) * size,
                      entry->tokens.begin() + i * size))
      ++i;
    most = std::max(most, i);
  }
  return most > found ? most * size - match.num_cached : 0;
}

// What match finds for a sequence's tokens. The digest does not fail during this call.
MatchResult World::found_for(const Entry& entry) {
  const int fails_in = digester_ ? std::exchange(digester_->fails_in, 0) : 0;
  const MatchResult match = caller_.match(prompt(entry.tokens, entry.name, entry.extras, 0));
  if (digester_) digester_->fails_in = fails_in;
  return match;
}

Prompt World::prompt(const std::vector<Token>& tokens, int name, int extras,
                     std::int64_t slots) const {
  const auto length = static_cast<std::int64_t>(tokens.size());
  Prompt prompt{tokens.data(), length, kNames[name], kExtras[extras], slots};
  // With full attention alone, a load makes no difference. Not drawn, so that other draws do not
  // change: none of some prompts, half of others, and all of the rest.
  prompt.num_loaded = (slots ? std::min(slots, length) : length) * (length % 3) / 2;
  return prompt;
}

void World::extend(Entry& entry, const std::vector<Token>& tokens) {
  for (const Token token : tokens) {
    Prefix prefix = entry.prefixes.empty() ? trie_.root(entry.name) : entry.prefixes.back();
    const auto position = static_cast<std::int64_t>(entry.prefixes.size());
    if (position % config_.block_size == 0)
      prefix =
          trie_.after_extras(prefix, extras_number(entry.extras, position / config_.block_size));
    entry.prefixes.push_back(trie_.after_token(prefix, token));
    entry.tokens.push_back(token);
  }
}

// Updates the entries after a call: tokens that are not computed must be written again.
void World::settle() {
  for (const EntryPtr& entry : entries_)
    entry->start = std::min(entry->start, view(*entry).num_computed);
  if (settings_.scribbles) scribble();
  if (calls_ % settings_.check_every == 0) check();
}

// ---- admission ----------------------------------------------------------------------------------

EntryPtr World::admit(std::vector<Token> tokens, int name, int extras, std::int64_t num_slots,
                      const Asked& terms) {
  Prompt asked = prompt(tokens, name, extras, num_slots);
  asked.most_cached = terms.most_cached;
  asked.watermark_blocks = terms.watermark;
  const bool read_cache = terms.read_cache;
  const std::int64_t most = std::max(asked.num_tokens, num_slots);
  const std::int64_t held_back = watermark_of(name, INT64_MAX, terms.watermark);
  const std::int64_t room = capacity_of(name) - held_back;
  const bool never = blocks_for(most) > std::min<std::int64_t>(config_.row_width, room);
  const bool full = core_.num_sequences() == config_.max_seqs;
  const int fails_in = digester_ ? std::exchange(digester_->fails_in, 0) : 0;
  MatchResult match;
  Prompt looked_up = asked;
  if (terms.by_match && read_cache) looked_up.watermark_blocks = 0;  // less room may be left
  call(kMatch, bit(kDone), [&] { match = caller_.match(looked_up); });
  EXPECT(match.num_computing == computing_for(looked_up, name, extras, match),
         "match has a wrong number of tokens that others are computing");
  asked.read_cache = read_cache;
  if (!read_cache) match = MatchResult();
  EXPECT(match.num_cached <= terms.most_cached, "match finds more than it may");
  bool stale = false;
  if (terms.by_match && read_cache) {
    stale = terms.too_much;
    asked.most_cached = asked.due_cached = match.num_cached + (stale ? asked.num_tokens : 0);
  }
  const bool full_rows = core_.num_sequences() == config_.max_seqs;
  Admission promise = Admission::kNever;
  call(kCanAdmit, bit(stale && !never && !full_rows ? kStale : kDone),
       [&] { promise = caller_.can_admit(asked); });
  stale = stale && !never && !full_rows;
  if (stale) promise = Admission::kLater;
  EXPECT((promise == Admission::kNever) == never, "can_admit is wrong about what never fits");
  if (digester_) digester_->fails_in = fails_in;

  const std::int64_t slots = num_slots ? num_slots : asked.num_tokens;
  const auto whole = static_cast<std::int64_t>(match.blocks.size());
  const std::int64_t needed = never ? 0
                              : match.num_partial
                                  ? std::max(blocks_for(slots), whole + 1) - whole + match.num_idle
                                  : needed_for(match, slots);
  EXPECT(never || !read_cache || match.num_partial ||
             needed == std::max<std::int64_t>(blocks_for(slots) - whole, 0) + match.num_idle,
         "match miscounts the idle blocks");
  const bool fits = needed == 0 || needed <= available_to(name) - held_back;
  EXPECT(never || stale || (promise == Admission::kNow) == (fits && !full),
         "can_admit is wrong about what fits");
  const Outcome due = never   ? kNeverFits
                      : full  ? kOutOfSequences
                      : stale ? kStale
                      : fits  ? kDone
                              : kOutOfBlocks;
  const std::int64_t hits_before = hits_in(name);
  auto entry = std::make_shared<Entry>();
  entry->name = name;
  touching(name);
  const Outcome outcome = call(kAdmit, bit(due), [&] { entry->handle = caller_.admit(asked); });
  if (outcome != kDone) {
    settle();
    return nullptr;
  }
  const Sequence& s = view(*entry);
  EXPECT(s.num_cached == match.num_cached, "admit finds less than match");
  EXPECT(std::equal(match.blocks.begin(), match.blocks.end(), blocks_of(*entry).begin()),
         "admit finds other blocks than match");
  EXPECT(s.num_cached < asked.num_tokens, "no token is left to compute");
  entry->extras = extras;
  extend(*entry, tokens);
  note_found(*entry, match, hits_before);
  entry->start = entry->left_off = s.num_cached;
  note_admitted(*entry);
  hand(*entry);
  entries_.push_back(entry);
  expect_private(*entry, s.num_cached);
  settle();
  return entry;
}

// After reset, running sequences continue, but neither cached blocks nor what they compute can be
// found.
void World::reset(bool reset_hit_rate) {
  const bool promised = anybody_ahead();
  std::int64_t count = 0;
  const std::int64_t cached = core_.index().num_keyed();
  if (call(kReset, bit(promised ? kStepRefused : kDone),
           [&] { count = caller_.reset_prefix_cache(reset_hit_rate); }) == kDone) {
    EXPECT(count == cached, "reset returns a wrong count");
    EXPECT(core_.index().num_keyed() == 0, "a block is cached after a reset");
    for (int i = 0; i < core_.pool().num_partitions(); ++i)
      EXPECT(!core_.pool().past(i) || core_.pool().past(i)->num_ghosts() == 0,
             "evicted blocks are remembered after a reset");
    EXPECT(!reset_hit_rate || core_.recent_hits.sums().requests == 0,
           "requests are remembered after a reset");
    for (const EntryPtr& entry : entries_) {
      entry->outdated = entry->running;
      entry->num_findable = 0;
    }
    for (Hold& held : holds_) held.words.clear();
  }
  settle();
}

// Likewise in one namespace. What is cached there stays so until its room is needed.
void World::retire(int name) {
  bool promised = false;
  std::int64_t running = 0;
  for (const EntryPtr& entry : entries_) {
    if (!entry->running || entry->name != name) continue;
    promised |= ahead(*entry);
    ++running;
  }
  // A sequence that is cut within a cached block still has that block.
  std::vector<std::int64_t> chained;
  for (const EntryPtr& entry : entries_) {
    const Sequence& s = view(*entry);
    chained.push_back(s.num_chained);
    for (std::int64_t i = s.num_chained; entry->running && i < s.num_blocks; ++i)
      if (core_.nodes()[nodes_of(*entry)[i]].keyed()) chained.back() = i + 1;
  }
  std::int64_t count = 0;
  if (call(kRetire, bit(promised ? kStepRefused : kDone),
           [&] { count = core_.retire(text_of(name)); }) == kDone) {
    EXPECT(count == running, "retire returns a wrong count");
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      Entry& entry = *entries_[i];
      if (entry.name != name) continue;
      EXPECT(full_prefix(entry).empty(), "a retired block is found");
      if (!entry.running || entry.outdated) continue;
      entry.num_findable = chained[i];
      entry.outdated = true;
    }
    // A block that loses its key may be written by its one sequence: a hold causes no copy.
    for (Hold& held : holds_) held.words.clear();
  }
  settle();
}

void World::resume(Entry& entry, std::int64_t num_slots, bool read_cache) {
  const auto length = static_cast<std::int64_t>(entry.tokens.size());
  const std::int64_t most = blocks_for(std::max(length, num_slots));
  const bool never = most > longest(entry);
  MatchResult match;
  if (!entry.running && !never && read_cache) match = found_for(entry);
  const std::int64_t needed = needed_for(match, num_slots ? num_slots : length);
  const std::int64_t held_back = watermark_of(entry.name, capacity_of(entry.name) - most);
  const bool fits = needed == 0 || needed <= available_to(entry.name) - held_back;
  const Outcomes due = bit(entry.running ? kWrongState
                           : never       ? kNeverFits
                           : fits        ? kDone
                                         : kOutOfBlocks);
  const std::int64_t hits_before = hits_in(entry.name);
  touching(entry.name);
  if (call(kResume, due, [&] { caller_.resume(entry.handle, num_slots, read_cache); }) == kDone) {
    entry.running = true;
    entry.start = entry.left_off = view(entry).num_cached;
    EXPECT(entry.start < length, "no token is left to compute");
    note_admitted(entry);
    hand(entry);
    note_found(entry, match, hits_before);
    expect_private(entry, entry.start);
  }
  settle();
}

bool World::may_regroup() const {
  return steps_.empty() && holds_.empty() && !config_.watermark_blocks &&
         std::all_of(entries_.begin(), entries_.end(), [&](const EntryPtr& entry) {
           return !entry->running ||
                  slots_of(*entry) >= static_cast<std::int64_t>(entry->tokens.size());
         });
}

// How much it finds depends on the room, so the world computes only what each must have.
void World::resume_together(const std::vector<EntryPtr>& entries, std::int64_t num_slots,
                            bool read_cache, bool must_fit) {
  std::vector<Handle> handles;
  Outcomes due = bit(kDone) | (must_fit ? 0 : bit(kOutOfBlocks) | bit(kNeverFits));
  for (const EntryPtr& entry : entries) {
    const bool again = std::find(handles.begin(), handles.end(), entry->handle) != handles.end();
    handles.push_back(entry->handle);
    touching(entry->name);
    if (due & bit(kDone) && (entry->running || again))
      due = bit(entry->running ? kWrongState : kBadValue);
  }
  for (const EntryPtr& entry : entries) {
    const auto length = static_cast<std::int64_t>(entry->tokens.size());
    if (due & bit(kDone) && blocks_for(std::max(length, num_slots)) > longest(*entry))
      due = bit(kNeverFits);
  }
  const auto count = static_cast<std::int64_t>(handles.size());
  if (caller_.refuses_batch(count)) due = bit(kBadValue);
  const auto run = [&] { caller_.resume_together(handles.data(), count, num_slots, read_cache); };
  if (call(kResumeTogether, due, run) == kDone) {
    for (const EntryPtr& entry : entries) {
      const auto length = static_cast<std::int64_t>(entry->tokens.size());
      entry->running = true;
      entry->start = entry->left_off = view(*entry).num_cached;
      EXPECT(entry->start < length, "no token is left to compute");
      EXPECT(slots_of(*entry) >= (num_slots ? num_slots : length), "too few slots");
      EXPECT(read_cache || !entry->start, "the cache was read");
      note_admitted(*entry);
      hand(*entry);
      std::vector<std::int32_t> found = blocks_of(*entry);
      found.resize(static_cast<std::size_t>(entry->start / config_.block_size));
      if (config_.retention) levels_.found(owners(found));
    }
  }
  settle();
}

// ---- one sequence -------------------------------------------------------------------------------

World::Outcomes World::due_growth(const Entry& entry, std::int64_t slots,
                                  std::int64_t num_tokens) const {
  if (!entry.running) return bit(kWrongState);
  if (blocks_for(slots) > longest(entry)) return bit(kNeverFits);
  const Sequence& s = view(entry);
  const std::int64_t logical = s.num_tokens / config_.block_size;
  std::int64_t needed = std::max<std::int64_t>(blocks_for(slots) - s.num_blocks, 0);
  if (std::max(slots, num_tokens) > s.num_tokens && logical < s.num_blocks) {
    const bool copies = !is_private(core_.table_at(Sequences::row_of(entry.handle))[logical]);
    if (copies && lacks_words(entry, logical)) return bit(kStepRefused);
    needed += copies;
  }
  return bit(needed <= available_to(entry.name) ? kDone : kOutOfBlocks);
}

void World::reserve(Entry& entry, std::int64_t num_slots) {
  const auto length = static_cast<std::int64_t>(entry.tokens.size());
  const Outcomes due =
      entry.running && num_slots < 1 ? bit(kBadValue) : due_growth(entry, num_slots, length);
  const std::int64_t computed = entry.running ? computed_after(entry, num_slots, length) : 0;
  touching(entry.name);
  if (call(kReserve, due, [&] { caller_.reserve(entry.handle, num_slots); }) == kDone) {
    EXPECT(view(entry).num_computed == computed, "reserve leaves a wrong number computed");
    EXPECT(slots_of(entry) >= num_slots, "reserve gave too few slots");
    if (num_slots > length) expect_private(entry, length);
    entry.promise = 0;  // the tail may be in another block, without the promised tokens
    limit_kept(entry);
    hand(entry);
  }
  settle();
}

void World::append(Entry& entry, const std::vector<Token>& tokens) {
  const auto before = static_cast<std::int64_t>(entry.tokens.size());
  const auto count = static_cast<std::int64_t>(tokens.size());
  const Outcomes due = due_growth(entry, before + count, before + count);
  const std::int64_t computed =
      entry.running ? computed_after(entry, before + count, before + count) : 0;
  touching(entry.name);
  if (call(kAppend, due, [&] { caller_.append(entry.handle, tokens.data(), count); }) == kDone) {
    EXPECT(view(entry).num_computed == computed, "append leaves a wrong number computed");
    extend(entry, tokens);
    expect_private(entry, before);
    entry.promise = 0;
    limit_kept(entry);
    hand(entry);
  }
  settle();
}

std::int64_t World::written_until(const Entry& entry) const {
  const Sequence& s = view(entry);
  if (s.state == Sequence::kPreempted) return 0;
  const std::int64_t start = first_to_write(entry);
  const std::int64_t stop =
      std::min({s.num_tokens, slots_of(entry), static_cast<std::int64_t>(entry.written.size())});
  const std::vector<std::int32_t> table = blocks_of(entry);
  std::int64_t at = start;
  for (; at < stop; ++at) {
    const std::int64_t slot =
        std::int64_t{table[static_cast<std::size_t>(at / config_.block_size)]} *
            config_.block_size +
        at % config_.block_size;
    if (entry.written[static_cast<std::size_t>(at)] != slot) break;
  }
  return at;
}

std::int64_t World::committable(const Entry& entry) const {
  if (early() && entry.running) return std::min(view(entry).num_tokens, slots_of(entry));
  return written_until(entry);
}

void World::commit(Entry& entry, std::int64_t num_computed) {
  const Sequence& s = view(entry);
  const std::int64_t most = std::min(s.num_tokens, slots_of(entry));
  const bool in_range = s.num_computed <= num_computed && num_computed <= most;
  if (in_range && entry.running) num_computed = std::min(num_computed, committable(entry));
  const Outcome due = !entry.running     ? kWrongState
                      : early() && open_ ? kStepRefused
                      : in_range         ? kDone
                                         : kBadValue;
  const auto run = [&] { caller_.commit(entry.handle, num_computed); };
  const std::vector<bool> was_keyed = keyed();
  Entry committed = entry;
  begin_early(committed);
  touching(entry.name);
  if (call(kCommit, bit(due), run) == kDone) {
    if (early()) {
      entry.early_step = committed.early_step;
      entry.settled = committed.settled;
      entry.kept = committed.kept;
      entry.promise = num_computed;
      note_promised(entry, was_keyed);
      hand(entry);  // an early commit may change slots, so the engine asks again
    } else {
      entry.start = entry.left_off = num_computed;
    }
  }
  settle();
}

void World::truncate(Entry& entry, std::int64_t num_tokens) {
  const Sequence& s = view(entry);
  const bool in_range = 1 <= num_tokens && num_tokens <= s.num_tokens;
  const Outcome due = !entry.running                                ? kWrongState
                      : !in_range                                   ? kBadValue
                      : num_tokens < s.num_computed && ahead(entry) ? kStepRefused
                                                                    : kDone;
  touching(entry.name);
  if (call(kTruncate, bit(due), [&] { caller_.truncate(entry.handle, num_tokens); }) == kDone) {
    const auto length = static_cast<std::size_t>(num_tokens);
    entry.tokens.resize(length);
    entry.prefixes.resize(length);
    if (entry.written.size() > length) entry.written.resize(length);
    entry.left_off = std::min(entry.left_off, num_tokens);
    entry.promise = std::min(entry.promise, num_tokens);
    limit_kept(entry);
    note_cut(entry);
    hand(entry);
    ++entry.version;
    entry.cut = std::min(entry.cut, num_tokens);
    EXPECT(view(entry).num_blocks <= blocks_for(num_tokens), "truncate left blocks behind");
  }
  settle();
}

void World::become_fork(Entry& child, const Entry& parent) {
  child.name = parent.name;
  child.extras = parent.extras;
  child.tokens = parent.tokens;
  child.prefixes = parent.prefixes;
  child.written = parent.written;
  child.start = parent.start;
  child.left_off = parent.left_off;
  child.promise = 0;
  child.handed = parent.handed;
  child.early_step = parent.early_step;
  child.settled = parent.settled;
  child.kept = parent.kept;
  child.cut = parent.cut;
  child.outdated = parent.outdated;
  child.num_findable = parent.num_findable;
  ++child.version;
}

std::vector<EntryPtr> World::fork(const EntryPtr& entry, std::int64_t count) {
  const int rows = config_.max_seqs - core_.num_sequences();
  const Outcome due = !entry->running ? kWrongState
                      : ahead(*entry) ? kStepRefused
                      : count < 1     ? kBadValue
                      : count > rows  ? kOutOfSequences
                                      : kDone;
  std::vector<Handle> handles(static_cast<std::size_t>(std::max<std::int64_t>(count, 0)));
  std::vector<EntryPtr> children;
  const auto run = [&] { caller_.fork(entry->handle, count, handles.data()); };
  touching(entry->name);
  if (call(kFork, bit(due), run) == kDone) {
    for (const Handle handle : handles) {
      auto child = std::make_shared<Entry>();
      child->handle = handle;
      become_fork(*child, *entry);
      // A fork does not compute tokens that its parent has computed or computes in this step's
      // forward.
      child->start = view(*child).num_computed;
      children.push_back(child);
      entries_.push_back(child);
    }
  }
  settle();
  return children;
}

void World::reparent(const std::vector<EntryPtr>& entries,
                     const std::vector<std::int64_t>& parents) {
  const auto count = static_cast<std::int64_t>(entries.size());
  std::vector<Handle> handles;
  Outcomes due = bit(kDone);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const EntryPtr& entry = entries[i];
    const bool again = std::find(handles.begin(), handles.end(), entry->handle) != handles.end();
    handles.push_back(entry->handle);
    const bool valid = 0 <= parents[i] && parents[i] < count;
    const bool promised = parents[i] != static_cast<std::int64_t>(i) && ahead(*entry);
    due = !entry->running   ? bit(kWrongState)
          : again || !valid ? bit(kBadValue)
          : promised        ? bit(kStepRefused)
                            : bit(kDone);
    if (due != bit(kDone)) break;
  }
  for (std::size_t i = 0; due == bit(kDone) && i < entries.size(); ++i)
    if (parents[i] != static_cast<std::int64_t>(i) &&
        ahead(*entries[static_cast<std::size_t>(parents[i])]))
      due = bit(kStepRefused);
  if (caller_.refuses_batch(count)) due = bit(kBadValue);
  const auto run = [&] { caller_.reparent(handles.data(), parents.data(), count); };
  if (call(kReparent, due, run) == kDone) {
    std::vector<Entry> before;
    for (const EntryPtr& entry : entries) before.push_back(*entry);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (parents[i] == static_cast<std::int64_t>(i)) continue;
      become_fork(*entries[i], before[static_cast<std::size_t>(parents[i])]);
      entries[i]->start = view(*entries[i]).num_computed;
    }
  }
  settle();
}

void World::free(const EntryPtr& entry, bool withdraw) {
  const EntryPtr kept = entry;  // entry may refer to an element of entries_
  const bool refused = withdraw ? !can_withdraw(*kept) : ahead(*kept);
  const Outcome due = refused ? kStepRefused : kDone;
  touching(kept->name);
  const int cached = core_.index().num_keyed();
  const std::vector<bool> was_keyed = keyed();
  if (call(kFree, bit(due), [&] { caller_.free(kept->handle, withdraw); }) == kDone) {
    EXPECT(!kept->outdated || core_.index().num_keyed() <= cached,
           "the tail of a forgotten prefix is kept");
    kept->alive = false;
    entries_.erase(std::find(entries_.begin(), entries_.end(), kept));
    if (dead_.size() < 64) dead_.push_back(kept->handle);
    note_moved(was_keyed);
  }
  settle();
}

void World::preempt(Entry& entry, bool withdraw) {
  const bool refused = withdraw ? !can_withdraw(entry) : ahead(entry);
  const Outcome due = !entry.running ? kWrongState : refused ? kStepRefused : kDone;
  touching(entry.name);
  const int cached = core_.index().num_keyed();
  if (call(kPreempt, bit(due), [&] { caller_.preempt(entry.handle, withdraw); }) == kDone) {
    EXPECT(!entry.outdated || core_.index().num_keyed() <= cached,
           "the tail of a forgotten prefix is kept");
    entry.start = entry.left_off = entry.promise = 0;
    entry.early_step = -1;
    entry.handed.clear();
    entry.written.clear();
    entry.running = entry.outdated = false;
    ++entry.version;
  }
  settle();
}

// Whether the next token of a sequence of a batch needs a copy of its block. Of the sequences that
// share a block, the last keeps it; left counts those that have not moved to a copy yet.
bool World::copies_for(const Entry& entry, std::map<NodeId, std::uint32_t>& left) const {
  const auto logical = static_cast<std::int64_t>(entry.tokens.size()) / config_.block_size;
  if (logical >= view(entry).num_blocks) return false;
  const NodeId b = core_.table_at(Sequences::row_of(entry.handle))[logical];
  std::uint32_t& sharers = left.try_emplace(b, core_.nodes().uses(b).ref_count).first->second;
  const bool copies = core_.nodes()[b].keyed() || sharers > 1;
  if (copies) --sharers;
  return copies;
}

// The number of blocks that a batch takes from a partition.
std::int64_t World::needed_by(const std::vector<EntryPtr>& entries, int partition) const {
  std::map<NodeId, std::uint32_t> left;
  std::int64_t needed = 0;
  for (const EntryPtr& entry : entries) {
    const auto logical = static_cast<std::int64_t>(entry->tokens.size()) / config_.block_size;
    const bool takes = logical >= view(*entry).num_blocks || copies_for(*entry, left);
    needed += takes && partition_of(entry->name) == partition;
  }
  return needed;
}

// Decodes one token for each sequence; leaves out sequences whose K/V is not fully written.
void World::decode(const std::vector<EntryPtr>& entries, const std::vector<Token>& tokens) {
  std::vector<EntryPtr> ready;
  std::vector<Handle> handles;
  std::vector<Token> fresh;
  Outcomes due = bit(early() && open_ ? kStepRefused : kDone);
  bool refused = due == bit(kStepRefused);
  std::map<NodeId, std::uint32_t> left;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const EntryPtr& entry = entries[i];
    const auto length = static_cast<std::int64_t>(entry->tokens.size());
    const bool unslotted = slots_of(*entry) < length;
    if (written_until(*entry) != length && !unslotted) continue;
    const bool again = std::find(ready.begin(), ready.end(), entry) != ready.end();
    const std::int64_t logical = length / config_.block_size;
    const bool never = logical >= view(*entry).num_blocks && logical >= longest(*entry);
    const bool lacks = copies_for(*entry, left) && lacks_words(*entry, logical);
    const Outcome refusal = !entry->running ? kWrongState
                            : again         ? kBadValue
                            : unslotted     ? kWrongState
                            : ahead(*entry) ? kStepRefused
                            : never         ? kNeverFits
                            : lacks         ? kStepRefused
                                            : kDone;
    if (!refused && refusal != kDone) {
      due = bit(refusal);
      refused = true;
    }
    ready.push_back(entry);
    handles.push_back(entry->handle);
    fresh.push_back(tokens[i]);
  }
  if (ready.empty()) return;
  for (const EntryPtr& entry : ready) {
    if (!refused && needed_by(ready, partition_of(entry->name)) > available_to(entry->name))
      due = bit(kOutOfBlocks);
    touching(entry->name);
  }
  const std::int64_t left_over =
      available_to(ready[0]->name) - needed_by(ready, partition_of(ready[0]->name));
  std::vector<std::int64_t> slots(ready.size());
  const auto count = static_cast<std::int64_t>(ready.size());
  if (caller_.refuses_batch(count)) due = bit(kBadValue);
  const auto run = [&] { caller_.decode(handles.data(), fresh.data(), count, slots.data()); };
  if (call(kDecode, due, run) == kDone) {
    // A deduplication may take a cached block into use and leave another one fenced.
    EXPECT(config_.remap || available_to(ready[0]->name) >= left_over,
           "decode took more blocks than it needs");
    for (std::size_t i = 0; i < ready.size(); ++i) {
      Entry& entry = *ready[i];
      const auto length = static_cast<std::int64_t>(entry.tokens.size());
      entry.start = entry.left_off = length;
      entry.settled = entry.kept = length;
      entry.promise = 0;
      if (habits_.writes == Writes::kAsHanded) {
        entry.handed.resize(static_cast<std::size_t>(length));
        entry.handed.push_back(slots[i]);
      }
      extend(entry, {fresh[i]});
      expect_private(entry, length);
      EXPECT(view(entry).num_computed == length, "decode left more than one token to compute");
      std::int64_t slot = -1;
      caller_.slot_mapping(entry.handle, length, length + 1, &slot);
      EXPECT(slot == slots[i], "decode and slot_mapping return different slots");
    }
  }
  settle();
}

void World::call_dead(Op op, std::size_t which) {
  const Handle handle = dead_[which % dead_.size()];
  const Token token = 0;
  Handle child = 0;
  call(op, bit(kUnknownSequence), [&] {
    switch (op) {
      case kAppend:
        return caller_.append(handle, &token, 1);
      case kCommit:
        return caller_.commit(handle, 1);
      case kReserve:
        return caller_.reserve(handle, 1);
      case kTruncate:
        caller_.truncate(handle, 1);
        return;
      case kFork:
        caller_.fork(handle, 1, &child);
        return;
      case kPreempt:
        return caller_.preempt(handle);
      case kResume:
        return caller_.resume(handle, 0);
      default:
        return caller_.free(handle);
    }
  });
  settle();
}

void World::take_remaps() {
  std::vector<RemapRecord> remaps;
  call(kRemaps, bit(kDone), [&] { remaps = caller_.take_remaps(); });
  // Records of one batch are in the order of the batch.
  const auto before = [](const RemapRecord& a, const RemapRecord& b) {
    return std::pair(a.handle, a.index) < std::pair(b.handle, b.index);
  };
  std::stable_sort(remaps.begin(), remaps.end(), before);
  std::stable_sort(remaps_.begin(), remaps_.end(), before);
  const bool same = std::equal(remaps.begin(), remaps.end(), remaps_.begin(), remaps_.end(),
                               [](const RemapRecord& a, const RemapRecord& b) {
                                 return a.handle == b.handle && a.index == b.index &&
                                        a.old_block == b.old_block && a.new_block == b.new_block;
                               });
  constexpr std::size_t kKept = 256;  // for any pool size
  EXPECT(same || remaps_.size() > kKept, "the log of merges is wrong");
  remaps_.clear();
  settle();
}

}  // namespace blockmgr::testing
