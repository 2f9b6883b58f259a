// A policy that wraps the one under test and checks the pool's notifications.
//
//   on_cached ──► (used) ──► on_idle ──► on_used ──► ... ──► on_idle ──► on_uncached
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "policies/policy.h"

namespace blockmgr::testing {

class Witness final : public Policy {
 public:
  // base: nullptr leaves the choice of victims to the pool.
  Witness(Nodes& nodes, const PrefixIndex& index, Range range, std::unique_ptr<Policy> base)
      : Policy(nodes, index, range), base_(std::move(base)), states_(range) {
    found.reserve(static_cast<std::size_t>(nodes.count));
  }

  void admitted(Run run) noexcept override {
    found.assign(run.begin(), run.end());
    for (const NodeId b : run)
      if (state(b) == kUnknown) fault_ = "a block that is not cached is found";
    check_run(run);
    if (base_) base_->admitted(run);
  }
  void on_hit(NodeId b) noexcept override {
    ++num_hits;
    if (state(b) == kUnknown) fault_ = "a block that is not cached is found";
    if (base_) base_->on_hit(b);
  }
  void on_cached(Run run) noexcept override {
    for (const NodeId b : run) move(b, kUnknown, kUsed, "is cached twice");
    check_run(run);
    if (base_) base_->on_cached(run);
  }
  void on_idle(Run run) noexcept override {
    for (std::int64_t i = run.count; i-- > 0;)
      move(run.nodes[i], kUsed, kIdle, "becomes idle, but was not in use");
    check_run(run);
    if (base_) base_->on_idle(run);
  }
  void on_used(Run run) noexcept override {
    for (const NodeId b : run) move(b, kIdle, kUsed, "is used, but was not idle");
    check_run(run);
    if (base_) base_->on_used(run);
  }
  void on_touched(NodeId b) noexcept override {
    if (state(b) != kIdle) fault_ = "a block that is not idle is touched";
    if (base_) base_->on_touched(b);
  }
  void on_moved(NodeId from, NodeId to) noexcept override {
    move(to, kUnknown, kUsed, "a cached block takes over a key");
    move(from, kUsed, kUnknown, "a key passes from a block that is not in use");
    if (base_) base_->on_moved(from, to);
  }
  void on_uncached(NodeId b, bool evicted) noexcept override {
    if (state(b) == kUnknown) fault_ = "a block that is not cached is lost";
    if (evicted && state(b) != kIdle) fault_ = "a block in use is evicted";
    if (nodes_[b].first_child >= 0) fault_ = "a block is lost before its children";
    state(b) = kUnknown;
    if (base_) base_->on_uncached(b, evicted);
  }
  NodeId victim() noexcept override { return base_ ? base_->victim() : kNoNode; }
  void on_refused(NodeId b) noexcept override {
    if (base_) base_->on_refused(b);
  }
  std::int64_t num_steps() const override { return base_ ? base_->num_steps() : 0; }
  std::size_t memory() const override { return base_ ? base_->memory() : 0; }
  void audit(BlockAudit& audit) const override {
    if (base_) base_->audit(audit);
  }
  void fingerprint(std::string& out) const override {
    if (base_) base_->fingerprint(out);
  }

  const char* fault() const { return fault_; }

  std::vector<NodeId> found;  // blocks found by the last admission
  std::int64_t num_hits = 0;  // further hits

 private:
  enum State : char { kUnknown, kUsed, kIdle };

  State& state(NodeId b) { return states_[b]; }
  // Each block of a run is the parent of the next, and all are of this partition.
  void check_run(Run run) noexcept {
    if (run.count < 0) fault_ = "a run has a negative length";
    for (std::int64_t i = 0; i < run.count; ++i) {
      if (!range_.holds(run.nodes[i]))
        fault_ = "a policy is notified of blocks of another partition";
      if (i && nodes_[run.nodes[i]].parent != run.nodes[i - 1])
        fault_ = "a run is not part of a chain";
    }
  }
  void move(NodeId b, State from, State to, const char* otherwise) noexcept {
    if (state(b) != from) fault_ = otherwise;
    state(b) = to;
  }

  std::unique_ptr<Policy> base_;
  Column<State> states_;
  const char* fault_ = nullptr;
};

}  // namespace blockmgr::testing
