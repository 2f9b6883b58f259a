#include <algorithm>

#include "sequences/sequences.h"

namespace blockmgr {

void Slices::measure() {
  const std::int32_t size = config().block_size;
  const auto full = static_cast<std::int32_t>(rows().full_size());
  parts_before_.resize(static_cast<std::size_t>(size) + 1);
  usable_.resize(parts_before_.size());
  for (std::int32_t n = 0; n <= size; ++n) {
    std::int32_t& usable = usable_[static_cast<std::size_t>(n)];
    usable = (n + full - 1) / full * full;
    for (const int g : growing()) {
      const Group& group = groups()->group(g);
      parts_before_[static_cast<std::size_t>(n)] += group.begin < n;
      if (group.begin < n && n <= group.end)
        usable = std::min(usable, static_cast<std::int32_t>(group.end));
    }
  }
}

}  // namespace blockmgr
