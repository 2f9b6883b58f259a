#include "bindings/policy.h"

#include "memory/errors.h"

namespace blockmgr {

void PythonPolicy::remember(nb::object error) noexcept {
  error_ = std::move(error);
  // An interrupt is not the policy's fault, and the caller waits for it: raise it again.
  if (PyErr_GivenExceptionMatches(error_.ptr(), PyExc_KeyboardInterrupt)) PyErr_SetInterrupt();
}

template <class Call>
void PythonPolicy::tell(Call call) noexcept {
  if (error_.is_valid() || policy_.is_none()) return;
  try {
    call();
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

void PythonPolicy::cached(BlockId b) noexcept {
  const NodeId parent = blocks_[b].parent;
  const bool full = blocks_[b].key_tokens == blocks_.block_size;
  const auto size = static_cast<std::size_t>(full ? blocks_.digest_size : 0);
  tell([&] {
    policy_.attr("on_cached")(b, is_root(parent) ? kNoBlock : parent,
                              nb::bytes(blocks_.digest(b), size));
  });
}

void PythonPolicy::hit(BlockId b) noexcept {
  tell([&] { policy_.attr("on_hit")(b); });
}

void PythonPolicy::idle(BlockId b) noexcept {
  tell([&] { policy_.attr("on_idle")(b); });
}

void PythonPolicy::used(BlockId b) noexcept {
  tell([&] { policy_.attr("on_used")(b); });
}

void PythonPolicy::on_uncached(BlockId b, bool evicted) noexcept {
  tell([&] { policy_.attr("on_uncached")(b, evicted); });
}

void PythonPolicy::on_moved(BlockId from, BlockId to) noexcept {
  tell([&] { policy_.attr("on_moved")(from, to); });
}

BlockId PythonPolicy::victim() noexcept {
  BlockId victim = kNoBlock;
  tell([&] {
    const std::int64_t id = int_argument(policy_.attr("victim")(), "victim");
    const bool exists = id >= range_.first && id < range_.last_end();
    const Block* block = exists ? &blocks_[static_cast<BlockId>(id)] : nullptr;
    if (!block || !block->keyed() || block->used() || block->fence)
      throw Error(ErrorKind::kValue, "victim must be an idle block, got " + std::to_string(id));
    if (block->first_child >= 0)
      throw Error(ErrorKind::kValue, "victim must be a block without cached children, got " +
                                         std::to_string(id) + ", which block " +
                                         std::to_string(block->first_child) + " continues");
    victim = static_cast<BlockId>(id);
  });
  return victim;
}

void PythonPolicy::on_refused(BlockId victim) noexcept {
  tell([&] {
    throw Error(ErrorKind::kValue, "victim must be an idle block, got " + std::to_string(victim) +
                                       ", which is retained: on_used came last");
  });
}

}  // namespace blockmgr
