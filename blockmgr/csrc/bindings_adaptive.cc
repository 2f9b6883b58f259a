// The estimator of the adaptive policy by itself, so that it can be compared with a slow one.
#include "bindings_core.h"
#include "reuse_model.h"

namespace blockmgr {

namespace {

int checked(int value, int bound, const char* name) {
  if (value < 0 || value >= bound)
    throw Error(ErrorKind::kValue, std::string(name) + " must be in [0, " + std::to_string(bound) +
                                       "), got " + std::to_string(value));
  return value;
}

int cell_of(int turn, int part, int gap, int size) {
  const std::array<int, 4>& values = BlockTraits::kValues;
  BlockTraits traits;
  traits.turn = BlockTraits::turn_bucket(turn);
  traits.part = checked(part, values[1], "part");
  traits.gap = checked(gap, values[2], "gap");
  traits.size = checked(size, values[3], "size");
  return traits.cell();
}

int checked_cell(int cell) { return checked(cell, BlockTraits::kCells, "cell"); }
int checked_level(int level) { return checked(level, ReuseModel::kLevels, "level"); }

}  // namespace

void bind_adaptive(nb::module_& m) {
  nb::class_<ReuseModel>(m, "ReuseModel")
      .def(nb::init<std::int64_t>(), nb::arg("unit"))
      .def_static("cell", cell_of)
      .def("end", [](ReuseModel& self, int cell, int level, std::int64_t age,
                     bool used) { self.end(checked_cell(cell), checked_level(level), age, used); })
      .def("clear_waiting", &ReuseModel::clear_waiting)
      .def("waiting",
           [](ReuseModel& self, int cell, int level, std::int64_t age) {
             self.waiting(checked_cell(cell), checked_level(level), age);
           })
      .def("fit", &ReuseModel::fit)
      .def("level", [](const ReuseModel& self, int cell) { return self.level(checked_cell(cell)); })
      .def("factor",
           [](const ReuseModel& self, int cell) { return self.factor(checked_cell(cell)); })
      .def("worth", [](const ReuseModel& self, int level, std::int64_t age) {
        return self.worth(checked_level(level), age);
      });
}

}  // namespace blockmgr
