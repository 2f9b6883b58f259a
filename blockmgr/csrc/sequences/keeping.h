// Ends and states that a copy puts in place: they are found once the copy is applied.
#pragma once

#include <cstdint>

#include "sequences/group_tables.h"

namespace blockmgr {

class Keeping : public Part<Keeping, GroupTables> {
 public:
  // Before ends of so many sequences are kept.
  void reserve_keeps(std::int64_t count) {
    const std::int64_t blocks = num_states() ? 1 + groups()->num_groups() : 0;
    rows().keeps.reserve(rows().keeps.size() + nth(count * blocks));
  }
  // Before a sequence leaves: what a copy was to keep of its end can be kept itself.
  void cancel_keeps(const Sequence& s) noexcept {
    if (!rows().keeps.empty()) [[unlikely]]
      cancel_end(s);
  }
  // Blocks that are used until a copy into them is applied.
  template <class Visit>
  void each_referenced(Visit visit) const {
    for (const Kept& k : rows().keeps)
      if (k.referenced) visit(k.block);
  }
  // Whether something is found, or used, as soon as its copy is applied.
  bool waits(const Kept& k) const;
  // Whether nothing is left to do, as the copy is resolved.
  bool settle(Kept& k) noexcept;
  // Whether a block that only this sequence has can become what others find.
  bool may_give(NodeId own) const;
  void give_state(Sequence& s, int g, NodeId node) noexcept;
  NodeId copy_end_block(const Sequence& s, std::int64_t unit, int num_tokens) noexcept;

 private:
  bool waits_for_copy(const Kept& k) const;
  void cancel_end(const Sequence& s) noexcept;
  NodeId node_awaiting_end(const Sequence& s) const;
  void keep_copy(NodeId source, NodeId copy, std::int32_t num_tokens, bool is_state) noexcept;
};

}  // namespace blockmgr
