// Whether levels, pins and the table of sessions add up, and what they are.
#include "policies/retention.h"

#include <bit>
#include <map>
#include <utility>

#include "checks/audit.h"

namespace blockmgr {

void RetainingPolicy::audit(BlockAudit& audit) const {
  const Column<int> due(range_);  // kLow at first
  const Column<std::array<std::uint32_t, kNumLevels>> children(range_);
  std::array<std::int64_t, kNumLevels> cached{}, idle{}, strays{};
  // If the parent is in another partition, another check reports it. The columns have no row for
  // it.
  const auto parent_of = [&](NodeId b) {
    const NodeId parent = nodes_[b].parent;
    return range_.holds(parent) ? parent : kNoNode;
  };
  for (const NodeId b : range_) {
    if (!nodes_[b].keyed() || Pool::is_part(nodes_[b])) continue;
    int own = is_current(b) ? at(b).retention : at(b).hint;
    if (at(b).expected) own = std::max<int>(own, kExpected);
    if (at(b).first_pin >= 0) own = kPinned;
    for (NodeId up = b; up >= 0 && due[up] < own; up = parent_of(up)) due[up] = own;
    ++cached[at(b).level];
    if (parent_of(b) >= 0) ++children[parent_of(b)][at(b).level];
  }
  for (const NodeId b : range_) {
    const Kept& k = at(b);
    const bool keyed = nodes_[b].keyed() && !Pool::is_part(nodes_[b]);
    const std::string who = BlockAudit::name(b);
    const bool is_idle = keyed && nodes_.idle(b);
    audit.expect(k.cached == keyed, who + " is taken for cached, or is and is not");
    audit.expect(k.idle == is_idle, who + " is taken for idle, or is and is not");
    audit.expect(!k.found, who + " was found and never used");
    audit.expect(k.children == children[b], who + " miscounts its children by level");
    audit.expect(keyed || k.first_pin < 0, who + " is pinned and not cached");
    audit.expect(keyed || !k.expected, who + " is expected and not cached");
    if (keyed)
      audit.expect(k.level == due[b], who + " is at level " + std::to_string(k.level) +
                                          ", should be at " + std::to_string(due[b]));
    idle[k.level] += k.idle;
    strays[k.level] += order_positions_[b] >= 0;
    const bool waits = deadline_positions_[b] >= 0;
    audit.expect(!waits || k.until > now_, who + " is retained beyond its time");
    audit.expect(waits == (k.retention != kNoLevel && k.until < kForever),
                 who + " has a retention without its end, or an end without it");
    const NodeId parent = parent_of(b);
    if (k.idle && parent >= 0 && at(parent).idle)
      audit.expect(at(parent).order > k.order, who + " would go after its parent");
  }
  for (int level = 0; level < kNumLevels; ++level) {
    const std::string who = "level " + std::to_string(level);
    audit.expect(
        num_cached_[static_cast<std::size_t>(level)] == cached[static_cast<std::size_t>(level)],
        who + " miscounts its blocks");
    audit.expect(
        num_idle_[static_cast<std::size_t>(level)] == idle[static_cast<std::size_t>(level)],
        who + " miscounts its idle blocks");
    std::int64_t queued = strays[static_cast<std::size_t>(level)];
    for (NodeId b = at(end(level)).next; b != end(level); b = at(b).next, ++queued) {
      audit.expect(at(b).idle && at(b).level == level,
                   BlockAudit::name(b) + " is queued at the wrong level");
      const NodeId next = at(b).next;
      audit.expect(at(next).prev == b && (next == end(level) || at(b).order < at(next).order),
                   who + " is out of order at " + BlockAudit::name(b));
      if (queued > range_.count) break;
    }
    audit.expect(queued == num_idle_[static_cast<std::size_t>(level)],
                 who + " has lost an idle block");
  }
  std::int64_t live = 0;
  std::int64_t linked = 0;
  for (const NodeId b : range_) {
    std::int32_t before = -1;
    for (std::int32_t i = at(b).first_pin; i >= 0 && linked < max_pinned_; ++linked) {
      const Pin& pin = pins_[static_cast<std::size_t>(i)];
      audit.expect(pin.tail == b && pin.prev == before, "a pin is linked where it does not end");
      before = std::exchange(i, pin.next);
    }
  }
  for (const Pin& pin : pins_) {
    if (pin.id == 0 || pin.num_blocks < 0) continue;
    ++live;
    linked -= pin.tail >= 0;
    std::int32_t depth = 0;
    for (NodeId b = pin.tail; b >= 0 && depth <= range_.count; b = parent_of(b)) ++depth;
    audit.expect(depth == pin.num_cached, "a pin has another length than its chain");
  }
  audit.expect(live == num_pins_, "the number of pins is wrong");
  audit.expect(linked == 0, "a pin is not among those that end at its block");
  audit.expect(num_cached_[kPinned] <= max_pinned_, "more blocks are pinned than the budget has");
  if (sessions_) sessions_->audit(audit);
  // The policy below treats blocks above the normal level as used, which its own audit does not.
  const bool all_below = !idle[kExpected] && !idle[kHigh] && !idle[kPinned];
  if (base_ && all_below) base_->audit(audit);
}

void RetainingPolicy::fingerprint(std::string& out) const {
  put_numbers(out, std::bit_cast<std::int64_t>(now_), counts_.expired, counts_.pinned_evicted,
              num_pins_, first_unused_);
  for (const NodeId b : range_) {
    const Kept& k = at(b);
    put_numbers(out, k.level, k.hint, k.first_pin, is_current(b) ? k.retention : kNoLevel,
                std::bit_cast<std::int64_t>(k.until), k.idle ? k.order : 0);
  }
  for (const Pin& pin : pins_) put_numbers(out, pin.id, pin.tail, pin.num_blocks, pin.num_cached);
  if (sessions_) sessions_->fingerprint(out);
  if (base_) base_->fingerprint(out);
}

void SessionTable::audit(BlockAudit& audit) const {
  std::map<NodeId, std::pair<std::uint32_t, std::uint32_t>> due;  // paths, of sessions that wait
  int count = 0;
  std::size_t with_deadline = 0;
  std::int32_t before = kNone;
  each([&](Id id, const Session& s) {
    const std::string who = "session " + std::to_string(id);
    audit.expect(s.prev == before, who + " is out of the ring");
    before = static_cast<std::int32_t>(id);
    ++count;
    audit.expect(names_.refs(id) == 1, who + " has no name");
    ++audit.root_refs(s.root);
    with_deadline += has_deadline(s);
    audit.expect(!has_deadline(s) || s.until > policy_.now(), who + " waits beyond its time");
    const NodeId end = tip(id);
    if (end < 0) return;
    audit.expect(range_.holds(end) && audit.valid(end) && nodes_[end].keyed(),
                 who + " has a path that is not cached");
    std::int32_t depth = 0;
    for (NodeId n = end; n >= 0 && depth <= range_.count; n = nodes_[n].parent) ++depth;
    audit.expect(depth == s.num_blocks, who + " has a path of another length");
    ++due[end].first;
    due[end].second += s.outlook == Outlook::kExpected;
  });
  audit.expect(count == size_ && size_ <= most_, "the number of sessions is wrong");
  audit.expect(with_deadline == deadlines_.size(), "a session that waits has no deadline");
  for (const NodeId n : range_) {
    const bool current = ends_[n].generation == nodes_[n].generation;
    const auto found = due.find(n);
    const auto counts = found == due.end() ? std::pair{0u, 0u} : found->second;
    audit.expect((current ? ends_[n].num_paths : 0) == counts.first &&
                     (current ? ends_[n].num_expected : 0) == counts.second,
                 BlockAudit::name(n) + " miscounts the paths that end there");
    audit.expect(policy_.is_expected_by_sessions(n) == (counts.second > 0),
                 BlockAudit::name(n) + " is expected by no session, or should be");
  }
}

void SessionTable::fingerprint(std::string& out) const {
  each([&](Id id, const Session& s) {
    out.append(names_.bytes(id));
    put_numbers(out, id, tip(id), tip(id) < 0 ? 0 : s.num_blocks, s.row, s.root, s.outlook,
                has_deadline(s) ? std::bit_cast<std::int64_t>(s.until) : 0);
  });
}

}  // namespace blockmgr
