// With further groups of layers: growth, commits, forks, and what is given back.
#include <algorithm>

#include "sequences/sequences.h"

namespace blockmgr {

namespace {

std::size_t nth(int g) { return static_cast<std::size_t>(g); }

}  // namespace

// Blocks in all groups for so many of full attention.
std::int64_t Sequences::grouped_need(std::int64_t blocks) const {
  return blocks * (1 + groups_->num_groups() - num_states_);
}

void Sequences::refuse_groups(const char* call) const {
  if (groups_)
    throw Error(ErrorKind::kValue,
                std::string(call) + " does not know of groups of layers yet");
}

void Sequences::refuse_moved(const Sequence& s, const char* call) const {
  if (!num_states_ || group_row(s).stands) return;
  throw Error(ErrorKind::kStep, std::string("cannot ") + call + " sequence " +
                                    std::to_string(handle_of(row_of(s))) +
                                    ": a forward may have moved its state since the last commit; "
                                    "commit where it stopped first");
}

// Parts for blocks [from, num_blocks) of its table.
void Sequences::take_parts(Sequence& s, std::int64_t from) noexcept {
  const NodeId* t = table(s);
  for (std::int64_t unit = from; unit < s.num_blocks; ++unit) groups_->clear_parts(t[unit]);
  for (int g = 0; g < groups_->num_groups(); ++g) {
    if (groups_->group(g).recurrent()) continue;
    const bool continues = from > group_row(s).first[nth(g)];
    NodeId before = continues ? groups_->part(g, t[from - 1]) : kNoNode;
    for (std::int64_t unit = from; unit < s.num_blocks; ++unit)
      before = take_part(s, g, t[unit], before);
  }
  show_groups(s, from);
}

// The sequence moves to parts of its own, as its table did from `shared` to its present node. The
// least that a copy brings.
std::int32_t Sequences::make_parts_private(Sequence& s, std::int64_t logical, NodeId shared,
                                           std::int32_t num_tokens) noexcept {
  const NodeId own = table(s)[logical];
  std::int32_t least = num_tokens;
  groups_->clear_parts(own);
  for (int g = 0; g < groups_->num_groups(); ++g) {
    if (groups_->group(g).recurrent()) continue;
    const NodeId source = groups_->part(g, shared);
    const NodeId before = logical > group_row(s).first[nth(g)]
                              ? groups_->part(g, table(s)[logical - 1])
                              : kNoNode;
    const NodeId m = take_part(s, g, own, before);
    const std::int32_t brought = num_tokens > 0 ? copies_.reach(source, num_tokens) : 0;
    if (brought > 0) copies_.plan(source, m, brought);
    least = std::min(least, brought);
    drop_part(s, g, shared);
  }
  show_groups(s, logical);
  return least;
}

// A sequence's reference to the part of a node goes.
void Sequences::drop_part(const Sequence& s, int g, NodeId node) noexcept {
  const NodeId m = groups_->part(g, node);
  Context who = s.context;
  // With its last reference the part leaves its node.
  const bool last = nodes_.uses(m).ref_count == 1 && !nodes_[m].keyed();
  drop_reference(m, who);
  if (last) groups_->clear_part(g, node);
}

// All parts of blocks [from, num_blocks), the last first.
void Sequences::drop_parts(Sequence& s, std::int64_t from) noexcept {
  const NodeId* t = table(s);
  for (int g = 0; g < groups_->num_groups(); ++g) {
    if (groups_->group(g).recurrent()) continue;
    std::int32_t& first = group_row(s).first[nth(g)];
    std::int32_t* shown = shown_group_at(g, row_of(s));
    for (std::int64_t unit = s.num_blocks; unit-- > std::max<std::int64_t>(from, first);) {
      drop_part(s, g, t[unit]);
      shown[unit] = 0;
    }
    first = static_cast<std::int32_t>(std::min<std::int64_t>(first, from));
  }
}

void Sequences::drop_states(Sequence& s) noexcept {
  Context who = s.context;
  for (int g = 0; g < groups_->num_groups(); ++g) {
    if (!groups_->group(g).recurrent()) continue;
    NodeId& state = group_row(s).states[nth(g)];
    if (state >= 0) drop_reference(state, who);
    state = kNoNode;
    shown_group_at(g, row_of(s))[0] = 0;
  }
}

// Of a unit that is findable from here on as `node`, the groups decide one by one: the part that is
// there stands for the sequence's own, or the own becomes findable. `own`: the node it had.
void Sequences::settle_parts(Sequence& s, std::int64_t logical, NodeId own, NodeId node) noexcept {
  for (int g = 0; g < groups_->num_groups(); ++g) {
    if (groups_->group(g).recurrent()) continue;
    NodeId there = groups_->part(g, node);
    if (own != node && there < 0) {
      there = groups_->part(g, own);
      if (there >= 0) groups_->set_part(g, node, there);
    }
    if (there < 0 || nodes_[there].keyed()) continue;
    groups_->keep(there);
    if (config_.early_commit) note_unwritten(s, logical, there);
  }
}

// All that share a block move to the one that stands for it, at once: each part has one node.
void Sequences::merge_sharers(const Sequence& s, std::int64_t logical, NodeId cached) noexcept {
  const NodeId own = table(s)[logical];
  settle_parts(const_cast<Sequence&>(s), logical, own, cached);
  for (Sequence& sharer : sequences_) {
    if (sharer.state != Sequence::kRunning || sharer.num_blocks <= logical ||
        table(sharer)[logical] != own)
      continue;
    for (int g = 0; g < groups_->num_groups(); ++g) {
      if (groups_->group(g).recurrent() || logical < group_row(sharer).first[nth(g)]) continue;
      const NodeId there = groups_->part(g, cached);
      if (there == groups_->part(g, own)) continue;
      pool_.acquire(there);
      drop_part(sharer, g, own);
    }
    set_entry(row_of(sharer), logical, cached);
    ++remaps_version_;
    remaps_.push_back({handle_of(row_of(sharer)), static_cast<std::int32_t>(logical),
                       nodes_.name(own), nodes_.name(cached)});
    show_groups(sharer, logical);
    pool_.exchange(own, cached);
  }
}

// Trailing tokens of a node that this step's forward has yet to write, in the group that has most.
int Sequences::most_unwritten(NodeId node) const {
  int most = nodes_[node].unwritten;
  for (int g = 0; !unwritten_.empty() && g < groups_->num_groups(); ++g) {
    const NodeId m = groups_->group(g).recurrent() ? kNoNode : groups_->cached(g, node);
    if (m >= 0) most = std::max<int>(most, nodes_[m].unwritten);
  }
  return most;
}

// Whether every group has what the query after this node of the sequence's path reads.
bool Sequences::serves(const Sequence& s, std::int64_t logical) const {
  const NodeId* t = table(s);
  for (int g = 0; g < groups_->num_groups(); ++g) {
    if (groups_->group(g).recurrent()) {
      if (groups_->cached(g, t[logical]) < 0) return false;
      continue;
    }
    const std::int64_t from = groups_->first_unit(g, groups_->length(t[logical]));
    for (std::int64_t unit = logical; unit >= from; --unit)
      if (groups_->cached(g, t[unit]) < 0) return false;
  }
  return true;
}

// A new stretch of its path is findable: [from, num_chained).
void Sequences::mark_boundaries(Sequence& s, std::int64_t from) noexcept {
  const NodeId* t = table(s);
  for (std::int64_t i = from; i < s.num_chained; ++i)
    if (!groups_->is_boundary(t[i]) && serves(s, i)) groups_->add_boundary(t[i]);
}

// Whether it stands where its forward was to stop; from here on it was there.
bool Sequences::takes_stop(Sequence& s) noexcept {
  GroupRow& row = group_row(s);
  const auto stop = std::find(row.stops.begin(), row.stops.end(), s.num_computed);
  if (!s.num_computed || stop == row.stops.end() || !row.stands || s.outdated || !digester_)
    return false;
  *stop = 0;
  return true;
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
  GroupRow& row = group_row(s);
  if (!takes_stop(s)) return;
  if (s.num_computed % config_.block_size) return keep_branch(s);
  if (s.num_chained * static_cast<std::int64_t>(config_.block_size) < s.num_computed) return;
  const NodeId node = table(s)[s.num_computed / config_.block_size - 1];
  std::int64_t missing = 0;
  for (int g = 0; g < groups_->num_groups(); ++g) {
    if (!groups_->group(g).recurrent() || groups_->cached(g, node) >= 0) continue;
    ++missing;
    const NodeId own = row.states[nth(g)];
    if (nodes_.uses(own).pins || nodes_[own].copy_source != kNoNode || nodes_[own].in_flight) return;
  }
  if (missing > available(s.partition)) return;
  for (int g = 0; g < groups_->num_groups(); ++g) {
    if (groups_->group(g).recurrent() && groups_->cached(g, node) < 0) give_state(s, g, node);
  }
  if (serves(s, s.num_computed / config_.block_size - 1)) groups_->add_boundary(node);
  show_groups(s, s.num_blocks);
}

// A stop within a block: other prompts go on from here with other tokens. What is computed of the
// block becomes a findable tail, and the sequence goes on in copies, in all groups.
void Sequences::keep_branch(Sequence& s) noexcept {
  const std::int64_t unit = s.num_computed / config_.block_size;
  const auto rest = static_cast<int>(s.num_computed % config_.block_size);
  if (s.num_chained < unit || rest < config_.min_partial_tokens || !config_.min_partial_tokens)
    return;
  if (groups_->num_groups() + 1 > available(s.partition)) return;
  settle_keeps();
  for (int g = 0; g < groups_->num_groups(); ++g)
    if (groups_->group(g).recurrent() && nodes_.uses(group_row(s).states[nth(g)]).pins) return;
  const NodeId tail = cache_end_block(s, unit, rest);
  if (tail < 0) return;
  for (int g = 0; g < groups_->num_groups(); ++g)
    if (groups_->group(g).recurrent()) give_state(s, g, tail);
  groups_->set_branch(tail);
  if (serves(s, unit)) groups_->add_boundary(tail);
  make_private(s, unit, s.num_computed);
}

// Gives back what no query to come reads.
void Sequences::drop_windows(Sequence& s) noexcept {
  const NodeId* t = table(s);
  const std::int64_t from = std::max<std::int64_t>(0, settled(s) - config_.max_rollback);
  for (int g = 0; g < groups_->num_groups(); ++g) {
    if (groups_->group(g).recurrent()) continue;
    std::int32_t& first = group_row(s).first[nth(g)];
    std::int32_t* shown = shown_group_at(g, row_of(s));
    const auto due = static_cast<std::int32_t>(groups_->first_unit(g, from));
    for (; first < due; ++first) {
      if (first >= s.num_blocks) continue;
      drop_part(s, g, t[first]);
      shown[first] = 0;
    }
  }
}

void Sequences::commit_groups(Sequence& s) noexcept {
  note_state(s);
  if (settled(s) == s.num_computed && num_states_) keep_state(s);
  drop_windows(s);
}

// Whether a commit of what is computed tells where the states stand.
bool Sequences::tells_state(const Sequence& s) const {
  return open_steps_.empty() || group_row(s).moves <= 1;
}

void Sequences::note_state(Sequence& s) noexcept {
  if (settled(s) != s.num_computed || !tells_state(s)) return;
  group_row(s).stands = true;
  group_row(s).moves = 0;
}

// Before decode, which commits first: as refuse_moved.
void Sequences::refuse_unknown_state(const Sequence& s, const char* call) const {
  if (!tells_state(s)) refuse_moved(s, call);
}

// Parts that decode gives back before it takes any, as far as that is certain.
std::int64_t Sequences::num_dropped(const Sequence& s) const {
  std::int64_t dropped = 0;
  if (!open_steps_.empty()) return 0;  // they wait for a step
  const NodeId* t = table(s);
  const std::int64_t from = std::max<std::int64_t>(0, s.num_tokens - config_.max_rollback);
  for (int g = 0; g < groups_->num_groups(); ++g) {
    if (groups_->group(g).recurrent()) continue;
    const std::int64_t due = std::min<std::int64_t>(groups_->first_unit(g, from), s.num_blocks);
    for (std::int64_t unit = group_row(s).first[nth(g)]; unit < due; ++unit) {
      const Uses& uses = nodes_.uses(groups_->part(g, t[unit]));
      dropped += uses.ref_count == 1 && !uses.pins;
    }
  }
  return dropped;
}

// All tokens of these but those that decode appends are computed: what becomes findable, and what
// is given back.
void Sequences::commit_decoded(const Handle* handles, std::int64_t count,
                               const PromotionPlan& plan) noexcept {
  promote_all(plan);
  for (std::int64_t i = 0; i < count; ++i) {
    Sequence& s = sequences_[static_cast<std::size_t>(row_of(handles[i]))];
    note_state(s);
    drop_windows(s);
  }
}

// States at a stop, with what decode left over. Not within a block: the caller knows the slots.
void Sequences::keep_decoded(const Handle* handles, std::int64_t count) noexcept {
  for (std::int64_t i = 0; num_states_ && i < count; ++i) {
    Sequence& s = sequences_[static_cast<std::size_t>(row_of(handles[i]))];
    if (s.num_computed % config_.block_size == 0) keep_state(s);
  }
}

// The block in which the computed tokens of a sequence end becomes a findable tail in all groups of
// attention. kNoNode: it is shared, or there is such a tail.
NodeId Sequences::cache_end_block(Sequence& s, std::int64_t unit, int rest) noexcept {
  const NodeId b = table(s)[unit];
  const GroupRow& row = group_row(s);
  const Key key{chain_node(s, unit), extras_at(s.extras_ids(), unit), nodes_.tokens(b)};
  for (NodeId child = index_.first_child(key.parent); child >= 0;
       child = nodes_[child].next_sibling) {
    const Node& record = nodes_[child];
    if (record.extras != key.extras || record.key_tokens < rest ||
        !same_tokens(nodes_.tokens(child), key.tokens, rest))
      continue;
    // Another tail of these tokens stands for this one, even if it serves less.
    if (record.key_tokens == rest) {
      index_.bring_forward(child);  // the next prompt that parts here is to see it
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
  Context who = s.context;
  pool_.tell_cached({&b, 1}, who);
  ++counters_.cached_tails;
  groups_->place(b, unit);
  for (int g = 0; g < groups_->num_groups(); ++g)
    if (!groups_->group(g).recurrent()) groups_->keep(groups_->part(g, b));
  return b;
}

// Caches the end of a sequence before it goes: the state where it stands, and the tokens of a unit
// that is not full.
void Sequences::keep_end(Sequence& s) noexcept {
  const std::int64_t size = config_.block_size;
  const std::int64_t unit = s.num_computed / size;
  const auto rest = static_cast<int>(s.num_computed % size);
  GroupRow& row = group_row(s);
  if (!digester_ || s.state != Sequence::kRunning || s.outdated || !s.num_computed) return;
  if ((num_states_ && !row.stands) || s.num_chained < unit) return;
  if (rest && (rest < config_.min_partial_tokens || !config_.min_partial_tokens)) return;
  if (!rest && !num_states_) return;
  settle_keeps();
  NodeId node = unit ? table(s)[unit - 1] : kNoNode;
  if (rest) {
    node = cache_end_block(s, unit, rest);
    if (node < 0) return;
  } else {
    for (int g = 0; g < groups_->num_groups(); ++g)
      if (groups_->group(g).recurrent() && groups_->cached(g, node) < 0 &&
          !may_give(row.states[nth(g)]))
        return;
  }
  Context who = s.context;
  for (int g = 0; g < groups_->num_groups(); ++g) {
    if (!groups_->group(g).recurrent() || groups_->cached(g, node) >= 0) continue;
    groups_->set_part(g, node, row.states[nth(g)]);
    groups_->keep(row.states[nth(g)]);
  }
  if (serves(s, rest ? unit : unit - 1)) groups_->add_boundary(node);
  for (int g = 0; g < groups_->num_groups(); ++g) {
    if (!groups_->group(g).recurrent()) continue;
    NodeId& state = row.states[nth(g)];
    if (state == groups_->part(g, node)) {
      pool_.release(state, who);
      state = kNoNode;
    }
  }
}

// The sequence still has its blocks.
void Sequences::leave_groups(Sequence& s) noexcept {
  if (s.state != Sequence::kRunning) return;
  keep_end(s);
  drop_states(s);
  group_row(s).stops = {};
}

void Sequences::fork_groups(const Sequence& parent, Sequence& child) noexcept {
  const GroupRow& from = group_row(parent);
  GroupRow& to = group_row(child);
  to.first = from.first;
  to.stops = from.stops;
  to.stands = from.stands;
  to.moves = from.moves;
  const NodeId* t = table(child);
  for (int g = 0; g < groups_->num_groups(); ++g) {
    if (!groups_->group(g).recurrent()) {
      for (std::int64_t unit = to.first[nth(g)]; unit < child.num_blocks; ++unit)
        ++nodes_.uses(groups_->part(g, t[unit])).ref_count;
      continue;
    }
    const NodeId state = take_of(g, parent.partition, kNoNode);
    if (parent.num_computed) copies_.plan(from.states[nth(g)], state, config_.block_size);
    to.states[nth(g)] = state;
  }
  show_groups(child, 0);
}

// Gives a sequence that takes a parent's place its parts and states, before anything is released.
// row: the parent's, and then its own.
void Sequences::take_successor(const Sequence& model, const std::vector<NodeId>& table,
                               GroupRow& row) noexcept {
  for (int g = 0; g < groups_->num_groups(); ++g) {
    if (!groups_->group(g).recurrent()) {
      for (auto unit = static_cast<std::size_t>(row.first[nth(g)]); unit < table.size(); ++unit)
        ++nodes_.uses(groups_->part(g, table[unit])).ref_count;
      continue;
    }
    const NodeId source = row.states[nth(g)];
    row.states[nth(g)] = take_of(g, model.partition, kNoNode);
    if (model.num_computed) copies_.plan(source, row.states[nth(g)], config_.block_size);
  }
}

void Sequences::truncate_grouped(Sequence& s, std::int64_t num_tokens) {
  const std::int64_t before = s.num_computed;
  const std::int64_t length =
      committed_ahead(s) ? before : fall_of(s, std::min(before, num_tokens), before);
  const std::int64_t blocks = std::min<std::int64_t>(s.num_blocks, blocks_for(num_tokens));
  const std::int64_t kept = committed_ahead(s) ? blocks : std::min(blocks, units_after_fall(s, length));
  std::vector<Token> tokens(static_cast<std::size_t>(s.num_tokens));
  copy_tokens(handle_of(row_of(s)), tokens.data());
  const std::int64_t waits_from = std::min(num_tokens, kept * config_.block_size);
  std::vector<Token> waiting(tokens.begin() + waits_from, tokens.begin() + num_tokens);

  s.waiting.swap(waiting);
  s.waiting_start = 0;
  const bool is_ahead = committed_ahead(s);
  release_blocks(s, kept);
  if (!is_ahead) fall_to(s, length, before);
  s.num_tokens = num_tokens;
  if (is_ahead) limit_computed(s, num_tokens);
  s.num_cached = std::min(s.num_cached, length);
  s.num_chained = std::min(s.num_chained, static_cast<std::int32_t>(length / config_.block_size));
  show_length(s);
  note_computing(s);
}

// Where a truncated sequence goes on: the deepest prefix, of so many tokens at most, at which every
// group has what it reads. before: where its states stand.
std::int64_t Sequences::fall_of(const Sequence& s, std::int64_t most, std::int64_t before) const {
  const std::int64_t size = config_.block_size;
  const GroupRow& row = group_row(s);
  const NodeId* t = table(s);
  const auto has_attention = [&](std::int64_t length) {
    for (int g = 0; g < groups_->num_groups(); ++g) {
      if (groups_->group(g).recurrent()) continue;
      for (std::int64_t unit = groups_->first_unit(g, length); unit < blocks_for(length); ++unit) {
        if (unit >= row.first[nth(g)]) continue;
        if ((unit + 1) * size > length || !nodes_[t[unit]].keyed() ||
            groups_->cached(g, t[unit]) < 0)
          return false;
      }
    }
    return true;
  };
  const auto has_state = [&](std::int64_t length) {
    if (!length || !num_states_ || (length == before && row.stands)) return true;
    if (length % size || !nodes_[t[length / size - 1]].keyed()) return false;
    for (int g = 0; g < groups_->num_groups(); ++g) {
      if (!groups_->group(g).recurrent()) continue;
      const NodeId own = row.states[nth(g)];
      if (nodes_.uses(own).pins || nodes_[own].in_flight) return false;
      if (groups_->cached(g, t[length / size - 1]) < 0) return false;
    }
    return true;
  };
  for (std::int64_t length = most; length > 0; --length)
    if (has_state(length) && has_attention(length)) return length;
  return 0;
}

// The units that it keeps there: behind a gap in a window it loses its slots.
std::int64_t Sequences::units_after_fall(const Sequence& s, std::int64_t length) const {
  std::int64_t units = s.num_blocks;
  const std::int64_t whole = length / config_.block_size;
  for (int g = 0; g < groups_->num_groups(); ++g)
    if (!groups_->group(g).recurrent() && group_row(s).first[nth(g)] > whole)
      units = std::min(units, std::max(whole, groups_->first_unit(g, length)));
  return units;
}

void Sequences::fall_to(Sequence& s, std::int64_t length, std::int64_t before) noexcept {
  GroupRow& row = group_row(s);
  const NodeId* t = table(s);
  const std::int64_t whole = length / config_.block_size;
  for (int g = 0; g < groups_->num_groups(); ++g) {
    if (groups_->group(g).recurrent()) {
      if (!length || (length == before && row.stands)) continue;
      const NodeId state = row.states[nth(g)];
      copies_.drop(state);
      copies_.plan(groups_->cached(g, t[whole - 1]), state, config_.block_size);
      continue;
    }
    std::int32_t& first = row.first[nth(g)];
    const auto due = static_cast<std::int32_t>(groups_->first_unit(g, length));
    for (std::int32_t unit = due; unit < first && unit < whole; ++unit)
      pool_.acquire(groups_->part(g, t[unit]));
    first = std::min(first, due);
  }
  if (length < before || !row.stands) {
    row.stands = true;
    row.moves = 0;
  }
  s.num_computed = length;
  if (config_.early_commit) {
    s.early_step = step_;
    s.num_settled = length;
    s.num_written = grouped_written(s, length);
  }
  show_groups(s, 0);
}

// Of so many leading tokens, those in memory before this step's forward.
std::int64_t Sequences::grouped_written(const Sequence& s, std::int64_t length) const {
  if (unwritten_.empty()) return length;
  const std::int64_t size = config_.block_size;
  const NodeId* t = table(s);
  std::int64_t least = length;
  const auto look = [&](std::int64_t unit, NodeId n) {
    if (nodes_[n].unwritten) least = std::min(least, (unit + 1) * size - nodes_[n].unwritten);
  };
  for (std::int64_t unit = 0; unit < std::min<std::int64_t>(blocks_for(length), s.num_blocks);
       ++unit) {
    look(unit, t[unit]);
    for (int g = 0; g < groups_->num_groups(); ++g)
      if (!groups_->group(g).recurrent() && unit >= group_row(s).first[nth(g)])
        look(unit, groups_->part(g, t[unit]));
  }
  return least;
}

std::int64_t Sequences::take_copies(std::vector<BlockCopy>& copies) {
  const Held held(monitor_);
  const std::int64_t ticket = take_plan(copies);
  if (groups_) [[unlikely]]
    launch_groups(copies);
  return ticket;
}

// The forward of this step may move the states of all that can go on.
void Sequences::launch_groups(std::vector<BlockCopy>& copies) noexcept {
  for (BlockCopy& copy : copies) copy.group = group_number(nodes_.owner(copy.destination));
  moved_.clear();
  if (!num_states_) return;
  for (const Sequence& s : sequences_) {
    if (s.state != Sequence::kRunning) continue;
    if (settled(s) >= std::min(s.num_tokens, num_slots(s))) continue;
    moved_.push_back(handle_of(row_of(s)));
    group_row(s).stands = false;
    ++group_row(s).moves;
  }
}

void Sequences::copies_aborted(std::int64_t ticket) {
  const Held held(monitor_);
  abort_plan(ticket);
  if (groups_) return_groups();
}

void Sequences::return_copies(std::int64_t ticket) noexcept {
  const Held held(monitor_, Held::Afterwards());
  if (held && return_plan(ticket) && groups_) return_groups();
}

// Nothing was launched.
void Sequences::return_groups() noexcept {
  for (const Handle handle : moved_) {
    const Sequence& s = sequences_[static_cast<std::size_t>(row_of(handle))];
    if (s.state != Sequence::kRunning || handle_of(row_of(s)) != handle) continue;
    GroupRow& row = group_row(s);
    row.moves = std::max(0, row.moves - 1);
    row.stands = row.moves == 0;
  }
  moved_.clear();
}

}  // namespace blockmgr
