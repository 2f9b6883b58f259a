// Steps of an engine with groups of layers: copies, forwards, commits.
#include <algorithm>
#include <utility>

#include "group_play.h"

namespace blockmgr::testing {

const GroupPlay::Part* GroupPlay::last_launched(const Seq& seq) const {
  for (auto step = uncommitted_.rbegin(); step != uncommitted_.rend(); ++step)
    for (const Part& part : *step)
      if (part.handle == seq.handle) return &part;
  return nullptr;
}

// The computed length of a sequence after all closed steps have run.
std::int64_t GroupPlay::launched(const Seq& seq) const {
  const Part* part = last_launched(seq);
  return part ? part->stop : settled(seq);
}

// The slot in which its states are then.
std::size_t GroupPlay::slot_of(const Seq& seq) const {
  const Part* part = last_launched(seq);
  return part ? part->slots.back() : static_cast<std::size_t>(core_.view_groups(seq.handle).slot);
}

// Where the next forward, over so many tokens, leaves the states: a few that may be rejected, after
// each of them.
std::vector<std::size_t> GroupPlay::next_slots(std::size_t slot, std::int64_t num_tokens) {
  int extra = 0;
  for (const Group& group : setup_.groups) extra = std::max(extra, group.extra_blocks);
  // With early commits, a forward is committed before anyone knows where it leaves the states.
  if (!extra || setup_.core.early_commit) return {slot};
  const auto count = static_cast<std::size_t>(1 + extra);
  const std::size_t last = (slot + 1 + static_cast<std::size_t>(bytes_.below(1 + extra))) % count;
  std::vector<std::size_t> slots = {last};
  if (!setup_.habits.rejects || num_tokens > extra + 1 || bytes_.one_in(4)) return slots;
  while (static_cast<std::int64_t>(slots.size()) < num_tokens)
    slots.insert(slots.begin(), (last + slots.size()) % count);
  return slots;
}

// Which of its drafts are right is known once a forward has run; one that was launched behind it
// has read them all.
GroupPlay::Step GroupPlay::verified(const Step& step) {
  Step verified = step;
  for (Part& part : verified) {
    if (part.slots.size() < 2 || is_due_later(part.handle)) continue;
    const int rejected = bytes_.below(static_cast<int>(part.slots.size()));
    part.stop -= rejected;
    part.slots.resize(part.slots.size() - static_cast<std::size_t>(rejected));
  }
  return verified;
}

// Whether a step that is not committed computes the sequence.
bool GroupPlay::is_due_later(Handle handle) const {
  const auto has_it = [&](const Step& step) {
    return std::any_of(step.begin(), step.end(),
                       [&](const Part& part) { return part.handle == handle; });
  };
  return std::any_of(uncommitted_.begin(), uncommitted_.end(), has_it);
}

// Says where forwards have left states, before their commit.
void GroupPlay::place(const Step& step) {
  for (const Part& part : step)
    if (find(part.handle))
      caller_.place_state(part.handle, static_cast<std::int64_t>(part.slots.back()));
}

// Drops the launched, uncommitted work of this sequence.
void GroupPlay::forget(const Seq& seq) {
  for (Step& step : uncommitted_)
    std::erase_if(step, [&](const Part& part) { return part.handle == seq.handle; });
}

// The position at which the forward of a sequence ends.
std::int64_t GroupPlay::stop_of(const Seq& seq, std::int64_t start) {
  const std::int64_t most = std::min(
      {static_cast<std::int64_t>(seq.tokens.size()), num_slots(seq), start + setup_.habits.chunk});
  std::int64_t first = most;
  for (const std::int64_t stop : core_.view_groups(seq.handle).stops)
    if (start < stop && stop < first && bytes_.below(4) < setup_.habits.stops) first = stop;
  return first;
}

void GroupPlay::remember(Seq& seq) const {
  seq.tables = tables(seq);
  seq.computed = computed(seq);
}

// A table must have a block wherever a forward writes, and slots must lie in those blocks; and only
// calls on a sequence change what the engine remembers of it.
void GroupPlay::check_tables(const Seq& seq) const {
  const Tables all = tables(seq);
  EXPECT(all == seq.tables, "slots moved without a call on their sequence");
  EXPECT(view(seq).loads == (seq.loads > 0), "a load is not what its admission asked for");
  EXPECT(computed(seq) == seq.computed, "num_computed changed without a call on the sequence");
  const std::vector<std::int32_t> own = core_.block_ids(seq.handle, 0);
  const auto of_tables = static_cast<std::size_t>(setup_.core.full_group);
  EXPECT(!has_table(setup_.groups[of_tables]) ||
             (own.size() <= all[of_tables].size() &&
              std::equal(own.begin(), own.end(), all[of_tables].begin())),
         "a shown table differs from the sequence's");
  // A copy, so only where something is computed again.
  const GroupRow row = core_.groups()->replay() ? core_.view_groups(seq.handle) : GroupRow();
  for (std::size_t g = 0; g < all.size(); ++g) {
    if (!has_table(setup_.groups[g])) continue;
    const int slices = slices_of(g);
    const std::int64_t size = device_.size_of(g);
    const std::int64_t end = num_slots(seq);
    std::int64_t first = slices < 0 ? 0 : end;
    for (int slice = slices; slices >= 0 && slice < slices + setup_.groups[g].num_slices; ++slice)
      first = std::min(first, core_.first_of(seq.handle, slice) * setup_.core.block_size +
                                  core_.groups()->group(slice).begin);
    if (first >= end) continue;
    std::vector<std::int64_t> slots(static_cast<std::size_t>(end - first));
    caller_.group_slots(seq.handle, static_cast<int>(g), further_of(g), first, end, slots.data());
    for (std::int64_t i = first; i < end; ++i) {
      if (setup_.groups[g].is_cached() && row.start <= i && i < row.hit) {
        EXPECT(slots[static_cast<std::size_t>(i - first)] == -1, "a slot is computed again");
        continue;
      }
      EXPECT(slots[static_cast<std::size_t>(i - first)] ==
                 all[g][static_cast<std::size_t>(i / size)] * size + i % size,
             "a slot of a group is not in its table");
    }
  }
}

// Whether the content of a block is in memory and cached: a sequence that writes it writes the
// same.
bool GroupPlay::is_in_cache(std::size_t block) const {
  const NodeId n = core_.nodes().owner(static_cast<std::int64_t>(block));
  return n >= 0 && core_.nodes()[n].keyed() && !core_.nodes()[n].unwritten;
}

// No block that a step in flight may read is written for another sequence.
void GroupPlay::check_fences(const std::vector<BlockCopy>& copies,
                             const std::vector<GroupWork>& work) const {
  std::vector<bool> written(static_cast<std::size_t>(setup_.core.num_blocks));
  for (const BlockCopy& copy : copies) written[static_cast<std::size_t>(copy.destination)] = true;
  for (const GroupWork& one : work)
    for (std::size_t g = 0; g < one.tables.size(); ++g) {
      const bool state = !has_table(setup_.groups[g]);
      const std::int64_t size = device_.size_of(g);
      const std::int64_t end = state ? 1 : (one.stop + size - 1) / size;
      const std::int64_t start = one.start_of(setup_.groups[g]);
      if (start >= one.stop) continue;
      if (setup_.groups[g].recurrent()) {
        for (const std::size_t slot : one.to)
          written[static_cast<std::size_t>(one.tables[g][slot])] = true;
        continue;
      }
      for (std::int64_t unit = state ? 0 : start / size; unit < end; ++unit)
        written[static_cast<std::size_t>(one.tables[g][static_cast<std::size_t>(unit)])] = true;
    }
  for (std::size_t b = 0; b < written.size(); ++b) {
    if (is_in_cache(b)) continue;
    for (const InFlight& step : fences_)
      EXPECT(!written[b] || !step.released[b],
             "block " + std::to_string(b) + " is written while a step in flight may read it");
  }
}

void GroupPlay::close_fence(const std::vector<BlockCopy>& copies,
                            const std::vector<GroupWork>& work) {
  check_fences(copies, work);
  InFlight step{held(), std::vector<bool>(static_cast<std::size_t>(setup_.core.num_blocks))};
  fences_.push_back(std::move(step));
}

void GroupPlay::add_work(Closed& closed, const SeqPtr& seq, std::int64_t start, std::int64_t stop) {
  const GroupRow row = core_.view_groups(seq->handle);
  const bool begins = row.since == start && row.farthest == start;
  const std::size_t slot = slot_of(*seq);
  const std::vector<std::size_t> next = next_slots(slot, stop - start);
  closed.work.push_back({seq->handle,
                         start,
                         stop,
                         {seq->prefixes.begin(), seq->prefixes.begin() + stop},
                         seq->tables,
                         begins,
                         row.start,
                         row.hit,
                         slot,
                         next});
  closed.parts.push_back({seq->handle, stop, next});
}

// What is loaded arrives and is committed; promises: with early commits, together with what this
// step's forward computes behind it.
void GroupPlay::land(const SeqPtr& seq, bool promises) {
  const std::int64_t loaded = std::exchange(seq->loads, 0);
  GroupWork work{seq->handle,
                 computed(*seq),
                 loaded,
                 {seq->prefixes.begin(), seq->prefixes.begin() + loaded},
                 seq->tables};
  work.to = {slot_of(*seq)};
  check_fences({}, {work});
  device_.load(work);
  seq->settled_before = loaded;
  commit(seq->handle, promises && setup_.core.early_commit ? stop_of(*seq, loaded) : loaded);
}

void GroupPlay::land_some() {
  for (const SeqPtr& seq : seqs_)
    if (seq->loads && bytes_.one_in(2)) land(seq, bytes_.one_in(2));
}

void GroupPlay::close(Closed& closed) {
  if (!done(kTake, [&] { closed.ticket = caller_.take_copies(closed.copies); }))
    fail("take_copies was refused");
  flight_ = closed.copies;
  if (setup_.core.steps_in_flight) {
    tickets_.push_back(closed.ticket);
    close_fence(closed.copies, closed.work);
  }
  uncommitted_.push_back(setup_.core.early_commit ? Step() : closed.parts);
}

void GroupPlay::abort(const Closed& closed) {
  if (!done(kAborted, [&] { caller_.copies_aborted(closed.ticket); })) fail("an abort was refused");
  flight_.clear();
  uncommitted_.pop_back();
  if (!setup_.core.steps_in_flight) return;
  tickets_.pop_back();
  fences_.pop_back();
}

void GroupPlay::launch(Closed& closed) {
  device_.run(closed.copies, closed.work);
  // With early commits, the core must know whether the forward has started before the next commit.
  if (!setup_.habits.late || setup_.core.early_commit) apply(closed);
}

void GroupPlay::apply(const Closed& closed) {
  if (!done(kApplied, [&] { caller_.copies_applied(closed.ticket); }))
    fail("copies_applied was refused");
  flight_.clear();
  for (const SeqPtr& seq : seqs_)
    if (!seq->preempted) seq->settled_before = computed(*seq);
}

// Closes a plan and launches or aborts it; then commits what is due.
void GroupPlay::step() {
  const bool early = setup_.core.early_commit;
  Closed closed;
  for (const SeqPtr& seq : seqs_) {
    if (seq->preempted) continue;
    check_tables(*seq);
    if (seq->loads) continue;
    const std::int64_t start = launched(*seq);
    const std::int64_t stop = early ? computed(*seq) : stop_of(*seq, start);
    if (stop <= start || (!early && bytes_.below(10) >= 7)) continue;
    add_work(closed, seq, start, stop);
  }
  close(closed);
  for (int i = setup_.habits.plans_ahead ? bytes_.below(5) : 0; i > 0; --i) plan(kPlanAny);
  // Without fences, it could write what the closed step has yet to read.
  if (setup_.core.steps_in_flight && !early) land_some();
  if (bytes_.below(8) < setup_.habits.aborts) return abort(closed);
  launch(closed);
  const bool waits = setup_.habits.overlaps && bytes_.below(5);
  while (uncommitted_.size() > waits) {
    const Step due = uncommitted_.front();
    uncommitted_.pop_front();
    commit(due);
  }
  if (setup_.habits.late && !early) apply(closed);
  check_memory();
}

// Commits what this step will write, so that its other prompts find it.
void GroupPlay::promise() {
  const std::vector<SeqPtr> all = seqs_;
  for (const SeqPtr& seq : all) {
    const auto alive = [&] { return find(seq->handle) == seq && !seq->preempted && !seq->loads; };
    const std::int64_t stop = alive() ? stop_of(*seq, settled(*seq)) : 0;
    if (stop && stop > computed(*seq) && bytes_.below(10) < 7) {
      if (bytes_.below(10) < 3) plan(kPlanFork, seq);
      if (!alive()) continue;  // there was no room for the fork
      if (stop <= std::min(static_cast<std::int64_t>(seq->tokens.size()), num_slots(*seq)) &&
          stop > computed(*seq))
        commit(seq->handle, stop);
      if (bytes_.below(10) < 6) {
        std::vector<Token> echo = seq->tokens;
        for (const Token token : tokens(3)) echo.push_back(token);
        if (bytes_.one_in(2)) {
          plan(kPlanAppend, seq);
        } else {
          admit(std::move(echo), seq->name, seq->extras);
        }
      }
    }
    for (int i = bytes_.below(3); i > 1; --i) plan(kPlanAny);
  }
}

void GroupPlay::complete() {
  if (!setup_.core.steps_in_flight) return;
  const std::int64_t ticket = tickets_.front();
  tickets_.pop_front();
  fences_.pop_front();
  if (!done(kComplete, [&] { caller_.complete(ticket); })) fail("complete was refused");
}

// Truncates draft tokens after their commit.
void GroupPlay::take_back(const SeqPtr& seq) {
  const auto length = static_cast<int>(seq->tokens.size());
  const int count = bytes_.between(0, std::min(setup_.habits.drafts, length - 1));
  forget(*seq);
  truncate(seq, length - count);
}

void GroupPlay::commit(Handle handle, std::int64_t computed) {
  if (!done(kCommit, [&] { caller_.commit(handle, computed); })) fail("commit was refused");
  remember(*find(handle));
}

void GroupPlay::commit(const Step& launched) {
  if (!setup_.habits.late) complete();
  const Step step = verified(launched);
  place(step);
  const std::vector<Handle> decoded = decode(step);
  for (const Part& part : step) {
    const SeqPtr seq = find(part.handle);
    if (!seq || std::count(decoded.begin(), decoded.end(), part.handle)) continue;
    commit(part.handle, part.stop);
    if (setup_.habits.drafts && bytes_.below(10) < 3) take_back(seq);
    const std::int64_t kept = setup_.habits.rejects && !is_due_later(part.handle) ? part.stop : 0;
    if (kept && kept < static_cast<std::int64_t>(seq->tokens.size()) && bytes_.one_in(2))
      truncate(seq, kept);
  }
  if (setup_.habits.affirms && uncommitted_.empty())
    for (const SeqPtr& seq : seqs_)
      if (!seq->preempted && !seq->loads && !is_ahead(*seq)) commit(seq->handle, computed(*seq));
  if (setup_.habits.late) complete();
}

// Commits some sequences of a step and appends a token to each, in one call. Returns their handles.
std::vector<Handle> GroupPlay::decode(const Step& step) {
  std::vector<Handle> batch;
  for (const Part& part : step) {
    const SeqPtr seq = find(part.handle);
    if (seq && !is_due_later(part.handle) &&
        part.stop == static_cast<std::int64_t>(seq->tokens.size()) && !is_ahead(*seq))
      batch.push_back(part.handle);
  }
  if (batch.empty() || bytes_.one_in(2)) return {};
  return decode(batch, tokens(static_cast<int>(batch.size())));
}

std::vector<Handle> GroupPlay::decode(const std::vector<Handle>& batch,
                                      const std::vector<Token>& fresh) {
  std::vector<std::int64_t> slots(batch.size());
  const auto count = static_cast<std::int64_t>(batch.size());
  if (!done(kDecode, [&] { caller_.decode(batch.data(), fresh.data(), count, slots.data()); }))
    return {};
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const SeqPtr seq = find(batch[i]);
    extend(*seq, {fresh[i]});
    EXPECT(computed(*seq) + 1 == static_cast<std::int64_t>(seq->tokens.size()),
           "decode left more than one token to compute");
    std::int64_t slot = -1;
    if (has_table(setup_.groups[static_cast<std::size_t>(setup_.core.full_group)]))
      caller_.slot_mapping(batch[i], computed(*seq), computed(*seq) + 1, &slot);
    EXPECT(slot == slots[i], "decode and slot_mapping return different slots");
    seq->settled_before = computed(*seq);
    remember(*seq);
  }
  return batch;
}

bool GroupPlay::move() {
  if (bytes_.done()) return false;
  for (int i = bytes_.below(5); i > 0; --i) plan(kPlanAny);
  if (setup_.features & kResizes && bytes_.one_in(4)) resize();
  land_some();
  if (setup_.core.early_commit) promise();
  step();
  check_sessions();
  return true;
}

void GroupPlay::finish_up() {
  digester_->fails_in = 0;
  setup_.habits.aborts = 0;
  setup_.habits.plans_ahead = setup_.habits.overlaps = false;
  step();
  while (!seqs_.empty()) free(seqs_.back());
  // In a row, so that what one releases is still there for the next one.
  while (!known_.empty()) tell(known_.back().name, std::string(known_.back().session), true);
  if (setup_.features & kResizes) done(kGrow, [&] { caller_.grow(setup_.core.num_blocks); });
  release_holds();
  step();
  const std::vector<std::string> violations = core_.violations();
  EXPECT(violations.empty(), violations.front());
  EXPECT(core_.pool().available() == core_.pool().capacity(), "blocks leaked");
  EXPECT(core_.num_sequences() == 0, "rows leaked");
}

}  // namespace blockmgr::testing
