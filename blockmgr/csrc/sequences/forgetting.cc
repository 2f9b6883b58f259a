// Forgetting single blocks: their K/V is wrong, or must not be served any more.
#include <algorithm>

#include "sequences/sequences.h"

namespace blockmgr {

// Takes a cached block and all that continues it out of the cache, children first, and marks them.
// With further groups of layers, a node may go with the last one that used it, if no boundary needs
// it; and what the chain continues goes if only the chain did.
std::int64_t Sequences::forget_chain(NodeId b, std::vector<bool>* gone) noexcept {
  const int before = index_.num_keyed();
  const NodeId start = nodes_[b].parent;
  for (NodeId node = b; nodes_[b].keyed();) {
    while (nodes_[node].first_child >= 0) node = nodes_[node].first_child;
    const NodeId parent = nodes_[node].parent;
    pool_.forget(node);
    if (gone) (*gone)[static_cast<std::size_t>(node)] = true;
    node = node != b && nodes_[parent].keyed() ? parent : b;
  }
  const int count = before - index_.num_keyed();
  if (groups_ && start >= 0) groups_->prune(start);
  return count;
}

// A sequence that reads wrong K/V continues, but nothing that it has from there on, or will
// compute, may be found. Returns whether that marks more blocks as wrong.
bool Sequences::forget_table(Sequence& s, std::vector<bool>& wrong,
                             std::int64_t& forgotten) noexcept {
  const auto is_wrong = [&wrong](NodeId b) { return wrong[static_cast<std::size_t>(b)]; };
  const std::int32_t* t = table(s);
  const std::int32_t* end = t + s.num_blocks;
  const std::int32_t* at = std::find_if(t, end, is_wrong);
  if (at == end) return false;
  detach(s);
  bool more = false;
  for (; at != end; ++at) {
    more |= !is_wrong(*at);
    if (nodes_[*at].keyed()) {
      forgotten += forget_chain(*at, &wrong);
    } else {
      pool_.drop_twin(*at);
      wrong[static_cast<std::size_t>(*at)] = true;
    }
  }
  return more;
}

// The node that goes with a block of a further group of layers. The state that a sequence computes
// with has none: the sequence is detached.
NodeId Sequences::forget_part(NodeId n) noexcept {
  const int g = groups_->owner(n);
  if (g < 0) return n;
  for (Sequence& s : sequences_) {
    if (s.state != Sequence::kRunning) continue;
    if (groups_->group(g).recurrent()) {
      if (group_row(s).states[nth(g)] == n) detach(s);
      continue;
    }
    for (std::int64_t i = group_row(s).first[nth(g)]; i < s.num_blocks; ++i)
      if (groups_->part(g, table(s)[i]) == n) return table(s)[i];
  }
  return node_behind(n);
}

// A sequence that stood beside a forgotten block with one of its own computed that itself: its
// blocks are cached again with its next commit.
void Sequences::mend_chains() noexcept {
  for (Sequence& s : sequences_) {
    const std::int32_t* t = table(s);
    for (std::int32_t i = 0; i < s.num_chained; ++i)
      if (!nodes_[t[i]].keyed() && nodes_[t[i]].parent < 0) s.num_chained = i;
    note_computing(s);
  }
}

std::int64_t Sequences::forget(const std::int64_t* ids, std::int64_t count) {
  Call call(*this);
  for (std::int64_t i = 0; i < count; ++i) checked_block(ids[i], i);
  // The mark of what is not written yet would go with its key.
  for (const Sequence& s : sequences_) refuse_ahead(s, "forget blocks around");
  std::vector<bool> wrong(static_cast<std::size_t>(nodes_.count));
  std::int64_t forgotten = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    NodeId n = nodes_.owner(ids[i]);  // none: it was forgotten with another
    if (n >= 0 && groups_) n = forget_part(n);
    if (n < 0) continue;
    wrong[static_cast<std::size_t>(n)] = true;
    if (nodes_[n].keyed()) forgotten += forget_chain(n, &wrong);
  }
  // Where tables are append-only, another sequence may name what this one computed after a block
  // that only this one has.
  for (bool more = true; more;) {
    more = false;
    for (Sequence& s : sequences_) more |= forget_table(s, wrong, forgotten);
  }
  mend_chains();
  counters_.forgotten_blocks += forgotten;
  return forgotten;
}

}  // namespace blockmgr
