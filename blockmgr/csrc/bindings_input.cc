#include <algorithm>
#include <cstring>

#include "bindings.h"
#include "errors.h"

namespace blockmgr {

namespace {

// Exact ints in range out of a list or tuple of this length, which is nearly always what it holds.
// nanobind's run-time half knows the layout of both, which the stable ABI hides. This is the loop
// of nanobind's own list conversion, with each number read straight to its place. False: there is
// something else among them.
template <class T>
bool read_exact(PyObject* sequence, T* numbers) noexcept {
  std::size_t size;
  PyObject* copy;
  PyObject** const items = NB_CALL(seq_get)(sequence, &size, &copy);
  const nb::object owner = nb::steal(copy);
  if (!items) return false;
  const auto load = [] {
    if constexpr (sizeof(T) == 4) {
      return NB_CALL(load_u32);
    } else {
      return NB_CALL(load_i64);
    }
  }();
  auto* const context = NB_CTX_C(nullptr);
  const auto read = [&](std::size_t i) { return load(context, items[i], 0, numbers + i); };
  std::size_t i = 0;
  // Four at a time: a jump back for each is a sixth of the time.
  for (; i + 4 <= size; i += 4)
    if (!read(i) || !read(i + 1) || !read(i + 2) || !read(i + 3)) return false;
  while (i < size && read(i)) ++i;
  return i == size;
}

constexpr std::size_t kMaxBytes = 1024;

std::string kind_of(nb::handle value) {
  return nb::cast<std::string>(nb::str(value.type().attr("__name__")));
}

[[noreturn]] void raise(PyObject* type, const std::string& message) {
  PyErr_SetString(type, message.c_str());
  throw nb::python_error();
}

[[noreturn]] void raise_range(const char* name, const std::string& value, std::int64_t index,
                              std::int64_t limit) {
  const std::string bound = limit == kTokenLimit ? "[0, 2**32)" : "int64";
  raise(PyExc_ValueError, std::string(name) + " must be in " + bound + ", got " + value +
                              " at index " + std::to_string(index));
}

bool is_whole(nb::handle value) { return PyIndex_Check(value.ptr()) && !PyBool_Check(value.ptr()); }

// limit 0: any int64.
bool in_range(std::int64_t value, std::int64_t limit) {
  return limit == 0 || (value >= 0 && value < limit);
}

std::string shown(nb::handle whole) {
  const auto bits = nb::cast<std::size_t>(whole.attr("bit_length")());
  if (bits > 64) return "an int of " + std::to_string(bits) + " bits";
  return nb::cast<std::string>(nb::str(whole));
}

// The value as an exact int. position: in a sequence, for the message; -1 for a single value.
nb::object whole_number(nb::handle value, const char* name, Py_ssize_t position = -1) {
  if (PyLong_CheckExact(value.ptr())) return nb::borrow(value);  // nearly always
  nb::object index;
  if (is_whole(value)) {
    index = nb::steal(PyNumber_Index(value.ptr()));
    if (index.is_valid()) return index;
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw nb::python_error();
    PyErr_Clear();
  }
  if (position < 0)
    raise(PyExc_TypeError, std::string(name) + " must be an int, got " + kind_of(value));
  raise(PyExc_TypeError, std::string(name) + " must be ints, got " + kind_of(value) + " at index " +
                             std::to_string(position));
}

}  // namespace

std::int64_t handle_argument(nb::handle value) {
  const nb::object index = whole_number(value, "handle");
  const long long number = PyLong_AsLongLong(index.ptr());
  if (number == -1 && PyErr_Occurred()) {
    PyErr_Clear();  // larger than any handle
    throw UnknownSequence(-1);
  }
  return number;
}

std::int64_t int_argument(nb::handle value, const char* name) {
  const nb::object index = whole_number(value, name);
  const long long number = PyLong_AsLongLong(index.ptr());
  if (number == -1 && PyErr_Occurred()) {
    PyErr_Clear();
    raise(PyExc_ValueError, std::string(name) + " must fit in int64, got " + shown(index));
  }
  return number;
}

std::string_view bytes_argument(nb::handle value, const std::string& name, std::size_t least) {
  if (!PyBytes_Check(value.ptr()))
    raise(PyExc_TypeError, name + " must be bytes, got " + kind_of(value));
  char* data;
  Py_ssize_t size;
  if (PyBytes_AsStringAndSize(value.ptr(), &data, &size)) throw nb::python_error();
  const auto length = static_cast<std::size_t>(size);
  if (length < least || length > kMaxBytes)
    raise(PyExc_ValueError, name + " must be " + std::to_string(least) + " to " +
                                std::to_string(kMaxBytes) + " bytes long, got " +
                                std::to_string(length));
  return {data, length};
}

ExtrasBytes extras_argument(nb::handle extras) {
  ExtrasBytes result;
  if (extras.is_none()) return result;
  for (nb::handle item : nb::cast<nb::list>(extras)) {
    const auto pair = nb::cast<nb::tuple>(item);
    const std::int64_t block = int_argument(pair[0], "extras index");
    if (block < 0 || block > INT32_MAX)
      throw Error(ErrorKind::kValue,
                  "extras index must be in [0, 2**31), got " + std::to_string(block));
    result.emplace_back(static_cast<std::int32_t>(block),
                        bytes_argument(pair[1], "extras[" + std::to_string(block) + "]", 1));
  }
  std::sort(result.begin(), result.end());
  for (std::size_t i = 1; i < result.size(); ++i)
    if (result[i].first == result[i - 1].first)
      throw Error(ErrorKind::kValue, "extras index " + std::to_string(result[i].first) +
                                         " must appear once, got it twice");
  return result;
}

namespace {

// What a buffer holds, if that is whole numbers side by side.
Numbers buffer_numbers(const Py_buffer& view, const char* name) {
  if (view.ndim != 1)
    raise(PyExc_ValueError,
          std::string(name) + " must have 1 dimension, got " + std::to_string(view.ndim));
  const Py_ssize_t size = view.shape ? view.shape[0] : view.len / view.itemsize;
  if (view.strides && size > 1 && view.strides[0] != view.itemsize)
    raise(PyExc_ValueError, std::string(name) + " must be contiguous, got a stride of " +
                                std::to_string(view.strides[0]) + " bytes");
  const std::string_view format = view.format ? view.format : "B";
  std::string_view kind = format;
  if (!kind.empty() && std::strchr("@=<", kind[0])) kind.remove_prefix(1);
  const bool is_signed = kind.size() == 1 && std::strchr("bhilqn", kind[0]);
  const bool is_unsigned = kind.size() == 1 && std::strchr("BHILQN", kind[0]);
  if (!is_signed && !is_unsigned)
    raise(PyExc_TypeError, std::string(name) +
                               " must be native integers, got a buffer of format '" +
                               std::string(format) + "'");
  if (reinterpret_cast<std::uintptr_t>(view.buf) % static_cast<std::uintptr_t>(view.itemsize))
    raise(PyExc_ValueError, std::string(name) + " must be aligned to its item size");
  return {view.buf, size, view.itemsize, is_signed};
}

}  // namespace

template <class T>
IntArray<T>::IntArray(nb::handle value, const char* name, std::int64_t limit, std::vector<T>& home)
    : scratch_(home) {
  PyObject* object = value.ptr();
  Numbers numbers;
  if (is_plain_array(object, numbers)) {
    owner_ = nb::borrow(value);
    read_numbers(numbers, name, limit);
    return;
  }
  if (PyList_Check(object) || PyTuple_Check(object)) {
    read_sequence(object, name, limit);
    return;
  }
  owner_ = nb::borrow(value);
  if (!PyObject_CheckBuffer(object)) {
    if (nb::hasattr(value, "__array__")) {
      owner_ = value.attr("__array__")();
    } else if (PySequence_Check(object) && !PyUnicode_Check(object)) {
      owner_ = nb::steal(PySequence_List(object));
      if (!owner_.is_valid()) throw nb::python_error();
      read_sequence(owner_.ptr(), name, limit);
      return;
    } else {
      raise(PyExc_TypeError, std::string(name) +
                                 " must be a list, tuple, array or buffer of ints, got " +
                                 kind_of(value));
    }
  }
  if (PyObject_GetBuffer(owner_.ptr(), &view_, PyBUF_FORMAT | PyBUF_STRIDES)) {
    if (PyErr_ExceptionMatches(PyExc_MemoryError)) throw nb::python_error();
    PyErr_Clear();
    raise(PyExc_TypeError,
          std::string(name) + " must be a readable buffer of ints, got " + kind_of(value));
  }
  has_view_ = true;
  try {
    read_numbers(buffer_numbers(view_, name), name, limit);
  } catch (...) {
    PyBuffer_Release(&view_);
    throw;
  }
}

template <class T>
IntArray<T>::~IntArray() {
  if (has_view_) PyBuffer_Release(&view_);
}

template <class T>
void IntArray<T>::read_sequence(PyObject* sequence, const char* name, std::int64_t limit) {
  std::vector<T>& numbers = scratch_.numbers;
  const bool is_list = PyList_Check(sequence);
  const Py_ssize_t size = is_list ? PyList_Size(sequence) : PyTuple_Size(sequence);
  // Never made smaller, for it would be filled with zeros when it grows again.
  if (numbers.size() < static_cast<std::size_t>(size))
    numbers.resize(static_cast<std::size_t>(size));
  data_ = numbers.data();
  size_ = size;
  if (read_exact(sequence, numbers.data())) return;
  for (Py_ssize_t i = 0; i < size; ++i) {
    // An __index__ can run any code, so the item is kept and the size looked at again.
    const nb::object item =
        nb::borrow(is_list ? PyList_GetItem(sequence, i) : PyTuple_GetItem(sequence, i));
    if (!item.is_valid()) throw nb::python_error();
    const nb::object whole = whole_number(item, name, i);
    if (size != (is_list ? PyList_Size(sequence) : PyTuple_Size(sequence)))
      raise(PyExc_ValueError, std::string(name) + " changed while it was read");
    const long long number = PyLong_AsLongLong(whole.ptr());
    const bool overflow = number == -1 && PyErr_Occurred();
    if (overflow) PyErr_Clear();
    if (overflow || !in_range(number, limit)) raise_range(name, shown(whole), i, limit);
    numbers[static_cast<std::size_t>(i)] = static_cast<T>(number);
  }
}

namespace {

template <class From, class T>
void convert(const void* from, Py_ssize_t size, const char* name, std::int64_t limit, T* out) {
  const From* numbers = static_cast<const From*>(from);
  for (Py_ssize_t i = 0; i < size; ++i) {
    const bool wraps =
        sizeof(From) == 8 && From(-1) > From(0) && static_cast<std::uint64_t>(numbers[i]) >> 63;
    const auto number = static_cast<std::int64_t>(numbers[i]);
    if (wraps || !in_range(number, limit)) raise_range(name, std::to_string(numbers[i]), i, limit);
    out[i] = static_cast<T>(number);
  }
}

// No branch a token, so that checking costs less than copying.
bool all_non_negative(const std::int32_t* numbers, std::int64_t size) {
  std::int32_t any = 0;
  for (std::int64_t i = 0; i < size; ++i) any |= numbers[i];
  return any >= 0;
}

}  // namespace

template <class T>
void IntArray<T>::read_numbers(const Numbers& from, const char* name, std::int64_t limit) {
  size_ = from.size;
  // Handles are copied: they are read again after a digest function, which could change them.
  if (from.item_bytes == sizeof(T) && limit) {
    const bool same = from.is_signed == (T(-1) < T(0));
    const bool fits =
        same || (sizeof(T) == 4 && from.is_signed &&
                 all_non_negative(static_cast<const std::int32_t*>(from.data), size_));
    if (fits) {
      data_ = static_cast<const T*>(from.data);
      return;
    }
  }
  scratch_.numbers.resize(static_cast<std::size_t>(size_));
  T* out = scratch_.numbers.data();
  data_ = out;
  switch (from.item_bytes * 2 + from.is_signed) {
    case 3:
      return convert<std::int8_t>(from.data, size_, name, limit, out);
    case 2:
      return convert<std::uint8_t>(from.data, size_, name, limit, out);
    case 5:
      return convert<std::int16_t>(from.data, size_, name, limit, out);
    case 4:
      return convert<std::uint16_t>(from.data, size_, name, limit, out);
    case 9:
      return convert<std::int32_t>(from.data, size_, name, limit, out);
    case 8:
      return convert<std::uint32_t>(from.data, size_, name, limit, out);
    case 17:
      return convert<std::int64_t>(from.data, size_, name, limit, out);
    default:
      return convert<std::uint64_t>(from.data, size_, name, limit, out);
  }
}

template class IntArray<std::uint32_t>;
template class IntArray<std::int64_t>;

}  // namespace blockmgr
