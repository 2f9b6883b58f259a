#include "places/idle_segments.h"

#include <bit>

namespace blockmgr {

IdleSegments::IdleSegments(Nodes& nodes, Range range, NodeId sentinel)
    : links_(nodes.links.data()),
      range_(range),
      sentinel_(sentinel),
      begins_((nth(range.count) + 63) / 64) {
  link(sentinel, sentinel);
}

NodeId IdleSegments::first_of(NodeId n) const {
  if (begins(n)) return n;
  if (ends(n)) return at(n).next;
  const std::uint32_t i = index(n);
  std::uint32_t w = i >> 6;
  std::uint64_t before = begins_[w] & ((std::uint64_t{1} << (i & 63)) - 1);
  while (!before) before = begins_[--w];
  return range_.first +
         static_cast<NodeId>((w << 6) + 63 - static_cast<std::uint32_t>(std::countl_zero(before)));
}

// As remove() of a run of one. Nearly always the node is an end of its segment.
void IdleSegments::remove(NodeId n) noexcept {
  const NodeId before = at(n).prev;
  const NodeId after = at(n).next;
  if (begins(n)) {
    flip_begins(n);
    if (holds(before) && !begins(before)) {  // the last of the same segment
      flip_begins(n + 1);
      if (n + 1 != before) link(before, n + 1);
      link(n + 1, after);
    } else {
      link(before, after);
    }
  } else if (ends(n)) {
    link(before, n - 1);
    if (n - 1 != after) link(n - 1, after);
  } else {
    return remove(n, n);
  }
  --size_;
}

void IdleSegments::remove(NodeId first, NodeId last) noexcept {
  size_ -= last - first + 1;
  for (NodeId n = first; n <= last;) {
    const NodeId begin = first_of(n);
    const NodeId end = last_of(begin);
    const NodeId upto = std::min(end, last);
    NodeId before = at(end).prev;
    const NodeId after = at(begin).next;
    flip_begins(begin);
    if (upto < end) {
      place(before, upto + 1, end);
      before = upto + 1;
    }
    if (begin < n) {
      place(before, begin, n - 1);
      before = begin;
    }
    link(before, after);
    n = upto + 1;
  }
}

void IdleSegments::remove_front(int count) noexcept {
  size_ -= count;
  NodeId last = front();
  while (count) {
    const NodeId first = begins(last) ? last : at(last).next;
    const int length = last - first + 1;
    const NodeId after = at(first).next;
    flip_begins(first);
    if (length > count) {
      place(sentinel_, first, last - count);
      return link(first, after);
    }
    count -= length;
    last = after;
  }
  link(sentinel_, last);
}

bool IdleSegments::adds_up() const {
  int num_nodes = 0;
  int num_segments = 0;
  NodeId before = sentinel_;
  for (NodeId last = front(); last != sentinel_; last = at(before).next) {
    if (!holds(last) || at(last).prev != before) return false;
    NodeId first = last;
    if (!begins(last)) {
      first = at(last).next;
      if (!holds(first) || first >= last || !begins(first) || at(first).prev != last) return false;
      for (NodeId n = first + 1; n < last; ++n)
        if (begins(n)) return false;
    }
    num_nodes += last - first + 1;
    if (++num_segments > range_.count) return false;
    before = first;
  }
  int num_bits = 0;
  for (std::size_t i = 0; i < begins_.size(); ++i) num_bits += std::popcount(begins_[i]);
  return at(sentinel_).prev == before && num_nodes == size_ && num_bits == num_segments;
}

}  // namespace blockmgr
