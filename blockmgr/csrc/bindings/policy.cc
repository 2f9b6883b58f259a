#include "bindings/policy.h"

#include "memory/errors.h"

namespace blockmgr {

void PythonPolicy::remember(nb::object error) noexcept {
  error_ = std::move(error);
  // An interrupt is not the policy's fault, and the caller waits for it, so it is raised again.
  if (PyErr_GivenExceptionMatches(error_.ptr(), PyExc_KeyboardInterrupt)) PyErr_SetInterrupt();
}

template <class Call>
void PythonPolicy::tell(Call call) noexcept {
  if (error_.is_valid() || policy_.is_none()) return;
  try {
    in_python(call);
  } catch (nb::python_error& e) {
    remember(nb::borrow(e.value()));
  } catch (...) {  // what int_argument and the casts to Python throw
    translate_errors(std::current_exception(), nullptr);
    if (PyErr_Occurred()) {
      nb::python_error e;
      remember(nb::borrow(e.value()));
    } else {
      remember(nb::borrow(PyExc_SystemError));
    }
  }
}

void PythonPolicy::cached(NodeId b) noexcept {
  const NodeId parent = nodes_[b].parent;
  const bool full = nodes_[b].key_tokens == nodes_.block_size;
  const auto size = static_cast<std::size_t>(full ? nodes_.digest_size : 0);
  tell([&] {
    policy_.attr("on_cached")(nodes_.name(b), nodes_.name(std::max(parent, kNoNode)),
                              nb::bytes(nodes_.digest(b), size));
  });
}

void PythonPolicy::hit(NodeId b) noexcept {
  tell([&] { policy_.attr("on_hit")(nodes_.name(b)); });
}

void PythonPolicy::idle(NodeId b) noexcept {
  tell([&] { policy_.attr("on_idle")(nodes_.name(b)); });
}

void PythonPolicy::used(NodeId b) noexcept {
  tell([&] { policy_.attr("on_used")(nodes_.name(b)); });
}

void PythonPolicy::on_uncached(NodeId b, bool evicted) noexcept {
  tell([&] { policy_.attr("on_uncached")(nodes_.name(b), evicted); });
}

void PythonPolicy::on_moved(NodeId from, NodeId to) noexcept {
  tell([&] { policy_.attr("on_moved")(nodes_.name(from), nodes_.name(to)); });
}

NodeId PythonPolicy::victim() noexcept {
  NodeId victim = kNoNode;
  tell([&] {
    const std::int64_t id = int_argument(policy_.attr("victim")(), "victim");
    const bool exists = id >= 0 && id < nodes_.num_blocks;
    const NodeId chosen = exists ? nodes_.owner(id) : kNoNode;
    if (!range_.holds(chosen) || !nodes_.idle(chosen))
      throw Error(ErrorKind::kValue, "victim must be an idle block, got " + std::to_string(id));
    if (const NodeId child = nodes_[chosen].first_child; child >= 0)
      throw Error(ErrorKind::kValue, "victim must be a block without cached children, got " +
                                         std::to_string(id) + ", which block " +
                                         std::to_string(nodes_.name(child)) + " continues");
    victim = chosen;
  });
  return victim;
}

void PythonPolicy::on_refused(NodeId victim) noexcept {
  tell([&] {
    throw Error(ErrorKind::kValue, "victim must be an idle block, got " +
                                       std::to_string(nodes_.name(victim)) +
                                       ", which is retained: on_used came last");
  });
}

}  // namespace blockmgr
