// Queues of blocks for eviction policies, threaded through one array of their own.
//
// A member belongs to one queue from the moment it is cached to the moment it is not; it is linked
// only while the policy wants it in the order of victims. So the size of a queue counts members in
// use as well, which is what the papers mean by the size of a cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "memory/ring.h"
#include "memory/run.h"

namespace blockmgr {

class BlockAudit;

class Queues {
 public:
  // Queues are numbered from 0.
  Queues(Range range, int num_queues);

  static constexpr int kNone = -1;
  // The queue of a member; kNone for any other block.
  int queue_of(NodeId b) const { return nodes_[b].queue; }
  bool linked(NodeId b) const { return nodes_[b].next != kNoNode; }
  int size(int queue) const { return sizes_[static_cast<std::size_t>(queue)]; }

  void join(NodeId b, int queue) noexcept {
    nodes_[b].queue = static_cast<std::int8_t>(queue);
    ++sizes_[static_cast<std::size_t>(queue)];
  }
  // Ends membership, linked or not.
  void leave(NodeId b) noexcept {
    if (linked(b)) unlink(b);
    --sizes_[static_cast<std::size_t>(queue_of(b))];
    nodes_[b].queue = kNone;
  }
  // Makes it the newest of a queue, out of whichever queue and place it is in.
  void move_to_back(NodeId b, int queue) noexcept {
    if (linked(b)) unlink(b);
    move(b, queue);
    push_back(b);
  }
  // A member that is not linked changes queues.
  void move(NodeId b, int queue) noexcept {
    --sizes_[static_cast<std::size_t>(queue_of(b))];
    join(b, queue);
  }
  void push_back(NodeId b) noexcept { link_before(b, end(queue_of(b))); }
  void push_front(NodeId b) noexcept { link_before(b, front(queue_of(b))); }
  // Links a member just before this linked member of its queue, or its end.
  void link_before(NodeId b, NodeId after) noexcept { ring::insert_before(nodes_, b, after); }
  void unlink(NodeId b) noexcept {
    ring::remove(nodes_, b);
    nodes_[b].prev = nodes_[b].next = kNoNode;
  }
  // A block that is no member takes the place of one.
  void replace(NodeId from, NodeId to) noexcept {
    Node& node = nodes_[from];
    nodes_[to] = node;
    if (linked(from)) {
      ring::join(nodes_, node.prev, to);
      ring::join(nodes_, to, node.next);
    }
    node = {kNoNode, kNoNode, kNone};
  }
  // The oldest linked member, or end(queue); what follows a linked member, likewise.
  NodeId front(int queue) const { return nodes_[end(queue)].next; }
  NodeId after(NodeId b) const { return nodes_[b].next; }
  NodeId end(int queue) const { return range_.last_end() + queue; }
  bool empty(int queue) const { return front(queue) == end(queue); }

  std::size_t memory() const { return nodes_.bytes() + sizes_.capacity() * sizeof(int); }
  // Members are the cached blocks, sizes and links agree, and every idle member is linked. Whether
  // a used one may be linked is the policy's to say.
  void audit(BlockAudit& audit, const Nodes& nodes, bool only_idle) const;
  void fingerprint(std::string& out) const;

 private:
  struct Node {
    NodeId prev;
    NodeId next;  // kNoNode: not linked
    std::int8_t queue;
  };

  Range range_;
  Column<Node> nodes_;  // then one sentinel for each queue
  std::vector<int> sizes_;
};

// Finds what to evict when the block a policy chose has cached children: a leaf below it.
//
// A chain that is evicted block by block would be walked from the top each time, so the way down
// is remembered: the next search starts at the parent of the last leaf. A walk steps into each
// block at most once while the choice stands, which makes it O(1) a victim.
class LeafCursor {
 public:
  // A leaf below this idle block, or itself. Everything below an idle block is idle.
  NodeId find(const Nodes& nodes, NodeId chosen) noexcept;
  // Steps taken downwards so far.
  std::int64_t steps() const { return steps_; }
  void fingerprint(std::string& out) const;

 private:
  NodeId chosen_ = kNoNode;
  NodeId start_ = kNoNode;
  std::uint32_t chosen_generation_ = 0;
  std::uint32_t start_generation_ = 0;
  std::int64_t steps_ = 0;
};

}  // namespace blockmgr
