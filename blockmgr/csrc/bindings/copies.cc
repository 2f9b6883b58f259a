// The Python face of copy_order.h.
#include <optional>

#include "bindings/bindings.h"
#include "memory/errors.h"
#include "sequences/copy_order.h"

namespace blockmgr {

namespace {

// Where copies are packed: int32[n, 3], writable and contiguous. Made after every other argument
// has been read, because code that these run could resize the array. Read as a buffer, because
// nanobind ends the process where it has no memory to read an array.
class Rows {
 public:
  explicit Rows(nb::handle array) {
    constexpr const char* kWanted =
        "out must be a writable, contiguous array int32[n, 3] of at least one row";
    Py_buffer& view = export_.view;
    export_buffer(array, view, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE | PyBUF_FORMAT, kWanted);
    export_.held = true;
    const std::string_view format = view.format ? view.format : "B";
    const bool whole = view.itemsize == 4 && (format == "i" || format == "l");
    // The number of packed copies goes into the first row.
    if (!whole || view.ndim != 2 || view.shape[1] != 3 || view.shape[0] < 1)
      raise(PyExc_TypeError, kWanted);
  }
  std::int32_t* data() const { return static_cast<std::int32_t*>(export_.view.buf); }
  std::int64_t size() const { return export_.view.shape[0]; }

 private:
  Export export_;
};

// A checker, and buffers that the conversions of its calls reuse.
struct Checker {
  Checker(std::int32_t num_sources, std::int32_t num_destinations, std::int32_t block_size,
          bool one_pool)
      : most(num_destinations), lists(num_sources, num_destinations, block_size, one_pool) {}
  std::int64_t most;  // numbers that room is kept for
  CopyChecker lists;
  std::vector<std::int64_t> sources;
  std::vector<std::int64_t> destinations;
  std::vector<std::int64_t> num_tokens;
};

// Runs what may find a fault in a list, as the CopyError that it is in Python.
template <class Work>
auto with_copy_errors(Work work) {
  try {
    return work();
  } catch (const CopyFault& fault) {
    const nb::handle type = known().copy;
    const nb::object pair = fault.pair < 0 ? nb::none() : made(nb::object(nb::int_(fault.pair)));
    const nb::object error = in_python([&] { return nb::object(type(pair, fault.problem)); });
    PyErr_SetObject(type.ptr(), error.ptr());
    throw nb::python_error();
  }
}

void check_sizes(std::int64_t sources, std::int64_t others, const char* name) {
  if (sources != others)
    throw CopyFault(-1, std::string(name) + " must be as many as sources (" +
                            std::to_string(sources) + "), got " + std::to_string(others));
}

std::int32_t positive_argument(nb::handle value, const char* name) {
  return static_cast<std::int32_t>(int_argument(value, name, 1, INT32_MAX));
}

void init(Checker* self, nb::handle num_blocks, nb::handle block_size,
          nb::handle num_destinations) {
  const std::int32_t blocks = positive_argument(num_blocks, "num_blocks");
  const std::int32_t tokens = positive_argument(block_size, "block_size");
  const bool one_pool = num_destinations.is_none();
  const std::int32_t destinations =
      one_pool ? blocks : positive_argument(num_destinations, "num_destinations");
  new (self) Checker(blocks, destinations, tokens, one_pool);
}

std::int64_t check(Checker& self, nb::handle sources, nb::handle destinations,
                   nb::handle num_tokens, nb::handle out) {
  const Ints from(sources, "sources", self.sources, self.most);
  const Ints to(destinations, "destinations", self.destinations, self.most);
  const bool whole = num_tokens.is_none();
  std::optional<Ints> tokens;
  if (!whole) tokens.emplace(num_tokens, "num_tokens", self.num_tokens, self.most);
  const Rows rows(out);
  with_copy_errors([&] {
    check_sizes(from.size(), to.size(), "destinations");
    if (!whole) check_sizes(from.size(), tokens->size(), "num_tokens");
    self.lists.check(from.data(), to.data(), whole ? nullptr : tokens->data(), from.size());
  });
  self.lists.pack(0, rows.data(), rows.size());
  return self.lists.size();
}

std::int64_t check_blocks(Checker& self, nb::handle blocks, nb::handle out) {
  const Ints ids(blocks, "blocks", self.destinations, self.most);
  const Rows rows(out);
  with_copy_errors([&] { self.lists.check_blocks(ids.data(), ids.size()); });
  self.lists.pack(0, rows.data(), rows.size());
  return self.lists.size();
}

std::int64_t pack(Checker& self, nb::handle start, nb::handle out) {
  const std::int64_t first = int_argument(start, "start");
  const Rows rows(out);
  check_bounds("start", first, 0, self.lists.size());
  return self.lists.pack(first, rows.data(), rows.size());
}

nb::tuple order(nb::handle sources, nb::handle destinations, nb::handle num_blocks,
                Exact<bool> sequential) {
  const std::int32_t blocks = positive_argument(num_blocks, "num_blocks");
  std::vector<std::int64_t> homes[2];
  const Ints from(sources, "sources", homes[0], 0);
  const Ints to(destinations, "destinations", homes[1], 0);
  const MoveGroups groups = with_copy_errors([&] {
    check_sizes(from.size(), to.size(), "destinations");
    return order_copies(from.data(), to.data(), from.size(), blocks, sequential);
  });
  const Array<std::int32_t> moves(2 * static_cast<std::int64_t>(groups.moves.size()));
  std::int32_t* out = moves.numbers;
  for (const Move& move : groups.moves) {
    *out++ = move.source;
    *out++ = move.destination;
  }
  return nb::make_tuple(array_of(groups.starts), moves.array.attr("reshape")(-1, 2));
}

// The numbers of any container that a manager takes, in an array of their own.
nb::object int_array(nb::handle numbers, const std::string& name) {
  std::vector<std::int64_t> home;
  const Ints from(numbers, name.c_str(), home, 0);
  const Array<std::int64_t> own(from.size());
  std::copy_n(from.data(), from.size(), own.numbers);
  return own.array;
}

}  // namespace

void bind_copies(nb::module_& m) {
  nb::class_<Checker>(m, "CopyChecker",
                      "Checks lists of block copies and packs them for a launch; kept by "
                      "blockmgr.kv.KVBlocks.")
      .def("__init__", init, nb::arg().none(), nb::arg().none(), nb::arg() = nb::none())
      .def("check", check)
      .def("check_blocks", check_blocks)
      .def("pack", pack);
  m.def("int_array", int_array);
  m.def("order_copies", order);
}

}  // namespace blockmgr
