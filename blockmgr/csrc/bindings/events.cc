#include "bindings/events.h"

namespace blockmgr {

nb::object bytes_of(std::string_view bytes) {
  return made(nb::steal(
      PyBytes_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size()))));
}

nb::dict extras_of(const std::vector<std::pair<std::int64_t, std::string>>& extras) {
  nb::dict result = made(nb::dict());
  for (const auto& [block, bytes] : extras) {
    const nb::object key = made(nb::steal(PyLong_FromLongLong(block)));
    if (PyDict_SetItem(result.ptr(), key.ptr(), bytes_of(std::string_view(bytes)).ptr()))
      throw nb::python_error();
  }
  return result;
}

namespace {

nb::object bytes_of(const std::vector<std::uint8_t>& bytes) {
  return blockmgr::bytes_of(
      std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

}  // namespace

nb::object made_of_columns(const EventColumns& columns, nb::handle make) {
  const auto count = static_cast<std::int64_t>(columns.runs.size());
  const auto column = [&]<class T>(T, auto field) {
    auto numbers = new_numbers<T>(count);
    for (std::size_t i = 0; i < columns.runs.size(); ++i)
      numbers[i] = static_cast<T>(columns.runs[i].*field);
    return to_array(std::move(numbers), count);
  };
  auto tokens = new_numbers<Token>(static_cast<std::int64_t>(columns.tokens.size()));
  std::copy(columns.tokens.begin(), columns.tokens.end(), tokens.get());
  const nb::dict extras = extras_of(columns.extras);
  const nb::list names = made(nb::list());
  for (const std::string& name : columns.names)
    if (PyList_Append(names.ptr(), bytes_of(std::string_view(name)).ptr()))
      throw nb::python_error();
  const nb::list sessions = made(nb::list());
  for (const std::string& session : columns.sessions)
    if (PyList_Append(sessions.ptr(), bytes_of(std::string_view(session)).ptr()))
      throw nb::python_error();
  return in_python([&]() -> nb::object {
    return make(columns.digest_size, column(std::uint8_t{}, &EventRun::kind),
                column(std::int64_t{}, &EventRun::num_blocks),
                column(bool{}, &EventRun::has_parent), column(std::uint8_t{}, &EventRun::group),
                bytes_of(columns.parents), bytes_of(columns.digests),
                to_array(std::move(tokens), static_cast<std::int64_t>(columns.tokens.size())),
                extras, names, sessions, column(std::int64_t{}, &EventRun::step), columns.num_lost);
  });
}

}  // namespace blockmgr
