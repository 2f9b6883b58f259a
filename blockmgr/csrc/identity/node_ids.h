// Ids of nodes, handed out in runs.
//
// The id after the one that a node continues is taken if it is free. Otherwise a new run begins: at
// the start of a word of 64 free ids, or, where there is none, in the middle of a wide gap, so that
// both this run and the one before it have room to go on. Runs of one sequence wear out where ids
// are as few as blocks: in a full pool only the ids of what was evicted last are free. So there are
// a fifth more ids than blocks.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "memory/bit_tree.h"
#include "memory/node.h"
#include "memory/run.h"

namespace blockmgr {

class NodeIds {
 public:
  // Ids for the nodes of so many blocks.
  static int spare(int num_blocks) { return (num_blocks + 4) / 5; }
  static int count_for(int num_blocks) { return num_blocks + spare(num_blocks); }

  // All ids of the range, free.
  explicit NodeIds(Range range);
  // A free id, if possible the one after `before`, which may be kNoNode. There must be one.
  NodeId take(NodeId before) noexcept {
    const std::uint32_t i = next(before);
    use(i >> 6, std::uint64_t{1} << (i & 63));
    return first_ + static_cast<NodeId>(i);
  }
  // That many, each after the one before it if possible: visit(position, id).
  template <class Visit>
  void take_run(NodeId before, std::int64_t count, Visit visit) noexcept {
    for (std::int64_t done = 0; done < count;) {
      const std::uint32_t i = next(before);
      const auto bit = static_cast<int>(i & 63);
      const int most = std::countr_one(free_.word(i >> 6) >> bit);
      const auto length = static_cast<int>(std::min<std::int64_t>(most, count - done));
      use(i >> 6, ones(length) << bit);
      NodeId n = first_ + static_cast<NodeId>(i);
      for (const NodeId end = n + length; n < end; ++n) visit(done++, n);
      before = n - 1;
    }
  }
  void give(NodeId n) noexcept {
    const auto i = static_cast<std::uint32_t>(n - first_);
    free_.insert(i);
    if (free_.word(i >> 6) == whole(i >> 6)) [[unlikely]]
      empty_.insert(i >> 6);
  }
  // The same of ids [first, last].
  void give_run(NodeId first, NodeId last) noexcept {
    while (first <= last) {
      const auto i = static_cast<std::uint32_t>(first - first_);
      const int bit = static_cast<int>(i & 63);
      const int length = std::min(64 - bit, last - first + 1);
      free_.insert(i >> 6, ones(length) << bit);
      if (free_.word(i >> 6) == whole(i >> 6)) empty_.insert(i >> 6);
      first += length;
    }
  }
  bool is_free(NodeId n) const { return free_.contains(static_cast<std::uint32_t>(n - first_)); }
  std::size_t bytes() const { return free_.bytes() + empty_.bytes(); }
  // For check_invariants: whether it knows which words are wholly free, and finds
  // them.
  bool adds_up() const;

 private:
  static std::uint64_t ones(int count) {
    return count < 64 ? (std::uint64_t{1} << count) - 1 : ~std::uint64_t{0};
  }
  // A word with every id free.
  std::uint64_t whole(std::uint32_t word) const {
    return word == last_word_ ? last_whole_ : ~std::uint64_t{0};
  }
  std::uint32_t next(NodeId before) noexcept {
    const auto i = static_cast<std::uint32_t>(before + 1 - first_);
    return before >= first_ && i < count_ && free_.contains(i) ? i : begin_run();
  }
  void use(std::uint32_t word, std::uint64_t ids) noexcept {
    if (free_.word(word) == whole(word)) [[unlikely]]
      empty_.erase(word);
    free_.erase(word, ids);
  }
  std::uint32_t begin_run() noexcept;

  NodeId first_;
  std::uint32_t count_;
  std::uint32_t last_word_;
  std::uint64_t last_whole_;
  BitTree free_;
  BitTree empty_;           // words of which every id is free
  std::uint32_t scan_ = 0;  // the word where the next search for a gap begins
};

}  // namespace blockmgr
