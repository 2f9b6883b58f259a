// LFU with dynamic aging: evicts the block that was found least often, and hits of long ago count
// less.
//
// Source: Arlitt, Cherkasova, Dilley, Friedrich and Jin, "Evaluating Content Management Techniques
// for Web Proxy Caches", Performance Evaluation Review 27(4), 2000, section 4.
#pragma once

#include <utility>
#include <vector>

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
  void used(NodeId b) noexcept { remove(b); }
  void on_uncached(NodeId b, bool evicted) noexcept override;
  void on_moved(NodeId from, NodeId to) noexcept override {
    facts(to) = std::exchange(facts(from), Facts{});
  }
  NodeId victim() noexcept override { return cursor_.find(nodes_, heap_[0]); }

  std::int64_t num_steps() const override { return cursor_.steps(); }
  std::size_t memory() const override { return facts_.bytes() + heap_.bytes(); }
  void audit(BlockAudit& audit) const override;
  void fingerprint(std::string& out) const override;

 private:
  struct Facts {
    std::uint64_t key;
    std::uint64_t stamp;    // when it became idle
    std::uint32_t uses;     // 0: not cached
    std::int32_t position;  // in the heap, from 1; 0: not idle
  };
  Facts& facts(NodeId b) const { return facts_[b]; }
  bool before(NodeId a, NodeId b) const {
    const Facts &x = facts(a), &y = facts(b);
    return x.key != y.key ? x.key < y.key : x.stamp < y.stamp;
  }
  void place(NodeId b, std::int32_t position) noexcept {
    heap_[static_cast<std::size_t>(position)] = b;
    facts(b).position = position + 1;
  }
  // Finds the place of a block in the heap, from this one on.
  void sift(NodeId b, std::int32_t position) noexcept;
  void remove(NodeId b) noexcept;

  Column<Facts> facts_;
  ZeroedArray<NodeId> heap_;
  std::int32_t size_ = 0;
  std::uint64_t age_ = 0;
  std::uint64_t clock_ = 0;
  LeafCursor cursor_;
};

}  // namespace blockmgr
