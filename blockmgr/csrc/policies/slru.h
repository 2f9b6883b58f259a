// Segmented LRU: a block has to be found once more before it can outlive a newer one.
//
// Source: Karedla, Love and Wherry, "Caching Strategies to Improve Disk System Performance", IEEE
// Computer 27(3), 1994.
#pragma once

#include "policies/policy.h"
#include "policies/queues.h"

namespace blockmgr {

// Two queues by recency. Every block begins in the probationary one; one that is found moves to the
// protected one. The blocks beyond its limit go back, to the recent end of the probationary queue.
// Victims are the oldest of the probationary queue.
class SlruPolicy final : public EachBlock<SlruPolicy> {
 public:
  SlruPolicy(Nodes& nodes, const PrefixIndex& index, Range range);

  void cached(NodeId b) noexcept { queues_.join(b, kProbation); }
  void hit(NodeId b) noexcept;
  void idle(NodeId b) noexcept;
  void used(NodeId b) noexcept { queues_.unlink(b); }
  void on_uncached(NodeId b, bool) noexcept override { queues_.leave(b); }
  void on_moved(NodeId from, NodeId to) noexcept override { queues_.replace(from, to); }
  NodeId victim() noexcept override;

  std::int64_t num_steps() const override;
  std::size_t memory() const override { return queues_.memory(); }
  void audit(BlockAudit& audit) const override;
  void fingerprint(std::string& out) const override;

 private:
  enum : int { kProbation, kProtected, kNumQueues };
  // Moves what the protected queue holds beyond its limit back, oldest first. Blocks in use cannot
  // be moved, so there may be a rest until they are idle.
  void shrink() noexcept;

  int limit_;
  Queues queues_;
  LeafCursor cursors_[kNumQueues];
};

}  // namespace blockmgr
