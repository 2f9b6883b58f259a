// Extra keys as the bytes that vLLM digests, and back: texts, bytes, whole numbers, and tuples of
// them.
#include "identity/cbor.h"

#include <cstring>
#include <string>
#include <vector>

#include "bindings/bindings.h"
#include "memory/errors.h"

namespace blockmgr {
namespace {

using cbor::Major;

// Deeper than any key of vLLM's, and shallow enough for the stack.
constexpr int kMaxDepth = 8;

void append(std::vector<std::uint8_t>& out, Major major, std::uint64_t number) {
  std::uint8_t head[cbor::kMaxHead];
  out.insert(out.end(), head, cbor::put_head(major, number, head));
}

void append(std::vector<std::uint8_t>& out, Major major, const char* data, std::size_t size) {
  append(out, major, size);
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(data);
  out.insert(out.end(), bytes, bytes + size);
}

// Python's own conversions, so that no method of a subclass is called.
void append_item(std::vector<std::uint8_t>& out, nb::handle item, int depth) {
  PyObject* const value = item.ptr();
  if (PyUnicode_Check(value)) {
    Py_ssize_t size;
    const char* text = PyUnicode_AsUTF8AndSize(value, &size);
    if (!text) throw nb::python_error();
    append(out, cbor::kText, text, static_cast<std::size_t>(size));
  } else if (PyBytes_Check(value)) {
    append(out, cbor::kBytes, PyBytes_AsString(value),
           static_cast<std::size_t>(PyBytes_Size(value)));
  } else if (PyLong_Check(value) && !PyBool_Check(value)) {
    const std::int64_t number = int_argument(item, "keys");
    const bool negative = number < 0;
    append(out, negative ? cbor::kNegative : cbor::kUnsigned,
           static_cast<std::uint64_t>(negative ? -(number + 1) : number));
  } else if (PyTuple_Check(value)) {
    if (depth == kMaxDepth) throw Error(ErrorKind::kValue, "keys must not be nested so deeply");
    const Py_ssize_t size = PyTuple_Size(value);
    append(out, cbor::kArray, static_cast<std::uint64_t>(size));
    for (Py_ssize_t i = 0; i < size; ++i) append_item(out, PyTuple_GetItem(value, i), depth + 1);
  } else {
    raise(PyExc_TypeError, "keys must be str, bytes, int or tuples of them, got " + kind_of(item));
  }
}

nb::bytes cbor_of(nb::handle keys) {
  std::vector<std::uint8_t> out;
  append_item(out, keys, 0);
  return made(nb::bytes(out.data(), out.size()));
}

// Reads what append_item writes. All other bytes, such as those of a foreign sender, end in a
// ValueError.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  nb::object item(int depth) {
    const auto first = static_cast<std::uint8_t>(take(1)[0]);
    const std::uint64_t number = this->number(first & 31);
    switch (first >> 5) {
      case cbor::kUnsigned:
        return made(nb::steal(PyLong_FromUnsignedLongLong(number)));
      case cbor::kNegative:
        if (number > INT64_MAX) fail();
        return made(nb::steal(PyLong_FromLongLong(-1 - static_cast<std::int64_t>(number))));
      case cbor::kBytes:
        return bytes_of(take(number));
      case cbor::kText: {
        const std::string_view content = take(number);
        PyObject* text = PyUnicode_DecodeUTF8(content.data(), ssize(content), "strict");
        if (!text) throw nb::python_error();  // a ValueError as well
        return nb::steal(text);
      }
      case cbor::kArray:
        return array(number, depth);
      default:
        fail();
    }
  }
  void end() const {
    if (at_ != bytes_.size()) fail();
  }

 private:
  static Py_ssize_t ssize(std::string_view bytes) { return static_cast<Py_ssize_t>(bytes.size()); }
  [[noreturn]] static void fail() {
    throw Error(ErrorKind::kValue, "data must be the CBOR of texts, bytes, ints and arrays");
  }
  std::string_view take(std::uint64_t size) {
    if (size > bytes_.size() - at_) fail();
    const std::string_view taken = bytes_.substr(at_, static_cast<std::size_t>(size));
    at_ += static_cast<std::size_t>(size);
    return taken;
  }
  std::uint64_t number(unsigned info) {
    if (info < 24) return info;
    if (info > 27) fail();
    std::uint64_t number = 0;
    for (const char byte : take(std::uint64_t{1} << (info - 24)))
      number = number << 8 | static_cast<std::uint8_t>(byte);
    return number;
  }
  nb::object array(std::uint64_t count, int depth) {
    // An item has a byte at least, so the count is bounded by what is there.
    if (depth == kMaxDepth || count > bytes_.size() - at_) fail();
    nb::object items = made(nb::steal(PyTuple_New(static_cast<Py_ssize_t>(count))));
    for (std::uint64_t i = 0; i < count; ++i) {
      nb::object each = item(depth + 1);
      if (PyTuple_SetItem(items.ptr(), static_cast<Py_ssize_t>(i), each.release().ptr()))
        throw nb::python_error();
    }
    return items;
  }

  std::string_view bytes_;
  std::size_t at_ = 0;
};

nb::object cbor_items(const nb::bytes& data) {
  Reader reader({data.c_str(), data.size()});
  nb::object items = reader.item(0);
  reader.end();
  return items;
}

}  // namespace

void bind_cbor(nb::module_& m) {
  m.def("cbor_of", cbor_of);
  m.def("cbor_items", cbor_items);
}

}  // namespace blockmgr
