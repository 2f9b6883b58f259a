// Append-only deduplication: private blocks beside the cached one that has the same content.
#include "places/pool.h"

namespace blockmgr {

void Pool::set_twin(BlockId b, BlockId cached) noexcept {
  if (!blocks_[cached].ref_count) {
    if (!blocks_[cached].used()) return hand_over(cached, b);
    ++blocks_[cached].pins;  // used until all is moved: what keeps it may go with its children
    hand_over(cached, b);
    return unpin(cached);
  }
  const BlockId other = first_twin(cached);
  blocks_[b].parent = cached;
  blocks_[b].prev_sibling = kNoBlock;
  blocks_[b].next_sibling = other;
  if (other >= 0) blocks_[other].prev_sibling = b;
  set_first_twin(cached, b);
}

void Pool::drop_twin(BlockId b) noexcept {
  Block& block = blocks_[b];
  if (block.parent < 0) return;
  if (block.prev_sibling >= 0) {
    blocks_[block.prev_sibling].next_sibling = block.next_sibling;
  } else {
    set_first_twin(block.parent, block.next_sibling);
  }
  if (block.next_sibling >= 0) blocks_[block.next_sibling].prev_sibling = block.prev_sibling;
  block.parent = kNoBlock;
}

// No table names the block any more, though others may still keep it. A private one stands for
// no other; the key of a cached one passes to a block that is in use anyway.
void Pool::part_from_twins(BlockId b) noexcept {
  if (!blocks_[b].keyed()) return drop_twin(b);
  const BlockId twin = first_twin(b);
  if (twin < 0) return;
  ++blocks_[b].pins;  // used until all is moved
  hand_over(b, twin);
  --blocks_[b].pins;
}

// Its key, its children and its twins pass from a cached block that no table names to a private
// one with the same content. What it loses is given back: by the caller if it was used.
void Pool::hand_over(BlockId from, BlockId to) noexcept {
  const bool used = blocks_[from].used();
  const int fence = blocks_[from].fence;
  const NodeId parent = blocks_[from].parent;
  if (!used) {
    if (Policy* policy = fence ? nullptr : of(from).policy.get()) policy->on_used({&from, 1});
    dequeue(from);
  }
  drop_twin(to);
  set_first_twin(to, first_twin(from));
  set_first_twin(from, kNoBlock);
  each_twin(to, [&](BlockId b) { blocks_[b].parent = to; });
  index_.move(from, to);
  for (BlockId b = blocks_[to].first_child; b >= 0; b = blocks_[b].next_sibling) {
    const bool pins = blocks_[b].used();
    blocks_[from].pins -= pins;
    blocks_[to].pins += pins;
  }
  of(to).tell([from, to](Observer& each) { each.on_moved(from, to); });
  if (used) return;  // its parent is pinned as before, by another child
  if (parent >= 0) ++blocks_[parent].pins;
  enqueue(from, fence);
}

}  // namespace blockmgr
