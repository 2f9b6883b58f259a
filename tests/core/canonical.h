// A state up to the names of its blocks, its sequences, its two token values and its namespaces.
#pragma once

#include <array>
#include <string>

#include "world.h"

namespace blockmgr::testing {

// The numbers of the two namespaces that sequences may be in; 0 is the one without a name.
using Names = std::array<int, 2>;

// Equal for two worlds if no further operation can tell them apart, other than by names and by
// counters. For strict steps (no early commit, none in flight), where memory follows from the rest.
std::string canonical(const World& world, const Names& names);

}  // namespace blockmgr::testing
