// Groups of layers: what the query at a position reads.
//
// Layers of one group read alike and have one block table. All groups have blocks of as many tokens
// and bytes, from one pool.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace blockmgr {

struct Group {
  enum Kind : std::uint8_t {
    kFull,       // everything before it
    kWindow,     // the last `width` positions, its own among them
    kChunk,      // those of its own chunk of `width` positions
    kRecurrent,  // the state after the position before: one block, whatever the length
  };

  Kind kind = kFull;
  std::int64_t width = 0;

  bool recurrent() const { return kind == kRecurrent; }
  // The first position that the query at this one, or any later one, reads. Attention only.
  std::int64_t first_read(std::int64_t position) const {
    if (kind == kWindow) return std::max<std::int64_t>(0, position - width + 1);
    if (kind == kChunk) return position - position % width;
    return 0;
  }
};

// Where a group stands in what is kept by group.
inline std::size_t nth(int g) { return static_cast<std::size_t>(g); }

}  // namespace blockmgr
