#include "policies/reuse_sample.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

namespace blockmgr {

namespace {

// Enough entries to learn from and few enough that a pool of any size pays the same for them.
constexpr int kMaxEntries = 16384;
// Entries remember as many blocks as would fill the pool this often.
constexpr int kMemory = 32;

int entries_for(int capacity) {
  return static_cast<int>(std::min<std::int64_t>(std::int64_t{kMemory} * capacity, kMaxEntries));
}

}  // namespace

ReuseSample::ReuseSample(int capacity, std::int64_t unit)
    : model_(unit),
      entries_(static_cast<std::size_t>(entries_for(capacity) + 1)),
      table_(static_cast<std::size_t>(end()), &entries_.data()->tag, sizeof(Entry)),
      lists_(end(), ReuseModel::kLevels),
      lru_last_(end()) {
  ring::clear(entries_.data(), end());
  const auto remembered = static_cast<double>(std::int64_t{kMemory} * capacity);
  share_ = std::min(1.0, static_cast<double>(end()) / remembered);
  limit_ = std::numeric_limits<std::uint64_t>::max();
  if (share_ < 1) limit_ = static_cast<std::uint64_t>(share_ * 0x1p64);
  directory_ = std::max(1, static_cast<int>(share_ * capacity));
}

// A few blocks that a sequence has not filled yet make no difference.
void ReuseSample::set_held(int num_blocks) noexcept {
  const int held = std::max(1, static_cast<int>(share_ * num_blocks));
  if (std::abs(held - directory_) <= directory_ / 8) return;
  directory_ = held;
  while (num_lru_ > directory_) shorten_lru();
  while (num_learned_ > directory_ && !lists_.empty()) leave_learned(lists_.least());
}

int ReuseSample::add(std::uint64_t tag, std::int64_t now) noexcept {
  int i = entry(end()).next;
  if (num_entries_ < end()) {
    i = num_entries_++;
  } else {
    forget(i, now);
  }
  entry(i) = {};
  entry(i).tag = tag;
  table_.insert(i);
  return i;
}

void ReuseSample::forget(int i, std::int64_t now) noexcept {
  const Entry& e = entry(i);
  if (e.idle) model_.end(e.cell, e.level, now - e.since, false);
  leave_learned(i);
  if (e.in_lru) --num_lru_;
  unlink(i);
  table_.erase(i);
}

void ReuseSample::unlink(int i) noexcept {
  if (lru_last_ == i) lru_last_ = entry(i).next;
  ring::remove(entries_.data(), i);
}

void ReuseSample::make_newest(int i) noexcept {
  Entry& e = entry(i);
  ring::insert_before(entries_.data(), i, end());
  if (lru_last_ == end()) lru_last_ = i;
  if (e.in_lru) return;
  e.in_lru = true;
  if (++num_lru_ > directory_) shorten_lru();
}

void ReuseSample::shorten_lru() noexcept {
  entry(lru_last_).in_lru = false;
  lru_last_ = entry(lru_last_).next;
  --num_lru_;
}

void ReuseSample::leave_learned(int i) noexcept {
  Entry& e = entry(i);
  if (!e.in_learned) return;
  if (e.idle) lists_.remove(i);
  e.in_learned = false;
  --num_learned_;
}

void ReuseSample::use(std::uint64_t tag, std::int64_t now) noexcept {
  look_ups_ += 1;
  all_look_ups_ += 1;
  int i = find(tag);
  if (i >= 0) {
    unlink(i);
  } else {
    i = add(tag, now);
  }
  Entry& e = entry(i);
  if (e.idle) {
    model_.end(e.cell, e.level, now - e.since, true);
    lru_hits_ += e.in_lru;
    learned_hits_ += e.in_learned;
    difference_ += e.in_learned - e.in_lru;
    if (e.in_learned) lists_.remove(i);
    e.idle = false;
  }
  if (!e.in_learned) {
    e.in_learned = true;
    // With everything in use there is nothing to evict, as in a pool that is full.
    if (++num_learned_ > directory_ && !lists_.empty()) leave_learned(lists_.least());
  }
  make_newest(i);
}

void ReuseSample::end_use(std::uint64_t tag, int cell, std::int64_t now,
                          const Spans& spans) noexcept {
  const int i = find(tag);
  if (i < 0) return;
  Entry& e = entry(i);
  if (e.idle && e.in_learned) lists_.remove(i);
  e.idle = true;
  e.since = now;
  e.cell = static_cast<std::uint16_t>(cell);
  e.level = static_cast<std::uint8_t>(model_.level(cell));
  if (e.in_learned) lists_.push_back(i, lists_.list(spans.newest_slot(), e.level));
  unlink(i);
  make_newest(i);
}

void ReuseSample::end_request(bool followed) noexcept {
  if (!difference_) return;
  const auto difference = static_cast<double>(difference_);
  variance_ += difference * difference;
  if (followed) won_ += difference;
  difference_ = 0;
}

double ReuseSample::deviation() const { return std::sqrt(variance_); }

void ReuseSample::fit(std::int64_t now) noexcept {
  model_.clear_waiting();
  for (int i = 0; i < num_entries_; ++i)
    if (const Entry& e = entry(i); e.idle) model_.waiting(e.cell, e.level, now - e.since);
  model_.fit();
}

std::size_t ReuseSample::memory() const {
  return entries_.capacity() * sizeof(Entry) + table_.bytes() + lists_.memory() + model_.memory();
}

}  // namespace blockmgr
