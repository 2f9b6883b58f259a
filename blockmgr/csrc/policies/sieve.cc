#include "policies/sieve.h"

namespace blockmgr {

SievePolicy::SievePolicy(Nodes& nodes, const PrefixIndex& index, Range range)
    : EachBlock(nodes, index, range),
      queue_(range, 1),
      facts_(range),
      hand_(queue_.end(0)) {}

void SievePolicy::cached(NodeId b) noexcept {
  queue_.join(b, 0);
  facts(b) = {};
}

void SievePolicy::idle(NodeId b) noexcept {
  facts(b).idle = 1;
  if (queue_.linked(b)) return;
  queue_.link_before(b, facts(b).passed ? hand_ : queue_.end(0));
  facts(b).passed = 0;
}

void SievePolicy::on_uncached(NodeId b, bool) noexcept {
  if (hand_ == b) hand_ = queue_.after(b);
  queue_.leave(b);
}

NodeId SievePolicy::victim() noexcept {
  // Ends: each block passed is in use, and taken out, or loses its bit.
  for (;; ++steps_) {
    if (hand_ == queue_.end(0)) hand_ = queue_.front(0);
    const NodeId b = hand_;
    const bool idle = facts(b).idle;
    if (idle && !facts(b).visited) return cursor_.find(nodes_, b);
    facts(b).visited = 0;
    hand_ = queue_.after(b);
    if (idle) continue;
    queue_.unlink(b);
    facts(b).passed = 1;
  }
}

}  // namespace blockmgr
