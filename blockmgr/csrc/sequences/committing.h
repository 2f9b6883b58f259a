// Makes what is computed findable, and merges identical blocks.
#pragma once

#include <cstdint>

#include "sequences/group_ends.h"
#include "sequences/group_tables.h"
#include "sequences/keeping.h"

namespace blockmgr {

class Committing : public Part<Committing, GroupTables, Keeping, GroupEnds> {
 public:
  Committing();

  std::size_t memory() const { return plan_.memory() + remaps_.capacity() * sizeof(RemapRecord); }

  void commit(Handle handle, std::int64_t num_computed);
  Remaps remaps();
  // Forgets what remaps() gave. If the log has changed since, nothing is done. Whether it was.
  bool drop_remaps(std::int64_t version);
  std::vector<RemapRecord> take_remaps();
  // Whether a commit of all its tokens may make blocks findable.
  bool commits_units(const Sequence& s) const;
  std::int64_t plan_promotion(Sequence& s, std::int64_t num_computed, std::int64_t written_now,
                              PromotionPlan& plan);
  void promote_all(const PromotionPlan& plan) noexcept;
  void reserve_remaps(const PromotionPlan& plan);

 private:
  friend class Sequences;  // its fingerprint
  void plan_commit(Sequence& s, std::int64_t num_computed, std::int64_t written);
  [[gnu::noinline]] void commit_in_groups(Sequence& s, std::int64_t num_computed);
  std::int64_t promotable(const Sequence& s, std::int64_t num_computed) const;
  [[gnu::noinline]] bool is_kept_apart(const Sequence& s, std::int64_t logical, NodeId cached,
                                       bool is_written) const;
  [[gnu::noinline]] std::int64_t num_lost(const Sequence& s, std::int64_t logical, NodeId cached,
                                          PromotionPlan& plan) const;
  NodeId find_on_demand(const Key& key, std::int64_t logical, Promotion& promotion,
                        std::uint8_t* digest);
  void promote(const Promotion& promotion, const std::uint8_t* next) noexcept;
  void deduplicate(const Promotion& promotion, std::int64_t logical, NodeId cached) noexcept;

  PromotionPlan plan_;  // kept so that calls seldom allocate
  std::vector<RemapRecord> remaps_;
  std::size_t max_remaps_;  // kept over calls; what one call adds is never dropped by it
  bool remaps_lost_ = false;
  std::int64_t remaps_version_ = 0;  // grows with every record
};

}  // namespace blockmgr
