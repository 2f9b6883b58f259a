// The pool: references, pins, and the queues of blocks in no use.
//
//   capacity = free + idle + fenced + used
//
// Every function here is noexcept and allocates nothing: callers count first, then commit.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "block.h"
#include "index.h"
#include "policy.h"
#include "reuse.h"

namespace blockmgr {

class Pool {
 public:
  // A pool of all blocks but the first num_reserved, with this many fence lists. Without a policy,
  // idle blocks are given up least recently used first.
  Pool(Blocks& blocks, PrefixIndex& index, int num_reserved, int num_fences,
       std::unique_ptr<Policy> policy);
  // Records needed past the last block: free list, idle list, pending copies, fences.
  static int num_lists(int num_fences) { return 3 + num_fences; }
  BlockId copies_sentinel() const { return blocks_.count + 2; }

  int capacity() const { return blocks_.count - num_reserved_; }
  int available() const { return free_.size() + idle_.size(); }
  int num_free() const { return free_.size(); }
  int num_idle() const { return idle_.size(); }
  int num_fenced() const { return num_fenced_; }
  int num_used() const { return capacity() - available() - num_fenced_; }
  std::int64_t num_evicted() const { return num_evicted_; }

  // An unused block with one reference, for new content. There must be one: see available().
  BlockId take() noexcept;
  // What take() hands out next, left where it is; for pools without a policy.
  BlockId next() const noexcept { return free_.empty() ? idle_.front() : free_.front(); }
  // The next idle block in the eviction order, likewise; free ones are left alone.
  BlockId take_idle() noexcept;
  // That block, left where it is. There must be an idle one.
  BlockId victim() noexcept {
    const BlockId chosen = policy_ ? policy_->victim() : kNoBlock;
    return chosen >= 0 ? chosen : idle_.front();
  }
  // Adds a table's reference.
  void acquire(BlockId b) noexcept {
    if (debug_) [[unlikely]]
      expect(blocks_[b].used() || blocks_[b].keyed(), "a free block is acquired", b);
    if (!blocks_[b].used()) use(b);
    ++blocks_[b].ref_count;
  }
  void release(BlockId b) noexcept {
    Block& block = blocks_[b];
    if (debug_) [[unlikely]]
      if (!expect(block.ref_count, "a block is released more often than it is held", b)) return;
    --block.ref_count;
    if (block.used()) return;
    // The usual case without a call: a cached block whose parent is released after it, nobody to be
    // told.
    const NodeId parent = block.parent;
    if (block.keyed() && idles_unheard_ && parent >= 0 && blocks_[parent].ref_count) {
      idle_.push_back(b);
      --blocks_[parent].pins;
      return;
    }
    unuse(b);
  }
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
  // What the policy needs to hear of sequences: see there.
  std::uint32_t admitted(const BlockId* found, std::int64_t num_found,
                         std::int64_t num_blocks) noexcept {
    return policy_ ? policy_->admitted(found, num_found, num_blocks) : 0;
  }
  void hit(BlockId b) noexcept {
    if (policy_) policy_->on_hit(b);
  }
  void enter(std::uint32_t context) noexcept {
    if (policy_) policy_->enter(context);
  }
  // Makes an idle block the one that was used last; of a chain, the deepest first.
  void touch(BlockId b) noexcept {
    idle_.remove(b);
    idle_.push_back(b);
    if (policy_) policy_->on_touched(b);
    if (reuse_) [[unlikely]] {
      reuse_->on_used(b);
      reuse_->on_idle(b);
    }
  }
  std::size_t memory() const {
    return (policy_ ? policy_->memory() : 0) + (reuse_ ? reuse_->memory() : 0);
  }
  const Policy* policy() const { return policy_.get(); }
  // Has all that happens to the queues told to a tracker. Before anything is taken.
  void follow(std::unique_ptr<ReuseTracker> reuse) {
    reuse_ = std::move(reuse);
    idles_unheard_ = false;
  }
  // nullptr: nobody follows.
  ReuseTracker* reuse() { return reuse_.get(); }
  const ReuseTracker* reuse() const { return reuse_.get(); }

  // Whether using this block makes one fewer available.
  bool counts_as_available(BlockId b) const { return !blocks_[b].used() && !blocks_[b].fence; }

  // acquire(twin), then release(own), of two blocks with the same content.
  void exchange(BlockId own, BlockId twin) noexcept;
  // Gives a used block its key: the parent is kept for as long as the block is used.
  void promote(BlockId b, const Key& key, const std::uint8_t* digest) noexcept;
  void promote_tail(BlockId b, const Key& key, int num_tokens) noexcept;
  // Takes a block's key away; it must have no children. Unused, it becomes free.
  void forget(BlockId b) noexcept;
  // Remembers the cached twin that stands for a private block, and keeps it.
  void set_twin(BlockId b, BlockId twin) noexcept;
  void drop_twin(BlockId b) noexcept;
  // Makes an idle tail the private block of one table, its tokens in place.
  void take_over(BlockId tail) noexcept;

  // Blocks released from here on wait in this fence list; 0: in none.
  void set_fence(int fence) {
    open_fence_ = fence;
    idles_unheard_ = !fence && !policy_ && !reuse_;
  }
  // Moves what waits in one fence list to another, or (0) to the queues.
  void move_fence(int from, int to) noexcept;

  // From here on, each step also looks at the blocks it touches, and blocks that become free are
  // overwritten, so that a use of one after that shows. Costs a few instructions a step.
  void set_debug(bool debug) noexcept;
  // The first thing such a look found wrong since the last time; empty: nothing.
  std::string take_fault();

  const BlockList& free_list() const { return free_; }
  // By recency: the block that became idle first is in front, children before parents.
  const BlockList& idle_list() const { return idle_; }
  const BlockList& fence_list(int fence) const {
    return fences_[static_cast<std::size_t>(fence - 1)];
  }
  int num_fences() const { return static_cast<int>(fences_.size()); }

 private:
  // Remembers the first thing that does not hold. Nothing here may throw.
  bool expect(bool holds, const char* otherwise, BlockId b) noexcept;
  void poison(BlockId b) noexcept;
  void check_taken(BlockId b) noexcept;
  void use(BlockId b) noexcept;
  void unuse(BlockId b) noexcept;
  void enqueue(BlockId b, int fence) noexcept;
  void tell_unused(BlockId b, int fence) noexcept;
  void dequeue(BlockId b) noexcept;

  Blocks& blocks_;
  PrefixIndex& index_;
  int num_reserved_;
  BlockList free_;
  BlockList idle_;
  std::unique_ptr<Policy> policy_;
  std::unique_ptr<ReuseTracker> reuse_;
  std::vector<BlockList> fences_;
  int open_fence_ = 0;
  bool idles_unheard_;  // no fence is open, and nobody is to be told
  int num_fenced_ = 0;
  std::int64_t num_evicted_ = 0;
  bool debug_ = false;
  const char* fault_ = nullptr;
  BlockId fault_block_ = kNoBlock;
};

}  // namespace blockmgr
