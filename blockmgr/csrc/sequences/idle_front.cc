#include "sequences/idle_front.h"

#include <algorithm>

#include "memory/errors.h"
#include "places/group_places.h"

namespace blockmgr {

namespace {

bool is_full(const Store& store, NodeId n) {
  return store.nodes()[n].key_tokens == store.nodes().block_size;
}

// Whether a block continues this one.
bool goes_on(const Store& store, NodeId n) { return store.nodes()[n].first_child >= 0; }

// Whether a whole block does.
bool goes_on_whole(const Store& store, NodeId n) {
  NodeId child = store.nodes()[n].first_child;
  while (child >= 0 && !is_full(store, child)) child = store.nodes()[child].next_sibling;
  return child >= 0;
}

std::int64_t content_of_node(const Store& store, NodeId n) {
  return std::int64_t{n} << 32 | store.nodes()[n].generation;
}

bool is_written(const Node& record) {
  return !record.unwritten && record.copy_source == kNoNode && !record.in_flight;
}

// The node that prompts find this block by; kNoNode: they do not find it.
NodeId cached_node(const Store& store, std::int64_t block) {
  NodeId n = store.nodes().owner(block);
  const GroupPlaces* const groups = store.pool().groups();
  if (n >= 0 && groups && groups->owner(n) >= 0) {
    if (!store.nodes()[n].keyed()) return kNoNode;
    n = groups->node_of(n);
  }
  return n < 0 || !store.nodes()[n].keyed() || store.index().is_retired(n) ? kNoNode : n;
}

// Whether a prefix that ends here is worth a copy: prompts can continue it. With several groups,
// boundaries that sequences only passed are asked about by themselves.
bool is_end(const Store& store, NodeId n, bool passed) {
  if (store.index().is_retired(n)) return false;
  const GroupPlaces* const groups = store.pool().groups();
  if (!groups) return !goes_on(store, n);
  const bool ends = groups->is_boundary(n) && groups->is_passed(n) == passed;
  return ends && store.nodes().idle(n) && !(passed && goes_on_whole(store, n));
}

// What the query behind a prefix of so many tokens reads in the group of a slice; false if some is
// not there yet.
bool add_parts(const Store& store, const std::vector<NodeId>& path, std::int64_t length, int g,
               CachedPrefix::Parts& parts) {
  const Nodes& nodes = store.nodes();
  const GroupPlaces& groups = *store.pool().groups();
  const Group& group = groups.group(g);
  if (!group.is_cached()) return true;
  const auto count = static_cast<std::int64_t>(path.size());
  std::int64_t unit = group.recurrent() ? count - 1 : groups.first_unit(g, length);
  for (; unit < count; ++unit) {
    if (!group.recurrent() && !groups.reads(g, length, unit)) continue;  // behind an end
    const NodeId m = groups.cached(g, path[nth(unit)]);
    if (m < 0 || !is_written(nodes[m]) || nodes[m].fence || groups.is_being_kept(m)) return false;
    parts.blocks.push_back(nodes.name(m));
    parts.contents.push_back(content_of_node(store, m));
    parts.groups.push_back(group.number);
    parts.starts.push_back(unit * nodes.block_size + group.begin);
  }
  return true;
}

}  // namespace

// What is copied elsewhere is named by the nodes' own blocks.
static void refuse_bare(const Pool& pool, const char* call) {
  if (pool.is_bare())
    throw Error(ErrorKind::kValue,
                "groups must have one of FullAttention for " + std::string(call) + ", got none");
}

IdleFront idle_front(const Store& store, std::int64_t most) {
  IdleFront front;
  const Pool& pool = store.pool();
  refuse_bare(pool, "idle_front");
  const std::int64_t all = std::max(1, pool.capacity());
  for (int i = 0; i < pool.num_partitions(); ++i) {
    std::int64_t left = (std::min(most, all) * pool.partition(i).capacity + all - 1) / all;
    const auto look = [&](NodeId n, bool passed) {
      if (left-- <= 0) return false;
      if (is_end(store, n, passed)) {
        front.blocks.push_back(store.nodes().name(n));
        front.contents.push_back(content_of_node(store, n));
      }
      return true;
    };
    if (pool.groups()) pool.groups()->each_passed(i, [&](NodeId n) { return look(n, true); });
    const IdleSegments& list = pool.idle_list(i);
    for (NodeId n = list.front(); n != list.end() && look(n, false); n = list.after(n)) continue;
  }
  return front;
}

CachedPrefix prefix_of(const Store& store, std::int64_t block) {
  refuse_bare(store.pool(), "prefix_of");
  const Nodes& nodes = store.nodes();
  store.checked_block(block, -1);
  std::vector<NodeId> path;
  NodeId n = cached_node(store, block);
  if (n < 0) throw WrongBlockState(block, "it is not cached");
  for (; n >= 0; n = nodes[n].parent) path.push_back(n);
  std::reverse(path.begin(), path.end());
  CachedPrefix prefix;
  prefix.name = store.index().root_name(root_index(n));
  for (const NodeId node : path) {
    if (!is_written(nodes[node])) {
      prefix.is_whole = !store.pool().groups();
      return prefix;
    }
    if (nodes[node].extras)
      prefix.extras.emplace_back(static_cast<std::int64_t>(prefix.blocks.size()),
                                 store.index().extras().bytes(nodes[node].extras));
    prefix.blocks.push_back(nodes.name(node));
    prefix.contents.push_back(content_of_node(store, node));
    if (const RetainingPolicy* policy = store.retention(node)) {
      prefix.levels.push_back(static_cast<std::int8_t>(policy->retention(node)));
      prefix.until.push_back(policy->until(node));
    }
    const Token* const tokens = nodes.tokens(node);
    prefix.tokens.insert(prefix.tokens.end(), tokens, tokens + nodes[node].key_tokens);
  }
  const int num_groups = store.pool().groups() ? store.pool().groups()->num_groups() : 0;
  for (int g = 0; g < num_groups && prefix.is_whole; ++g)
    prefix.is_whole =
        add_parts(store, path, static_cast<std::int64_t>(prefix.tokens.size()), g, prefix.parts);
  if (!prefix.is_whole) prefix.parts = {};
  return prefix;
}

std::int64_t content_of(const Store& store, std::int64_t block) {
  const NodeId n = cached_node(store, block);
  return n < 0 ? -1 : content_of_node(store, store.nodes().owner(block));
}

}  // namespace blockmgr
