// With further groups of layers: forks, and going back to what every group can serve.
#include <algorithm>

#include "sequences/sequences.h"

namespace blockmgr {

// Whether so many more sequences can have the parent's states.
void Sequences::check_states(const Sequence& parent, std::int64_t count) const {
  refuse_moved(parent, "fork");
  check_available(count * num_states_, parent.partition);
}

void Sequences::fork_groups(const Sequence& parent, const Handle* children,
                            std::int64_t count) noexcept {
  const GroupRow& from = group_row(parent);
  for (std::int64_t c = 0; c < count; ++c) {
    const Sequence& child = sequences_[static_cast<std::size_t>(row_of(children[c]))];
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
  settle_keeps();  // before another copy of a kept state into the same block is planned
  const std::int64_t before = s.num_computed;
  const std::int64_t length =
      committed_ahead(s) ? before : fall_of(s, std::min(before, num_tokens), before);
  const std::int64_t blocks = std::min<std::int64_t>(s.num_blocks, blocks_for(num_tokens));
  const std::int64_t kept =
      committed_ahead(s) ? blocks : std::min(blocks, units_after_fall(s, length));
  std::vector<Token> tokens(static_cast<std::size_t>(s.num_tokens));
  copy_tokens(handle_of(row_of(s)), tokens.data());
  const std::int64_t waits_from = std::min(num_tokens, kept * config_.block_size);
  std::vector<Token> waiting(tokens.begin() + waits_from, tokens.begin() + num_tokens);

  s.waiting.swap(waiting);
  s.waiting_start = 0;
  const bool is_ahead = committed_ahead(s);
  if (length / config_.block_size < s.num_chained) keep_path(s);
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

}  // namespace blockmgr
