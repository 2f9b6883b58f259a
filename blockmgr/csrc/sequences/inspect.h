// Every block at one moment, for people and tools: read off the records, nothing is kept for it.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/node.h"
#include "places/pool.h"
#include "policies/retention.h"
#include "sequences/copies.h"

namespace blockmgr {

class Sequences;

struct BlockFacts {
  // The states of node.h, and three more: waiting for a step, kept back for padded writes, and out
  // of use. In the order of blockmgr.BlockState.
  enum State : std::uint8_t { kFree, kOwned, kCached, kIdle, kFenced, kNull, kOut };

  std::uint8_t state = kNull;
  std::uint8_t priority = kNormal;
  bool copy_taken = false;  // the copy below is in flight
  std::int32_t group = -1;  // of layers, unless it is free
  std::int32_t ref_count = 0;
  std::int32_t pins = 0;
  std::int32_t parent = -1;  // keyed: the block before it, or the root of its namespace
  std::int32_t twin = -1;    // owned: the cached block with the same content
  std::int32_t num_children = 0;
  std::int32_t num_tokens = 0;
  std::int32_t num_computed = 0;    // of those, tokens with K/V
  std::int32_t eviction_rank = -1;  // idle: 0 goes first
  std::int32_t copy_source = -1;    // of a copy into this block that is pending or in flight
  std::int32_t copy_tokens = 0;
};

// Without sequences, only blocks with a key or an end of a copy have tokens that are known.
std::vector<BlockFacts> inspect(const Nodes& nodes, const Pool& pool, const CopyTracker& copies);
std::vector<BlockFacts> inspect(const Sequences& core);

}  // namespace blockmgr
