// Blocks of further groups of layers in the tables of sequences: taken, moved, merged, given back.
#pragma once

#include <cstdint>

#include "sequences/slices.h"

namespace blockmgr {

class GroupTables : public Part<GroupTables, Slices> {
 public:
  GroupTables()
      : parts_room_(growing().empty() ? 0 : nth(config().row_width)),
        path_room_(config().remap ? 0 : nth(config().row_width)) {}

  std::size_t memory() const { return parts_room_.bytes() + path_room_.bytes(); }
  // The cached node of a committed unit: the one in the table, or its twin.
  NodeId path_node(const Sequence& s, std::int64_t unit) const {
    if (config().remap) return rows().table(s)[unit];
    return rows().chain_node(s, unit + 1);
  }
  // The cached nodes of units [from, to), in memory that later calls for these units use again.
  const NodeId* path(const Sequence& s, std::int64_t from, std::int64_t to) noexcept {
    if (config().remap) return rows().table(s) + from;
    return path_of_twins(s, from, to);
  }
  NodeId take_of(int g, int partition, NodeId before) noexcept;
  NodeId take_part_run(const Sequence& s, int g, std::int64_t from, std::int64_t to,
                       NodeId before) noexcept;
  void show_groups(const Sequence& s, std::int64_t from) noexcept;
  // The parts that a sequence has of a node.
  std::int64_t num_parts(const Sequence& s, std::int64_t logical) const {
    std::int64_t parts = 0;
    each_part(s, logical, [&](int, NodeId) { ++parts; });
    return parts;
  }
  // The parts that a sequence takes to have so many slots, and to move to a node of its own there;
  // -1: it moves to none.
  std::int64_t parts_to_grow(const Sequence& s, std::int64_t slots, std::int64_t moved) const {
    if (growing().empty()) [[likely]]
      return 0;
    return moved < 0 && slots <= rows().num_slots(s) ? 0 : count_to_grow(s, slots, moved);
  }
  // Visits the part of one of its nodes in each further group of attention, if the sequence has it.
  template <class Visit>
  void each_part(const Sequence& s, std::int64_t logical, Visit visit) const {
    for (const int g : attention()) {
      if (logical < rows().group_row(s).first[nth(g)]) continue;
      const NodeId m = groups()->part(g, rows().table(s)[logical]);
      if (m >= 0) visit(g, m);
    }
  }
  // Its block of a unit that it has in a group whose tables grow.
  NodeId block_of(const Sequence& s, int g, std::int64_t unit) const {
    return groups()->group(g).is_attention() ? groups()->part(g, rows().table(s)[unit])
                                             : rows().group_row(s).own[nth(g)][nth(unit)];
  }
  // Blocks of so many nodes in all groups of attention.
  std::int64_t blocks_of_units(std::int64_t units) const {
    return units * (1 + static_cast<std::int64_t>(growing().size()));
  }
  // A sequence does nothing else before what is loaded is committed.
  void refuse_loading(const Sequence& s, const char* call) const {
    if (s.loads) [[unlikely]]
      throw_loading(s, call);
  }
  void refuse_moved(const Sequence& s, const char* call) const {
    refuse_loading(s, call);
    if (num_singles() && !rows().group_row(s).stands()) [[unlikely]]
      rows().refuse(s, call,
                    "a forward may have moved its state or ring since the last commit; commit "
                    "where it stopped first");
  }
  // After a sequence was given nodes for more slots: its parts of these.
  void take_parts(Sequence& s, std::int64_t had_slots, std::int64_t slots) noexcept {
    if (has_groups() && slots > had_slots) [[unlikely]]
      take_more_parts(s, had_slots, slots);
  }
  void make_parts_private(Sequence& s, std::int64_t logical, NodeId shared,
                          std::int32_t num_tokens) noexcept;
  void drop_parts(Sequence& s, std::int64_t from) noexcept {
    if (!growing().empty()) [[unlikely]]
      drop_all_parts(s, from);
  }
  // Drops the states and rings of a sequence, which replays nothing any more.
  void drop_states(Sequence& s) noexcept;
  template <class Visit>
  void each_single(Visit visit) const {
    for (const int g : recurrent()) visit(g);
    for (const int g : rings()) visit(g);
  }
  void take_rings(const Sequence& s, std::int64_t length) noexcept;
  void fork_rings(const GroupRow& from, int partition, GroupRow& to) noexcept;
  bool rings_reach(const Sequence& s, std::int64_t length) const;
  void empty_rings(const Sequence& s, std::int64_t length) noexcept;
  // Uncached windows, whose blocks are a sequence's own. The first unit that a sequence with a hit
  // of so many tokens has, because it computes it again.
  std::int64_t first_own(int g, std::int64_t hit) const {
    return groups()->unit_at(g, groups()->start_of(hit));
  }
  void begin_replay(const Sequence& s) noexcept;
  bool replay_to(Sequence& s, std::int64_t num_computed, bool advances) noexcept;
  void end_replay(const Sequence& s) noexcept;
  void take_own(const Sequence& s, int g, std::int64_t from, std::int64_t to) noexcept;
  std::int64_t blocks_to_fork(const Sequence& parent) const;
  void fork_own(const Sequence& model, const GroupRow& from, GroupRow& to) noexcept;
  bool has_own(const Sequence& s, std::int64_t length) const;
  // The slots beside the first, in which its states are.
  void take_others(GroupRow& row, int partition) noexcept;
  void place_state(Handle handle, std::int64_t slot);
  // As Rows::note_unwritten, of the part of a node, if the forward writes any of its tokens.
  void note_unwritten(const Sequence& s, std::int64_t logical, int g, NodeId part) noexcept {
    const std::int64_t end = logical * config().block_size + groups()->group(g).end;
    if (rows().written(s) < end) rows().note_unwritten(s, logical, part);
  }
  [[gnu::noinline]] void settle_parts(Sequence& s, std::int64_t logical, NodeId own,
                                      NodeId node) noexcept;
  [[gnu::noinline]] bool must_stay(const Sequence& s, std::int64_t logical, NodeId cached) const;
  [[gnu::noinline]] void merge_parts(Sequence& s, std::int64_t logical, NodeId cached) noexcept;
  // Trailing tokens of a node that this step's forward has yet to write, in the group that has
  // most.
  int most_unwritten(NodeId node) const { return unwritten().empty() ? 0 : count_unwritten(node); }
  [[gnu::noinline]] void note_written(Sequence& s) const noexcept;
  void drop_windows(Sequence& s) noexcept;
  void note_state(Sequence& s, bool advances) noexcept;
  void refuse_unknown_state(const Sequence& s, const char* call) const;
  std::int64_t num_dropped(const Sequence& s, std::vector<NodeId>& parts,
                           std::int64_t& num_early) const;

 private:
  [[gnu::noinline]] void take_more_parts(Sequence& s, std::int64_t had_slots,
                                         std::int64_t slots) noexcept;
  [[gnu::noinline]] void drop_all_parts(Sequence& s, std::int64_t from) noexcept;
  [[noreturn, gnu::cold]] void throw_loading(const Sequence& s, const char* call) const;
  [[gnu::noinline]] std::int64_t count_to_grow(const Sequence& s, std::int64_t slots,
                                               std::int64_t moved) const;
  [[gnu::noinline]] int count_unwritten(NodeId node) const;
  void bring(int g, NodeId source, std::int64_t num_tokens, NodeId to) noexcept;
  const NodeId* path_of_twins(const Sequence& s, std::int64_t from, std::int64_t to) noexcept;
  void drop_part_here(int g, NodeId node) noexcept;
  void drop_own(const Sequence& s, int g, std::int64_t from, std::int64_t to) noexcept;
  void drop_part(int g, NodeId node) noexcept;
  void drop_part_run(const Sequence& s, int g, std::int64_t from, std::int64_t to) noexcept;
  bool tells_state(const Sequence& s, bool advances) const;
  NodeId* others_of(const Sequence& s, int g) const;

  // By unit, and kept so that calls do not allocate: parts just taken, and a path.
  ZeroedArray<NodeId> parts_room_;
  ZeroedArray<NodeId> path_room_;
};

}  // namespace blockmgr
