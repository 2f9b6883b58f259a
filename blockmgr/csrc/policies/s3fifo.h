// S3-FIFO: three queues in the order of arrival, none of which is touched by a hit.
//
// Source: Yang et al., "FIFO Queues are All You Need for Cache Eviction", SOSP 2023, algorithm 1.
#pragma once

#include "policies/ghosts.h"
#include "policies/policy.h"
#include "policies/queues.h"

namespace blockmgr {

// New blocks go through a small queue, a tenth of the cache. Those found at least twice on their
// way go on to the main one, the others leave a ghost; a block that comes back while its ghost is
// remembered goes to the main queue at once. The main queue gives a block as many more rounds as it
// was found, three at most.
//
// A block in use at the front of a queue is taken out and put back there when its use ends, so that
// a search meets it once.
class S3FifoPolicy final : public EachBlock<S3FifoPolicy> {
 public:
  S3FifoPolicy(Nodes& nodes, const PrefixIndex& index, Range range);

  void cached(NodeId b) noexcept;
  void hit(NodeId b) noexcept;
  void idle(NodeId b) noexcept;
  void used(NodeId b) noexcept { facts(b).idle = 0; }
  void on_uncached(NodeId b, bool evicted) noexcept override;
  void on_moved(NodeId from, NodeId to) noexcept override {
    facts(to) = facts(from);
    queues_.replace(from, to);
  }
  NodeId victim() noexcept override;

  std::int64_t num_steps() const override;
  std::size_t memory() const override {
    return queues_.memory() + facts_.bytes() + ghosts_.memory();
  }
  void audit(BlockAudit& audit) const override;
  void fingerprint(std::string& out) const override;

 private:
  enum : int { kSmall, kMain, kNumQueues };
  static constexpr std::uint8_t kMostHits = 3;  // two bits
  struct Facts {
    std::uint8_t hits;   // since it entered its queue, three at most
    std::uint8_t front;  // taken out at the front of its queue while in use
    std::uint8_t idle;   // as it was told: what retention holds back is not
  };
  Facts& facts(NodeId b) const { return facts_[b]; }

  int small_;  // size from which the small queue evicts blocks
  Queues queues_;
  Column<Facts> facts_;
  GhostSet ghosts_;
  LeafCursor cursors_[kNumQueues];
  std::int64_t steps_ = 0;
};

}  // namespace blockmgr
