#include "sequences/idle_front.h"

#include <algorithm>

#include "memory/errors.h"

namespace blockmgr {

namespace {

void check_plain(const Store& store, const char* call) {
  if (store.has_groups())
    throw Error(ErrorKind::kValue, std::string(call) + " needs a single group of layers");
}

bool is_full(const Store& store, NodeId n) {
  return store.nodes()[n].key_tokens == store.nodes().block_size;
}

// Whether a whole block continues this one.
bool goes_on(const Store& store, NodeId n) {
  NodeId child = store.nodes()[n].first_child;
  while (child >= 0 && !is_full(store, child)) child = store.nodes()[child].next_sibling;
  return child >= 0;
}

std::int64_t content_of(const Store& store, NodeId n) {
  return std::int64_t{n} << 32 | store.nodes()[n].generation;
}

bool is_written(const Node& record) {
  return !record.unwritten && record.copy_source == kNoNode && !record.in_flight;
}

NodeId cached_node(const Store& store, std::int64_t block) {
  const int first = store.nodes().num_blocks - store.pool().capacity();
  if (block < first || block >= store.nodes().num_blocks)
    throw Error(ErrorKind::kValue, "block must be in [" + std::to_string(first) + ", " +
                                       std::to_string(store.nodes().num_blocks) + "), got " +
                                       std::to_string(block));
  const NodeId n = store.nodes().owner(block);
  if (n < 0 || !is_full(store, n) || store.index().is_retired(n))
    throw WrongBlockState(block, "it is not cached");
  return n;
}

}  // namespace

IdleFront idle_front(const Store& store, std::int64_t most) {
  check_plain(store, "idle_front");
  IdleFront front;
  const Pool& pool = store.pool();
  const std::int64_t all = std::max(1, pool.capacity());
  for (int i = 0; i < pool.num_partitions(); ++i) {
    const IdleSegments& list = pool.idle_list(i);
    std::int64_t left = (std::min(most, all) * pool.partition(i).capacity + all - 1) / all;
    for (NodeId n = list.front(); n != list.end() && left > 0; n = list.after(n), --left) {
      if (!is_full(store, n) || goes_on(store, n) || store.index().is_retired(n)) continue;
      front.blocks.push_back(store.nodes().name(n));
      front.contents.push_back(content_of(store, n));
    }
  }
  return front;
}

CachedPrefix prefix_of(const Store& store, std::int64_t block) {
  check_plain(store, "prefix_of");
  const Nodes& nodes = store.nodes();
  std::vector<NodeId> path;
  NodeId n = cached_node(store, block);
  for (; n >= 0; n = nodes[n].parent) path.push_back(n);
  CachedPrefix prefix;
  prefix.name = store.index().root_name(root_index(n));
  for (auto node = path.rbegin(); node != path.rend() && is_written(nodes[*node]); ++node) {
    if (nodes[*node].extras)
      prefix.extras.emplace_back(static_cast<std::int64_t>(prefix.blocks.size()),
                                 store.index().extras().bytes(nodes[*node].extras));
    prefix.blocks.push_back(nodes.name(*node));
    prefix.contents.push_back(content_of(store, *node));
    if (const RetainingPolicy* policy = store.retention(*node)) {
      prefix.levels.push_back(static_cast<std::int8_t>(policy->retention(*node)));
      prefix.until.push_back(policy->until(*node));
    }
    const Token* const tokens = nodes.tokens(*node);
    prefix.tokens.insert(prefix.tokens.end(), tokens, tokens + nodes.block_size);
  }
  return prefix;
}

}  // namespace blockmgr
