// A set of numbers below a bound, each level a bit for every non-zero word of the one below: all
// calls take as many steps as there are levels, five at most.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/node.h"

namespace blockmgr {

class BitTree {
 public:
  static constexpr std::uint32_t kNone = 0xffffffff;

  explicit BitTree(std::size_t bound);
  void insert(std::uint32_t i) noexcept { insert(i >> 6, std::uint64_t{1} << (i & 63)); }
  void erase(std::uint32_t i) noexcept { erase(i >> 6, std::uint64_t{1} << (i & 63)); }
  // Numbers of one word.
  void insert(std::uint32_t word, std::uint64_t bits) noexcept {
    std::uint64_t& own = words_[word];
    if (!own) [[unlikely]]
      insert_above(word);
    own |= bits;
  }
  void erase(std::uint32_t word, std::uint64_t bits) noexcept {
    if (!(words_[word] &= ~bits)) [[unlikely]]
      erase_above(word);
  }
  // All below this bound.
  void fill(std::uint32_t bound) noexcept;
  bool contains(std::uint32_t i) const { return words_[i >> 6] >> (i & 63) & 1; }
  // kNone: it is empty.
  std::uint32_t first() const noexcept;
  std::uint32_t last() const noexcept;
  // The first word from this one on that is not zero; kNone: there is none.
  std::uint32_t next_word(std::uint32_t word) const noexcept;
  void clear() noexcept;
  std::size_t num_words() const { return levels_[0].size(); }
  std::uint64_t word(std::size_t i) const { return words_[i]; }
  std::size_t bytes() const;
  // For check_invariants: whether each level knows which words below are not zero.
  bool adds_up() const;

 private:
  void insert_above(std::uint32_t word) noexcept;
  void erase_above(std::uint32_t word) noexcept;

  std::vector<ZeroedArray<std::uint64_t>> levels_;
  std::uint64_t* words_;  // of the lowest level
};

}  // namespace blockmgr
