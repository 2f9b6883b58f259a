// Secrets of hash tables whose keys come from outside.
//
// A client that can compute keys can search for many that a known hash sends to one place, and a
// table that is full of those is as slow as a list. So each table multiplies its keys by an odd
// number of its own: as long as a client does not know it, two of its keys share a place with at
// most twice the probability of random places. Places decide how long a search takes, not what it
// finds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>

namespace blockmgr {

inline std::uint64_t drawn_secret() {
  std::random_device draw;
  const std::uint64_t high = draw();
  return high << 32 ^ draw();
}

// The most occupied places in a row in a table of this size: a search may pass so many. Cost:
// O(size).
template <class IsOccupied>
std::int64_t longest_row(std::size_t size, IsOccupied is_occupied) {
  std::int64_t longest = 0, row = 0;
  for (std::size_t i = 0; i < 2 * size; ++i) {  // twice around: a row may cross the end
    row = is_occupied(i % size) ? row + 1 : 0;
    longest = row > longest ? row : longest;
  }
  return longest;
}

}  // namespace blockmgr
