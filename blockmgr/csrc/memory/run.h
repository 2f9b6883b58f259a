// Nodes taken together: a run of neighbours in a chain, a range of ids, a column of facts.
#pragma once

#include <cstddef>
#include <cstdint>

#include "memory/node.h"

namespace blockmgr {

// Nodes of one partition to which the same thing happens in one step. Of more than one, each is
// the parent of the next: what becomes used is told from the first on, what ends its use from the
// last on.
struct Run {
  const NodeId* nodes;
  std::int64_t count;

  const NodeId* begin() const { return nodes; }
  const NodeId* end() const { return nodes + count; }
};

// Node ids [first, first + count), and the most blocks that they have at a time.
struct Range {
  class Id {
   public:
    explicit Id(NodeId b) : b_(b) {}
    NodeId operator*() const { return b_; }
    Id& operator++() {
      ++b_;
      return *this;
    }
    bool operator!=(const Id& other) const { return b_ != other.b_; }

   private:
    NodeId b_;
  };

  NodeId first;
  int count;
  int num_blocks;

  NodeId last_end() const { return first + count; }
  bool holds(NodeId b) const { return b >= first && b < last_end(); }
  Id begin() const { return Id(first); }
  Id end() const { return Id(last_end()); }
};

// Facts of the nodes of one range, by id, zeroed at first; and of as many ids past it as there are
// sentinels.
template <class T>
class Column {
 public:
  explicit Column(Range range, int num_sentinels = 0)
      : facts_(static_cast<std::size_t>(range.count + num_sentinels)),
        origin_(reinterpret_cast<std::uintptr_t>(facts_.data()) -
                static_cast<std::uintptr_t>(range.first) * sizeof(T)) {}
  T& operator[](NodeId b) const {
    return *reinterpret_cast<T*>(origin_ + static_cast<std::uintptr_t>(b) * sizeof(T));
  }
  std::size_t bytes() const { return facts_.bytes(); }

 private:
  ZeroedArray<T> facts_;
  std::uintptr_t origin_;  // where node 0 would be; a number, for there is nothing there
};

}  // namespace blockmgr
