// A canonical description of a state: the names of blocks, sequences, token values and namespaces
// do not matter.
#pragma once

#include <array>
#include <string>

#include "world.h"

namespace blockmgr::testing {

// The numbers of the two namespaces of the sequences; 0 is the one without a name.
using Names = std::array<int, 2>;

// Equal for two worlds that no further operation can distinguish, except by names and by counters.
// Valid for strict steps (no early commit, no step in flight), where the rest of the state
// determines the memory.
std::string canonical(const World& world, const Names& names);

}  // namespace blockmgr::testing
