// What engines differ in that a manager has to serve alike.
#pragma once

#include <cstdint>
#include <vector>

#include "sequences/sequences.h"

namespace blockmgr::testing {

// Where a sequence's forward starts to write, and where it writes to.
enum class Writes : std::uint8_t {
  kAsAsked,      // at num_computed_tokens, which it looks up, in the slots the table has at launch
  kWhereItLeft,  // after what it has written or was told is cached; it never looks that up again
  kAsHanded,     // there too, in the slots it was given by the call that made room, and no others
  kNumWrites
};

struct Habits {
  Writes writes = Writes::kAsAsked;
  // Goes through the rows of the block table array, and trusts what they say.
  bool by_row = false;
  // Admits another prompt as soon as one ends, into the same row in the same step.
  bool refills = false;
  // With early commits: commits whatever it can as soon as it can.
  bool eager = false;
  // Steps that were applied before the first one.
  std::int64_t first_step = 0;

  bool looks_up() const { return writes == Writes::kAsAsked; }
};

// As if so many steps had been taken and applied already.
void skip_steps(Sequences& core, std::int64_t count);

}  // namespace blockmgr::testing
