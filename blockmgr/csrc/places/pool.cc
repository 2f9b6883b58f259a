#include "places/pool.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <string>
#include <utility>

#include "places/group_places.h"

namespace blockmgr {

namespace {

constexpr int kVictimsAhead = 3;

// The uses of a block in the middle of the only table that names it: the table's, and the pin of
// the block after it.
constexpr Uses kInChain{1, 1};

// How many in a row have no other uses, from this one back, most of them at most.
std::int64_t count_in_chain(const Uses* last, std::int64_t most) {
  std::int64_t count = 0;
  const auto differs = [last](std::int64_t i) {
    return std::bit_cast<std::uint64_t>(last[-i]) ^ std::bit_cast<std::uint64_t>(kInChain);
  };
  // Eight at a time, without an exit in between.
  for (; count + 8 <= most; count += 8) {
    std::uint64_t any = 0;
    for (std::int64_t i = count; i < count + 8; ++i) any |= differs(i);
    if (any) break;
  }
  while (count < most && !differs(count)) ++count;
  return count;
}

// Overwrites the tokens of a free block when debugging.
constexpr Token kPoison = 0xdeadbeef;

}  // namespace

int Pool::num_nodes(int num_blocks, int num_reserved, const std::vector<int>& apart) {
  int left = num_blocks - num_reserved;
  int count = 0;
  for (const int blocks : apart) {
    left -= blocks;
    count += NodeIds::count_for(blocks);
  }
  return NodeIds::count_for(left) + count;
}

// The first blocks are set apart, in the order of the partitions.
Pool::Pool(Nodes& nodes, PrefixIndex& index, int num_reserved, int num_fences,
           const std::vector<int>& apart, int num_bare)
    : nodes_(nodes),
      index_(index),
      num_reserved_(num_reserved),
      num_bare_(num_bare),
      capacity_(nodes.num_blocks - num_bare - num_reserved),
      common_(nodes, std::accumulate(apart.begin(), apart.end(), num_reserved),
              nodes.num_blocks - std::accumulate(apart.begin(), apart.end(), num_reserved), 0,
              nodes.count + 2),
      plain_(apart.empty()),
      idles_unheard_(apart.empty()),
      limit_(nodes.num_blocks - num_bare) {
  fences_.reserve(nth(num_fences));
  for (int i = 0; i < num_fences; ++i) fences_.emplace_back(nodes, nodes.count + 3 + i);
  if (apart.empty()) return;
  partitions_ = std::make_unique<std::uint16_t[]>(nth(nodes.count));
  num_queued_ = capacity();
  std::int32_t block = num_reserved;
  NodeId node = common_.range.last_end();
  apart_.reserve(apart.size());
  for (const int count : apart) {
    const auto number = static_cast<std::uint16_t>(1 + apart_.size());
    const Partition& own =
        apart_.emplace_back(nodes, block, count, node, nodes.count + 2 + num_fences + number);
    block += count;
    for (const NodeId n : own.range) partitions_[nth(n)] = number;
    node = own.range.last_end();
  }
}

void Pool::observe(int number, std::unique_ptr<Policy> policy, RetainingPolicy* retention,
                   std::unique_ptr<ReuseTracker> past) {
  Partition& own = at(number);
  own.policy = std::move(policy);
  own.retention = retention;
  own.past = std::move(past);
  set_fence(open_fence_);
}

void Pool::set_groups(GroupPlaces& groups) {
  if (!groups.num_groups()) return;
  groups_ = &groups;
  plain_ = false;
  set_fence(open_fence_);
}

// Gives a block to a new node.
inline void Pool::bind(NodeId n, BlockId b) noexcept {
  nodes_.bind(n, b);
  if (generations_) [[unlikely]]
    nodes_[n].generation = std::max(nodes_[n].generation, (*generations_)[nth(number(b))]);
  if (debug_) [[unlikely]]
    check_taken(n);
  nodes_.uses(n).ref_count = 1;
}

// Takes the block from a node whose content is lost. Its id is given back by the caller.
inline BlockId Pool::unbind(NodeId n) noexcept {
  if (debug_) [[unlikely]]
    poison(n);
  const BlockId b = nodes_.unbind(n);
  if (generations_) [[unlikely]]
    (*generations_)[nth(number(b))] = nodes_[n].generation;
  return b;
}

inline BlockId Pool::unbind(Partition& own, NodeId n) noexcept {
  own.ids.give(n);
  return unbind(n);
}

// Without partitions, as nearly always, everything below is about members of the pool itself.
inline BlockId Pool::take_block(Partition& own) noexcept {
  if (partitions_) [[unlikely]]
    --num_queued_;
  if (own.free.empty()) return evict_block(own);
  if (!idles_unheard_) [[unlikely]]
    tell_taken(own);
  return own.free.pop();
}

NodeId Pool::take(int partition, NodeId before) noexcept {
  Partition& own = partitions_ ? at(partition) : common_;
  const BlockId b = take_block(own);
  const NodeId n = own.ids.take(before);
  bind(n, b);
  return n;
}

// All blocks first: the ids of what is evicted for them make longer runs.
void Pool::take_run(int partition, NodeId before, std::int64_t count, NodeId* out) noexcept {
  // Victims are known in advance only where no observer is asked for them or notified.
  Partition& own = at(partition);
  const bool known = !own.observed() && !debug_;
  if (index_.has_retired() && own.free.size() < count) [[unlikely]]
    sweep(own, count - own.free.size());
  if (groups_ && known) [[unlikely]]
    groups_->evict(partition, count);
  if (known && own.free.size() >= count) {
    if (partitions_) num_queued_ -= static_cast<int>(count);
    FreeBlocks free = own.free;  // in registers: each block is read off the one before it
    own.ids.take_run(before, count, [&](std::int64_t i, NodeId n) {
      bind(n, free.pop());
      out[i] = n;
    });
    own.free = free;
    return;
  }
  const std::int64_t one_by_one = known ? own.free.size() : count;
  for (std::int64_t i = 0; i < one_by_one; ++i) out[i] = number(take_block(own));
  if (one_by_one < count) evict_run(own, count - one_by_one, out + one_by_one);
  own.ids.take_run(before, count, [&](std::int64_t i, NodeId n) {
    bind(n, BlockId{out[i]});
    out[i] = n;
  });
}

void Pool::take_given(const std::int64_t* blocks, std::int64_t count,
                      const ZeroedArray<std::uint32_t>& marks, std::uint32_t mark) noexcept {
  for (int i = 0; i < num_partitions(); ++i) {
    Partition& own = at(i);
    const int before = own.free.size();
    own.free.remove_if([&](BlockId b) { return marks[nth(number(b))] == mark; });
    const int taken = before - own.free.size();
    if (partitions_) num_queued_ -= taken;
    if (taken) own.tell([taken](Observer& each) { each.on_taken(taken); });
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const BlockId b{static_cast<std::int32_t>(blocks[i])};
    bind(holder_of(b).ids.take(kNoNode), b);
  }
}

// As evict_block, for many blocks. Nearly all of its time is waiting for memory that each
// look at a victim only then knows the address of, so several are under way at a time, each one
// look behind the one before it: its record and digest, its bucket.
void Pool::evict_run(Partition& own, std::int64_t count, std::int32_t* blocks) noexcept {
  constexpr std::int64_t kBucket = 12;
  constexpr std::int64_t kErase = 28;
  if (partitions_) num_queued_ -= static_cast<int>(count);
  NodeId victim = own.idle.front();
  for (std::int64_t i = 0; i < count + kErase; ++i) {
    if (i < count) {
      blocks[i] = victim;
      prefetch(&nodes_[victim]);
      index_.prefetch_digest(victim);
      victim = own.idle.after(victim);
    }
    if (i >= kBucket && i - kBucket < count) index_.prefetch_bucket_of(blocks[i - kBucket]);
    if (i >= kErase) {
      const NodeId n = blocks[i - kErase];
      index_.erase(n);
      blocks[i - kErase] = number(unbind(own, n));
    }
  }
  own.idle.remove_front(static_cast<int>(count));
  own.num_evicted += count;
}

NodeId Pool::take_idle(int partition) noexcept {
  num_queued_ -= partitions_ != nullptr;
  Partition& own = at(partition);
  const NodeId n = victim_of(own);
  evict(own, n);
  nodes_.uses(n).ref_count = 1;
  return n;
}

NodeId Pool::take_next(int partition, BlockId chosen, NodeId before) noexcept {
  Partition& own = at(partition);
  if (!own.free.empty()) return take(partition, before);
  num_queued_ -= partitions_ != nullptr;
  const NodeId victim = nodes_.owner(number(chosen));
  evict(own, victim);
  unbind(own, victim);
  const NodeId n = own.ids.take(before);
  bind(n, chosen);
  return n;
}

BlockId Pool::evict_block(Partition& own) noexcept {
  if (index_.has_retired()) [[unlikely]] {
    sweep(own, 1);
    if (!own.free.empty()) {
      if (!idles_unheard_) tell_taken(own);
      return own.free.pop();
    }
  }
  if (!groups_) [[likely]]
    return evict_node(own, victim_of(own));
  groups_->evict(number_of(own), 1);
  return own.free.pop();
}

inline BlockId Pool::evict_node(Partition& own, NodeId n) noexcept {
  evict(own, n);
  return unbind(own, n);
}

NodeId Pool::evict_idle(int partition, NodeId n) noexcept {
  Partition& own = at(partition);
  const NodeId parent = nodes_[n].parent;
  own.free.push(evict_node(own, n));
  return parent;
}

// Ends what a node was. It keeps its block for now.
void Pool::evict(Partition& own, NodeId b) noexcept {
  if (debug_) [[unlikely]] {
    expect(nodes_[b].keyed() && !nodes_.used(b) && !nodes_[b].fence,
           "a block that is not idle is evicted", b);
    expect(nodes_[b].first_child < 0, "a block is evicted before its children", b);
  }
  own.idle.remove(b);
  if (is_heard(own)) [[unlikely]]
    tell_uncached(own, b, true);
  index_.erase(b);
  ++own.num_evicted;
  // Evictions come in runs: have the place of one of the next victims in the index at hand. (Under
  // a policy of its own that is a guess.)
  NodeId ahead = own.idle.front();
  for (int i = 0; i < kVictimsAhead && ahead != own.idle.end(); ++i) ahead = own.idle.after(ahead);
  if (ahead == own.idle.end()) return;
  prefetch(&nodes_[ahead]);
  index_.prefetch_bucket_of(ahead);
}

// A used block keeps its cached parent used: see node.h. A sequence comes to
// a block through what is before it, so the parent is used already; a caller of single blocks may
// be the first to use a whole chain.
void Pool::use(NodeId b) noexcept {
  if (debug_) [[unlikely]]
    expect(nodes_[b].keyed(), "a free block is used", b);
  for (;;) {
    if (!idles_unheard_) [[unlikely]]
      tell_used(b);
    dequeue(b);
    const NodeId parent = nodes_[b].parent;
    if (parent < 0) return;
    const bool was_used = nodes_.used(parent);
    ++nodes_.uses(parent).pins;
    if (was_used) return;
    b = parent;
  }
}

// Users of a block use its parent too, so the used ones come first.
void Pool::acquire_chain(const NodeId* chain, std::int64_t count) noexcept {
  std::int64_t i = 0;
  if (num_fenced_ || debug_) [[unlikely]] {
    for (; i < count; ++i) acquire(chain[i]);
    return;
  }
  for (; i < count && nodes_.used(chain[i]); ++i) ++nodes_.uses(chain[i]).ref_count;
  if (i == count) return;
  if (const NodeId parent = nodes_[chain[i]].parent; parent >= 0) ++nodes_.uses(parent).pins;
  Partition& own = of(chain[i]);
  const Run idle{chain + i, count - i};
  while (i < count) {
    const std::int64_t length = count_neighbours(chain + i, count - i);
    const NodeId first = chain[i];
    if (length == 1) {
      own.idle.remove(first);
      nodes_.uses(first) = kInChain;
    } else {
      own.idle.remove(first, first + static_cast<NodeId>(length) - 1);
      std::fill_n(&nodes_.uses(first), length, kInChain);
    }
    i += length;
  }
  nodes_.uses(chain[count - 1]).pins = 0;
  if (idles_unheard_) return;
  tell_groups([idle](GroupPlaces& places) {
    for (std::int64_t k = 0; k < idle.count; ++k) places.on_used(idle.nodes[k]);
  });
  if (partitions_) num_queued_ -= static_cast<int>(idle.count);
  own.tell([idle](Observer& each) { each.on_used(idle); });
}

void Pool::release_table(const NodeId* table, std::int64_t count) noexcept {
  const std::int64_t worth_a_run = debug_ ? INT64_MAX : 4;
  while (count) {
    release(table[--count]);  // not full as a rule
    if (count >= worth_a_run && nodes_[table[count - 1]].keyed())
      count = release_cached(table, count);
  }
}

// How many of a table, from its last block back, are a run of ids that the index says go on.
inline std::int64_t Pool::count_run(const NodeId* table, std::int64_t count) const {
  if (twins_ || count < 2 || table[count - 2] != table[count - 1] - 1) return 1;
  const std::int64_t most = 1 + index_.count_going_on(table[count - 1], count - 1);
  return count_neighbours_before(table + count - most, most);
}

// release() of blocks that are cached, or used by others, from the last one on. How many come
// before the first that is neither. What is before a used block in the chain is used, so those that
// become unused are neighbours: one run. The end of a fork may come before blocks of another path.
std::int64_t Pool::release_cached(const NodeId* table, std::int64_t count) noexcept {
  constexpr std::int64_t kAhead = 8;
  Uses* const uses = nodes_.uses_of.data();
  Partition& own = of(table[0]);
  std::int64_t first = 0, last = 0;  // the run
  while (count) {
    if (count > kAhead) {
      prefetch(uses + table[count - 1 - kAhead]);
      prefetch(&nodes_[table[count - 1 - kAhead]]);
    }
    const std::int64_t length = count_run(table, count);
    const NodeId end = table[count - 1];
    const NodeId begin = end - static_cast<NodeId>(length) + 1;
    if (twins_ && uses[end].ref_count == 1) break;
    // The blocks before it stay, because it needs them.
    if (groups_ && !groups_->stays(end)) [[unlikely]]
      break;
    NodeId kept = end;  // the deepest that stays used
    if (uses[end].ref_count + uses[end].pins == 1) {
      const NodeId parent = nodes_[begin].parent;
      if (!nodes_[end].keyed() || (parent >= 0 && !uses[parent].ref_count)) break;
      if (last && first != count) break;
      uses[end] = Uses();
      --kept;
      if (length > 1) {
        kept -= static_cast<NodeId>(count_in_chain(uses + kept, length - 1));
        std::fill(uses + kept + 1, uses + end, Uses());
      }
      if (open_fence_) {
        for (NodeId n = end; n > kept; --n) enqueue_in(own, n, open_fence_);
      } else {
        own.idle.push_back(kept + 1, end);
      }
      if (const NodeId pinned = kept >= begin ? kept : parent; pinned >= 0) --uses[pinned].pins;
      if (!last) last = count;
      first = count - (end - kept);
    }
    for (NodeId n = begin; n <= kept; ++n) --uses[n].ref_count;
    count -= length;
  }
  if (idles_unheard_ || open_fence_ || !last) return count;
  if (partitions_) num_queued_ += static_cast<int>(last - first);
  for (std::int64_t i = first; groups_ && i < last; ++i) groups_->on_idle(table[i]);
  own.tell([run = Run{table + first, last - first}](Observer& each) { each.on_idle(run); });
  return count;
}

void Pool::unuse(NodeId b) noexcept {
  for (;;) {
    const NodeId parent = nodes_[b].parent;
    enqueue(b, open_fence_);  // before its parent: children are evicted first
    if (!idles_unheard_ && !open_fence_) [[unlikely]]
      tell_unused(b);
    if (parent < 0) return;
    --nodes_.uses(parent).pins;
    if (nodes_.used(parent)) return;
    b = parent;
  }
}

void Pool::enqueue(NodeId b, int fence) noexcept {
  if (plain_) [[likely]]
    return enqueue_in(common_, b, fence);
  tell_groups([b](GroupPlaces& places) { places.before_unused(b); });
  if (partitions_) num_queued_ += !fence;
  enqueue_in(of(b), b, fence);
}

void Pool::dequeue(NodeId b) noexcept {
  if (idles_unheard_) [[likely]]
    return common_.idle.remove(b);  // a free block is only ever taken
  if (partitions_) num_queued_ -= !nodes_[b].fence;
  dequeue_from(of(b), b);
}

void Pool::tell_uncached(Partition& own, NodeId b, bool evicted) noexcept {
  tell_groups([b](GroupPlaces& places) { places.on_uncached(b); });
  if (own.policy) own.policy->on_uncached(b, evicted);
  if (own.past) own.past->on_uncached(b, evicted);
}

void Pool::tell_taken(Partition& own) noexcept {
  own.tell([](Observer& each) { each.on_taken(1); });
}

void Pool::tell_used(NodeId b) noexcept {
  if (nodes_[b].fence || is_group_part(nodes_[b])) return;
  tell_groups([b](GroupPlaces& places) { places.on_used(b); });
  of(b).tell([b](Observer& each) { each.on_used({&b, 1}); });
}

inline void Pool::enqueue_in(Partition& own, NodeId b, int fence) noexcept {
  Node& record = nodes_[b];
  record.fence = static_cast<std::uint8_t>(fence);
  if (fence) {
    fences_[nth(fence - 1)].push_back(b);
    ++num_fenced_;
    ++own.num_fenced;
    return;
  }
  if (record.keyed()) {
    if (is_group_part(record)) [[unlikely]] {
      ++own.num_kept;
      return;
    }
    own.idle.push_back(b);
  } else {
    ++record.generation;
    own.free.push(unbind(own, b));
  }
}

void Pool::tell_unused(NodeId b) noexcept {
  const bool keyed = nodes_[b].keyed();
  if (keyed && is_group_part(nodes_[b])) return;
  if (keyed) tell_groups([b](GroupPlaces& places) { places.on_idle(b); });
  of(b).tell([&](Observer& each) { keyed ? each.on_idle({&b, 1}) : each.on_freed(1); });
  if (num_leaving_ && !keyed) withhold_freed();
}

// A block that has just become free is the next to be handed out. To observers, a withheld one is
// in use.
void Pool::withhold_freed() noexcept {
  Partition& own = at(home(0));
  FreeBlocks& free = own.free;
  if (free.empty() || number(free.next()) < limit_) return;
  free.pop();
  num_queued_ -= partitions_ != nullptr;
  ++own.num_withheld;
  --num_leaving_;
  tell_taken(own);
  set_fence(open_fence_);
}

void Pool::shrink(std::int32_t limit) noexcept {
  Partition& own = at(home(0));
  const int before = own.free.size();
  own.free.remove_if([limit](BlockId b) { return number(b) >= limit; });
  const int withheld = before - own.free.size();
  num_queued_ -= partitions_ ? withheld : 0;
  own.num_withheld += withheld;
  num_leaving_ += limit_ - limit - withheld;
  limit_ = limit;
  own.tell([withheld](Observer& each) { each.on_taken(withheld); });
  set_fence(open_fence_);
}

// The first of them is handed out first.
void Pool::grow(std::int32_t limit) noexcept {
  Partition& own = at(home(0));
  const int before = own.free.size();
  for (std::int32_t b = limit; b-- > limit_;) {
    if (nodes_.owner(b) < 0) {
      own.free.push(BlockId{b});
    } else {
      --num_leaving_;
    }
  }
  const int given = own.free.size() - before;
  num_queued_ += partitions_ ? given : 0;
  own.num_withheld -= given;
  limit_ = limit;
  own.tell([given](Observer& each) { each.on_freed(given); });
  set_fence(open_fence_);
}

inline void Pool::dequeue_from(Partition& own, NodeId b) noexcept {
  Node& record = nodes_[b];
  if (record.fence) {
    fences_[nth(record.fence - 1)].remove(b);
    record.fence = 0;
    --num_fenced_;
    --own.num_fenced;
    return;
  }
  if (is_group_part(record)) [[unlikely]] {
    --own.num_kept;
    return;
  }
  own.idle.remove(b);  // a free block is only ever taken
}

void Pool::promote_tail(NodeId b, const Key& key, int num_tokens) noexcept {
  index_.insert_tail(b, key, num_tokens);
  if (key.parent >= 0) ++nodes_.uses(key.parent).pins;
}

void Pool::forget(NodeId b) noexcept {
  while (first_twin(b) >= 0) drop_twin(first_twin(b));
  if (nodes_.idle(b)) return free_idle(b);
  const bool used = nodes_.used(b);
  const NodeId parent = nodes_[b].parent;
  const int fence = nodes_[b].fence;
  if (!used) dequeue(b);
  uncache(b);
  if (!used) {
    enqueue(b, fence);
  } else if (parent >= 0) {
    unpin(parent);
  }
}

// It was available, and is.
void Pool::free_idle(NodeId b) noexcept {
  Partition& own = of(b);
  own.idle.remove(b);
  if (is_heard(own)) [[unlikely]]
    tell_uncached(own, b, false);
  index_.erase(b);
  own.free.push(unbind(own, b));
}

void Pool::forget_run(NodeId first, NodeId last) noexcept {
  Partition& own = of(last);
  own.idle.remove(first, last);
  for (NodeId n = last; n >= first; --n) {
    tell_uncached(own, n, false);
    index_.erase(n);
    own.free.push(unbind(n));
  }
  own.ids.give_run(first, last);
}

// Their ids are in a row more often than not, the last one first.
void Pool::free_parts(const NodeId* parts, std::int64_t count) noexcept {
  Partition& own = of(parts[0]);
  for (std::int64_t i = 0; i < count;) {
    const NodeId last = parts[i];
    if (nodes_[last].fence) [[unlikely]] {
      requeue(last);
      ++i;
      continue;
    }
    NodeId n = last;
    do {
      ++nodes_[n].generation;
      own.free.push(unbind(n));
      --n;
    } while (++i < count && parts[i] == n && !nodes_[n].fence);
    own.num_kept -= last - n;
    n + 1 == last ? own.ids.give(last) : own.ids.give_run(n + 1, last);
  }
}

// It waits for a step, and becomes free after it.
void Pool::requeue(NodeId b) noexcept {
  const int fence = nodes_[b].fence;
  dequeue(b);
  enqueue(b, fence);
}

void Pool::uncache(NodeId b) noexcept {
  tell_uncached(of(b), b, false);
  index_.erase(b);
}

// Users of a node use its parent too, so the used ones come first.
std::int64_t Pool::count_available(const NodeId* chain, std::int64_t count) const {
  const NodeId* const end = chain + count;
  const NodeId* const unused =
      std::partition_point(chain, end, [this](NodeId n) { return nodes_.used(n); });
  if (!num_fenced_) return end - unused;
  return std::count_if(unused, end, [this](NodeId n) { return !nodes_[n].fence; });
}

void Pool::exchange(NodeId own, NodeId twin) noexcept {
  // A pool too small to hold the twin would have cached the block itself, and freed none.
  Partition& partition = of(own);
  std::unique_ptr<ReuseTracker> past;
  if (partition.past && !open_fence_ && counts_as_available(twin) &&
      nodes_.uses(own).ref_count == 1 && !nodes_.uses(own).pins) {
    partition.past->on_exchanged(twin);
    past = std::move(partition.past);
  }
  acquire(twin);
  release(own);
  if (past) partition.past = std::move(past);
}

int Pool::num_free() const {
  if (is_bare()) return apart_[0].free.size();
  return sum([](const Partition& p) { return p.free.size(); });
}

int Pool::num_idle() const {
  if (is_bare()) return apart_[0].num_kept;
  return sum([](const Partition& p) { return p.idle.size() + p.num_kept; });
}

std::int64_t Pool::num_evicted() const {
  return sum([](const Partition& p) { return p.num_evicted; });
}

std::size_t Pool::memory() const {
  const auto owners = nth(partitions_ ? nodes_.count : 0);
  return owners * sizeof partitions_[0] + apart_.capacity() * sizeof(Partition) +
         (twins_ ? twins_->bytes() : 0) + (generations_ ? generations_->bytes() : 0) +
         sum([](const Partition& p) {
           return p.ids.bytes() + p.idle.bytes() + (p.policy ? p.policy->memory() : 0) +
                  (p.past ? p.past->memory() : 0);
         });
}

void Pool::take_over(NodeId tail) noexcept {
  tell_used(tail);
  dequeue(tail);
  uncache(tail);
  nodes_.uses(tail).ref_count = 1;
}

void Pool::set_debug(bool debug) noexcept {
  for (NodeId n = 0; debug && !debug_ && n < nodes_.count; ++n)
    if (nodes_.block(n) == kNoBlock) poison(n);
  debug_ = debug;
  fault_ = nullptr;
}

std::string Pool::take_fault() {
  if (!fault_) return {};
  std::string fault = std::string(fault_) + ": block " + std::to_string(fault_block_);
  fault_ = nullptr;
  return fault;
}

bool Pool::expect(bool holds, const char* otherwise, NodeId b) noexcept {
  if (!holds && !fault_) {
    fault_ = otherwise;
    fault_block_ = nodes_.name(b);
  }
  return holds;
}

void Pool::poison(NodeId b) noexcept { std::fill_n(nodes_.tokens(b), nodes_.block_size, kPoison); }

void Pool::check_taken(NodeId b) noexcept {
  expect(!nodes_.used(b) && !nodes_[b].keyed(), "a block that is not free is handed out", b);
  const Token* tokens = nodes_.tokens(b);
  expect(std::all_of(tokens, tokens + nodes_.block_size, [](Token t) { return t == kPoison; }),
         "a block was written while it was free", b);
}

void Pool::move_fence(int from, int to) noexcept {
  NodeList& list = fences_[nth(from - 1)];
  while (!list.empty()) {
    const NodeId b = list.front();
    list.remove(b);
    --num_fenced_;
    --of(b).num_fenced;
    enqueue(b, to);
    if (!to) tell_unused(b);
  }
}

}  // namespace blockmgr
