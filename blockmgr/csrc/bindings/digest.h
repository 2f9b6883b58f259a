// The digest function of a manager: one of Python, or the C function behind it.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "identity/digest.h"

namespace blockmgr {

namespace nb = nanobind;

// Calls a Python function on the message.
class PythonDigest : public Digester {
 public:
  // plain_length: of the messages that are worth keeping a buffer for. A trusted function is given
  // the buffer itself, a bytearray; any other one a copy as bytes, to keep or drop as it likes.
  PythonDigest(nb::object function, bool trusted, int size, std::size_t plain_length);
  int size() const override { return size_; }
  std::uint8_t* message(std::size_t length) override;
  void digest(std::size_t length, std::uint8_t* out) override;

  // For the garbage collector: the one reference that can be part of a cycle.
  nb::handle function() const { return function_; }
  void clear_function() { function_ = nb::none(); }

 private:
  struct Buffer {
    nb::object bytes;
    std::uint8_t* data = nullptr;
  };
  static Buffer make_buffer(std::size_t length);

  nb::object function_;
  bool trusted_;
  int size_;
  std::size_t plain_length_;
  Buffer plain_;
  Buffer other_;
};

// The digest that a core is built with.
struct DigestOption {
  std::unique_ptr<Digester> digester;  // none without a prefix cache
  PythonDigest* python = nullptr;      // the digester, if it calls Python
};
DigestOption digest_option(const nb::dict& options, int block_size);

}  // namespace blockmgr
