// What the binding files share: turning Python arguments into numbers, and back into arrays.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "bindings_numpy.h"
#include "copies.h"
#include "interning.h"

namespace blockmgr {

namespace nb = nanobind;

inline constexpr std::int64_t kTokenLimit = std::int64_t{1} << 32;

// What nanobind has made, unless there was no memory for it: it does not say so itself.
template <class Object>
Object made(Object object) {
  if (!object.is_valid()) throw nb::python_error();
  return object;
}

// A whole number, by name: TypeError and ValueError say which argument is meant.
std::int64_t int_argument(nb::handle value, const char* name);

// A handle; one too large to be one is an unknown sequence.
std::int64_t handle_argument(nb::handle value);

// Bytes of at most 1024, by name; the view lives as long as the object.
std::string_view bytes_argument(nb::handle value, const std::string& name, std::size_t least);

// Extra keys by block: None, or a list of (block index, bytes) pairs, which keeps the bytes alive.
ExtrasBytes extras_argument(nb::handle extras);

// A buffer that calls reuse, taken out for the length of one: converting arguments can run Python
// code, and a call made from there must not find its caller's numbers.
template <class T>
class Scratch {
 public:
  explicit Scratch(std::vector<T>& home) : home_(home) { numbers.swap(home_); }
  ~Scratch() { numbers.swap(home_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::vector<T> numbers;

 private:
  std::vector<T>& home_;
};

// One-dimensional whole numbers out of a list, a tuple, a buffer, or anything with __array__.
// Tokens in a contiguous native buffer of the right type are used in place.
template <class T>
class IntArray {
 public:
  IntArray(nb::handle value, const char* name, std::int64_t limit, std::vector<T>& home);
  ~IntArray();
  IntArray(const IntArray&) = delete;
  IntArray& operator=(const IntArray&) = delete;
  const T* data() const { return data_; }
  std::int64_t size() const { return size_; }

 private:
  void read_sequence(PyObject* sequence, const char* name, std::int64_t limit);
  void read_numbers(const Numbers& from, const char* name, std::int64_t limit);

  Scratch<T> scratch_;
  nb::object owner_;
  Py_buffer view_{};
  bool has_view_ = false;
  const T* data_ = nullptr;
  std::int64_t size_ = 0;
};
extern template class IntArray<std::uint32_t>;
extern template class IntArray<std::int64_t>;

using TokenArray = IntArray<Token>;

// What a class with a member `digest`, and perhaps `policy`, needs to take part in garbage
// collection: a digest function or a policy may refer back to the object that calls it.
template <class Owner>
PyType_Slot* collection_slots() {
  struct Collected {
    static int traverse(PyObject* self, visitproc visit, void* arg) {
      Py_VISIT(Py_TYPE(self));
      if (!nb::inst_ready(self)) return 0;
      const Owner* owner = nb::inst_ptr<Owner>(self);
      if (owner->digest) Py_VISIT(owner->digest->function().ptr());
      if constexpr (requires { owner->policy; }) {
        if (owner->policy) Py_VISIT(owner->policy->policy().ptr());
        if (owner->policy) Py_VISIT(owner->policy->held_error().ptr());
      }
      return 0;
    }
    static int clear(PyObject* self) {
      Owner* owner = nb::inst_ptr<Owner>(self);
      if (owner->digest) owner->digest->clear_function();
      if constexpr (requires { owner->policy; }) {
        if (owner->policy) owner->policy->clear();
      }
      return 0;
    }
  };
  static PyType_Slot slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(Collected::traverse)},
                                {Py_tp_clear, reinterpret_cast<void*>(Collected::clear)},
                                {0, nullptr}};
  return slots;
}

// A field of a class with slots, which can be filled in a frozen instance too.
struct Field {
  PyObject* descriptor;
  descrsetfunc fill;
  void set(const nb::object& instance, const nb::object& value) const {
    if (!value.is_valid() || fill(descriptor, instance.ptr(), value.ptr()))
      throw nb::python_error();
  }
};

// What of Python is looked up once, at import: looking it up within a call could run Python code,
// and needs memory when there may be none. Kept for good, as the modules are.
struct Known {
  PyObject* ndarray;  // numpy.ndarray
  PyObject* match;    // blockmgr.blocks.Match, and its fields
  Field num_cached_tokens;
  Field num_partial_tokens;
  Field block_ids;
  PyObject* out_of_blocks;
  PyObject* out_of_sequences;
  PyObject* never_fits;
  PyObject* unknown_sequence;
  PyObject* pin_budget;
  PyObject* unknown_pin;
  PyObject* sequence_state;
  PyObject* block_state;
  PyObject* step;
  PyObject* ticket;
  PyObject* reentrancy;
  PyObject* fork;
  PyObject* invariant;
  PyObject* copy;
};
const Known& known();
void know_python();

// Sets the Python error that stands for what the core threw.
void translate_errors(const std::exception_ptr& thrown, void*);

// A fresh NumPy array of these.
template <class T>
struct Array {
  explicit Array(std::int64_t size)
      : numbers(static_cast<T*>(new_array(dtype_of<T>(), size, array))) {}
  nb::object array;
  T* numbers;
};

// A NumPy array of these numbers.
template <class T>
nb::object to_array(std::unique_ptr<T[]> numbers, std::int64_t size) {
  const Array<T> result(size);
  std::copy_n(numbers.get(), size, result.numbers);
  return result.array;
}

template <class T>
std::unique_ptr<T[]> new_numbers(std::int64_t size) {
  return std::unique_ptr<T[]>(new T[static_cast<std::size_t>(size ? size : 1)]);
}

// The number as an int, to be set before a call commits. Runs no Python code, not even the garbage
// collector's.
template <class Number>
auto announce_to(nb::object& result) {
  return [&result](Number number) {
    result = nb::steal(PyLong_FromLongLong(number));
    if (!result.is_valid()) throw nb::python_error();
  };
}

// Takes the copies of a core: make(ticket, sources, destinations, numbers of tokens). The plan is
// complete before any array is made: that may run the garbage collector, and with it code that
// calls the core. What cannot be passed on has not been taken.
template <class Planner>
nb::object take_plan(Planner& core, nb::handle make) {
  std::vector<Copy> copies;
  const std::int64_t ticket = core.take_copies(copies);
  try {
    const auto count = static_cast<std::int64_t>(copies.size());
    const auto column = [&](BlockId Copy::* field) {
      auto numbers = new_numbers<std::int32_t>(count);
      for (std::size_t i = 0; i < copies.size(); ++i) numbers[i] = copies[i].*field;
      return to_array(std::move(numbers), count);
    };
    return make(ticket, column(&Copy::source), column(&Copy::destination),
                column(&Copy::num_tokens));
  } catch (...) {
    core.return_copies(ticket);
    throw;
  }
}

// Adds the class PoolCore.
void bind_block_pool(nb::module_& m);

// Adds CopyChecker and order_copies.
void bind_copies(nb::module_& m);
void bind_adaptive(nb::module_& m);
void bind_shared_memory(nb::module_& m);

}  // namespace blockmgr

#define BM_ARRAY(dtype) "numpy.typing.NDArray[numpy." dtype "]"
