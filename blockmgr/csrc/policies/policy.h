// Eviction policies: which idle block of a partition is evicted next.
//
// The default order, least recently used first, is the partition's own idle list: blocks arrive
// there children before parents (see node.h), so its head never has a cached child. Any other
// order is a Policy, which is told what happens to cached blocks and asked for victims.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "policies/observer.h"

namespace blockmgr {

class PrefixIndex;

class Policy : public Observer {
 public:
  // range: the blocks of its partition, of which it hears and no others.
  Policy(Nodes& nodes, const PrefixIndex& index, Range range)
      : nodes_(nodes), index_(index), range_(range) {}

  // A prompt of num_blocks blocks is admitted, and this leading run of it was found; its blocks may
  // be idle or in use, and become used afterwards. The result is kept with the sequence.
  virtual void admitted(Run found) noexcept = 0;
  // A look-up found the block besides, idle or in use.
  virtual void on_hit(NodeId b) noexcept = 0;
  // An idle block without cached children; kNoNode leaves the choice to the pool, which takes the
  // least recently used. At least one block is idle.
  virtual NodeId victim() noexcept = 0;
  // The pool found the victim in use, which the policy was told, and evicts another block.
  virtual void on_refused(NodeId victim) noexcept { (void)victim; }
  // Steps that searches for victims have taken, beyond looking at the first candidate.
  virtual std::int64_t num_steps() const { return 0; }

  Range range() const { return range_; }

 protected:
  Nodes& nodes_;
  const PrefixIndex& index_;
  const Range range_;
};

// A policy that looks at blocks one at a time: Own has cached(b), hit(b), idle(b) and used(b),
// which are inlined into one loop a run.
template <class Own>
class EachBlock : public Policy {
 public:
  using Policy::Policy;

  void admitted(Run found) noexcept override {
    for (const NodeId b : found) own().hit(b);
  }
  void on_hit(NodeId b) noexcept override { own().hit(b); }
  void on_cached(Run run) noexcept override {
    for (const NodeId b : run) own().cached(b);
  }
  void on_idle(Run run) noexcept override {
    for (std::int64_t i = run.count; i-- > 0;) own().idle(run.nodes[i]);
  }
  void on_used(Run run) noexcept override {
    for (const NodeId b : run) own().used(b);
  }

 private:
  Own& own() { return static_cast<Own&>(*this); }
};

// Makes the policy of one partition.
using PolicyMaker = std::function<std::unique_ptr<Policy>(Nodes&, const PrefixIndex&, Range)>;

// The policy of this name; nullptr for "lru". Throws Error(kValue) for an unknown one. A policy
// that may choose a block with cached children finds a leaf below it with a LeafCursor, see
// queues.h.
std::unique_ptr<Policy> make_policy(std::string_view name, Nodes& nodes, const PrefixIndex& index,
                                    Range range);

}  // namespace blockmgr
