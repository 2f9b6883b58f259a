// Functions of the core that only tests need: a module of its own, which no wheel has.
//
// It does not check the numbers that tests pass.
#include "bindings/core.h"
#include "bindings/pool_core.h"
#include "policies/reuse_model.h"

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

int cell_of(int turn, int part, int gap, int computed) {
  BlockTraits traits;
  traits.turn = BlockTraits::turn_bucket(turn);
  traits.part = static_cast<std::uint8_t>(part);
  traits.gap = static_cast<std::uint8_t>(gap);
  traits.computed = static_cast<std::uint8_t>(computed);
  return traits.cell();
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
  // The estimator of the adaptive policy by itself, to be compared with a slow one.
  nb::class_<ReuseModel>(m, "ReuseModel")
      .def(nb::init<std::int64_t>(), nb::arg("unit"))
      .def_static("cell", cell_of, nb::arg("turn"), nb::arg("part"), nb::arg("gap"),
                  nb::arg("computed"))
      .def("end", &ReuseModel::end, nb::arg("cell"), nb::arg("level"), nb::arg("age"),
           nb::arg("used"))
      .def("clear_waiting", &ReuseModel::clear_waiting)
      .def("waiting", &ReuseModel::waiting, nb::arg("cell"), nb::arg("level"), nb::arg("age"))
      .def("fit", &ReuseModel::fit)
      .def("level", &ReuseModel::level, nb::arg("cell"))
      .def("factor", &ReuseModel::factor, nb::arg("cell"))
      .def("worth", &ReuseModel::worth, nb::arg("level"), nb::arg("age"));
}

}  // namespace blockmgr
