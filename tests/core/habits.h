// The habits in which engines differ. A manager has to serve all of them equally.
#pragma once

#include <cstdint>
#include <vector>

#include "sequences/sequences.h"

namespace blockmgr::testing {

// The position at which a sequence's forward starts to write, and the slots it writes to.
enum class Writes : std::uint8_t {
  kAsAsked,      // at num_computed_tokens, looked up at launch, in the slots of the table at launch
  kWhereItLeft,  // after what it wrote or admission found; it never looks the position up again
  kAsHanded,     // at the same position, only in the slots returned by the call that made room
  kNumWrites
};

struct Habits {
  Writes writes = Writes::kAsAsked;
  // Iterates over the rows of the block table array and trusts them.
  bool by_row = false;
  // Admits another prompt into the same row in the same step as soon as a sequence ends.
  bool refills = false;
  // With early commits: commits everything as early as possible.
  bool eager = false;
  // Number of steps applied before the first one.
  std::int64_t first_step = 0;

  bool looks_up() const { return writes == Writes::kAsAsked; }
};

// Advances the step counters, as if this many steps had been taken and applied.
void skip_steps(Sequences& core, std::int64_t count);

}  // namespace blockmgr::testing
