// Sets of bits and of ids beside plain ones, with more members than any small world has.
#pragma once

#include <cstdint>

namespace blockmgr::testing {

// Throws a Violation where they differ.
void check_sets(std::uint64_t seed);

}  // namespace blockmgr::testing
