// Preempted sequences that come back in one call, and share again what they have in common.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "memory/tally.h"
#include "sequences/admitting.h"
#include "sequences/finding.h"
#include "sequences/forking.h"
#include "sequences/group_ends.h"
#include "sequences/growing.h"
#include "sequences/needs.h"
#include "sequences/sessions.h"

namespace blockmgr {

// One of the sequences of a call. They lie in the order of their tokens, a longer one before its
// beginnings, so that what any of them shares with an earlier one it shares with those between.
struct Member {
  Sequence* sequence;
  std::int64_t slots;       // at least so many
  std::int64_t common = 0;  // leading tokens that are those of the member before
  std::vector<NodeId> chain;
  Found most;                  // all that the cache serves
  std::int64_t num_whole = 0;  // of it, leading whole blocks
  AdmissionPlan plan;          // unless it has a donor
  // An earlier member that starts at the same token, and whose first blocks it shares; -1: none.
  std::int64_t donor = -1;
  std::int64_t num_shared = 0;
  std::int64_t num_blocks = 0;
  std::int64_t num_slots = 0;  // that it will have
};

// How much of the cache a plan uses; what comes later takes fewer blocks.
enum class Reuse : std::uint8_t {
  kAll,     // each sequence, what it finds
  kAgreed,  // those that compute a block at the same start, and nothing is copied if it can be
            // moved
  kWhole,   // the same with whole blocks alone
  kNothing
};

class Resuming : public Part<Resuming, Slices, GroupTables, Finding, Needs, Growing, GroupEnds,
                             Admitting, Forking, Sessions> {
 public:
  // All or none of these preempted sequences. What several of them have in common they share, as
  // forks do: equal leading tokens of one namespace, with the same extra keys.
  void resume_together(const Handle* handles, std::int64_t count, std::int64_t num_slots,
                       bool read_cache = true);

 private:
  // By partition. What is held by all is counted as well: more than there is never fits.
  struct Bill {
    std::vector<std::int64_t> needed;
    std::vector<std::int64_t> held;
  };
  std::vector<Member> members_of(const Handle* handles, std::int64_t count, std::int64_t num_slots);
  void find_all(std::vector<Member>& members);
  Bill plan_all(std::vector<Member>& members, Reuse reuse);
  void agree(std::vector<Member>& members) const;
  std::int64_t shared_units(const Member& m, const Member& donor, std::int64_t common) const;
  void choose_donor(std::vector<Member>& members, std::size_t i) const;
  void share_ends(std::vector<Member>& members, Reuse reuse) const;
  Bill bill(std::vector<Member>& members);
  struct Taken {
    std::int64_t nodes;   // with blocks of their own
    std::int64_t others;  // blocks
  };
  Taken count_joining(Member& m, const Member& donor) const;
  std::vector<std::int64_t> held_back(std::vector<Member>& members);
  void settle(std::vector<Member>& members, bool read_cache);
  void resolve_ghosts(const std::vector<Member>& members);
  void join(const Member& m, const Member& donor) noexcept;
};

}  // namespace blockmgr
