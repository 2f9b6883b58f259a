// NumPy's own C interface makes and reads arrays without a call of Python.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace blockmgr {

namespace nb = nanobind;

// The kind of the numbers of an array.
enum class Dtype { kBool, kUint8, kUint16, kUint32, kUint64, kInt8, kInt16, kInt32, kInt64 };

template <class T>
constexpr Dtype dtype_of() {
  static_assert(std::is_same_v<T, bool> || std::is_integral_v<T>);
  if (std::is_same_v<T, bool>) return Dtype::kBool;
  constexpr int kPower = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
  const Dtype first = std::is_signed_v<T> ? Dtype::kInt8 : Dtype::kUint8;
  return static_cast<Dtype>(static_cast<int>(first) + kPower);
}

// Whole numbers in memory, in the machine's order, each so many bytes after the one before it.
struct Numbers {
  const void* data;
  std::ptrdiff_t size;
  std::ptrdiff_t item_bytes;
  bool is_signed;
  std::ptrdiff_t stride;

  // Whether they are the items of a C array.
  bool packed() const {
    return stride == item_bytes &&
           reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(item_bytes) == 0;
  }
};

// Finds NumPy, once, at import.
void know_numpy();

// A fresh array, and where its numbers are. Throws where there is no memory for one, and runs no
// Python code: arrays take no part in garbage collection.
void* new_array(Dtype dtype, std::int64_t size, nb::object& array);

// Whether this is a one-dimensional, contiguous array of whole numbers, and if so, where they are.
// For any other array, the buffer protocol finds out what is wrong with it.
bool is_plain_array(PyObject* object, Numbers& numbers) noexcept;

}  // namespace blockmgr
