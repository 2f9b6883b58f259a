#include "bindings/partitions.h"

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
    out = int_option(options, name, 0, INT32_MAX);
  }
};

void read_lists(const nb::dict& options, StoreConfig& config) {
  for (const nb::handle quota : options["quotas"])
    add_quota(config, bytes_argument(quota[0], "quotas", 0), int_argument(quota[1], "quotas"));
  // The slices of each, without the one whose blocks are the nodes' own.
  for (const nb::handle group : nb::cast<nb::list>(options["groups"]))
    config.groups.push_back({static_cast<Group::Kind>(nb::cast<int>(group[0])),
                             nb::cast<std::int64_t>(group[1]), nb::cast<std::int64_t>(group[2]),
                             nb::cast<std::int64_t>(group[3]), nb::cast<int>(group[4]),
                             nb::cast<int>(group[5]), nb::cast<int>(group[6]),
                             nb::cast<bool>(group[7]), nb::cast<std::int64_t>(group[8]),
                             nb::cast<int>(group[9]), nb::cast<std::int64_t>(group[10])});
}

}  // namespace

int int_option(const nb::dict& options, const char* name, int low, int high) {
  const std::int64_t value = int_argument(options[name], name);
  check_bounds(name, value, low, high);
  return static_cast<int>(value);
}

void read_options(const nb::dict& options, StoreConfig& config) {
  config.each_option(ReadOption{options});
  read_lists(options, config);
  check_options(config);
}

void read_options(const nb::dict& options, Config& config) {
  config.each_option(ReadOption{options});
  read_lists(options, config);
  check_options(config);
}

}  // namespace blockmgr
