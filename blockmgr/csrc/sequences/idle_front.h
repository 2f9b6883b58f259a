// What is evicted next, and what it holds: for callers that copy it elsewhere first.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sequences/store.h"

namespace blockmgr {

// The last blocks of prefixes that are next in the order of idle blocks, least recently used first.
struct IdleFront {
  std::vector<std::int32_t> blocks;
  std::vector<std::int64_t> contents;  // a number that no other content of the store has had
};
// Looks at so many idle blocks, of each partition its share. Throws if there are groups of layers.
IdleFront idle_front(const Store& store, std::int64_t most);

// A cached block with all that it continues, up to the first block whose K/V is not written yet.
struct CachedPrefix {
  std::vector<std::int32_t> blocks;
  std::vector<std::int64_t> contents;  // as in IdleFront
  std::vector<Token> tokens;
  std::vector<std::pair<std::int64_t, std::string>> extras;  // by position in blocks
  std::string name;                                          // of the namespace
  // With retention, of each block: the level that a call set, or kNoLevel, and until when.
  std::vector<std::int8_t> levels;
  std::vector<double> until;
};
// Likewise. Throws unless the block is cached and whole.
CachedPrefix prefix_of(const Store& store, std::int64_t block);

}  // namespace blockmgr
