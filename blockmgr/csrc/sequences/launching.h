// Copies of a step, and what its forward may do to states.
#pragma once

#include <cstdint>

#include "sequences/group_tables.h"

namespace blockmgr {

class Launching : public Part<Launching> {
 public:
  Launching() { moved_.reserve(rows().sequences.size()); }

  // What is findable now, in all groups. The caller holds the monitor.
  EventColumns residents() const;
  // Takes the copies of a step, those that fill blocks with zeros last. The step may move states,
  // see GroupRow.
  std::int64_t take_copies(std::vector<BlockCopy>& copies);
  void copies_applied(std::int64_t ticket);
  void copies_aborted(std::int64_t ticket);
  void return_copies(std::int64_t ticket) noexcept;
  // A forward that was launched moves its states past the tokens that it has: the engine does not
  // know all tokens of that forward yet.
  // num_slots: the forward writes no slots of the sequence behind these; 0: maybe all it has.
  void mark_state_moved(Handle handle, std::int64_t num_slots = 0);

 private:
  [[gnu::noinline]] void launch_groups(std::vector<BlockCopy>& copies) noexcept;
  void move_states(const Sequence& s) noexcept;
  void return_groups(bool takes_back = false) noexcept;

  std::vector<Handle> moved_;  // whose states the step that was launched last may move
};

}  // namespace blockmgr
