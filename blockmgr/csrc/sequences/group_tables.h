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
    measure_slices();
  }

  std::size_t memory() const {
    return (parts_room_.capacity() + path_room_.capacity()) * sizeof(NodeId);
  }
  // Before ends of so many sequences are kept.
  void reserve_keeps(std::int64_t count) {
    const std::int64_t blocks = num_states() ? 1 + groups()->num_groups() : 0;
    rows().keeps.reserve(rows().keeps.size() + static_cast<std::size_t>(count * blocks));
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
  NodeId take_of(int g, int partition, NodeId before) noexcept;
  NodeId take_part_run(const Sequence& s, int g, std::int64_t from, std::int64_t to,
                       NodeId before) noexcept;
  void show_groups(const Sequence& s, std::int64_t from) noexcept;
  // What callers see of a group in a row: the block of each unit, and behind it those of the next
  // slices of the group.
  class Shown {
   public:
    Shown(std::int32_t* first, std::int64_t num_slices) : first_(first), num_slices_(num_slices) {}
    std::int32_t& operator[](std::int64_t unit) const { return first_[unit * num_slices_]; }

   private:
    std::int32_t* first_;
    std::int64_t num_slices_;
  };
  Shown shown_group_at(int g, std::int64_t row) const {
    const Group& group = groups()->group(g);
    const std::int64_t width = std::int64_t{config().row_width} * group.num_slices;
    std::int32_t* const first =
        group.number == config().full_group
            ? rows().shown_tables.data()
            : rows().shown_groups.data() +
                  (g - group.slice) * std::int64_t{config().max_seqs} * config().row_width;
    return {first + row * width + group.slice, group.num_slices};
  }
  // The slot of a position in full attention, whose blocks may be smaller than nodes.
  std::int64_t full_slot(const Sequence& s, std::int64_t position) const {
    const std::int64_t size = rows().full_size();
    return number(full_block(s, position / size)) * size + position % size;
  }
  // The block of so many tokens of full attention.
  BlockId full_block(const Sequence& s, std::int64_t logical) const {
    const auto slices = rows().shown_width(1);
    const NodeId n = rows().table(s)[logical / slices];
    const auto slice = static_cast<int>(logical % slices);
    if (!slice) return nodes().block(n);
    const int g = groups()->num_groups() - static_cast<int>(slices) + slice;
    return nodes().block(groups()->part(g, n));
  }
  // Whether a group has blocks that are smaller than nodes.
  bool has_slices() const { return usable_[1] != config().block_size; }
  // The parts that a sequence has of a node.
  std::int64_t num_parts(const Sequence& s, std::int64_t logical) const {
    std::int64_t parts = 0;
    each_part(s, logical, [&](int, NodeId) { ++parts; });
    return parts;
  }
  // The slots that a sequence has if it is given so many: every group has whole blocks.
  std::int64_t usable_slots(std::int64_t slots) const {
    const std::int64_t whole = block_size().whole(slots) * config().block_size;
    return whole + usable_[static_cast<std::size_t>(slots - whole)];
  }
  // The nodes of so many slots, from the first one on, that have a part in a group of attention.
  std::int64_t units_of(int g, std::int64_t slots) const {
    const std::int64_t whole = block_size().whole(slots);
    return whole + (slots - whole * config().block_size > groups()->group(g).begin);
  }
  // The parts that a sequence takes to have so many slots, and to move to a node of its own there;
  // -1: it moves to none.
  std::int64_t parts_to_grow(const Sequence& s, std::int64_t slots, std::int64_t moved) const {
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
  // Blocks of so many nodes in all groups of attention.
  std::int64_t blocks_of_units(std::int64_t units) const {
    return units * (1 + static_cast<std::int64_t>(attention().size()));
  }
  // Whether something is found, or used, as soon as its copy is applied.
  bool waits(const Kept& k) const;
  // Whether nothing is left to do, as the copy is resolved.
  bool settle(Kept& k) noexcept;
  void refuse_moved(const Sequence& s, const char* call) const;
  [[gnu::noinline]] void take_parts(Sequence& s, std::int64_t had_slots,
                                    std::int64_t slots) noexcept;
  void make_parts_private(Sequence& s, std::int64_t logical, NodeId shared,
                          std::int32_t num_tokens) noexcept;
  void drop_parts(Sequence& s, std::int64_t from) noexcept;
  void drop_states(Sequence& s) noexcept;
  // As Rows::note_unwritten, of the part of a node, if the forward writes any of its tokens.
  void note_unwritten(const Sequence& s, std::int64_t logical, int g, NodeId part) noexcept {
    const std::int64_t end = logical * config().block_size + groups()->group(g).end;
    if (rows().written(s) < end) rows().note_unwritten(s, logical, part);
  }
  void settle_parts(Sequence& s, std::int64_t logical, NodeId own, NodeId node) noexcept;
  [[gnu::noinline]] bool must_stay(const Sequence& s, std::int64_t logical, NodeId cached) const;
  [[gnu::noinline]] void merge_parts(Sequence& s, std::int64_t logical, NodeId cached) noexcept;
  // Trailing tokens of a node that this step's forward has yet to write, in the group that has
  // most.
  int most_unwritten(NodeId node) const { return unwritten().empty() ? 0 : count_unwritten(node); }
  [[gnu::noinline]] std::int64_t written_of(const Sequence& s, std::int64_t length) const;
  bool may_give(NodeId own) const;
  void give_state(Sequence& s, int g, NodeId node) noexcept;
  NodeId copy_end_block(const Sequence& s, std::int64_t unit, int num_tokens) noexcept;
  void drop_windows(Sequence& s) noexcept;
  void note_state(Sequence& s) noexcept;
  void refuse_unknown_state(const Sequence& s, const char* call) const;
  std::int64_t num_dropped(const Sequence& s, std::vector<NodeId>& parts) const;

 private:
  void measure_slices();
  [[gnu::noinline]] std::int64_t count_to_grow(const Sequence& s, std::int64_t slots,
                                               std::int64_t moved) const;
  std::int64_t parts_before(std::int64_t slots) const {
    const std::int64_t whole = block_size().whole(slots);
    return whole * parts_before_.back() +
           parts_before_[static_cast<std::size_t>(slots - whole * config().block_size)];
  }
  bool waits_for_copy(const Kept& k) const;
  [[gnu::noinline]] int count_unwritten(NodeId node) const;
  void cancel_end(const Sequence& s) noexcept;
  const NodeId* path_of_twins(const Sequence& s, std::int64_t from, std::int64_t to) noexcept;
  NodeId node_awaiting_end(const Sequence& s) const;
  void keep_copy(NodeId source, NodeId copy, std::int32_t num_tokens, bool is_state) noexcept;
  void drop_part_here(int g, NodeId node) noexcept;
  void drop_part(int g, NodeId node) noexcept;
  void drop_part_run(const Sequence& s, int g, std::int64_t from, std::int64_t to) noexcept;
  bool tells_state(const Sequence& s) const;

  // By tokens of a node: slices of attention that begin before them, and the slots that they give.
  std::vector<std::int32_t> parts_before_;
  std::vector<std::int32_t> usable_;
  std::vector<NodeId> parts_room_;  // by unit
  std::vector<NodeId> path_room_;   // likewise
};

}  // namespace blockmgr
