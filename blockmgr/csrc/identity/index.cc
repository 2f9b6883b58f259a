#include "identity/index.h"

#include <algorithm>
#include <utility>

#include "memory/copy.h"

namespace blockmgr {

PrefixIndex::PrefixIndex(Nodes& nodes, Digester* digester)
    : nodes_(nodes),
      digester_(digester),
      roots_(1),
      buckets_(nodes.num_blocks),
      continued_(static_cast<std::size_t>(nodes.count) / 64 + 1) {
  roots_[0].digest.resize(static_cast<std::size_t>(nodes.digest_size));
  if (digester_) digest_root({}, roots_[0].digest.data());
}

std::uint32_t PrefixIndex::acquire_root(std::string_view name) {
  std::uint32_t known = find_root(name);
  if (known != kUnknownId) {
    roots_by_name_.retain(known);
    return known;
  }
  std::vector<std::uint8_t> digest(static_cast<std::size_t>(nodes_.digest_size));
  if (digester_) digest_root(name, digest.data());
  if (roots_.size() == roots_.capacity()) roots_.reserve(2 * roots_.size() + 8);
  std::uint32_t root = roots_by_name_.intern(name);
  if (root == roots_.size()) roots_.emplace_back();
  roots_[root].digest.swap(digest);
  return root;
}

void PrefixIndex::retain_root(std::uint32_t root) noexcept { roots_by_name_.retain(root); }

void PrefixIndex::release_root(std::uint32_t root) noexcept {
  if (!roots_by_name_.release(root)) return;
  roots_[root].hint = kNoNode;
  ++roots_[root].generation;
}

RootReference::~RootReference() {
  if (!kept_) index_.release_root(root_);
}

void PrefixIndex::digest(const std::uint8_t* parent, std::string_view keys, const Token* tokens,
                         std::uint8_t* out) {
  digest_block_with(*digester_, nodes_.digest_size, parent, keys, tokens, nodes_.block_size, out);
}

NodeId PrefixIndex::find(const Key& key, const std::uint8_t* digest) const {
  return buckets_.find(digest, [&](NodeId b) { return has_key(b, key); });
}

[[gnu::always_inline]] inline NodeId PrefixIndex::find_on_demand(const Key& key) {
  if (!on_demand_ || is_crowded(key.parent)) {
    std::uint8_t digested[kMaxDigest];
    digest(digest_of(key.parent), key.extras, key.tokens, digested);
    return find(key, digested);
  }
  return find_listed(key);
}

NodeId PrefixIndex::find(const Key& key) { return find_on_demand(key); }

NodeId PrefixIndex::find_listed(const Key& key) const {
  NodeId b = first_child(key.parent);
  while (b >= 0 && !has_key(b, key)) b = nodes_[b].next_sibling;
  return b;
}

void PrefixIndex::add_digest(NodeId n) const noexcept {
  // Up to a block or root that has a digest. The way back is left in links that lead to some
  // descendant anyway, and are only ever prefetched.
  NodeId top = n;
  for (NodeId parent = nodes_[top].parent; !is_root(parent) && !has_digest(parent);
       parent = nodes_[top].parent) {
    nodes_[parent].skip = top;
    top = parent;
  }
  for (;; top = nodes_[top].skip) {
    const Node& record = nodes_[top];
    std::uint8_t* const own = nodes_.digest(top);
    digest_block_with(*digester_, nodes_.digest_size, digest_of(record.parent),
                      extras_.bytes(record.extras), nodes_.tokens(top), nodes_.block_size, own);
    buckets_.insert(top, own);
    nodes_[top].digested = 1;
    if (top == n) return;
  }
}

void PrefixIndex::add_digests() const noexcept {
  if (!on_demand_) return;
  for (NodeId n = 0; n < nodes_.count; ++n)
    // A part of another group of layers has no parent.
    if (nodes_[n].key_tokens == nodes_.block_size && nodes_[n].parent != kNoNode && !has_digest(n))
      add_digest(n);
  on_demand_ = false;
}

void PrefixIndex::crowd_if_many(NodeId parent) noexcept {
  int count = 0;
  for (NodeId b = first_child(parent); b >= 0; b = nodes_[b].next_sibling)
    if (++count > kFewChildren) break;
  if (count <= kFewChildren) return;
  if (is_root(parent)) {
    roots_[root_index(parent)].is_crowded = true;
  } else {
    nodes_[parent].crowded = 1;
  }
  for (NodeId b = first_child(parent); b >= 0; b = nodes_[b].next_sibling)
    if (nodes_[b].key_tokens == nodes_.block_size && !has_digest(b)) add_digest(b);
}

// No calls here, and no more variables than registers: a block takes two nanoseconds along ids and
// four along hints. Each loop leads to the other.
template <int kTokens>
void PrefixIndex::follow(const Token* tokens, std::int64_t num_blocks, Chain& chain,
                         NodeId* out) const {
  const std::int64_t size = kTokens ? kTokens : nodes_.block_size;
  const Node* const records = nodes_.records.data();
  const Token* const stored = nodes_.token_data.data();
  NodeId node = chain.node;
  std::int64_t i = chain.num_blocks;
  const Token* wanted = tokens + i * size;
  const auto has_tokens = [&](NodeId n) {
    return same_tokens(stored + n * size, wanted, static_cast<int>(size));
  };
  while (i < num_blocks) {
    // Along ids, as far as one word of bits says that they go on.
    for (std::int64_t ones = 1; ones;) {
      ones = std::min<std::int64_t>(count_ahead(node), num_blocks - i);
      const NodeId end = node + static_cast<NodeId>(ones);
      for (; node < end && has_tokens(node + 1); wanted += size) out[i++] = ++node;
      if (node < end) break;
    }
    const Node* parent = records + node;
    const std::int64_t before = i;
    for (; i < num_blocks; wanted += size) {
      prefetch(records + parent->skip);
      prefetch(stored + parent->skip * size);
      prefetch(nodes_.places.data() + parent->skip);  // for callers want block ids
      const NodeId b = parent->hint;
      if (b < 0) break;
      // has_key(), its fields in one comparison.
      const Node* const child = records + b;
      const std::uint32_t differs = static_cast<std::uint32_t>(child->parent ^ node) |
                                    (child->parent_generation ^ parent->generation) |
                                    child->extras |
                                    (child->key_tokens ^ static_cast<std::uint32_t>(size));
      if (differs || !has_tokens(b)) break;
      out[i++] = node = b;
      parent = child;
      if (child->hint == b + 1) [[unlikely]] {
        wanted += size;
        break;
      }
    }
    if (i == before) break;
  }
  chain = {i, node, chain.strayed};
}

Chain PrefixIndex::find_chain(const Token* tokens, std::int64_t num_blocks, NodeId node,
                              const ExtrasIds* extras, NodeId* out) {
  Chain chain{0, node, false};
  while (chain.num_blocks < num_blocks) {
    const std::int64_t i = chain.num_blocks;
    const std::int64_t plain_end = std::min(num_blocks, next_extras(extras, i));
    const bool plain = chain.node >= 0 && i < plain_end;
    if (plain) {
      if (nodes_.block_size == 16) {
        follow<16>(tokens, plain_end, chain, out);
      } else {
        follow<0>(tokens, plain_end, chain, out);
      }
      if (chain.num_blocks > i) continue;
    }
    const Key key{chain.node, extras_at(extras, i), tokens + i * nodes_.block_size};
    NodeId b = plain ? kNoNode : find_hinted(key);
    if (b < 0) {
      if (first_child(chain.node) < 0 || key.extras == kUnknownId) break;
      b = find_on_demand(key);
      if (b < 0) break;
      chain.strayed = true;
    }
    chain.node = out[chain.num_blocks++] = b;
  }
  return chain;
}

inline NodeId& PrefixIndex::head_of(NodeId parent) noexcept {
  return is_root(parent) ? roots_[root_index(parent)].first_child : nodes_[parent].first_child;
}

// The head of the list of children that this keyed block is in.
inline NodeId& PrefixIndex::head_of(const Node& record) noexcept {
  if (is_root(record.parent) && record.parent_generation != generation(record.parent)) [[unlikely]]
    for (Retired& each : retired_)
      if (&nodes_[each.first] == &record) return each.first;
  return head_of(record.parent);
}

[[gnu::noinline]] void PrefixIndex::drop_empty_retired() noexcept {
  std::erase_if(retired_, [](const Retired& each) { return each.first < 0; });
}

void PrefixIndex::retire(std::uint32_t root) noexcept {
  Root& own = roots_[root];
  if (own.first_child >= 0) retired_.push_back({root, own.first_child, 0});
  own.first_child = own.hint = kNoNode;
  ++own.generation;
}

bool PrefixIndex::is_retired(NodeId b) const {
  if (retired_.empty()) return false;
  while (!is_root(nodes_[b].parent)) b = nodes_[b].parent;
  return nodes_[b].parent_generation != generation(nodes_[b].parent);
}

inline void PrefixIndex::put_first(NodeId b) noexcept {
  NodeId& head = head_of(nodes_[b].parent);
  nodes_[b].prev_sibling = kNoNode;
  nodes_[b].next_sibling = head;
  if (head >= 0) nodes_[head].prev_sibling = b;
  head = b;
}

[[gnu::always_inline]] inline void PrefixIndex::leave_siblings(const Node& record,
                                                               NodeId parent) noexcept {
  if (record.prev_sibling >= 0) {
    nodes_[record.prev_sibling].next_sibling = record.next_sibling;
  } else if (is_root(parent)) {
    head_of(record) = record.next_sibling;
    if (!retired_.empty()) [[unlikely]]
      drop_empty_retired();
  } else {
    nodes_[parent].first_child = record.next_sibling;
  }
  if (record.next_sibling >= 0) nodes_[record.next_sibling].prev_sibling = record.prev_sibling;
}

inline void PrefixIndex::link_child(NodeId b, const Key& key, int num_tokens) noexcept {
  Node& record = nodes_[b];
  record.parent = key.parent;
  record.parent_generation = generation(key.parent);
  record.extras = key.extras;
  record.key_tokens = static_cast<std::uint16_t>(num_tokens);
  extras_.retain(key.extras);
  if (is_root(key.parent)) retain_root(root_index(key.parent));

  put_first(b);
  ++num_keyed_;
}

void PrefixIndex::bring_forward(NodeId b) noexcept {
  leave_siblings(nodes_[b], nodes_[b].parent);
  put_first(b);
}

// On demand, of a block that was just linked.
inline void PrefixIndex::digest_if_due(NodeId b, NodeId parent) noexcept {
  if (is_crowded(parent)) {
    add_digest(b);
  } else if (nodes_[b].next_sibling >= 0) {
    crowd_if_many(parent);
  }
}

void PrefixIndex::insert(NodeId b, const Key& key, const std::uint8_t* digest) noexcept {
  link_child(b, key, nodes_.block_size);
  set_hint(key.parent, b);
  if (is_next(b, key.parent, key.extras)) flip_goes_on(key.parent);
  if (!digest) return digest_if_due(b, key.parent);
  copy_usual<16>(nodes_.digest(b), digest, static_cast<std::size_t>(nodes_.digest_size));
  if (log_) [[unlikely]]
    log_stored(b, key, digest);
  buckets_.insert(b, digest);
  nodes_[b].digested = 1;
}

void PrefixIndex::insert_tail(NodeId b, const Key& key, int num_tokens) noexcept {
  link_child(b, key, num_tokens);
  // What continues a tail are tails, which have no digests.
  const bool may_crowd = is_root(key.parent) || nodes_[key.parent].key_tokens == nodes_.block_size;
  if (on_demand_ && may_crowd && !is_crowded(key.parent)) digest_if_due(b, key.parent);
}

void PrefixIndex::erase(NodeId b) noexcept {
  Node& record = nodes_[b];
  if (record.key_tokens == nodes_.block_size) {
    if (record.digested) buckets_.erase(b, nodes_.digest(b));
    record.digested = record.crowded = 0;
    if (is_next(b, record.parent, record.extras)) flip_goes_on(record.parent);
    if (log_) [[unlikely]]
      log_removed(b);
  }
  const NodeId parent = record.parent;
  leave_siblings(record, parent);
  extras_.release(record.extras);
  record.extras = 0;
  record.key_tokens = 0;
  record.parent = kNoNode;
  record.hint = kNoNode;
  ++record.generation;
  --num_keyed_;
  if (is_root(parent)) release_root(root_index(parent));
}

void PrefixIndex::move(NodeId from, NodeId to) noexcept {
  Node& source = nodes_[from];
  Node& target = nodes_[to];
  if (has_digest(from)) {
    const std::uint8_t* digest = nodes_.digest(from);
    buckets_.erase(from, digest);
    std::memcpy(nodes_.digest(to), digest, static_cast<std::size_t>(nodes_.digest_size));
    buckets_.insert(to, digest);
  }
  target.digested = source.digested;
  target.crowded = source.crowded;
  source.digested = source.crowded = 0;

  const NodeId parent = source.parent;
  if (is_next(from, parent, source.extras)) flip_goes_on(parent);
  if (is_next(to, parent, source.extras)) flip_goes_on(parent);
  if (goes_on(from)) flip_goes_on(from);
  NodeId& head = head_of(source);
  target.parent = parent;
  target.parent_generation = source.parent_generation;
  target.extras = std::exchange(source.extras, 0u);
  target.key_tokens = std::exchange(source.key_tokens, std::uint16_t{0});
  target.hint = std::exchange(source.hint, kNoNode);
  target.skip = source.skip;
  target.prev_sibling = source.prev_sibling;
  target.next_sibling = source.next_sibling;
  (target.prev_sibling >= 0 ? nodes_[target.prev_sibling].next_sibling : head) = to;
  if (target.next_sibling >= 0) nodes_[target.next_sibling].prev_sibling = to;
  if (hint(parent) == from) set_hint(parent, to);

  target.first_child = std::exchange(source.first_child, kNoNode);
  for (NodeId b = target.first_child; b >= 0; b = nodes_[b].next_sibling) {
    nodes_[b].parent = to;
    nodes_[b].parent_generation = target.generation;
    if (nodes_[b].key_tokens == nodes_.block_size && is_next(b, to, nodes_[b].extras))
      flip_goes_on(to);
  }
  source.parent = kNoNode;
  ++source.generation;
  if (log_) [[unlikely]]
    log_->moved(from, to);
}

// A digest that stands for two blocks, which only a collision brings about, was stored with the
// first of them and is removed with the last.
void PrefixIndex::log_stored(NodeId b, const Key& key, const std::uint8_t* digest) noexcept {
  log_->set_root(b, is_root(key.parent) ? root_index(key.parent) : log_->root_of(key.parent));
  if (with_digest(digest) >= 0) return;
  log_block(b, EventLog::kOwnBlock);
}

void PrefixIndex::log_block(NodeId b, int group) noexcept {
  const Node& record = nodes_[b];
  const std::uint8_t* const parent =
      is_root(record.parent) ? nullptr : nodes_.digest(record.parent);
  const EventLog::Recorded recorded = log_->stored(
      b, group, record.parent, parent, nodes_.digest(b), nodes_.tokens(b), record.extras);
  if (recorded == EventLog::kLost) return;
  if (recorded == EventLog::kNewRun) retain_root(log_->root_of(b));
  extras_.retain(record.extras);
}

void PrefixIndex::log_removed(NodeId b) noexcept {
  if (with_digest(nodes_.digest(b)) < 0) log_->removed(EventLog::kOwnBlock, nodes_.digest(b));
}

void PrefixIndex::drop(EventLog& log) noexcept {
  for (const EventRun& run : log)
    if (run.kind == EventKind::kStored) release_root(run.root);
  for (std::int64_t i = 0; i < log.num_extras(); ++i) extras_.release(log.extras()[i].id);
  log.drop();
}

// The log is put aside, so that forgetting single blocks leaves no events.
PrefixIndex::Clearing::Clearing(PrefixIndex& index) noexcept
    : index_(index), log_(std::move(index.log_)) {
  if (!log_) return;
  if (log_->overtaken()) index.drop(*log_);
  log_->cleared();
}

PrefixIndex::Clearing::~Clearing() { index_.log_ = std::move(log_); }

bool PrefixIndex::drop_events(std::int64_t version) noexcept {
  if (!log_) return true;
  if (log_->version() != version) return false;
  drop(*log_);
  return true;
}

std::size_t PrefixIndex::memory() const {
  std::size_t total =
      buckets_.bytes() + continued_.bytes() + extras_.memory() + roots_by_name_.memory();
  total += retired_.capacity() * sizeof(Retired);
  if (log_) total += log_->bytes();
  total += roots_.capacity() * sizeof(Root);
  for (const Root& root : roots_) total += root.digest.capacity();
  return total;
}

}  // namespace blockmgr
