// What managers and pools have in common: options into the config of the core, events into columns.
#include "bindings/holder.h"

#include <concepts>

#include "sequences/arguments.h"

namespace blockmgr {

namespace {

// An option into the member of its type.
struct ReadOption {
  const nb::dict& options;

  void operator()(const char* name, bool& out) const { out = nb::cast<bool>(options[name]); }
  void operator()(const char* name, std::string& out) const {
    out = nb::cast<std::string>(options[name]);
  }
  template <std::integral Number>
  void operator()(const char* name, Number& out) const {
    if (nb::object(options[name]).is_none()) return;  // as the member is made
    out = static_cast<Number>(int_argument(options[name], name, 0, INT32_MAX));
  }
};

}  // namespace

template <class Options>
Options options_of(const nb::dict& given) {
  Options config;
  config.each_option(ReadOption{given});
  for (const nb::handle quota : given["quotas"])
    add_quota(config, bytes_argument(quota[0], "quotas", 0), int_argument(quota[1], "quotas"));
  // The slices of each, without the one whose blocks are the nodes' own.
  for (const nb::handle group : nb::cast<nb::list>(given["groups"]))
    config.groups.push_back({static_cast<Group::Kind>(nb::cast<int>(group[0])),
                             nb::cast<std::int64_t>(group[1]), nb::cast<std::int64_t>(group[2]),
                             nb::cast<std::int64_t>(group[3]), nb::cast<int>(group[4]),
                             nb::cast<int>(group[5]), nb::cast<int>(group[6]),
                             nb::cast<bool>(group[7]), nb::cast<std::int64_t>(group[8]),
                             nb::cast<int>(group[9]), nb::cast<std::int64_t>(group[10])});
  check_options(config);
  return config;
}
template StoreConfig options_of(const nb::dict& given);
template Config options_of(const nb::dict& given);

nb::dict extras_of(const std::vector<std::pair<std::int64_t, std::string>>& extras) {
  nb::dict result = made(nb::dict());
  for (const auto& [block, bytes] : extras) {
    const nb::object key = made(nb::steal(PyLong_FromLongLong(block)));
    if (PyDict_SetItem(result.ptr(), key.ptr(), bytes_of(bytes).ptr())) throw nb::python_error();
  }
  return result;
}

nb::object made_of_columns(const EventColumns& columns, nb::handle make) {
  const auto column = [&]<class T>(T, auto field) { return column_of<T>(columns.runs, field); };
  const auto bytes = [](const std::vector<std::uint8_t>& all) {
    return bytes_of({reinterpret_cast<const char*>(all.data()), all.size()});
  };
  const nb::dict extras = extras_of(columns.extras);
  const nb::list names = list_of(columns.names), sessions = list_of(columns.sessions);
  return in_python([&]() -> nb::object {
    return make(columns.digest_size, column(std::uint8_t{}, &EventRun::kind),
                column(std::int64_t{}, &EventRun::num_blocks),
                column(bool{}, &EventRun::has_parent), column(std::uint8_t{}, &EventRun::group),
                bytes(columns.parents), bytes(columns.digests), array_of(columns.tokens), extras,
                names, sessions, column(std::int64_t{}, &EventRun::step), columns.num_lost);
  });
}

}  // namespace blockmgr
