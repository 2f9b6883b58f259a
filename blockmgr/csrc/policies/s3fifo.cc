#include "policies/s3fifo.h"

#include <algorithm>

namespace blockmgr {

namespace {

constexpr std::uint8_t kHitsForMain = 2;  // on the way through the small queue

}  // namespace

S3FifoPolicy::S3FifoPolicy(Nodes& nodes, const PrefixIndex& index, Range range)
    : EachBlock(nodes, index, range),
      small_(std::max(1, range.num_blocks / 10)),
      queues_(range, kNumQueues),
      facts_(range),
      ghosts_(1, nodes.digest_size ? range.num_blocks - small_ : 0) {}

void S3FifoPolicy::cached(NodeId b) noexcept {
  facts(b) = {};
  const bool full = nodes_[b].key_tokens == nodes_.block_size;
  const bool known = full && ghosts_.erase(first_eight(nodes_.digest(b))) != GhostSet::kNone;
  queues_.join(b, known ? kMain : kSmall);
}

void S3FifoPolicy::hit(NodeId b) noexcept {
  facts(b).hits = static_cast<std::uint8_t>(std::min<int>(facts(b).hits + 1, kMostHits));
}

void S3FifoPolicy::idle(NodeId b) noexcept {
  facts(b).idle = 1;
  if (queues_.linked(b)) return;
  if (facts(b).front) {
    queues_.push_front(b);
  } else {
    queues_.push_back(b);
  }
  facts(b).front = 0;
}

void S3FifoPolicy::on_uncached(NodeId b, bool evicted) noexcept {
  if (evicted && queues_.queue_of(b) == kSmall && nodes_[b].key_tokens == nodes_.block_size)
    ghosts_.push(0, first_eight(nodes_.digest(b)));
  queues_.leave(b);
}

NodeId S3FifoPolicy::victim() noexcept {
  // Ends: each block passed is in use, and taken out, or loses a hit.
  for (;; ++steps_) {
    const bool small_is_due = queues_.size(kSmall) >= small_;
    const int queue = queues_.empty(kSmall)                  ? kMain
                      : small_is_due || queues_.empty(kMain) ? kSmall
                                                             : kMain;
    const NodeId b = queues_.front(queue);
    if (!facts(b).idle) {
      queues_.unlink(b);
      facts(b).front = 1;
    } else if (queue == kSmall && facts(b).hits >= kHitsForMain) {
      facts(b).hits = 0;
      queues_.move_to_back(b, kMain);
    } else if (queue == kMain && facts(b).hits) {
      --facts(b).hits;
      queues_.move_to_back(b, kMain);
    } else {
      return cursors_[queue].find(nodes_, b);
    }
  }
}

std::int64_t S3FifoPolicy::num_steps() const {
  return steps_ + cursors_[kSmall].steps() + cursors_[kMain].steps();
}

}  // namespace blockmgr
