#include "policies/lfuda.h"

#include <algorithm>
#include <limits>

namespace blockmgr {

LfudaPolicy::LfudaPolicy(Nodes& nodes, const PrefixIndex& index, Range range)
    : EachBlock(nodes, index, range), facts_(range), heap_(static_cast<std::size_t>(range.count)) {}

void LfudaPolicy::sift(NodeId b, std::int32_t position) noexcept {
  while (position > 0) {
    const std::int32_t above = (position - 1) / 2;
    const NodeId parent = heap_[static_cast<std::size_t>(above)];
    if (!before(b, parent)) break;
    place(parent, position);
    position = above;
  }
  for (;;) {
    std::int32_t below = 2 * position + 1;
    if (below >= size_) break;
    if (below + 1 < size_ &&
        before(heap_[static_cast<std::size_t>(below + 1)], heap_[static_cast<std::size_t>(below)]))
      ++below;
    const NodeId child = heap_[static_cast<std::size_t>(below)];
    if (!before(child, b)) break;
    place(child, position);
    position = below;
  }
  place(b, position);
}

void LfudaPolicy::remove(NodeId b) noexcept {
  const std::int32_t position = facts(b).position - 1;
  facts(b).position = 0;
  const NodeId last = heap_[static_cast<std::size_t>(--size_)];
  if (last != b) sift(last, position);
}

void LfudaPolicy::cached(NodeId b) noexcept {
  facts(b).uses = 1;
  facts(b).key = age_ + 1;
}

void LfudaPolicy::hit(NodeId b) noexcept {
  Facts& f = facts(b);
  if (f.uses < std::numeric_limits<std::uint32_t>::max()) ++f.uses;
  f.key = age_ + f.uses;
  if (f.position) sift(b, f.position - 1);
}

void LfudaPolicy::idle(NodeId b) noexcept {
  facts(b).stamp = ++clock_;
  sift(b, size_++);
}

void LfudaPolicy::on_uncached(NodeId b, bool evicted) noexcept {
  // The age is the key of what was chosen; if that had children, one of them goes in its place. A
  // block that was in use while the cache aged may have a lower key.
  if (evicted) age_ = std::max(age_, facts(heap_[0]).key);
  if (facts(b).position) remove(b);
  facts(b).uses = 0;
}

}  // namespace blockmgr
