// Shared by the binding files: turns Python arguments into numbers, and results into arrays.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "bindings/numpy.h"
#include "identity/interning.h"
#include "memory/errors.h"
#include "sequences/arguments.h"
#include "sequences/copies.h"

// Arguments are any objects, None too: they are converted by functions that name the argument when
// it is wrong.
template <>
struct nanobind::detail::has_arg_defaults<nanobind::handle> : std::true_type {};

namespace blockmgr {

namespace nb = nanobind;

// An argument that the package itself has made. Nothing is converted: nanobind drops whatever error
// that raises, an interrupt too.
template <class T>
struct Exact {
  T value;
  operator T() const { return value; }
};

// The end of a thread that was inside a call when its interpreter ended. It stays here: its stack
// has functions that must finish, and references that no thread may drop without the lock.
[[noreturn]] void stay();

// Makes a call that runs Python code, or takes the interpreter's lock. Once the interpreter ends, a
// daemon thread never gets that lock: up to Python 3.13, the interpreter then ends the thread by
// unwinding its stack, which a function that is noexcept turns into the end of the process, and
// which drops references without the lock. Later versions let the thread hang, as this does.
// last: what to do before that.
//
// The unwinding is noticed by a destructor: it is no C++ exception, and must not be caught where
// one is being handled, as in the translation of errors.
template <class Call, class Last = void (*)()>
auto in_python(Call call, Last last = [] {}) {
  struct Guard {
    ~Guard() {
      if (is_done || std::uncaught_exceptions() > before) return;
      last();
      stay();
    }
    Last& last;
    int before = std::uncaught_exceptions();
    bool is_done = false;
  };
  Guard guard{last};
  if constexpr (std::is_void_v<decltype(call())>) {
    call();
    guard.is_done = true;
  } else {
    auto result = call();
    guard.is_done = true;
    return result;
  }
}

inline constexpr std::int64_t kTokenLimit = std::int64_t{1} << 32;

// Returns an object that nanobind made. Throws if there was no memory for it, which nanobind does
// not report.
template <class Object>
Object made(Object object) {
  if (!object.is_valid()) throw nb::python_error();
  return object;
}

[[noreturn]] void raise(PyObject* type, const std::string& message);
// Takes the number as the caller passed it: it may be larger than any that is given out.
[[noreturn]] void raise_unknown_sequence(nb::handle handle);
[[noreturn]] void raise_unknown_pin(nb::handle pin);

// The name of the value's type, and a whole number, for messages.
std::string kind_of(nb::handle value);
std::string shown(nb::handle whole);

// The value as an exact int. position: in a sequence, for the message; -1 for a single value.
nb::object whole_number(nb::handle value, const char* name, std::int64_t position = -1);

// A whole number, by name: TypeError and ValueError say which argument is meant.
std::int64_t int_argument(nb::handle value, const char* name);

// The same in [low, high].
std::int64_t int_argument(nb::handle value, const char* name, std::int64_t low, std::int64_t high);

// A handle; one too large to be one is an unknown sequence.
std::int64_t handle_argument(nb::handle value);
std::int64_t pin_argument(nb::handle value);
// A ticket likewise, to resolve its plan, or to complete its step.
std::int64_t ticket_argument(nb::handle value);
std::int64_t step_argument(nb::handle value);

// Bytes of so many, by name; the view lives as long as the object.
inline constexpr std::size_t kMostBytes = 1024;
std::string_view bytes_argument(nb::handle value, const std::string& name, std::size_t least,
                                std::size_t most = kMostBytes);
// The name of a session, which may be empty where none is needed.
std::string_view session_argument(nb::handle value, std::size_t least);

// Extra keys by block: None, or a tuple of (block index, bytes) tuples. Nothing of it can change or
// run code, so the bytes live as long as it does.
ExtrasBytes extras_argument(nb::handle extras);

// Exports an object's buffer. If it has none like this, raises TypeError: "<wanted>, got ...".
// Anything else that goes wrong meanwhile, an interrupt say, is passed on.
void export_buffer(nb::handle object, Py_buffer& view, int flags, const char* wanted);

// A buffer that calls reuse, taken out for the length of one: converting arguments can run Python
// code, and a call made from there must not find its caller's numbers. One larger than most numbers
// is not kept.
template <class T>
class Scratch {
 public:
  Scratch(std::vector<T>& home, std::int64_t most) : home_(home), most_(most) {
    numbers_.swap(home_);
  }
  ~Scratch() {
    if (numbers_.capacity() <= static_cast<std::size_t>(most_)) numbers_.swap(home_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // Room for this many. The vector is never made smaller, because growing it again would fill it
  // with zeros.
  T* make_room(std::int64_t size) {
    const auto count = static_cast<std::size_t>(size);
    if (numbers_.size() < count) {
      if (numbers_.capacity() < count) {
        // Doubles, as vectors do, but never past the size that is kept.
        const std::size_t twice = 2 * numbers_.capacity();
        numbers_.reserve(std::max(count, std::min(twice, static_cast<std::size_t>(most_))));
      }
      numbers_.resize(count);
    }
    return numbers_.data();
  }

 private:
  std::vector<T>& home_;
  std::int64_t most_;
  std::vector<T> numbers_;
};

// Whether Python code can run inside a call, after its arguments were read: that of a digest or a
// policy, and, while the call waits for one of those, that of any other thread. Such code can
// change, move or free the memory of an array that the caller passed.
enum class Inside { kNative, kPython };

// The buffer of an object, released at the end.
struct Export {
  Export() = default;
  ~Export() { release(); }
  Export(const Export&) = delete;
  Export& operator=(const Export&) = delete;
  void release() {
    if (held) in_python([this] { PyBuffer_Release(&view); });
    held = false;
  }
  Py_buffer view{};
  bool held = false;
};

// One-dimensional whole numbers out of a list, a tuple, a buffer, anything with __array__, or any
// other sequence. Tokens in a contiguous native buffer of the right type are used in place, if
// nothing but native code runs inside the call: no other thread can have the interpreter until it
// is done. Otherwise the call works on a copy, so that what it has proved stays what it proved.
//
// Two steps, so that a call can refuse a length before it pays for it: the constructor finds out
// what holds the numbers and how many there are; read() converts them. The length is asked for
// once, and what the container yields is held to it. Of a subclass of list or tuple its own items
// count, as in the interpreter's own functions, whatever methods it overrides.
template <class T>
class IntArray {
 public:
  // kept: numbers that the home may keep room for after the call.
  IntArray(nb::handle value, const char* name, std::int64_t limit, std::vector<T>& home,
           std::int64_t kept, Inside inside = Inside::kPython);
  IntArray(const IntArray&) = delete;
  IntArray& operator=(const IntArray&) = delete;
  std::int64_t size() const { return size_; }
  // Converts the first so many, and leaves the others unseen; size() is their number from then on.
  void read(std::int64_t most = INT64_MAX);
  const T* data() const { return data_; }

 private:
  void open_other(nb::handle value);
  void find_numbers();
  void read_numbers(std::int64_t count);
  void read_items(std::int64_t count);
  void read_iterable(std::int64_t count);
  void store(nb::handle item, std::int64_t index);

  enum class Kind { kNumbers, kList, kTuple, kIterable };

  Scratch<T> scratch_;
  const char* name_;
  std::int64_t limit_;
  Inside inside_;
  Kind kind_ = Kind::kNumbers;
  Numbers numbers_{};
  nb::object owner_;
  Export export_;
  T* out_ = nullptr;
  const T* data_ = nullptr;
  std::int64_t size_ = 0;
};
extern template class IntArray<std::uint32_t>;
extern template class IntArray<std::int64_t>;

using TokenArray = IntArray<Token>;

// An argument, read: any number of any int64.
struct Ints : IntArray<std::int64_t> {
  Ints(nb::handle value, const char* name, std::vector<std::int64_t>& home, std::int64_t kept)
      : IntArray(value, name, 0, home, kept) {
    read();
  }
};

bool bool_argument(nb::handle value, const char* name);

// A field of a class with slots: where an instance has it. In a fresh one it is empty, and can be
// filled if the class is frozen, too.
struct Field {
  Py_ssize_t offset;
  void fill(const nb::object& instance, nb::object value) const {
    if (!value.is_valid()) throw nb::python_error();
    char* field = reinterpret_cast<char*>(instance.ptr()) + offset;
    *reinterpret_cast<PyObject**>(field) = value.release().ptr();
  }
};

// Python objects that are looked up once, at import: a look-up within a call could run Python code,
// and needs memory when there may be none. Kept for good, as the modules are.
struct Known {
  PyObject* ndarray;        // numpy.ndarray
  PyObject* is_finalizing;  // sys.is_finalizing
  PyObject* array_name;     // "__array__"
  PyObject* match;          // blockmgr.blocks.Match
  std::array<Field, 8> match_fields;
  PyObject* nothing;  // ()
  PyObject* out_of_blocks;
  PyObject* out_of_sequences;
  PyObject* unknown_sequence;
  PyObject* stale_match;
  PyObject* pin_budget;
  PyObject* unknown_pin;
  PyObject* block_state;
  PyObject* invariant;
  PyObject* copy;
  PyObject* of_kind[static_cast<std::size_t>(ErrorKind::kFork) + 1];  // by ErrorKind
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
nb::object array_of(const std::vector<T>& numbers) {
  const Array<T> result(static_cast<std::int64_t>(numbers.size()));
  std::ranges::copy(numbers, result.numbers);
  return result.array;
}

// A NumPy array of one field of these records.
template <class T, class Record, class Field>
nb::object column_of(const std::vector<Record>& records, Field Record::* field) {
  const Array<T> result(static_cast<std::int64_t>(records.size()));
  for (std::size_t i = 0; i < records.size(); ++i)
    result.numbers[i] = static_cast<T>(records[i].*field);
  return result.array;
}

nb::object bytes_of(std::string_view bytes);
nb::list list_of(const std::vector<std::string>& texts);
// Bytes of this size each, which lie one after another.
nb::list list_of(const std::vector<std::uint8_t>& all, std::size_t size);

// The number as an int, to be set before a call commits. Runs no Python code, not even the garbage
// collector's.
template <class Number>
auto announce_to(nb::object& result) {
  return [&result](Number number) {
    result = nb::steal(PyLong_FromLongLong(number));
    if (!result.is_valid()) throw nb::python_error();
  };
}

// Shows the memory of a class, which has bytes() and kIsReadOnly, as a buffer.
template <class Owner>
PyType_Slot* buffer_slots() {
  struct Shown {
    static int get(PyObject* self, Py_buffer* view, int flags) {
      if (!nb::inst_ready(self)) {
        PyErr_SetString(PyExc_BufferError, "there is no memory behind this");
        return -1;
      }
      const auto [data, size] = nb::inst_ptr<Owner>(self)->bytes();
      return PyBuffer_FillInfo(view, self, data, static_cast<Py_ssize_t>(size), Owner::kIsReadOnly,
                               flags);
    }
  };
  static PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(Shown::get)},
                                {0, nullptr}};
  return slots;
}

// Each adds classes and functions of the module.
void bind_manager(nb::module_& m);
void bind_block_pool(nb::module_& m);
void bind_copies(nb::module_& m);
void bind_prompt(nb::module_& m);
void bind_cbor(nb::module_& m);
void bind_fleet(nb::module_& m);
void bind_replays(nb::module_& m);

}  // namespace blockmgr

template <class T>
struct nanobind::detail::type_caster<blockmgr::Exact<T>> {
  NB_TYPE_CASTER(blockmgr::Exact<T>, make_caster<T>::Name)
  bool from_python(handle source, std::uint32_t flags, cleanup_list* cleanup) noexcept {
    make_caster<T> own;
    if (!own.from_python(source, flags & ~static_cast<std::uint32_t>(cast_flags::convert), cleanup))
      return false;
    value.value = own.operator cast_t<T>();
    return true;
  }
};
