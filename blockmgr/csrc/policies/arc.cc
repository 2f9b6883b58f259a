#include "policies/arc.h"

#include <algorithm>

namespace blockmgr {

ArcPolicy::ArcPolicy(Nodes& nodes, const PrefixIndex& index, Range range)
    : EachBlock(nodes, index, range),
      capacity_(range.num_blocks),
      queues_(range, kNumQueues),
      ghosts_(2, nodes.digest_size ? 2 * range.num_blocks : 0) {}

void ArcPolicy::forget_ghosts() noexcept {
  while (ghosts_.size(kB1) && queues_.size(kT1) + ghosts_.size(kB1) > capacity_)
    ghosts_.drop_oldest(kB1);
  const int cached = queues_.size(kT1) + queues_.size(kT2);
  while (ghosts_.size() && cached + ghosts_.size() > 2 * capacity_)
    ghosts_.drop_oldest(ghosts_.size(kB2) ? kB2 : kB1);
}

void ArcPolicy::cached(NodeId b) noexcept {
  const bool full = nodes_[b].key_tokens == nodes_.block_size;
  const double b1 = ghosts_.size(kB1), b2 = ghosts_.size(kB2);
  const int ghost = full ? ghosts_.erase(first_eight(nodes_.digest(b))) : GhostSet::kNone;
  if (ghost == kB1) target_ = std::min(target_ + std::max(1.0, b2 / b1), double(capacity_));
  if (ghost == kB2) target_ = std::max(target_ - std::max(1.0, b1 / b2), 0.0);
  queues_.join(b, ghost == GhostSet::kNone ? kT1 : kT2);
  forget_ghosts();
}

void ArcPolicy::hit(NodeId b) noexcept {
  if (queues_.linked(b)) {
    queues_.move_to_back(b, kT2);
  } else {
    queues_.move(b, kT2);
  }
  forget_ghosts();
}

void ArcPolicy::on_uncached(NodeId b, bool evicted) noexcept {
  const int queue = queues_.queue_of(b);
  queues_.leave(b);
  if (evicted && nodes_[b].key_tokens == nodes_.block_size)
    ghosts_.push(queue == kT1 ? kB1 : kB2, first_eight(nodes_.digest(b)));
  forget_ghosts();
}

NodeId ArcPolicy::victim() noexcept {
  const bool first = !queues_.empty(kT1) && (queues_.size(kT1) > target_ || queues_.empty(kT2));
  const int queue = first ? kT1 : kT2;
  return cursors_[queue].find(nodes_, queues_.front(queue));
}

std::int64_t ArcPolicy::num_steps() const { return cursors_[kT1].steps() + cursors_[kT2].steps(); }

}  // namespace blockmgr
