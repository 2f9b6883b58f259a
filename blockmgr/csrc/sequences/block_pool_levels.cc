// What callers say of single blocks that will be used again: retention and pins.
#include "sequences/block_pool.h"

namespace blockmgr {

void BlockPool::retain(const std::int64_t* ids, std::int64_t count, int level, double ttl) {
  const Held held(monitor_);
  check_retaining("retain");
  check_known(ids, count, "retain");
  // The last first, for a block's level reaches those before it.
  for (std::int64_t i = count; i-- > 0;) {
    const NodeId b = nodes_.owner(ids[i]);
    retaining("retain", pool_.partition_of(b)).retain(b, level, time_ + ttl);
  }
}

std::int64_t BlockPool::pin(std::int64_t id, const std::function<void(std::int64_t)>& announce) {
  const Held held(monitor_);
  check_retaining("pin");
  cached(id);
  const NodeId tail = nodes_.owner(id);
  std::int64_t num_blocks = 0;
  for (NodeId b = tail; b >= 0; b = nodes_[b].parent) ++num_blocks;
  return pin_chain(retaining("pin", pool_.partition_of(tail)), tail, num_blocks, announce);
}

}  // namespace blockmgr
