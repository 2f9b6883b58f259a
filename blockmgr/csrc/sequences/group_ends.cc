#include <algorithm>

#include "sequences/sequences.h"

namespace blockmgr {

void GroupEnds::choose_stops(Sequence& s, std::int64_t num_shared) noexcept {
  auto& stops = rows().group_row(s).stops;
  // A sequence that resumes may have tokens that were not in its prompt.
  const std::int64_t prompt_end = s.state == Sequence::kPreempted
                                      ? stops[GroupRow::kPromptEnd]
                                      : use<Needs>().prompt_end_of(s.num_tokens);
  const auto [last, diverges, halfway, end] =
      use<Needs>().stops_of(s.num_tokens, s.num_computed, num_shared, prompt_end);
  stops = {last, diverges, halfway, end, 0};
  if (diverges && !num_states())
    groups()->count_missed(s.partition, (diverges - s.num_computed) / config().block_size);
}

// Before its blocks are promoted: all of these are loaded, so none counts as unwritten, or one that
// this sequence releases within the step would stay in the list of those. This step's forward may
// have yet to write blocks that were found before the load; the sequence writes behind them.
void GroupEnds::settle_load(Sequence& s) noexcept {
  s.num_settled = s.num_written = rows().group_row(s).num_loaded;
  s.loads = false;
}

void GroupEnds::commit_groups(Sequence& s, bool advances) noexcept {
  use<GroupTables>().note_state(s, advances);
  if (rows().settled(s) == s.num_computed && num_states()) keep_state(s);
  use<GroupTables>().drop_windows(s);
}

// Whether every group has what the query after a unit of the sequence's path reads. end: the unit's
// node, which may be a tail behind what is committed.
bool GroupEnds::serves(const Sequence& s, std::int64_t logical, NodeId end) const {
  const auto node = [&](std::int64_t unit) {
    return unit < s.num_chained ? use<GroupTables>().path_node(s, unit) : end;
  };
  if (!groups()->can_start(groups()->length(node(logical)))) return false;
  for (const int g : recurrent())
    if (groups()->cached(g, node(logical)) < 0) return false;
  // A query reads its own unit, and nothing else that the one a unit before did not read.
  const bool read_before = logical > 0 && groups()->is_boundary(node(logical - 1));
  for (const int g : attention()) {
    const std::int64_t length = groups()->length(node(logical));
    const std::int64_t first = groups()->first_unit(g, length);
    const std::int64_t from = read_before ? std::max(first, logical) : first;
    for (std::int64_t unit = logical; unit >= from; --unit)
      if (groups()->cached(g, node(unit)) < 0 && groups()->reads(g, length, unit)) return false;
  }
  return true;
}

// A unit, this one or an earlier one, from which on all before unit `to` have a cached part, as far
// back as the query after unit `to` reads.
std::int64_t GroupEnds::cached_since(const Sequence& s, int g, std::int64_t to) const {
  const auto node = [&](std::int64_t unit) { return use<GroupTables>().path_node(s, unit); };
  const std::int64_t least =
      std::min(to, groups()->first_unit(g, (to + 1) * std::int64_t{config().block_size}));
  if (to > 0 && groups()->is_boundary(node(to - 1))) return least;  // its query read as much
  std::int64_t since = to;
  while (since > least && groups()->cached(g, node(since - 1)) >= 0) --since;
  return since;
}

// Whether all that the query after this node reads is cached, as far as since_room_ says.
bool GroupEnds::reads_cached(NodeId n, std::int64_t end) const {
  for (const int g : recurrent())
    if (groups()->cached(g, n) < 0) return false;
  for (const int g : attention())
    if (since_room_[nth(g)] > 0 && groups()->reads(g, end, since_room_[nth(g)] - 1)) return false;
  return true;
}

// A new stretch of its path is findable: [from, num_chained). States stand at few places anyway.
void GroupEnds::mark_boundaries(Sequence& s, std::int64_t from) noexcept {
  const NodeId* path = use<GroupTables>().path(s, from, s.num_chained) - from;
  const auto& stops = rows().group_row(s).stops;
  const auto is_stop = [&](std::int64_t end) {
    return end == stops[GroupRow::kLast] || end == stops[GroupRow::kDiverges] ||
           end == stops[GroupRow::kRetained];
  };
  const int num_groups = groups()->num_groups();
  for (const int g : attention()) since_room_[nth(g)] = cached_since(s, g, from);
  bool serves = false;
  std::int64_t passed = from;  // units from here on are new boundaries that it only passes
  for (std::int64_t i = from; i < s.num_chained; ++i) {
    const std::int64_t end = (i + 1) * config().block_size;
    const bool passes = !num_states() && !is_stop(end);
    bool all_cached = true;
    for (int g = 0; g < num_groups; ++g) {
      if (!groups()->group(g).is_cached() || groups()->cached(g, path[i]) >= 0) continue;
      since_room_[nth(g)] = i + 1;
      all_cached = false;
    }
    // A query reads its own unit, and nothing else that the one a unit before did not read.
    if (!serves || !all_cached) serves = reads_cached(path[i], end);
    const bool is_boundary = groups()->is_boundary(path[i]);
    const bool may_start = serves && groups()->can_start(end);
    if (passes && may_start && !is_boundary) continue;
    if (passed < i) groups()->add_passed(path + passed, i - passed);
    passed = i + 1;
    if (passes) continue;
    if (is_boundary) {
      groups()->clear_passed(path[i]);
    } else if (may_start) {
      groups()->add_boundary(path[i]);
      if (end == stops[GroupRow::kLast]) pass_earlier(s, i);
    }
    // Others continue here, too, even if what they have behind it goes before the next one comes.
    if (!num_states() && end == stops[GroupRow::kDiverges]) groups()->note_diverged(path[i]);
  }
  if (passed < s.num_chained) groups()->add_passed(path + passed, s.num_chained - passed);
}

// Of the boundary from which it has continued, and those before it: among so many leading units.
void GroupEnds::pass_earlier(const Sequence& s, std::int64_t most) noexcept {
  if (!s.num_cached) return;
  const std::int64_t found =
      std::min(most, block_size().whole(use<Needs>().end_behind(s.num_cached)));
  groups()->pass_earlier(use<GroupTables>().path(s, 0, found), found);
}

// Why its forward was to stop here, if it was; from here on it was there.
std::optional<GroupRow::Stop> GroupEnds::takes_stop(Sequence& s) noexcept {
  GroupRow& row = rows().group_row(s);
  const auto stop = std::find(row.stops.begin(), row.stops.end(), s.num_computed);
  if (stop == row.stops.end()) return {};
  *stop = 0;
  return static_cast<GroupRow::Stop>(stop - row.stops.begin());
}

// At a stop, the state becomes findable and the sequence goes on in a copy.
void GroupEnds::keep_state(Sequence& s) noexcept {
  if (!s.num_computed || !rows().group_row(s).stands() || s.outdated || !digester()) return;
  const auto stop = takes_stop(s);
  if (!stop) return;
  const bool passed = stop == GroupRow::kPromptEnd;
  const Pool::Partition& home = rows().home_of(s.partition);
  const std::int64_t room = passed ? home.free.size() : home.available();
  if (s.num_computed % config().block_size) return keep_branch(s, room, passed);
  const bool is_kept = keep_whole(s, room, passed);
  if (is_kept && (stop == GroupRow::kDiverges || stop == GroupRow::kRetained))
    groups()->note_diverged(
        use<GroupTables>().path_node(s, s.num_computed / config().block_size - 1));
}

// The state at the end of a whole block, if its copies take no more blocks than these. Whether a
// prompt can continue there.
bool GroupEnds::keep_whole(Sequence& s, std::int64_t room, bool passed) noexcept {
  const GroupRow& row = rows().group_row(s);
  if (s.num_chained * static_cast<std::int64_t>(config().block_size) < s.num_computed) return false;
  const std::int64_t unit = s.num_computed / config().block_size - 1;
  const NodeId node = use<GroupTables>().path_node(s, unit);
  std::int64_t missing = 0;
  for (const int g : recurrent()) {
    if (groups()->cached(g, node) >= 0) continue;
    ++missing;
    const NodeId own = row.states[nth(g)];
    const bool moves = config().remap && nodes().uses(own).pins;
    if (moves || nodes()[own].copy_source != kNoNode || nodes()[own].in_flight) return false;
  }
  if (missing > room || (passed && !missing)) return false;
  for (const int g : recurrent()) {
    if (groups()->cached(g, node) < 0) use<Keeping>().give_state(s, g, node);
  }
  const bool is_served = serves(s, unit, node);
  if (is_served) groups()->add_boundary(node, passed);
  use<GroupTables>().show_groups(s, s.num_blocks);
  return is_served;
}

bool GroupEnds::cache_state(Handle handle) {
  Call call(rows());
  Sequence& s = rows().running(handle);
  if (!num_states()) return false;
  use<GroupTables>().refuse_moved(s, "cache the state of");
  const bool at_end =
      rows().settled(s) == s.num_computed && s.num_computed % config().block_size == 0;
  if (!s.num_computed || !at_end || s.outdated || !digester()) return false;
  use<Keeping>().reserve_keeps(1);
  return keep_whole(s, rows().home_of(s.partition).free.size(), true);
}

// A stop within a block, where prompts diverge: the computed tokens of the block become a findable
// tail, and the sequence continues in copies, in all groups, if these take no more blocks than
// there is room for. passed: it is near the end of a prompt, so it goes before others.
void GroupEnds::keep_branch(Sequence& s, std::int64_t room, bool passed) noexcept {
  const std::int64_t unit = s.num_computed / config().block_size;
  const auto rest = static_cast<int>(s.num_computed % config().block_size);
  if (s.num_chained < unit || !use<Needs>().can_stop_at(s.num_computed)) return;
  if (groups()->num_groups() + own_blocks(1) - static_cast<int>(rings().size()) > room) return;
  const Pool::Partition& nodes_of = pool().partition(s.partition);
  if (pool().is_bare() && !(passed ? nodes_of.free.size() : nodes_of.available())) return;
  for (const int g : recurrent())
    if (config().remap && nodes().uses(rows().group_row(s).states[nth(g)]).pins) return;
  if (passed) {  // it takes no look-up from a tail that is more than that
    const Seen seen = seen_children(rows().chain_node(s, unit));
    if (seen.count == kMostChildren && seen.passed < 0) return;
    if (seen.count == kMostChildren) drop_tail(seen.passed);
  }
  const NodeId tail = cache_end_block(s, unit, rest, !config().remap);
  if (tail < 0) return;
  for (const int g : recurrent()) use<Keeping>().give_state(s, g, tail);
  if (!passed) groups()->set_branch(tail);
  if (serves(s, unit, tail)) groups()->add_boundary(tail, passed);
  if (config().remap) use<Growing>().make_private(s, unit, s.num_computed);
}

// Whether a child that begins with the tokens of a tail serves all that the tail would serve.
// Another tail of the same tokens stands for it, even if it serves less.
bool GroupEnds::stands_for_end(NodeId child, std::int64_t unit, int rest) noexcept {
  if (nodes()[child].key_tokens > rest)
    return !num_states() &&
           use<Finding>().has_parts(child, unit, unit * config().block_size + rest);
  index().bring_forward(child);  // for the next prompt that diverges here
  groups()->clear_passed(child);
  return true;
}

// Whether some child serves all that a tail of these tokens would serve.
[[gnu::always_inline]] inline bool GroupEnds::is_covered(const Key& key, std::int64_t unit,
                                                         int rest) noexcept {
  NodeId child = index().first_child(key.parent);
  for (int seen = 0; child >= 0 && seen < kMostChildren;
       ++seen, child = nodes()[child].next_sibling) {
    const Node& record = nodes()[child];
    if (record.extras != key.extras || record.key_tokens < rest ||
        !same_tokens(nodes().tokens(child), key.tokens, rest))
      continue;
    if (!has_groups() || stands_for_end(child, unit, rest)) return true;
  }
  return false;
}

void GroupEnds::supersede_tails(const Key& key, int num_tokens) noexcept {
  if (has_groups()) return;
  NodeId child = index().first_child(key.parent);
  for (int seen = 0; child >= 0 && seen < kMostChildren; ++seen) {
    const Node& record = nodes()[child];
    const NodeId after = record.next_sibling;
    if (record.key_tokens < num_tokens && record.extras == key.extras &&
        same_tokens(nodes().tokens(child), key.tokens, record.key_tokens))
      pool().forget(child);
    child = after;
  }
}

// Whether only this sequence has what the query at its end reads of this unit, in further groups.
bool GroupEnds::may_give_parts(const Sequence& s, std::int64_t unit, int rest) const {
  for (const int g : recurrent())
    if (!use<Keeping>().may_give(rows().group_row(s).states[nth(g)])) return false;
  for (const int g : attention()) {
    if (!groups()->reads(g, unit * config().block_size + rest, unit)) continue;
    if (unit < rows().group_row(s).first[nth(g)] ||
        !use<Keeping>().may_give(groups()->part(g, rows().table(s)[unit])))
      return false;
  }
  return true;
}

// The block in which the computed tokens of a sequence end becomes a findable tail in all groups of
// attention; or, if it goes on there, a copy does. kNoNode: it is shared, or there is such a tail.
[[gnu::always_inline]] inline NodeId GroupEnds::cache_end_block(Sequence& s, std::int64_t unit,
                                                                int rest, bool goes_on) noexcept {
  const NodeId b = rows().table(s)[unit];
  const Key key{rows().chain_node(s, unit), extras_at(s.extras_ids(), unit), nodes().tokens(b)};
  if (is_covered(key, unit, rest) || !use<Keeping>().may_give(b)) return kNoNode;
  if (!may_give_parts(s, unit, rest)) return kNoNode;
  supersede_tails(key, rest);
  if (!goes_on) pool().drop_twin(b);  // a truncated twin, as a tail of its own from here on
  const NodeId tail = goes_on ? use<Keeping>().copy_end_block(s, unit, rest) : b;
  pool().promote_tail(tail, {key.parent, key.extras, nodes().tokens(tail)}, rest);
  pool().tell_cached({&tail, 1});
  ++rows().counters.cached_tails;
  if (has_groups()) [[unlikely]]
    place_tail(tail, unit);
  return tail;
}

void GroupEnds::place_tail(NodeId tail, std::int64_t unit) noexcept {
  groups()->place(tail, unit);
  for (const int g : attention())
    if (groups()->reads(g, groups()->length(tail), unit)) groups()->keep(groups()->part(g, tail));
  drop_unseen_tails(nodes()[tail].parent);
}

// Look-ups see so many children of a node.
GroupEnds::Seen GroupEnds::seen_children(NodeId parent) const {
  Seen seen;
  for (seen.next = index().first_child(parent); seen.next >= 0 && seen.count < kMostChildren;
       seen.next = nodes()[seen.next].next_sibling, ++seen.count) {
    const bool is_tail = nodes()[seen.next].key_tokens < config().block_size;
    if (is_tail && nodes().idle(seen.next) && groups()->is_passed(seen.next))
      seen.passed = seen.next;
  }
  return seen;
}

// Takes an idle tail out of the cache, with what only it needs.
void GroupEnds::drop_tail(NodeId tail) noexcept {
  groups()->end_boundary(tail);
  groups()->prune(tail);
}

// A tail behind the children that look-ups see is found no more: it goes. But first one that is
// just passed goes, and the next tail is seen in its place.
void GroupEnds::drop_unseen_tails(NodeId parent) noexcept {
  const Seen seen = seen_children(parent);
  NodeId child = seen.next;
  if (child >= 0 && seen.passed >= 0) {
    child = nodes()[child].next_sibling;
    drop_tail(seen.passed);
  }
  for (int looked = 0; child >= 0 && looked < kMostChildren; ++looked) {
    const NodeId next = nodes()[child].next_sibling;
    if (nodes()[child].key_tokens < config().block_size && nodes().idle(child)) drop_tail(child);
    child = next;
  }
}

// Caches the end of a sequence before it goes: the tokens of a unit that is not full. The node of
// its end, where its states can be kept; kNoNode: none.
NodeId GroupEnds::keep_end(Sequence& s) noexcept {
  const int least = config().min_partial_tokens;
  if (!(least || num_states()) || !digester() || s.outdated || !s.num_computed) return kNoNode;
  std::int64_t end = s.num_computed;
  // Of a tail without a state, as much serves as others can begin with an empty ring.
  if (num_states() && !can_start(end)) return kNoNode;
  end -= groups()->past_start(end);
  if (!end || !can_start(end)) return kNoNode;
  const std::int64_t unit = block_size().whole(end);
  const auto rest = static_cast<int>(end - unit * config().block_size);
  if (s.num_chained < unit || (num_states() && !rows().group_row(s).stands())) return kNoNode;
  if (s.loads) return kNoNode;  // it has no windows there
  if (rest ? !least || rest < least : !num_states()) return kNoNode;
  return rest ? cache_end_block(s, unit, rest, false) : use<GroupTables>().path_node(s, unit - 1);
}

// Its states at its end, which is this node; and the boundary there.
void GroupEnds::keep_states_at(Sequence& s, NodeId node, bool resumes) noexcept {
  GroupRow& row = rows().group_row(s);
  const auto is_lacking = [&](int g) { return groups()->cached(g, node) < 0; };
  for (const int g : recurrent())
    if (is_lacking(g) && !use<Keeping>().may_give(row.states[nth(g)])) return;
  for (const int g : recurrent()) {
    if (!is_lacking(g)) continue;
    groups()->set_part(g, node, row.states[nth(g)]);
    groups()->keep(row.states[nth(g)]);
  }
  if (serves(s, groups()->unit(node), node)) {
    groups()->add_boundary(node);
    if (num_states()) end_path(s, node, resumes);
  }
  for (const int g : recurrent()) {
    NodeId& state = row.states[nth(g)];
    if (state == groups()->part(g, node)) {
      pool().release(state);
      state = kNoNode;
    }
  }
}

// Which boundaries of its path are worth less than others now that it ended at this node.
void GroupEnds::end_path(const Sequence& s, NodeId end, bool resumes) noexcept {
  const std::int64_t size = config().block_size;
  const std::int64_t unit = s.num_computed / size;
  const std::int64_t found = s.num_cached / size;
  const bool continued = found && found < unit && s.num_cached % size == 0;
  const auto node = [&](std::int64_t u) { return use<GroupTables>().path_node(s, u); };
  groups()->end_path(continued ? node(found - 1) : kNoNode, unit ? node(unit - 1) : kNoNode,
                     s.num_computed % size ? end : kNoNode, resumes);
}

// Leading units of its path up to the last place where another sequence can begin.
std::int64_t GroupEnds::last_start_of(const Sequence& s) const {
  std::int64_t units = s.num_chained;
  while (units && !groups()->can_start(units * config().block_size)) --units;
  return units;
}

// Before a sequence leaves a path: the end of its whole blocks. Others may have evicted that
// boundary, which freed nothing as long as the sequence used the blocks.
void GroupEnds::keep_path(const Sequence& s) noexcept {
  const std::int64_t units = last_start_of(s);
  if (!units) return;
  const NodeId last = use<GroupTables>().path_node(s, units - 1);
  if (!groups()->is_boundary(last) && serves(s, units - 1, last)) groups()->add_boundary(last);
}

// The sequence still has its blocks. resumes: it continues from its end when there is room.
void GroupEnds::leave_groups(Sequence& s, bool resumes) noexcept {
  if (!config().remap) use<Keeping>().cancel_keeps(s);
  const std::int64_t tails = rows().counters.cached_tails;
  const NodeId end = keep_end(s);
  if (end >= 0) keep_states_at(s, end, resumes);
  leave_path(s, rows().counters.cached_tails != tails);
}

void GroupEnds::leave_path(Sequence& s, bool left_tail) noexcept {
  if (s.num_chained) {
    const NodeId last = use<GroupTables>().path_node(s, s.num_chained - 1);
    groups()->tell_kept(&last, 1);
    if (!left_tail) {
      keep_path(s);
      const std::int64_t units = last_start_of(s);
      if (units) groups()->clear_passed(use<GroupTables>().path_node(s, units - 1));
    }
  }
  use<GroupTables>().drop_states(s);
  auto& stops = rows().group_row(s).stops;
  stops = {0, 0, 0, stops[GroupRow::kPromptEnd], 0};  // if it resumes
}

// No prompt can continue from what is retained without a boundary at its end. So a forward should
// stop there, and it is more than passed.
void GroupEnds::keep_boundary(const Sequence& s, std::int64_t end) noexcept {
  if (!has_groups()) return;  // prompts continue from each node
  const std::int64_t rest = end % config().block_size;
  const bool within =
      num_states() && config().min_partial_tokens && rest >= config().min_partial_tokens;
  if (!within) end -= rest;
  end = use<Needs>().last_start(end);
  auto& stops = rows().group_row(s).stops;
  const std::int64_t units = end / config().block_size;
  if (end > s.num_computed) {
    for (const auto other : {GroupRow::kLast, GroupRow::kHalfway, GroupRow::kPromptEnd})
      if (stops[other] == end) stops[other] = 0;
    if (stops[GroupRow::kDiverges] != end) stops[GroupRow::kRetained] = end;
  } else if (end % config().block_size == 0 && units && units <= s.num_chained) {
    const NodeId node = use<GroupTables>().path_node(s, units - 1);
    if (serves(s, units - 1, node)) groups()->keep_boundary(node);
  }
}

}  // namespace blockmgr
