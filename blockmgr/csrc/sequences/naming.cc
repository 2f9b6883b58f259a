#include <algorithm>

#include "sequences/sequences.h"

namespace blockmgr {

namespace {

constexpr std::int32_t kForeign = -1;
constexpr int kPartOfDigest = 8;

}  // namespace

void Naming::check_names(const BlockNames& names, const char* call) const {
  rows().check_retaining(call);
  const int whole = nodes().digest_size;
  if (!digester())
    throw Error(ErrorKind::kValue, std::string(call) + " needs a manager with prefix_caching=True");
  if (names.count && names.size != whole && names.size != kPartOfDigest)
    throw Error(ErrorKind::kValue, "digests must have " + std::to_string(whole) + " or " +
                                       std::to_string(kPartOfDigest) + " bytes, got " +
                                       std::to_string(names.size));
}

// How deep a node is below this root.
std::int32_t Naming::depth_of(NodeId b, NodeId root, Depths& depths) const {
  std::vector<NodeId> path;
  std::int32_t depth = kForeign;
  for (NodeId n = b;; n = nodes()[n].parent) {
    if (is_root(n)) {
      const bool is_retired = nodes()[path.back()].parent_generation != index().generation(n);
      depth = n == root && !is_retired ? 0 : kForeign;
      break;
    }
    if (const auto known = depths.find(n); known != depths.end()) {
      depth = known->second;
      break;
    }
    path.push_back(n);
  }
  for (auto n = path.rbegin(); n != path.rend(); ++n)
    depths.emplace(*n, depth = depth == kForeign ? kForeign : depth + 1);
  return depth;
}

// The cached blocks of the namespace that have these names, in their order, each once.
std::vector<NodeId> Naming::find_named(const BlockNames& names, Depths& depths) const {
  std::vector<NodeId> found;
  const std::uint32_t known = index().find_root(names.name);
  if (known == kUnknownId || !names.count) return found;
  const NodeId root = root_node(known);
  index().add_digests();
  found.assign(nth(names.count), kNoNode);
  if (names.size == nodes().digest_size || names.leading) {
    for (std::int64_t i = 0; i < names.count; ++i)
      found[nth(i)] =
          index().with_beginning(names.bytes + i * names.size, nth(names.size),
                                 [&](NodeId b) { return depth_of(b, root, depths) != kForeign; });
  } else {
    // The index knows the beginnings of digests alone.
    std::unordered_map<std::uint64_t, std::int64_t> wanted;
    for (std::int64_t i = 0; i < names.count; ++i)
      wanted.emplace(first_eight(names.bytes + i * kPartOfDigest), i);
    const int from = nodes().digest_size - kPartOfDigest;
    index().buckets().each([&](NodeId b) {
      const auto name = wanted.find(first_eight(nodes().digest(b) + from));
      if (name != wanted.end() && depth_of(b, root, depths) != kForeign)
        found[nth(name->second)] = b;
    });
  }
  std::unordered_map<NodeId, bool> seen;
  std::erase_if(found, [&](NodeId b) { return b < 0 || !seen.emplace(b, true).second; });
  return found;
}

// The deepest block up to this one from which a prompt can continue in all groups of layers, as a
// number of blocks.
std::int64_t Naming::served_to(NodeId tail, std::int64_t depth) {
  std::vector<NodeId> path(nth(depth));
  for (std::int64_t i = depth; i-- > 0; tail = nodes()[tail].parent) path[nth(i)] = tail;
  Found found;
  found.full = path.data();
  found.num_full = depth;
  return use<Finding>().served_of(found);
}

std::int64_t Naming::retain_named(const BlockNames& names, int level, double ttl, std::int64_t most,
                                  const std::function<void(std::int64_t)>& announce) {
  Call call(rows());
  check_names(names, "retain_digests");
  Depths depths;
  const std::vector<NodeId> found = find_named(names, depths);
  const auto count = static_cast<std::int64_t>(found.size());
  const auto due = nth(std::min(count, most));
  NodeId deepest = kNoNode;
  for (std::size_t i = 0; i < due; ++i)
    if (deepest < 0 || depths[found[i]] > depths[deepest]) deepest = found[i];
  std::int64_t served = 0;
  if (level > kNormal && due) served = served_to(deepest, depths[deepest]);
  if (announce) announce(count);
  if (due) {
    RetainingPolicy& policy = rows().retaining("retain_digests", rows().partition_of(names.name));
    // The last first, for a block's level reaches those before it.
    for (std::size_t i = due; i-- > 0;) policy.retain(found[i], level, policy.now() + ttl);
  }
  if (served) {
    for (std::int64_t up = depths[deepest] - served; up > 0; --up)
      deepest = nodes()[deepest].parent;
    groups()->keep_boundary(deepest);
  }
  return count;
}

Naming::NamedPin Naming::pin_named(const BlockNames& names, std::int64_t most,
                                   const std::function<void(const NamedPin&)>& announce) {
  Call call(rows());
  check_names(names, "pin_digests");
  Depths depths;
  NamedPin pin;
  for (const NodeId b : find_named(names, depths)) {
    ++pin.num_found;
    if (depths[b] > pin.num_cached) {
      pin.num_blocks = pin.num_cached = depths[b];
      pin.tail = b;
    }
  }
  if (pin.tail < 0) return pin;
  RetainingPolicy& policy = rows().retaining("pin_digests", rows().partition_of(names.name));
  const auto shorten = [&](std::int64_t count) {
    for (; pin.num_blocks > count; --pin.num_blocks) pin.tail = nodes()[pin.tail].parent;
  };
  shorten(most);
  // Pins are closed under parents, so what no pin covers yet is the end.
  const std::int64_t needed = policy.count_unpinned(pin.num_blocks ? pin.tail : kNoNode);
  const std::int64_t left = policy.max_pinned() - policy.num_cached(kPinned);
  if (needed > left) shorten(pin.num_blocks - (needed - left));
  if (pin.num_blocks) shorten(served_to(pin.tail, pin.num_blocks));
  if (!pin.num_blocks) {
    if (needed > left) throw PinBudget(needed, left, policy.max_pinned());
    return {};
  }
  pin.id = rows().pin_chain(policy, pin.tail, pin.num_blocks, [&](std::int64_t id) {
    pin.id = id;
    if (announce) announce(pin);
  });
  groups()->keep_boundary(pin.tail);
  return pin;
}

// The digests of the full blocks up to this one, which may be a tail; kNoNode: there are none.
std::vector<std::uint8_t> Naming::digests_to(NodeId tip) const {
  std::vector<NodeId> path;
  for (NodeId n = tip; n >= 0; n = nodes()[n].parent)
    if (nodes()[n].key_tokens == config().block_size) path.push_back(n);
  std::vector<std::uint8_t> digests;
  for (auto n = path.rbegin(); n != path.rend(); ++n)
    digests.insert(digests.end(), index().digest_of(*n),
                   index().digest_of(*n) + nodes().digest_size);
  return digests;
}

std::vector<std::uint8_t> Naming::digests_of(const Sequence& s) const {
  return digests_to(s.num_chained ? rows().chain_node(s, s.num_chained) : kNoNode);
}

std::vector<std::uint8_t> Naming::cached_digests(Handle handle) const {
  return digests_of(rows().running(handle));
}

std::optional<std::vector<std::uint8_t>> Naming::session_digests(std::string_view namespace_name,
                                                                 std::string_view session) const {
  const auto known = use<Sessions>().find("session_digests", namespace_name, session);
  if (!known) return {};
  const SessionTable& table = *known->policy.sessions();
  const std::int32_t row = table.at(known->id).row;
  const NodeId tip = table.tip(known->id);
  if (row >= 0 && tip < 0) return digests_of(rows().sequences[nth(row)]);
  return digests_to(tip >= 0 && index().is_retired(tip) ? kNoNode : tip);
}

}  // namespace blockmgr
