#include <algorithm>

#include "sequences/sequences.h"

namespace blockmgr {

// Whether the copy that put a state in place is not applied yet.
bool Keeping::waits_for_copy(const Kept& k) const {
  const Node& destination = nodes()[k.destination];
  if (k.referenced) return destination.copy_source != kNoNode || destination.in_flight;
  if (destination.generation != k.destination_generation) return false;
  if (destination.copy_source == k.block) return true;
  for (const Copy& copy : copies().flight())
    if (copy.destination == k.destination && copy.source == k.block) return true;
  return false;
}

// The states that were put in place by copies which are resolved by now can be found.
void Rows::settle_all() noexcept {
  Keeping& keeping = static_cast<Sequences&>(*this);
  std::erase_if(keeps, [&](Kept& k) { return keeping.settle(k); });
}

bool Keeping::waits(const Kept& k) const {
  const Node& record = nodes()[k.block];
  const bool is_kept =
      k.referenced ? record.keyed()
                   : record.generation == k.block_generation && groups()->is_being_kept(k.block);
  return is_kept && waits_for_copy(k);
}

bool Keeping::settle(Kept& k) noexcept {
  if (waits(k)) return false;
  if (k.referenced) {
    if (k.is_state) groups()->set_being_kept(k.block, false);
    k.referenced = false;
    k.block_generation = nodes()[k.block].generation;
    rows().drop_reference(k.block);
  }
  if (nodes()[k.block].generation != k.block_generation || !nodes()[k.block].keyed()) return true;
  if (!k.is_state) return true;
  groups()->set_being_kept(k.block, false);
  groups()->tell_kept(k.block);
  return true;
}

// The node at the end of what a sequence has computed, if a copy of its states is to be kept there
// and is not launched. kNoNode: there is none.
NodeId Keeping::node_awaiting_end(const Sequence& s) const {
  const std::int64_t unit = s.num_computed / config().block_size;
  const bool shares = s.num_computed % config().block_size && !may_give(rows().table(s)[unit]);
  if (shares || s.outdated || !rows().group_row(s).stands()) return kNoNode;
  for (const Kept& k : rows().keeps) {
    const Node& record = nodes()[k.block];
    if (!k.referenced || !k.is_state || !record.keyed()) continue;
    if (record.copy_source != rows().group_row(s).states[nth(groups()->group_of(k.block))])
      continue;
    const NodeId node = groups()->node_of(k.block);
    if (groups()->length(node) == s.num_computed) return node;
  }
  return kNoNode;
}

void Keeping::cancel_end(const Sequence& s) noexcept {
  const NodeId node = node_awaiting_end(s);
  if (node < 0) return;
  groups()->end_boundary(node);
  const auto drop = [&](Kept& k) {
    k.referenced = false;
    rows().drop_reference(k.block);
  };
  Kept* tail = nullptr;
  for (Kept& k : rows().keeps) {
    if (!k.referenced) continue;
    if (k.block == node) tail = &k;
    const int g = groups()->owner(k.block);
    if (g < 0 || groups()->part(g, node) != k.block) continue;
    groups()->clear_part(g, node);
    groups()->unkeep(k.block);
    drop(k);
  }
  if (tail) {
    pool().forget(node);
    drop(*tail);
  }
  rows().settle_keeps();
}

bool Keeping::may_give(NodeId own) const {
  return nodes().uses(own).ref_count == 1 && !nodes()[own].keyed() &&
         nodes()[own].copy_source == kNoNode && !nodes()[own].in_flight;
}

// What this copy brings is found once it is applied; until then the block is kept.
void Keeping::keep_copy(NodeId source, NodeId copy, std::int32_t num_tokens,
                        bool is_state) noexcept {
  copies().plan(source, copy, num_tokens);
  rows().keeps.push_back(
      {copy, copy, nodes()[copy].generation, nodes()[copy].generation, true, is_state});
}

// A node with copies of the computed tokens in a unit, in all groups of attention that read them
// afterwards.
NodeId Keeping::copy_end_block(const Sequence& s, std::int64_t unit, int num_tokens) noexcept {
  const NodeId own = rows().table(s)[unit];
  const NodeId copy = pool().take(s.partition, rows().before(s, unit));
  std::copy_n(nodes().tokens(own), num_tokens, nodes().tokens(copy));
  groups()->clear_parts(copy);
  keep_copy(own, copy, num_tokens, false);
  for (const int g : attention()) {
    if (!groups()->reads(g, s.num_computed, unit)) continue;
    const NodeId part = use<GroupTables>().take_of(g, s.partition, kNoNode);
    groups()->set_part(g, copy, part);
    keep_copy(groups()->part(g, own), part, num_tokens, false);
  }
  return copy;
}

// The state of a node from here on: a copy of the sequence's; or its own, and it goes on in a copy.
void Keeping::give_state(Sequence& s, int g, NodeId node) noexcept {
  NodeId& state = rows().group_row(s).states[nth(g)];
  if (!config().remap) {
    const NodeId copy = use<GroupTables>().take_of(g, s.partition, kNoNode);
    groups()->set_part(g, node, copy);
    groups()->set_being_kept(copy, true);
    groups()->keep(copy);
    return keep_copy(state, copy, config().block_size, true);
  }
  const NodeId kept = state;
  state = use<GroupTables>().take_of(g, s.partition, kNoNode);
  copies().plan(kept, state, config().block_size);
  groups()->set_part(g, node, kept);
  groups()->set_being_kept(kept, true);
  groups()->keep(kept);
  rows().keeps.push_back(
      {kept, state, nodes()[kept].generation, nodes()[state].generation, false, true});
  pool().release(kept);  // the copy keeps it
}

}  // namespace blockmgr
