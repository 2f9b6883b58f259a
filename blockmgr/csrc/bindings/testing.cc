// Functions of the core that only tests need: a module of its own, which no wheel has.
//
// It does not check the numbers that tests pass.
#include "bindings/core.h"
#include "bindings/pool_core.h"

namespace blockmgr {

namespace {

nb::bytes to_bytes(const std::string& facts) { return nb::bytes(facts.data(), facts.size()); }

// Steps that searches for victims have taken.
std::int64_t victim_steps(Core& self) {
  return self.read([](const Sequences& core) {
    std::int64_t steps = 0;
    for (int i = 0; i < core.pool().num_partitions(); ++i)
      if (const Policy* policy = core.pool().policy(i)) steps += policy->num_steps();
    return steps;
  });
}

}  // namespace

NB_MODULE(_core_testing, m) {
  m.doc() = "What only tests need of the native core.";
  m.def(
      "fingerprint",
      [](Core& self) {
        return to_bytes(self.read([](const Sequences& core) { return core.fingerprint(); }));
      },
      nb::arg("core"));
  m.def(
      "fingerprint",
      [](PoolCore& self) {
        return to_bytes(self.read([](const BlockPool& core) { return core.fingerprint(); }));
      },
      nb::arg("core"));
  m.def("victim_steps", victim_steps, nb::arg("core"));
}

}  // namespace blockmgr
