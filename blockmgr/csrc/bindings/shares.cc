#include "bindings/shares.h"

#include <algorithm>
#include <concepts>

#include "bindings/events.h"
#include "memory/errors.h"

namespace blockmgr {

namespace {

constexpr int kMaxPlaces = 1 << 30;
constexpr int kMaxStepsInFlight = 200;

void check_bounds(const char* name, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value < low || value > high)
    throw Error(ErrorKind::kValue, std::string(name) + " must be in [" + std::to_string(low) +
                                       ", " + std::to_string(high) + "], got " +
                                       std::to_string(value));
}

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

// The bounds that protect memory; blockmgr.config has those of its users.
void check_store(const StoreConfig& config) {
  check_bounds("num_blocks", config.num_blocks, 1 + config.null_block, kMaxBlocks);
  check_bounds("block_size", config.block_size, 1, kMaxBlockSize);
  check_bounds("steps_in_flight", config.steps_in_flight, 0, kMaxStepsInFlight);
  check_bounds("ghost_blocks", config.ghost_blocks, 0, std::max(0, kMaxPlaces - config.num_blocks));
  check_bounds("event_blocks", config.event_blocks, 0, kMaxEventBlocks);
}

void read_lists(const nb::dict& options, StoreConfig& config) {
  std::int64_t left = config.num_blocks - config.null_block;
  for (const nb::handle quota : options["quotas"]) {
    const std::int64_t blocks = int_argument(quota[1], "quotas");
    if (blocks < 1 || blocks > left || config.quotas.size() == UINT16_MAX)
      throw Error(ErrorKind::kValue, "quotas must be at most " + std::to_string(UINT16_MAX) +
                                         ", at least 1 block each and no more than there are");
    left -= blocks;
    config.quotas.push_back(
        {std::string(bytes_argument(quota[0], "quotas", 0)), static_cast<int>(blocks)});
  }
  // The slices of each, without the one whose blocks are the nodes' own.
  for (const nb::handle group : nb::cast<nb::list>(options["groups"]))
    config.groups.push_back({static_cast<Group::Kind>(nb::cast<int>(group[0])),
                             nb::cast<std::int64_t>(group[1]), nb::cast<std::int64_t>(group[2]),
                             nb::cast<std::int64_t>(group[3]), nb::cast<int>(group[4]),
                             nb::cast<int>(group[5]), nb::cast<int>(group[6]),
                             nb::cast<bool>(group[7])});
}

}  // namespace

int int_option(const nb::dict& options, const char* name, int low, int high) {
  const std::int64_t value = int_argument(options[name], name);
  check_bounds(name, value, low, high);
  return static_cast<int>(value);
}

void read_options(const nb::dict& options, StoreConfig& config) {
  config.each_option(ReadOption{options});
  check_store(config);
  read_lists(options, config);
}

void read_options(const nb::dict& options, Config& config) {
  config.each_option(ReadOption{options});
  check_store(config);
  check_bounds("max_seqs", config.max_seqs, 1, INT32_MAX);
  check_bounds("row_width", config.row_width, 1, INT32_MAX / config.block_size);
  check_bounds("full_block_size", config.full_block_size, 0, config.block_size);
  read_lists(options, config);
}

void check_retention(int level, double ttl) {
  if (level < kNoLevel || level > kHigh)
    throw Error(ErrorKind::kValue, "level must be in [" + std::to_string(kNoLevel) + ", " +
                                       std::to_string(kHigh) + "], got " + std::to_string(level));
  if (!(ttl > 0)) throw Error(ErrorKind::kValue, "ttl must be above 0, got " + std::to_string(ttl));
}

}  // namespace blockmgr
