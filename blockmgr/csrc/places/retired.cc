// Retired blocks, which no prompt can find, go before all other idle ones. They are looked for
// where blocks are taken and none is free, a batch at a time, so that no call waits for all of
// them.
#include <algorithm>

#include "places/pool.h"

namespace blockmgr {

namespace {

constexpr std::int64_t kBatch = 256;

// A look that finds too few is repeated after evictions in proportion to what it cost: blocks that
// were in use become idle later.
constexpr std::int64_t kVisitsPerEviction = 8;

}  // namespace

// Makes so many idle retired blocks free, or more, as far as there are any.
[[gnu::noinline]] void Pool::sweep(Partition& own, std::int64_t count) noexcept {
  std::vector<PrefixIndex::Retired>& lists = index_.retired();
  for (std::size_t i = 0; i < lists.size() && count > 0;) {
    if (&of(lists[i].first) != &own || lists[i].again > own.num_evicted) {
      ++i;
      continue;
    }
    const std::size_t before = lists.size();
    const std::int64_t most = std::max(count, kBatch);
    std::int64_t visited = 0;
    const std::int64_t found = sweep_list(lists[i].first, most, visited);
    count -= found;
    if (lists.size() < before) continue;  // its last block has gone
    if (found < most) lists[i].again = own.num_evicted + visited / kVisitsPerEviction;
    ++i;
  }
}

// Makes idle blocks of a list and of all that continues it free, children first.
std::int64_t Pool::sweep_list(NodeId first, std::int64_t most, std::int64_t& visited) noexcept {
  const auto deepest = [this](NodeId n) {
    while (nodes_[n].first_child >= 0) n = nodes_[n].first_child;
    return n;
  };
  std::int64_t found = 0;
  for (NodeId n = deepest(first); found < most;) {
    ++visited;
    const NodeId parent = nodes_[n].parent;
    const NodeId next = nodes_[n].next_sibling;
    if (nodes_[n].first_child < 0 && nodes_.idle(n)) {
      forget(n);
      ++found;
    }
    if (next >= 0) {
      n = deepest(next);
    } else if (is_root(parent)) {
      break;
    } else {
      n = parent;
    }
  }
  return found;
}

}  // namespace blockmgr
