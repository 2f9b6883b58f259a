// The table of an index of workers. Keys come as the bytes of native 64-bit numbers.
#include <cstring>
#include <vector>

#include "bindings/bindings.h"
#include "fleet/worker_table.h"
#include "memory/errors.h"
#include "memory/secret.h"
#include "sequences/arguments.h"

namespace blockmgr {
namespace {

constexpr int kMaxWorkers = 1 << 16;
constexpr std::int64_t kMaxIndexed = (std::int64_t{1} << 40) - 1;
constexpr std::int64_t kMaxPlace = (std::int64_t{1} << 62) - 1;

class Keys {
 public:
  explicit Keys(const nb::bytes& bytes) : bytes_(bytes) {
    if (bytes.size() % sizeof(std::uint64_t))
      throw Error(ErrorKind::kValue,
                  "keys must be 8 bytes each, got " + std::to_string(bytes.size()) + " bytes");
  }
  // The bytes of a Python object lie at a multiple of eight as a rule; a copy does otherwise.
  const std::uint64_t* data() {
    const char* at = bytes_.c_str();
    if (reinterpret_cast<std::uintptr_t>(at) % alignof(std::uint64_t) == 0)
      return reinterpret_cast<const std::uint64_t*>(at);
    copy_.resize(static_cast<std::size_t>(size()));
    std::memcpy(copy_.data(), at, bytes_.size());
    return copy_.data();
  }
  std::int64_t size() const {
    return static_cast<std::int64_t>(bytes_.size() / sizeof(std::uint64_t));
  }

 private:
  const nb::bytes& bytes_;
  std::vector<std::uint64_t> copy_;
};

std::uint64_t secret_of(nb::handle secret) {
  if (!secret.is_none()) return static_cast<std::uint64_t>(int_argument(secret, "secret"));
  return drawn_secret();
}

void init(WorkerTable* self, nb::handle max_workers, nb::handle max_blocks, nb::handle secret) {
  const auto workers = static_cast<int>(int_argument(max_workers, "max_workers", 1, kMaxWorkers));
  const std::int64_t blocks = int_argument(max_blocks, "max_blocks", 1, kMaxIndexed);
  new (self) WorkerTable(workers, blocks, secret_of(secret));
}

int worker_of(const WorkerTable& self, nb::handle worker) {
  return static_cast<int>(int_argument(worker, "worker", 0, self.max_workers() - 1));
}

int tier_of(nb::handle tier) {
  return static_cast<int>(int_argument(tier, "tier", 0, WorkerTable::kTiers - 1));
}

std::int64_t store(WorkerTable& self, nb::handle worker, nb::handle tier, const nb::bytes& keys) {
  Keys read(keys);
  return self.store(worker_of(self, worker), tier_of(tier), read.data(), read.size());
}

std::int64_t remove(WorkerTable& self, nb::handle worker, nb::handle tier, const nb::bytes& keys) {
  Keys read(keys);
  return self.remove(worker_of(self, worker), tier_of(tier), read.data(), read.size());
}

nb::object find(const WorkerTable& self, const nb::bytes& keys) {
  Keys read(keys);
  const Array<std::int32_t> found(static_cast<std::int64_t>(self.max_workers()) *
                                  WorkerTable::kTiers);
  self.find(read.data(), read.size(), found.numbers);
  return found.array;
}

nb::object has(const WorkerTable& self, nb::handle worker, const nb::bytes& keys) {
  Keys read(keys);
  const Array<bool> out(read.size());
  self.has(worker_of(self, worker), read.data(), read.size(), out.numbers);
  return out.array;
}

// The low 64 bits of digests, which are bytes, or whole numbers as others publish them; and how
// many bytes each has: 0 for numbers, -1 if they are not alike.
nb::tuple keys_of(const nb::list& digests) {
  const Py_ssize_t count = PyList_Size(digests.ptr());
  nb::object made_keys = made(nb::steal(
      PyBytes_FromStringAndSize(nullptr, count * static_cast<Py_ssize_t>(sizeof(std::uint64_t)))));
  char* const out = PyBytes_AsString(made_keys.ptr());
  std::int64_t length = 0;
  for (Py_ssize_t i = 0; i < count && i < PyList_Size(digests.ptr()); ++i) {
    PyObject* const digest = PyList_GetItem(digests.ptr(), i);  // borrowed, and nothing is run
    if (!digest) throw nb::python_error();
    std::uint64_t key = 0;
    std::int64_t own = 0;
    if (PyBytes_Check(digest)) {
      char* data;
      Py_ssize_t size;
      if (PyBytes_AsStringAndSize(digest, &data, &size)) throw nb::python_error();
      for (Py_ssize_t at = size < 8 ? 0 : size - 8; at < size; ++at)
        key = key << 8 | static_cast<std::uint8_t>(data[at]);
      own = size;
    } else if (PyLong_Check(digest) && !PyBool_Check(digest)) {
      key = PyLong_AsUnsignedLongLongMask(digest);
      if (key == ~std::uint64_t{0} && PyErr_Occurred()) throw nb::python_error();
    } else {
      raise(PyExc_TypeError, "digests must be bytes or ints, got " + kind_of(digest));
    }
    if (!i) length = own;
    if (own != length) length = -1;
    std::memcpy(out + i * static_cast<Py_ssize_t>(sizeof key), &key, sizeof key);
  }
  return nb::make_tuple(made_keys, length);
}

}  // namespace

void bind_fleet(nb::module_& m) {
  m.def("keys_of", keys_of);
  nb::class_<WorkerTable>(m, "WorkerTable", "Workers by block; documented as blockmgr.index.")
      .def("__init__", init, nb::arg(), nb::arg(), nb::arg() = nb::none())
      .def("store", store)
      .def("remove", remove)
      .def(
          "clear",
          [](WorkerTable& self, nb::handle worker, nb::handle tier, nb::handle from,
             nb::handle count) {
            return self.clear(worker_of(self, worker), tier_of(tier),
                              int_argument(from, "start", 0, kMaxPlace),
                              int_argument(count, "count", 1, kMaxPlace));
          },
          nb::arg(), nb::arg(), nb::arg() = nb::int_(0), nb::arg() = nb::int_(kMaxPlace))
      .def("find", find)
      .def("has", has)
      .def("num_blocks",
           [](const WorkerTable& self, nb::handle worker, nb::handle tier) {
             return self.num_blocks(worker_of(self, worker), tier_of(tier));
           })
      .def("num_entries", &WorkerTable::num_entries)
      .def("longest_run", &WorkerTable::longest_run)
      .def("memory_usage", &WorkerTable::memory);
}

}  // namespace blockmgr
