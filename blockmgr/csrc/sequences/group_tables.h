// Blocks of further groups of layers in the tables of sequences: taken, moved, merged, given back.
#pragma once

#include <cstdint>

#include "sequences/part.h"

namespace blockmgr {

class GroupTables : public Part<GroupTables> {
 public:
  GroupTables() {
    if (!groups()) return;
    parts_room_.resize(static_cast<std::size_t>(config().row_width));
    if (!config().remap) path_room_.resize(parts_room_.size());
  }

  std::size_t memory() const {
    return keeps_.capacity() * sizeof(Kept) +
           (parts_room_.capacity() + path_room_.capacity()) * sizeof(NodeId);
  }
  // Before ends of so many sequences are kept.
  void reserve_keeps(std::int64_t count) {
    const std::int64_t blocks = num_states() ? 1 + groups()->num_groups() : 0;
    keeps_.reserve(keeps_.size() + static_cast<std::size_t>(count * blocks));
  }
  void settle_keeps() noexcept;
  // Before a sequence leaves: what a copy was to keep of its end can be kept itself.
  void cancel_keeps(const Sequence& s) noexcept;
  // Blocks that are used until a copy into them is applied.
  template <class Visit>
  void each_referenced(Visit visit) const {
    for (const Kept& k : keeps_)
      if (k.referenced) visit(k.block);
  }
  // The cached node of a committed unit: the one in the table, or its twin.
  NodeId path_node(const Sequence& s, std::int64_t unit) const {
    if (config().remap) return rows().table(s)[unit];
    return rows().chain_node(s, unit + 1);
  }
  // Those of units [from, to), in memory that later calls for the same units use again.
  const NodeId* path(const Sequence& s, std::int64_t from, std::int64_t to) noexcept {
    if (config().remap) return rows().table(s) + from;
    return path_of_twins(s, from, to);
  }
  // Writes down for mirrors the states that were kept.
  void tell_keeps() noexcept {
    for (const Kept& k : keeps_)
      if (k.is_state) groups()->tell_kept(k.block);
  }
  NodeId take_of(int g, int partition, NodeId before) noexcept;
  NodeId take_part_run(const Sequence& s, int g, std::int64_t from, std::int64_t to,
                       NodeId before) noexcept;
  void show_groups(const Sequence& s, std::int64_t from) noexcept;
  std::int32_t* shown_group_at(int g, std::int64_t row) const {
    return rows().shown_groups.data() +
           (g * std::int64_t{config().max_seqs} + row) * config().row_width;
  }
  // Visits the part of one of its blocks in each further group of attention, while the sequence has
  // it.
  template <class Visit>
  void each_part(const Sequence& s, std::int64_t logical, Visit visit) const {
    for (int g = 0; groups() && g < groups()->num_groups(); ++g)
      if (!groups()->group(g).recurrent() && logical >= rows().group_row(s).first[nth(g)])
        visit(g, groups()->part(g, rows().table(s)[logical]));
  }
  std::int64_t grouped_need(std::int64_t blocks) const;
  void refuse_moved(const Sequence& s, const char* call) const;
  void take_parts(Sequence& s, std::int64_t from) noexcept;
  void make_parts_private(Sequence& s, std::int64_t logical, NodeId shared,
                          std::int32_t num_tokens) noexcept;
  void drop_parts(Sequence& s, std::int64_t from) noexcept;
  void drop_states(Sequence& s) noexcept;
  void settle_parts(Sequence& s, std::int64_t logical, NodeId own, NodeId node) noexcept;
  [[gnu::noinline]] bool must_stay(const Sequence& s, std::int64_t logical, NodeId cached) const;
  [[gnu::noinline]] void merge_parts(Sequence& s, std::int64_t logical, NodeId cached) noexcept;
  int most_unwritten(NodeId node) const;
  [[gnu::noinline]] std::int64_t grouped_written(const Sequence& s, std::int64_t length) const;
  bool may_give(NodeId own) const;
  void give_state(Sequence& s, int g, NodeId node) noexcept;
  NodeId copy_end_block(const Sequence& s, std::int64_t unit, int num_tokens) noexcept;
  void drop_windows(Sequence& s) noexcept;
  void note_state(Sequence& s) noexcept;
  void refuse_unknown_state(const Sequence& s, const char* call) const;
  std::int64_t num_dropped(const Sequence& s, std::vector<NodeId>& parts) const;

 private:
  bool waits_for_copy(const Kept& k) const;
  bool settle(Kept& k) noexcept;
  const NodeId* path_of_twins(const Sequence& s, std::int64_t from, std::int64_t to) noexcept;
  NodeId node_awaiting_end(const Sequence& s) const;
  void keep_copy(NodeId source, NodeId copy, std::int32_t num_tokens, bool is_state) noexcept;
  void drop_part(int g, NodeId node) noexcept;
  void drop_part_run(const Sequence& s, int g, std::int64_t from, std::int64_t to) noexcept;
  bool tells_state(const Sequence& s) const;

  std::vector<Kept> keeps_;
  std::vector<NodeId> parts_room_;  // by unit
  std::vector<NodeId> path_room_;   // likewise
};

}  // namespace blockmgr
