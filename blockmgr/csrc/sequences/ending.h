// Sequences that leave or become shorter: free, preempt, truncate.
#pragma once

#include <cstdint>

#include "sequences/committing.h"
#include "sequences/forgetting.h"
#include "sequences/group_ends.h"
#include "sequences/group_tables.h"
#include "sequences/sessions.h"

namespace blockmgr {

class Ending : public Part<Ending, GroupTables, GroupEnds, Committing, Forgetting, Sessions> {
 public:
  // The computed tokens that are left.
  std::int64_t truncate(Handle handle, std::int64_t num_tokens);
  // withdraw: what it committed ahead of this step's forward is taken back first, see there.
  void free(Handle handle, bool withdraw = false);
  // Likewise, and says whether the blocks will be used again.
  void free_expecting(Handle handle, bool expect_reuse, bool withdraw = false);
  void preempt(Handle handle, bool withdraw = false);
  void release_nodes(Sequence& s, std::int64_t keep) noexcept;

 private:
  void hint_blocks(const Sequence& s, bool expect_reuse) noexcept;
  void leave(Sequence& s, bool resumes, bool withdraws) noexcept;
  void end(Sequence& s) noexcept;
  // What stays cached of it is the path of its session.
  void release_all(Sequence& s, bool resumes) noexcept;
  void release_blocks(Sequence& s, std::int64_t keep) noexcept;
  [[gnu::noinline]] void release_written(const Sequence& s, std::int64_t keep) noexcept;
  void check_leaving(const Sequence& s, bool withdraws, const char* call) const {
    withdraws ? check_withdrawal(s, call) : rows().refuse_ahead(s, call);
  }
  void check_withdrawal(const Sequence& s, const char* call) const;
  void withdraw(Sequence& s) noexcept;
  void forget_unwritten(NodeId n) noexcept;
  std::int64_t fall_of(const Sequence& s, std::int64_t most, std::int64_t before) const;
  std::int64_t units_after_fall(const Sequence& s, std::int64_t length) const;
  void fall_to(Sequence& s, std::int64_t length, std::int64_t before) noexcept;
  [[gnu::noinline]] void wait_from(Sequence& s, std::int64_t from, std::int64_t num_tokens);
};

}  // namespace blockmgr
