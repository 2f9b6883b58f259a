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

// Whether these eight nodes have the ids from this one on. Without an exit in between: one vector.
inline bool are_eight(const NodeId* nodes, NodeId first) {
  int differs = 0;
  for (int i = 0; i < 8; ++i) differs |= nodes[i] ^ (first + i);
  return !differs;
}
// How many of these nodes, from the first on, have ids next to each other.
inline std::int64_t count_neighbours(const NodeId* nodes, std::int64_t count) {
  std::int64_t length = 1;
  const auto next = [&] { return nodes[0] + static_cast<NodeId>(length); };
  while (length + 8 <= count && are_eight(nodes + length, next())) length += 8;
  while (length < count && nodes[length] == next()) ++length;
  return length;
}
// The same from the last one back.
inline std::int64_t count_neighbours_before(const NodeId* nodes, std::int64_t count) {
  const NodeId* const last = nodes + count - 1;
  std::int64_t length = 1;
  const auto next = [&] { return *last - static_cast<NodeId>(length); };
  while (length + 8 <= count && are_eight(last - length - 7, next() - 7)) length += 8;
  while (length < count && last[-length] == next()) ++length;
  return length;
}

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
  std::uintptr_t origin_;  // of node 0; a number, because no memory is there
};

}  // namespace blockmgr
