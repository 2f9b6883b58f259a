#include "identity/node_ids.h"

namespace blockmgr {

namespace {

// Words looked at for a gap.
constexpr int kWords = 8;
// A gap of this length will do at once.
constexpr int kWide = 16;
// A run that begins in the middle of a gap leaves the other half to the run before it; in a shorter
// gap that is not worth it.
constexpr int kShared = 8;

struct Gap {
  int start = 0;
  int length = 0;  // at least; a power of two, kWide at most
};

// A gap among the free ids of a word, in a few steps whatever they look like.
Gap widest(std::uint64_t free) {
  Gap gap{std::countr_zero(free), 1};
  for (int length = 1; length < kWide; length *= 2) {
    free &= free >> length;  // where gaps of twice the length begin
    if (!free) break;
    gap = {std::countr_zero(free), 2 * length};
  }
  return gap;
}

}  // namespace

NodeIds::NodeIds(Range range)
    : first_(range.first),
      count_(static_cast<std::uint32_t>(range.count)),
      last_word_(count_ ? (count_ - 1) >> 6 : 0),
      last_whole_(ones(static_cast<int>(count_ - (last_word_ << 6)))),
      free_(count_),
      empty_(last_word_ + std::size_t{1}) {
  free_.fill(count_);
  empty_.fill(count_ ? last_word_ + 1 : 0);
}

std::uint32_t NodeIds::begin_run() noexcept {
  if (const std::uint32_t word = empty_.first(); word != BitTree::kNone) return word << 6;
  Gap best;
  std::uint32_t best_word = 0;
  std::uint32_t word = scan_;
  for (int seen = 0; seen < kWords && best.length < kWide; ++seen) {
    word = free_.next_word(word);
    if (word == BitTree::kNone) word = free_.first() >> 6;
    if (const Gap gap = widest(free_.word(word)); gap.length > best.length) {
      best = gap;
      best_word = word;
    }
    ++word;
  }
  scan_ = best_word;
  const int middle = best.length >= kShared ? best.length / 2 : 0;
  return (best_word << 6) + static_cast<std::uint32_t>(best.start + middle);
}

bool NodeIds::adds_up() const {
  bool holds = free_.adds_up() && empty_.adds_up();
  for (std::uint32_t word = 0; word << 6 < count_; ++word)
    holds &= empty_.contains(word) == (free_.word(word) == whole(word));
  return holds;
}

}  // namespace blockmgr
