#include "places/group_places.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "memory/ring.h"
#include "places/pool.h"

namespace blockmgr {

GroupPlaces::GroupPlaces(Nodes& nodes, PrefixIndex& index, Pool& pool, std::vector<Group> groups,
                         int num_partitions, std::int64_t margin)
    : nodes_(nodes),
      index_(index),
      pool_(pool),
      groups_(std::move(groups)),
      num_groups_(static_cast<int>(groups_.size())),
      parts_(nth(nodes.count) * groups_.size()),
      near_(nth(groups_.empty() ? 0 : nodes.count)),
      units_(near_.size()),
      facts_(near_.size()),
      owners_(near_.size()),
      links_(groups_.empty() ? 0 : nth(nodes.count + num_partitions)),
      passed_(links_.size()),
      one_orders_(groups_.empty() ? 0 : nth(num_partitions)) {
  for (const Group& group : groups_) {
    num_states_ += group.recurrent();
    ring_restart_ = std::lcm(ring_restart_, group.restart);
    replay_ = std::max(replay_, group.replay);
  }
  margin_ = num_states_ ? 0 : margin;
  if (!replay_) restart_ = ring_restart_;
  for (int i = 0; i < num_partitions && !groups_.empty(); ++i) {
    ring::clear(links_.data(), nodes.count + i);
    ring::clear(passed_.data(), nodes.count + i);
  }
}

void GroupPlaces::set_part(int g, NodeId n, NodeId part) noexcept {
  stored(g, n) = part + 1;
  Node& record = nodes_[part];
  record.hint = n;
  record.extras = static_cast<std::uint32_t>(g);
  record.skip = 0;
}

void GroupPlaces::clear_parts(const NodeId* nodes, std::int64_t count) noexcept {
  for (std::int64_t i = 0; i < count;) {
    const std::int64_t length = count_neighbours(nodes + i, count - i);
    if (length == 1) {
      clear_parts(nodes[i++]);
      continue;
    }
    std::fill_n(&owners_[nth(nodes[i])], length, std::uint8_t{0});
    std::fill_n(&parts_[nth(nodes[i]) * groups_.size()], length * num_groups(), 0);
    i += length;
  }
}

void GroupPlaces::place(NodeId n, std::int64_t unit) noexcept {
  units_[nth(n)] = static_cast<std::int32_t>(unit);
  facts_[nth(n)] = 0;
  near(n) = kNever;
  const NodeId parent = nodes_[n].parent;
  if (nodes_[n].key_tokens < nodes_.block_size && parent >= 0) facts_[nth(parent)] |= kHasTails;
}

// Whether the boundary after so many tokens keeps this unit of its path, or one before it: where
// the path ends, slices behind its end have none.
bool GroupPlaces::any_keeps(std::int64_t length, std::int64_t unit) const {
  for (int g = 0; g < num_groups(); ++g)
    if (group(g).is_attention() && keeps(group(g), length, unit)) return true;
  const std::int64_t own = length - unit * nodes_.block_size;
  return own < nodes_.block_size && keeps_before(length, unit, own);
}

// The same of the unit before, in slices that begin behind the end of the path: it has so many
// tokens of this unit.
bool GroupPlaces::keeps_before(std::int64_t length, std::int64_t unit, std::int64_t own) const {
  for (int g = 0; g < num_groups(); ++g)
    if (group(g).is_attention() && group(g).begin >= own && keeps(group(g), length, unit - 1))
      return true;
  return false;
}

void GroupPlaces::add_boundary(NodeId n, bool passed) noexcept {
  std::uint8_t& facts = facts_[nth(n)];
  if (facts & kBoundary) {
    unlink(n);
  } else {
    facts |= kBoundary;
    const std::int64_t end = length(n);
    for (NodeId a = n; a >= 0 && near(a) > end && any_keeps(end, unit(a)); a = nodes_[a].parent)
      near(a) = end;
  }
  if (passed) {
    set_passed(n);
  } else if (!is_passed(n) && (nodes_.used(n) || nodes_[n].fence)) {
    link(n);
  }
}

void GroupPlaces::add_passed(const NodeId* nodes, std::int64_t count) noexcept {
  add_boundary(nodes[0], true);
  for (std::int64_t i = 1; i < count; ++i) {
    const NodeId n = nodes[i];
    facts_[nth(n)] |= kBoundary | kPassed;
    ring::insert_before(passed_.data(), n, nodes[i - 1]);
    // Prefixes below it are longer, and nodes before it have a boundary that is nearer.
    const std::int64_t end = (unit(n) + 1) * nodes_.block_size;
    if (any_keeps(end, unit(n))) near(n) = end;
  }
}

// The nearest boundary from this node down, if it keeps the node's unit.
inline std::int64_t GroupPlaces::computed_near(NodeId n) const {
  std::int64_t least = is_boundary(n) ? length(n) : kNever;  // what is below is longer
  for (NodeId child = least == kNever ? nodes_[n].first_child : kNoNode; child >= 0;
       child = nodes_[child].next_sibling)
    least = std::min(least, near(child));
  return least != kNever && any_keeps(least, unit(n)) ? least : kNever;
}

void GroupPlaces::set_passed(NodeId n) noexcept {
  if (is_passed(n)) return;
  facts_[nth(n)] |= kPassed;
  // Before the node that it continues: so the eviction of either frees what only it reads.
  NodeId parent = nodes_[n].parent;
  while (parent >= 0 && !can_start(length(parent))) parent = nodes_[parent].parent;
  const bool follows = parent >= 0 && is_passed(parent);
  ring::insert_before(passed_.data(), n, follows ? parent : nodes_.count + pool_.partition_of(n));
}

void GroupPlaces::clear_passed(NodeId n) noexcept {
  if (groups_.empty() || !is_passed(n)) return;
  facts_[nth(n)] &= static_cast<std::uint8_t>(~kPassed);
  ring::remove(passed_.data(), n);
  if (is_boundary(n) && (nodes_.used(n) || nodes_[n].fence)) link(n);
}

// The part is idle, and no node has it any more.
inline void GroupPlaces::forget_part(NodeId part) noexcept {
  unkeep(part);
  pool_.free_parts(&part, 1);
}

// A used part goes when its use ends.
inline void GroupPlaces::drop_unneeded(int g, NodeId n) noexcept {
  if (const NodeId m = detach_unused(g, n); m >= 0) pool_.free_parts(&m, 1);
}

// Takes an idle part, found no more, from its node. kNoNode: there is none.
inline NodeId GroupPlaces::detach_unused(int g, NodeId n) noexcept {
  const NodeId m = cached(g, n);
  if (m < 0 || nodes_.used(m)) return kNoNode;
  clear_part(g, n);
  unkeep(m);
  return m;
}

void GroupPlaces::continue_from(NodeId n) noexcept {
  const std::uint8_t facts = facts_[nth(n)];
  if (facts & kObserved) {
    using Kind = ContinuedEnds::Kind;
    const bool whole = nodes_[n].key_tokens == nodes_.block_size;
    continued_ends_.count(facts & kContinued ? Kind::kAgain
                          : whole            ? Kind::kWholeBlock
                                             : Kind::kEnd);
  }
  if (is_passed(n)) one_orders_[nth(pool_.partition_of(n))].count_found();
  facts& kContinued ? note_diverged(n) : note_continued(n);
}

void GroupPlaces::note_diverged(NodeId n) noexcept {
  if (!is_boundary(n)) return;
  note_continued(n);
  facts_[nth(n)] |= kDiverged;
}

void GroupPlaces::end_path(NodeId found, NodeId whole, NodeId tail, bool resumes) noexcept {
  const bool observed = continued_ends_.observes_next();
  if (whole >= 0 && tail >= 0) pass_last(whole, tail, observed, resumes);
  if (found >= 0) pass_found(found, observed);
}

void GroupPlaces::pass_last(NodeId whole, NodeId tail, bool observed, bool resumes) noexcept {
  if (!is_boundary(whole) || (facts_[nth(whole)] & kContinued)) return;
  if (observed) {
    facts_[nth(whole)] |= kObserved;
    facts_[nth(tail)] |= kObserved;
    return;
  }
  const bool prefers_whole =
      !resumes && continued_ends_.prefers_whole_block(unit(whole) + 1, nodes_.block_size,
                                                      nodes_[tail].key_tokens, num_states_);
  pass(prefers_whole ? tail : whole);
}

void GroupPlaces::pass_found(NodeId found, bool observed) noexcept {
  if (!is_boundary(found) || (facts_[nth(found)] & kDiverged)) return;
  if (observed) {
    facts_[nth(found)] |= kObserved;
  } else if (!continued_ends_.outlives(unit(found) + 1, num_states_)) {
    pass(found);
  }
}

void GroupPlaces::pass(NodeId n) noexcept {
  if (is_passed(n)) return;
  unlink(n);
  set_passed(n);
}

// Whether a boundary is worth its windows to more than the one path that continues it.
bool GroupPlaces::serves_others(NodeId n) const {
  if (facts_[nth(n)] & kDiverged || nodes_.uses(n).ref_count > 1) return true;
  const NodeId child = nodes_[n].first_child;
  if (child >= 0 && nodes_[child].next_sibling >= 0) return true;
  const auto& levels = pool_.partition(pool_.partition_of(n)).retention;
  return levels && levels->level(n) > kNormal;
}

void GroupPlaces::pass_earlier(const NodeId* path, std::int64_t count) noexcept {
  for (std::int64_t unit = count - 1; unit >= 0; --unit) {
    std::uint8_t& facts = facts_[nth(path[unit])];
    if (!(facts & kBoundary)) continue;
    if (facts & kPassed) {
      if (facts & kContinued) return;  // the turn before this one went on from here
      continue;
    }
    if (serves_others(path[unit])) continue;
    pass(path[unit]);
    facts |= kContinued;
  }
}

void GroupPlaces::remove_boundary(NodeId n) noexcept {
  unlink(n);
  facts_[nth(n)] &= static_cast<std::uint8_t>(~kOfBoundary);
  clear_passed(n);
  drop_states(n);
  refresh(n);
}

void GroupPlaces::drop_states(NodeId n) noexcept {
  for (int g = 0; g < num_groups(); ++g)
    if (group(g).recurrent()) drop_unneeded(g, n);
}

void GroupPlaces::refresh(NodeId n) noexcept {
  while (n >= 0 && !is_boundary(n) && find_near(n)) n = nodes_[n].parent;
}

// The node is no boundary. Returns whether `near` has changed.
inline bool GroupPlaces::find_near(NodeId n) noexcept {
  const std::int64_t now = computed_near(n);
  if (now == near(n)) return false;
  near(n) = now;
  for (int g = 0; g < num_groups(); ++g)
    if (group(g).is_attention() && !is_needed(g, n)) drop_unneeded(g, n);
  return true;
}

// The nearest boundary that reads parts of the node: its own, or one below it.
NodeId GroupPlaces::reader_of(NodeId n) const {
  const std::int64_t end = near(n);
  while (!is_boundary(n) || length(n) != end) {
    n = nodes_[n].first_child;
    while (near(n) != end) n = nodes_[n].next_sibling;
  }
  return n;
}

void GroupPlaces::lose_part(int g, NodeId n) noexcept {
  unkeep(part(g, n));
  while (is_needed(g, n)) {
    const NodeId reader = reader_of(n);
    remove_boundary(reader);
    prune(reader);
  }
}

void GroupPlaces::before_idle(NodeId b) noexcept {
  if (Pool::is_part(nodes_[b])) {
    const int g = group_of(b);
    const NodeId n = node_of(b);
    if (part(g, n) == b && is_needed(g, n)) return;
    if (part(g, n) == b) clear_part(g, n);
    unkeep(b);
  } else if (!stays(b)) {
    pool_.uncache(b);
  }
}

bool GroupPlaces::frees_something(NodeId n) const {
  for (int g = 0; g < num_groups(); ++g) {
    if (group(g).recurrent()) {
      if (is_idle(cached(g, n))) return true;
      continue;
    }
    if (!group(g).is_cached()) continue;
    const std::int64_t first = first_unit(g, continued_at(length(n)));
    for (NodeId a = n; a >= 0 && unit(a) >= first; a = nodes_[a].parent)
      if (is_idle(cached(g, a))) return true;
  }
  return false;
}

void GroupPlaces::evict(int from, std::int64_t count) noexcept {
  const FreeBlocks& free = pool_.free_blocks(from);
  const int partition = pool_.nodes_of(from);
  // A passed boundary whose node is used has blocks, and leaves no bare one free.
  const bool frees_any = pool_.home(partition) == from;
  while (free.size() < count) {
    const bool in_one_order = frees_any && ignores_passing(partition);
    if (frees_any && !in_one_order && evict_passed(partition, free, count)) continue;
    if (pool_.partition(partition).retention && evict_used_below(partition)) continue;
    if (!pool_.partition(partition).idle.empty()) {
      const NodeId n = pool_.victim(partition);
      const std::int64_t before = free.size();
      if (const NodeId end = earlier_end(n); end >= 0) add_boundary(end);
      prune(pool_.evict_idle(partition, n));
      if (in_one_order)
        one_orders_[nth(partition)].count_evicted(std::max<std::int64_t>(1, free.size() - before));
    } else {
      evict_used(partition);
    }
  }
}

void GroupPlaces::count_missed(int partition, std::int64_t units) noexcept {
  if (!num_groups_) return;  // full attention alone has one order
  one_orders_[nth(pool_.nodes_of(partition))].count_missed(units, pool_.num_blocks());
}

// Whether the next block is evicted as if no boundary were passed. Retained boundaries still go
// after all passed ones.
bool GroupPlaces::ignores_passing(int partition) const {
  const Pool::Partition& of = pool_.partition(partition);
  if (!one_orders_[nth(partition)].is_due() || of.idle.empty()) return false;
  return !of.retention || of.retention->num_idle(kLow) || of.retention->num_idle(kNormal);
}

// Where prompts can continue if the boundary at the end of an idle path goes: an eighth of its
// units earlier, or as far back as the query still begins to read at the same unit. kNoNode:
// nowhere, or there is a boundary already.
NodeId GroupPlaces::earlier_end(NodeId n) const {
  if (num_states_ || is_passed(n)) return kNoNode;
  NodeId found = kNoNode;
  const std::int64_t most = std::max<std::int64_t>(1, (unit(n) + 1) / 8);
  NodeId a = nodes_[n].parent;
  for (std::int64_t i = 1; a >= 0 && reads_as_far_back(a, n); ++i, a = nodes_[a].parent) {
    if (is_boundary(a) || !nodes_.idle(a) || nodes_[nodes_[a].first_child].next_sibling >= 0)
      return kNoNode;
    if (can_start(length(a))) found = a;
    if (found >= 0 && i >= most) return found;
  }
  return found;
}

// Whether the query at the end of a node begins to read where the one at a later node does.
bool GroupPlaces::reads_as_far_back(NodeId earlier, NodeId later) const {
  for (int g = 0; g < num_groups(); ++g)
    if (group(g).is_attention() && first_unit(g, length(earlier)) < first_unit(g, length(later)))
      return false;
  return true;
}

// Fetches what the end of a boundary some units before this one will read, if ids are in a row.
void GroupPlaces::prefetch_before(NodeId n) const {
  constexpr NodeId kAhead = 8;
  if (n < kAhead) return;
  prefetch(&nodes_[n - kAhead]);
  for (int g = 0; g < num_groups(); ++g)
    if (const NodeId m = part(g, n - kAhead); m >= 0) prefetch(&nodes_[m]);
}

// Evicts the first passed boundary and those next to it that each continue the next one, for many
// come from one path; until so many blocks are free. Whether there was one. Their parts become free
// group by group, so that blocks of one group stay together: they are handed out in that order.
bool GroupPlaces::evict_passed(int partition, const FreeBlocks& free, std::int64_t count) noexcept {
  const NodeId sentinel = nodes_.count + partition;
  NodeId next = passed_[nth(sentinel)].next;
  if (next == sentinel) return false;
  std::array<NodeId, 64> ends, parts;
  NodeId parent;
  do {
    // Each frees a block of every group at most, so these free no more than are missing.
    const std::int64_t missing = count - free.size();
    const auto most = nth(std::clamp<std::int64_t>(missing / (1 + num_groups()), 1, ends.size()));
    std::size_t length = 0;
    do {
      const NodeId n = ends[length++] = next;
      prefetch_before(n);
      next = passed_[nth(n)].next;
      parent = nodes_[n].parent;
      facts_[nth(n)] &= static_cast<std::uint8_t>(~(kOfBoundary | kPassed));
      near(n) = computed_near(n);
    } while (next == parent && length < most);
    pool_.count_evicted(partition, static_cast<std::int64_t>(length));
    for (int g = 0; g < num_groups(); ++g) {
      std::int64_t num_parts = 0;
      for (std::size_t i = 0; i < length; ++i) {
        if (is_needed(g, ends[i])) continue;
        const NodeId m = detach_unused(g, ends[i]);
        if (m >= 0) parts[nth(num_parts++)] = m;
      }
      if (num_parts) pool_.free_parts(parts.data(), num_parts);
    }
    for (std::size_t i = 0; i < length; ++i)
      if (!nodes_.used(ends[i]) && !stays(ends[i])) pool_.forget(ends[i]);
  } while (next == parent && free.size() < count);
  ring::join(passed_.data(), sentinel, next);
  refresh(parent);
  prune(parent);
  return true;
}

// Evicts the last boundary that frees something, among the wanted ones that running sequences have
// passed. Returns whether there was one.
template <class Wanted>
bool GroupPlaces::evict_last_used(int partition, Wanted wanted) noexcept {
  const NodeId sentinel = nodes_.count + partition;
  for (NodeId n = links_[nth(sentinel)].prev; n != sentinel; n = links_[nth(n)].prev) {
    if (!wanted(n) || !frees_something(n)) continue;
    pool_.count_evicted(partition);
    remove_boundary(n);
    if (!nodes_.used(n)) prune(n);
    return true;
  }
  return false;
}

void GroupPlaces::evict_used(int partition) noexcept {
  if (evict_last_used(partition, [](NodeId) { return true; })) return;
  // Callers check that so many blocks are available. If that is wrong, end here, not in a loop.
  std::fputs("blockmgr: a block is counted as available, but nothing can be evicted\n", stderr);
  std::abort();
}

// Likewise of those at a level below all idle nodes, of the lowest level that has one.
bool GroupPlaces::evict_used_below(int partition) noexcept {
  const RetainingPolicy& levels = *pool_.partition(partition).retention;
  for (int i = kLow; i < kNumLevels; ++i) {
    const auto level = static_cast<Level>(i);
    if (levels.num_idle(level)) return false;
    if (levels.num_cached(level) &&
        evict_last_used(partition, [&](NodeId n) { return levels.level(n) == level; }))
      return true;
  }
  return false;
}

void GroupPlaces::prune(NodeId n) noexcept {
  if (!num_groups_) return;
  while (n >= 0 && nodes_[n].keyed() && !nodes_.used(n) && !stays(n)) {
    const NodeId first = first_to_go(n);
    const NodeId parent = nodes_[first].parent;
    first == n ? pool_.forget(n) : pool_.forget_run(first, n);
    n = parent;
  }
}

// Nodes that go with this one, because nothing else continues them: back to the first whose ids are
// in a row, as those of a path mostly are. Fetches their places in the index.
NodeId GroupPlaces::first_to_go(NodeId last) const {
  constexpr NodeId kMost = 64;
  NodeId first = last;
  while (!nodes_[last].fence && last - first < kMost) {
    index_.prefetch_bucket_of(first);
    const Node& record = nodes_[first];
    const NodeId before = record.parent;
    const bool alone = record.prev_sibling < 0 && record.next_sibling < 0;
    if (before != first - 1 || !alone || !nodes_.idle(before) || is_boundary(before)) break;
    first = before;
  }
  return first;
}

int GroupPlaces::first_told(int g, NodeId n) const {
  const Group& of = group(g);
  if (of.num_slices == 1) return g;
  const std::int64_t start = unit(n) * nodes_.block_size;
  const std::int64_t last = start + nodes_.block_size - 1;
  const std::int64_t read = std::clamp(of.first_read(last + 1), start, last) - start;
  return g - of.slice + static_cast<int>(read / (of.end - of.begin));
}

bool GroupPlaces::is_whole(int g, NodeId n) const {
  for (int i = first_told(g, n); i <= last_slice(g); ++i)
    if (cached(i, n) < 0) return false;
  return true;
}

// Whether mirrors know of a node in a group; if so, they do by its last slice.
bool GroupPlaces::is_known(int g, NodeId n) const {
  const NodeId m = part(last_slice(g), n);
  return m >= 0 && is_told(m);
}

// Whether mirrors know of another node with the same digest, which only a collision brings about.
bool GroupPlaces::knows_like(NodeId m) const {
  const NodeId n = node_of(m);
  return index_.with_digest(nodes_.digest(n), [&](NodeId other) {
    return other != n && is_known(group_of(m), other);
  }) >= 0;
}

void GroupPlaces::tell_kept(NodeId m) noexcept {
  if (!is_untold(m) || is_being_kept(m)) return;
  const NodeId n = node_of(m);
  const int g = group_of(m);
  if (!knows_like(m)) index_.log_part_stored(n, group(g).number);
  for (int i = first_told(g, n); i <= last_slice(g); ++i) facts_[nth(part(i, n))] |= kTold;
}

void GroupPlaces::tell_kept(const NodeId* nodes, std::int64_t count) noexcept {
  if (!index_.log()) return;
  for (int g = 0; g < num_groups(); ++g)
    for (std::int64_t i = 0; i < count; ++i)
      if (const NodeId m = cached(g, nodes[i]); m >= 0) tell_kept(m);
}

// While everything is forgotten there is no log: one event says so.
void GroupPlaces::tell_lost(NodeId m) noexcept {
  const NodeId n = node_of(m);
  const int g = group_of(m);
  facts_[nth(m)] &= static_cast<std::uint8_t>(~kTold);
  for (int i = first_told(g, n); i <= last_slice(g); ++i)
    if (const NodeId other = part(i, n); other >= 0)
      facts_[nth(other)] &= static_cast<std::uint8_t>(~kTold);
  if (index_.log() && !knows_like(m)) index_.log_part_removed(n, group(g).number);
}

bool GroupPlaces::stands_for_digest(int g, NodeId n) const {
  if (g != last_slice(g) || !is_known(g, n)) return false;
  return index_.with_digest(nodes_.digest(n), [&](NodeId other) { return is_known(g, other); }) ==
         n;
}

// The node has no children any more, so no node below it needs its parts.
void GroupPlaces::on_uncached(NodeId n) noexcept {
  if (is_boundary(n)) remove_boundary(n);
  for (int g = 0; g < num_groups(); ++g) {
    const NodeId m = cached(g, n);
    if (m < 0) continue;
    if (nodes_.used(m)) {
      unkeep(m);  // a sequence's own from here on, or the source of a copy
      if (!nodes_.uses(m).ref_count || group(g).recurrent()) clear_part(g, n);
    } else {
      clear_part(g, n);
      forget_part(m);
    }
  }
}

// The part by which tables name a unit of this node; kNoNode: its window has left the unit.
NodeId GroupPlaces::table_part(int g, NodeId n) const {
  const NodeId m = group(g).recurrent() ? kNoNode : part(g, n);
  const bool is_own = m >= 0 && owner(m) == g && node_of(m) == n && nodes_.uses(m).ref_count;
  return is_own ? m : kNoNode;
}

bool GroupPlaces::lacks_part_of(NodeId n, NodeId twin) const {
  for (int g = 0; g < num_groups(); ++g)
    if (table_part(g, twin) >= 0 && cached(g, n) < 0) return true;
  return false;
}

void GroupPlaces::move(NodeId from, NodeId to) noexcept {
  std::uint8_t& facts = facts_[nth(to)];
  facts = std::exchange(facts_[nth(from)], std::uint8_t{0});
  units_[nth(to)] = units_[nth(from)];
  near(to) = std::exchange(near(from), kNever);
  if (facts & kPassed) ring::replace(passed_.data(), from, to);
  if (facts & kLinked) {
    ring::replace(links_.data(), from, to);
  } else if ((facts & (kBoundary | kPassed)) == kBoundary) {
    link(to);
  }
  for (int g = 0; g < num_groups(); ++g) move_part(g, from, to);
  tell_kept(&to, 1);
}

// Tables name the part that the twin has, so it stays and becomes the one that is found.
void GroupPlaces::move_part(int g, NodeId from, NodeId to) noexcept {
  const NodeId own = table_part(g, to);
  const NodeId m = cached(g, from);
  if (own < 0) {
    clear_part(g, to);
    if (m < 0) return;
    const bool being_kept = is_being_kept(m);
    set_part(g, to, m);
    set_being_kept(m, being_kept);
    return clear_part(g, from);
  }
  if (m >= 0) {
    std::uint8_t& known = facts_[nth(m)];
    facts_[nth(own)] |= known & kTold;  // to mirrors it is the same one
    known &= static_cast<std::uint8_t>(~kTold);
    if (!nodes_.uses(m).ref_count) clear_part(g, from);
    nodes_.used(m) ? unkeep(m) : forget_part(m);
  }
  keep(own);
}

void GroupPlaces::link(NodeId n) noexcept {
  facts_[nth(n)] |= kLinked;
  ring::insert_before(links_.data(), n, nodes_.count + pool_.partition_of(n));
}

void GroupPlaces::unlink(NodeId n) noexcept {
  std::uint8_t& facts = facts_[nth(n)];
  if (!(facts & kLinked)) return;
  facts &= static_cast<std::uint8_t>(~kLinked);
  ring::remove(links_.data(), n);
}

std::size_t GroupPlaces::memory() const {
  return parts_.bytes() + near_.bytes() + units_.bytes() + facts_.bytes() + owners_.bytes() +
         links_.bytes() + passed_.bytes();
}

std::vector<std::string> GroupPlaces::violations() const {
  std::vector<std::string> broken;
  const auto expect = [&](bool holds, const std::string& otherwise) {
    if (!holds) broken.push_back(otherwise);
  };
  const auto is_node = [&](NodeId n) {
    return nodes_.block(n) != kNoBlock && nodes_[n].keyed() && !Pool::is_part(nodes_[n]);
  };
  const auto members = [&](const ZeroedArray<Links>& links, std::vector<bool>& found) {
    for (NodeId sentinel = num_places(); nth(sentinel) < links.size(); ++sentinel) {
      for (NodeId n = links[nth(sentinel)].next; n != sentinel; n = links[nth(n)].next) {
        if (n < 0 || n >= nodes_.count || found[nth(n)]) return false;
        found[nth(n)] = true;
      }
    }
    return true;
  };
  std::vector<bool> linked(nth(nodes_.count));
  std::vector<bool> passed(nth(nodes_.count));
  if (!members(links_, linked)) {
    broken.push_back("the ring of boundaries in use is not linked right");
    return broken;
  }
  if (!members(passed_, passed)) {
    broken.push_back("the ring of passed boundaries is not linked right");
    return broken;
  }
  int num_found = 0;
  for (NodeId n = 0; n < num_places(); ++n) {
    const std::string name = "node " + std::to_string(n);
    const bool is_linked = linked[nth(n)];
    expect(is_linked == static_cast<bool>(facts_[nth(n)] & kLinked),
           name + " is in the ring of boundaries, or is not");
    expect(passed[nth(n)] == is_passed(n) && (!is_passed(n) || (is_node(n) && is_boundary(n))),
           name + " is in the ring of passed boundaries, or is not");
    const int continued = (kContinued | kDiverged) & facts_[nth(n)];
    expect(
        !continued || !is_node(n) || (is_boundary(n) && !(continued & kDiverged && is_passed(n))),
        name + " is continued, and is no boundary or just a passed one");
    if (!is_node(n)) {
      expect(!is_linked, name + " is a boundary in use and not cached");
    } else {
      expect(is_linked == (is_boundary(n) && !is_passed(n) && !nodes_.idle(n)),
             name + " is a boundary in use, and the ring has it not, or the other way round");
      expect(nodes_.used(n) || is_boundary(n) || nodes_[n].first_child >= 0,
             name + " is idle, and no boundary needs it");
      const NodeId parent = nodes_[n].parent;
      expect(unit(n) == (parent < 0 ? 0 : unit(parent) + 1), name + " counts as another unit");
    }
    if (!is_node(n)) continue;
    expect(near(n) == computed_near(n), name + " has another nearest boundary");
    for (int g = 0; g < num_groups(); ++g) {
      const NodeId m = cached(g, n);
      num_found += m >= 0;
      if (m < 0) {
        const bool lacks =
            is_needed(g, n) && (!group(g).is_attention() || reads(g, near(n), unit(n)));
        expect(!lacks,
               name + " has no part in group " + std::to_string(g) + ", and a boundary needs it");
        continue;
      }
      expect(Pool::is_part(nodes_[m]) && node_of(m) == n && group_of(m) == g,
             name + " has a part that does not know of it");
      expect(is_told(m) ? index_.log() && !is_being_kept(m) && !is_untold(m)
                        : is_being_kept(m) || !is_untold(m),
             name + " has a part that mirrors should know of, or should not");
      expect(nodes_.used(m) || is_needed(g, n),
             name + " has a part in group " + std::to_string(g) + " that is of no use");
    }
  }
  expect(num_found == num_cached_, "parts that can be found are miscounted");
  return broken;
}

}  // namespace blockmgr
