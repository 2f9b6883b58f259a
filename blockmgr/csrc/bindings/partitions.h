// Common to a manager and a pool for Python: how their store is set up, and the contents of each
// of its partitions.
#pragma once

#include <array>
#include <memory>
#include <utility>

#include "bindings/bindings.h"
#include "sequences/records.h"

namespace blockmgr {

// The options that blockmgr.config has checked, but for the digest and policies written in Python.
void read_options(const nb::dict& options, StoreConfig& config);
void read_options(const nb::dict& options, Config& config);

// The blocks of the partition of a namespace, by what they are in.
template <class Holder>
nb::dict quota_usage(Holder& self, nb::handle name) {
  const std::string_view bytes = bytes_argument(name, "namespace", 0);
  using Fact = std::pair<const char*, std::int64_t>;
  const auto facts = self.read([&](const auto& core) {
    const Pool::Partition& own = core.quota(bytes);
    return std::to_array<Fact>({
        {"limit", own.capacity - own.num_withheld},
        {"free_blocks", own.free.size()},
        {"idle_blocks", own.idle.size() + own.num_kept},
        {"fenced_blocks", own.num_fenced},
        {"used_blocks",
         own.capacity - own.num_withheld - own.available() - own.num_fenced},
        {"evicted_blocks", own.num_evicted},
    });
  });
  nb::dict d = made(nb::dict());
  for (const auto& [fact, value] : facts) d[fact] = value;
  return d;
}

// hit_rate_curve: (capacity, query_tokens, blocks found by number of blocks) of the partition of a
// namespace, or None if nothing is followed there.
template <class Holder>
nb::object reuse_counts(Holder& self, nb::handle name) {
  const std::string_view bytes = bytes_argument(name, "namespace", 0);
  int capacity = 0;
  std::int64_t query_tokens = 0;
  std::int64_t size = 0;
  std::unique_ptr<std::int64_t[]> numbers;
  self.read([&](const auto& core) {
    const Pool::Partition& own = core.quota(bytes);
    const ReuseTracker* past = own.past.get();
    if (!past) return 0;
    capacity = own.capacity;
    size = static_cast<std::int64_t>(past->histogram().size());
    numbers = new_numbers<std::int64_t>(size);
    std::copy_n(past->histogram().data(), size, numbers.get());
    query_tokens = past->query_tokens();
    return 0;
  });
  if (!numbers) return nb::none();
  return nb::make_tuple(capacity, query_tokens, to_array(std::move(numbers), size));
}

}  // namespace blockmgr
