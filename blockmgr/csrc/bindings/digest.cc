#include "bindings/digest.h"

#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "identity/cbor.h"
#include "identity/index.h"
#include "identity/xxh3.h"

namespace blockmgr {

namespace {

// SHA-256 through OpenSSL's EVP, from the library that the interpreter's own hashlib uses. Its
// functions are found at run time, so nothing is linked.
class EvpSha256 : public Digester {
 public:
  static constexpr int kSize = 32;
  // Opaque here, as in OpenSSL.
  struct Context;
  struct Method;
  struct Functions {
    Context* (*make)();
    void (*free)(Context*);
    int (*init)(Context*, const Method*, void* engine);
    int (*update)(Context*, const void*, std::size_t);
    int (*final)(Context*, unsigned char*, unsigned int*);
    const Method* method;
  };

  EvpSha256(const Functions& functions, std::size_t plain_length)
      : functions_(functions), context_(functions.make(), functions.free), message_(plain_length) {
    if (!context_) throw std::bad_alloc();
    // Looked up here, once: without a method, init starts again with the one that is there.
    if (!functions_.init(context_.get(), functions_.method, nullptr)) fail();
  }
  int size() const override { return kSize; }
  std::uint8_t* message(std::size_t length) override {
    if (message_.size() < length) message_.resize(length);
    return message_.data();
  }
  void digest(std::size_t length, std::uint8_t* out) override {
    if (!functions_.init(context_.get(), nullptr, nullptr) ||
        !functions_.update(context_.get(), message_.data(), length) ||
        !functions_.final(context_.get(), out, nullptr))
      fail();
  }

 private:
  [[noreturn]] static void fail() {
    throw std::runtime_error("OpenSSL refuses to compute SHA-256");
  }

  Functions functions_;
  std::unique_ptr<Context, void (*)(Context*)> context_;
  std::vector<std::uint8_t> message_;
};

// The addresses that blockmgr.digest has found, or none.
EvpSha256::Functions evp_functions(nb::handle addresses) {
  EvpSha256::Functions functions{};
  if (addresses.is_none()) return functions;
  const auto at = [&](std::size_t i) {
    return static_cast<std::uintptr_t>(int_argument(addresses[i], "evp"));
  };
  functions.make = reinterpret_cast<decltype(functions.make)>(at(0));
  functions.free = reinterpret_cast<decltype(functions.free)>(at(1));
  functions.init = reinterpret_cast<decltype(functions.init)>(at(2));
  functions.update = reinterpret_cast<decltype(functions.update)>(at(3));
  functions.final = reinterpret_cast<decltype(functions.final)>(at(4));
  functions.method = reinterpret_cast<decltype(functions.method)>(at(5));
  return functions;
}

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
  const nb::object result = in_python(
      [&] { return nb::steal(nb::detail::vectorcall(function_.ptr(), &argument, 1, nullptr)); });
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
  const auto size =
      static_cast<int>(int_argument(options["digest_size"], "digest_size", kMinDigest, kMaxDigest));
  const std::size_t plain_length =
      static_cast<std::size_t>(size) + static_cast<std::size_t>(block_size) * sizeof(Token);
  if (const std::int64_t address = int_argument(options["xxh3_address"], "xxh3_address")) {
    const auto function = reinterpret_cast<Xxh3Digester::Function>(address);
    return {std::make_unique<Xxh3Digester>(function, plain_length), nullptr};
  }
  DigestOption option;
  if (const EvpSha256::Functions functions = evp_functions(options["evp"]); functions.make) {
    option.digester = std::make_unique<EvpSha256>(functions, plain_length);
  } else {
    auto python = std::make_unique<PythonDigest>(nb::borrow(options["digest"]),
                                                 nb::cast<bool>(options["digest_is_trusted"]), size,
                                                 plain_length);
    option.python = python.get();
    option.digester = std::move(python);
  }
  if (const nb::object seed = options["cbor_seed"]; !seed.is_none()) {
    const auto text = nb::cast<nb::bytes>(seed);
    option.digester = std::make_unique<CborDigester>(std::move(option.digester),
                                                     std::string(text.c_str(), text.size()));
  }
  return option;
}

}  // namespace blockmgr
