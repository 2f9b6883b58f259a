#include "policies/aged_lists.h"

#include <bit>

namespace blockmgr {

Spans::Merge Spans::begin(std::int64_t now) noexcept {
  Merge merge;
  int slot = count_;
  if (count_ == kSpans) {
    // The pair that is shortest beside its age; never the newest span, which items still join.
    int pair = 0;
    double least = 0;
    for (int i = 0; i + 2 < count_; ++i) {
      const double share = static_cast<double>(span(i + 2).start - span(i).start) /
                           static_cast<double>(now - span(i).start);
      if (i && share >= least) continue;
      least = share;
      pair = i;
    }
    slot = span(pair).slot;
    merge = {slot, span(pair + 1).slot};
    span(pair).slot = merge.into;
    for (int i = pair + 1; i + 1 < count_; ++i) span(i) = span(i + 1);
    --count_;
  }
  span(count_++) = {now, slot};
  return merge;
}

int Spans::slot_at(std::int64_t time) const {
  int low = 0;
  int high = count_;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (span(middle).start <= time ? low : high) = middle;
  }
  return slot(low);
}

AgedLists::AgedLists(int num_items, int num_levels)
    : num_items_(num_items),
      num_levels_(num_levels),
      num_lists_(num_levels * Spans::kSpans),
      nodes_(static_cast<std::size_t>(num_items + num_lists_)),
      worth_(static_cast<std::size_t>(num_lists_)),
      occupied_(static_cast<std::size_t>(num_lists_ + 63) / 64) {
  for (int i = 0; i < num_lists_; ++i) ring::clear(nodes_.data(), end(i));
}

void AgedLists::joined(int list) noexcept {
  ++size_;
  word(list) |= bit(list);
  if (least_ >= 0 && worth(list) < worth(least_)) least_ = list;
}

void AgedLists::remove(int item) noexcept {
  ring::remove(nodes_.data(), item);
  --size_;
  if (least_ >= 0 && empty(least_)) least_ = -1;
}

void AgedLists::merge(const Spans::Merge& merge) noexcept {
  if (merge.from < 0) return;
  least_ = -1;
  for (int level = 0; level < num_levels_; ++level) {
    const int from = list(merge.from, level);
    if (empty(from)) continue;
    const int into = list(merge.into, level);
    ring::move_to_front(nodes_.data(), end(from), end(into));
    word(into) |= bit(into);
  }
}

void AgedLists::rank() noexcept {
  least_ = -1;
  double least = 0;
  for (std::size_t w = 0; w < occupied_.size(); ++w) {
    for (std::uint64_t left = occupied_[w]; left; left &= left - 1) {
      const int i = static_cast<int>(w) * 64 + std::countr_zero(left);
      if (empty(i)) {
        occupied_[w] &= ~bit(i);
      } else if (least_ < 0 || worth(i) < least) {
        least_ = i;
        least = worth(i);
      }
    }
  }
}

std::size_t AgedLists::memory() const {
  return nodes_.capacity() * sizeof(Node) + worth_.capacity() * sizeof(double) +
         occupied_.capacity() * sizeof(std::uint64_t);
}

}  // namespace blockmgr
