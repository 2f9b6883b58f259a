// One token for each sequence of a batch.
#pragma once

#include <cstdint>

#include "sequences/committing.h"
#include "sequences/group_ends.h"
#include "sequences/group_tables.h"
#include "sequences/growing.h"
#include "sequences/keeping.h"
#include "sequences/needs.h"

namespace blockmgr {

class Decoding
    : public Part<Decoding, Slices, GroupTables, Keeping, Needs, Growing, GroupEnds, Committing> {
 public:
  Decoding() { plan_.needed_by.resize(nth(pool().num_partitions())); }

  std::size_t memory() const {
    return plan_.promotions.memory() + plan_.sharers.memory() +
           plan_.needed_by.capacity() * sizeof(std::int64_t) +
           plan_.rewritten.capacity() * sizeof(NodeId);
  }

  void decode(const Handle* handles, const Token* tokens, std::int64_t count, std::int64_t* slots);

 private:
  void prefetch_last(Handle handle) const;
  [[gnu::noinline]] void refuse_uncomputed(const Handle* handles, std::int64_t count) const;
  void refuse_uncopied(const Sequence& s, std::int64_t logical) const;
  void plan_decode(const Handle* handles, std::int64_t count, DecodePlan& plan);
  void note_decoded(Sequence& s) noexcept;
  std::int64_t& home_needs(DecodePlan& plan, const Sequence& s) const;
  [[gnu::noinline]] void plan_moved_parts(const Sequence& s, std::int64_t logical,
                                          DecodePlan& plan) const;
  [[gnu::noinline]] void take_slices(const Handle* handles, std::int64_t count,
                                     std::int64_t* slots) noexcept;
  [[gnu::noinline]] void plan_parts(const Handle* handles, std::int64_t count, DecodePlan& plan);
  [[gnu::noinline]] void plan_equal_units(const Handle* handles, std::int64_t count,
                                          DecodePlan& plan);
  [[gnu::noinline]] void commit_decoded(const Handle* handles, std::int64_t count,
                                        const PromotionPlan& plan) noexcept;
  [[gnu::noinline]] void keep_decoded(const Handle* handles, std::int64_t count) noexcept;

  DecodePlan plan_;  // kept so that calls seldom allocate
};

}  // namespace blockmgr
