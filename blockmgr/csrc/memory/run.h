// Blocks taken together: a run of neighbours in a chain, a range of ids, a column of facts.
#pragma once

#include <cstddef>
#include <cstdint>

#include "memory/block.h"

namespace blockmgr {

// Blocks of one partition to which the same thing happens in one step. Of more than one, each is
// the parent of the next: what becomes used is told from the first on, what ends its use from the
// last on.
struct Run {
  const BlockId* blocks;
  std::int64_t count;

  const BlockId* begin() const { return blocks; }
  const BlockId* end() const { return blocks + count; }
};

// Block ids [first, end).
struct Range {
  class Id {
   public:
    explicit Id(BlockId b) : b_(b) {}
    BlockId operator*() const { return b_; }
    Id& operator++() {
      ++b_;
      return *this;
    }
    bool operator!=(const Id& other) const { return b_ != other.b_; }

   private:
    BlockId b_;
  };

  BlockId first;
  int count;

  BlockId last_end() const { return first + count; }
  bool holds(BlockId b) const { return b >= first && b < last_end(); }
  Id begin() const { return Id(first); }
  Id end() const { return Id(last_end()); }
};

// Facts of the blocks of one range, by id, zeroed at first; and of as many ids past it as there are
// sentinels.
template <class T>
class Column {
 public:
  explicit Column(Range range, int num_sentinels = 0)
      : facts_(static_cast<std::size_t>(range.count + num_sentinels)),
        origin_(reinterpret_cast<std::uintptr_t>(facts_.data()) -
                static_cast<std::uintptr_t>(range.first) * sizeof(T)) {}
  T& operator[](BlockId b) const {
    return *reinterpret_cast<T*>(origin_ + static_cast<std::uintptr_t>(b) * sizeof(T));
  }
  std::size_t bytes() const { return facts_.bytes(); }

 private:
  ZeroedArray<T> facts_;
  std::uintptr_t origin_;  // where block 0 would be; a number, for there is nothing there
};

}  // namespace blockmgr
