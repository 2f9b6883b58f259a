#include "retention.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "audit.h"

namespace blockmgr {

RetainingPolicy::RetainingPolicy(Blocks& blocks, const PrefixIndex& index,
                                 std::unique_ptr<Policy> base, int max_pinned)
    : Policy(blocks, index),
      base_(std::move(base)),
      kept_(static_cast<std::size_t>(blocks.count)),
      order_positions_(static_cast<std::size_t>(blocks.count), -1),
      deadline_positions_(static_cast<std::size_t>(blocks.count), -1),
      strays_(static_cast<std::size_t>(blocks.count), order_positions_),
      deadlines_(static_cast<std::size_t>(blocks.count), deadline_positions_),
      max_pinned_(max_pinned),
      pins_(static_cast<std::size_t>(max_pinned)) {
  for (std::size_t i = 0; i < kept_.size(); ++i) new (&kept_[i]) Kept();
  for (std::int32_t i = max_pinned; i-- > 0;) {
    pins_[static_cast<std::size_t>(i)].next = first_unused_;
    first_unused_ = i;
  }
}

// Levels.

Level RetainingPolicy::due_level(BlockId b) const {
  const Kept& k = at(b);
  if (k.first_pin >= 0) return kPinned;
  int level = is_current(b) ? k.retention : k.hint;
  for (int above = kPinned; above > level; --above)
    if (k.children[static_cast<std::size_t>(above)]) level = above;
  return static_cast<Level>(level);
}

// The level of this block may have changed, and with it those of the blocks before it.
void RetainingPolicy::refresh(BlockId b) noexcept {
  for (;;) {
    const Level before = at(b).level;
    const Level level = due_level(b);
    if (level == before) return;
    move(b, level);
    const NodeId parent = blocks_[b].parent;
    if (parent < 0) return;
    --at(parent).children[before];
    ++at(parent).children[level];
    b = parent;
  }
}

void RetainingPolicy::move(BlockId b, Level to) noexcept {
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
    base_->on_used(b);
  } else {
    base_->enter(0);
    base_->on_idle(b);
    base_->enter(context_);
  }
}

// Blocks become idle in order, so nearly always the list's end is the place.
void RetainingPolicy::queue(BlockId b) noexcept {
  Kept& k = at(b);
  List& list = lists_[k.level];
  ++list.num_idle;
  if (list.back >= 0 && at(list.back).order > k.order) {
    strays_.insert(b, stray_key(k.level, k.order));
    return;
  }
  k.prev = list.back;
  k.next = kNoBlock;
  (list.back >= 0 ? at(list.back).next : list.front) = b;
  list.back = b;
}

void RetainingPolicy::unqueue(BlockId b) noexcept {
  Kept& k = at(b);
  List& list = lists_[k.level];
  --list.num_idle;
  if (order_positions_[static_cast<std::size_t>(b)] >= 0) {
    strays_.remove(b);
    return;
  }
  (k.prev >= 0 ? at(k.prev).next : list.front) = k.next;
  (k.next >= 0 ? at(k.next).prev : list.back) = k.prev;
}

BlockId RetainingPolicy::front(Level level) const {
  const BlockId b = lists_[level].front;
  const std::uint64_t end = stray_key(level, b >= 0 ? at(b).order : (1ull << kOrderBits) - 1);
  return strays_.empty() || strays_.front_key() > end ? b : strays_.front();
}

BlockId RetainingPolicy::victim() noexcept {
  int level = kLow;
  while (!lists_[static_cast<std::size_t>(level)].num_idle) ++level;
  if (base_ && level == kNormal) {
    const BlockId b = base_->victim();
    if (b >= 0 && at(b).level == kNormal) return b;
    if (b >= 0) base_->on_refused(b);
  }
  return front(static_cast<Level>(level));
}

// What happens to blocks.

std::uint32_t RetainingPolicy::admitted(const BlockId* found, std::int64_t num_found,
                                        std::int64_t num_blocks) noexcept {
  for (std::int64_t i = 0; i < num_found; ++i) {
    Kept& k = at(found[i]);
    if (k.hint == kNormal) continue;
    if (k.idle) {
      k.found = true;  // its hint goes when it leaves its queue, which is cheaper
    } else {
      k.hint = kNormal;
      refresh(found[i]);
    }
  }
  return base_ ? base_->admitted(found, num_found, num_blocks) : 0;
}

void RetainingPolicy::enter(std::uint32_t context) noexcept {
  context_ = context;
  if (base_) base_->enter(context);
}

void RetainingPolicy::on_cached(BlockId b) noexcept {
  Kept& k = at(b);
  k.cached = true;
  k.hint = kNormal;
  k.level = kNormal;
  ++num_cached_[kNormal];
  if (base_) base_->on_cached(b);
  const NodeId parent = blocks_[b].parent;
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

void RetainingPolicy::on_hit(BlockId b) noexcept {
  if (base_) base_->on_hit(b);
}

void RetainingPolicy::on_idle(BlockId b) noexcept {
  Kept& k = at(b);
  k.idle = true;
  k.order = ++last_order_;
  queue(b);
  if (base_ && below_base(k.level)) base_->on_idle(b);
}

void RetainingPolicy::on_used(BlockId b) noexcept {
  Kept& k = at(b);
  unqueue(b);
  k.idle = false;
  if (base_ && below_base(k.level)) base_->on_used(b);
  if (k.found) {
    k.found = false;
    k.hint = kNormal;
    refresh(b);
  }
}

void RetainingPolicy::on_touched(BlockId b) noexcept {
  Kept& k = at(b);
  unqueue(b);
  k.order = ++last_order_;
  queue(b);
  if (base_ && below_base(k.level)) base_->on_touched(b);
}

void RetainingPolicy::on_uncached(BlockId b, bool evicted) noexcept {
  Kept& k = at(b);
  if (k.idle) unqueue(b);
  if (base_ && k.idle && !below_base(k.level)) {  // it never heard that the use had ended
    base_->enter(0);
    base_->on_idle(b);
    base_->enter(context_);
  }
  counts_.pinned_evicted += evicted && k.level == kPinned;
  --num_cached_[k.level];
  const NodeId parent = blocks_[b].parent;
  // The pins that end here end at the block before it from here on.
  while (k.first_pin >= 0) {
    Pin& pin = pins_[static_cast<std::size_t>(k.first_pin)];
    const std::int32_t slot = std::exchange(k.first_pin, pin.next);
    pin.tail = std::max(parent, kNoBlock);
    --pin.num_cached;
    if (parent >= 0) pin.next = std::exchange(at(parent).first_pin, slot);
  }
  forget_retention(b);
  const Level level = k.level;
  k.cached = k.idle = k.found = false;
  k.hint = kNormal;
  k.level = kNormal;
  if (parent >= 0) {
    --at(parent).children[level];
    refresh(parent);
  }
  // Last, so that the policy below knows whether the block before this one is idle.
  if (base_) base_->on_uncached(b, evicted);
}

// What callers say of blocks.

void RetainingPolicy::retain(BlockId b, int level, double until) noexcept {
  forget_retention(b);
  Kept& k = at(b);
  if (level != kNoLevel && until > now_) {  // a large time can swallow a short one
    k.retention = static_cast<std::int8_t>(level);
    k.until = until;
    k.generation = blocks_[b].generation;
    if (until < kForever) deadlines_.insert(b, until);
  }
  if (k.cached) refresh(b);
}

void RetainingPolicy::forget_retention(BlockId b) noexcept {
  if (deadline_positions_[static_cast<std::size_t>(b)] >= 0) deadlines_.remove(b);
  at(b).retention = kNoLevel;
  at(b).until = kForever;
}

void RetainingPolicy::inherit(BlockId from, BlockId cached) noexcept {
  if (!is_current(from)) return;
  const Kept& k = at(from);
  const Kept& own = at(cached);
  if (!is_current(cached) || k.retention > own.retention ||
      (k.retention == own.retention && k.until > own.until))
    retain(cached, k.retention, k.until);
}

void RetainingPolicy::hint(BlockId cached, bool reuse) noexcept {
  at(cached).hint = reuse ? kExpected : kLow;
  refresh(cached);
}

void RetainingPolicy::set_time(double now) noexcept {
  now_ = now;
  while (!deadlines_.empty() && deadlines_.front_key() <= now_) {
    const BlockId b = deadlines_.front();
    const bool current = is_current(b);
    forget_retention(b);
    if (!current) continue;
    ++counts_.expired;
    if (at(b).cached) refresh(b);
  }
}

std::int64_t RetainingPolicy::count_unpinned(BlockId tail) const {
  std::int64_t count = 0;
  for (NodeId b = tail; b >= 0 && at(b).level != kPinned; b = blocks_[b].parent) ++count;
  return count;
}

std::int64_t RetainingPolicy::pin(BlockId tail, std::int64_t num_blocks) noexcept {
  const std::int32_t slot = first_unused_;
  const std::int64_t id = next_pin();
  Pin& pin = pins_[static_cast<std::size_t>(slot)];
  first_unused_ = pin.next;
  ++num_pins_;
  // The number grows with every use of the record, so that a pin given back stays unknown.
  pin.id = id;
  pin.tail = tail;
  pin.num_blocks = pin.num_cached = static_cast<std::int32_t>(num_blocks);
  if (tail >= 0) {
    pin.next = std::exchange(at(tail).first_pin, slot);
    refresh(tail);
  }
  return pin.id;
}

const RetainingPolicy::Pin* RetainingPolicy::find_pin(std::int64_t id) const {
  const std::int64_t slot = id & 0xffffffff;
  if (id <= 0 || slot >= max_pinned_) return nullptr;
  const Pin& pin = pins_[static_cast<std::size_t>(slot)];
  return pin.id == id && pin.num_blocks >= 0 ? &pin : nullptr;
}

void RetainingPolicy::unpin(std::int64_t id) noexcept {
  const auto slot = static_cast<std::int32_t>(id & 0xffffffff);
  Pin& pin = pins_[static_cast<std::size_t>(slot)];
  if (pin.tail >= 0) {
    std::int32_t* link = &at(pin.tail).first_pin;
    while (*link != slot) link = &pins_[static_cast<std::size_t>(*link)].next;
    *link = pin.next;
    refresh(pin.tail);
  }
  pin.num_blocks = -1;
  pin.tail = kNoBlock;
  pin.next = std::exchange(first_unused_, slot);
  --num_pins_;
}

// Books.

std::size_t RetainingPolicy::memory() const {
  std::size_t total = kept_.bytes() + deadlines_.memory() + pins_.capacity() * sizeof(Pin);
  total += (order_positions_.capacity() + deadline_positions_.capacity()) * sizeof(std::int32_t);
  total += strays_.memory();
  return total + (base_ ? base_->memory() : 0);
}

void RetainingPolicy::audit(BlockAudit& audit) const {
  const auto count = static_cast<std::size_t>(blocks_.count);
  std::vector<int> due(count, kLow);
  std::vector<std::array<std::uint32_t, kNumLevels>> children(count);
  std::array<std::int64_t, kNumLevels> cached{}, idle{}, strays{};
  for (BlockId b = 0; b < blocks_.count; ++b) {
    if (!blocks_[b].keyed()) continue;
    int own = is_current(b) ? at(b).retention : at(b).hint;
    if (at(b).first_pin >= 0) own = kPinned;
    for (NodeId up = b; up >= 0 && due[static_cast<std::size_t>(up)] < own; up = blocks_[up].parent)
      due[static_cast<std::size_t>(up)] = own;
    ++cached[at(b).level];
    if (blocks_[b].parent >= 0)
      ++children[static_cast<std::size_t>(blocks_[b].parent)][at(b).level];
  }
  for (BlockId b = 0; b < blocks_.count; ++b) {
    const Kept& k = at(b);
    const bool keyed = blocks_[b].keyed();
    const std::string who = BlockAudit::name(b);
    const bool is_idle = keyed && !blocks_[b].used() && !blocks_[b].fence;
    audit.expect(k.cached == keyed, who + " is taken for cached, or is and is not");
    audit.expect(k.idle == is_idle, who + " is taken for idle, or is and is not");
    audit.expect(!k.found, who + " was found and never used");
    audit.expect(k.children == children[static_cast<std::size_t>(b)],
                 who + " miscounts its children by level");
    audit.expect(keyed || k.first_pin < 0, who + " is pinned and not cached");
    if (keyed)
      audit.expect(k.level == due[static_cast<std::size_t>(b)],
                   who + " is at level " + std::to_string(k.level) + ", should be at " +
                       std::to_string(due[static_cast<std::size_t>(b)]));
    idle[k.level] += k.idle;
    strays[k.level] += order_positions_[static_cast<std::size_t>(b)] >= 0;
    const bool waits = deadline_positions_[static_cast<std::size_t>(b)] >= 0;
    audit.expect(!waits || k.until > now_, who + " is retained beyond its time");
    audit.expect(waits == (k.retention != kNoLevel && k.until < kForever),
                 who + " has a retention without its end, or an end without it");
    const NodeId parent = blocks_[b].parent;
    if (k.idle && parent >= 0 && at(parent).idle)
      audit.expect(at(parent).order > k.order, who + " would go after its parent");
  }
  for (int level = 0; level < kNumLevels; ++level) {
    const List& list = lists_[static_cast<std::size_t>(level)];
    const std::string who = "level " + std::to_string(level);
    audit.expect(
        num_cached_[static_cast<std::size_t>(level)] == cached[static_cast<std::size_t>(level)],
        who + " miscounts its blocks");
    audit.expect(list.num_idle == idle[static_cast<std::size_t>(level)],
                 who + " miscounts its idle blocks");
    std::int64_t queued = strays[static_cast<std::size_t>(level)];
    for (BlockId b = list.front; b >= 0; b = at(b).next, ++queued) {
      audit.expect(at(b).idle && at(b).level == level,
                   BlockAudit::name(b) + " is queued at the wrong level");
      audit.expect(at(b).next < 0 ? list.back == b
                                  : at(b).order < at(at(b).next).order && at(at(b).next).prev == b,
                   who + " is out of order at " + BlockAudit::name(b));
      if (queued > blocks_.count) break;
    }
    audit.expect(queued == list.num_idle, who + " has lost an idle block");
  }
  std::int64_t live = 0;
  for (const Pin& pin : pins_) {
    if (pin.id == 0 || pin.num_blocks < 0) continue;
    ++live;
    std::int32_t depth = 0;
    for (NodeId b = pin.tail; b >= 0; b = blocks_[b].parent) ++depth;
    audit.expect(depth == pin.num_cached, "a pin has another length than its chain");
  }
  audit.expect(live == num_pins_, "the number of pins is wrong");
  audit.expect(num_cached_[kPinned] <= max_pinned_, "more blocks are pinned than the budget has");
  // The policy below takes what lies above the normal level for used, which its audit does not.
  const bool all_below = !idle[kExpected] && !idle[kHigh] && !idle[kPinned];
  if (base_ && all_below) base_->audit(audit);
}

void RetainingPolicy::fingerprint(std::string& out) const {
  put_numbers(out, std::bit_cast<std::int64_t>(now_), counts_.expired, counts_.pinned_evicted,
              num_pins_, first_unused_);
  for (BlockId b = 0; b < blocks_.count; ++b) {
    const Kept& k = at(b);
    put_numbers(out, k.level, k.hint, k.first_pin, is_current(b) ? k.retention : kNoLevel,
                std::bit_cast<std::int64_t>(k.until), k.idle ? k.order : 0);
  }
  for (const Pin& pin : pins_) put_numbers(out, pin.id, pin.tail, pin.num_blocks, pin.num_cached);
  if (base_) base_->fingerprint(out);
}

}  // namespace blockmgr
