#include "memory/tag_table.h"

namespace blockmgr {

void TagTable::insert(std::int32_t entry) noexcept {
  std::size_t i = home(tag_of(entry));
  while (buckets_[i]) i = next(i);
  buckets_[i] = entry + 1;
}

void TagTable::erase(std::int32_t entry) noexcept {
  std::size_t hole = home(tag_of(entry));
  while (buckets_[hole] != entry + 1) hole = next(hole);
  // Whatever was pushed past this bucket moves up, so that no search ends too early.
  for (std::size_t at = next(hole); buckets_[at]; at = next(at)) {
    if (distance(home(tag_of(buckets_[at] - 1)), at) >= distance(hole, at)) {
      buckets_[hole] = buckets_[at];
      hole = at;
    }
  }
  buckets_[hole] = 0;
}

std::int64_t TagTable::size() const noexcept {
  std::int64_t count = 0;
  for (std::size_t i = 0; i < buckets_.size(); ++i) count += buckets_[i] != 0;
  return count;
}

bool TagTable::holds(std::int32_t entry) const noexcept {
  std::size_t i = home(tag_of(entry));
  while (buckets_[i] && buckets_[i] != entry + 1) i = next(i);
  return buckets_[i] != 0;
}

}  // namespace blockmgr
