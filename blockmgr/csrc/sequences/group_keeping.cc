// With further groups of layers: what becomes findable at stops and ends, and its boundaries.
#include <algorithm>

#include "sequences/sequences.h"

namespace blockmgr {

// Whether every group has what the query after this node of the sequence's path reads.
bool Sequences::serves(const Sequence& s, std::int64_t logical) const {
  const NodeId* t = table(s);
  for (int g = 0; g < groups_->num_groups(); ++g)
    if (groups_->group(g).recurrent() && groups_->cached(g, t[logical]) < 0) return false;
  // Of what a query reads, all but its own unit was read by the one a unit before.
  const bool read_before = logical > 0 && groups_->is_boundary(t[logical - 1]);
  for (int g = 0; g < groups_->num_groups(); ++g) {
    if (groups_->group(g).recurrent()) continue;
    const std::int64_t first = groups_->first_unit(g, groups_->length(t[logical]));
    const std::int64_t from = read_before ? std::max(first, logical) : first;
    for (std::int64_t unit = logical; unit >= from; --unit)
      if (groups_->cached(g, t[unit]) < 0) return false;
  }
  return true;
}

// A unit, this one or an earlier one, from which on all before unit `to` have a cached part, as far
// back as the query after unit `to` reads.
std::int64_t Sequences::cached_since(const Sequence& s, int g, std::int64_t to) const {
  const NodeId* t = table(s);
  const std::int64_t least =
      std::min(to, groups_->first_unit(g, (to + 1) * std::int64_t{config_.block_size}));
  if (to > 0 && groups_->is_boundary(t[to - 1])) return least;  // its query read as much
  std::int64_t since = to;
  while (since > least && groups_->cached(g, t[since - 1]) >= 0) --since;
  return since;
}

// Whether all that the query after this node reads is cached, as far as since_room_ says.
bool Sequences::reads_cached(NodeId n, std::int64_t end) const {
  for (int g = 0; g < groups_->num_groups(); ++g) {
    const Group& group = groups_->group(g);
    if (group.recurrent() ? groups_->cached(g, n) < 0
                          : since_room_[nth(g)] * config_.block_size > group.first_read(end))
      return false;
  }
  return true;
}

// A new stretch of its path is findable: [from, num_chained). States stand at few places anyway.
void Sequences::mark_boundaries(Sequence& s, std::int64_t from) noexcept {
  const NodeId* t = table(s);
  const auto& stops = group_row(s).stops;
  const auto is_stop = [&](std::int64_t end) {
    return end == stops[GroupRow::kLast] || end == stops[GroupRow::kDiverges] ||
           end == stops[GroupRow::kRetained];
  };
  const int num_groups = groups_->num_groups();
  for (int g = 0; g < num_groups; ++g)
    if (!groups_->group(g).recurrent()) since_room_[nth(g)] = cached_since(s, g, from);
  bool serves = false;
  std::int64_t passed = from;  // units from here on are new boundaries that it only passes
  for (std::int64_t i = from; i < s.num_chained; ++i) {
    const std::int64_t end = (i + 1) * config_.block_size;
    const bool passes = !num_states_ && !is_stop(end);
    bool all_cached = true;
    for (int g = 0; g < num_groups; ++g) {
      if (groups_->cached(g, t[i]) >= 0) continue;
      since_room_[nth(g)] = i + 1;
      all_cached = false;
    }
    // Of what a query reads, all but its own unit was read by the one a unit before.
    if (!serves || !all_cached) serves = reads_cached(t[i], end);
    const bool is_boundary = groups_->is_boundary(t[i]);
    if (passes && serves && !is_boundary) continue;
    if (passed < i) groups_->add_passed(t + passed, i - passed);
    passed = i + 1;
    if (passes) continue;
    if (is_boundary) {
      groups_->clear_passed(t[i]);
    } else if (serves) {
      groups_->add_boundary(t[i]);
      if (end == stops[GroupRow::kLast]) groups_->pass_earlier(t, s.num_cached / config_.block_size);
    }
    // Others continue here, too, even if what they have behind it goes before the next one comes.
    if (!num_states_ && end == stops[GroupRow::kDiverges]) groups_->note_diverged(t[i]);
  }
  if (passed < s.num_chained) groups_->add_passed(t + passed, s.num_chained - passed);
}

// Why its forward was to stop here, if it was; from here on it was there.
std::optional<GroupRow::Stop> Sequences::takes_stop(Sequence& s) noexcept {
  GroupRow& row = group_row(s);
  const auto stop = std::find(row.stops.begin(), row.stops.end(), s.num_computed);
  if (stop == row.stops.end()) return {};
  *stop = 0;
  return static_cast<GroupRow::Stop>(stop - row.stops.begin());
}

// Whether a block that only this sequence has can become what others find.
bool Sequences::may_give(NodeId own) const {
  return nodes_.uses(own).ref_count == 1 && !nodes_[own].keyed() &&
         nodes_[own].copy_source == kNoNode && !nodes_[own].in_flight;
}

// The state of a node from here on; the sequence goes on in a copy.
void Sequences::give_state(Sequence& s, int g, NodeId node) noexcept {
  NodeId& state = group_row(s).states[nth(g)];
  const NodeId kept = state;
  state = take_of(g, s.partition, kNoNode);
  copies_.plan(kept, state, config_.block_size);
  groups_->set_part(g, node, kept);
  groups_->set_being_kept(kept, true);
  groups_->keep(kept);
  keeps_.push_back({kept, state, nodes_[kept].generation, nodes_[state].generation});
  pool_.release(kept);  // the copy keeps it
}

// At a stop, the state becomes findable and the sequence goes on in a copy.
void Sequences::keep_state(Sequence& s) noexcept {
  if (!s.num_computed || !group_row(s).stands || s.outdated || !digester_) return;
  const auto stop = takes_stop(s);
  if (!stop) return;
  const bool passed = stop == GroupRow::kPromptEnd;
  const std::int64_t room =
      passed ? pool_.free_blocks(s.partition).size() : available(s.partition);
  if (s.num_computed % config_.block_size) return keep_branch(s, room, passed);
  const bool is_kept = keep_whole(s, room, passed);
  if (is_kept && (stop == GroupRow::kDiverges || stop == GroupRow::kRetained))
    groups_->note_diverged(table(s)[s.num_computed / config_.block_size - 1]);
}

// The state at the end of a whole block, if its copies take no more blocks than these. Whether a
// prompt can continue there.
bool Sequences::keep_whole(Sequence& s, std::int64_t room, bool passed) noexcept {
  const GroupRow& row = group_row(s);
  if (s.num_chained * static_cast<std::int64_t>(config_.block_size) < s.num_computed) return false;
  const std::int64_t unit = s.num_computed / config_.block_size - 1;
  const NodeId node = table(s)[unit];
  std::int64_t missing = 0;
  for (int g = 0; g < groups_->num_groups(); ++g) {
    if (!groups_->group(g).recurrent() || groups_->cached(g, node) >= 0) continue;
    ++missing;
    const NodeId own = row.states[nth(g)];
    if (nodes_.uses(own).pins || nodes_[own].copy_source != kNoNode || nodes_[own].in_flight)
      return false;
  }
  if (missing > room || (passed && !missing)) return false;
  for (int g = 0; g < groups_->num_groups(); ++g) {
    if (groups_->group(g).recurrent() && groups_->cached(g, node) < 0) give_state(s, g, node);
  }
  const bool is_served = serves(s, unit);
  if (is_served) groups_->add_boundary(node, passed);
  show_groups(s, s.num_blocks);
  return is_served;
}

bool Sequences::cache_state(Handle handle) {
  Call call(*this);
  Sequence& s = running(handle);
  if (!num_states_) return false;
  refuse_moved(s, "cache the state of");
  const bool at_end = settled(s) == s.num_computed && s.num_computed % config_.block_size == 0;
  if (!s.num_computed || !at_end || s.outdated || !digester_) return false;
  settle_keeps();
  return keep_whole(s, pool_.free_blocks(s.partition).size(), true);
}

// A stop within a block, where prompts diverge: the computed tokens of the block become a findable
// tail, and the sequence continues in copies, in all groups, if these take no more blocks than there
// is room for. passed: it is near the end of a prompt, so it goes before others.
void Sequences::keep_branch(Sequence& s, std::int64_t room, bool passed) noexcept {
  const std::int64_t unit = s.num_computed / config_.block_size;
  const auto rest = static_cast<int>(s.num_computed % config_.block_size);
  if (s.num_chained < unit || !can_stop_at(s.num_computed)) return;
  if (groups_->num_groups() + 1 > room) return;
  settle_keeps();
  for (int g = 0; g < groups_->num_groups(); ++g)
    if (groups_->group(g).recurrent() && nodes_.uses(group_row(s).states[nth(g)]).pins) return;
  if (passed) {  // it takes no look-up from a tail that is more than that
    const Seen seen = seen_children(chain_node(s, unit));
    if (seen.count == kMostChildren && seen.passed < 0) return;
    if (seen.count == kMostChildren) drop_tail(seen.passed);
  }
  const NodeId tail = cache_end_block(s, unit, rest);
  if (tail < 0) return;
  for (int g = 0; g < groups_->num_groups(); ++g)
    if (groups_->group(g).recurrent()) give_state(s, g, tail);
  if (!passed) groups_->set_branch(tail);
  if (serves(s, unit)) groups_->add_boundary(tail, passed);
  make_private(s, unit, s.num_computed);
}

// The block in which the computed tokens of a sequence end becomes a findable tail in all groups of
// attention. kNoNode: it is shared, or there is such a tail.
NodeId Sequences::cache_end_block(Sequence& s, std::int64_t unit, int rest) noexcept {
  const NodeId b = table(s)[unit];
  const GroupRow& row = group_row(s);
  const Key key{chain_node(s, unit), extras_at(s.extras_ids(), unit), nodes_.tokens(b)};
  NodeId child = index_.first_child(key.parent);
  for (int seen = 0; child >= 0 && seen < kMostChildren;
       ++seen, child = nodes_[child].next_sibling) {
    const Node& record = nodes_[child];
    if (record.extras != key.extras || record.key_tokens < rest ||
        !same_tokens(nodes_.tokens(child), key.tokens, rest))
      continue;
    // Another tail of these tokens stands for this one, even if it serves less.
    if (record.key_tokens == rest) {
      index_.bring_forward(child);  // for the next prompt that diverges here
      groups_->clear_passed(child);
      return kNoNode;
    }
    if (!num_states_ && has_parts(child)) return kNoNode;
  }
  if (!may_give(b)) return kNoNode;
  for (int g = 0; g < groups_->num_groups(); ++g) {
    const bool recurrent = groups_->group(g).recurrent();
    if (!recurrent && unit < row.first[nth(g)]) return kNoNode;
    if (!may_give(recurrent ? row.states[nth(g)] : groups_->part(g, b))) return kNoNode;
  }
  pool_.promote_tail(b, key, rest);
  pool_.tell_cached({&b, 1});
  ++counters_.cached_tails;
  groups_->place(b, unit);
  for (int g = 0; g < groups_->num_groups(); ++g)
    if (!groups_->group(g).recurrent()) groups_->keep(groups_->part(g, b));
  drop_unseen_tails(key.parent);
  return b;
}

// Look-ups see so many children of a node.
Sequences::Seen Sequences::seen_children(NodeId parent) const {
  Seen seen;
  for (seen.next = index_.first_child(parent); seen.next >= 0 && seen.count < kMostChildren;
       seen.next = nodes_[seen.next].next_sibling, ++seen.count) {
    const bool is_tail = nodes_[seen.next].key_tokens < config_.block_size;
    if (is_tail && nodes_.idle(seen.next) && groups_->is_passed(seen.next)) seen.passed = seen.next;
  }
  return seen;
}

// Of an idle tail, and of what only it needs.
void Sequences::drop_tail(NodeId tail) noexcept {
  groups_->end_boundary(tail);
  groups_->prune(tail);
}

// A tail behind the children that look-ups see is found no more: it goes. But first one that is just
// passed goes, and the next tail is seen in its place.
void Sequences::drop_unseen_tails(NodeId parent) noexcept {
  const Seen seen = seen_children(parent);
  NodeId child = seen.next;
  if (child >= 0 && seen.passed >= 0) {
    child = nodes_[child].next_sibling;
    drop_tail(seen.passed);
  }
  for (int looked = 0; child >= 0 && looked < kMostChildren; ++looked) {
    const NodeId next = nodes_[child].next_sibling;
    if (nodes_[child].key_tokens < config_.block_size && nodes_.idle(child)) drop_tail(child);
    child = next;
  }
}

// Caches the end of a sequence before it goes: the state where it stands, and the tokens of a unit
// that is not full. resumes: it continues from there when there is room.
void Sequences::keep_end(Sequence& s, bool resumes) noexcept {
  const std::int64_t size = config_.block_size;
  const std::int64_t unit = s.num_computed / size;
  const auto rest = static_cast<int>(s.num_computed % size);
  GroupRow& row = group_row(s);
  if (!digester_ || s.state != Sequence::kRunning || s.outdated || !s.num_computed) return;
  if ((num_states_ && !row.stands) || s.num_chained < unit) return;
  if (rest && (rest < config_.min_partial_tokens || !config_.min_partial_tokens)) return;
  if (!rest && !num_states_) return;
  settle_keeps();
  const NodeId whole = unit ? table(s)[unit - 1] : kNoNode;
  NodeId node = whole;
  if (rest) {
    node = cache_end_block(s, unit, rest);
    if (node < 0) return;
  } else {
    for (int g = 0; g < groups_->num_groups(); ++g)
      if (groups_->group(g).recurrent() && groups_->cached(g, node) < 0 &&
          !may_give(row.states[nth(g)]))
        return;
  }
  for (int g = 0; g < groups_->num_groups(); ++g) {
    if (!groups_->group(g).recurrent() || groups_->cached(g, node) >= 0) continue;
    groups_->set_part(g, node, row.states[nth(g)]);
    groups_->keep(row.states[nth(g)]);
  }
  if (serves(s, rest ? unit : unit - 1)) {
    groups_->add_boundary(node);
    if (num_states_) end_path(s, node, resumes);
  }
  for (int g = 0; g < groups_->num_groups(); ++g) {
    if (!groups_->group(g).recurrent()) continue;
    NodeId& state = row.states[nth(g)];
    if (state == groups_->part(g, node)) {
      pool_.release(state);
      state = kNoNode;
    }
  }
}

// Which boundaries of its path are worth less than others now that it ended at this node.
void Sequences::end_path(const Sequence& s, NodeId end, bool resumes) noexcept {
  const std::int64_t size = config_.block_size;
  const std::int64_t unit = s.num_computed / size;
  const std::int64_t found = s.num_cached / size;
  const bool continued = found && found < unit && s.num_cached % size == 0;
  const NodeId* t = table(s);
  groups_->end_path(continued ? t[found - 1] : kNoNode, unit ? t[unit - 1] : kNoNode,
                    s.num_computed % size ? end : kNoNode, resumes);
}

// Before a sequence leaves a path: the end of its whole blocks. Others may have evicted that boundary,
// which freed nothing as long as the sequence used the blocks.
void Sequences::keep_path(const Sequence& s) noexcept {
  if (!s.num_chained) return;
  const NodeId last = table(s)[s.num_chained - 1];
  if (!groups_->is_boundary(last) && serves(s, s.num_chained - 1)) groups_->add_boundary(last);
}

// The sequence still has its blocks.
void Sequences::leave_groups(Sequence& s, bool resumes) noexcept {
  if (s.state != Sequence::kRunning) return;
  const std::int64_t tails = counters_.cached_tails;
  keep_end(s, resumes);
  if (s.num_chained) {
    const NodeId last = table(s)[s.num_chained - 1];
    groups_->tell_kept(&last, 1);
    if (counters_.cached_tails == tails) {
      keep_path(s);
      groups_->clear_passed(last);
    }
  }
  drop_states(s);
  auto& stops = group_row(s).stops;
  stops = {0, 0, 0, stops[GroupRow::kPromptEnd], 0};  // if it resumes
}

}  // namespace blockmgr
