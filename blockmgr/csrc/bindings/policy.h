// An eviction policy written in Python, as the core sees it.
#pragma once

#include "bindings/bindings.h"
#include "memory/errors.h"
#include "policies/policy.h"

namespace blockmgr {

// Tells a Python object what happens to blocks, and asks it for victims. The core is half-way
// through a call then, which must finish. So the first error is remembered; after it the object is
// not called any more, and the pool evicts the least recently used block. The object may allocate
// and take its time; it is for research.
class PythonPolicy final : public EachBlock<PythonPolicy> {
 public:
  PythonPolicy(Nodes& nodes, const PrefixIndex& index, Range range, nb::object policy)
      : EachBlock(nodes, index, range), policy_(std::move(policy)) {}

  // Dropping the last reference to the policy can run its __del__.
  ~PythonPolicy() override {
    in_python([this] { clear(); });
  }

  void cached(NodeId b) noexcept;
  void hit(NodeId b) noexcept;
  void idle(NodeId b) noexcept;
  void used(NodeId b) noexcept;
  void on_uncached(NodeId b, bool evicted) noexcept override;
  void on_moved(NodeId from, NodeId to) noexcept override;
  NodeId victim() noexcept override;
  void on_refused(NodeId victim) noexcept override;

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

// The policies written in Python of one core: one for each partition that has blocks, in order;
// none for those with a name. The core owns them.
struct PythonPolicies {
  // objects: in the same order.
  PolicyMaker maker(const nb::list& objects) {
    if (!nb::len(objects)) return nullptr;
    all.reserve(nb::len(objects));
    return [this, objects](Nodes& nodes, const PrefixIndex& index, Range range) {
      if (all.size() == nb::len(objects))
        throw Error(ErrorKind::kValue, "python_policies must be as many as there are partitions");
      auto made =
          std::make_unique<PythonPolicy>(nodes, index, range, nb::borrow(objects[all.size()]));
      all.push_back(made.get());
      return made;
    };
  }
  // The first thing that went wrong in any of them, an exception; or None.
  nb::object error() const {
    for (const PythonPolicy* policy : all)
      if (!policy->error().is_none()) return nb::borrow(policy->error());
    return nb::none();
  }

  std::vector<PythonPolicy*> all;
};

}  // namespace blockmgr
