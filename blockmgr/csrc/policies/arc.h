// ARC: recency and frequency share the cache, and ghosts of both say who needs more of it.
//
// Source: Megiddo and Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003,
// figure 4.
#pragma once

#include "policies/ghosts.h"
#include "policies/policy.h"
#include "policies/queues.h"

namespace blockmgr {

// Two queues by recency, T1 of blocks that were never found and T2 of those that were, and ghosts
// of what each evicted, B1 and B2. T1 evicts blocks while it is larger than its target; a block
// that comes back while its ghost is in B1 raises the target, one in B2 lowers it.
//
// A block that comes back is computed before it is cached, and room for it was made before that. So
// the target moves when it is cached, and the paper's tie-break, which looks at the block to come
// while room is made, is left out.
class ArcPolicy final : public EachBlock<ArcPolicy> {
 public:
  ArcPolicy(Nodes& nodes, const PrefixIndex& index, Range range);

  void cached(NodeId b) noexcept;
  void hit(NodeId b) noexcept;
  void idle(NodeId b) noexcept { queues_.push_back(b); }
  void used(NodeId b) noexcept { queues_.unlink(b); }
  void on_uncached(NodeId b, bool evicted) noexcept override;
  void on_moved(NodeId from, NodeId to) noexcept override { queues_.replace(from, to); }
  NodeId victim() noexcept override;

  std::int64_t num_steps() const override;
  std::size_t memory() const override { return queues_.memory() + ghosts_.memory(); }
  void audit(BlockAudit& audit) const override;
  void fingerprint(std::string& out) const override;

 private:
  enum : int { kT1, kT2, kNumQueues };
  enum : int { kB1, kB2 };
  // T1 and its ghosts are never more than the cache, both queues and all ghosts never more than
  // twice that.
  void forget_ghosts() noexcept;

  int capacity_;
  double target_ = 0;  // of the size of T1
  Queues queues_;
  GhostSet ghosts_;
  LeafCursor cursors_[kNumQueues];
};

}  // namespace blockmgr
