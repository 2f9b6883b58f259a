#include "policies/queues.h"

namespace blockmgr {

Queues::Queues(Range range, int num_queues)
    : range_(range), nodes_(range, num_queues), sizes_(static_cast<std::size_t>(num_queues)) {
  for (const BlockId b : range) nodes_[b] = {kNoBlock, kNoBlock, kNone};
  for (int q = 0; q < num_queues; ++q) nodes_[end(q)] = {end(q), end(q), kNone};
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
