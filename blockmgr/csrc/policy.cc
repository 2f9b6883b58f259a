#include "policy.h"

#include "errors.h"

namespace blockmgr {

BlockId leaf_below(const Blocks& blocks, BlockId b) {
  while (blocks[b].first_child >= 0) b = blocks[b].first_child;
  return b;
}

std::unique_ptr<Policy> make_policy(std::string_view name, Blocks& blocks,
                                    const PrefixIndex& index) {
  (void)blocks;
  (void)index;
  if (name == "lru") return nullptr;
  throw Error(ErrorKind::kValue, "eviction must be one of lru, got '" + std::string(name) + "'");
}

}  // namespace blockmgr
