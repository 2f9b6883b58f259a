// How often each id of a list was named, counted beside the records and not in them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace blockmgr {

// A hash table of counts, at most half full, in memory that is kept from one list to the next.
class Tally {
 public:
  // Forgets every count. most: different ids that will be named. May throw; nothing else does.
  void begin(std::int64_t most) {
    const std::size_t size = std::bit_ceil(2 * static_cast<std::size_t>(most));
    entries_.assign(size, Entry{kNone, 0});
    mask_ = size - 1;
  }
  // How often this id has been named, this time included.
  std::uint32_t add(std::int32_t id) noexcept {
    std::size_t i = home(id);
    while (entries_[i].id != id) {
      if (entries_[i].id == kNone) {
        entries_[i].id = id;
        break;
      }
      i = (i + 1) & mask_;
    }
    return ++entries_[i].count;
  }
  std::size_t memory() const { return entries_.capacity() * sizeof(Entry); }

 private:
  static constexpr std::int32_t kNone = -1;
  struct Entry {
    std::int32_t id;
    std::uint32_t count;
  };
  // Fibonacci hashing: ids in use are often neighbours.
  std::size_t home(std::int32_t id) const {
    return (static_cast<std::uint32_t>(id) * 0x9e3779b1u >> 7) & mask_;
  }

  std::vector<Entry> entries_;
  std::size_t mask_ = 0;
};

}  // namespace blockmgr
