// A state up to the names of its blocks, its sequences and its two token values.
#pragma once

#include <string>

#include "world.h"

namespace blockmgr::testing {

// Equal for two worlds if no further operation can tell them apart, other than by names and by
// counters. For strict steps (no early commit, none in flight), where memory follows from the rest.
std::string canonical(const World& world);

}  // namespace blockmgr::testing
