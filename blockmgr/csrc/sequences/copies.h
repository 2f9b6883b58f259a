// The copy-on-write tracker: which blocks must be copied before the next forward.
//
// Pending copies are a map destination -> (root source, tokens), kept in the destinations' own
// records. A copy out of a pending destination is recorded against that destination's root, the
// root is pinned, and a destination that leaves its last table takes its copy with it. So no block
// is a source and a destination, no destination appears twice, and a plan may run in any order.
//
// A block that is to begin with zeros is its own source. What would be copied out of it is zeros,
// too.
//
//            plan()                take()                 applied()
//   recorded ------> pending ----------------> in flight ----------> gone
//                       ^  drop(): gone            |
//                       +--------------------------+ aborted()
#pragma once

#include <cstdint>
#include <vector>

#include "places/pool.h"

namespace blockmgr {

// Throws unless this is the ticket of the plan that was taken last and is not resolved.
void check_ticket(bool in_flight, std::int64_t ticket, std::int64_t last);
// Throws while a plan is not resolved.
void check_resolved(bool in_flight, std::int64_t last);

struct Copy {
  NodeId source;
  NodeId destination;
  std::int32_t num_tokens;
};
// The same for who carries it out.
struct BlockCopy {
  std::int32_t source;
  std::int32_t destination;
  std::int32_t num_tokens;
  std::int32_t group = 0;  // of layers, in the order of the engine
  bool is_zeros() const { return source == destination; }
};

class CopyTracker {
 public:
  CopyTracker(Nodes& nodes, Pool& pool)
      : nodes_(nodes), pool_(pool), pending_(nodes, pool.copies_sentinel()) {}

  int num_pending() const { return pending_.size(); }
  // Those of them that move anything.
  int num_to_do() const;
  bool in_flight() const { return open_; }

  // Tokens that a copy of the source can bring: fewer than num_tokens when the source itself is
  // still waiting for a shorter copy.
  std::int32_t reach(NodeId source, std::int32_t num_tokens) const {
    const Node& record = nodes_[source];
    if (record.copy_source == kNoNode) return num_tokens;
    return num_tokens < record.copy_tokens ? num_tokens : record.copy_tokens;
  }
  // Records a copy of the leading num_tokens > 0 tokens into a fresh block.
  void plan(NodeId source, NodeId destination, std::int32_t num_tokens) noexcept;
  // Plans zeros for a block, in place of a pending copy into it.
  void plan_zeros(NodeId block) noexcept;
  // Cancels the copy into a block, if there is one pending.
  void drop(NodeId destination) noexcept;

  // Room for take(): the only part of it that can fail.
  void reserve() { flight_.reserve(nth(pending_.size())); }
  // Puts every pending copy in flight, in the order they were recorded.
  const std::vector<Copy>& take() noexcept;
  void applied() noexcept;
  // Copies in flight are pending again, before anything recorded since.
  void aborted() noexcept;

  template <class Visit>
  void each_pending(Visit visit) const {
    for (NodeId b = pending_.front(); b != pending_.end(); b = pending_.after(b))
      visit(Copy{nodes_[b].copy_source, b, nodes_[b].copy_tokens});
  }
  const std::vector<Copy>& flight() const { return flight_; }
  std::size_t memory() const { return flight_.capacity() * sizeof(Copy); }
  std::int64_t num_planned() const { return num_planned_; }
  std::int64_t num_cancelled() const { return num_cancelled_; }

 private:
  Nodes& nodes_;
  Pool& pool_;
  NodeList pending_;
  std::vector<Copy> flight_;
  bool open_ = false;
  std::int64_t num_planned_ = 0;
  std::int64_t num_cancelled_ = 0;
};

}  // namespace blockmgr
