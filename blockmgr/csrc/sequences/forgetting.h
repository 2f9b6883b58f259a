// Blocks that must not be found any more: their K/V is wrong, must not be served, or loses its
// memory.
#pragma once

#include <cstdint>
#include <string_view>

#include "sequences/holding.h"

namespace blockmgr {

class Forgetting : public Part<Forgetting, Holding> {
 public:
  // Makes all that is cached unfindable for good, whatever it is in use for. The blocks that were.
  std::int64_t reset_prefix_cache(bool reset_hit_rate);
  // Makes these blocks unfindable for good, with all that continues them. The blocks
  // that could be found until now.
  std::int64_t forget(const std::int64_t* ids, std::int64_t count);
  // Makes what is cached in a namespace unfindable for good; it goes before all other idle blocks.
  // The running sequences of the namespace, which continue with what they have.
  std::int64_t retire(std::string_view name);
  std::int64_t forget_chain(NodeId b, std::vector<bool>* gone = nullptr) noexcept;
  // Takes all blocks from this id on out of use, or (grow) those below it back into use. Blocks
  // that tables, holds, copies or steps have stay until these release them: how many there are.
  std::int64_t shrink_pool(std::int64_t num_blocks);
  void grow_pool(std::int64_t num_blocks);

 private:
  void detach(Sequence& s) noexcept;
  std::int64_t retire_root(std::uint32_t root);
  NodeId forget_part(NodeId n) noexcept;
  bool forget_table(Sequence& s, std::vector<bool>& wrong, std::int64_t& forgotten) noexcept;
  void mend_chains() noexcept;
  std::int64_t forget_all(const std::int64_t* ids, std::int64_t count,
                          std::vector<bool>& wrong) noexcept;
};

}  // namespace blockmgr
