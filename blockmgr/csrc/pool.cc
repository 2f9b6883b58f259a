#include "pool.h"

#include <algorithm>
#include <string>
#include <utility>

namespace blockmgr {

namespace {

constexpr int kVictimsAhead = 3;

// What tokens of a free block are overwritten with when debugging.
constexpr Token kPoison = 0xdeadbeef;

}  // namespace

Pool::Pool(Blocks& blocks, PrefixIndex& index, int num_reserved, int num_fences,
           std::unique_ptr<Policy> policy)
    : blocks_(blocks),
      index_(index),
      num_reserved_(num_reserved),
      free_(blocks, blocks.count),
      idle_(blocks, blocks.count + 1),
      policy_(std::move(policy)),
      idles_unheard_(!policy_) {
  fences_.reserve(static_cast<std::size_t>(num_fences));
  for (int i = 0; i < num_fences; ++i) fences_.emplace_back(blocks, blocks.count + 3 + i);
  for (BlockId b = num_reserved; b < blocks.count; ++b) free_.push_back(b);
}

BlockId Pool::take() noexcept {
  if (free_.empty()) return take_idle();
  const BlockId b = free_.front();
  free_.remove(b);
  prefetch(&blocks_[free_.front()]);
  if (debug_) [[unlikely]]
    check_taken(b);
  blocks_[b].ref_count = 1;
  if (reuse_) [[unlikely]]
    reuse_->on_taken();
  return b;
}

BlockId Pool::take_idle() noexcept {
  const BlockId b = victim();
  if (debug_) [[unlikely]] {
    expect(blocks_[b].keyed() && !blocks_[b].used() && !blocks_[b].fence,
           "a block that is not idle is evicted", b);
    expect(blocks_[b].first_child < 0, "a block is evicted before its children", b);
  }
  idle_.remove(b);
  if (reuse_) [[unlikely]]
    reuse_->on_evicted(b);
  if (policy_) policy_->on_uncached(b, true);
  index_.erase(b);
  ++num_evicted_;
  // Evictions come in runs: have the place of one of the next victims in the index at hand. (Under
  // a policy of its own that is a guess.)
  BlockId ahead = idle_.front();
  for (int i = 0; i < kVictimsAhead; ++i) ahead = blocks_[ahead].next;
  if (ahead < blocks_.count) index_.prefetch_bucket(blocks_.digest(ahead));
  blocks_[b].ref_count = 1;
  return b;
}

// A used block keeps its cached parent, or its cached twin, used: see block.h. A sequence comes to
// a block through what is before it, so the parent is used already; whoever holds single blocks may
// be the first to use a whole chain.
void Pool::use(BlockId b) noexcept {
  for (;;) {
    if (reuse_ && !blocks_[b].fence) [[unlikely]]
      reuse_->on_used(b);
    dequeue(b);
    const NodeId parent = blocks_[b].parent;
    if (parent < 0) return;
    const bool was_used = blocks_[parent].used();
    ++blocks_[parent].pins;
    if (was_used) return;
    b = parent;
  }
}

void Pool::unuse(BlockId b) noexcept {
  for (;;) {
    const NodeId parent = blocks_[b].parent;
    if (!blocks_[b].keyed()) blocks_[b].parent = kNoBlock;
    enqueue(b, open_fence_);  // before its parent: children are evicted first
    if (reuse_) [[unlikely]]
      tell_unused(b, open_fence_);
    if (parent < 0) return;
    --blocks_[parent].pins;
    if (blocks_[parent].used()) return;
    b = parent;
  }
}

void Pool::enqueue(BlockId b, int fence) noexcept {
  Block& block = blocks_[b];
  block.fence = static_cast<std::uint8_t>(fence);
  if (fence) {
    fences_[static_cast<std::size_t>(fence - 1)].push_back(b);
    ++num_fenced_;
  } else if (block.keyed()) {
    idle_.push_back(b);
    if (policy_) policy_->on_idle(b);
  } else {
    ++block.generation;
    if (debug_) [[unlikely]]
      poison(b);
    free_.push_front(b);
  }
}

void Pool::tell_unused(BlockId b, int fence) noexcept {
  if (fence) return;
  if (blocks_[b].keyed()) {
    reuse_->on_idle(b);
  } else {
    reuse_->on_freed();
  }
}

void Pool::dequeue(BlockId b) noexcept {
  Block& block = blocks_[b];
  if (block.fence) {
    fences_[static_cast<std::size_t>(block.fence - 1)].remove(b);
    block.fence = 0;
    --num_fenced_;
  } else {
    idle_.remove(b);  // a free block is only ever taken
    if (policy_) [[unlikely]]
      policy_->on_used(b);
  }
}

void Pool::promote(BlockId b, const Key& key, const std::uint8_t* digest) noexcept {
  if (debug_) [[unlikely]]
    expect(blocks_[b].used() && !blocks_[b].keyed(), "a block that is not owned is promoted", b);
  index_.insert(b, key, digest);
  if (reuse_) [[unlikely]]
    reuse_->on_cached(digest);
  if (policy_) policy_->on_cached(b);
  if (key.parent >= 0) pin(key.parent);
}

void Pool::promote_tail(BlockId b, const Key& key, int num_tokens) noexcept {
  index_.insert_tail(b, key, num_tokens);
  if (policy_) policy_->on_cached(b);
  if (key.parent >= 0) ++blocks_[key.parent].pins;
}

void Pool::forget(BlockId b) noexcept {
  const bool used = blocks_[b].used();
  const NodeId parent = blocks_[b].parent;
  const int fence = blocks_[b].fence;
  if (!used) dequeue(b);
  if (policy_) policy_->on_uncached(b, false);
  index_.erase(b);
  if (!used) {
    enqueue(b, fence);
    if (reuse_ && !fence) reuse_->on_forgotten(b);
  } else if (parent >= 0) {
    unpin(parent);
  }
}

void Pool::exchange(BlockId own, BlockId twin) noexcept {
  // A pool too small to hold the twin would have cached the block itself, and freed none.
  std::unique_ptr<ReuseTracker> reuse;
  if (reuse_ && !open_fence_ && counts_as_available(twin) && blocks_[own].ref_count == 1 &&
      !blocks_[own].pins) {
    reuse_->on_exchanged(twin);
    reuse = std::move(reuse_);
  }
  acquire(twin);
  release(own);
  if (reuse) reuse_ = std::move(reuse);
}

void Pool::set_twin(BlockId b, BlockId twin) noexcept {
  pin(twin);
  blocks_[b].parent = twin;
}

void Pool::drop_twin(BlockId b) noexcept {
  const BlockId twin = blocks_[b].parent;
  blocks_[b].parent = kNoBlock;
  if (twin >= 0) unpin(twin);
}

void Pool::take_over(BlockId tail) noexcept {
  if (reuse_ && !blocks_[tail].fence) reuse_->on_used(tail);
  dequeue(tail);
  if (policy_) policy_->on_uncached(tail, false);
  index_.erase(tail);
  blocks_[tail].ref_count = 1;
}

void Pool::set_debug(bool debug) noexcept {
  if (debug && !debug_)
    for (BlockId b = free_.front(); b != free_.end(); b = free_.after(b)) poison(b);
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
    enqueue(b, to);
    if (reuse_) [[unlikely]]
      tell_unused(b, to);
  }
}

}  // namespace blockmgr
