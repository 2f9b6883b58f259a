// Compares sets of bits and of ids with plain sets, with more members than small worlds have.
#pragma once

#include <cstdint>

namespace blockmgr::testing {

// Throws a Violation if they differ.
void check_sets(std::uint64_t seed);

}  // namespace blockmgr::testing
