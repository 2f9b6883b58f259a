// Blocks of groups of layers that are smaller than nodes: how many a number of slots takes, and
// what tables show of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "sequences/part.h"

namespace blockmgr {

class Slices : public Part<Slices> {
 public:
  Slices() {
    const std::int32_t size = config().block_size;
    const auto full = static_cast<std::int32_t>(rows().full_size());
    parts_before_.resize(nth(size) + 1);
    usable_.resize(parts_before_.size());
    for (std::int32_t n = 0; n <= size; ++n) {
      std::int32_t& usable = usable_[nth(n)];
      usable = (n + full - 1) / full * full;
      for (const int g : growing()) {
        const Group& group = groups()->group(g);
        parts_before_[nth(n)] += group.begin < n;
        if (group.begin < n && n <= group.end)
          usable = std::min(usable, static_cast<std::int32_t>(group.end));
      }
    }
  }

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
    if (!rows().has_table_slots()) return -1;
    return number(full_block(s, position / size)) * size + position % size;
  }
  // The block of so many tokens in the block tables; 0: its window has left it.
  BlockId full_block(const Sequence& s, std::int64_t logical) const {
    const auto slices = rows().shown_width(1);
    const NodeId n = rows().table(s)[logical / slices];
    const auto slice = static_cast<int>(logical % slices);
    if (pool().is_bare()) [[unlikely]] {
      const bool has = logical / slices >= rows().group_row(s).first[nth(slice)];
      return has ? nodes().block(groups()->part(slice, n)) : BlockId{0};
    }
    if (!slice) return nodes().block(n);
    const int g = groups()->num_groups() - static_cast<int>(slices) + slice;
    return nodes().block(groups()->part(g, n));
  }
  // Whether a group has blocks that are smaller than nodes.
  bool has_slices() const { return usable_[1] != config().block_size; }
  // Whether slots lie in other blocks than the nodes' own.
  bool has_other_slots() const { return has_slices() || pool().is_bare(); }
  // The slots that a sequence has if it is given so many: every group has whole blocks.
  std::int64_t usable_slots(std::int64_t slots) const {
    const std::int64_t whole = block_size().whole(slots) * config().block_size;
    return whole + usable_[nth(slots - whole)];
  }
  // The nodes of so many slots, from the first one on, that have a part in a group of attention.
  std::int64_t units_of(int g, std::int64_t slots) const {
    const std::int64_t whole = block_size().whole(slots);
    return whole + (slots - whole * config().block_size > groups()->group(g).begin);
  }
  // Slices of attention that begin before so many tokens of a path.
  std::int64_t parts_before(std::int64_t slots) const {
    const std::int64_t whole = block_size().whole(slots);
    return whole * parts_before_.back() + parts_before_[nth(slots - whole * config().block_size)];
  }

 private:
  // By tokens of a node: slices of attention that begin before them, and the slots that they give.
  std::vector<std::int32_t> parts_before_;
  std::vector<std::int32_t> usable_;
};

}  // namespace blockmgr
