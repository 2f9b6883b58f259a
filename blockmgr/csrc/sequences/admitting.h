// A sequence's first blocks: admit, resume, and what they would find and take.
#pragma once

#include <cstdint>
#include <functional>

#include "sequences/finding.h"
#include "sequences/group_ends.h"
#include "sequences/group_tables.h"
#include "sequences/needs.h"
#include "sequences/sessions.h"

namespace blockmgr {

class Admitting : public Part<Admitting, Slices, GroupTables, Finding, Needs, GroupEnds, Sessions> {
 public:
  Admitting() : ghosts_room_(nth(config().ghost_blocks ? config().row_width : 0)) {}

  std::size_t memory() const { return ghosts_room_.bytes(); }

  // announce gets the handle at the end of the plan, when it may still throw: a caller that needs
  // memory to pass the handle on takes it there. It must not call back.
  Handle admit(const Prompt& prompt, const std::function<void(Handle)>& announce = {});
  MatchResult match(const Prompt& prompt);
  Admission can_admit(const Prompt& prompt);
  void resume(Handle handle, std::int64_t num_slots, bool read_cache = true);

  // The parts of resuming a sequence, for a call that resumes several: each is done for all of them
  // before the next one.
  void begin_resumed(Sequence& s, const AdmissionPlan& plan) noexcept;
  void take_over_resumed(Sequence& s, const AdmissionPlan& plan) noexcept;
  void end_resumed(Sequence& s, const AdmissionPlan& plan) noexcept;
  Sequence& preempted(Handle handle);
  // Blocks of its partition that a preempted sequence may not take, if this many would do for it.
  std::int64_t held_back_from(int partition, std::int64_t most) const;
  // Whether there are as many as it needs where nodes' own blocks are bare.
  bool has_nodes(const Demand& demand, int partition) const;
  // Once it runs: its tokens lie in its blocks, as far as there are any.
  void settle_resumed(Sequence& s, bool read_cache) noexcept;

 private:
  void keep_found(Sequence& s, const AdmissionPlan& plan) noexcept;
  void take_over_found(Sequence& s, const Found& found) noexcept;
  void take_rest(Sequence& s, const Token* tokens, const AdmissionPlan& plan) noexcept;
  // session: nullptr for none.
  std::int64_t first_behind_load(const Prompt& prompt) const;
  Handle admit_of(const Prompt& prompt, const std::function<void(Handle)>& announce,
                  SessionTable::Claim* session);
  AdmissionPlan plan_admission(const Token* tokens, std::int64_t count, std::int64_t slots,
                               const Applicant& applicant);
  bool fits(AdmissionPlan& plan, std::int64_t slots, const Applicant& applicant) const;
  // plan: to begin behind the most that is found; or what is to be done instead.
  [[gnu::noinline]] void choose(AdmissionPlan& plan, std::int64_t num_whole, std::int64_t slots,
                                const Applicant& applicant) const;
  AdmissionPlan plan_prompt(const Prompt& prompt, int partition, std::int64_t held_back);
  // The same, and all that carrying it out needs to know. Throws unless it fits.
  AdmissionPlan settled_admission(const Token* tokens, std::int64_t count, std::int64_t slots,
                                  const Applicant& applicant);
  void occupy(Sequence& s, const Token* tokens, const AdmissionPlan& plan) noexcept;
  // The part that it copies or takes over in a group; kNoNode: none.
  NodeId source_of(int g, const Found& found) const;
  NodeId continued_boundary(const Found& found) const;
  [[gnu::noinline]] void keep_found_parts(Sequence& s, const Found& found) noexcept;
  [[gnu::noinline]] void take_over_parts(const Sequence& s, const Found& found) noexcept;
  [[gnu::noinline]] void take_first_parts(Sequence& s, const Found& found) noexcept;

  ZeroedArray<std::int32_t> ghosts_room_;  // that plans lie in, kept so that calls seldom allocate
};

}  // namespace blockmgr
