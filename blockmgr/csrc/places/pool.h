// The pool: references, pins, and the queues of blocks in no use.
//
//   capacity = free + idle + fenced + used
//
// Blocks can be set apart: a partition is a range of block ids with queues, an eviction order and a
// memory of the past of its own, so that nothing that happens in one partition is felt in another.
// Partition 0 is what is left to all others; most pools have no other.
//
// Observers are notified of runs, each with what a policy knows of the request behind it.
//
// Every function here is noexcept and allocates nothing: callers count first, then commit.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "identity/index.h"
#include "memory/block.h"
#include "policies/policy.h"
#include "policies/retention.h"
#include "policies/reuse.h"

// Never inlined: a pool without observers shall pay for a branch, not for saved registers.
#if defined(__GNUC__) || defined(__clang__)
#define BM_NOINLINE __attribute__((noinline))
#else
#define BM_NOINLINE
#endif

namespace blockmgr {

class Pool {
 public:
  // A pool of all blocks but the first num_reserved, with this many fence lists.
  Pool(Blocks& blocks, PrefixIndex& index, int num_reserved, int num_fences);
  // Records needed past the last block: free list, idle list, pending copies, unwritten blocks,
  // fences, and two for each partition.
  static int num_lists(int num_fences, int num_apart) { return 4 + num_fences + 2 * num_apart; }
  BlockId copies_sentinel() const { return blocks_.count + 2; }
  BlockId unwritten_sentinel() const { return blocks_.count + 3; }

  int capacity() const { return blocks_.count - num_reserved_; }
  int available() const {
    return owners_ ? num_queued_ : common_.free.size() + common_.idle.size();
  }
  int num_free() const;
  int num_idle() const;
  int num_fenced() const { return num_fenced_; }
  int num_used() const { return capacity() - available() - num_fenced_; }
  std::int64_t num_evicted() const;

  struct Partition {
    Partition(Blocks& blocks, BlockId first, int capacity, BlockId sentinels)
        : first(first),
          capacity(capacity),
          free(blocks, sentinels),
          idle(blocks, sentinels + 1) {}
    int available() const { return free.size() + idle.size(); }
    Range range() const { return {first, capacity}; }
    bool holds(BlockId b) const { return range().holds(b); }
    // Whether an observer is notified of what happens here.
    bool observed() const { return policy || past; }
    template <class Call>
    void tell(Call call) noexcept {
      if (policy) call(static_cast<Observer&>(*policy));
      if (past) call(static_cast<Observer&>(*past));
    }

    BlockId first;
    int capacity;
    BlockList free;
    BlockList idle;  // by recency: what became idle first is in front, children before parents
    std::unique_ptr<Policy> policy;  // nullptr: the least recently used block goes first
    RetainingPolicy* retention = nullptr;  // the policy, if it is one
    std::unique_ptr<ReuseTracker> past;    // nullptr: there is no memory
    int num_fenced = 0;
    std::int64_t num_evicted = 0;
  };
  // Makes a partition of this many blocks that were left to all. Before anything is taken.
  void set_apart(int count);
  // Gives a partition its eviction order, under retention or not, and its past. Likewise.
  void observe(int number, std::unique_ptr<Policy> policy, RetainingPolicy* retention,
               std::unique_ptr<ReuseTracker> past);
  int num_partitions() const { return 1 + static_cast<int>(apart_.size()); }
  const Partition& partition(int number) const {
    return number ? apart_[static_cast<std::size_t>(number - 1)] : common_;
  }
  int partition_of(BlockId b) const { return owners_ ? owners_[static_cast<std::size_t>(b)] : 0; }

  // An unused block with one reference, for new content. The partition must have one available.
  BlockId take(int partition = 0) noexcept;
  // That many of them at once, the same ones in the same order.
  void take_run(int partition, std::int64_t count, BlockId* out) noexcept;
  // A block for take_next(), left where it is. A policy that is asked again may answer another.
  BlockId next(int partition) noexcept {
    Partition& own = at(partition);
    return own.free.empty() ? victim_of(own) : own.free.front();
  }
  // take() of the block that next() of this partition has just answered.
  BlockId take_next(int partition, BlockId chosen) noexcept;
  // The next idle block in the eviction order, likewise; free ones are left alone.
  BlockId take_idle(int partition) noexcept;
  // That block, left where it is. There must be an idle one.
  BlockId victim(int partition) noexcept { return victim_of(at(partition)); }
  // Adds a table's reference.
  void acquire(BlockId b) noexcept {
    if (debug_) [[unlikely]]
      expect(blocks_[b].used() || blocks_[b].keyed(), "a free block is acquired", b);
    if (!blocks_[b].used()) use(b);
    ++blocks_[b].ref_count;
  }
  // Acquires each block of a chain that the index found, first to last.
  void acquire_chain(const BlockId* chain, std::int64_t count) noexcept;
  void release(BlockId b) noexcept {
    Context nobody = kNobody;
    release(b, nobody);
  }
  void release(BlockId b, Context& who) noexcept {
    Block& block = blocks_[b];
    if (debug_) [[unlikely]]
      if (!expect(block.ref_count, "a block is released more often than it is held", b)) return;
    --block.ref_count;
    if (twins_ && !block.ref_count) [[unlikely]]
      part_from_twins(b);
    if (block.used()) return;
    // The usual case without a call: a cached block whose parent is released after it, without
    // an observer.
    const NodeId parent = block.parent;
    if (block.keyed() && idles_unheard_ && parent >= 0 && blocks_[parent].ref_count) {
      common_.idle.push_back(b);
      --blocks_[parent].pins;
      return;
    }
    unuse(b, who);
  }
  // Releases each block of a table, last to first.
  void release_table(const BlockId* table, std::int64_t count, Context& who) noexcept;
  void pin(BlockId b) noexcept {
    if (debug_) [[unlikely]]
      expect(blocks_[b].used() || blocks_[b].keyed(), "a free block is pinned", b);
    if (!blocks_[b].used()) use(b);
    ++blocks_[b].pins;
  }
  void unpin(BlockId b) noexcept {
    if (debug_) [[unlikely]]
      if (!expect(blocks_[b].pins, "a block is unpinned more often than it is pinned", b)) return;
    --blocks_[b].pins;
    if (!blocks_[b].used()) unuse(b);
  }
  // What the policy of a partition needs to know of requests: see there.
  Context admitted(int number, Run found, std::int64_t num_blocks) noexcept {
    Policy* policy = at(number).policy.get();
    return policy ? policy->admitted(found, num_blocks) : kNobody;
  }
  void hit(BlockId b) noexcept {
    if (Policy* policy = of(b).policy.get()) policy->on_hit(b);
  }
  // Makes an idle block the one that was used last; of a chain, the deepest first.
  void touch(BlockId b) noexcept {
    Partition& own = of(b);
    own.idle.remove(b);
    own.idle.push_back(b);
    own.tell([b](Observer& each) { each.on_touched(b); });
  }
  std::size_t memory() const;
  // nullptr: there is no tracker.
  ReuseTracker* past(int number) { return at(number).past.get(); }
  const ReuseTracker* past(int number) const { return partition(number).past.get(); }

  // Whether using this block makes one fewer available.
  bool counts_as_available(BlockId b) const { return !blocks_[b].used() && !blocks_[b].fence; }

  // acquire(twin), then release(own), of two blocks with the same content.
  void exchange(BlockId own, BlockId twin) noexcept;
  // Gives a used block its key: the parent is kept for as long as the block is used. Observers are
  // told by tell_cached, of the run, before anything else happens to it.
  void promote(BlockId b, const Key& key, const std::uint8_t* digest) noexcept;
  void promote_tail(BlockId b, const Key& key, int num_tokens) noexcept;
  void tell_cached(Run run, Context& who) noexcept {
    if (!idles_unheard_ && run.count) [[unlikely]]
      of(run.blocks[0]).tell([&](Observer& each) { each.on_cached(run, who); });
  }
  // Takes a block's key away; it must have no children. Unused, it becomes free.
  void forget(BlockId b) noexcept;
  // With append-only deduplication. Before anything is taken.
  void keep_twins() {
    twins_ = std::make_unique<ZeroedArray<BlockId>>(static_cast<std::size_t>(blocks_.count));
  }
  // The cached block stands for this private one, with the same content, from here on; or, if no
  // table names it, its key passes to the private one.
  void set_twin(BlockId b, BlockId cached) noexcept;
  // Before a private block comes to differ from its cached twin, if it has one.
  void drop_twin(BlockId b) noexcept;
  // The private blocks that a cached one stands for, the last to become so first.
  BlockId first_twin(BlockId b) const {
    return twins_ ? (*twins_)[static_cast<std::size_t>(b)] - 1 : kNoBlock;
  }
  template <class Visit>
  void each_twin(BlockId cached, Visit visit) const {
    for (BlockId b = first_twin(cached); b >= 0; b = blocks_[b].next_sibling) visit(b);
  }
  // Makes an idle tail the private block of one table, its tokens in place.
  void take_over(BlockId tail) noexcept;

  // Blocks released from here on wait in this fence list; 0: in none.
  void set_fence(int fence) {
    open_fence_ = fence;
    idles_unheard_ = !fence && !common_.observed() && !owners_;
  }
  // Moves what waits in one fence list to another, or (0) to the queues.
  void move_fence(int from, int to) noexcept;

  // From here on, each step also looks at the blocks it touches, and blocks that become free are
  // overwritten, so that a use of one after that shows. Costs a few instructions a step.
  void set_debug(bool debug) noexcept;
  // The first thing such a look found wrong since the last time; empty: nothing.
  std::string take_fault();

  const BlockList& free_list(int number = 0) const { return partition(number).free; }
  const BlockList& idle_list(int number = 0) const { return partition(number).idle; }
  const Policy* policy(int number = 0) const { return partition(number).policy.get(); }
  const BlockList& fence_list(int fence) const {
    return fences_[static_cast<std::size_t>(fence - 1)];
  }
  int num_fences() const { return static_cast<int>(fences_.size()); }

 private:
  Partition& at(int number) {
    return number ? apart_[static_cast<std::size_t>(number - 1)] : common_;
  }
  Partition& of(BlockId b) { return owners_ ? at(owners_[static_cast<std::size_t>(b)]) : common_; }
  template <class Count>
  auto sum(Count count) const {
    auto total = count(common_);
    for (const Partition& p : apart_) total += count(p);
    return total;
  }
  // Remembers the first thing that does not hold. Nothing here may throw.
  bool expect(bool holds, const char* otherwise, BlockId b) noexcept;
  void set_first_twin(BlockId b, BlockId twin) noexcept {
    (*twins_)[static_cast<std::size_t>(b)] = twin + 1;
  }
  void part_from_twins(BlockId b) noexcept;
  void hand_over(BlockId from, BlockId to) noexcept;
  void poison(BlockId b) noexcept;
  void check_taken(BlockId b) noexcept;
  void use(BlockId b) noexcept;
  void unuse(BlockId b, Context& who) noexcept;
  void unuse(BlockId b) noexcept;
  void enqueue(BlockId b, int fence) noexcept;
  BM_NOINLINE void tell_unused(BlockId b, int fence, Context& who) noexcept;
  void dequeue(BlockId b) noexcept;
  BM_NOINLINE void tell_used(BlockId b) noexcept;
  BM_NOINLINE static void tell_taken(Partition& own) noexcept;
  BM_NOINLINE static void tell_uncached(Partition& own, BlockId b, bool evicted) noexcept;
  // Where blocks go whose last use ended, and whether an observer is notified.
  enum Leaving { kUnheard, kToIdle, kToFence };
  template <Leaving kLeaving>
  std::int64_t release_cached(const BlockId* table, std::int64_t count, Context& who) noexcept;
  BlockId take_apart(int partition) noexcept;
  BlockId take_from(Partition& own) noexcept;
  BlockId evict(Partition& own, BlockId b) noexcept;
  BM_NOINLINE BlockId evict_from(Partition& own) noexcept;
  void evict_run(Partition& own, std::int64_t count, BlockId* out) noexcept;
  void enqueue_in(Partition& own, BlockId b, int fence) noexcept;
  void dequeue_from(Partition& own, BlockId b) noexcept;
  static BlockId victim_of(Partition& own) noexcept {
    const BlockId chosen = own.policy ? own.policy->victim() : kNoBlock;
    return chosen >= 0 ? chosen : own.idle.front();
  }

  Blocks& blocks_;
  PrefixIndex& index_;
  int num_reserved_;
  Partition common_;
  std::vector<Partition> apart_;
  std::unique_ptr<std::uint16_t[]> owners_;  // number of each block's partition, if there are any
  int num_queued_ = 0;                       // free and idle blocks; with partitions only
  // Of each cached block the first of its twins, plus 1; the others are its siblings. nullptr:
  // there are none.
  std::unique_ptr<ZeroedArray<BlockId>> twins_;
  std::vector<BlockList> fences_;
  int open_fence_ = 0;
  // No fence is open, without which no block is fenced; there is no observer, and none are apart.
  bool idles_unheard_;
  int num_fenced_ = 0;
  bool debug_ = false;
  const char* fault_ = nullptr;
  BlockId fault_block_ = kNoBlock;
};

}  // namespace blockmgr
