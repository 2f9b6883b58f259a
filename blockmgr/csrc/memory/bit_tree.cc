#include "memory/bit_tree.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace blockmgr {

BitTree::BitTree(std::size_t bound) {
  do {
    bound = bound ? (bound + 63) / 64 : 1;
    levels_.emplace_back(bound);
  } while (bound > 1);
  words_ = levels_[0].data();
}

void BitTree::insert_above(std::uint32_t word) noexcept {
  for (std::size_t level = 1; level < levels_.size(); ++level, word >>= 6) {
    std::uint64_t& own = levels_[level][word >> 6];
    const bool known = own != 0;
    own |= std::uint64_t{1} << (word & 63);
    if (known) return;
  }
}

void BitTree::erase_above(std::uint32_t word) noexcept {
  for (std::size_t level = 1; level < levels_.size(); ++level, word >>= 6)
    if (levels_[level][word >> 6] &= ~(std::uint64_t{1} << (word & 63))) return;
}

void BitTree::fill(std::uint32_t bound) noexcept {
  for (auto& level : levels_) {
    for (std::uint32_t word = 0; word << 6 < bound; ++word) {
      const std::uint32_t left = bound - (word << 6);
      level[word] = left < 64 ? (std::uint64_t{1} << left) - 1 : ~std::uint64_t{0};
    }
    bound = (bound + 63) / 64;
  }
}

std::uint32_t BitTree::first() const noexcept {
  if (!levels_.back()[0]) return kNone;
  std::uint32_t i = 0;
  for (std::size_t level = levels_.size(); level-- > 0;)
    i = i << 6 | static_cast<std::uint32_t>(std::countr_zero(levels_[level][i]));
  return i;
}

std::uint32_t BitTree::last() const noexcept {
  if (!levels_.back()[0]) return kNone;
  std::uint32_t i = 0;
  for (std::size_t level = levels_.size(); level-- > 0;)
    i = i << 6 | static_cast<std::uint32_t>(63 - std::countl_zero(levels_[level][i]));
  return i;
}

std::uint32_t BitTree::next_word(std::uint32_t word) const noexcept {
  if (word >= num_words()) return kNone;
  if (words_[word]) return word;
  // Up until a level has a bit behind this one, then down along the first bits.
  for (std::size_t level = 1; level < levels_.size(); ++level) {
    std::uint32_t at = word >> 6;
    if (at >= levels_[level].size()) return kNone;
    const std::uint64_t behind = levels_[level][at] >> (word & 63) << (word & 63);
    if (!behind) {
      word = at + 1;
      continue;
    }
    at = at << 6 | static_cast<std::uint32_t>(std::countr_zero(behind));
    while (--level > 0)
      at = at << 6 | static_cast<std::uint32_t>(std::countr_zero(levels_[level][at]));
    return at;
  }
  return kNone;
}

void BitTree::clear() noexcept {
  for (auto& level : levels_) std::memset(level.data(), 0, level.bytes());
}

std::size_t BitTree::bytes() const {
  std::size_t total = 0;
  for (const auto& level : levels_) total += level.bytes();
  return total;
}

bool BitTree::adds_up() const {
  bool holds = true;
  for (std::size_t level = 1; level < levels_.size(); ++level)
    for (std::size_t i = 0; i < levels_[level - 1].size(); ++i)
      holds &= (levels_[level][i >> 6] >> (i & 63) & 1) == (levels_[level - 1][i] != 0);
  return holds;
}

}  // namespace blockmgr
