#include <algorithm>

#include "sequences/arguments.h"
#include "sequences/sequences.h"

namespace blockmgr {

std::int64_t GroupTables::count_to_grow(const Sequence& s, std::int64_t slots,
                                        std::int64_t moved) const {
  std::int64_t parts = std::max<std::int64_t>(
      use<Slices>().parts_before(slots) - use<Slices>().parts_before(rows().num_slots(s)), 0);
  return moved < 0 ? parts : parts + num_parts(s, moved);
}

const NodeId* GroupTables::path_of_twins(const Sequence& s, std::int64_t from,
                                         std::int64_t to) noexcept {
  for (std::int64_t unit = from; unit < to; ++unit) path_room_[nth(unit)] = path_node(s, unit);
  return path_room_.data() + from;
}

NodeId GroupTables::take_of(int g, int partition, NodeId before) noexcept {
  const NodeId m = pool().take(pool().home(partition), before);
  groups()->set_owner(m, g);
  return m;
}

// Parts of units [from, to) of its table, each to continue the one before it. The last of them.
NodeId GroupTables::take_part_run(const Sequence& s, int g, std::int64_t from, std::int64_t to,
                                  NodeId before) noexcept {
  if (to <= from) return before;
  const NodeId* t = rows().table(s);
  NodeId* const fresh = parts_room_.data();
  if (to - from == 1) {
    *fresh = pool().take(pool().home(s.partition), before);
  } else {
    pool().take_run(pool().home(s.partition), before, to - from, fresh);
  }
  for (std::int64_t unit = from; unit < to; ++unit) {
    const NodeId m = fresh[unit - from];
    groups()->set_owner(m, g);
    groups()->set_part(g, t[unit], m);
  }
  return fresh[to - from - 1];
}

// A row is zero where the sequence has no part.
void GroupTables::show_groups(const Sequence& s, std::int64_t from) noexcept {
  const NodeId* t = rows().table(s);
  const GroupRow& row = rows().group_row(s);
  each_single([&](int g) {
    const Slices::Shown out = use<Slices>().shown_group_at(g, rows().row_of(s));
    const auto show = [&](int slot, NodeId state) {
      out[slot] = state < 0 ? 0 : number(nodes().block(state));
    };
    const bool has_others = groups()->group(g).extra_blocks > 0;
    show(has_others ? row.slot : 0, row.states[nth(g)]);
    if (has_others) [[unlikely]]
      for (int i = 0; i < extra_blocks(); ++i) show(i + (i >= row.slot), others_of(s, g)[i]);
  });
  for (const int g : growing()) {
    const Slices::Shown out = use<Slices>().shown_group_at(g, rows().row_of(s));
    const std::int64_t until = use<Slices>().units_of(g, rows().num_slots(s));
    const auto show_all = [&](const auto& block_of) {
      for (std::int64_t unit = std::max<std::int64_t>(from, row.first[nth(g)]); unit < until;
           ++unit)
        out[unit] = number(nodes().block(block_of(unit)));
    };
    if (groups()->group(g).is_attention()) {
      show_all([&](std::int64_t unit) { return groups()->part(g, t[unit]); });
    } else {
      show_all([&](std::int64_t unit) { return row.own[nth(g)][nth(unit)]; });
    }
  }
}

void GroupTables::throw_loading(const Sequence& s, const char* call) const {
  rows().refuse(s, call,
                "its first " + std::to_string(rows().group_row(s).num_loaded) +
                    " tokens are being loaded; commit them first");
}

// Gives back what no query to come reads.
void GroupTables::drop_windows(Sequence& s) noexcept {
  const std::int64_t from = std::max<std::int64_t>(0, rows().settled(s) - config().max_rollback);
  GroupRow& row = rows().group_row(s);
  for (const int g : growing()) {
    std::int32_t& first = row.first[nth(g)];
    const Group& group = groups()->group(g);
    if (first * std::int64_t{config().block_size} + group.end > group.first_read(from)) continue;
    // Nothing while it is computed again.
    if (group.is_replayed() && rows().begins(s) < row.hit) continue;
    const auto until = static_cast<std::int32_t>(groups()->first_unit(g, from));
    const std::int32_t end = std::min(until, s.num_blocks);
    group.is_replayed() ? drop_own(s, g, first, end) : drop_part_run(s, g, first, end);
    first = until;
  }
}

// Whether a commit of what is computed tells where the states stand. advances: of more than before.
// With steps in flight, one that does not may be about a step that did not compute the sequence,
// while a later step moves its states. Early commits come in the order of the steps.
bool GroupTables::tells_state(const Sequence& s, bool advances) const {
  const int moves = rows().group_row(s).moves;
  if (open_steps().empty() || !moves) return true;
  return moves == 1 && (advances || config().early_commit);
}

void GroupTables::note_state(Sequence& s, bool advances) noexcept {
  if (rows().committed_ahead(s) || !tells_state(s, advances)) return;
  rows().group_row(s).moves = 0;
}

// Before decode, which commits first: as refuse_moved.
void GroupTables::refuse_unknown_state(const Sequence& s, const char* call) const {
  if (!tells_state(s, true)) refuse_moved(s, call);
}

// Apart from its caller, which seldom needs it.
[[gnu::noinline]] static void add_to(std::vector<NodeId>& parts, NodeId m) { parts.push_back(m); }

// Parts that decode gives back before it takes any, as far as that is certain. Appends them, and
// counts those of units that are not promoted yet. While steps are in flight there are none.
std::int64_t GroupTables::num_dropped(const Sequence& s, std::vector<NodeId>& parts,
                                      std::int64_t& num_early) const {
  std::int64_t dropped = 0;
  const std::int64_t from = std::max<std::int64_t>(0, s.num_tokens - config().max_rollback);
  const GroupRow& row = rows().group_row(s);
  const std::int64_t slots = rows().num_slots(s);
  for (const int g : growing()) {
    const Group& group = groups()->group(g);
    const std::int64_t read = std::min(group.first_read(from), slots);
    for (std::int64_t unit = row.first[nth(g)]; unit * config().block_size + group.end <= read;
         ++unit) {
      const NodeId m = block_of(s, g, unit);
      if (nodes().uses(m) != Uses{1, 0} || (pool().num_leaving() && pool().is_out(m))) continue;
      add_to(parts, m);
      ++dropped;
      num_early += unit >= s.num_chained;
    }
  }
  return dropped;
}

// Parts for more slots of its table, whose nodes beyond those it had are new.
void GroupTables::take_more_parts(Sequence& s, std::int64_t had_slots,
                                  std::int64_t slots) noexcept {
  const NodeId* t = rows().table(s);
  const std::int64_t known = rows().blocks_for(had_slots);
  groups()->clear_parts(t + known, s.num_blocks - known);
  s.missing_slots =
      static_cast<std::int32_t>(rows().token_room(s) - use<Slices>().usable_slots(slots));
  for (const int g : attention()) {
    const std::int64_t from = use<Slices>().units_of(g, had_slots);
    const bool continues = from > rows().group_row(s).first[nth(g)];
    const NodeId before = continues ? groups()->part(g, t[from - 1]) : kNoNode;
    take_part_run(s, g, from, use<Slices>().units_of(g, slots), before);
  }
  for (const int g : replayed())
    take_own(s, g, use<Slices>().units_of(g, had_slots), use<Slices>().units_of(g, slots));
  show_groups(s, block_size().whole(had_slots));
}

// Of so many leading tokens of a node, those in its block of a group.
void GroupTables::bring(int g, NodeId source, std::int64_t num_tokens, NodeId to) noexcept {
  const std::int32_t brought =
      num_tokens > 0 ? copies().reach(source, static_cast<std::int32_t>(num_tokens)) : 0;
  if (groups()->group(g).tokens_of(brought)) copies().plan(source, to, brought);
}

// The sequence moves to parts of its own, as its table did from `shared` to its present node.
// Copies bring as many tokens as those into the node, because they are planned together.
void GroupTables::make_parts_private(Sequence& s, std::int64_t logical, NodeId shared,
                                     std::int32_t num_tokens) noexcept {
  const NodeId own = rows().table(s)[logical];
  groups()->clear_parts(own);
  for (const int g : attention()) {
    if (logical < rows().group_row(s).first[nth(g)]) continue;
    const NodeId source = groups()->part(g, shared);
    if (source < 0) continue;
    const NodeId before = logical > rows().group_row(s).first[nth(g)]
                              ? groups()->part(g, rows().table(s)[logical - 1])
                              : kNoNode;
    const NodeId m = take_part_run(s, g, logical, logical + 1, before);
    bring(g, source, num_tokens, m);
    drop_part(g, shared);
  }
  show_groups(s, logical);
}

// A sequence's reference to the part of a node goes. Inlined where it is most of a loop.
[[gnu::always_inline]] inline void GroupTables::drop_part_here(int g, NodeId node) noexcept {
  const NodeId m = groups()->part(g, node);
  if (nodes()[m].keyed() && groups()->is_needed(g, node)) [[likely]]
    return pool().release_part(m);
  // With its last reference, the part is removed from its node.
  const bool last = nodes().uses(m).ref_count == 1 && !nodes()[m].keyed();
  rows().drop_reference(m);
  if (last) groups()->clear_part(g, node);
}

void GroupTables::drop_part(int g, NodeId node) noexcept { drop_part_here(g, node); }

// The same of units [from, to) of its table, which shows none of them any more.
void GroupTables::drop_part_run(const Sequence& s, int g, std::int64_t from,
                                std::int64_t to) noexcept {
  if (from >= to) return;
  const NodeId* t = rows().table(s);
  const bool keeps = pool().keeps_parts();
  const Group group = groups()->group(g);
  int kept = 0;
  for (std::int64_t unit = from; unit < to; ++unit) {
    const NodeId n = t[unit];
    const NodeId m = groups()->part(g, n);
    Uses& uses = nodes().uses(m);
    if (keeps && uses == Uses{1, 0} && nodes()[m].keyed() && groups()->is_kept(group, n, unit)) {
      uses = Uses();
      ++kept;
    } else {
      drop_part(g, n);
    }
  }
  pool().count_kept(pool().home(s.partition), kept);
  const Slices::Shown shown = use<Slices>().shown_group_at(g, rows().row_of(s));
  for (std::int64_t unit = from; unit < to; ++unit) shown[unit] = 0;
}

// All parts of blocks [from, num_blocks), the last first.
void GroupTables::drop_all_parts(Sequence& s, std::int64_t from) noexcept {
  const NodeId* t = rows().table(s);
  for (const int g : growing()) {
    std::int32_t& first = rows().group_row(s).first[nth(g)];
    const std::int64_t least = std::max<std::int64_t>(from, first);
    std::int64_t unit = use<Slices>().units_of(g, rows().num_slots(s));
    first = static_cast<std::int32_t>(std::min<std::int64_t>(first, from));
    if (groups()->group(g).is_replayed()) {
      drop_own(s, g, least, unit);
      continue;
    }
    const Slices::Shown shown = use<Slices>().shown_group_at(g, rows().row_of(s));
    while (unit-- > least) {
      drop_part_here(g, t[unit]);
      shown[unit] = 0;
    }
  }
}

void GroupTables::drop_states(Sequence& s) noexcept {
  each_single([&](int g) {
    NodeId& state = rows().group_row(s).states[nth(g)];
    if (state >= 0) rows().drop_reference(state);
    state = kNoNode;
    const Slices::Shown shown = use<Slices>().shown_group_at(g, rows().row_of(s));
    for (int slot = 0; slot <= groups()->group(g).extra_blocks; ++slot) shown[slot] = 0;
  });
  for (NodeId& other : rows().group_row(s).others) {
    if (other >= 0) rows().drop_reference(other);
    other = kNoNode;
  }
  GroupRow& row = rows().group_row(s);
  row.start = row.hit = row.replayed = row.begun = 0;
}

NodeId* GroupTables::others_of(const Sequence& s, int g) const {
  const auto rank = std::find(recurrent().begin(), recurrent().end(), g) - recurrent().begin();
  return rows().group_row(s).others.data() + rank * extra_blocks();
}

void GroupTables::take_others(GroupRow& row, int partition) noexcept {
  row.slot = 0;
  for (std::size_t i = 0; i < row.others.size(); ++i)
    row.others[i] = take_of(recurrent()[i / nth(extra_blocks())], partition, kNoNode);
}

void GroupTables::place_state(Handle handle, std::int64_t slot) {
  const Held held(rows().monitor());
  const Sequence& s = rows().running(handle);
  check_bounds("slot", slot, 0, extra_blocks());
  if (!num_states()) return;
  GroupRow& row = rows().group_row(s);
  for (const int g : recurrent()) {
    NodeId* const others = others_of(s, g);
    NodeId& state = row.states[nth(g)];
    if (slot > row.slot) {
      std::swap(state, others[slot - 1]);
      std::rotate(others + row.slot, others + slot - 1, others + slot);
    } else if (slot < row.slot) {
      std::swap(state, others[slot]);
      std::rotate(others + slot, others + slot + 1, others + row.slot);
    }
  }
  row.slot = static_cast<int>(slot);
}

// Rings of its own for a sequence that begins after so many tokens, to be emptied by the next plan.
void GroupTables::take_rings(const Sequence& s, std::int64_t length) noexcept {
  GroupRow& row = rows().group_row(s);
  for (const int g : rings()) {
    row.states[nth(g)] = take_of(g, s.partition, kNoNode);
    copies().plan_zeros(row.states[nth(g)]);
  }
  row.since = row.farthest = row.sure = length;
}

// Copies of a sequence's rings, whole, for one that goes on as it does. from: that of the sequence;
// to: the other's.
void GroupTables::fork_rings(const GroupRow& from, int partition, GroupRow& to) noexcept {
  for (const int g : rings()) {
    const NodeId source = from.states[nth(g)];  // both may be one row
    to.states[nth(g)] = take_of(g, partition, kNoNode);
    copies().plan(source, to.states[nth(g)], config().block_size);
  }
  to.since = from.since;
  to.farthest = to.sure = from.farthest;
}

// Whether its rings have what the query after so many tokens reads.
bool GroupTables::rings_reach(const Sequence& s, std::int64_t length) const {
  const GroupRow& row = rows().group_row(s);
  const std::int64_t farthest = std::max(row.farthest, rows().computed(s));
  if (length <= row.since) return length == row.since && farthest <= row.since;
  // Only what is computed again may lack what lies before its beginning.
  const std::int64_t least = rows().replays(s) ? row.since : 0;
  return std::all_of(rings().begin(), rings().end(), [&](int g) {
    const Group& ring = groups()->group(g);
    const std::int64_t read = std::max(least, length - length % ring.restart);
    return read >= std::max(row.since, farthest - ring.width);
  });
}

// Its rings are empty again after so many tokens.
void GroupTables::empty_rings(const Sequence& s, std::int64_t length) noexcept {
  GroupRow& row = rows().group_row(s);
  for (const int g : rings()) copies().plan_zeros(row.states[nth(g)]);
  row.since = row.farthest = row.sure = length;
}

// Its forwards begin before its hit, with blocks of its own from there on.
void GroupTables::begin_replay(const Sequence& s) noexcept {
  if (!groups()->replay()) return;
  GroupRow& row = rows().group_row(s);
  row.hit = s.num_computed;
  row.start = row.replayed = row.begun = groups()->start_of(row.hit);
  for (const int g : replayed()) {
    row.first[nth(g)] = static_cast<std::int32_t>(first_own(g, row.hit));
    take_own(s, g, row.first[nth(g)], use<Slices>().units_of(g, rows().num_slots(s)));
  }
}

// So many tokens are computed. Whether that is still before its hit: then nothing else changes.
bool GroupTables::replay_to(Sequence& s, std::int64_t num_computed, bool advances) noexcept {
  GroupRow& row = rows().group_row(s);
  row.replayed = std::min(num_computed, row.hit);
  if (num_computed >= row.hit) return false;
  note_state(s, advances);
  return true;
}

// An earlier forward has computed all up to its hit.
void GroupTables::end_replay(const Sequence& s) noexcept {
  GroupRow& row = rows().group_row(s);
  row.replayed = row.begun = row.hit;
}

void GroupTables::take_own(const Sequence& s, int g, std::int64_t from, std::int64_t to) noexcept {
  const GroupRow& row = rows().group_row(s);
  std::vector<NodeId>& own = rows().group_row(s).own[nth(g)];
  for (std::int64_t unit = from; unit < to; ++unit) {
    const NodeId before = unit > row.first[nth(g)] ? own[nth(unit - 1)] : kNoNode;
    own[nth(unit)] = take_of(g, s.partition, before);
  }
}

// Units [from, to), the last first.
void GroupTables::drop_own(const Sequence& s, int g, std::int64_t from, std::int64_t to) noexcept {
  const Slices::Shown shown = use<Slices>().shown_group_at(g, rows().row_of(s));
  for (std::int64_t unit = to; unit-- > from;) {
    NodeId& own = rows().group_row(s).own[nth(g)][nth(unit)];
    rows().drop_reference(own);
    own = kNoNode;
    shown[unit] = 0;
  }
}

// What a fork takes at once: states, rings, and all that uncached windows hold.
std::int64_t GroupTables::blocks_to_fork(const Sequence& parent) const {
  std::int64_t blocks = num_singles();
  const std::int64_t slots = std::min(rows().num_slots(parent),
                                      rows().blocks_for(parent.num_tokens) * config().block_size);
  for (const int g : replayed())
    blocks += std::max<std::int64_t>(
        use<Slices>().units_of(g, slots) - rows().group_row(parent).first[nth(g)], 0);
  return blocks;
}

// Copies of what a sequence's uncached windows hold, for one that goes on as it does. model: what
// the other is to be, in any row. Both rows may be one.
void GroupTables::fork_own(const Sequence& model, const GroupRow& from, GroupRow& to) noexcept {
  to.start = from.start;
  to.hit = from.hit;
  to.replayed = to.begun = from.replayed;
  const std::int64_t size = config().block_size;
  const std::int64_t computed = to.replayed < to.hit ? to.replayed : model.num_computed;
  for (const int g : replayed()) {
    NodeId before = kNoNode;
    const std::int64_t until = use<Slices>().units_of(g, rows().num_slots(model));
    for (std::int64_t unit = from.first[nth(g)]; unit < until; ++unit) {
      const NodeId source = from.own[nth(g)][nth(unit)];
      before = take_of(g, model.partition, before);
      to.own[nth(g)][nth(unit)] = before;
      bring(g, source, std::clamp<std::int64_t>(computed - unit * size, 0, size), before);
    }
    std::vector<NodeId>& own = to.own[nth(g)];
    if (&from == &to) std::fill(own.begin() + until, own.end(), kNoNode);  // look-ahead slots
  }
}

// Whether its uncached windows hold what the query after so many tokens reads, and the slots behind
// these tokens in their node: a node without all its slots has none.
bool GroupTables::has_own(const Sequence& s, std::int64_t length) const {
  if (replayed().empty() || !length || length == s.num_computed) return true;
  if (rows().replays(s)) return false;
  const GroupRow& row = rows().group_row(s);
  const std::int64_t units = rows().blocks_for(length);
  return std::all_of(replayed().begin(), replayed().end(), [&](int g) {
    const std::int64_t unit = groups()->first_unit(g, length);
    return groups()->group(g).first_read(length) >= row.start &&
           (unit >= row.first[nth(g)] || unit >= units);
  });
}

// A unit is findable from here on as `node`. In each group, the part that is there stands for the
// sequence's own, or its own becomes findable. `own`: the node that it had.
void GroupTables::settle_parts(Sequence& s, std::int64_t logical, NodeId own,
                               NodeId node) noexcept {
  for (const int g : attention()) {
    NodeId there = groups()->part(g, node);
    if (own != node && there < 0) {
      there = groups()->part(g, own);
      if (there >= 0) groups()->set_part(g, node, there);
    }
    if (there < 0 || nodes()[there].keyed()) continue;
    groups()->keep(there);
    if (config().early_commit) note_unwritten(s, logical, g, there);
  }
}

// Whether a sequence cannot leave a block that others share, as their tables stay as they are: the
// cached one has no part in a group whose window holds the unit, and a part has one node. It can
// once the others or its window have left the unit.
bool GroupTables::must_stay(const Sequence& s, std::int64_t logical, NodeId cached) const {
  if (nodes().uses(rows().table(s)[logical]).ref_count == 1) return false;
  bool lacks = false;
  each_part(s, logical, [&](int g, NodeId) { lacks |= groups()->part(g, cached) < 0; });
  return lacks;
}

// A sequence moves to the cached block that stands for its own: it does so in all groups. A part
// that the cached block lacks comes along.
void GroupTables::merge_parts(Sequence& s, std::int64_t logical, NodeId cached) noexcept {
  const NodeId own = rows().table(s)[logical];
  const bool is_shared = nodes().uses(own).ref_count > 1;
  settle_parts(s, logical, is_shared ? cached : own, cached);
  each_part(s, logical, [&](int g, NodeId part) {
    const NodeId there = groups()->part(g, cached);
    if (there == part) return;
    pool().acquire(there);
    drop_part(g, own);
    use<Slices>().shown_group_at(g, rows().row_of(s))[logical] = number(nodes().block(there));
  });
}

int GroupTables::count_unwritten(NodeId node) const {
  int most = nodes()[node].unwritten;
  for (const int g : attention()) {
    const NodeId m = groups()->cached(g, node);
    if (m >= 0) most = std::max<int>(most, nodes()[m].unwritten);
  }
  return most;
}

// With early commits, of a sequence that may be truncated to within a block that it has found:
// whether this step's forward has yet to write some of it. Blocks before that one are whole, so
// the sequence neither copies nor caches them.
void GroupTables::note_written(Sequence& s) const noexcept {
  s.early_step = step();
  s.num_settled = s.num_written = s.num_computed;
  const std::int64_t size = config().block_size;
  const std::int64_t unit = block_size().whole(s.num_computed);
  if (unwritten().empty() || s.num_computed == unit * size) return;
  int most = nodes()[rows().table(s)[unit]].unwritten;
  each_part(s, unit,
            [&](int, NodeId part) { most = std::max<int>(most, nodes()[part].unwritten); });
  s.num_written = std::min(s.num_written, (unit + 1) * size - most);
}

}  // namespace blockmgr
