#include "bindings/core.h"

#include <utility>

#include "bindings/shares.h"

namespace blockmgr {

namespace {

constexpr int kMaxStepsInFlight = 200;
constexpr int kMaxWindow = 1 << 24;

// Memory that an array shares. It keeps only that alive, not the manager: arrays take no part in
// garbage collection, so a cycle through one that held the manager would never be found.
struct SharedMemory {
  std::shared_ptr<void> memory;
  void* data;
  std::size_t bytes;
};

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  if (!nb::inst_ready(self)) {
    PyErr_SetString(PyExc_BufferError, "there is no memory behind this");
    return -1;
  }
  const SharedMemory* shared = nb::inst_ptr<SharedMemory>(self);
  return PyBuffer_FillInfo(view, self, shared->data, static_cast<Py_ssize_t>(shared->bytes), 0,
                           flags);
}

// Made by NumPy itself, as new_array says.
nb::object shared_view(const ZeroedArray<std::int32_t>& array, const nb::tuple& shape) {
  const nb::object memory = nb::cast(SharedMemory{array.memory(), array.data(), array.bytes()});
  nb::object view =
      nb::steal(PyObject_CallFunction(known().ndarray, "OsO", shape.ptr(), "int32", memory.ptr()));
  return made(std::move(view));
}

}  // namespace

nb::object block_tables(Core& self) {
  const Config& config = self.core.config();
  return shared_view(self.core.shown_tables(), nb::make_tuple(config.max_seqs, config.row_width));
}

nb::object group_tables(Core& self) {
  const Config& config = self.core.config();
  return shared_view(self.core.shown_groups(), nb::make_tuple(config.groups.size(), config.max_seqs,
                                                              config.row_width));
}

nb::object seq_lens(Core& self) {
  return shared_view(self.core.shown_lengths(), nb::make_tuple(self.core.config().max_seqs));
}

void bind_shared_memory(nb::module_& m) {
  static PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)},
                                {0, nullptr}};
  nb::class_<SharedMemory>(m, "SharedMemory", nb::type_slots(slots),
                           "What the block tables and sequence lengths are views of.");
}

int int_option(const nb::dict& options, const char* name, int low, int high) {
  const std::int64_t value = int_argument(options[name], name);
  if (value < low || value > high)
    throw Error(ErrorKind::kValue, std::string(name) + " must be in [" + std::to_string(low) +
                                       ", " + std::to_string(high) + "], got " +
                                       std::to_string(value));
  return static_cast<int>(value);
}

void init_core(Core* self, nb::dict options) {
  const auto whole = [&](const char* name, int low, int high) {
    return int_option(options, name, low, high);
  };
  const auto flag = [&](const char* name) { return nb::cast<bool>(options[name]); };
  Config config;
  read_store_options(options, config);
  config.max_seqs = whole("max_seqs", 1, INT32_MAX);
  config.row_width = whole("row_width", 1, INT32_MAX / config.block_size);
  config.prefix_caching = flag("prefix_caching");
  config.remap = flag("remap");
  config.min_partial_tokens = whole("min_partial_tokens", 0, config.block_size);
  config.watermark_blocks = whole("watermark_blocks", 0, config.num_blocks);
  config.steps_in_flight = whole("steps_in_flight", 0, kMaxStepsInFlight);
  config.early_commit = flag("early_commit");
  config.hit_rate_window = whole("hit_rate_window", 0, kMaxWindow);
  config.max_rollback = whole("max_rollback", 0, INT32_MAX);
  config.halfway_stop_tokens = whole("halfway_stop_tokens", 0, INT32_MAX);
  config.prompt_end_stop = whole("prompt_end_stop", -1, INT32_MAX);
  config.full_group = whole("full_group", 0, INT32_MAX);
  // (kind, width) of each, without the one whose blocks are the nodes' own.
  for (const nb::handle group : nb::cast<nb::list>(options["groups"]))
    config.groups.push_back({static_cast<Group::Kind>(nb::cast<int>(group[0])),
                             nb::cast<std::int64_t>(group[1])});
  new (self)
      Core(config, digest_option(options, config.block_size),
           nb::cast<nb::list>(options["python_policies"]));
}

}  // namespace blockmgr
