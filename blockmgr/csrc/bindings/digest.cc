#include "bindings/digest.h"

#include <cstring>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "identity/index.h"

namespace blockmgr {

namespace {

// xxh3_128 through the C function of the library that Python's xxhash wraps.
class NativeXxh3 : public Digester {
 public:
  static constexpr int kSize = 16;
  // XXH128_hash_t of the library, low half first.
  struct Halves {
    std::uint64_t low;
    std::uint64_t high;
  };
  using Function = Halves (*)(const void*, std::size_t);

  NativeXxh3(Function function, std::size_t plain_length)
      : function_(function), message_(plain_length) {}
  int size() const override { return kSize; }
  std::uint8_t* message(std::size_t length) override {
    if (message_.size() < length) message_.resize(length);
    return message_.data();
  }
  void digest(std::size_t length, std::uint8_t* out) override {
    const Halves halves = function_(message_.data(), length);
    store_big_endian(halves.high, out);
    store_big_endian(halves.low, out + 8);
  }

 private:
  // A loop that compilers turn into one swapped store.
  static void store_big_endian(std::uint64_t number, std::uint8_t* out) {
    for (int i = 0; i < 8; ++i) out[i] = static_cast<std::uint8_t>(number >> (56 - 8 * i));
  }

  Function function_;
  std::vector<std::uint8_t> message_;
};

}  // namespace

PythonDigest::PythonDigest(nb::object function, bool trusted, int size, std::size_t plain_length)
    : function_(std::move(function)),
      trusted_(trusted),
      size_(size),
      plain_length_(plain_length),
      plain_(make_buffer(plain_length)) {}

PythonDigest::Buffer PythonDigest::make_buffer(std::size_t length) {
  Buffer buffer;
  buffer.bytes = nb::steal(PyByteArray_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(length)));
  if (!buffer.bytes.is_valid()) throw nb::python_error();
  buffer.data = reinterpret_cast<std::uint8_t*>(PyByteArray_AsString(buffer.bytes.ptr()));
  return buffer;
}

std::uint8_t* PythonDigest::message(std::size_t length) {
  if (length == plain_length_) return plain_.data;
  other_ = make_buffer(length);
  return other_.data;
}

void PythonDigest::digest(std::size_t length, std::uint8_t* out) {
  const Buffer& buffer = length == plain_length_ ? plain_ : other_;
  nb::object copy;
  PyObject* argument = buffer.bytes.ptr();
  if (!trusted_) {
    copy = nb::bytes(buffer.data, length);
    argument = copy.ptr();
  }
  const nb::object result =
      nb::steal(nb::detail::vectorcall(function_.ptr(), &argument, 1, nullptr));
  if (!result.is_valid()) throw nb::python_error();
  if (!PyBytes_Check(result.ptr())) {
    PyErr_Format(PyExc_TypeError, "digest must return bytes, got %U",
                 nb::object(result.type().attr("__name__")).ptr());
    throw nb::python_error();
  }
  char* data;
  Py_ssize_t size;
  if (PyBytes_AsStringAndSize(result.ptr(), &data, &size)) throw nb::python_error();
  if (size != size_) {
    PyErr_Format(PyExc_ValueError, "digest must always return %d bytes, got %zd", size_, size);
    throw nb::python_error();
  }
  std::memcpy(out, data, static_cast<std::size_t>(size));
}

DigestOption digest_option(const nb::dict& options, int block_size) {
  if (!nb::cast<bool>(options["prefix_caching"])) return {};
  const int size = int_option(options, "digest_size", kMinDigest, kMaxDigest);
  const std::size_t plain_length =
      static_cast<std::size_t>(size) + static_cast<std::size_t>(block_size) * sizeof(Token);
  if (const std::int64_t address = int_argument(options["xxh3_address"], "xxh3_address")) {
    const auto function = reinterpret_cast<NativeXxh3::Function>(address);
    return {std::make_unique<NativeXxh3>(function, plain_length), nullptr};
  }
  auto python = std::make_unique<PythonDigest>(nb::borrow(options["digest"]),
                                               nb::cast<bool>(options["digest_is_trusted"]), size,
                                               plain_length);
  PythonDigest* const called = python.get();
  return {std::move(python), called};
}

}  // namespace blockmgr
