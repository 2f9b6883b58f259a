// The KV oracle of groups of layers: what each kind of layer writes and reads.
//
// A cell of an attention group remembers the prefix whose last token it was computed from. A block
// of a recurrent group holds one state, which remembers all tokens that it has consumed; a forward
// advances it in place, or from one of its sequence's slots to another. So a state that is used
// twice, too early or too late differs from the correct one. A ring is one block with the last
// positions, each written over the one before by its width. Windows that are not cached are
// computed again before a hit, and with them the rings; all other groups begin at the hit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "device.h"
#include "places/group.h"

namespace blockmgr::testing {

// What one sequence does in one forward: computes the tokens [start, stop).
struct GroupWork {
  Handle handle;
  std::int64_t start;
  std::int64_t stop;
  std::vector<Prefix> prefixes;                   // after each token
  std::vector<std::vector<std::int32_t>> tables;  // by group, in the order of the engine
  bool begins = false;                            // its rings must be empty
  // Uncached windows and rings have nothing before `since`; other groups write from `hit` on.
  std::int64_t since = 0;
  std::int64_t hit = 0;
  // The slot in which its states are, and those in which the forward leaves them: after each of its
  // last tokens, as many as these.
  std::size_t from = 0;
  std::vector<std::size_t> to = {0};

  std::int64_t start_of(const Group& group) const {
    return group.is_cached() ? std::max(start, hit) : start;
  }
};

// Whether its blocks hold positions in order, as many as there are.
inline bool has_table(const Group& group) { return group.is_attention() || group.is_replayed(); }

class GroupDevice {
 public:
  GroupDevice(int num_blocks, int block_size, std::vector<Group> groups)
      : size_(block_size), groups_(std::move(groups)) {
    for (const Group& group : groups_)
      if (group.is_ring()) stride_ = std::max(stride_, group.width);
    cells_.resize(static_cast<std::size_t>(num_blocks * stride_));
  }

  // Runs the copies in random order, then one forward of all the work.
  void run(const std::vector<BlockCopy>& copies, std::vector<GroupWork>& work) {
    std::vector<std::pair<std::size_t, std::size_t>> words;
    for (const BlockCopy& copy : copies) {
      if (!copy.source || !copy.destination) throw Violation("a copy names the null block");
      if (copy.is_zeros()) continue;
      const auto g = static_cast<std::size_t>(copy.group);
      if (copy.num_tokens < 1 || copy.num_tokens > size_of(g))
        throw Violation("a copy has other tokens than a block");
      const bool whole = groups_[g].is_ring();
      for (std::int64_t word = 0; word < (whole ? stride_ : copy.num_tokens); ++word)
        words.emplace_back(at(copy.source, word), at(copy.destination, word));
    }
    std::shuffle(words.begin(), words.end(), rng_);
    for (const auto& [from, to] : words) cells_[to] = cells_[from];
    for (const BlockCopy& copy : copies)
      if (copy.is_zeros()) fill(copy.destination, 0);
    std::shuffle(work.begin(), work.end(), rng_);
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      if (!has_table(groups_[g])) {
        for (const GroupWork& one : work) groups_[g].is_ring() ? turn(g, one) : advance(g, one);
        continue;
      }
      for (const GroupWork& one : work)
        for (std::int64_t i = one.start_of(groups_[g]); i < one.stop; ++i)
          cell(g, one, i) = written(g, one, i);
      for (const GroupWork& one : work) {
        const std::int64_t start = one.start_of(groups_[g]);
        const std::int64_t least = groups_[g].is_cached() ? 0 : one.since;
        for (std::int64_t i = std::max(groups_[g].first_read(start), least);
             start < one.stop && i < one.stop; ++i)
          if (cell(g, one, i) != written(g, one, i)) fail(g, one, i);
      }
    }
  }
  // Something else than a forward writes what there are blocks for; it brings no ring.
  void load(const GroupWork& one) {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      if (groups_[g].recurrent())
        for (std::int64_t word = 0; word < size_; ++word)
          cells_[at(one.tables[g][one.to.back()], word)] =
              state_of(g, one.prefixes[static_cast<std::size_t>(one.stop - 1)], word);
      if (!groups_[g].is_attention()) continue;
      for (std::int64_t i = one.start; i < one.stop; ++i)
        if (const std::int32_t block = one.tables[g][static_cast<std::size_t>(i / size_of(g))])
          cells_[at(block, i % size_of(g))] = written(g, one, i);
    }
  }
  // Whether a word of a block was computed as the last token of a prefix.
  bool holds(std::size_t g, std::int32_t block, std::size_t word, Prefix prefix) const {
    return cells_[at(block, static_cast<std::int64_t>(word))] == cell_of(g, prefix);
  }
  // Whether a block is the state after a prefix.
  bool holds_state(std::size_t g, std::int32_t block, Prefix prefix) const {
    for (std::int64_t word = 0; word < size_; ++word)
      if (cells_[at(block, word)] != state_of(g, prefix, word)) return false;
    return true;
  }
  // The memory of a block is released.
  void spoil(std::int32_t block) { fill(block, ~Cell{0}); }
  // Tokens of a block of a group; of states and rings, those of a node.
  std::int64_t size_of(std::size_t g) const { return size_ / groups_[g].num_slices; }
  std::int64_t num_reads() const { return num_reads_; }

 private:
  using Cell = std::uint64_t;
  static constexpr Cell kState = Cell{1} << 63;

  std::size_t at(std::int32_t block, std::int64_t word) const {
    return static_cast<std::size_t>(block * stride_ + word);
  }
  void fill(std::int32_t block, Cell value) {
    for (std::int64_t word = 0; word < stride_; ++word) cells_[at(block, word)] = value;
  }
  static Cell cell_of(std::size_t g, Prefix prefix) { return Cell{prefix} << 8 | g; }
  static Cell state_of(std::size_t g, Prefix prefix, std::int64_t word) {
    return kState | static_cast<Cell>(word) << 48 | cell_of(g, prefix);
  }
  static Cell written(std::size_t g, const GroupWork& one, std::int64_t position) {
    return cell_of(g, one.prefixes[static_cast<std::size_t>(position)]);
  }
  Cell& cell(std::size_t g, const GroupWork& one, std::int64_t position) {
    const auto unit = static_cast<std::size_t>(position / size_of(g));
    const std::int32_t block = unit < one.tables[g].size() ? one.tables[g][unit] : 0;
    if (!block) fail(g, one, position);
    ++num_reads_;
    return cells_[at(block, position % size_of(g))];
  }
  // Writes and reads position by position.
  void turn(std::size_t g, const GroupWork& one) {
    const std::int64_t width = groups_[g].width;
    const std::int32_t block = one.tables[g][0];
    if (!block) fail(g, one, one.start);
    for (std::int64_t word = 0; one.begins && word < width; ++word)
      if (cells_[at(block, word)]) fail(g, one, one.start);
    for (std::int64_t i = one.start; i < one.stop; ++i) {
      cells_[at(block, i % width)] = written(g, one, i);
      const std::int64_t least = i < one.hit ? one.since : 0;
      for (std::int64_t read = std::max(i - i % groups_[g].restart, least); read <= i;
           ++read, ++num_reads_)
        if (cells_[at(block, read % width)] != written(g, one, read)) fail(g, one, read);
    }
  }
  void advance(std::size_t g, const GroupWork& one) {
    const std::int32_t source = one.tables[g][one.from];
    if (!source) fail(g, one, one.start);
    const auto state = [&](std::int64_t tokens, std::int64_t word) {
      return state_of(g, one.prefixes[static_cast<std::size_t>(tokens - 1)], word);
    };
    num_reads_ += size_;
    for (std::int64_t word = 0; one.start && word < size_; ++word)
      if (cells_[at(source, word)] != state(one.start, word)) fail(g, one, one.start);
    std::int64_t end = one.stop - static_cast<std::int64_t>(one.to.size());
    for (const std::size_t slot : one.to) {
      const std::int32_t block = one.tables[g][slot];
      if (!block) fail(g, one, one.start);
      ++end;
      for (std::int64_t word = 0; word < size_; ++word) cells_[at(block, word)] = state(end, word);
    }
  }
  [[noreturn]] void fail(std::size_t g, const GroupWork& one, std::int64_t position) const {
    throw Violation("sequence " + std::to_string(one.handle & 0xffffffff) + " computes [" +
                    std::to_string(one.start) + ", " + std::to_string(one.stop) +
                    ") and reads foreign K/V of group " + std::to_string(g) + " at position " +
                    std::to_string(position));
  }

  std::int64_t size_;
  std::int64_t stride_ = size_;  // words of a block in memory
  std::vector<Group> groups_;
  std::vector<Cell> cells_;
  std::int64_t num_reads_ = 0;
  std::minstd_rand rng_;
};

}  // namespace blockmgr::testing
