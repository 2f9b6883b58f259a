#include "places/pool.h"

#include <algorithm>
#include <string>
#include <utility>

namespace blockmgr {

namespace {

constexpr int kVictimsAhead = 3;

// What tokens of a free block are overwritten with when debugging.
constexpr Token kPoison = 0xdeadbeef;

}  // namespace

Pool::Pool(Blocks& blocks, PrefixIndex& index, int num_reserved, int num_fences)
    : blocks_(blocks),
      index_(index),
      num_reserved_(num_reserved),
      common_(blocks, num_reserved, blocks.count - num_reserved, blocks.count),
      idles_unheard_(true) {
  fences_.reserve(static_cast<std::size_t>(num_fences));
  for (int i = 0; i < num_fences; ++i) fences_.emplace_back(blocks, blocks.count + 4 + i);
  for (BlockId b = num_reserved; b < blocks.count; ++b) common_.free.push_back(b);
}

void Pool::set_apart(int count) {
  if (!owners_) {
    owners_ = std::make_unique<std::uint16_t[]>(static_cast<std::size_t>(blocks_.count));
    num_queued_ = common_.available();
    idles_unheard_ = false;
  }
  const int before = static_cast<int>(apart_.size());
  common_.capacity -= count;
  const BlockId first = common_.first + common_.capacity;
  apart_.emplace_back(blocks_, first, count, blocks_.count + num_lists(num_fences(), before));
  for (BlockId b = first; b < first + count; ++b) {
    common_.free.remove(b);
    apart_.back().free.push_back(b);
    owners_[static_cast<std::size_t>(b)] = static_cast<std::uint16_t>(before + 1);
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

// Without partitions, as nearly always, everything below is about members of the pool itself.
inline BlockId Pool::take_from(Partition& own) noexcept {
  if (own.free.empty()) return evict_from(own);
  const BlockId b = own.free.front();
  own.free.remove(b);
  prefetch(&blocks_[own.free.front()]);
  if (debug_) [[unlikely]]
    check_taken(b);
  blocks_[b].ref_count = 1;
  if (!idles_unheard_) [[unlikely]]
    tell_taken(own);
  return b;
}

BlockId Pool::take(int partition) noexcept {
  if (owners_) [[unlikely]]
    return take_apart(partition);
  return take_from(common_);
}

BlockId Pool::take_apart(int partition) noexcept {
  --num_queued_;
  return take_from(at(partition));
}

void Pool::take_run(int partition, std::int64_t count, BlockId* out) noexcept {
  // Victims are known in advance only where no observer is asked for them or notified.
  Partition& own = at(partition);
  const bool known = !own.observed() && !debug_;
  const std::int64_t one_by_one = known ? std::min<std::int64_t>(count, own.free.size()) : count;
  for (std::int64_t i = 0; i < one_by_one; ++i) out[i] = take(partition);
  if (one_by_one < count) evict_run(own, count - one_by_one, out + one_by_one);
}

// What evict does, for many blocks. Nearly all of its time is waiting for memory that each
// look at a victim only then knows the address of, so several are under way at a time, each one
// look behind the one before it: its record and digest, its bucket.
void Pool::evict_run(Partition& own, std::int64_t count, BlockId* out) noexcept {
  constexpr std::int64_t kBucket = 8;
  constexpr std::int64_t kErase = 16;
  if (owners_) num_queued_ -= static_cast<int>(count);
  BlockId victim = own.idle.front();
  for (std::int64_t i = 0; i < count + kErase; ++i) {
    if (i < count) {
      out[i] = victim;
      prefetch(blocks_.digest(victim));
      victim = blocks_[victim].next;
    }
    if (i >= kBucket && i - kBucket < count)
      index_.prefetch_bucket(blocks_.digest(out[i - kBucket]));
    if (i >= kErase) {
      index_.erase(out[i - kErase]);
      blocks_[out[i - kErase]].ref_count = 1;
    }
  }
  own.idle.remove_front(static_cast<int>(count), victim);
  own.num_evicted += count;
}

BlockId Pool::take_idle(int partition) noexcept {
  num_queued_ -= owners_ != nullptr;
  return evict_from(at(partition));
}

BlockId Pool::take_next(int partition, BlockId chosen) noexcept {
  Partition& own = at(partition);
  if (!own.free.empty()) return take(partition);
  num_queued_ -= owners_ != nullptr;
  return evict(own, chosen);
}

BlockId Pool::evict_from(Partition& own) noexcept {
  return evict(own, victim_of(own));
}

BlockId Pool::evict(Partition& own, BlockId b) noexcept {
  if (debug_) [[unlikely]] {
    expect(blocks_[b].keyed() && !blocks_[b].used() && !blocks_[b].fence,
           "a block that is not idle is evicted", b);
    expect(blocks_[b].first_child < 0, "a block is evicted before its children", b);
  }
  own.idle.remove(b);
  if (own.observed()) [[unlikely]]
    tell_uncached(own, b, true);
  index_.erase(b);
  ++own.num_evicted;
  // Evictions come in runs: have the place of one of the next victims in the index at hand. (Under
  // a policy of its own that is a guess.)
  BlockId ahead = own.idle.front();
  for (int i = 0; i < kVictimsAhead; ++i) ahead = blocks_[ahead].next;
  if (ahead < blocks_.count) index_.prefetch_bucket(blocks_.digest(ahead));
  blocks_[b].ref_count = 1;
  return b;
}

// A used block keeps its cached parent used: see block.h. A sequence comes to
// a block through what is before it, so the parent is used already; a caller of single blocks may
// be the first to use a whole chain.
void Pool::use(BlockId b) noexcept {
  for (;;) {
    if (!idles_unheard_) [[unlikely]]
      tell_used(b);
    dequeue(b);
    const NodeId parent = blocks_[b].parent;
    if (parent < 0) return;
    const bool was_used = blocks_[parent].used();
    ++blocks_[parent].pins;
    if (was_used) return;
    b = parent;
  }
}

// Users of a block use its parent too, so the used ones come first; and the idle ones were queued
// by one call as a rule, last to first.
void Pool::acquire_chain(const BlockId* chain, std::int64_t count) noexcept {
  std::int64_t i = 0;
  if (num_fenced_ || debug_) [[unlikely]] {
    for (; i < count; ++i) acquire(chain[i]);
    return;
  }
  for (; i < count && blocks_[chain[i]].used(); ++i) ++blocks_[chain[i]].ref_count;
  if (i == count) return;
  if (const NodeId parent = blocks_[chain[i]].parent; parent >= 0) ++blocks_[parent].pins;
  Partition& own = of(chain[i]);
  own.idle.remove_reversed(chain + i, count - i, [](Block& block) {
    block.ref_count = 1;
    block.pins = 1;  // by its child in the chain
  });
  blocks_[chain[count - 1]].pins = 0;
  if (idles_unheard_) return;
  if (owners_) num_queued_ -= static_cast<int>(count - i);
  own.tell([run = Run{chain + i, count - i}](Observer& each) { each.on_used(run); });
}

void Pool::release_table(const BlockId* table, std::int64_t count, Context& who) noexcept {
  const std::int64_t worth_a_run = debug_ ? INT64_MAX : 4;
  while (count) {
    release(table[--count], who);  // not full as a rule, or the very first
    if (count < worth_a_run) continue;
    count = idles_unheard_ ? release_cached<kUnheard>(table, count, who)
            : open_fence_  ? release_cached<kToFence>(table, count, who)
                           : release_cached<kToIdle>(table, count, who);
  }
}

// release() of blocks that are cached, or used by others, from the last one on. How many come
// before the first that is neither. What is before a used block is used, so those that become
// unused are neighbours: one run.
template <Pool::Leaving kLeaving>
std::int64_t Pool::release_cached(const BlockId* table, std::int64_t count,
                                  Context& who) noexcept {
  constexpr std::int64_t kAhead = 8;
  Block* const records = blocks_.records.data();
  Partition& own = of(table[0]);
  std::int64_t first = 0, last = 0;  // the run
  {
    BlockList::Appending queue(kLeaving == kToFence
                                   ? fences_[static_cast<std::size_t>(open_fence_ - 1)]
                                   : own.idle);
    for (; count; --count) {
      if (count > kAhead) prefetch(records + table[count - 1 - kAhead]);
      const BlockId b = table[count - 1];
      Block& block = records[b];
      if (twins_ && block.ref_count == 1) break;
      if (block.ref_count + block.pins == 1) {
        const NodeId parent = block.parent;
        if (!block.keyed() || parent < 0 || !records[parent].ref_count) break;
        if (kLeaving == kToFence) block.fence = static_cast<std::uint8_t>(open_fence_);
        queue.push_back(b);
        --records[parent].pins;
        if (kLeaving != kUnheard) {
          if (!last) last = count;
          first = count - 1;
        }
      }
      --block.ref_count;
    }
  }
  if (kLeaving == kUnheard || !last) return count;
  const int num_unused = static_cast<int>(last - first);
  if (kLeaving == kToFence) {
    num_fenced_ += num_unused;
    own.num_fenced += num_unused;
  } else if (owners_) {
    num_queued_ += num_unused;
  }
  own.tell([&, run = Run{table + first, num_unused}](Observer& each) {
    kLeaving == kToFence ? each.on_waiting(run, who) : each.on_idle(run, who);
  });
  return count;
}

void Pool::unuse(BlockId b) noexcept {
  Context nobody = kNobody;
  unuse(b, nobody);
}

void Pool::unuse(BlockId b, Context& who) noexcept {
  for (;;) {
    const NodeId parent = blocks_[b].parent;
    enqueue(b, open_fence_);  // before its parent: children are evicted first
    if (!idles_unheard_) [[unlikely]]
      tell_unused(b, open_fence_, who);
    if (parent < 0) return;
    --blocks_[parent].pins;
    if (blocks_[parent].used()) return;
    b = parent;
  }
}

void Pool::enqueue(BlockId b, int fence) noexcept {
  if (!owners_) [[likely]]
    return enqueue_in(common_, b, fence);
  num_queued_ += !fence;
  enqueue_in(of(b), b, fence);
}

void Pool::dequeue(BlockId b) noexcept {
  if (idles_unheard_) [[likely]]
    return common_.idle.remove(b);  // a free block is only ever taken
  num_queued_ -= !blocks_[b].fence;
  dequeue_from(of(b), b);
}

void Pool::tell_uncached(Partition& own, BlockId b, bool evicted) noexcept {
  if (own.policy) own.policy->on_uncached(b, evicted);
  if (own.past) own.past->on_uncached(b, evicted);
}

void Pool::tell_taken(Partition& own) noexcept {
  own.tell([](Observer& each) { each.on_taken(1); });
}

void Pool::tell_used(BlockId b) noexcept {
  if (blocks_[b].fence) return;
  of(b).tell([b](Observer& each) { each.on_used({&b, 1}); });
}

inline void Pool::enqueue_in(Partition& own, BlockId b, int fence) noexcept {
  Block& block = blocks_[b];
  block.fence = static_cast<std::uint8_t>(fence);
  if (fence) {
    fences_[static_cast<std::size_t>(fence - 1)].push_back(b);
    ++num_fenced_;
    ++own.num_fenced;
    return;
  }
  if (block.keyed()) {
    own.idle.push_back(b);
  } else {
    ++block.generation;
    if (debug_) [[unlikely]]
      poison(b);
    own.free.push_front(b);
  }
}

void Pool::tell_unused(BlockId b, int fence, Context& who) noexcept {
  const bool keyed = blocks_[b].keyed();
  if (fence && !keyed) return;
  of(b).tell([&](Observer& each) {
    const Run run{&b, 1};
    if (fence) return each.on_waiting(run, who);
    keyed ? each.on_idle(run, who) : each.on_freed(1);
  });
}

inline void Pool::dequeue_from(Partition& own, BlockId b) noexcept {
  Block& block = blocks_[b];
  if (block.fence) {
    fences_[static_cast<std::size_t>(block.fence - 1)].remove(b);
    block.fence = 0;
    --num_fenced_;
    --own.num_fenced;
    return;
  }
  own.idle.remove(b);  // a free block is only ever taken
}

void Pool::promote(BlockId b, const Key& key, const std::uint8_t* digest) noexcept {
  if (debug_) [[unlikely]]
    expect(blocks_[b].used() && !blocks_[b].keyed(), "a block that is not owned is promoted", b);
  index_.insert(b, key, digest);
  if (key.parent >= 0) pin(key.parent);
}

void Pool::promote_tail(BlockId b, const Key& key, int num_tokens) noexcept {
  index_.insert_tail(b, key, num_tokens);
  if (key.parent >= 0) ++blocks_[key.parent].pins;
}

void Pool::forget(BlockId b) noexcept {
  while (first_twin(b) >= 0) drop_twin(first_twin(b));
  const bool used = blocks_[b].used();
  const NodeId parent = blocks_[b].parent;
  const int fence = blocks_[b].fence;
  if (!used) dequeue(b);
  tell_uncached(of(b), b, false);
  index_.erase(b);
  if (!used) {
    enqueue(b, fence);
  } else if (parent >= 0) {
    unpin(parent);
  }
}

void Pool::exchange(BlockId own, BlockId twin) noexcept {
  // A pool too small to hold the twin would have cached the block itself, and freed none.
  Partition& partition = of(own);
  std::unique_ptr<ReuseTracker> past;
  if (partition.past && !open_fence_ && counts_as_available(twin) && blocks_[own].ref_count == 1 &&
      !blocks_[own].pins) {
    partition.past->on_exchanged(twin);
    past = std::move(partition.past);
  }
  acquire(twin);
  release(own);
  if (past) partition.past = std::move(past);
}

int Pool::num_free() const {
  return sum([](const Partition& p) { return p.free.size(); });
}

int Pool::num_idle() const {
  return sum([](const Partition& p) { return p.idle.size(); });
}

std::int64_t Pool::num_evicted() const {
  return sum([](const Partition& p) { return p.num_evicted; });
}

std::size_t Pool::memory() const {
  const auto owners = static_cast<std::size_t>(owners_ ? blocks_.count : 0);
  return owners * sizeof owners_[0] + apart_.capacity() * sizeof(Partition) +
         (twins_ ? twins_->bytes() : 0) + sum([](const Partition& p) {
           return (p.policy ? p.policy->memory() : 0) + (p.past ? p.past->memory() : 0);
         });
}

void Pool::take_over(BlockId tail) noexcept {
  tell_used(tail);
  dequeue(tail);
  tell_uncached(of(tail), tail, false);
  index_.erase(tail);
  blocks_[tail].ref_count = 1;
}

void Pool::set_debug(bool debug) noexcept {
  for (int i = 0; debug && !debug_ && i < num_partitions(); ++i) {
    const BlockList& free = partition(i).free;
    for (BlockId b = free.front(); b != free.end(); b = free.after(b)) poison(b);
  }
  debug_ = debug;
  fault_ = nullptr;
}

std::string Pool::take_fault() {
  if (!fault_) return {};
  std::string fault = std::string(fault_) + ": block " + std::to_string(fault_block_);
  fault_ = nullptr;
  return fault;
}

bool Pool::expect(bool holds, const char* otherwise, BlockId b) noexcept {
  if (!holds && !fault_) {
    fault_ = otherwise;
    fault_block_ = b;
  }
  return holds;
}

void Pool::poison(BlockId b) noexcept {
  std::fill_n(blocks_.tokens(b), blocks_.block_size, kPoison);
}

void Pool::check_taken(BlockId b) noexcept {
  expect(!blocks_[b].used() && !blocks_[b].keyed(), "a block that is not free is handed out", b);
  const Token* tokens = blocks_.tokens(b);
  expect(std::all_of(tokens, tokens + blocks_.block_size, [](Token t) { return t == kPoison; }),
         "a block was written while it was free", b);
}

void Pool::move_fence(int from, int to) noexcept {
  BlockList& list = fences_[static_cast<std::size_t>(from - 1)];
  while (!list.empty()) {
    const BlockId b = list.front();
    list.remove(b);
    --num_fenced_;
    --of(b).num_fenced;
    enqueue(b, to);
    Context noted = kAsNoted;
    if (!to) tell_unused(b, to, noted);
  }
}

}  // namespace blockmgr
