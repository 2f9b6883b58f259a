// Counts every allocation of the program, and makes chosen allocations fail.
#pragma once

#include <cstddef>
#include <cstdint>

namespace blockmgr::testing {

struct Allocations {
  // The allocation with this number fails, counted from 1 from this call on; with persistent, all
  // later ones fail too. 0: none fails.
  static void fail(std::int64_t number, bool persistent);
  // Makes allocations succeed again. Returns whether any failed since fail().
  static bool stop();
  // Allocations requested so far, and bytes allocated and not freed. The zeroed arrays of the core,
  // which live as long as the core, are counted as allocations but not in the bytes.
  static std::int64_t count();
  static std::int64_t live_bytes();
};

}  // namespace blockmgr::testing
