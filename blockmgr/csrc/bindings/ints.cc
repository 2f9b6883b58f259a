// Whole numbers out of whatever holds them.
#include <algorithm>
#include <bit>
#include <cstring>

#include "bindings/bindings.h"

namespace blockmgr {

namespace {

// Exact ints in range out of the first items of an exact list or tuple, which is nearly always what
// it holds. nanobind's run-time half knows the layout of both, which the stable ABI hides. False:
// it has another size, or there is something else among them. Each number is stored here and not
// over there, so that a checked build of this file sees every write. Runs no Python code.
template <class T>
bool read_exact(PyObject* sequence, std::int64_t size, std::int64_t count, T* numbers) noexcept {
  std::size_t found;
  PyObject* copy;
  PyObject** const items = NB_CALL(seq_get)(sequence, &found, &copy);
  const nb::object owner = nb::steal(copy);
  if (!items || static_cast<std::int64_t>(found) != size) return false;
  const auto load = [] {
    if constexpr (sizeof(T) == 4) {
      return NB_CALL(load_u32);
    } else {
      return NB_CALL(load_i64);
    }
  }();
  auto* const context = NB_CTX_C(nullptr);
  const auto read = [&](std::int64_t i) {
    T number;
    const bool is_exact = load(context, items[i], 0, &number);
    if (is_exact) numbers[i] = number;
    return is_exact;
  };
  std::int64_t i = 0;
  // Four at a time: a jump back for each is a sixth of the time.
  for (; i + 4 <= count; i += 4)
    if (!read(i) || !read(i + 1) || !read(i + 2) || !read(i + 3)) return false;
  while (i < count && read(i)) ++i;
  return i == count;
}

[[noreturn]] void raise_range(const char* name, const std::string& value, std::int64_t index,
                              std::int64_t limit) {
  const std::string bound = limit == kTokenLimit ? "[0, 2**32)" : "int64";
  raise(PyExc_ValueError, std::string(name) + " must be in " + bound + ", got " + value +
                              " at index " + std::to_string(index));
}

[[noreturn]] void raise_kind(const char* name, nb::handle value) {
  raise(
      PyExc_TypeError,
      std::string(name) + " must be a list, tuple, array or buffer of ints, got " + kind_of(value));
}

[[noreturn]] void raise_changed(const char* name) {
  raise(PyExc_ValueError, std::string(name) + " changed while it was read");
}

[[noreturn]] void raise_length(const char* name, std::int64_t size, const std::string& but) {
  raise(PyExc_ValueError, std::string(name) + " must yield as many items as its length says, " +
                              std::to_string(size) + ", but it " + but);
}

// limit 0: any int64.
bool in_range(std::int64_t value, std::int64_t limit) {
  return limit == 0 || (value >= 0 && value < limit);
}

// The attribute, or nothing if there is none. Other errors are thrown.
nb::object attribute(nb::handle value, PyObject* name) {
  nb::object found = in_python([&] { return nb::steal(PyObject_GetAttr(value.ptr(), name)); });
  if (found.is_valid()) return found;
  if (!PyErr_ExceptionMatches(PyExc_AttributeError)) throw nb::python_error();
  PyErr_Clear();
  return found;
}

bool is_sequence(PyObject* object) {
  const auto has = [&](int slot) { return PyType_GetSlot(Py_TYPE(object), slot) != nullptr; };
  return PySequence_Check(object) && !PyUnicode_Check(object) &&
         (has(Py_sq_length) || has(Py_mp_length));
}

// The numbers of a buffer, if it is one row of whole numbers at any distance.
Numbers buffer_numbers(const Py_buffer& view, const char* name) {
  if (view.ndim != 1)
    raise(PyExc_ValueError,
          std::string(name) + " must have 1 dimension, got " + std::to_string(view.ndim));
  const std::string_view format = view.format ? view.format : "B";
  std::string_view kind = format;
  if (!kind.empty() && std::strchr("@=<", kind[0])) kind.remove_prefix(1);
  const bool is_signed = kind.size() == 1 && std::strchr("bhilqn", kind[0]);
  const bool is_unsigned = kind.size() == 1 && std::strchr("BHILQN", kind[0]);
  const auto bytes = static_cast<std::size_t>(view.itemsize);
  const bool has_size = bytes <= 8 && std::has_single_bit(bytes);
  if ((!is_signed && !is_unsigned) || !has_size)
    raise(PyExc_TypeError, std::string(name) +
                               " must be native integers, got a buffer of format '" +
                               std::string(format) + "'");
  const Py_ssize_t size = view.shape ? view.shape[0] : view.len / view.itemsize;
  const Py_ssize_t stride = view.strides && size > 1 ? view.strides[0] : view.itemsize;
  return {view.buf, size, view.itemsize, is_signed, stride};
}

}  // namespace

template <class T>
IntArray<T>::IntArray(nb::handle value, const char* name, std::int64_t limit, std::vector<T>& home,
                      std::int64_t kept, Inside inside)
    : scratch_(home, kept), name_(name), limit_(limit), inside_(inside), owner_(nb::borrow(value)) {
  PyObject* object = value.ptr();
  if (is_plain_array(object, numbers_)) {
    size_ = numbers_.size;
  } else if (PyList_Check(object)) {
    kind_ = Kind::kList;
    size_ = PyList_Size(object);
  } else if (PyTuple_Check(object)) {
    kind_ = Kind::kTuple;
    size_ = PyTuple_Size(object);
  } else {
    open_other(value);
  }
}

// Reads anything but a list, tuple or plain array: by buffer, __array__ or the sequence protocol.
template <class T>
void IntArray<T>::open_other(nb::handle value) {
  PyObject* object = value.ptr();
  // Encoded text is a buffer of small ints too, and never what is meant.
  if (PyBytes_Check(object) || PyByteArray_Check(object)) raise_kind(name_, value);
  if (!PyObject_CheckBuffer(object)) {
    const nb::object convert = attribute(value, known().array_name);
    if (convert.is_valid()) {
      owner_ = in_python([&] { return convert(); });
    } else if (is_sequence(object)) {
      kind_ = Kind::kIterable;
      size_ = in_python([&] { return PyObject_Size(object); });
      if (size_ < 0) throw nb::python_error();
      return;
    } else {
      raise_kind(name_, value);
    }
  }
  find_numbers();
  size_ = numbers_.size;
}

// Where the numbers of an array or of another buffer are at the moment.
template <class T>
void IntArray<T>::find_numbers() {
  export_.release();
  if (is_plain_array(owner_.ptr(), numbers_)) return;
  export_buffer(owner_, export_.view, PyBUF_FORMAT | PyBUF_STRIDES,
                (std::string(name_) + " must be a readable buffer of ints").c_str());
  export_.held = true;
  numbers_ = buffer_numbers(export_.view, name_);
}

template <class T>
void IntArray<T>::read(std::int64_t most) {
  const std::int64_t count = std::min(size_, most);
  switch (kind_) {
    case Kind::kNumbers:
      if (inside_ == Inside::kPython) {
        find_numbers();  // the call may have waited for another thread since
        if (numbers_.size != size_) raise_changed(name_);
      }
      read_numbers(count);
      break;
    case Kind::kIterable:
      read_iterable(count);
      break;
    default:
      read_items(count);
  }
  size_ = count;
}

template <class T>
void IntArray<T>::read_items(std::int64_t count) {
  data_ = out_ = scratch_.make_room(count);
  PyObject* sequence = owner_.ptr();
  const bool is_list = kind_ == Kind::kList;
  const bool is_exact = is_list ? PyList_CheckExact(sequence) : PyTuple_CheckExact(sequence);
  if (is_exact && read_exact(sequence, size_, count, out_)) return;
  // A subclass could answer anything, and an __index__ can run any code: from here on the items are
  // those of an exact list or tuple that no other code can change.
  const nb::object items = made(nb::steal(is_list ? PyList_GetSlice(sequence, 0, count)
                                                  : PyTuple_GetSlice(sequence, 0, count)));
  if (!is_exact && read_exact(items.ptr(), count, count, out_)) return;
  for (std::int64_t i = 0; i < count; ++i) {
    PyObject* item = is_list ? PyList_GetItem(items.ptr(), i) : PyTuple_GetItem(items.ptr(), i);
    if (!item) {
      PyErr_Clear();  // an IndexError: it was shorter by then
      raise_changed(name_);
    }
    store(item, i);
  }
  if (is_list && PyList_Size(sequence) != size_) raise_changed(name_);
}

// Any other sequence says how long it is, and must yield exactly so many items.
template <class T>
void IntArray<T>::read_iterable(std::int64_t count) {
  const nb::object items = in_python([&] { return nb::steal(PyObject_GetIter(owner_.ptr())); });
  if (!items.is_valid()) throw nb::python_error();
  const auto next = [&] {
    nb::object item = in_python([&] { return nb::steal(PyIter_Next(items.ptr())); });
    if (!item.is_valid() && PyErr_Occurred()) throw nb::python_error();
    return item;
  };
  constexpr std::int64_t kFirstRoom = 1024;
  std::int64_t room = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const nb::object item = next();
    if (!item.is_valid()) raise_length(name_, size_, "ends after " + std::to_string(i));
    // Room for what has come, not for the length that it claims.
    if (i == room) out_ = scratch_.make_room(room = std::min(count, 2 * room + kFirstRoom));
    store(item, i);
  }
  data_ = out_;
  if (count == size_ && next().is_valid()) raise_length(name_, size_, "goes on after that");
}

template <class T>
void IntArray<T>::store(nb::handle item, std::int64_t index) {
  const nb::object whole = whole_number(item, name_, index);
  const long long number = PyLong_AsLongLong(whole.ptr());
  const bool overflow = number == -1 && PyErr_Occurred();
  if (overflow) PyErr_Clear();
  if (overflow || !in_range(number, limit_)) raise_range(name_, shown(whole), index, limit_);
  out_[index] = static_cast<T>(number);
}

namespace {

template <class From, class T>
void convert(const Numbers& from, Py_ssize_t size, const char* name, std::int64_t limit, T* out) {
  const auto* const first = static_cast<const char*>(from.data);
  const auto convert_all = [&](std::ptrdiff_t stride) {
    for (Py_ssize_t i = 0; i < size; ++i) {
      From number;
      std::memcpy(&number, first + i * stride, sizeof(From));
      const bool wraps =
          sizeof(From) == 8 && From(-1) > From(0) && static_cast<std::uint64_t>(number) >> 63;
      const auto value = static_cast<std::int64_t>(number);
      if (wraps || !in_range(value, limit)) raise_range(name, std::to_string(number), i, limit);
      out[i] = static_cast<T>(value);
    }
  };
  // A distance that the compiler knows makes for a faster loop.
  if (from.stride == from.item_bytes) return convert_all(sizeof(From));
  convert_all(from.stride);
}

// No branch a token, so that checking costs less than copying.
bool all_non_negative(const std::int32_t* numbers, std::int64_t size) {
  std::int32_t any = 0;
  for (std::int64_t i = 0; i < size; ++i) any |= numbers[i];
  return any >= 0;
}

}  // namespace

template <class T>
void IntArray<T>::read_numbers(std::int64_t count) {
  const Numbers& from = numbers_;
  if (inside_ == Inside::kNative && from.item_bytes == sizeof(T) && limit_ && from.packed()) {
    const bool same = from.is_signed == (T(-1) < T(0));
    const bool fits =
        same || (sizeof(T) == 4 && from.is_signed &&
                 all_non_negative(static_cast<const std::int32_t*>(from.data), count));
    if (fits) {
      data_ = static_cast<const T*>(from.data);
      return;
    }
  }
  data_ = out_ = scratch_.make_room(count);
  switch (from.item_bytes * 2 + from.is_signed) {
    case 3:
      return convert<std::int8_t>(from, count, name_, limit_, out_);
    case 2:
      return convert<std::uint8_t>(from, count, name_, limit_, out_);
    case 5:
      return convert<std::int16_t>(from, count, name_, limit_, out_);
    case 4:
      return convert<std::uint16_t>(from, count, name_, limit_, out_);
    case 9:
      return convert<std::int32_t>(from, count, name_, limit_, out_);
    case 8:
      return convert<std::uint32_t>(from, count, name_, limit_, out_);
    case 17:
      return convert<std::int64_t>(from, count, name_, limit_, out_);
    default:
      return convert<std::uint64_t>(from, count, name_, limit_, out_);
  }
}

template class IntArray<std::uint32_t>;
template class IntArray<std::int64_t>;

}  // namespace blockmgr
