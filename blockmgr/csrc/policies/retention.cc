#include "policies/retention.h"

#include <algorithm>
#include <utility>

#include "memory/errors.h"

namespace blockmgr {

RetainingPolicy::RetainingPolicy(Nodes& nodes, const PrefixIndex& index, Range range,
                                 std::unique_ptr<Policy> base, int max_pinned,
                                 std::int32_t first_pin, int max_sessions)
    : Policy(nodes, index, range),
      base_(std::move(base)),
      kept_(range, kNumLevels),
      order_positions_(range),
      deadline_positions_(range),
      strays_(static_cast<std::size_t>(range.count), order_positions_),
      deadlines_(static_cast<std::size_t>(range.count), deadline_positions_),
      max_pinned_(max_pinned),
      first_pin_(first_pin),
      pins_(static_cast<std::size_t>(max_pinned)),
      max_sessions_(max_sessions) {
  for (const NodeId b : range) {
    new (&kept_[b]) Kept();
    order_positions_[b] = deadline_positions_[b] = -1;
  }
  for (int level = 0; level < kNumLevels; ++level) {
    new (&kept_[end(level)]) Kept();
    ring::clear(kept_, end(level));
  }
  for (std::int32_t i = max_pinned; i-- > 0;) {
    pins_[static_cast<std::size_t>(i)].next = first_unused_;
    first_unused_ = i;
  }
}

// Levels.

Level RetainingPolicy::due_level(NodeId b) const {
  const Kept& k = at(b);
  if (k.first_pin >= 0) return kPinned;
  int level = is_current(b) ? k.retention : k.hint;
  if (k.expected && level < kExpected) level = kExpected;
  for (int above = kPinned; above > level; --above)
    if (k.children[static_cast<std::size_t>(above)]) level = above;
  return static_cast<Level>(level);
}

// The level of this block may have changed, and with it those of the blocks before it.
void RetainingPolicy::refresh(NodeId b) noexcept {
  for (;;) {
    const Level before = at(b).level;
    const Level level = due_level(b);
    if (level == before) return;
    move(b, level);
    const NodeId parent = nodes_[b].parent;
    if (parent < 0) return;
    --at(parent).children[before];
    ++at(parent).children[level];
    b = parent;
  }
}

void RetainingPolicy::move(NodeId b, Level to) noexcept {
  Kept& k = at(b);
  const Level from = k.level;
  if (k.idle) unqueue(b);
  --num_cached_[from];
  ++num_cached_[to];
  k.level = to;
  if (!k.idle) return;
  queue(b);
  if (!base_ || below_base(from) == below_base(to)) return;
  if (below_base(from)) {
    base_->on_used({&b, 1});
  } else {
    base_->on_idle({&b, 1});  // the use that it took for one has ended, by no request
  }
}

// Blocks become idle in order, so nearly always the list's end is the place.
void RetainingPolicy::queue(NodeId b) noexcept {
  Kept& k = at(b);
  ++num_idle_[k.level];
  // That of the sentinel is 0.
  if (at(at(end(k.level)).prev).order > k.order) {
    strays_.insert(b, stray_key(k.level, k.order));
    return;
  }
  ring::insert_before(kept_, b, end(k.level));
}

void RetainingPolicy::unqueue(NodeId b) noexcept {
  --num_idle_[at(b).level];
  if (order_positions_[b] >= 0) {
    strays_.remove(b);
    return;
  }
  ring::remove(kept_, b);
}

NodeId RetainingPolicy::front(Level level) const {
  const NodeId b = at(end(level)).next;
  const std::uint64_t last =
      stray_key(level, b != end(level) ? at(b).order : (1ull << kOrderBits) - 1);
  return strays_.empty() || strays_.front_key() > last ? b : strays_.front();
}

NodeId RetainingPolicy::victim() noexcept {
  int level = kLow;
  while (!num_idle_[static_cast<std::size_t>(level)]) ++level;
  if (base_ && level == kNormal) {
    const NodeId b = base_->victim();
    if (b >= 0 && at(b).level == kNormal) return b;
    if (b >= 0) base_->on_refused(b);
  }
  return front(static_cast<Level>(level));
}

// Changes of blocks.

void RetainingPolicy::admitted(Run found) noexcept {
  for (const NodeId b : found) {
    Kept& k = at(b);
    if (k.hint == kNormal) continue;
    if (k.idle) {
      k.found = true;  // its hint goes when it leaves its queue, which is cheaper
    } else {
      k.hint = kNormal;
      refresh(b);
    }
  }
  if (base_) base_->admitted(found);
}

void RetainingPolicy::on_cached(Run run) noexcept {
  if (base_) base_->on_cached(run);
  for (const NodeId b : run) cached(b);
}

void RetainingPolicy::cached(NodeId b) noexcept {
  Kept& k = at(b);
  k.cached = true;
  k.hint = kNormal;
  k.level = kNormal;
  ++num_cached_[kNormal];
  const NodeId parent = nodes_[b].parent;
  if (parent >= 0) {
    ++at(parent).children[kNormal];
    refresh(parent);
  }
  if (is_current(b)) {
    refresh(b);
  } else if (k.retention != kNoLevel) {
    forget_retention(b);
  }
}

void RetainingPolicy::on_hit(NodeId b) noexcept {
  if (base_) base_->on_hit(b);
}

Run RetainingPolicy::below_base(Run run) const {
  std::int64_t first = run.count;
  while (first && below_base(at(run.nodes[first - 1]).level)) --first;
  return {run.nodes + first, run.count - first};
}

void RetainingPolicy::on_idle(Run run) noexcept {
  for (std::int64_t i = run.count; i-- > 0;) {
    Kept& k = at(run.nodes[i]);
    k.idle = true;
    k.order = ++last_order_;
    queue(run.nodes[i]);
  }
  if (!base_) return;
  if (const Run told = below_base(run); told.count) base_->on_idle(told);
}

void RetainingPolicy::on_used(Run run) noexcept {
  if (base_)
    if (const Run told = below_base(run); told.count) base_->on_used(told);
  for (const NodeId b : run) {
    Kept& k = at(b);
    unqueue(b);
    k.idle = false;
    if (!k.found) continue;
    k.found = false;
    k.hint = kNormal;
    refresh(b);
  }
}

void RetainingPolicy::on_touched(NodeId b) noexcept {
  Kept& k = at(b);
  unqueue(b);
  k.order = ++last_order_;
  queue(b);
  if (base_ && below_base(k.level)) base_->on_touched(b);
}

void RetainingPolicy::on_moved(NodeId from, NodeId to) noexcept {
  Kept& old = at(from);
  Kept& k = at(to);
  const int retention = old.retention;
  const double until = old.until;
  forget_retention(from);
  forget_retention(to);
  k.children = std::exchange(old.children, {});
  k.hint = std::exchange(old.hint, std::uint8_t{kNormal});
  k.level = std::exchange(old.level, kNormal);
  k.cached = std::exchange(old.cached, false);
  const bool expected = std::exchange(old.expected, false);  // by paths that end at no node now
  k.first_pin = std::exchange(old.first_pin, -1);
  for (std::int32_t i = k.first_pin; i >= 0; i = pins_[static_cast<std::size_t>(i)].next)
    pins_[static_cast<std::size_t>(i)].tail = to;
  if (retention != kNoLevel)
    retain(to, retention, until);
  else if (expected)
    refresh(to);
  if (base_) base_->on_moved(from, to);
}

void RetainingPolicy::on_uncached(NodeId b, bool evicted) noexcept {
  Kept& k = at(b);
  if (k.idle) unqueue(b);
  // The policy below was not told that the use had ended.
  if (base_ && k.idle && !below_base(k.level)) base_->on_idle({&b, 1});
  counts_.pinned_evicted += evicted && k.level == kPinned;
  --num_cached_[k.level];
  const NodeId parent = nodes_[b].parent;
  // Pins that ended at this block now end at the block before it.
  while (k.first_pin >= 0) {
    Pin& pin = pins_[static_cast<std::size_t>(k.first_pin)];
    const std::int32_t slot = std::exchange(k.first_pin, pin.next);
    pin.tail = kNoNode;
    --pin.num_cached;
    if (parent >= 0) link_pin(slot, parent);
  }
  forget_retention(b);
  const Level level = k.level;
  k.cached = k.idle = k.found = k.expected = false;
  k.hint = kNormal;
  k.level = kNormal;
  if (parent >= 0) {
    --at(parent).children[level];
    refresh(parent);
  }
  // Last, so that the policy below knows whether the block before this one is idle.
  if (base_) base_->on_uncached(b, evicted);
}

// Statements of callers about blocks.

void RetainingPolicy::retain(NodeId b, int level, double until) noexcept {
  forget_retention(b);
  Kept& k = at(b);
  if (level != kNoLevel && until > now_) {  // a large time can swallow a short one
    k.retention = static_cast<std::int8_t>(level);
    k.until = until;
    k.generation = nodes_[b].generation;
    if (until < kForever) deadlines_.insert(b, until);
  }
  if (k.cached) refresh(b);
}

void RetainingPolicy::forget_retention(NodeId b) noexcept {
  if (deadline_positions_[b] >= 0) deadlines_.remove(b);
  at(b).retention = kNoLevel;
  at(b).until = kForever;
}

void RetainingPolicy::inherit(NodeId from, NodeId cached) noexcept {
  forget_hint(cached);  // this is its next use
  if (!is_current(from)) return;
  const Kept& k = at(from);
  const Kept& own = at(cached);
  if (!is_current(cached) || k.retention > own.retention ||
      (k.retention == own.retention && k.until > own.until))
    retain(cached, k.retention, k.until);
}

void RetainingPolicy::hint(NodeId cached, bool reuse) noexcept {
  at(cached).hint = reuse ? kExpected : kLow;
  refresh(cached);
}

void RetainingPolicy::expect(NodeId cached, bool expected) noexcept {
  if (at(cached).expected == expected) return;
  at(cached).expected = expected;
  refresh(cached);
}

SessionTable& RetainingPolicy::named_sessions() {
  if (!max_sessions_) throw Error(ErrorKind::kValue, "session needs max_sessions above 0");
  if (!sessions_) sessions_ = std::make_unique<SessionTable>(nodes_, range_, *this, max_sessions_);
  return *sessions_;
}

void RetainingPolicy::set_time(double now) noexcept {
  now_ = now;
  if (sessions_) sessions_->set_time(now);
  while (!deadlines_.empty() && deadlines_.front_key() <= now_) {
    const NodeId b = deadlines_.front();
    const bool current = is_current(b);
    forget_retention(b);
    if (!current) continue;
    // A block that is not cached and waits for a step has no content any more.
    if (at(b).cached || nodes_.used(b)) ++counts_.expired;
    if (at(b).cached) refresh(b);
  }
}

std::int64_t RetainingPolicy::count_unpinned(NodeId tail) const {
  std::int64_t count = 0;
  for (NodeId b = tail; b >= 0 && at(b).level != kPinned; b = nodes_[b].parent) ++count;
  return count;
}

std::int64_t RetainingPolicy::pin(NodeId tail, std::int64_t num_blocks) noexcept {
  const std::int32_t slot = first_unused_;
  const std::int64_t id = next_pin();
  Pin& pin = pins_[static_cast<std::size_t>(slot)];
  first_unused_ = pin.next;
  ++num_pins_;
  // The number grows with every use of the record, so that a pin given back stays unknown.
  pin.id = id;
  pin.tail = kNoNode;
  pin.num_blocks = pin.num_cached = static_cast<std::int32_t>(num_blocks);
  if (tail >= 0) {
    link_pin(slot, tail);
    refresh(tail);
  }
  return pin.id;
}

// Makes the pin the first of those that end at this block.
void RetainingPolicy::link_pin(std::int32_t slot, NodeId tail) noexcept {
  Pin& pin = pins_[static_cast<std::size_t>(slot)];
  pin.tail = tail;
  pin.prev = -1;
  pin.next = std::exchange(at(tail).first_pin, slot);
  if (pin.next >= 0) pins_[static_cast<std::size_t>(pin.next)].prev = slot;
}

const RetainingPolicy::Pin* RetainingPolicy::find_pin(std::int64_t id) const {
  const std::size_t slot = slot_of(id);
  if (id <= 0 || slot >= pins_.size()) return nullptr;
  const Pin& pin = pins_[slot];
  return pin.id == id && pin.num_blocks >= 0 ? &pin : nullptr;
}

void RetainingPolicy::unpin(std::int64_t id) noexcept {
  const std::size_t slot = slot_of(id);
  Pin& pin = pins_[slot];
  if (pin.tail >= 0) {
    (pin.prev >= 0 ? pins_[static_cast<std::size_t>(pin.prev)].next : at(pin.tail).first_pin) =
        pin.next;
    if (pin.next >= 0) pins_[static_cast<std::size_t>(pin.next)].prev = pin.prev;
    refresh(pin.tail);
  }
  pin.num_blocks = -1;
  pin.tail = kNoNode;
  pin.next = std::exchange(first_unused_, static_cast<std::int32_t>(slot));
  --num_pins_;
}

std::size_t RetainingPolicy::memory() const {
  std::size_t total = kept_.bytes() + deadlines_.memory() + pins_.capacity() * sizeof(Pin);
  total += order_positions_.bytes() + deadline_positions_.bytes();
  total += strays_.memory() + (sessions_ ? sessions_->memory() : 0);
  return total + (base_ ? base_->memory() : 0);
}

}  // namespace blockmgr
