// The estimator of the adaptive policy by itself, so that it can be compared with a slow one.
#include "bindings/core.h"
#include "policies/reuse_model.h"

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

std::int64_t at_least(std::int64_t value, std::int64_t least, const char* name) {
  if (value < least)
    throw Error(ErrorKind::kValue, std::string(name) + " must be at least " +
                                       std::to_string(least) + ", got " + std::to_string(value));
  return value;
}
std::int64_t checked_age(std::int64_t age) { return at_least(age, 0, "age"); }

void init(ReuseModel* self, std::int64_t unit) {
  new (self) ReuseModel(at_least(unit, 1, "unit"));
}

}  // namespace

void bind_adaptive(nb::module_& m) {
  // Nothing is converted: nanobind drops whatever error that raises, an interrupt too.
  const auto exact = [](const char* name) { return nb::arg(name).noconvert(); };
  nb::class_<ReuseModel>(m, "ReuseModel")
      .def("__init__", init, exact("unit"))
      .def_static("cell", cell_of, exact("turn"), exact("part"), exact("gap"), exact("size"))
      .def(
          "end",
          [](ReuseModel& self, int cell, int level, std::int64_t age, bool used) {
            self.end(checked_cell(cell), checked_level(level), checked_age(age), used);
          },
          exact("cell"), exact("level"), exact("age"), exact("used"))
      .def("clear_waiting", &ReuseModel::clear_waiting)
      .def(
          "waiting",
          [](ReuseModel& self, int cell, int level, std::int64_t age) {
            self.waiting(checked_cell(cell), checked_level(level), checked_age(age));
          },
          exact("cell"), exact("level"), exact("age"))
      .def("fit", &ReuseModel::fit)
      .def(
          "level", [](const ReuseModel& self, int cell) { return self.level(checked_cell(cell)); },
          exact("cell"))
      .def(
          "factor",
          [](const ReuseModel& self, int cell) { return self.factor(checked_cell(cell)); },
          exact("cell"))
      .def(
          "worth",
          [](const ReuseModel& self, int level, std::int64_t age) {
            return self.worth(checked_level(level), checked_age(age));
          },
          exact("level"), exact("age"));
}

}  // namespace blockmgr
