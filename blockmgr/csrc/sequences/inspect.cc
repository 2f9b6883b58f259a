#include "sequences/inspect.h"

#include <algorithm>

#include "sequences/sequences.h"

namespace blockmgr {

namespace {

BlockFacts::State state_of(const Nodes& nodes, NodeId n) {
  const Node& record = nodes[n];
  if (nodes.used(n)) return record.keyed() ? BlockFacts::kCached : BlockFacts::kOwned;
  if (record.fence) return BlockFacts::kFenced;
  return record.keyed() ? BlockFacts::kIdle : BlockFacts::kFree;
}

void at_least(std::int32_t& count, std::int64_t least) {
  count = std::max(count, static_cast<std::int32_t>(least));
}

}  // namespace

std::vector<BlockFacts> inspect(const Nodes& nodes, const Pool& pool, const CopyTracker& copies) {
  std::vector<BlockFacts> facts(nth(nodes.num_blocks));
  const auto at = [&](NodeId n) -> BlockFacts& { return facts[nth(nodes.name(n))]; };
  for (std::int32_t b = pool.num_blocks() - pool.capacity(); b < nodes.num_blocks; ++b) {
    BlockFacts& fact = facts[nth(b)];
    fact.state = b < pool.limit() || b >= pool.num_blocks() ? BlockFacts::kFree : BlockFacts::kOut;
    const NodeId n = nodes.owner(b);
    if (n < 0) continue;
    const Node& record = nodes[n];
    fact.state = state_of(nodes, n);
    fact.ref_count = static_cast<std::int32_t>(nodes.uses(n).ref_count);
    fact.pins = static_cast<std::int32_t>(nodes.uses(n).pins);
    fact.num_tokens = fact.num_computed = record.key_tokens;
    (record.keyed() ? fact.parent : fact.twin) = nodes.name(record.parent);
    if (record.keyed() && record.parent >= 0) ++at(record.parent).num_children;
  }
  for (int i = 0; i < pool.num_partitions(); ++i) {
    const IdleSegments& idle = pool.idle_list(i);
    std::int32_t rank = 0;
    for (NodeId n = idle.front(); n != idle.end(); n = idle.after(n)) at(n).eviction_rank = rank++;
  }
  const auto add_copy = [&](const Copy& copy, bool taken) {
    BlockFacts& destination = at(copy.destination);
    destination.copy_source = nodes.name(copy.source);
    destination.copy_tokens = copy.num_tokens;
    destination.copy_taken = taken;
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
  const Nodes& nodes = core.nodes();
  const auto at = [&](NodeId n) -> BlockFacts& { return facts[nth(nodes.name(n))]; };
  for (NodeId n = 0; n < nodes.count; ++n)
    if (nodes.block(n) != kNoBlock) at(n).priority = core.level(n);
  for (int i = 0; i < core.pool().num_partitions(); ++i) {
    const IdleSegments& idle = core.pool().idle_list(i);
    std::int32_t rank = 0;
    for (int level = kLow; level <= kPinned; ++level)
      for (NodeId n = idle.front(); n != idle.end(); n = idle.after(n))
        if (at(n).priority == level) at(n).eviction_rank = rank++;
  }
}

// Where a node has no block: that of its parent in the group; kNoNode if it has none there.
static std::int32_t part_before(const Sequences& core, int g, NodeId n) {
  const NodeId parent = core.nodes()[n].parent;
  return core.nodes().name(parent < 0 ? kNoNode : core.groups()->cached(g, parent));
}

// Tokens of the blocks that sequences have of an uncached window.
static void add_own(std::vector<BlockFacts>& facts, const Sequences& core, int g) {
  const std::int64_t size = core.config().block_size;
  for (const Handle handle : core.handles()) {
    const Sequence& s = core.view(handle);
    if (s.state != Sequence::kRunning) continue;
    const GroupRow row = core.view_groups(handle);
    for (std::int64_t i = row.first[nth(g)]; i < core.units_of(g, core.num_slots(s)); ++i) {
      const NodeId own = row.own[nth(g)][nth(i)];
      BlockFacts& fact = facts[nth(core.nodes().name(own))];
      at_least(fact.num_tokens, core.tokens_of_block(g, s.num_tokens - i * size));
      at_least(fact.num_computed, core.tokens_of_block(g, core.computed(s) - i * size));
    }
  }
}

// A part has the tokens of its node, and that node's block for a parent. A state has no tokens of
// its own.
static void add_parts(std::vector<BlockFacts>& facts, const Sequences& core) {
  const Nodes& nodes = core.nodes();
  const GroupPlaces& groups = *core.groups();
  for (BlockFacts& fact : facts)
    if (fact.group >= 0 && (core.pool().is_bare() || fact.group != core.config().full_group))
      fact.num_tokens = fact.num_computed = 0;
  const auto at = [&](NodeId n) -> BlockFacts& { return facts[nth(nodes.name(n))]; };
  const std::int64_t size = core.config().block_size;
  for (int g = 0; g < groups.num_groups(); ++g) {
    const bool recurrent = !groups.group(g).is_attention();
    for (NodeId n = 0; n < nodes.count; ++n) {
      if (nodes.block(n) == kNoBlock || !nodes[n].keyed() || Pool::is_part(nodes[n])) continue;
      const NodeId m = groups.cached(g, n);
      if (m < 0) continue;
      at(m).parent = core.pool().is_bare() ? part_before(core, g, n) : nodes.name(n);
      at(m).priority = at(n).priority;
      if (!recurrent)
        at(m).num_tokens = at(m).num_computed = core.tokens_of_block(g, nodes[n].key_tokens);
    }
    if (groups.group(g).is_replayed()) add_own(facts, core, g);
    if (recurrent) continue;
    for (const Handle handle : core.handles()) {
      const Sequence& s = core.view(handle);
      if (s.state != Sequence::kRunning) continue;
      const NodeId* table = core.table_at(Sequences::row_of(handle));
      for (std::int64_t i = core.first_of(handle, g); i < s.num_blocks; ++i) {
        const NodeId part = groups.part(g, table[i]);
        if (part < 0) continue;
        BlockFacts& fact = at(part);
        at_least(fact.num_tokens, core.tokens_of_block(g, s.num_tokens - i * size));
        at_least(fact.num_computed, core.tokens_of_block(g, s.num_computed - i * size));
      }
    }
  }
}

// The facts of a node's own block say how many tokens of the node there are.
static void limit_to_full_size(std::vector<BlockFacts>& facts, const Sequences& core) {
  const auto most = static_cast<std::int32_t>(core.full_size());
  for (BlockFacts& fact : facts) {
    if (fact.group != core.config().full_group) continue;
    fact.num_tokens = std::min(fact.num_tokens, most);
    fact.num_computed = std::min(fact.num_computed, most);
  }
}

std::vector<BlockFacts> inspect(const Sequences& core) {
  const Nodes& nodes = core.nodes();
  std::vector<BlockFacts> facts = inspect(nodes, core.pool(), core.copies());
  if (core.retains()) add_levels(facts, core);
  for (std::int32_t b = 0; b < nodes.num_blocks; ++b) {
    const NodeId n = nodes.owner(b);
    BlockFacts& fact = facts[nth(b)];
    if (n >= 0) fact.group = core.group_number(n);
  }
  add_parts(facts, core);
  const std::int64_t size = core.config().block_size;
  for (const Handle handle : core.handles()) {
    const Sequence& s = core.view(handle);
    const NodeId* table = core.table_at(Sequences::row_of(handle));
    for (std::int64_t i = 0; i < s.num_blocks; ++i) {
      BlockFacts& fact = facts[nth(nodes.name(table[i]))];
      at_least(fact.num_tokens, std::min(size, s.num_tokens - i * size));
      at_least(fact.num_computed, std::min(size, s.num_computed - i * size));
    }
  }
  if (core.full_size() != size) limit_to_full_size(facts, core);
  facts.resize(nth(core.pool().num_blocks()));
  return facts;
}

}  // namespace blockmgr
