#include "policies/queues.h"

namespace blockmgr {

Queues::Queues(Range range, int num_queues)
    : range_(range), nodes_(range, num_queues), sizes_(static_cast<std::size_t>(num_queues)) {
  for (const NodeId b : range) nodes_[b] = {kNoNode, kNoNode, kNone};
  for (int q = 0; q < num_queues; ++q) nodes_[end(q)] = {end(q), end(q), kNone};
}

NodeId LeafCursor::find(const Nodes& nodes, NodeId chosen) noexcept {
  NodeId b = chosen;
  // Generations grow when a block loses its content or its key, and a cached block gets another
  // parent only when that one has lost it; so what was below stays below for as long as both are
  // the same.
  if (chosen == chosen_ && nodes[chosen].generation == chosen_generation_ &&
      nodes[start_].generation == start_generation_)
    b = start_;
  while (nodes[b].first_child >= 0) {
    b = nodes[b].first_child;
    ++steps_;
  }
  chosen_ = chosen;
  chosen_generation_ = nodes[chosen].generation;
  start_ = b == chosen ? b : nodes[b].parent;
  start_generation_ = nodes[start_].generation;
  return b;
}

}  // namespace blockmgr
