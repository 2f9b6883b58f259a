#include "policies/reuse.h"

#include <algorithm>
#include <bit>
#include <new>

namespace blockmgr {

namespace {

// Twice as many ticks as places: half of them are unused after each compaction, so that it costs a
// few steps for each use that ends.
std::size_t ticks_for(std::int64_t places) { return static_cast<std::size_t>(places) * 2 + 64; }

}  // namespace

ReuseTracker::ReuseTracker(const Nodes& nodes, const PrefixIndex& index, Range range,
                           int num_ghosts, bool by_recency)
    : nodes_(nodes),
      index_(index),
      capacity_(range.num_blocks),
      limit_(capacity_ + num_ghosts),
      by_recency_(by_recency),
      num_ticks_(ticks_for(limit_)),
      live_(num_ticks_),
      holes_(num_ticks_),
      at_(num_ticks_),
      sums_(live_.num_words() + 1),
      range_(range),
      tick_(range),
      origin_(range),
      // Another order may evict what was used last, so a ghost may stand at any place. Resolved
      // ones are known for as long as there is room.
      ghosts_(static_cast<std::size_t>((by_recency ? num_ghosts : limit_) +
                                       std::min(range.num_blocks, num_ghosts)) +
              1),
      table_(ghosts_.size() - 1, &ghosts_.data()->key, sizeof(Ghost)),
      histogram_(static_cast<std::size_t>(limit_) + 1) {
  for (const NodeId b : range) tick_[b] = kNoTick;
  for (std::size_t g = 0; g < ghosts_.size(); ++g) new (&ghosts_[g]) Ghost();
  ring::clear(ghosts_.data(), end());
  for (std::int32_t g = end(); g-- > 0;) {
    ghosts_[static_cast<std::size_t>(g)].next = unused_ghost_;
    unused_ghost_ = g;
  }
}

void ReuseTracker::on_taken(std::int64_t count) noexcept {
  for (; count; --count) {
    ++num_taken_;
    enter_use();
  }
}

void ReuseTracker::on_freed(std::int64_t count) noexcept {
  for (; count; --count) {
    --in_use_;
    add(next_tick(), kHole);
  }
}

// A full block that is cached is no ghost any more.
void ReuseTracker::on_cached(Run run) noexcept {
  for (const NodeId b : run) {
    const NodeId parent = nodes_[b].parent;
    origin_[b] =
        is_root(parent) ? Origin{root_index(parent), nodes_[b].parent_generation} : origin_[parent];
    if (nodes_[b].key_tokens != nodes_.block_size) continue;
    const std::int32_t ghost = find(nodes_.digest(b));
    if (ghost < 0) continue;
    resolve(ghost);
    forget_resolved(ghost);
  }
}

void ReuseTracker::on_idle(Run run) noexcept {
  for (std::int64_t i = run.count; i-- > 0;) {
    --in_use_;
    add(next_tick(), run.nodes[i] + 1);
  }
}

void ReuseTracker::on_used(Run run) noexcept {
  for (const NodeId b : run) {
    leave(b);
    enter_use();
  }
}

void ReuseTracker::on_moved(NodeId from, NodeId to) noexcept {
  origin_[to] = origin_[from];
  leave(from);
}

void ReuseTracker::on_uncached(NodeId b, bool is_evicted) noexcept {
  is_evicted ? evicted(b) : leave(b);
}

// An idle block leaves a hole at its place.
void ReuseTracker::leave(NodeId b) noexcept {
  if (tick_[b] != kNoTick) make_hole(tick_[b]);
  tick_[b] = kNoTick;
}

// The block is handed out at once; its key is still there. A retired one is no loss: no prompt
// could find it, in a pool of any size.
void ReuseTracker::evicted(NodeId b) noexcept {
  if (is_retired(b)) [[unlikely]] {
    leave(b);
    return on_taken(1);
  }
  ++num_taken_;
  const Tick t = tick_[b];
  const bool full = nodes_[b].key_tokens == nodes_.block_size;
  tick_[b] = kNoTick;
  if (t != kNoTick) at_[t] = kAnonymous;
  enter_use();
  if (!full) return;
  if (t != kNoTick && live_.contains(t)) {
    add_ghost(t, b);
  } else {
    ++num_forgotten_;
  }
}

void ReuseTracker::resolve(std::int32_t ghost) noexcept {
  Ghost& entry = ghosts_[static_cast<std::size_t>(ghost)];
  if (entry.is_resolved()) return;
  const std::int64_t place = place_of_ghost(ghost);
  make_hole(entry.at);
  entry.at = static_cast<std::uint32_t>(place);
  ring::insert_before(ghosts_.data(), ghost, end());
}

void ReuseTracker::forget_ghosts() noexcept {
  while (oldest_resolved() != end()) forget_resolved(oldest_resolved());
  for (Tick t = 0; t < next_; ++t) {
    const std::int32_t what = at_[t];
    if (what >= 0 || what == kHole) continue;
    if (what > kAnonymous) remove_ghost(-(what + 1));
    make_hole(t);
  }
}

void ReuseTracker::forget_ghosts_of(std::string_view name) noexcept {
  const std::uint32_t tag = tag_of(name);
  const auto is_of = [&](std::int32_t ghost) {
    return ghosts_[static_cast<std::size_t>(ghost)].name == tag;
  };
  for (std::int32_t ghost = oldest_resolved(), after; ghost != end(); ghost = after) {
    after = ghosts_[static_cast<std::size_t>(ghost)].next;
    if (!is_of(ghost)) continue;
    forget_resolved(ghost);
    ++num_forgotten_;
  }
  for (Tick t = 0; t < next_; ++t) {
    const std::int32_t what = at_[t];
    if (what >= 0 || what <= kAnonymous || !is_of(-(what + 1))) continue;
    remove_ghost(-(what + 1));
    make_hole(t);
    ++num_forgotten_;
  }
}

void ReuseTracker::count(const NodeId* found, std::int64_t num_found, const std::int32_t* ghosts,
                         std::int64_t num_ghosts, std::int64_t num_tokens) noexcept {
  query_tokens_ += num_tokens;
  // A block is only found if those before it are.
  std::int64_t most = 0;
  for (std::int64_t i = 0; i < num_found + num_ghosts; ++i) {
    most = std::max(most, i < num_found ? place(found[i]) : place_of_ghost(ghosts[i - num_found]));
    if (most > limit_) return;
    ++histogram_[static_cast<std::size_t>(most)];
  }
}

std::int64_t ReuseTracker::place(NodeId b) const noexcept {
  const Tick t = tick_[b];
  if (t != kNoTick) return in_use_ + rank(t);
  return nodes_.used(b) || nodes_[b].fence ? 0 : limit_ + 1;
}

// Something more is in use: it fills the first hole, or all the rest moves back.
void ReuseTracker::enter_use() noexcept {
  ++in_use_;
  const Tick hole = holes_.last();
  if (hole != kNoTick) {
    remove(hole);
  } else {
    while (in_use_ + num_live_ > limit_) drop_oldest();
  }
}

std::int64_t ReuseTracker::rank(Tick t) const noexcept {
  const std::size_t word = t >> 6;
  std::int64_t before = std::popcount(live_.word(word) & ((std::uint64_t{1} << (t & 63)) - 1));
  for (std::size_t i = word; i > 0; i &= i - 1) before += sums_[i];
  return num_live_ - before;
}

void ReuseTracker::add_to_sums(std::size_t word, std::int32_t change) noexcept {
  for (std::size_t i = word + 1; i < sums_.size(); i += i & (~i + 1))
    sums_[i] += static_cast<std::uint32_t>(change);
}

Tick ReuseTracker::next_tick() noexcept {
  if (next_ == num_ticks_) compact();
  return next_++;
}

// Renumbers what there is from 0 on, in order.
void ReuseTracker::compact() noexcept {
  const Tick end = next_;
  next_ = 0;
  for (std::size_t w = 0; w < live_.num_words(); ++w)
    for (std::uint64_t word = live_.word(w); word; word &= word - 1)
      own(next_++, at_[w * 64 + static_cast<std::size_t>(std::countr_zero(word))]);
  for (Tick t = next_; t < end; ++t) at_[t] = kNothing;
  live_.clear();
  holes_.clear();
  std::memset(sums_.data(), 0, sums_.bytes());
  for (Tick t = 0; t < next_; ++t) {
    live_.insert(t);
    if (at_[t] == kHole) holes_.insert(t);
  }
  for (std::size_t i = 1; i < sums_.size(); ++i) {
    sums_[i] += static_cast<std::uint32_t>(std::popcount(live_.word(i - 1)));
    const std::size_t above = i + (i & (~i + 1));
    if (above < sums_.size()) sums_[above] += sums_[i];
  }
}

void ReuseTracker::own(Tick t, std::int32_t what) noexcept {
  at_[t] = what;
  if (what > 0) {
    tick_[what - 1] = t;
  } else if (what > kAnonymous) {
    ghosts_[static_cast<std::size_t>(-(what + 1))].at = t;
  }
}

void ReuseTracker::add(Tick t, std::int32_t what) noexcept {
  own(t, what);
  live_.insert(t);
  if (what == kHole) holes_.insert(t);
  add_to_sums(t >> 6, 1);
  ++num_live_;
}

void ReuseTracker::remove(Tick t) noexcept {
  if (at_[t] == kHole) holes_.erase(t);
  at_[t] = kNothing;
  live_.erase(t);
  add_to_sums(t >> 6, -1);
  --num_live_;
}

void ReuseTracker::make_hole(Tick t) noexcept {
  at_[t] = kHole;
  holes_.insert(t);
}

void ReuseTracker::drop_oldest() noexcept {
  const Tick t = live_.first();
  const std::int32_t what = at_[t];
  if (what > 0) {
    tick_[what - 1] = kNoTick;
  } else if (what > kAnonymous) {
    remove_ghost(-(what + 1));
    ++num_forgotten_;
  }
  remove(t);
}

void ReuseTracker::add_ghost(Tick t, NodeId b) noexcept {
  if (unused_ghost_ < 0) {
    ++num_forgotten_;
    const std::int32_t oldest = oldest_resolved();
    if (oldest == end()) return;  // only if blocks are evicted in another order than promised
    forget_resolved(oldest);
  }
  const std::int32_t ghost = unused_ghost_;
  Ghost& entry = ghosts_[static_cast<std::size_t>(ghost)];
  unused_ghost_ = entry.next;
  entry.key = first_eight(nodes_.digest(b));
  entry.name = tag_of(index_.root_name(origin_[b].root));
  entry.evicted_at = num_taken_;
  own(t, -(ghost + 1));
  table_.insert(ghost);
}

void ReuseTracker::remove_ghost(std::int32_t ghost) noexcept {
  Ghost& entry = ghosts_[static_cast<std::size_t>(ghost)];
  table_.erase(ghost);
  entry.prev = -1;
  entry.next = unused_ghost_;
  unused_ghost_ = ghost;
}

std::size_t ReuseTracker::memory() const {
  return sizeof *this + live_.bytes() + holes_.bytes() + at_.bytes() + sums_.bytes() +
         tick_.bytes() + origin_.bytes() + ghosts_.bytes() + table_.bytes() + histogram_.bytes();
}

}  // namespace blockmgr
