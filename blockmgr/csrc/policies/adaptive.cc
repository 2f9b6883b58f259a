#include "policies/adaptive.h"

#include <algorithm>
#include <bit>

namespace blockmgr {

namespace {

// Everything is measured against the pool's own size, so that the same traffic on twice the blocks
// of half the size is treated alike.
constexpr int kUnitsPerPool = 32;
constexpr std::int64_t kMinUnit = 64;
constexpr int kFitsPerPool = 4;
constexpr int kMinGhosts = 16384;
constexpr int kMaxTurn = 63;
// Prompts that may diverge at one block before it is taken for a common beginning: the next turn,
// and some in which it is told otherwise.
constexpr int kMaxDiverged = 3;
// Of what the directories counted, each time the pool was looked through once.
constexpr double kKeepCounts = 0.95;
// The learned order is followed once it leads by more than chance explains, in standard deviations,
// and by so much of the look-ups. LRU is followed again once that order is behind.
constexpr double kClear = 1.5;
constexpr double kLevel = 0.001;
// Of all look-ups: what following the learned order may have cost. At more, LRU is followed until
// this much more has been looked up.
constexpr double kMostLost = 0.002;

// Blocks between two fits, at least. A fit costs the same in any pool. Of large blocks fewer come
// by, and they say as much.
std::int64_t least_between_fits(std::int64_t block_size) {
  constexpr std::int64_t kTokens = std::int64_t{1} << 21;
  return std::clamp<std::int64_t>(kTokens / block_size, 256, 4096);
}

}  // namespace

AdaptivePolicy::AdaptivePolicy(Nodes& nodes, const PrefixIndex& index, Range range)
    : Policy(nodes, index, range),
      capacity_(range.num_blocks),
      unit_(std::max<std::int64_t>(capacity_ / kUnitsPerPool, kMinUnit)),
      spans_(unit_),
      lists_(range.count, ReuseModel::kLevels),
      sample_(capacity_, unit_),
      facts_(range),
      ghosts_(static_cast<std::size_t>(
          std::min<std::int64_t>(std::int64_t{32} * capacity_, std::max(capacity_, kMinGhosts)))),
      num_held_(capacity_),
      least_between_fits_(least_between_fits(nodes.block_size)),
      next_fit_(least_between_fits_),
      next_choice_(least_between_fits_) {}

std::uint64_t AdaptivePolicy::tag(NodeId b) const {
  std::uint64_t t;
  std::memcpy(&t, nodes_.digest(b), sizeof t);
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
    next_fit_ = now_ + std::max<std::int64_t>(capacity_ / kFitsPerPool, least_between_fits_);
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
  next_choice_ = now_ + std::max<std::int64_t>(capacity_, least_between_fits_);
  sample_.end_request(!follows_lru_);
  const double lead = sample_.lead();
  // Between the two bounds, the order that is followed does not change.
  if (lead > kClear * sample_.deviation() + kLevel * sample_.look_ups()) follows_lru_ = false;
  if (lead < 0 || lost_too_much()) follows_lru_ = true;
  sample_.fade(kKeepCounts);
  sample_.set_held(num_held_);
}

bool AdaptivePolicy::lost_too_much() const {
  return sample_.won() < -kMostLost * sample_.all_look_ups();
}

AdaptivePolicy::Place AdaptivePolicy::next_place(Place last, std::uint32_t since) const {
  const std::uint32_t pause = units() - since;
  Place next;
  next.turn = static_cast<std::uint8_t>(std::min(last.turn + 1, kMaxTurn)) & 63;
  next.gap = pause < kUnitsPerPool ? 1 : pause < 4 * kUnitsPerPool ? 2 : 3;
  return next;
}

// Of a request's blocks: less than an eighth was not found, than a third, than two thirds, or more.
std::uint8_t AdaptivePolicy::computed_of(std::int64_t num_found, std::int64_t num_blocks) {
  const std::int64_t computed = num_blocks - num_found;
  return 8 * computed < num_blocks       ? 0
         : 3 * computed < num_blocks     ? 1
         : 3 * computed < 2 * num_blocks ? 2
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
  traits.computed = f.computed;
  return traits.cell();
}

// Turn, gap and computed in the low ten bits, then whether there is a request and whether it has ended.
AdaptivePolicy::Request AdaptivePolicy::request(Context who) {
  Request by;
  by.place.turn = who & 63;
  by.place.gap = (who >> 6) & 3;
  by.computed = static_cast<std::uint8_t>((who >> 8) & 3);
  by.any = who >> 10 & 1;
  by.at_end = who >> 11 & 1;
  return by;
}

Context AdaptivePolicy::context(const Request& by) {
  return static_cast<Context>(by.place.turn | by.place.gap << 6 | by.computed << 8 |
                              by.any << 10 | by.at_end << 11);
}

Context AdaptivePolicy::admitted(Run found, std::int64_t num_blocks) noexcept {
  sample_.end_request(!follows_lru_);
  // Between two choices a whole pool is looked up, in which much can be lost.
  if (lost_too_much()) follows_lru_ = true;
  Place place{1, 0};
  if (found.count) {
    Facts& last = facts(found.nodes[found.count - 1]);
    if (last.place.turn && last.diverged < kMaxDiverged) {
      ++last.diverged;
      place = next_place(last.place, last.since);
    }
  }
  const bool begins = place.turn == 1;
  for (const NodeId b : found) {
    facts(b).shared |= begins;
    on_hit(b);
  }
  return context({place, computed_of(found.count, num_blocks), true, false});
}

void AdaptivePolicy::on_cached(Run run, Context& who) noexcept {
  Request by = request(who);
  num_cached_ += static_cast<int>(run.count);
  for (const NodeId b : run) cached(b, by);
  who = context(by);
}

void AdaptivePolicy::cached(NodeId b, Request& by) noexcept {
  tick();
  Facts& f = facts(b);
  f = {};
  f.fresh = true;
  const NodeId parent = nodes_[b].parent;
  // The turn that an earlier block of this sequence revealed.
  if (parent >= 0 && facts(parent).fresh && facts(parent).place.turn > by.place.turn)
    by.place = facts(parent).place;
  if (is_full(b)) {
    const std::uint64_t t = tag(b);
    if (by.place.turn && is_beginning(parent)) {
      const Ghost& known = ghost_at(t);
      if (known.tag == t && known.place.turn)
        by.place = next_place(known.place, known.since);
    }
    f.sampled = sample_.takes(t);
    if (f.sampled) sample_.use(t, now_);
  }
  f.place = by.place;
}

void AdaptivePolicy::on_hit(NodeId b) noexcept {
  tick();
  Facts& f = facts(b);
  f.fresh = false;
  if (f.sampled) sample_.use(tag(b), now_);
}

void AdaptivePolicy::note(NodeId b, Request& by) noexcept {
  Facts& f = facts(b);
  if (by.any && !by.at_end) {
    // Only now is it known which turn this was: the last block was computed after all others.
    if (f.fresh && f.place.turn > by.place.turn) by.place = f.place;
    by.at_end = true;
  }
  f.place = by.place;
  f.computed = by.computed & 3;
}

// The request is known now; the age of the block counts from when the step completes.
void AdaptivePolicy::on_waiting(Run run, Context& who) noexcept {
  Request by = request(who);
  for (std::int64_t i = run.count; i-- > 0;) note(run.nodes[i], by);
  who = context(by);
}

void AdaptivePolicy::on_idle(Run run, Context& who) noexcept {
  const bool noted = who == kAsNoted;
  Request by = request(who);
  const std::uint32_t since = units();
  for (std::int64_t i = run.count; i-- > 0;) {
    if (!noted) note(run.nodes[i], by);
    idle(run.nodes[i], since, i + 1 == run.count);
  }
  if (!noted) who = context(by);
}

void AdaptivePolicy::idle(NodeId b, std::uint32_t since, bool is_last) noexcept {
  Facts& f = facts(b);
  f.since = since;
  f.idle = true;
  const int cell = cell_of(f);
  f.level = static_cast<std::uint8_t>(sample_.model().level(cell)) & 31;
  if (f.sampled) sample_.end_use(tag(b), cell, now_, spans_);
  // Of a run, only the last may be without cached children: each is the parent of the next.
  f.listed = is_last && nodes_[b].first_child < 0;
  if (f.listed) lists_.push_back(item(b), lists_.list(spans_.newest_slot(), f.level));
}

void AdaptivePolicy::on_used(Run run) noexcept {
  for (const NodeId b : run) {
    Facts& f = facts(b);
    if (f.listed) lists_.remove(item(b));
    f.idle = f.listed = false;
  }
}

void AdaptivePolicy::on_uncached(NodeId b, bool evicted) noexcept {
  --num_cached_;
  Facts& f = facts(b);
  if (f.listed) lists_.remove(item(b));
  const Node& record = nodes_[b];
  if (evicted && f.place.turn && !f.shared && is_beginning(record.parent) && is_full(b)) {
    const std::uint64_t t = tag(b);
    ghost_at(t) = {t, f.since, f.place};
  }
  f = {};
  if (record.parent < 0 || record.prev_sibling >= 0 || record.next_sibling >= 0) return;
  Facts& parent = facts(record.parent);
  if (!parent.idle) return;
  // First in line among its own: a chain that lost its tail goes on losing it.
  parent.listed = true;
  lists_.push_front(item(record.parent),
                    lists_.list(spans_.slot_at(time_of(parent.since)), parent.level));
}

NodeId AdaptivePolicy::victim() noexcept {
  num_held_ = num_cached_;
  return follows_lru_ ? kNoNode : range_.first + lists_.least();
}

std::size_t AdaptivePolicy::memory() const {
  return lists_.memory() + sample_.memory() + facts_.bytes() +
         ghosts_.capacity() * sizeof(Ghost);
}

}  // namespace blockmgr
