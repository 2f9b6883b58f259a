// SIEVE: one queue, one bit a block, and a hand that sweeps from the oldest block to the newest.
//
// Source: Zhang et al., "SIEVE is Simpler than LRU: an Efficient Turn-Key Eviction Algorithm for
// Web Caches", NSDI 2024, algorithm 1.
#pragma once

#include "policies/policy.h"
#include "policies/queues.h"

namespace blockmgr {

// Blocks keep the order in which they first became idle. The hand passes a block that was found
// since it last came by, clearing its bit, and stops at one that was not: the victim.
//
// The hand passes blocks in use as well. It takes them out, so that it meets each once and not on
// every round; when their use ends they go back just behind it, where they would be.
class SievePolicy final : public EachBlock<SievePolicy> {
 public:
  SievePolicy(Nodes& nodes, const PrefixIndex& index, Range range);

  void cached(NodeId b) noexcept;
  void hit(NodeId b) noexcept { facts(b).visited = 1; }
  void idle(NodeId b) noexcept;
  void used(NodeId b) noexcept { facts(b).idle = 0; }
  void on_uncached(NodeId b, bool evicted) noexcept override;
  void on_moved(NodeId from, NodeId to) noexcept override {
    if (hand_ == from) hand_ = to;
    facts(to) = facts(from);
    queue_.replace(from, to);
  }
  NodeId victim() noexcept override;

  std::int64_t num_steps() const override { return steps_ + cursor_.steps(); }
  std::size_t memory() const override { return queue_.memory() + facts_.bytes(); }
  void audit(BlockAudit& audit) const override;
  void fingerprint(std::string& out) const override;

 private:
  struct Facts {
    std::uint8_t visited;
    std::uint8_t passed;  // taken out by the hand while in use
    std::uint8_t idle;    // as it was told: what retention holds back is not
  };
  Facts& facts(NodeId b) const { return facts_[b]; }

  Queues queue_;
  Column<Facts> facts_;
  NodeId hand_;  // the next block to look at; at the end it goes on with the oldest
  LeafCursor cursor_;
  std::int64_t steps_ = 0;
};

}  // namespace blockmgr
