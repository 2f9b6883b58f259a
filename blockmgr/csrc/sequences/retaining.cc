#include <algorithm>

#include "sequences/sequences.h"

namespace blockmgr {

std::int64_t Retaining::retain(Handle handle, std::int64_t start, std::int64_t stop, int level,
                               double ttl, const Announce& announce) {
  Call call(rows());
  rows().check_retaining("retain");
  const Sequence& s = rows().running(handle);
  RetainingPolicy& policy = rows().retaining("retain", s.partition);
  const std::int64_t most = std::min(s.num_tokens, rows().num_slots(s));
  if (start < 0 || stop <= start || stop > most)
    throw Error(ErrorKind::kValue, "start and stop must satisfy 0 <= start < stop <= " +
                                       std::to_string(most) + " (tokens with slots), got " +
                                       std::to_string(start) + " and " + std::to_string(stop));
  const std::int64_t first = start / config().block_size;
  const std::int64_t end = rows().blocks_for(stop);
  if (announce) announce(end - first);
  // The last first, for a block's level reaches those before it.
  for (std::int64_t i = end; i-- > first;) {
    const NodeId b = rows().table(s)[i];
    const NodeId twin = nodes()[b].keyed() ? kNoNode : nodes()[b].parent;
    policy.retain(twin >= 0 ? twin : b, level, policy.now() + ttl);
  }
  if (level > kNormal) use<GroupEnds>().keep_boundary(s, stop);
  return end - first;
}

// The full blocks of the prompt that are cached, its last token among them; with further groups of
// layers, as far as a prompt can continue from them.
Found Retaining::find_cached(const Prompt& prompt) {
  use<Needs>().check_lookup(prompt.num_tokens, prompt.name);
  const std::uint32_t root = index().find_root(prompt.name);
  if (root == kUnknownId) return {};
  const ExtrasIds extras = known_extras(index().extras(), prompt.extras);
  // As if a token followed: nothing is left to compute here.
  Found found;
  use<Finding>().find_prefix(prompt.tokens, prompt.num_tokens + 1, root_node(root), &extras, found);
  found.num_full = use<Finding>().served_of(found);
  if (found.num_full) found.node = found.full[found.num_full - 1];
  return found;
}

std::int64_t Retaining::retain_prefix(const Prompt& prompt, int level, double ttl,
                                      const Announce& announce) {
  Call call(rows());
  RetainingPolicy& policy = rows().retaining("retain_prefix", rows().partition_of(prompt.name));
  const Found found = find_cached(prompt);
  if (announce) announce(found.num_full);
  for (std::int64_t i = found.num_full; i-- > 0;)
    policy.retain(found.full[i], level, policy.now() + ttl);
  if (level > kNormal && found.num_full) groups()->keep_boundary(found.node);
  return found.num_full;
}

std::int64_t Retaining::pin(const Prompt& prompt, const Announce& announce) {
  Call call(rows());
  RetainingPolicy& policy = rows().retaining("pin", rows().partition_of(prompt.name));
  const Found found = find_cached(prompt);
  const NodeId tail = found.num_full ? found.node : kNoNode;
  const std::int64_t pin = rows().pin_chain(policy, tail, found.num_full, announce);
  if (tail >= 0) groups()->keep_boundary(tail);
  return pin;
}

// What an admission would use of a waiting prompt.
std::int64_t Retaining::touch(const Prompt& prompt, const Announce& announce) {
  Call call(rows());
  use<Needs>().check_lookup(prompt.num_tokens, prompt.name);
  const std::uint32_t root = index().find_root(prompt.name);
  if (root == kUnknownId) {
    if (announce) announce(0);
    return 0;
  }
  const ExtrasIds extras = known_extras(index().extras(), prompt.extras);
  Found found;
  Reach reach;
  use<Finding>().find(prompt.tokens, prompt.num_tokens,
                      {root_node(root), &extras, rows().partition_of(root), 0, true}, found, reach);
  const auto each_idle = [&](const auto& visit) {
    if (found.partial >= 0 && pool().counts_as_available(found.partial)) visit(found.partial);
    for (std::int64_t i = found.num_full; i-- > 0;) {
      const NodeId b = found.full[i];
      if (pool().counts_as_available(b)) visit(b);
    }
  };
  std::int64_t count = 0;
  each_idle([&](NodeId) { ++count; });
  if (announce) announce(count);
  each_idle([&](NodeId b) { pool().touch(b); });
  if (found.partial < 0 && found.num_full) groups()->keep_boundary(found.node);
  rows().counters.touched_blocks += count;
  return count;
}

}  // namespace blockmgr
