// What callers say of blocks that will be used again, or will not: retention, pins, touches, hints.
#include <algorithm>

#include "sequences/sequences.h"

namespace blockmgr {

std::int64_t Sequences::retain(Handle handle, std::int64_t start, std::int64_t stop, int level,
                               double ttl, const Announce& announce) {
  Call call(*this);
  check_retaining("retain");
  const Sequence& s = running(handle);
  RetainingPolicy& policy = retaining("retain", s.partition);
  const std::int64_t most = std::min(s.num_tokens, num_slots(s));
  if (start < 0 || stop <= start || stop > most)
    throw Error(ErrorKind::kValue, "start and stop must satisfy 0 <= start < stop <= " +
                                       std::to_string(most) + " (tokens with slots), got " +
                                       std::to_string(start) + " and " + std::to_string(stop));
  const std::int64_t first = start / config_.block_size;
  const std::int64_t end = blocks_for(stop);
  if (announce) announce(end - first);
  // The last first, for a block's level reaches those before it.
  for (std::int64_t i = end; i-- > first;) {
    const NodeId b = table(s)[i];
    const NodeId twin = nodes_[b].keyed() ? kNoNode : nodes_[b].parent;
    policy.retain(twin >= 0 ? twin : b, level, policy.now() + ttl);
  }
  if (groups_ && level > kNormal) keep_boundary(s, stop);
  return end - first;
}

// No prompt can continue from what is retained without a boundary at its end. So a forward should
// stop there, and it is more than passed.
void Sequences::keep_boundary(const Sequence& s, std::int64_t end) noexcept {
  const std::int64_t rest = end % config_.block_size;
  const bool within =
      num_states_ && config_.min_partial_tokens && rest >= config_.min_partial_tokens;
  if (!within) end -= rest;
  auto& stops = group_row(s).stops;
  const std::int64_t units = end / config_.block_size;
  if (end > s.num_computed) {
    for (const auto other : {GroupRow::kLast, GroupRow::kHalfway, GroupRow::kPromptEnd})
      if (stops[other] == end) stops[other] = 0;
    if (stops[GroupRow::kDiverges] != end) stops[GroupRow::kRetained] = end;
  } else if (!within && units && units <= s.num_chained && serves(s, units - 1)) {
    keep_boundary(table(s)[units - 1]);
  }
}

// It serves all groups.
void Sequences::keep_boundary(NodeId node) noexcept {
  if (!groups_->is_boundary(node)) groups_->add_boundary(node);
  groups_->note_continued(node);
}

// The full blocks of the prompt that are cached, its last token among them; with further groups of
// layers, as far as a prompt can continue from them.
Sequences::Found Sequences::find_cached(const Prompt& prompt) {
  if (blocks_for(prompt.num_tokens) > config_.row_width)
    throw_never_fits(prompt.num_tokens, 0, partition_of(prompt.name));
  const std::uint32_t root = index_.find_root(prompt.name);
  if (root == kUnknownId) return {};
  const ExtrasIds extras = known_extras(index_.extras(), prompt.extras);
  // As if a token followed: nothing is left to compute here.
  Found found;
  find_prefix(prompt.tokens, prompt.num_tokens + 1, root_node(root), &extras, found);
  if (groups_) {
    settle_keeps();
    found.num_full = served_of(found);
    if (found.num_full) found.node = found.full[found.num_full - 1];
  }
  return found;
}

std::int64_t Sequences::retain_prefix(const Prompt& prompt, int level, double ttl,
                                      const Announce& announce) {
  Call call(*this);
  RetainingPolicy& policy = retaining("retain_prefix", partition_of(prompt.name));
  const Found found = find_cached(prompt);
  if (announce) announce(found.num_full);
  for (std::int64_t i = found.num_full; i-- > 0;)
    policy.retain(found.full[i], level, policy.now() + ttl);
  if (groups_ && level > kNormal && found.num_full) keep_boundary(found.node);
  return found.num_full;
}

std::int64_t Sequences::pin(const Prompt& prompt, const Announce& announce) {
  Call call(*this);
  RetainingPolicy& policy = retaining("pin", partition_of(prompt.name));
  const Found found = find_cached(prompt);
  const NodeId tail = found.num_full ? found.node : kNoNode;
  const std::int64_t pin = pin_chain(policy, tail, found.num_full, announce);
  if (groups_ && tail >= 0) keep_boundary(tail);
  return pin;
}

// What an admission would use of a waiting prompt.
Sequences::Found Sequences::find_waiting(const Prompt& prompt, NodeId root,
                                         const ExtrasIds& extras) {
  if (groups_) {
    const Applicant applicant{root, &extras, partition_of(prompt.name), 0, true};
    GroupedFound found = find_grouped(prompt.tokens, prompt.num_tokens, applicant);
    const bool within =
        found.partial.partial >= 0 && found.partial.num_full >= found.whole.num_full;
    return within ? found.partial : found.whole;
  }
  Found found;
  find_prefix(prompt.tokens, prompt.num_tokens, root, &extras, found);
  find_partial(prompt.tokens, prompt.num_tokens, &extras, found);
  return found;
}

std::int64_t Sequences::touch(const Prompt& prompt, const Announce& announce) {
  Call call(*this);
  if (blocks_for(prompt.num_tokens) > config_.row_width)
    throw_never_fits(prompt.num_tokens, 0, partition_of(prompt.name));
  const std::uint32_t root = index_.find_root(prompt.name);
  if (root == kUnknownId) {
    if (announce) announce(0);
    return 0;
  }
  const ExtrasIds extras = known_extras(index_.extras(), prompt.extras);
  const Found found = find_waiting(prompt, root_node(root), extras);

  const auto each_idle = [&](const auto& visit) {
    if (found.partial >= 0 && pool_.counts_as_available(found.partial)) visit(found.partial);
    for (std::int64_t i = found.num_full; i-- > 0;) {
      const NodeId b = found.full[i];
      if (pool_.counts_as_available(b)) visit(b);
    }
  };
  std::int64_t count = 0;
  each_idle([&](NodeId) { ++count; });
  if (announce) announce(count);
  each_idle([&](NodeId b) { pool_.touch(b); });
  if (groups_ && found.partial < 0 && found.num_full) keep_boundary(found.node);
  counters_.touched_blocks += count;
  return count;
}

// A conversation that goes on will use all its blocks. One that ends releases what is its own: from
// its end up to a block that is in use by others, that others continue from, or that another one
// has promised to use.
void Sequences::hint_blocks(const Sequence& s, bool expect_reuse) noexcept {
  RetainingPolicy& policy = *pool_.partition(s.partition).retention;
  NodeId below = kNoNode;
  for (std::int64_t i = s.num_blocks; i-- > 0;) {
    const NodeId own = table(s)[i];
    const bool keyed = nodes_[own].keyed();
    const NodeId node = keyed ? own : nodes_[own].parent;
    if (node < 0) continue;
    if (!expect_reuse) {
      const Node& record = nodes_[node];
      const bool in_use = nodes_.uses(node).ref_count > (keyed ? 1 : 0);
      const bool branches = record.first_child >= 0 &&
                            (record.first_child != below || nodes_[below].next_sibling >= 0);
      if (in_use || branches || policy.is_expected(node)) return;
    }
    policy.hint(node, expect_reuse);
    below = node;
  }
}

void Sequences::free_expecting(Handle handle, bool expect_reuse, bool withdraws) {
  Call call(*this);
  check_retaining("expect_reuse");
  Sequence& s = live(handle);
  check_leaving(s, withdraws, "free");
  if (withdraws) withdraw(s);
  groups_ ? leave_groups(s, expect_reuse) : cache_tail(s);
  hint_blocks(s, expect_reuse);
  end(s);
}

}  // namespace blockmgr
