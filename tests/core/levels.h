// The expected level of each block, computed only from the engine's calls.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sequences/sequences.h"

namespace blockmgr::testing {

class Levels {
 public:
  explicit Levels(const Sequences& core);

  // Called before and after a call. Blocks that lost their content or were cached in the call start
  // with no hints.
  void before_call();
  // forgets: blocks that lost their content in this call were not evicted.
  void after_call(double now, bool forgets);

  // The block was a candidate for deduplication in this call.
  void merging(NodeId b) { at(b).merging = true; }
  // The node to which this node's key passed in the last call; otherwise the node itself.
  NodeId current(NodeId b) const { return b < 0 ? b : at(b).moved_to; }
  void found(const std::vector<NodeId>& blocks);  // by an admission, which uses up hints
  void retain(NodeId b, int level, double until);
  void inherit(NodeId from, NodeId cached);
  void hint(NodeId b, bool reuse) { at(b).hint = reuse ? kExpected : kLow; }
  bool is_expected(NodeId b) const { return at(b).hint == kExpected; }
  void pin(std::int64_t id, const std::vector<NodeId>& chain, int partition);
  void unpin(std::int64_t id) { pins_.erase(id); }
  int num_pins() const { return static_cast<int>(pins_.size()); }
  int num_pins(int partition) const;
  std::int64_t any_pin(std::size_t which) const;
  // Blocks of a partition that pins cover, and blocks of a chain that no pin covers.
  std::int64_t num_pinned(int partition) const;
  std::int64_t num_unpinned(const std::vector<NodeId>& chain) const;

  // The first error found; empty if there is none.
  std::string wrong() const;

 private:
  struct Said {
    std::uint32_t generation = 0;
    int retention = kNoLevel;
    double until = kForever;
    int hint = kNormal;
    bool keyed = false;
    // Before the call.
    int own = kNormal;
    int level = kNormal;
    std::uint32_t old_generation = 0;
    bool was_idle = false;
    bool was_full = false;
    bool was_retired = false;  // such blocks go first, whatever their level
    std::int32_t block = -1;   // the block it had
    std::size_t content = 0;   // a hash of the whole prefix; 0: not cached
    // In the call.
    bool merging = false;
    NodeId moved_to = kNoNode;
  };
  struct Chain {
    std::vector<NodeId> nodes;
    std::vector<std::uint32_t> generations;
    int partition = 0;
  };
  Said& at(NodeId b) { return said_[static_cast<std::size_t>(b)]; }
  const Said& at(NodeId b) const { return said_[static_cast<std::size_t>(b)]; }
  bool is_idle(NodeId b) const;
  std::vector<std::size_t> contents() const;
  void follow_moves();
  void move(NodeId from, NodeId to);
  std::vector<bool> pin_ends() const;
  std::vector<int> due(const std::vector<bool>& ends) const;
  int own_level(NodeId b, bool pinned) const;

  const Sequences& core_;
  std::vector<Said> said_;
  std::map<std::int64_t, Chain> pins_;
  bool higher_went_first_ = false;
};

}  // namespace blockmgr::testing
