#include "policies/lfuda.h"

#include <algorithm>
#include <limits>

namespace blockmgr {

LfudaPolicy::LfudaPolicy(Nodes& nodes, const PrefixIndex& index, Range range)
    : EachBlock(nodes, index, range),
      facts_(range),
      positions_(range),
      heap_(static_cast<std::size_t>(range.count), positions_) {
  for (const NodeId b : range) positions_[b] = -1;
}

void LfudaPolicy::cached(NodeId b) noexcept {
  facts(b).uses = 1;
  facts(b).rank.key = age_ + 1;
}

void LfudaPolicy::hit(NodeId b) noexcept {
  Facts& f = facts(b);
  if (f.uses < std::numeric_limits<std::uint32_t>::max()) ++f.uses;
  f.rank.key = age_ + f.uses;
  if (positions_[b] >= 0) heap_.raise(b, f.rank);
}

void LfudaPolicy::idle(NodeId b) noexcept {
  facts(b).rank.stamp = ++clock_;
  heap_.insert(b, facts(b).rank);
}

void LfudaPolicy::on_uncached(NodeId b, bool evicted) noexcept {
  // The age is the key of what was chosen; if that had children, one of them goes in its place. A
  // block that was in use while the cache aged may have a lower key.
  if (evicted) age_ = std::max(age_, heap_.front_key().key);
  if (positions_[b] >= 0) heap_.remove(b);
  facts(b).uses = 0;
}

}  // namespace blockmgr
