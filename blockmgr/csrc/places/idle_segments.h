// Idle nodes of a partition in eviction order, as segments: runs of ids next to each other that go
// one after the other, the last id first.
//
// A sequence is released last block first, and its nodes come in runs of ids, so a release is one
// segment whatever its length. Only the two ends of a segment are linked, and a bit marks its first
// id. The order is that of a list of single nodes: nothing else can be told from outside.
//
// Every call takes as many steps as segments are touched, and a word of 64 bits is read for each 64
// ids between a node in the middle of a segment and the first one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "memory/node.h"
#include "memory/ring.h"
#include "memory/run.h"

namespace blockmgr {

class IdleSegments {
 public:
  // The sentinel is past the last node.
  IdleSegments(Nodes& nodes, Range range, NodeId sentinel);

  bool empty() const { return size_ == 0; }
  // Nodes.
  int size() const { return size_; }
  // The node that is evicted first; end() if there is none.
  NodeId front() const { return at(sentinel_).next; }
  NodeId after(NodeId n) const { return begins(n) ? at(n).next : n - 1; }
  NodeId end() const { return sentinel_; }

  // [first, last] are evicted after all others, the last of them first.
  void push_back(NodeId first, NodeId last) noexcept {
    size_ += last - first + 1;
    const NodeId before = at(sentinel_).prev;
    if (before == last + 1) {  // the segment goes on
      const NodeId end = last_of(before);
      flip_begins(before);
      flip_begins(first);
      link(end, first);
    } else {
      place(before, first, last);
    }
    link(first, sentinel_);
  }
  void push_back(NodeId n) noexcept { push_back(n, n); }
  // Takes out [first, last], all of which are idle, wherever each is in the order.
  void remove(NodeId first, NodeId last) noexcept;
  void remove(NodeId n) noexcept;
  // Takes out that many from the front. There must be so many.
  void remove_front(int count) noexcept;

  std::size_t bytes() const { return begins_.bytes(); }
  // For check_invariants: whether links, bits and the count agree.
  bool adds_up() const;

 private:
  Links& at(NodeId n) const { return links_[n]; }
  std::uint32_t index(NodeId n) const { return static_cast<std::uint32_t>(n - range_.first); }
  bool holds(NodeId n) const { return index(n) < static_cast<std::uint32_t>(range_.count); }
  bool begins(NodeId n) const { return begins_[index(n) >> 6] >> (index(n) & 63) & 1; }
  void flip_begins(NodeId n) noexcept {
    begins_[index(n) >> 6] ^= std::uint64_t{1} << (index(n) & 63);
  }
  // The ends of the segment that a node is in.
  NodeId first_of(NodeId n) const;
  NodeId last_of(NodeId first) const {
    const NodeId before = at(first).prev;
    return holds(before) && !begins(before) ? before : first;
  }
  // Whether the node, which begins none, is the last of a segment: it knows the first. What a node
  // in the middle has there may be of any time, but no segment that begins there ends here.
  bool ends(NodeId n) const {
    const NodeId first = at(n).next;
    return holds(first) && begins(first) && at(first).prev == n;
  }
  // Links a segment after the one that begins with `before`; the link onwards is left open.
  void place(NodeId before, NodeId first, NodeId last) noexcept {
    link(before, last);
    if (first != last) link(last, first);
    flip_begins(first);
  }
  void link(NodeId before, NodeId after) noexcept { ring::join(links_, before, after); }

  Links* links_;
  Range range_;
  NodeId sentinel_;
  // A bit for each id of the range: it is the first of a segment. The list is of ends: the last of
  // a segment, its first, the last of the next segment; of a segment of one, the node once.
  ZeroedArray<std::uint64_t> begins_;
  int size_ = 0;
};

}  // namespace blockmgr
