// A hash table of entries by a tag of 64 bits that stands in each of them.
//
// Linear probing without tombstones, at most half full, in memory taken at construction. Who keeps
// the entries numbers them from 0 on; two may have the same tag.
#pragma once

#include <cstddef>
#include <cstdint>

#include "memory/node.h"
#include "memory/secret.h"

namespace blockmgr {

class TagTable {
 public:
  // tags: that of entry 0; those of the others follow at this distance in bytes.
  TagTable(std::size_t num_entries, const std::uint64_t* tags, std::size_t stride)
      : tags_(reinterpret_cast<const unsigned char*>(tags)),
        stride_(stride),
        factor_(static_cast<std::uint32_t>(drawn_secret()) | 1),
        buckets_(2 * num_entries + 1) {}

  // The first entry with this tag, or -1.
  std::int32_t find(std::uint64_t tag) const noexcept {
    for (std::size_t i = home(tag); buckets_[i]; i = next(i))
      if (tag_of(buckets_[i] - 1) == tag) return buckets_[i] - 1;
    return -1;
  }
  void insert(std::int32_t entry) noexcept;
  // Its tag must be what it was.
  void erase(std::int32_t entry) noexcept;

  std::size_t bytes() const { return buckets_.bytes(); }
  // Entries there are; takes as long as there are buckets.
  std::int64_t size() const noexcept;
  // Whether a search meets this entry.
  bool holds(std::int32_t entry) const noexcept;
  // Occupied buckets in a row, at most: no search looks at more but one. Cost: O(buckets).
  std::int64_t longest_run() const {
    return longest_row(buckets_.size(), [&](std::size_t i) { return buckets_[i] != 0; });
  }

 private:
  // Tags that are no good hashes are spread, too. Those with an equal low half share a home: it
  // takes 2^32 digests to find one more of them.
  std::size_t home(std::uint64_t tag) const {
    const std::uint32_t spread = static_cast<std::uint32_t>(tag) * factor_;
    return static_cast<std::size_t>(static_cast<std::uint64_t>(spread) * buckets_.size() >> 32);
  }
  std::size_t next(std::size_t i) const { return i + 1 == buckets_.size() ? 0 : i + 1; }
  std::size_t distance(std::size_t from, std::size_t to) const {
    return to >= from ? to - from : to + buckets_.size() - from;
  }
  std::uint64_t tag_of(std::int32_t entry) const {
    return first_eight(tags_ + static_cast<std::size_t>(entry) * stride_);
  }

  const unsigned char* tags_;
  std::size_t stride_;
  std::uint32_t factor_;
  ZeroedArray<std::int32_t> buckets_;  // entry + 1; 0: empty
};

}  // namespace blockmgr
