// A policy that stands before the one under test and checks what the pool tells it.
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
  Witness(Blocks& blocks, const PrefixIndex& index, std::unique_ptr<Policy> base)
      : Policy(blocks, index),
        base_(std::move(base)),
        states_(static_cast<std::size_t>(blocks.count)) {
    found.reserve(static_cast<std::size_t>(blocks.count));
  }

  std::uint32_t admitted(const BlockId* blocks, std::int64_t count,
                         std::int64_t num_blocks) noexcept override {
    found.assign(blocks, blocks + count);
    return base_ ? base_->admitted(blocks, count, num_blocks) : 0;
  }
  void enter(std::uint32_t context) noexcept override {
    if (base_) base_->enter(context);
  }
  void on_cached(BlockId b) noexcept override {
    move(b, kUnknown, kUsed, "is cached twice");
    if (base_) base_->on_cached(b);
  }
  void on_hit(BlockId b) noexcept override {
    ++num_hits;
    if (state(b) == kUnknown) fault_ = "what is not cached is found";
    if (base_) base_->on_hit(b);
  }
  void on_idle(BlockId b) noexcept override {
    move(b, kUsed, kIdle, "becomes idle and was not in use");
    if (base_) base_->on_idle(b);
  }
  void on_used(BlockId b) noexcept override {
    move(b, kIdle, kUsed, "is used and was not idle");
    if (base_) base_->on_used(b);
  }
  void on_touched(BlockId b) noexcept override {
    if (state(b) != kIdle) fault_ = "what is not idle is touched";
    if (base_) base_->on_touched(b);
  }
  void on_moved(BlockId from, BlockId to) noexcept override {
    move(to, kUnknown, kUsed, "what is cached takes over a key");
    move(from, kUsed, kUnknown, "a key passes from a block that is not in use");
    if (base_) base_->on_moved(from, to);
  }
  void on_uncached(BlockId b, bool evicted) noexcept override {
    if (state(b) == kUnknown) fault_ = "what was not cached is lost";
    if (evicted && state(b) != kIdle) fault_ = "what is in use is evicted";
    if (blocks_[b].first_child >= 0) fault_ = "a block is lost before its children";
    state(b) = kUnknown;
    if (base_) base_->on_uncached(b, evicted);
  }
  BlockId victim() noexcept override { return base_ ? base_->victim() : kNoBlock; }
  void on_refused(BlockId b) noexcept override {
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

  std::vector<BlockId> found;  // by the last admission
  std::int64_t num_hits = 0;   // besides those

 private:
  enum State : char { kUnknown, kUsed, kIdle };

  State& state(BlockId b) { return states_[static_cast<std::size_t>(b)]; }
  void move(BlockId b, State from, State to, const char* otherwise) noexcept {
    if (state(b) != from) fault_ = otherwise;
    state(b) = to;
  }

  std::unique_ptr<Policy> base_;
  std::vector<State> states_;
  const char* fault_ = nullptr;
};

}  // namespace blockmgr::testing
