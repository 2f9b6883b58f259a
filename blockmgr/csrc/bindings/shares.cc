#include "bindings/shares.h"

#include <algorithm>

#include "bindings/events.h"
#include "memory/errors.h"

namespace blockmgr {

namespace {

constexpr int kMaxPlaces = 1 << 30;

}  // namespace

void read_store_options(const nb::dict& options, StoreConfig& config) {
  const auto flag = [&](const char* name) { return nb::cast<bool>(options[name]); };
  config.null_block = flag("null_block");
  config.num_blocks = int_option(options, "num_blocks", 1 + config.null_block, kMaxBlocks);
  config.block_size = int_option(options, "block_size", 1, kMaxBlockSize);
  config.retention = flag("retention");
  config.max_pinned_blocks = int_option(options, "max_pinned_blocks", 0, config.num_blocks);
  config.eviction = nb::cast<std::string>(options["eviction"]);
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
  config.ghost_blocks =
      int_option(options, "ghost_blocks", 0, std::max(0, kMaxPlaces - config.num_blocks));
  config.event_blocks = int_option(options, "event_blocks", 0, kMaxEventBlocks);
}

void check_retention(int level, double ttl) {
  if (level < kNoLevel || level > kHigh)
    throw Error(ErrorKind::kValue, "level must be in [" + std::to_string(kNoLevel) + ", " +
                                       std::to_string(kHigh) + "], got " + std::to_string(level));
  if (!(ttl > 0)) throw Error(ErrorKind::kValue, "ttl must be above 0, got " + std::to_string(ttl));
}

}  // namespace blockmgr
