// LFU with dynamic aging: evicts the block that was found least often, and hits of long ago count
// less.
//
// Source: Arlitt, Cherkasova, Dilley, Friedrich and Jin, "Evaluating Content Management Techniques
// for Web Proxy Caches", Performance Evaluation Review 27(4), 2000, section 4.
#pragma once

#include <utility>

#include "memory/heap.h"
#include "policies/policy.h"
#include "policies/queues.h"

namespace blockmgr {

// The key of a block is how often it was used plus the cache's age at its last use; the age is the
// key of the last victim. The lowest key goes first, the longest idle one among equals.
class LfudaPolicy final : public EachBlock<LfudaPolicy> {
 public:
  LfudaPolicy(Nodes& nodes, const PrefixIndex& index, Range range);

  void cached(NodeId b) noexcept;
  void hit(NodeId b) noexcept;
  void idle(NodeId b) noexcept;
  void used(NodeId b) noexcept { heap_.remove(b); }
  void on_uncached(NodeId b, bool evicted) noexcept override;
  void on_moved(NodeId from, NodeId to) noexcept override {
    facts(to) = std::exchange(facts(from), Facts{});
  }
  NodeId victim() noexcept override { return cursor_.find(nodes_, heap_.front()); }

  std::int64_t num_steps() const override { return cursor_.steps(); }
  std::size_t memory() const override { return facts_.bytes() + positions_.bytes() + heap_.memory(); }
  void audit(BlockAudit& audit) const override;
  void fingerprint(std::string& out) const override;

 private:
  struct Rank {
    std::uint64_t key;
    std::uint64_t stamp;  // when it became idle
    bool operator<(const Rank& other) const {
      return key != other.key ? key < other.key : stamp < other.stamp;
    }
  };
  struct Facts {
    Rank rank;
    std::uint32_t uses;  // 0: not cached
  };
  Facts& facts(NodeId b) const { return facts_[b]; }

  Column<Facts> facts_;
  Column<std::int32_t> positions_;
  BlockHeap<Rank> heap_;  // the idle ones
  std::uint64_t age_ = 0;
  std::uint64_t clock_ = 0;
  LeafCursor cursor_;
};

}  // namespace blockmgr
