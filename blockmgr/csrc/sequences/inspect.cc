#include "sequences/inspect.h"

#include <algorithm>

#include "sequences/sequences.h"

namespace blockmgr {

namespace {

BlockFacts::State state_of(const Block& block) {
  if (block.used()) return block.keyed() ? BlockFacts::kCached : BlockFacts::kOwned;
  if (block.fence) return BlockFacts::kFenced;
  return block.keyed() ? BlockFacts::kIdle : BlockFacts::kFree;
}

void at_least(std::int32_t& count, std::int64_t least) {
  count = std::max(count, static_cast<std::int32_t>(least));
}

}  // namespace

std::vector<BlockFacts> inspect(const Blocks& blocks, const Pool& pool, const CopyTracker& copies) {
  std::vector<BlockFacts> facts(static_cast<std::size_t>(blocks.count));
  const auto at = [&](BlockId b) -> BlockFacts& { return facts[static_cast<std::size_t>(b)]; };
  for (BlockId b = blocks.count - pool.capacity(); b < blocks.count; ++b) {
    const Block& block = blocks[b];
    BlockFacts& fact = at(b);
    fact.state = state_of(block);
    fact.ref_count = static_cast<std::int32_t>(block.ref_count);
    fact.pins = static_cast<std::int32_t>(block.pins);
    fact.num_tokens = fact.num_computed = block.key_tokens;
    (block.keyed() ? fact.parent : fact.twin) = block.parent;
    if (block.keyed() && block.parent >= 0) ++at(block.parent).num_children;
  }
  for (int i = 0; i < pool.num_partitions(); ++i) {
    const BlockList& idle = pool.idle_list(i);
    std::int32_t rank = 0;
    for (BlockId b = idle.front(); b != idle.end(); b = idle.after(b)) at(b).eviction_rank = rank++;
  }
  const auto add_copy = [&](const Copy& copy, bool taken) {
    at(copy.destination).copy_source = copy.source;
    at(copy.destination).copy_tokens = copy.num_tokens;
    at(copy.destination).copy_taken = taken;
    // A source that has left its last table is kept for these tokens.
    at_least(at(copy.source).num_tokens, copy.num_tokens);
    at_least(at(copy.source).num_computed, copy.num_tokens);
  };
  for (const Copy& copy : copies.flight()) add_copy(copy, true);
  copies.each_pending([&](const Copy& copy) { add_copy(copy, false); });
  return facts;
}

// Levels go one after the other, each by recency.
static void add_levels(std::vector<BlockFacts>& facts, const Sequences& core) {
  for (std::size_t b = 0; b < facts.size(); ++b)
    facts[b].priority = core.level(static_cast<BlockId>(b));
  for (int i = 0; i < core.pool().num_partitions(); ++i) {
    const BlockList& idle = core.pool().idle_list(i);
    std::int32_t rank = 0;
    for (int level = kLow; level <= kPinned; ++level)
      for (BlockId b = idle.front(); b != idle.end(); b = idle.after(b)) {
        BlockFacts& fact = facts[static_cast<std::size_t>(b)];
        if (fact.priority == level) fact.eviction_rank = rank++;
      }
  }
}

std::vector<BlockFacts> inspect(const Sequences& core) {
  std::vector<BlockFacts> facts = inspect(core.blocks(), core.pool(), core.copies());
  if (core.retains()) add_levels(facts, core);
  const std::int64_t size = core.config().block_size;
  for (const Handle handle : core.handles()) {
    const Sequence& s = core.view(handle);
    const std::int32_t* table = core.table_at(Sequences::row_of(handle));
    for (std::int64_t i = 0; i < s.num_blocks; ++i) {
      BlockFacts& fact = facts[static_cast<std::size_t>(table[i])];
      at_least(fact.num_tokens, std::min(size, s.num_tokens - i * size));
      at_least(fact.num_computed, std::min(size, s.num_computed - i * size));
    }
  }
  return facts;
}

}  // namespace blockmgr
