#include "bindings/core.h"

#include <utility>

#include "bindings/partitions.h"

namespace blockmgr {

namespace {

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
  return shared_view(self.core.shown_tables,
                     nb::make_tuple(config.max_seqs, self.core.shown_width(config.row_width)));
}

nb::object group_tables(Core& self) {
  const Config& config = self.core.config();
  return shared_view(self.core.shown_groups, nb::make_tuple(config.groups.size(), config.max_seqs,
                                                              config.row_width));
}

nb::object seq_lens(Core& self) {
  return shared_view(self.core.shown_lengths, nb::make_tuple(self.core.config().max_seqs));
}

void bind_shared_memory(nb::module_& m) {
  static PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)},
                                {0, nullptr}};
  nb::class_<SharedMemory>(m, "SharedMemory", nb::type_slots(slots),
                           "What the block tables and sequence lengths are views of.");
}

void init_core(Core* self, nb::dict options) {
  Config config;
  read_options(options, config);
  new (self) Core(config, digest_option(options, config.block_size),
                  nb::cast<nb::list>(options["python_policies"]));
}

}  // namespace blockmgr
