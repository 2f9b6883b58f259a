// What levels blocks are due, from what the engine has said of them and nothing else.
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

  // Before and after a call: what lost its content or was cached in it starts again.
  void before_call();
  // forgets: what is gone was not evicted.
  void after_call(double now, bool forgets);

  // The block was merged with a cached one in this call, or is the one that is cached now.
  void merging(NodeId b) { at(b).merging = true; }
  // The block that the key of this one has passed to in the last call; else the block itself.
  NodeId current(NodeId b) const { return b < 0 ? b : at(b).moved_to; }
  void found(const std::vector<NodeId>& blocks);  // by an admission: hints are used up
  void retain(NodeId b, int level, double until);
  void inherit(NodeId from, NodeId cached);
  void hint(NodeId b, bool reuse) { at(b).hint = reuse ? kExpected : kLow; }
  bool is_expected(NodeId b) const { return at(b).hint == kExpected; }
  void pin(std::int64_t id, const std::vector<NodeId>& chain, int partition);
  void unpin(std::int64_t id) { pins_.erase(id); }
  int num_pins() const { return static_cast<int>(pins_.size()); }
  int num_pins(int partition) const;
  std::int64_t any_pin(std::size_t which) const;
  // Blocks of a partition that pins cover, and those of a chain that none covers.
  std::int64_t num_pinned(int partition) const;
  std::int64_t num_unpinned(const std::vector<NodeId>& chain) const;

  // The first thing that is not as it should be; empty: all is.
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
    std::int32_t block = -1;  // that it had
    std::size_t content = 0;  // a hash of the whole prefix; 0: not cached
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
