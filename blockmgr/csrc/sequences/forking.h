// Sequences made from sequences: fork, and the reparenting of beam search.
#pragma once

#include <cstdint>

#include "sequences/ending.h"
#include "sequences/group_ends.h"
#include "sequences/group_tables.h"

namespace blockmgr {

class Forking : public Part<Forking, Slices, GroupTables, GroupEnds, Ending, Sessions> {
 public:
  // expected: handles that were announced for the children, see next_handles. If they are others
  // by this time, nothing is done. Whether it was.
  bool fork(Handle handle, std::int64_t count, Handle* children, const Handle* expected = nullptr);
  // What fork would refuse, to be asked before anything is made for so many children.
  void check_fork(Handle handle, std::int64_t count) const {
    check_fork(rows().running(handle), count);
  }
  // The handles that the next sequences get, as many as there are rows for.
  void next_handles(std::int64_t count, Handle* out) const;
  void reparent(const Handle* handles, const std::int64_t* parents, std::int64_t count);
  void check_fork(const Sequence& parent, std::int64_t count) const;
  // Gives a sequence that has a parent's nodes its parts, and states of its own.
  [[gnu::noinline]] void fork_groups(const Sequence& parent, const Sequence& child) noexcept;

 private:
  void limit_blocks(Sequence& s) const;
  void share_parts(const Sequence& model, const NodeId* table, const GroupRow& from,
                   GroupRow& to) noexcept;
};

}  // namespace blockmgr
