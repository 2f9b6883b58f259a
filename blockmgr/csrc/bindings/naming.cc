// The Python face of calls by digest.
#include "bindings/core.h"
#include "bindings/partitions.h"

namespace blockmgr {
namespace {

// digests: the names of all blocks in one, each of this size.
BlockNames names_argument(const nb::bytes& digests, int size, bool leading, nb::handle name) {
  const auto length = static_cast<std::int64_t>(digests.size());
  if (size < 1 || length % size)
    throw Error(ErrorKind::kValue, "digests must have " + std::to_string(size) + " bytes each");
  return {reinterpret_cast<const std::uint8_t*>(digests.data()), length / size, size, leading,
          bytes_argument(name, "namespace", 0)};
}

std::int64_t most_argument(nb::handle max_blocks) {
  if (max_blocks.is_none()) return INT64_MAX;
  const std::int64_t most = int_argument(max_blocks, "max_blocks");
  if (most < 0)
    throw Error(ErrorKind::kValue, "max_blocks must be at least 0, got " + std::to_string(most));
  return most;
}

nb::list digests_of(const std::vector<std::uint8_t>& digests, std::size_t size) {
  nb::list result = made(nb::list());
  for (std::size_t at = 0; at < digests.size(); at += size)
    result.append(made(nb::bytes(digests.data() + at, size)));
  return result;
}

}  // namespace

nb::object retain_named(Core& self, const nb::bytes& digests, int size, bool leading,
                        nb::handle name, int level, double ttl, nb::handle max_blocks) {
  const BlockNames names = names_argument(digests, size, leading, name);
  check_retention(level, ttl);
  const std::int64_t most = most_argument(max_blocks);
  nb::object blocks;
  self.core.retain_named(names, level, ttl, most, announce_to<std::int64_t>(blocks));
  return blocks;
}

// The fields of a DigestPin, or None: no prompt could use any of them.
nb::object pin_named(Core& self, const nb::bytes& digests, int size, bool leading, nb::handle name,
                     nb::handle max_blocks) {
  const BlockNames names = names_argument(digests, size, leading, name);
  const std::int64_t most = most_argument(max_blocks);
  // The tuple is made before the call: that may run the garbage collector, and with it code that
  // calls the manager. Numbers and bytes may not.
  const nb::object pin = made(nb::steal(PyTuple_New(5)));
  bool is_pinned = false;
  self.core.pin_named(names, most, [&](const Naming::NamedPin& facts) {
    const Nodes& nodes = self.core.nodes();
    PyObject* const items[] = {
        PyLong_FromLongLong(facts.id), PyLong_FromLongLong(facts.num_blocks),
        PyLong_FromLongLong(facts.num_cached), PyLong_FromLongLong(facts.num_found),
        PyBytes_FromStringAndSize(reinterpret_cast<const char*>(nodes.digest(facts.tail)),
                                  nodes.digest_size)};
    for (int i = 0; i < 5; ++i) PyTuple_SetItem(pin.ptr(), i, items[i]);
    if (PyErr_Occurred()) throw nb::python_error();
    is_pinned = true;
  });
  if (!is_pinned) return nb::none();
  return pin;
}

nb::list cached_digests(Core& self, nb::handle handle) {
  const std::int64_t h = handle_argument(handle);
  const auto digests = self.read([&](const Sequences& core) { return core.cached_digests(h); });
  return digests_of(digests, static_cast<std::size_t>(self.core.nodes().digest_size));
}

nb::object session_digests(Core& self, nb::handle name, nb::handle session) {
  const std::string_view namespace_name = bytes_argument(name, "namespace", 0);
  const std::string_view own = session_argument(session, 1);
  const auto digests = self.read(
      [&](const Sequences& core) { return core.session_digests(namespace_name, own); });
  if (!digests) return nb::none();
  return digests_of(*digests, static_cast<std::size_t>(self.core.nodes().digest_size));
}

}  // namespace blockmgr
