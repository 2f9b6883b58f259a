// With further groups of layers: parts of a sequence's blocks, taken, moved, merged, given back.
#include <algorithm>

#include "sequences/sequences.h"

namespace blockmgr {

// Parts for blocks [from, num_blocks) of its table.
void Sequences::take_parts(Sequence& s, std::int64_t from) noexcept {
  const NodeId* t = table(s);
  groups_->clear_parts(t + from, s.num_blocks - from);
  for (int g = 0; g < groups_->num_groups(); ++g) {
    if (groups_->group(g).recurrent()) continue;
    const bool continues = from > group_row(s).first[nth(g)];
    const NodeId before = continues ? groups_->part(g, t[from - 1]) : kNoNode;
    take_part_run(s, g, from, s.num_blocks, before);
  }
  show_groups(s, from);
}

// The sequence moves to parts of its own, as its table did from `shared` to its present node. Copies
// bring as many tokens as those into the node, because they are planned together.
void Sequences::make_parts_private(Sequence& s, std::int64_t logical, NodeId shared,
                                   std::int32_t num_tokens) noexcept {
  const NodeId own = table(s)[logical];
  groups_->clear_parts(own);
  for (int g = 0; g < groups_->num_groups(); ++g) {
    if (groups_->group(g).recurrent()) continue;
    const NodeId source = groups_->part(g, shared);
    const NodeId before = logical > group_row(s).first[nth(g)]
                              ? groups_->part(g, table(s)[logical - 1])
                              : kNoNode;
    const NodeId m = take_part_run(s, g, logical, logical + 1, before);
    const std::int32_t brought = num_tokens > 0 ? copies_.reach(source, num_tokens) : 0;
    if (brought > 0) copies_.plan(source, m, brought);
    drop_part(g, shared);
  }
  show_groups(s, logical);
}

// A sequence's reference to the part of a node goes.
void Sequences::drop_part(int g, NodeId node) noexcept {
  const NodeId m = groups_->part(g, node);
  if (nodes_[m].keyed() && groups_->is_needed(g, node)) [[likely]]
    return pool_.release_part(m);
  // With its last reference, the part is removed from its node.
  const bool last = nodes_.uses(m).ref_count == 1 && !nodes_[m].keyed();
  drop_reference(m);
  if (last) groups_->clear_part(g, node);
}

// The same of units [from, to) of its table, which shows none of them any more.
void Sequences::drop_part_run(const Sequence& s, int g, std::int64_t from,
                              std::int64_t to) noexcept {
  if (from >= to) return;
  const NodeId* t = table(s);
  const bool keeps = pool_.keeps_parts();
  const Group group = groups_->group(g);
  int kept = 0;
  for (std::int64_t unit = from; unit < to; ++unit) {
    const NodeId n = t[unit];
    const NodeId m = groups_->part(g, n);
    Uses& uses = nodes_.uses(m);
    if (keeps && uses == Uses{1, 0} && nodes_[m].keyed() && groups_->is_read(group, n, unit)) {
      uses = Uses();
      ++kept;
    } else {
      drop_part(g, n);
    }
  }
  pool_.count_kept(s.partition, kept);
  std::fill_n(shown_group_at(g, row_of(s)) + from, to - from, 0);
}

// All parts of blocks [from, num_blocks), the last first.
void Sequences::drop_parts(Sequence& s, std::int64_t from) noexcept {
  const NodeId* t = table(s);
  for (int g = 0; g < groups_->num_groups(); ++g) {
    if (groups_->group(g).recurrent()) continue;
    std::int32_t& first = group_row(s).first[nth(g)];
    std::int32_t* shown = shown_group_at(g, row_of(s));
    for (std::int64_t unit = s.num_blocks; unit-- > std::max<std::int64_t>(from, first);) {
      drop_part(g, t[unit]);
      shown[unit] = 0;
    }
    first = static_cast<std::int32_t>(std::min<std::int64_t>(first, from));
  }
}

void Sequences::drop_states(Sequence& s) noexcept {
  for (int g = 0; g < groups_->num_groups(); ++g) {
    if (!groups_->group(g).recurrent()) continue;
    NodeId& state = group_row(s).states[nth(g)];
    if (state >= 0) drop_reference(state);
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

// Whether a sequence cannot leave a block that others share, as their tables stay as they are: the
// cached one has no part in a group whose window holds the unit, and a part has one node. It can once
// the others or its window have left the unit.
bool Sequences::must_stay(const Sequence& s, std::int64_t logical, NodeId cached) const {
  if (nodes_.uses(table(s)[logical]).ref_count == 1) return false;
  bool lacks = false;
  each_part(s, logical, [&](int g, NodeId) { lacks |= groups_->part(g, cached) < 0; });
  return lacks;
}

// Of a sequence that moves to the cached block that stands for its own: the same in all groups. What
// the cached one lacks comes along.
void Sequences::merge_parts(Sequence& s, std::int64_t logical, NodeId cached) noexcept {
  const NodeId own = table(s)[logical];
  const bool is_shared = nodes_.uses(own).ref_count > 1;
  settle_parts(s, logical, is_shared ? cached : own, cached);
  each_part(s, logical, [&](int g, NodeId part) {
    const NodeId there = groups_->part(g, cached);
    if (there == part) return;
    pool_.acquire(there);
    drop_part(g, own);
    shown_group_at(g, row_of(s))[logical] = number(nodes_.block(there));
  });
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

}  // namespace blockmgr
