// What callers read of sequences: slots, blocks and digests, and what prefixes they have in common.
#pragma once

#include <cstdint>

#include "sequences/group_tables.h"

namespace blockmgr {

// A block that is out of use and not free yet, and a running sequence that has it; -1: none has,
// but a hold, a copy or a step.
struct LeavingBlock {
  std::int32_t block;
  Handle handle;
};

class Reading : public Part<Reading, Slices, GroupTables> {
 public:
  // The first block that a running sequence has of a group of attention.
  std::int64_t first_of(Handle handle, int g) const {
    return rows().group_row(rows().live(handle)).first[nth(g)];
  }
  GroupRow view_groups(Handle handle) const {
    const Sequence& s = rows().view(handle);
    GroupRow row = rows().group_row(s);
    if (!num_states() || s.state != Sequence::kRunning) row.stops = {};  // no forward ends there
    for (std::int64_t& stop : row.stops)
      if (stop > s.num_tokens) stop = 0;  // behind a truncation, until there are tokens again
    return row;
  }
  void check_slots(Handle handle, std::int64_t start, std::int64_t stop) const;
  // Likewise in the group of the block tables, whose window may be gone.
  void check_table_slots(Handle handle, std::int64_t start, std::int64_t stop) const;
  void slot_mapping(Handle handle, std::int64_t start, std::int64_t stop,
                    std::int64_t* slots) const;
  // The same in a group of attention beside that of the block tables: where its window is gone,
  // there are no slots any more.
  void check_group_slots(Handle handle, int g, std::int64_t start, std::int64_t stop) const;
  void group_slots(Handle handle, int g, std::int64_t start, std::int64_t stop,
                   std::int64_t* slots) const;
  // What forwards compute again, they write in uncached groups alone: no slots in all others.
  void pad_replay(Handle handle, std::int64_t start, std::int64_t stop, std::int64_t* slots) const;
  // Columns of its row of the block tables.
  std::int64_t num_full_blocks(const Sequence& s) const {
    if (!rows().has_table_slots()) return 0;
    const std::int64_t size = rows().full_size();
    return (rows().num_slots(s) + size - 1) / size;
  }
  // Its blocks, from this one on, as many as it has.
  std::vector<std::int32_t> block_ids(Handle handle, std::int64_t start) const;
  // By block, then by row: see Forgetting::shrink_pool.
  std::vector<LeavingBlock> leaving() const;
  void reset_hit_rate();
  // Leading whole computed blocks that all of these sequences have in their tables; or all that
  // run.
  std::int64_t num_common_prefix_blocks(const Handle* handles, std::int64_t count);
  std::int64_t num_common_prefix_blocks();
  // Whole blocks of a prompt, and their digests, into out. Throws what the digest function throws.
  std::int64_t num_digests(const Prompt& prompt) const;
  void block_digests(const Prompt& prompt, std::uint8_t* out);

 private:
  std::int64_t common_with(const Sequence& s, const std::int32_t*& first,
                           std::int64_t common) const;
};

}  // namespace blockmgr
