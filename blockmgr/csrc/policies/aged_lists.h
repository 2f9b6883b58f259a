// Idle items in lists by level and by when they were last used: the order of eviction of a policy
// for which the worth of an item depends on both.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "memory/ring.h"

namespace blockmgr {

// The past cut into at most kSpans spans. The newest are about one unit long; older ones have been
// merged, two at a time, so that a span stays short beside its age (an exponential histogram).
//
// Source: Datar, Gionis, Indyk and Motwani, "Maintaining Stream Statistics over Sliding Windows",
// SIAM Journal on Computing 31(6), 2002.
class Spans {
 public:
  static constexpr int kSpans = 40;

  explicit Spans(std::int64_t unit) : unit_(unit) {}

  // Two spans that became one: blocks filed under the slot from belong in front of those filed
  // under into. from < 0: nothing was merged.
  struct Merge {
    int from = -1;
    int into = -1;
  };
  bool due(std::int64_t now) const { return now >= span(count_ - 1).start + unit_; }
  // Begins a new span.
  Merge begin(std::int64_t now) noexcept;

  int count() const { return count_; }
  // Slots are where a span's items are filed; they do not move when spans are merged.
  int slot(int i) const { return span(i).slot; }
  int newest_slot() const { return slot(count_ - 1); }
  // The age of the middle of the i-th oldest span.
  std::int64_t age(int i, std::int64_t now) const {
    const std::int64_t end = i + 1 < count_ ? span(i + 1).start : now;
    return now - (span(i).start + end) / 2;
  }
  // The slot of the span this time lies in.
  int slot_at(std::int64_t time) const;
  void fingerprint(std::string& out) const;

 private:
  struct Span {
    std::int64_t start = 0;
    int slot = 0;
  };
  Span& span(int i) { return spans_[static_cast<std::size_t>(i)]; }
  const Span& span(int i) const { return spans_[static_cast<std::size_t>(i)]; }

  std::int64_t unit_;
  int count_ = 1;
  std::array<Span, kSpans> spans_{};  // oldest first
};

// The lists: one for each span and level. Items are numbers below num_items.
class AgedLists {
 public:
  AgedLists(int num_items, int num_levels);

  int num_lists() const { return num_lists_; }
  int list(int slot, int level) const { return slot * num_levels_ + level; }
  void push_back(int item, int list) noexcept {
    ring::insert_before(nodes_.data(), item, end(list));
    joined(list);
  }
  void push_front(int item, int list) noexcept {
    ring::insert_after(nodes_.data(), item, end(list));
    joined(list);
  }
  void remove(int item) noexcept;
  void merge(const Spans::Merge& merge) noexcept;
  bool empty() const { return size_ == 0; }
  int size() const { return size_; }

  // The worth of an item in this list. After a change of worths: rank().
  void set_worth(int list, double worth) { worth_[static_cast<std::size_t>(list)] = worth; }
  double worth(int list) const { return worth_[static_cast<std::size_t>(list)]; }
  void rank() noexcept;
  // The first item of the list that is worth least. There must be one.
  int least() noexcept {
    if (least_ < 0) rank();
    return node(end(least_)).next;
  }

  std::size_t memory() const;
  template <class Visit>
  void each(int list, Visit visit) const {
    for (int i = node(end(list)).next; i != end(list); i = node(i).next) visit(i);
  }
  bool least_is_least() const;
  void fingerprint(std::string& out) const;

 private:
  struct Node {
    std::int32_t prev;
    std::int32_t next;
  };
  const Node& node(int i) const { return nodes_[static_cast<std::size_t>(i)]; }
  int end(int list) const { return num_items_ + list; }
  bool empty(int list) const { return node(end(list)).next == end(list); }
  void joined(int list) noexcept;
  // One bit a list, set when it may hold items: looking for the least skips the empty ones.
  std::uint64_t& word(int list) { return occupied_[static_cast<std::size_t>(list / 64)]; }
  static std::uint64_t bit(int list) { return std::uint64_t{1} << (list % 64); }

  int num_items_;
  int num_levels_;
  int num_lists_;
  int size_ = 0;
  int least_ = -1;
  std::vector<Node> nodes_;  // then one sentinel for each list
  std::vector<double> worth_;
  std::vector<std::uint64_t> occupied_;
};

}  // namespace blockmgr
