#include <chrono>
#include <thread>

#include "bindings/bindings.h"
#include "memory/errors.h"
#include "policies/session_table.h"

namespace blockmgr {

namespace {

bool is_whole(nb::handle value) { return PyIndex_Check(value.ptr()) && !PyBool_Check(value.ptr()); }

}  // namespace

void stay() {
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

void raise(PyObject* type, const std::string& message) {
  PyErr_SetString(type, message.c_str());
  throw nb::python_error();
}

std::string kind_of(nb::handle value) {
  return nb::cast<std::string>(nb::str(value.type().attr("__name__")));
}

std::string shown(nb::handle whole) {
  const auto bits = nb::cast<std::size_t>(whole.attr("bit_length")());
  if (bits > 64) return "an int of " + std::to_string(bits) + " bits";
  return nb::cast<std::string>(nb::str(whole));
}

nb::object whole_number(nb::handle value, const char* name, std::int64_t position) {
  if (PyLong_CheckExact(value.ptr())) return nb::borrow(value);  // nearly always
  const auto message = [&] {
    const std::string got = ", got " + kind_of(value);
    return position < 0 ? std::string(name) + " must be an int" + got
                        : std::string(name) + " must be ints" + got + " at index " +
                              std::to_string(position);
  };
  if (!is_whole(value)) raise(PyExc_TypeError, message());
  nb::object index = in_python([&] { return nb::steal(PyNumber_Index(value.ptr())); });
  if (index.is_valid()) return index;
  nb::python_error cause;
  if (!cause.matches(PyExc_TypeError)) throw cause;
  nb::raise_from(cause, PyExc_TypeError, "%s", message().c_str());
}

void export_buffer(nb::handle object, Py_buffer& view, int flags, const char* wanted) {
  if (!in_python([&] { return PyObject_GetBuffer(object.ptr(), &view, flags); })) return;
  nb::python_error cause;
  for (PyObject* refusal : {PyExc_BufferError, PyExc_TypeError, PyExc_ValueError})
    if (cause.matches(refusal))
      nb::raise_from(cause, PyExc_TypeError, "%s, got %s", wanted, kind_of(object).c_str());
  throw cause;
}

// A number that was given out before.
static std::int64_t given_out(nb::handle value, const char* name, void (*refuse)(nb::handle)) {
  const nb::object index = whole_number(value, name);
  const long long number = PyLong_AsLongLong(index.ptr());
  if (number == -1 && PyErr_Occurred()) {
    PyErr_Clear();
    refuse(index);
  }
  return number;
}

std::int64_t handle_argument(nb::handle value) {
  return given_out(value, "handle", raise_unknown_sequence);
}

std::int64_t pin_argument(nb::handle value) { return given_out(value, "pin", raise_unknown_pin); }

template <ErrorKind kKind>
static void raise_never_taken(nb::handle ticket) {
  std::string number = shown(ticket);
  if (number.starts_with("an int ")) number.erase(0, 7);
  throw Error(kKind, "ticket " + number + " was never taken");
}

std::int64_t ticket_argument(nb::handle value) {
  return given_out(value, "ticket", raise_never_taken<ErrorKind::kTicket>);
}

std::int64_t step_argument(nb::handle value) {
  return given_out(value, "ticket", raise_never_taken<ErrorKind::kStep>);
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

std::int64_t int_argument(nb::handle value, const char* name, std::int64_t low, std::int64_t high) {
  const std::int64_t number = int_argument(value, name);
  check_bounds(name, number, low, high);
  return number;
}

std::string_view bytes_argument(nb::handle value, const std::string& name, std::size_t least,
                                std::size_t most) {
  if (!PyBytes_Check(value.ptr()))
    raise(PyExc_TypeError, name + " must be bytes, got " + kind_of(value));
  char* data;
  Py_ssize_t size;
  if (PyBytes_AsStringAndSize(value.ptr(), &data, &size)) throw nb::python_error();
  const auto length = static_cast<std::size_t>(size);
  check_length(name, length, least, most);
  return {data, length};
}

std::string_view session_argument(nb::handle value, std::size_t least) {
  return bytes_argument(value, "session", least, SessionTable::kMostNameBytes);
}

ExtrasBytes extras_argument(nb::handle extras) {
  ExtrasBytes result;
  if (extras.is_none()) return result;
  const auto pairs = [](nb::handle value) { return PyTuple_CheckExact(value.ptr()); };
  if (!pairs(extras)) raise(PyExc_TypeError, "extras must be a tuple of pairs");
  const Py_ssize_t size = PyTuple_Size(extras.ptr());
  for (Py_ssize_t i = 0; i < size; ++i) {
    const nb::handle pair = PyTuple_GetItem(extras.ptr(), i);
    if (!pairs(pair) || PyTuple_Size(pair.ptr()) != 2)
      raise(PyExc_TypeError, "extras must be a tuple of pairs");
    const nb::handle index = PyTuple_GetItem(pair.ptr(), 0);
    if (!PyLong_CheckExact(index.ptr()))
      raise(PyExc_TypeError, "extras index must be an int, got " + kind_of(index));
    const std::int64_t block = int_argument(index, "extras index");
    const nb::handle bytes = PyTuple_GetItem(pair.ptr(), 1);
    add_extra(result, block, bytes_argument(bytes, "extras[" + std::to_string(block) + "]", 1));
  }
  sort_extras(result);
  return result;
}

nb::object bytes_of(std::string_view bytes) {
  return made(
      nb::steal(PyBytes_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size()))));
}

nb::list list_of(const std::vector<std::string>& texts) {
  nb::list result = made(nb::list());
  for (const std::string& text : texts) result.append(bytes_of(text));
  return result;
}

nb::list list_of(const std::vector<std::uint8_t>& all, std::size_t size) {
  nb::list result = made(nb::list());
  for (std::size_t at = 0; at < all.size(); at += size)
    result.append(bytes_of({reinterpret_cast<const char*>(all.data()) + at, size}));
  return result;
}

bool bool_argument(nb::handle value, const char* name) {
  if (!PyBool_Check(value.ptr())) {
    PyErr_Format(PyExc_TypeError, "%s must be a bool, got %R", name, value.ptr());
    throw nb::python_error();
  }
  return value.is(Py_True);
}

}  // namespace blockmgr
