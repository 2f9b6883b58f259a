// What becomes findable at stops and at the ends of sequences: tails, states and boundaries.
#pragma once

#include <cstdint>
#include <optional>

#include "sequences/finding.h"
#include "sequences/group_tables.h"
#include "sequences/growing.h"
#include "sequences/keeping.h"
#include "sequences/needs.h"

namespace blockmgr {

class GroupEnds : public Part<GroupEnds, GroupTables, Keeping, Finding, Needs, Growing> {
 public:
  GroupEnds() { since_room_.resize(nth(groups()->num_groups())); }

  // The state where it stands, at the end of a block, if blocks are free for its copies: nothing is
  // evicted for it, and it goes first. Whether a prompt can continue there from now on.
  bool cache_state(Handle handle);
  void keep_boundary(const Sequence& s, std::int64_t end) noexcept;
  // Also counts what it computes again where full attention has more of it than it found.
  [[gnu::noinline]] void choose_stops(Sequence& s, std::int64_t num_shared) noexcept;
  void mark_boundaries(Sequence& s, std::int64_t from) noexcept;
  void keep_state(Sequence& s) noexcept;
  void drop_unseen_tails(NodeId parent) noexcept;
  void commit_groups(Sequence& s, bool advances) noexcept;
  [[gnu::cold]] void settle_load(Sequence& s) noexcept;
  void keep_path(const Sequence& s) noexcept;
  // Before a sequence gives its blocks back: its end becomes findable. resumes: it is preempted.
  [[gnu::always_inline]] void leave(Sequence& s, bool resumes) noexcept {
    if (s.state != Sequence::kRunning) return;
    if (has_groups()) [[unlikely]] {
      leave_groups(s, resumes);
    } else if (config().min_partial_tokens) {
      keep_end(s);
    }
  }
  // With full attention alone: drops the tails that are a mere beginning of what is about to be
  // cached beside them. With groups these may be boundaries, and keep what their queries read.
  void supersede_tails(const Key& key, int num_tokens) noexcept;

 private:
  struct Seen {
    NodeId next = kNoNode;    // the first child that no look-up sees
    NodeId passed = kNoNode;  // of those that they see, the last idle tail that is just passed
    int count = 0;
  };
  bool serves(const Sequence& s, std::int64_t logical, NodeId end) const;
  std::int64_t cached_since(const Sequence& s, int g, std::int64_t to) const;
  bool reads_cached(NodeId n, std::int64_t end) const;
  std::int64_t last_start_of(const Sequence& s) const;
  void pass_earlier(const Sequence& s, std::int64_t most) noexcept;
  std::optional<GroupRow::Stop> takes_stop(Sequence& s) noexcept;
  bool keep_whole(Sequence& s, std::int64_t room, bool passed) noexcept;
  void keep_branch(Sequence& s, std::int64_t room, bool passed) noexcept;
  bool is_covered(const Key& key, std::int64_t unit, int rest) noexcept;
  [[gnu::noinline]] bool stands_for_end(NodeId child, std::int64_t unit, int rest) noexcept;
  [[gnu::noinline]] bool may_give_parts(const Sequence& s, std::int64_t unit, int rest) const;
  [[gnu::noinline]] void place_tail(NodeId tail, std::int64_t unit) noexcept;
  NodeId cache_end_block(Sequence& s, std::int64_t unit, int rest, bool goes_on) noexcept;
  Seen seen_children(NodeId parent) const;
  void drop_tail(NodeId tail) noexcept;
  [[gnu::noinline]] void leave_groups(Sequence& s, bool resumes) noexcept;
  [[gnu::noinline]] NodeId keep_end(Sequence& s) noexcept;
  [[gnu::noinline]] void keep_states_at(Sequence& s, NodeId node, bool resumes) noexcept;
  [[gnu::noinline]] void leave_path(Sequence& s, bool left_tail) noexcept;
  void end_path(const Sequence& s, NodeId end, bool resumes) noexcept;

  std::vector<std::int64_t> since_room_;  // by group, a unit
};

}  // namespace blockmgr
