// An eviction policy written in Python, as the core sees it.
#pragma once

#include "bindings/bindings.h"
#include "policies/policy.h"

namespace blockmgr {

// Tells a Python object what happens to blocks, and asks it for victims. The core is half-way
// through a call then, which must finish: whatever goes wrong is remembered, once, and from there
// on the object is left alone and the pool evicts the least recently used block. The object may
// allocate, and take its time; it is for research.
class PythonPolicy : public Policy {
 public:
  PythonPolicy(Blocks& blocks, const PrefixIndex& index, nb::object policy)
      : Policy(blocks, index), policy_(std::move(policy)) {}

  void on_cached(BlockId b) noexcept override;
  void on_hit(BlockId b) noexcept override;
  void on_idle(BlockId b) noexcept override;
  void on_used(BlockId b) noexcept override;
  void on_uncached(BlockId b, bool evicted) noexcept override;
  void on_moved(BlockId from, BlockId to) noexcept override;
  BlockId victim() noexcept override;
  void on_refused(BlockId victim) noexcept override;

  std::size_t memory() const override { return 0; }

  // The first thing that went wrong, an exception; or None.
  nb::handle error() const { return error_.is_valid() ? nb::handle(error_) : nb::none(); }
  // For the garbage collector: the references that can be part of a cycle.
  nb::handle policy() const { return policy_; }
  nb::handle held_error() const { return error_; }
  void clear() {
    policy_ = nb::none();
    error_.reset();
  }

 private:
  template <class Call>
  void tell(Call call) noexcept;
  void remember(nb::object error) noexcept;

  nb::object policy_;
  nb::object error_;
};

}  // namespace blockmgr
