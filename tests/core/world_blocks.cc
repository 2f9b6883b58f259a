// Calls on block ids: hold, touch, forget; and withdrawals from a step.
#include <algorithm>
#include <utility>

#include "world.h"

namespace blockmgr::testing {

// Ids of some used or cached blocks, from the given one on.
std::vector<std::int64_t> World::some_blocks(std::size_t which, std::size_t count) const {
  std::vector<std::int64_t> all;
  for (int b = config_.null_block; b < config_.num_blocks; ++b)
    if (used(b) || record_of(b).keyed()) all.push_back(b);
  if (all.empty()) all.push_back(config_.num_blocks - 1);
  std::vector<std::int64_t> some;
  for (std::size_t i = 0; i < count; ++i) some.push_back(all[(which + i) % all.size()]);
  return some;
}

std::int64_t World::num_held(std::int64_t b) const {
  return std::count_if(holds_.begin(), holds_.end(), [b](const Hold& h) { return h.block == b; });
}

bool World::is_known(std::int64_t b) const {
  return num_references(b) || record_of(b).keyed() || num_held(b);
}

bool World::anybody_ahead() const {
  return std::any_of(entries_.begin(), entries_.end(), [this](const auto& e) { return ahead(*e); });
}

// A block that is cached and written at its first hold stays in memory until its last release.
void World::hold(const std::vector<std::int64_t>& ids) {
  const auto known = [this](std::int64_t b) { return is_known(b); };
  const Outcome due = std::all_of(ids.begin(), ids.end(), known) ? kDone : kBadBlock;
  const auto count = static_cast<std::int64_t>(ids.size());
  if (call(kAcquire, bit(due), [&] { caller_.acquire(ids.data(), count); }) == kDone)
    for (const std::int64_t b : ids) {
      Hold held{b, {}};
      const Node& record = record_of(static_cast<std::int64_t>(b));
      for (int i = 0; !early() && queue_.empty() && i < record.key_tokens; ++i)
        held.words.push_back(device_.cell(static_cast<std::int32_t>(b), i));
      holds_.push_back(std::move(held));
    }
  settle();
}

void World::let_go(const std::vector<std::int64_t>& ids) {
  Outcome due = kDone;
  for (const std::int64_t b : ids)
    if (num_held(b) < std::count(ids.begin(), ids.end(), b)) due = kBadBlock;
  const auto count = static_cast<std::int64_t>(ids.size());
  if (call(kRelease, bit(due), [&] { caller_.release(ids.data(), count); }) == kDone)
    for (const std::int64_t b : ids)
      holds_.erase(
          std::find_if(holds_.begin(), holds_.end(), [b](const Hold& h) { return h.block == b; }));
  settle();
}

void World::let_go_of_all() {
  std::vector<std::int64_t> ids;
  for (const Hold& held : holds_) ids.push_back(held.block);
  let_go(ids);
}

void World::touch_blocks(const std::vector<std::int64_t>& ids) {
  const auto known = [this](std::int64_t b) { return is_known(b); };
  const Outcome due = std::all_of(ids.begin(), ids.end(), known) ? kDone : kBadBlock;
  const auto count = static_cast<std::int64_t>(ids.size());
  const int available = core_.pool().available();
  call(kTouchBlocks, bit(due), [&] { caller_.touch_blocks(ids.data(), count); });
  EXPECT(core_.pool().available() == available, "a touch changes what is available");
  settle();
}

// These blocks, their descendants in the cache, and all blocks that a sequence has after one of
// them.
std::vector<bool> World::spoiled_by(const std::vector<std::int64_t>& ids) const {
  std::vector<bool> wrong(static_cast<std::size_t>(config_.num_blocks));
  bool more = true;
  const auto mark = [&](std::int64_t b) {
    more |= !wrong[static_cast<std::size_t>(b)];
    wrong[static_cast<std::size_t>(b)] = true;
  };
  for (const std::int64_t b : ids) mark(b);
  while (std::exchange(more, false)) {
    for (int b = 0; b < config_.num_blocks; ++b)
      if (const Node& k = record_of(b); k.keyed() && k.parent >= 0)
        if (wrong[static_cast<std::size_t>(core_.nodes().name(k.parent))]) mark(b);
    for (const EntryPtr& entry : entries_) {
      const std::vector<std::int32_t> table = blocks_of(*entry);
      for (auto i = static_cast<std::size_t>(first_of(*entry, wrong)); i < table.size(); ++i)
        mark(table[i]);
    }
  }
  return wrong;
}

// The index of a sequence's first block that is among these.
std::int64_t World::first_of(const Entry& entry, const std::vector<bool>& blocks) const {
  const std::vector<std::int32_t> table = blocks_of(entry);
  return std::find_if(table.begin(), table.end(),
                      [&](std::int32_t b) { return blocks[static_cast<std::size_t>(b)]; }) -
         table.begin();
}

// Sequences that name one of these blocks continue; no prompt finds the blocks or their descendants
// any more.
void World::forget(const std::vector<std::int64_t>& ids) {
  std::int64_t forgotten = 0;
  const int cached = core_.index().num_keyed();
  const auto count = static_cast<std::int64_t>(ids.size());
  const std::vector<bool> wrong = spoiled_by(ids);
  if (call(kForget, bit(anybody_ahead() ? kStepRefused : kDone),
           [&] { forgotten = caller_.forget(ids.data(), count); }) == kDone) {
    EXPECT(forgotten == cached - core_.index().num_keyed(), "forget returns a wrong count");
    note_forgotten(wrong);
  }
  settle();
}

void World::note_forgotten(const std::vector<bool>& wrong) {
  for (Hold& held : holds_) held.words.clear();
  for (int b = 0; b < config_.num_blocks; ++b)
    EXPECT(!wrong[static_cast<std::size_t>(b)] || !record_of(b).keyed(),
           "a forgotten block is cached");
  for (const EntryPtr& entry : entries_) {
    const std::int64_t first = first_of(*entry, wrong);
    if (first == view(*entry).num_blocks) continue;
    entry->num_findable = entry->outdated ? std::min(entry->num_findable, first) : first;
    entry->outdated = true;
  }
}

// Blocks that are in no use leave; those that a table, a copy or a step has are the only ones that
// stay.
void World::shrink(std::int64_t num_blocks) {
  const std::int64_t limit = core_.pool().limit();
  std::vector<std::int64_t> ids;
  for (std::int64_t b = std::max<std::int64_t>(num_blocks, 0); b < limit; ++b)
    if (core_.nodes().owner(b) >= 0) ids.push_back(b);
  const std::vector<bool> wrong = spoiled_by(ids);
  const std::int64_t least = core_.pool().partition(0).first;
  const Outcome due = num_blocks > limit || num_blocks < least ? kBadValue
                      : num_blocks < limit && anybody_ahead()  ? kStepRefused
                                                               : kDone;
  std::int64_t leaving = 0;
  if (call(kShrink, bit(due), [&] { leaving = caller_.shrink(num_blocks); }) == kDone) {
    note_forgotten(wrong);
    std::int64_t used = 0;
    for (std::int64_t b = num_blocks; b < config_.num_blocks; ++b)
      if (const NodeId n = core_.nodes().owner(b); n >= 0) {
        ++used;
        EXPECT(core_.nodes().used(n) || core_.nodes()[n].fence, "a block in no use has not left");
      }
    EXPECT(leaving == used, "shrink returns a wrong count");
  }
  settle();
}

bool World::is_in_the_way(const Entry& entry) const {
  const std::vector<std::int32_t> table = blocks_of(entry);
  return entry.running && std::any_of(table.begin(), table.end(),
                                      [this](std::int32_t b) { return b >= core_.pool().limit(); });
}

void World::grow(std::int64_t num_blocks) {
  const std::int64_t limit = core_.pool().limit();
  const int available = core_.pool().available();
  std::int64_t taken = 0;  // blocks that have not left
  const std::int64_t most = std::min<std::int64_t>(num_blocks, config_.num_blocks);
  for (std::int64_t b = limit; b < most; ++b) taken += core_.nodes().owner(b) >= 0;
  if (call(kGrow, bit(num_blocks < limit || num_blocks > config_.num_blocks ? kBadValue : kDone),
           [&] { caller_.grow(num_blocks); }) == kDone)
    EXPECT(core_.pool().available() == available + num_blocks - limit - taken,
           "what has left is not there again");
  settle();
}

// Whether the sequence can be withdrawn from the step that is to compute some of it.
bool World::can_withdraw(const Entry& entry) const {
  if (!entry.running || !ahead(entry)) return true;
  if (open_) return false;
  const NodeId* table = nodes_of(entry);
  for (std::int64_t i = settled(entry) / config_.block_size; i < view(entry).num_chained; ++i)
    if (core_.nodes().uses(table[i]).ref_count > 1 && core_.nodes()[table[i]].unwritten)
      return false;
  return true;
}

// A key may have passed to a block that another sequence has committed early.
void World::note_moved(const std::vector<bool>& was_keyed) {
  for (std::size_t b = 0; b < promised_.size(); ++b)
    if (!record_of(static_cast<std::int64_t>(b)).keyed()) promised_[b] = 0;
  for (const EntryPtr& entry : entries_)
    if (entry->running) note_promised(*entry, was_keyed);
}

void World::check_holds() {
  for (const Hold& held : holds_) {
    const auto b = static_cast<std::int32_t>(held.block);
    EXPECT(used(b), "a held block is not in use");
    EXPECT(core_.ref_count(b) == num_references(b) + num_held(b), "holds are miscounted");
    for (std::size_t i = 0; queue_.empty() && i < held.words.size(); ++i)
      EXPECT(device_.cell(b, static_cast<int>(i)) == held.words[i],
             "the K/V of a held block has changed");
  }
}

}  // namespace blockmgr::testing
