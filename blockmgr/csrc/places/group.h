// Groups of layers: what the query at a position reads.
//
// Layers of one group read alike and have one block table. The blocks of all groups have as many
// bytes and come from one pool. A block of a group has the tokens of a node, or of a slice of it: a
// group whose blocks are smaller than nodes has several slices, in order, each with a block of its
// own. Here a slice is a group: the nodes know one part of each.
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
    kRing,       // the last `width` positions, in one block that is never found
    kReplayed,   // the last `width` positions, in blocks that are never found: before a hit, the
                 // last `replay` tokens are computed again for it
  };

  Kind kind = kFull;
  std::int64_t width = 0;
  std::int64_t begin = 0;  // tokens of a node that lie in its part: [begin, end)
  std::int64_t end = 0;
  int number = 0;            // of the group, in the order of the engine
  int slice = 0;             // which one of its slices this is
  int num_slices = 1;        // of the group
  bool has_events = true;    // those of full attention's further slices are its node's
  std::int64_t restart = 1;  // ring: an empty one is right at its multiples
  int extra_blocks = 0;      // of a state: slots of a sequence beside the one that it is in
  std::int64_t replay = 0;

  bool recurrent() const { return kind == kRecurrent; }
  bool is_ring() const { return kind == kRing; }
  bool is_replayed() const { return kind == kReplayed; }
  // Whether prompts find what a sequence leaves of it.
  bool is_cached() const { return kind < kRing; }
  // Whether nodes have parts of it, by unit.
  bool is_attention() const { return kind < kRecurrent; }
  // How many of the leading tokens of a node lie in its part.
  std::int64_t tokens_of(std::int64_t num_tokens) const {
    return std::clamp<std::int64_t>(num_tokens - begin, 0, end - begin);
  }
  // The first position that the query at this one, or any later one, reads. Not of states and
  // rings.
  std::int64_t first_read(std::int64_t position) const {
    if (kind == kWindow || kind == kReplayed)
      return std::max<std::int64_t>(0, position - width + 1);
    if (kind == kChunk) return position - position % width;
    return 0;
  }
};

}  // namespace blockmgr
