#include "policies/queues.h"

namespace blockmgr {

Queues::Queues(const Blocks& blocks, int num_queues)
    : count_(blocks.count),
      nodes_(static_cast<std::size_t>(blocks.count + num_queues)),
      sizes_(static_cast<std::size_t>(num_queues)) {
  for (BlockId b = 0; b < count_; ++b) nodes_[at(b)] = {kNoBlock, kNoBlock, kNone};
  for (int q = 0; q < num_queues; ++q) nodes_[at(end(q))] = {end(q), end(q), kNone};
}

BlockId LeafCursor::find(const Blocks& blocks, BlockId chosen) noexcept {
  BlockId b = chosen;
  // Generations grow when a block loses its content or its key, and a cached block gets another
  // parent only when that one has lost it; so what was below stays below for as long as both are
  // the same.
  if (chosen == chosen_ && blocks[chosen].generation == chosen_generation_ &&
      blocks[start_].generation == start_generation_)
    b = start_;
  while (blocks[b].first_child >= 0) {
    b = blocks[b].first_child;
    ++steps_;
  }
  chosen_ = chosen;
  chosen_generation_ = blocks[chosen].generation;
  start_ = b == chosen ? b : blocks[b].parent;
  start_generation_ = blocks[start_].generation;
  return b;
}

}  // namespace blockmgr
