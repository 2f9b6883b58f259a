#include "policies/adaptive.h"

#include <algorithm>
#include <bit>

namespace blockmgr {

namespace {

// Everything is measured against the pool's own size, so that the same traffic on twice the blocks
// of half the size is treated alike.
constexpr int kUnitsPerPool = 32;
constexpr std::int64_t kMinUnit = 64;
constexpr std::int64_t kMinFit = 4096;  // blocks between two fits, which cost the same in any pool
constexpr int kFitsPerPool = 4;
constexpr int kMinGhosts = 16384;
constexpr int kMaxTurn = 63;
// Prompts that may diverge at one block before it is taken for a common beginning: the next turn,
// and some in which it is told otherwise.
constexpr int kMaxParted = 3;
// Of what the directories hit, each time the pool was looked through once.
constexpr double kKeepHits = 0.8;
// How much better than LRU the learned order must do to be followed.
constexpr double kAhead = 1.01;

}  // namespace

AdaptivePolicy::AdaptivePolicy(Blocks& blocks, const PrefixIndex& index, int capacity)
    : Policy(blocks, index),
      capacity_(capacity),
      unit_(std::max<std::int64_t>(capacity / kUnitsPerPool, kMinUnit)),
      spans_(unit_),
      lists_(blocks.count, ReuseModel::kLevels),
      sample_(capacity, unit_),
      facts_(static_cast<std::size_t>(blocks.count)),
      ghosts_(static_cast<std::size_t>(
          std::min<std::int64_t>(std::int64_t{32} * capacity, std::max(capacity, kMinGhosts)))),
      next_fit_(kMinFit),
      next_choice_(kMinFit) {}

std::uint64_t AdaptivePolicy::tag(BlockId b) const {
  std::uint64_t t;
  std::memcpy(&t, blocks_.digest(b), sizeof t);
  return t;
}

void AdaptivePolicy::tick() noexcept {
  ++now_;
  if (spans_.due(now_)) begin_span();
}

void AdaptivePolicy::begin_span() noexcept {
  const Spans::Merge merge = spans_.begin(now_);
  lists_.merge(merge);
  sample_.begin_span(merge);
  if (now_ >= next_fit_) {
    next_fit_ = now_ + std::max<std::int64_t>(capacity_ / kFitsPerPool, kMinFit);
    sample_.fit(now_);
  }
  value_lists();
  if (now_ >= next_choice_) choose_leader();
}

void AdaptivePolicy::value_lists() noexcept {
  for (int i = 0; i < spans_.count(); ++i) {
    const std::int64_t age = spans_.age(i, now_);
    for (int level = 0; level < ReuseModel::kLevels; ++level) {
      const int list = lists_.list(spans_.slot(i), level);
      const double worth = sample_.model().worth(level, age);
      lists_.set_worth(list, worth);
      sample_.lists().set_worth(list, worth);
    }
  }
  lists_.rank();
  sample_.lists().rank();
}

void AdaptivePolicy::choose_leader() noexcept {
  next_choice_ = now_ + std::max<std::int64_t>(capacity_, kMinFit);
  const double lru = sample_.lru_hits();
  const double learned = sample_.learned_hits();
  // Between the two bounds the leader stays.
  if (learned > kAhead * lru) follows_lru_ = false;
  if (learned < lru) follows_lru_ = true;
  sample_.fade(kKeepHits);
}

AdaptivePolicy::Place AdaptivePolicy::next_place(Place last, std::uint32_t since) const {
  const std::uint32_t pause = units() - since;
  Place next;
  next.turn = static_cast<std::uint8_t>(std::min(last.turn + 1, kMaxTurn)) & 63;
  next.gap = pause < kUnitsPerPool ? 1 : pause < 4 * kUnitsPerPool ? 2 : 3;
  return next;
}

// In quarters of what requests are like: up to half the usual length, up to it, up to twice it.
int AdaptivePolicy::size_of(std::int64_t num_blocks) noexcept {
  const auto blocks = static_cast<double>(num_blocks);
  usual_blocks_ += (blocks - usual_blocks_) / (usual_blocks_ > 0 ? 64 : 1);
  return blocks < usual_blocks_ / 2   ? 0
         : blocks < usual_blocks_     ? 1
         : blocks < 2 * usual_blocks_ ? 2
                                      : 3;
}

int AdaptivePolicy::cell_of(const Facts& f) const {
  if (!f.place.turn) return 0;
  BlockTraits traits;
  traits.turn = BlockTraits::turn_bucket(f.place.turn);
  traits.part = f.shared  ? BlockTraits::kShared
                : f.fresh ? BlockTraits::kNew
                          : BlockTraits::kMatched;
  traits.gap = f.place.gap;
  traits.size = size_;
  return traits.cell();
}

std::uint32_t AdaptivePolicy::admitted(const BlockId* found, std::int64_t num_found,
                                       std::int64_t num_blocks) noexcept {
  Place place{1, 0};
  if (num_found) {
    Facts& last = facts(found[num_found - 1]);
    if (last.place.turn && last.parted < kMaxParted) {
      ++last.parted;
      place = next_place(last.place, last.since);
    }
  }
  const bool begins = place.turn == 1;
  for (std::int64_t i = 0; i < num_found; ++i) {
    facts(found[i]).shared |= begins;
    on_hit(found[i]);
  }
  return static_cast<std::uint32_t>(place.turn | place.gap << 6 | size_of(num_blocks) << 8);
}

void AdaptivePolicy::enter(std::uint32_t context) noexcept {
  place_.turn = context & 63;
  place_.gap = (context >> 6) & 3;
  size_ = static_cast<int>(context >> 8);
  at_end_ = context != 0;
}

void AdaptivePolicy::on_cached(BlockId b) noexcept {
  tick();
  Facts& f = facts(b);
  f = {};
  f.fresh = true;
  const NodeId parent = blocks_[b].parent;
  // What this sequence found out with an earlier block of its own.
  if (parent >= 0 && facts(parent).fresh && facts(parent).place.turn > place_.turn)
    place_ = facts(parent).place;
  if (is_full(b)) {
    const std::uint64_t t = tag(b);
    if (place_.turn && is_beginning(parent)) {
      const Ghost& known = ghost_at(t);
      if (known.tag == t && known.place.turn) place_ = next_place(known.place, known.since);
    }
    f.sampled = sample_.takes(t);
    if (f.sampled) sample_.use(t, now_);
  }
  f.place = place_;
}

void AdaptivePolicy::on_hit(BlockId b) noexcept {
  tick();
  Facts& f = facts(b);
  f.fresh = false;
  if (f.sampled) sample_.use(tag(b), now_);
}

void AdaptivePolicy::on_idle(BlockId b) noexcept {
  Facts& f = facts(b);
  if (at_end_) {
    // Only now is it known whose turn this was: the last block was computed after all others.
    if (f.fresh && f.place.turn > place_.turn) place_ = f.place;
    at_end_ = false;
  }
  f.place = place_;
  f.since = units();
  f.idle = true;
  const int cell = cell_of(f);
  f.level = static_cast<std::uint8_t>(sample_.model().level(cell)) & 31;
  if (f.sampled) sample_.end_use(tag(b), cell, now_, spans_);
  f.listed = blocks_[b].first_child < 0;
  if (f.listed) lists_.push_back(b, lists_.list(spans_.newest_slot(), f.level));
}

void AdaptivePolicy::on_used(BlockId b) noexcept {
  Facts& f = facts(b);
  if (f.listed) lists_.remove(b);
  f.idle = f.listed = false;
}

void AdaptivePolicy::on_uncached(BlockId b, bool evicted) noexcept {
  Facts& f = facts(b);
  if (f.listed) lists_.remove(b);
  const Block& block = blocks_[b];
  if (evicted && f.place.turn && !f.shared && is_beginning(block.parent) && is_full(b)) {
    const std::uint64_t t = tag(b);
    ghost_at(t) = {t, f.since, f.place};
  }
  f = {};
  if (block.parent < 0 || block.prev_sibling >= 0 || block.next_sibling >= 0) return;
  Facts& parent = facts(block.parent);
  if (!parent.idle) return;
  // First in line among its own: a chain that lost its tail goes on losing it.
  parent.listed = true;
  lists_.push_front(block.parent, lists_.list(spans_.slot_at(time_of(parent.since)), parent.level));
}

BlockId AdaptivePolicy::victim() noexcept { return follows_lru_ ? kNoBlock : lists_.least(); }

std::size_t AdaptivePolicy::memory() const {
  return lists_.memory() + sample_.memory() + facts_.capacity() * sizeof(Facts) +
         ghosts_.capacity() * sizeof(Ghost);
}

}  // namespace blockmgr
