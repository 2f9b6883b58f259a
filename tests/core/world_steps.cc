// Steps: copy plans, forwards and their commits; and the recomputation of the books.
#include <algorithm>
#include <set>
#include <utility>

#include "world.h"

namespace blockmgr::testing {

LaunchPtr World::begin(std::size_t skip, bool applied) {
  const auto limit = static_cast<std::size_t>(config_.steps_in_flight);
  const bool full = limit && steps_.size() >= limit;
  auto launch = std::make_shared<Launch>();
  const auto run = [&] { launch->ticket = caller_.take_copies(launch->copies); };
  if (call(kTake, bit(open_ || full ? kStepRefused : kDone), run) != kDone) {
    settle();
    return nullptr;
  }
  last_ticket_ = launch->ticket;
  launch->blocks.resize(tables_.size());
  for (const BlockCopy& copy : launch->copies) {
    for (const BlockCopy& other : launch->copies)
      EXPECT(copy.source != other.destination &&
                 (&copy == &other || copy.destination != other.destination),
             "the order of the copy plan matters");
    launch->blocks[static_cast<std::size_t>(copy.source)] = true;
    launch->blocks[static_cast<std::size_t>(copy.destination)] = true;
  }
  const std::vector<EntryPtr> to_write = to_launch();
  for (std::size_t index = 0; index < to_write.size(); ++index) {
    Entry& entry = *to_write[index];
    const Sequence& s = view(entry);
    for (const std::int32_t b : blocks_of(entry))
      launch->blocks[static_cast<std::size_t>(b)] = true;
    const std::int64_t end = std::min(s.num_tokens, slots_of(entry));
    if (end == 0 || (index == skip && !early())) continue;
    Work work{entry.handle,
              std::vector<std::int64_t>(static_cast<std::size_t>(end)),
              {entry.prefixes.begin(), entry.prefixes.begin() + end},
              first_to_write(entry)};
    caller_.slot_mapping(entry.handle, 0, end, work.slots.data());
    if (habits_.writes == Writes::kAsHanded) {
      EXPECT(static_cast<std::int64_t>(entry.handed.size()) == end, "the engine lost a slot");
      work.handed = entry.handed;
    }
    launch->parts.push_back({to_write[index], entry.version, launch->work.size()});
    launch->work.push_back(std::move(work));
    entry.start = s.num_computed;
    if (early()) entry.left_off = std::max(entry.left_off, std::exchange(entry.promise, 0));
  }
  launch->brought = brought_by(launch->copies);
  open_ = launch;
  steps_.push_back(launch);
  queue_.push_back(launch);
  if (applied) resolve();
  settle();
  return launch;
}

// The words that sequences count as computed and that a copy of this plan brings.
std::vector<Brought> World::brought_by(const std::vector<BlockCopy>& copies) const {
  std::vector<Brought> brought;
  for (const BlockCopy& copy : copies)
    for (const EntryPtr& entry : entries_) {
      const Sequence& s = view(*entry);
      const std::vector<std::int32_t> table = blocks_of(*entry);
      const std::int64_t computed = std::min(s.num_computed, entry->cut);
      for (std::int64_t i = 0; i < s.num_blocks; ++i) {
        if (table[static_cast<std::size_t>(i)] != copy.destination) continue;
        const std::int64_t start = i * config_.block_size;
        for (int word = 0; word < copy.num_tokens && start + word < computed; ++word)
          brought.push_back(
              {copy.destination, word, entry->prefixes[static_cast<std::size_t>(start + word)]});
      }
    }
  return brought;
}

void World::resolve() {
  if (!open_) return;
  const std::int64_t ticket = open_->ticket;
  call(kApplied, bit(kDone), [&] { caller_.copies_applied(ticket); });
  ++num_applied_;
  std::fill(promised_.begin(), promised_.end(), 0);
  open_ = nullptr;
  for (const EntryPtr& entry : entries_) {
    const NodeId* table = nodes_of(*entry);
    const bool waits = std::any_of(table, table + view(*entry).num_blocks, [this](NodeId b) {
      return core_.nodes()[b].copy_source != kNoNode;
    });
    if (!waits) entry->cut = INT64_MAX;
  }
  settle();
}

void World::run_until(const LaunchPtr& launch) {
  while (!launch->ran) {
    const LaunchPtr next = queue_.front();
    queue_.erase(queue_.begin());
    device_.run(next->copies, next->brought, next->work);
    next->ran = true;
  }
}

void World::remove_step(const LaunchPtr& launch) {
  const auto at = std::find(steps_.begin(), steps_.end(), launch);
  if (at != steps_.end()) steps_.erase(at);
}

// Runs the step and all earlier ones, and commits all but held_back of its tokens.
void World::finish(const LaunchPtr& chosen, std::int64_t held_back) {
  const LaunchPtr launch = chosen;  // chosen may refer to an element of steps_
  const std::vector<LaunchPtr> steps = steps_;
  for (const LaunchPtr& earlier : steps) {
    if (earlier == launch) break;
    if (!earlier->finished) finish(earlier, 0);
  }
  run_until(launch);
  if (launch == open_) resolve();
  if (launch->finished) return;
  launch->finished = true;
  if (!config_.steps_in_flight) remove_step(launch);
  for (const Launch::Part& part : launch->parts) {
    Entry& entry = *part.entry;
    if (!entry.alive || entry.version != part.version) continue;
    entry.written = launch->work[part.work].slots;
    if (early()) continue;
    const std::int64_t computed = view(entry).num_computed;
    commit(entry, std::max(computed, written_until(entry) - held_back));
  }
}

// The device has run the oldest steps in flight.
void World::complete(std::size_t count) {
  count = std::min(count, steps_.size());
  if (!count || steps_[count - 1] == open_) return;
  const std::vector<LaunchPtr> done(steps_.begin(),
                                    steps_.begin() + static_cast<std::ptrdiff_t>(count));
  for (const LaunchPtr& launch : done) finish(launch, 0);
  const std::int64_t ticket = done.back()->ticket;
  steps_.erase(steps_.begin(), steps_.begin() + static_cast<std::ptrdiff_t>(count));
  call(kComplete, bit(kDone), [&] { caller_.complete(ticket); });
  settle();
}

void World::step(std::size_t skip, std::int64_t held_back) {
  if (open_) finish(open_, 0);
  const auto limit = static_cast<std::size_t>(config_.steps_in_flight);
  if (limit && steps_.size() >= limit) complete(1);
  const LaunchPtr launch = begin(skip, false);
  EXPECT(launch != nullptr, "take_copies was refused at the start of a step");
  finish(launch, held_back);
}

void World::pause(std::int64_t count) {
  step();
  if (config_.steps_in_flight) complete(steps_.size());
  skip_steps(core_, count);
  num_applied_ += count;
  last_ticket_ += count;
}

// The launch failed: neither copies nor forward have run.
void World::abort() {
  if (early() && open_) finish(open_, 0);
  const LaunchPtr launch = open_ ? open_ : begin(SIZE_MAX, false);
  if (!launch) return;
  queue_.pop_back();
  open_ = nullptr;
  remove_step(launch);
  const std::int64_t ticket = launch->ticket;
  call(kAborted, bit(kDone), [&] { caller_.copies_aborted(ticket); });
  for (const Launch::Part& part : launch->parts) {
    const std::int64_t start = launch->work[part.work].start;
    part.entry->start = std::min(part.entry->start, start);
    if (!early() || !part.entry->alive || part.entry->version != part.version) continue;
    part.entry->left_off = std::min(part.entry->left_off, start);
    hand(*part.entry);
  }
  settle();
  if (early()) step();  // the next step must compute what was committed early
}

void World::reorder(const std::vector<std::size_t>& order) {
  std::vector<EntryPtr> entries;
  for (const std::size_t index : order) entries.push_back(entries_[index]);
  entries_.swap(entries);
  const auto position = [this](const Launch::Part& part) {
    return std::find(entries_.begin(), entries_.end(), part.entry);
  };
  for (const LaunchPtr& step : steps_)
    std::stable_sort(step->parts.begin(), step->parts.end(),
                     [&](const auto& a, const auto& b) { return position(a) < position(b); });
}

void World::wrong_ticket(Op op, std::int64_t ticket) {
  const bool open = open_ && open_->ticket == ticket;
  if (op == kComplete) {
    // Completing an open step or one in flight is valid, so only invalid tickets are tried.
    const bool known = config_.steps_in_flight && !steps_.empty() &&
                       ticket >= steps_.front()->ticket && ticket <= last_ticket_;
    if (!known) call(op, bit(kStepRefused), [&] { caller_.complete(ticket); });
  } else if (!open) {
    call(op, bit(kWrongTicket),
         [&] { op == kApplied ? caller_.copies_applied(ticket) : caller_.copies_aborted(ticket); });
  }
  settle();
}

void World::finish_up() {
  fail_digest(0);
  step();
  let_go_of_all();
  while (!entries_.empty()) free(entries_.back());
  step();
  if (config_.steps_in_flight) complete(steps_.size());
  check();
  const Pool& pool = core_.pool();
  EXPECT(pool.available() + pool.num_withheld() == pool.capacity(), "blocks leaked");
  EXPECT(core_.num_sequences() == 0, "rows leaked");
}

void World::fail_digest(int in_calls) {
  if (digester_ && !digester_->never_fails()) digester_->fails_in = in_calls;
}

void World::intrude(bool on) {
  if (!digester_ || digester_->never_fails()) return;
  digester_->intrusion = nullptr;
  if (!on) return;
  digester_->intrusion = [this] {
    const Outcome outcome = outcome_of(
        [&] { core_.handles().empty() ? caller_.free(0) : caller_.free(core_.handles()[0]); });
    EXPECT(outcome == kReentered, "a call from inside a digest was not refused");
    if (counts_) ++(*counts_)[kFree][kReentered];
  };
}

// ---- the books ----------------------------------------------------------------------------------

void World::expect_private(const Entry& entry, std::int64_t from) {
  const NodeId* table = nodes_of(entry);
  for (std::int64_t i = from / config_.block_size; i < view(entry).num_blocks; ++i)
    EXPECT(is_private(table[i]), "a block to write into is shared or findable");
}

// No block that a launched step may still use is allocated for writing.
void World::check_fences(Op op) {
  std::vector<bool> tables(tables_.size());
  for (const Handle handle : core_.handles()) {
    const Sequence& s = core_.view(handle);
    const std::vector<std::int32_t> table = core_.block_ids(handle, 0);
    for (std::int64_t i = 0; i < s.num_blocks; ++i) {
      const auto b = static_cast<std::size_t>(table[static_cast<std::size_t>(i)]);
      tables[b] = true;
      if ((i + 1) * config_.block_size <= s.num_computed || tables_[b]) continue;
      for (const LaunchPtr& step : steps_)
        EXPECT(!step->blocks[b], std::string(name_of(op)) + " allocated block " +
                                     std::to_string(b) + ", which is still in flight");
    }
  }
  tables_ = std::move(tables);
}

void World::check() {
  const std::vector<std::string> violations = core_.violations();
  EXPECT(violations.empty(), violations.empty() ? "" : violations.front());
  caller_.check_reads();
  check_entries();
  check_shown();
  check_common_prefix();
  check_cached();
  check_computed();
  check_quotas();
  check_ghosts();
  check_tails();
  check_holds();
  check_mirror();
  if (!config_.retention) return;
  const std::string wrong = levels_.wrong();
  EXPECT(wrong.empty(), wrong);
}

// Compares a mirror fed by events alone with what can be found.
void World::check_mirror() {
  // Not after each call, so that events of several calls accumulate.
  if (!config_.event_blocks || ++mirror_checks_ % 8) return;
  const auto size = static_cast<std::size_t>(core_.nodes().digest_size);
  const auto apply = [&](const EventColumns& events) {
    for (const EventRun& run : events.runs) {
      if (run.kind == EventKind::kCleared) mirror_.clear();
      for (std::int64_t i = run.first; i < run.first + run.num_blocks; ++i) {
        const std::uint8_t* digest = events.digests.data() + static_cast<std::size_t>(i) * size;
        const std::string key(digest, digest + size);
        const bool changed =
            run.kind == EventKind::kStored ? mirror_.insert(key).second : mirror_.erase(key) == 1;
        EXPECT(changed, "an event repeats what a mirror has");
      }
    }
  };
  const EventColumns events = caller_.take_events();
  apply(events);
  if (events.num_lost) apply(caller_.take_snapshot());
  std::set<std::string> findable;
  for (NodeId b = 0; b < core_.nodes().count; ++b) {
    if (core_.nodes()[b].key_tokens != config_.block_size) continue;
    const std::uint8_t* digest = core_.nodes().digest(b);
    findable.emplace(digest, digest + size);
  }
  EXPECT(mirror_ == findable, "a mirror fed by events differs from what can be found");
}

void World::check_calls(bool on) {
  settings_.check_every = on ? asked_.check_every : INT32_MAX;
  settings_.snapshot_every = on ? asked_.snapshot_every : INT32_MAX;
}

void World::check_entries() {
  EXPECT(core_.handles().size() == entries_.size(), "the set of sequences is wrong");
  std::vector<Token> tokens;
  for (const EntryPtr& entry : entries_) {
    const Sequence& s = view(*entry);
    EXPECT((s.state == Sequence::kRunning) == entry->running, "a sequence is in the wrong state");
    EXPECT(s.num_tokens == static_cast<std::int64_t>(entry->tokens.size()),
           "wrong number of tokens");
    tokens.resize(entry->tokens.size());
    core_.copy_tokens(entry->handle, tokens.data());
    EXPECT(tokens == entry->tokens, "tokens changed");
    // The key of a retired block may pass to its twin, and nobody finds either.
    for (std::int64_t i = entry->num_findable; entry->outdated && i < s.num_blocks; ++i) {
      const NodeId b = core_.table_at(Sequences::row_of(entry->handle))[i];
      EXPECT(!core_.nodes()[b].keyed() || core_.index().is_retired(b),
             "a block after a forgotten prefix can be found");
    }
    check_found(*entry);
  }
}

// The arrays shown to callers must match the books, with 0 past a sequence's blocks.
void World::check_shown() {
  if (settings_.scribbles) return;
  std::vector<std::int32_t> due(static_cast<std::size_t>(config_.row_width));
  std::vector<std::int32_t> lengths(static_cast<std::size_t>(config_.max_seqs));
  std::vector<bool> taken(lengths.size());
  for (const EntryPtr& entry : entries_) {
    const std::int64_t row = Sequences::row_of(entry->handle);
    const Sequence& s = view(*entry);
    std::fill(due.begin(), due.end(), 0);
    const std::vector<std::int32_t> blocks = blocks_of(*entry);
    std::copy(blocks.begin(), blocks.end(), due.begin());
    EXPECT(std::equal(due.begin(), due.end(), core_.shown_tables.data() + row * config_.row_width),
           "a shown table differs from the sequence's");
    taken[static_cast<std::size_t>(row)] = true;
    lengths[static_cast<std::size_t>(row)] =
        entry->running ? static_cast<std::int32_t>(s.num_tokens) : 0;
  }
  EXPECT(std::equal(lengths.begin(), lengths.end(), core_.shown_lengths.data()),
         "a shown length differs from the sequence's");
  for (std::int64_t row = 0; row < config_.max_seqs; ++row) {
    if (taken[static_cast<std::size_t>(row)]) continue;
    const std::int32_t* shown = core_.shown_tables.data() + row * config_.row_width;
    EXPECT(std::all_of(shown, shown + config_.row_width, [](std::int32_t b) { return b == 0; }),
           "a row without a sequence shows blocks");
  }
}

// Overwrites the shown tables, as a misbehaving caller may: with invalid ids and with blocks of
// other sequences. They are then useless to that caller, but must not affect the core.
void World::scribble() const {
  static constexpr std::int32_t kNonsense[] = {-1, INT32_MIN, INT32_MAX, 0, 1, 2};
  for (std::size_t i = 0; i < core_.shown_tables.size(); ++i)
    core_.shown_tables[i] = kNonsense[(i + static_cast<std::size_t>(calls_)) % 6];
  for (std::size_t i = 0; i < core_.shown_lengths.size(); ++i)
    core_.shown_lengths[i] = kNonsense[i % 6];
}

void World::check_common_prefix() {
  std::int64_t due = INT64_MAX;
  const Entry* first = nullptr;
  std::vector<Handle> handles;
  for (const EntryPtr& entry : entries_) {
    if (!entry->running) continue;
    if (!first) first = entry.get();
    handles.push_back(entry->handle);
    const std::int32_t* table = core_.table_at(Sequences::row_of(entry->handle));
    const std::int32_t* other = core_.table_at(Sequences::row_of(first->handle));
    std::int64_t n = 0;
    while (n < view(*entry).num_computed / config_.block_size && table[n] == other[n]) ++n;
    due = std::min(due, n);
  }
  if (!first) due = 0;
  const auto count = static_cast<std::int64_t>(handles.size());
  EXPECT(core_.num_common_prefix_blocks() == due &&
             core_.num_common_prefix_blocks(handles.data(), count) == due,
         "the common prefix is wrong");
}

// A look-up must find every block that the sequence has promoted.
void World::check_found(const Entry& entry) {
  const Sequence& s = view(entry);
  if (!digester_ || digester_->fails_in || digester_->intrusion) return;
  const std::int64_t due =
      std::min<std::int64_t>(s.num_chained, (s.num_tokens - 1) / config_.block_size);
  if (due == 0) return;
  const MatchResult match = caller_.match(prompt(entry.tokens, entry.name, entry.extras, 0));
  EXPECT(static_cast<std::int64_t>(match.blocks.size()) >= due, "a cached block is not found");
}

// A cached block must not be a ghost. Checked only with a digest without collisions. A retired
// block may have the digest of a later one, which was evicted.
void World::check_ghosts() {
  if (settings_.digest != TestDigester::kWide) return;
  const Nodes& nodes = core_.nodes();
  for (int i = 0; i < core_.pool().num_partitions(); ++i)
    for (NodeId b = 0; core_.pool().past(i) && b < nodes.count; ++b)
      if (nodes[b].key_tokens == config_.block_size && !core_.index().is_retired(b))
        EXPECT(core_.pool().past(i)->find(nodes.digest(b)) < 0,
               "a cached block is remembered as evicted");
}

// No tail stays cached beside a longer block that starts with it. Not checked in large pools, where
// the core examines only some of very many children.
void World::check_tails() {
  constexpr NodeId kFew = 64;
  const Nodes& nodes = core_.nodes();
  if (!config_.min_partial_tokens || nodes.count > kFew) return;
  for (NodeId b = 0; b < nodes.count; ++b) {
    const Node& tail = nodes[b];
    if (!tail.keyed() || tail.key_tokens == config_.block_size) continue;
    for (NodeId other = 0; other < nodes.count; ++other) {
      const Node& longer = nodes[other];
      if (!longer.keyed() || longer.parent != tail.parent || longer.extras != tail.extras ||
          longer.parent_generation != tail.parent_generation)  // one of them is retired
        continue;
      const bool covers = longer.key_tokens > tail.key_tokens;
      EXPECT(!covers || !std::equal(nodes.tokens(b), nodes.tokens(b) + tail.key_tokens,
                                    nodes.tokens(other)),
             "a part is cached although a block begins with it");
    }
  }
}

// The memory of every cached block must match its place in the tree of prefixes. With early commits
// a block may be cached before the forward that fills it.
void World::check_cached() {
  if (early() || !queue_.empty() || !digester_) return;
  const Nodes& nodes = core_.nodes();
  std::vector<Prefix> ends(static_cast<std::size_t>(nodes.count));
  std::vector<NodeId> path;
  for (NodeId b = 0; b < nodes.count; ++b) {
    if (!nodes[b].keyed()) continue;
    NodeId node = b;
    for (; node >= 0 && !ends[static_cast<std::size_t>(node)]; node = nodes[node].parent)
      path.push_back(node);
    Prefix prefix = is_root(node) ? trie_.root(name_of_root(root_index(node)))
                                  : ends[static_cast<std::size_t>(node)];
    for (; !path.empty(); path.pop_back()) {
      const NodeId at = path.back();
      prefix = trie_.after_extras(prefix, extras_prefix(nodes[at].extras));
      for (int i = 0; i < nodes[at].key_tokens; ++i) {
        prefix = trie_.after_token(prefix, nodes.tokens(at)[i]);
        EXPECT(device_.cell(nodes.name(at), i) == prefix,
               "node " + std::to_string(at) + " is cached and has wrong K/V at word " +
                   std::to_string(i));
      }
      ends[static_cast<std::size_t>(at)] = prefix;
    }
  }
}

// Everything that a sequence counts as computed must be in memory, or a pending copy brings it.
void World::check_computed() {
  if (early() || !queue_.empty()) return;
  const int size = config_.block_size;
  for (const EntryPtr& entry : entries_) {
    const NodeId* table = nodes_of(*entry);
    for (std::int64_t at = 0; at < view(*entry).num_computed; ++at) {
      NodeId b = table[at / size];
      const auto word = static_cast<int>(at % size);
      const Node& record = core_.nodes()[b];
      if (record.in_flight) continue;
      if (record.copy_source != kNoNode && word < record.copy_tokens) b = record.copy_source;
      EXPECT(device_.cell(core_.nodes().name(b), word) ==
                 entry->prefixes[static_cast<std::size_t>(at)],
             "position " + std::to_string(at) + " counts as computed, but is not in memory");
    }
  }
}

}  // namespace blockmgr::testing
