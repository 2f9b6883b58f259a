// Retention, and the influence of one namespace on another.
#include <algorithm>
#include <cmath>

#include "world.h"

namespace blockmgr::testing {

// ---- quotas -------------------------------------------------------------------------------------

std::vector<World::Share> World::shares(bool deep) const {
  std::vector<Share> result;
  if (config_.quotas.empty()) return result;
  for (int p = 0; p < core_.pool().num_partitions(); ++p) {
    const Pool::Partition& own = core_.pool().partition(p);
    std::string known;
    if (deep && own.policy) own.policy->fingerprint(known);
    if (deep && own.past) own.past->fingerprint(known);
    result.push_back({{own.free.size(), own.idle.size(), own.num_evicted}, std::move(known)});
  }
  return result;
}

void World::check_others(const std::vector<Share>& before, unsigned touched, bool deep) const {
  const auto after = shares(deep);
  for (std::size_t p = 0; p < before.size(); ++p)
    EXPECT(touched >> p & 1 || before[p] == after[p], "a call changed another quota");
}

void World::check_quotas() const {
  for (std::size_t i = 0; i < config_.quotas.size(); ++i) {
    std::vector<NodeId> held;
    for (const EntryPtr& entry : entries_) {
      if (partition_of(entry->name) != static_cast<int>(i) + 1) continue;
      const NodeId* table = nodes_of(*entry);
      held.insert(held.end(), table, table + view(*entry).num_blocks);
    }
    std::sort(held.begin(), held.end());
    held.erase(std::unique(held.begin(), held.end()), held.end());
    EXPECT(static_cast<int>(held.size()) <= config_.quotas[i].blocks,
           "a namespace has more blocks than its quota");
  }
}

// ---- levels -------------------------------------------------------------------------------------

// The witness of a namespace's partition; a partition without blocks has none.
Witness* World::witness_of(int name) const {
  const Range range = core_.pool().partition(partition_of(name)).range;
  for (Witness* witness : witnesses_)
    if (witness->range().first == range.first && range.count) return witness;
  return nullptr;
}

std::int64_t World::hits_in(int name) const {
  const Witness* witness = witness_of(name);
  return witness ? witness->num_hits : 0;
}

// After an admission: hints of the found blocks are used up, and the policy was notified.
void World::note_found(const Entry& entry, const MatchResult& match, std::int64_t hits_before) {
  if (config_.retention) levels_.found(owners(match.blocks));
  const Witness* witness = witness_of(entry.name);
  if (!witness) return;
  const auto full = static_cast<std::int64_t>(match.blocks.size()) * config_.block_size;
  EXPECT(witness->found == owners(match.blocks), "the policy was not notified of all found blocks");
  EXPECT(witness->num_hits - hits_before == (view(entry).num_cached > full),
         "the policy was not notified of a found part");
}

std::vector<NodeId> World::owners(const std::vector<std::int32_t>& blocks) const {
  std::vector<NodeId> nodes;
  for (const std::int32_t b : blocks) nodes.push_back(core_.nodes().owner(b));
  return nodes;
}

// The blocks that a commit may deduplicate: neither cached nor already deduplicated.
std::vector<std::vector<World::Merging>> World::merging() const {
  std::vector<std::vector<Merging>> tables;
  for (const EntryPtr& entry : entries_) {
    const NodeId* table = nodes_of(*entry);
    tables.emplace_back();
    const std::int64_t most = view(*entry).num_blocks;
    for (std::int64_t i = 0; i < most; ++i) {
      const Node& record = core_.nodes()[table[i]];
      const bool known = record.keyed() || record.parent >= 0;
      tables.back().push_back({known ? kNoNode : table[i], core_.nodes().name(table[i])});
    }
  }
  return tables;
}

void World::merged(const std::vector<std::vector<Merging>>& before) {
  for (std::size_t e = 0; e < before.size(); ++e) {
    const NodeId* table = nodes_of(*entries_[e]);
    for (std::int64_t i = 0; i < view(*entries_[e]).num_chained; ++i) {
      const auto [own, block] = before[e][static_cast<std::size_t>(i)];
      if (own < 0) continue;
      const NodeId twin = core_.nodes()[own].keyed() ? kNoNode : core_.nodes()[own].parent;
      if (table[i] != own)
        remaps_.push_back({entries_[e]->handle, static_cast<std::int32_t>(i), block,
                           core_.nodes().name(table[i])});
      if (!config_.retention) continue;
      levels_.merging(own);
      if (table[i] != own) {
        levels_.inherit(own, table[i]);
      } else if (twin >= 0) {
        levels_.inherit(own, twin);
      }
    }
  }
}

void World::retain(const Entry& entry, std::int64_t start, std::int64_t stop, int level,
                   double ttl) {
  const std::int64_t most = std::min(view(entry).num_tokens, slots_of(entry));
  const bool in_range = 0 <= start && start < stop && stop <= most;
  const Outcome due = !entry.running ? kWrongState : in_range ? kDone : kBadValue;
  std::int64_t count = 0;
  const auto run = [&] { count = caller_.retain(entry.handle, start, stop, level, ttl); };
  if (call(kRetain, bit(due), run) == kDone) {
    const std::int64_t first = start / config_.block_size;
    EXPECT(count == blocks_for(stop) - first, "retain returns a wrong count");
    const NodeId* table = nodes_of(entry);
    for (std::int64_t i = first; i < blocks_for(stop); ++i) {
      const Node& record = core_.nodes()[table[i]];
      const bool has_twin = !record.keyed() && record.parent >= 0;
      levels_.retain(has_twin ? record.parent : table[i], level, core_.time() + ttl);
    }
  }
  settle();
}

// The cached blocks of these tokens, the last one included.
std::vector<NodeId> World::full_prefix(const Entry& entry) {
  std::vector<Token> tokens = entry.tokens;
  tokens.push_back(0);
  if (blocks_for(static_cast<std::int64_t>(tokens.size())) > config_.row_width) tokens.pop_back();
  const int fails_in = digester_ ? std::exchange(digester_->fails_in, 0) : 0;
  const MatchResult match = caller_.match(prompt(tokens, entry.name, entry.extras, 0));
  if (digester_) digester_->fails_in = fails_in;
  return owners(match.blocks);
}

void World::retain_prefix(const Entry& entry, int level, double ttl) {
  if (static_cast<int>(entry.tokens.size()) >= config_.row_width * config_.block_size) return;
  const std::vector<NodeId> blocks = full_prefix(entry);
  const Prompt asked = prompt(entry.tokens, entry.name, entry.extras, 0);
  std::int64_t count = 0;
  if (call(kRetainPrefix, bit(kDone), [&] { count = caller_.retain_prefix(asked, level, ttl); }) ==
      kDone) {
    EXPECT(count == static_cast<std::int64_t>(blocks.size()), "retain_prefix misses a block");
    for (const NodeId b : blocks) levels_.retain(b, level, core_.time() + ttl);
  }
  settle();
}

void World::pin(const Entry& entry) {
  if (static_cast<int>(entry.tokens.size()) >= config_.row_width * config_.block_size) return;
  const std::vector<NodeId> blocks = full_prefix(entry);
  const int share = partition_of(entry.name);
  const std::int64_t capacity = core_.pool().partition(share).capacity;
  const std::int64_t budget = config_.max_pinned_blocks * capacity / core_.pool().capacity();
  const bool fits = levels_.num_unpinned(blocks) <= budget - levels_.num_pinned(share) &&
                    levels_.num_pins(share) < budget;
  const Prompt asked = prompt(entry.tokens, entry.name, entry.extras, 0);
  std::int64_t id = 0;
  if (call(kPin, bit(fits ? kDone : kPinRefused), [&] { id = caller_.pin(asked); }) == kDone) {
    levels_.pin(id, blocks, share);
    EXPECT(core_.view_pin(id).num_blocks == static_cast<std::int32_t>(blocks.size()),
           "a pin covers other blocks than match found");
  }
  settle();
}

void World::unpin(std::size_t which) {
  const std::int64_t id = levels_.any_pin(which);
  const Outcome due = levels_.num_pins() ? kDone : kUnknownPin;
  if (call(kUnpin, bit(due), [&] { caller_.unpin(id); }) == kDone) {
    levels_.unpin(id);
    unpin_unknown(id);
  }
  settle();
}

void World::unpin_unknown(std::int64_t pin) {
  call(kUnpin, bit(kUnknownPin), [&] { caller_.unpin(pin); });
}

void World::touch(const Entry& entry) {
  const Prompt asked = prompt(entry.tokens, entry.name, entry.extras, 0);
  const bool too_long = blocks_for(asked.num_tokens) > config_.row_width;
  MatchResult match;
  if (!too_long) match = found_for(entry);
  const std::int64_t idle = needed_for(match, 0);
  std::int64_t count = 0;
  touching(entry.name);
  if (call(kTouch, bit(too_long ? kNeverFits : kDone), [&] { count = caller_.touch(asked); }) ==
      kDone)
    EXPECT(count == idle || (config_.min_partial_tokens && count == idle + 1),
           "touch returns a wrong count");
  settle();
}

void World::set_time(double seconds) {
  const Outcome due = std::isfinite(seconds) && seconds >= core_.time() ? kDone : kBadValue;
  call(kSetTime, bit(due), [&] { caller_.set_time(seconds); });
  settle();
}

// Frees a sequence with a hint. Without expected reuse, the hint lowers the blocks from the end of
// the sequence up to a block that others use, that others continue, or that is expected.
void World::end(const EntryPtr& entry, bool expect_reuse) {
  const EntryPtr kept = entry;
  const Outcome due = ahead(*kept) ? kStepRefused : kDone;
  const NodeId* row = nodes_of(*kept);
  const std::vector<NodeId> table(row, row + view(*kept).num_blocks);
  std::vector<NodeId> chain;  // the last first; cached nodes before the call
  for (std::size_t i = table.size(); i-- > 0;) {
    const Node& record = core_.nodes()[table[i]];
    chain.push_back(record.keyed() ? table[i] : record.parent);
  }
  std::vector<int> others(chain.size());  // number of other tables that name the block
  for (std::size_t i = 0; i < chain.size(); ++i)
    for (const EntryPtr& other : entries_) {
      if (other == kept || chain[i] < 0) continue;
      const NodeId* t = nodes_of(*other);
      others[i] += std::count(t, t + view(*other).num_blocks, chain[i]) > 0;
    }
  std::vector<bool> expected(chain.size());
  for (std::size_t i = 0; i < chain.size(); ++i)
    expected[i] = chain[i] >= 0 && levels_.is_expected(chain[i]);
  const std::vector<bool> was_keyed = keyed();
  if (call(kFree, bit(due), [&] { caller_.free_expecting(kept->handle, expect_reuse); }) == kDone) {
    kept->alive = false;
    entries_.erase(std::find(entries_.begin(), entries_.end(), kept));
    if (dead_.size() < 64) dead_.push_back(kept->handle);
    note_moved(was_keyed);
    NodeId below = kNoNode;
    for (std::size_t i = 0; i < chain.size(); ++i) {
      // A tail that this call cached belongs to the sequence alone.
      const NodeId own = table[table.size() - 1 - i];
      const bool tail = chain[i] < 0 && core_.nodes()[own].keyed();
      const NodeId node = levels_.current(tail ? own : chain[i]);
      if (node < 0) continue;
      if (!expect_reuse) {
        int children = 0;
        for (NodeId b = core_.nodes()[node].first_child; b >= 0; b = core_.nodes()[b].next_sibling)
          children += b != below;
        if (others[i] || children || (!tail && expected[i])) break;
      }
      levels_.hint(node, expect_reuse);
      below = node;
    }
  }
  settle();
}

}  // namespace blockmgr::testing
