// Every allocation of the program, counted; and any of them made to fail.
#pragma once

#include <cstddef>
#include <cstdint>

namespace blockmgr::testing {

struct Allocations {
  // From here on the allocation of this number, counted from 1, fails; with persistent, all after
  // it do, too. 0: none does.
  static void fail(std::int64_t number, bool persistent);
  // Back to allocations that succeed. Whether any of them failed since.
  static bool stop();
  // Allocations asked for so far, and bytes handed out and not given back. The zeroed arrays of
  // the core, which live as long as it does, are counted but not added up.
  static std::int64_t count();
  static std::int64_t live_bytes();
};

}  // namespace blockmgr::testing
