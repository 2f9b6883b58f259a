// Append-only deduplication: private blocks beside the cached one that has the same content.
#include <utility>

#include "places/group_places.h"
#include "places/pool.h"

namespace blockmgr {

void Pool::set_twin(NodeId b, NodeId cached) noexcept {
  // With further groups, the one that has what the other lacks is found: tables keep their parts.
  if (groups_ && nodes_.uses(cached).ref_count && groups_->lacks_part_of(cached, b)) [[unlikely]] {
    hand_over(cached, b);
    std::swap(b, cached);
  }
  if (!nodes_.uses(cached).ref_count) {
    if (!nodes_.used(cached)) return hand_over(cached, b);
    ++nodes_.uses(cached).pins;  // used until all is moved: what keeps it may go with its children
    hand_over(cached, b);
    return unpin(cached);
  }
  const NodeId other = first_twin(cached);
  nodes_[b].parent = cached;
  nodes_[b].prev_sibling = kNoNode;
  nodes_[b].next_sibling = other;
  if (other >= 0) nodes_[other].prev_sibling = b;
  set_first_twin(cached, b);
}

void Pool::drop_twin(NodeId b) noexcept {
  Node& record = nodes_[b];
  if (record.parent < 0) return;
  if (record.prev_sibling >= 0) {
    nodes_[record.prev_sibling].next_sibling = record.next_sibling;
  } else {
    set_first_twin(record.parent, record.next_sibling);
  }
  if (record.next_sibling >= 0) nodes_[record.next_sibling].prev_sibling = record.prev_sibling;
  record.parent = kNoNode;
}

// No table names the block any more, though others may still keep it. A private one stands for
// no other; the key of a cached one passes to a block that is in use anyway.
void Pool::part_from_twins(NodeId b) noexcept {
  if (!nodes_[b].keyed()) return drop_twin(b);
  const NodeId twin = first_twin(b);
  if (twin < 0) return;
  ++nodes_.uses(b).pins;  // used until all is moved
  hand_over(b, twin);
  --nodes_.uses(b).pins;
}

// Its key, its children and its twins pass from a cached block that no table names to a private
// one with the same content. What it loses is given back: by the caller if it was used.
void Pool::hand_over(NodeId from, NodeId to) noexcept {
  const bool used = nodes_.used(from);
  const int fence = nodes_[from].fence;
  const NodeId parent = nodes_[from].parent;
  if (!used) {
    if (Policy* policy = fence ? nullptr : of(from).policy.get()) policy->on_used({&from, 1});
    dequeue(from);
  }
  drop_twin(to);
  set_first_twin(to, first_twin(from));
  set_first_twin(from, kNoNode);
  each_twin(to, [&](NodeId b) { nodes_[b].parent = to; });
  index_.move(from, to);
  tell_groups([from, to](GroupPlaces& places) { places.move(from, to); });
  for (NodeId b = nodes_[to].first_child; b >= 0; b = nodes_[b].next_sibling) {
    const bool pins = nodes_.used(b);
    nodes_.uses(from).pins -= pins;
    nodes_.uses(to).pins += pins;
  }
  of(to).tell([from, to](Observer& each) { each.on_moved(from, to); });
  if (used) return;  // its parent is pinned as before, by another child
  if (parent >= 0) ++nodes_.uses(parent).pins;
  enqueue(from, fence);
}

}  // namespace blockmgr
