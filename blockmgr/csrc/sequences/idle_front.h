// What is evicted next, and what it holds: for callers that copy it elsewhere first.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sequences/store.h"

namespace blockmgr {

// The last blocks of prefixes that are next in the order of idle blocks, least recently used first.
// An end is the last one of its prefix. With several groups of layers: of prefixes that prompts can
// continue, those that sequences only passed first, and only at the end of a path.
struct IdleFront {
  std::vector<std::int32_t> blocks;
  std::vector<std::int64_t> contents;  // a number that no other content of the store has had
};
// Looks at so many idle blocks, of each partition its share.
IdleFront idle_front(const Store& store, std::int64_t most);

// A cached block with all that it continues, up to the first block whose K/V is not written yet. An
// end has fewer tokens than other blocks.
struct CachedPrefix {
  std::vector<std::int32_t> blocks;
  std::vector<std::int64_t> contents;  // as in IdleFront
  std::vector<Token> tokens;
  std::vector<std::pair<std::int64_t, std::string>> extras;  // by position in blocks
  std::string name;                                          // of the namespace
  // With retention, of each block: the level that a call set, or kNoLevel, and until when.
  std::vector<std::int8_t> levels;
  std::vector<double> until;
  // Of all other groups of layers, what the query behind the prefix reads; nothing if a group lacks
  // some of it, and then no prompt can continue there.
  struct Parts {
    std::vector<std::int32_t> blocks;
    std::vector<std::int64_t> contents;  // likewise
    std::vector<std::int32_t> groups;    // in the order of the engine
    std::vector<std::int64_t> starts;    // the first token in each block
  } parts;
  bool is_whole = true;
};
// Throws unless the block is cached. A block of another group has the prefix of its node.
CachedPrefix prefix_of(const Store& store, std::int64_t block);

// The number of the content of a block, as in IdleFront; -1: it is not cached. The block must
// exist.
std::int64_t content_of(const Store& store, std::int64_t block);

}  // namespace blockmgr
