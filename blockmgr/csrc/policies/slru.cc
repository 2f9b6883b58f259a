#include "policies/slru.h"

namespace blockmgr {

namespace {

// Share of the cache that is protected, in percent: what later descriptions of the policy settled
// on; the original measured shares from 20 to 80.
constexpr std::int64_t kProtectedPercent = 80;

}  // namespace

SlruPolicy::SlruPolicy(Nodes& nodes, const PrefixIndex& index, Range range)
    : EachBlock(nodes, index, range),
      limit_(static_cast<int>(range.num_blocks * kProtectedPercent / 100)),
      queues_(range, kNumQueues) {}

void SlruPolicy::shrink() noexcept {
  while (queues_.size(kProtected) > limit_ && !queues_.empty(kProtected))
    queues_.move_to_back(queues_.front(kProtected), kProbation);
}

void SlruPolicy::hit(NodeId b) noexcept {
  if (queues_.linked(b)) {
    queues_.move_to_back(b, kProtected);
  } else if (queues_.queue_of(b) == kProbation) {
    queues_.move(b, kProtected);
  }
  shrink();
}

void SlruPolicy::idle(NodeId b) noexcept {
  queues_.push_back(b);
  shrink();
}

NodeId SlruPolicy::victim() noexcept {
  const int queue = queues_.empty(kProbation) ? kProtected : kProbation;
  return cursors_[queue].find(nodes_, queues_.front(queue));
}

std::int64_t SlruPolicy::num_steps() const {
  return cursors_[kProbation].steps() + cursors_[kProtected].steps();
}

}  // namespace blockmgr
