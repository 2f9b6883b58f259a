#include "policies/s3fifo.h"

#include <algorithm>

namespace blockmgr {

namespace {

constexpr std::uint8_t kHitsForMain = 2;  // on the way through the small queue

}  // namespace

S3FifoPolicy::S3FifoPolicy(Blocks& blocks, const PrefixIndex& index, Range range)
    : EachBlock(blocks, index, range),
      small_(std::max(1, range.count / 10)),
      queues_(range, kNumQueues),
      facts_(range),
      ghosts_(1, blocks.digest_size ? range.count - small_ : 0) {}

void S3FifoPolicy::cached(BlockId b) noexcept {
  facts(b) = {};
  const bool full = blocks_[b].key_tokens == blocks_.block_size;
  const bool known = full && ghosts_.erase(GhostSet::tag(blocks_.digest(b))) != GhostSet::kNone;
  queues_.join(b, known ? kMain : kSmall);
}

void S3FifoPolicy::hit(BlockId b) noexcept {
  facts(b).hits = static_cast<std::uint8_t>(std::min<int>(facts(b).hits + 1, kMostHits));
}

void S3FifoPolicy::idle(BlockId b) noexcept {
  facts(b).idle = 1;
  if (queues_.linked(b)) return;
  if (facts(b).front) {
    queues_.push_front(b);
  } else {
    queues_.push_back(b);
  }
  facts(b).front = 0;
}

void S3FifoPolicy::on_uncached(BlockId b, bool evicted) noexcept {
  if (evicted && queues_.queue_of(b) == kSmall && blocks_[b].key_tokens == blocks_.block_size)
    ghosts_.push(0, GhostSet::tag(blocks_.digest(b)));
  queues_.leave(b);
}

BlockId S3FifoPolicy::victim() noexcept {
  // Ends: each block passed is in use, and taken out, or loses a hit.
  for (;; ++steps_) {
    const bool small_is_due = queues_.size(kSmall) >= small_;
    const int queue = queues_.empty(kSmall)                  ? kMain
                      : small_is_due || queues_.empty(kMain) ? kSmall
                                                             : kMain;
    const BlockId b = queues_.front(queue);
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
      return cursors_[queue].find(blocks_, b);
    }
  }
}

std::int64_t S3FifoPolicy::num_steps() const {
  return steps_ + cursors_[kSmall].steps() + cursors_[kMain].steps();
}

}  // namespace blockmgr
