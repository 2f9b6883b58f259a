#include "sequences/block_pool.h"

#include <algorithm>
#include <cstring>

#include "memory/errors.h"
#include "memory/tally.h"
#include "sequences/arguments.h"

namespace blockmgr {

namespace {

StoreConfig with_evictions(StoreConfig config) {
  config.evicts_on_demand = true;
  return config;
}

}  // namespace

BlockPool::BlockPool(const StoreConfig& config, std::unique_ptr<Digester> digester,
                     const PolicyMaker& make)
    : Store(with_evictions(config), std::move(digester), "pool", make),
      marks_(nth(config.num_blocks)) {
  pool_.keep_generations();
  run_room_.reserve(nth(config.num_blocks));
}

// A block that only a copy in flight or pending keeps holds nothing that a caller may refer to.
void BlockPool::check_known(const std::int64_t* ids, std::int64_t count, const char* call) const {
  for (std::int64_t i = 0; i < count; ++i) {
    if (!uses(ids[i], i).ref_count && !listed(ids[i], i).keyed())
      throw WrongBlockState(
          ids[i], std::string("cannot ") + call + " it: it is not held, and it is not cached");
  }
}

const Node& BlockPool::cached(std::int64_t id) const {
  const Node& record = view(id);
  if (!record.keyed()) throw WrongBlockState(id, "it is not cached");
  return record;
}

void BlockPool::check_take(std::int64_t count, std::string_view name) const {
  check_at_least("n", count, 0);
  check_available(count, partition_of(name));
}

void BlockPool::take(std::int64_t count, std::string_view name, std::int32_t* out) {
  const Held held(monitor_);
  check_take(count, name);
  pool_.take_run(partition_of(name), kNoNode, count, out);
  name_blocks(out, count);
}

void BlockPool::take_blocks(const std::int64_t* ids, std::int64_t count) {
  const Held held(monitor_);
  begin_list();
  for (std::int64_t i = 0; i < count; ++i) {
    const NodeId owner = checked_block(ids[i], i);
    if (owner >= 0)
      throw WrongBlockState(ids[i], nodes_[owner].keyed() ? "cannot take it: it is cached"
                                                          : "cannot take it: it is in use");
    check_first_named(ids[i]);
  }
  pool_.take_given(ids, count, marks_, mark_);
}

void BlockPool::check_first_named(std::int64_t block) {
  if (named_before(block))
    throw Error(ErrorKind::kValue,
                "blocks must be distinct, got " + std::to_string(block) + " twice");
}

void BlockPool::begin_list() noexcept {
  if (++mark_) return;
  for (std::size_t b = 0; b < marks_.size(); ++b) marks_[b] = 0;
  mark_ = 1;
}

// Throws unless each block is held as often as it stands there, which nearly always is once.
void BlockPool::check_held(const std::int64_t* ids, std::int64_t count) {
  begin_list();
  for (std::int64_t i = 0; i < count; ++i) {
    if (!uses(ids[i], i).ref_count)
      throw WrongBlockState(ids[i], "it is released more often than it is held");
    if (named_before(ids[i])) [[unlikely]]
      return check_counted(ids, count);
  }
}

void BlockPool::check_counted(const std::int64_t* ids, std::int64_t count) const {
  Tally named;
  named.begin(std::min<std::int64_t>(count, nodes_.count));
  for (std::int64_t i = 0; i < count; ++i) {
    const NodeId n = checked_block(ids[i], i);
    if (n < 0 || named.add(n) > nodes_.uses(n).ref_count)
      throw WrongBlockState(ids[i], "it is released more often than it is held");
  }
}

std::int64_t BlockPool::run_from(const std::int64_t* ids, std::int64_t count,
                                 std::int64_t first) noexcept {
  run_room_.clear();
  for (std::int64_t i = first; i < count; ++i) {
    const NodeId n = nodes_.owner(ids[i]);
    if (!nodes_[n].keyed() || (i > first && nodes_[n].parent != run_room_.back())) break;
    run_room_.push_back(n);
  }
  return static_cast<std::int64_t>(run_room_.size());
}

// What is before the run may be idle too: then the first of it takes that along.
void BlockPool::acquire_run(Run run) noexcept {
  const NodeId before = nodes_[run.nodes[0]].parent;
  if (before >= 0 && !nodes_.used(before)) {
    pool_.acquire(run.nodes[0]);
    run = {run.nodes + 1, run.count - 1};
  }
  if (run.count) pool_.acquire_chain(run.nodes, run.count);
}

void BlockPool::acquire(const std::int64_t* ids, std::int64_t count, bool found) {
  const Held held(monitor_);
  check_known(ids, count, "acquire");
  for (std::int64_t i = 0; i < count;) {
    const std::int64_t length = run_from(ids, count, i);
    if (!length) {
      pool_.acquire(nodes_.owner(ids[i++]));
      continue;
    }
    const Run run{run_room_.data(), length};
    if (found) pool_.admitted(pool_.partition_of(run.nodes[0]), run);
    acquire_run(run);
    i += length;
  }
}

void BlockPool::release(const std::int64_t* ids, std::int64_t count) {
  const Held held(monitor_);
  check_held(ids, count);
  for (std::int64_t i = 0; i < count; ++i) drop_reference(nodes_.owner(ids[i]));
}

void BlockPool::touch(const std::int64_t* ids, std::int64_t count) {
  const Held held(monitor_);
  check_known(ids, count, "touch");
  // All at once used and unused again: a block takes along the blocks that it continues, and goes
  // before them.
  for (std::int64_t i = 0; i < count; ++i) pool_.pin(nodes_.owner(ids[i]));
  for (std::int64_t i = 0; i < count; ++i) pool_.unpin(nodes_.owner(ids[i]));
}

// The cached block that a chain continues, or the root of its namespace; kNoNode: nothing was ever
// cached there.
NodeId BlockPool::parent_node(std::int64_t parent, std::string_view name) const {
  if (parent != kNoNode) {
    if (parent < pool_.num_reserved() || parent >= nodes_.num_blocks)
      throw Error(ErrorKind::kValue,
                  "parent must be -1 or in [" + std::to_string(pool_.num_reserved()) + ", " +
                      std::to_string(nodes_.num_blocks) + "), got " + std::to_string(parent));
    if (!name.empty())
      throw Error(ErrorKind::kValue,
                  "namespace must be empty for a block with a parent, which has one already");
    cached(parent);
    return nodes_.owner(parent);
  }
  const std::uint32_t root = index_.find_root(name);
  return root == kUnknownId ? kNoNode : root_node(root);
}

std::vector<std::int32_t> BlockPool::find(const ChainKey& key) {
  const Held held(monitor_);
  std::vector<std::int32_t> found;
  const NodeId node = parent_node(key.parent, key.name);
  if (node == kNoNode) return found;
  const Chain chain = find_chain(key, node, known_extras(index_.extras(), key.extras), found);
  name_blocks(found.data(), chain.num_blocks);
  return found;
}

// The cached blocks of a chain behind this node.
inline Chain BlockPool::find_chain(const ChainKey& key, NodeId node, const ExtrasIds& extras,
                                   std::vector<NodeId>& found) {
  if (!digester_) return {};
  found.resize(nth(std::min<std::int64_t>(key.num_tokens / nodes_.block_size, index_.num_keyed())));
  const Chain chain = index_.find_chain(key.tokens, static_cast<std::int64_t>(found.size()), node,
                                        &extras, found.data());
  found.resize(nth(chain.num_blocks));
  return chain;
}

bool BlockPool::acquire_prefix(const ChainKey& key, std::int64_t num_asked, std::int64_t count,
                               std::int32_t* out) {
  const Held held(monitor_);
  const RootReference root(index_, key.name);
  const ExtrasMap extras(index_.extras(), key.extras);
  const std::int64_t most = key.num_tokens / nodes_.block_size;
  const int partition = partition_of(key.name);
  ReuseTracker* past = pool_.past(partition);
  std::vector<NodeId> found;
  const Chain chain = find_chain(key, root.node(), extras.ids(), found);
  std::int64_t num_ghosts = 0;
  if (past && most) {
    ghosts_room_.resize(nth(most));
    num_ghosts = find_ghosts(*past, key.tokens, chain.num_blocks, most, chain.node, &extras.ids(),
                             ghosts_room_.data());
  }
  if (static_cast<std::int64_t>(found.size()) != count) return false;

  std::copy(found.begin(), found.end(), out);
  name_blocks(out, count);
  const Run run{found.data(), static_cast<std::int64_t>(found.size())};
  if (past) past->count(run.nodes, run.count, ghosts_room_.data(), num_ghosts, num_asked);
  for (std::int64_t i = 0; i < num_ghosts; ++i) past->resolve(ghosts_room_[nth(i)]);
  pool_.admitted(partition, run);
  if (run.count) acquire_run(run);
  return true;
}

void BlockPool::check_distinct(std::int64_t count) const {
  if (count > nodes_.num_blocks)
    throw Error(ErrorKind::kValue, "blocks must be distinct, so at most " +
                                       std::to_string(nodes_.num_blocks) + ", got " +
                                       std::to_string(count));
}

void BlockPool::check_fill(std::int64_t count, std::int64_t num_tokens) const {
  const std::int64_t wanted = count * nodes_.block_size;
  if (num_tokens != wanted)
    throw Error(ErrorKind::kValue, "tokens must fill the blocks, " + std::to_string(wanted) +
                                       " of them, got " + std::to_string(num_tokens));
}

void BlockPool::check_end_fill(std::int64_t num_tokens) const {
  if (num_tokens < 1 || num_tokens >= nodes_.block_size)
    throw Error(ErrorKind::kValue, "tokens must be fewer than fill a block, in [1, " +
                                       std::to_string(nodes_.block_size) + "), got " +
                                       std::to_string(num_tokens));
}

void BlockPool::check_promotion(const std::int64_t* ids, std::int64_t count, const ChainKey& key) {
  if (!key.extras.empty() && key.extras.back().first >= count)
    throw Error(ErrorKind::kValue, "extras index must be in [0, " + std::to_string(count) +
                                       "), got " + std::to_string(key.extras.back().first));
  parent_node(key.parent, key.name);
  const int partition = partition_of_chain(key);
  begin_list();
  for (std::int64_t i = 0; i < count; ++i) {
    if (!uses(ids[i], i).ref_count)
      throw WrongBlockState(ids[i], "cannot promote it: it is not held");
    check_first_named(ids[i]);
    if (pool_.partition_of(nodes_.owner(ids[i])) != partition)
      throw Error(ErrorKind::kValue,
                  "blocks must be of the share that the namespace has, or the parent; got " +
                      std::to_string(ids[i]) + " of another at index " + std::to_string(i));
  }
}

// Finds the blocks that are cached already, into out, and computes the digests of the others.
// Returns how many are cached: they are the first ones, since a fresh block has no children.
std::int64_t BlockPool::plan_promotion(const std::int64_t* ids, std::int64_t count,
                                       const Token* tokens, NodeId node, const ExtrasIds& extras,
                                       std::uint8_t* digest, NodeId* out) {
  const auto digest_size = nth(nodes_.digest_size);
  const std::uint8_t* before = index_.digest_of(node);
  std::int64_t num_cached = 0;
  for (std::int64_t i = 0; i < count; ++i, before = digest, digest += digest_size) {
    const NodeId b = nodes_.owner(ids[i]);
    const Node& record = nodes_[b];
    const Key key{node, extras_at(&extras, i), tokens + i * nodes_.block_size};
    const NodeId known = index_.find_or_digest(key, before, digest);
    if (record.keyed() && known != b)
      throw WrongBlockState(ids[i],
                            "cannot promote it: it is cached already, with another content");
    if (known >= 0) {
      node = known;
      out[num_cached++] = known;
    } else if (record.copy_source != kNoNode || record.in_flight) {
      throw WrongBlockState(ids[i], "cannot promote it: it waits for a copy");
    } else {
      node = kNoNode;
    }
  }
  return num_cached;
}

void BlockPool::promote(const std::int64_t* ids, std::int64_t count, const ChainKey& key,
                        std::int32_t* out, const Announce& announce) {
  const Held held(monitor_);
  check_fill(count, key.num_tokens);
  check_promotion(ids, count, key);
  if (key.parent >= 0 && cached(key.parent).key_tokens < nodes_.block_size)
    throw WrongBlockState(key.parent, "cannot continue it: it is an end");
  if (!count) return;
  if (!digester_) {
    if (announce) announce(static_cast<std::int32_t>(ids[0]));
    for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<std::int32_t>(ids[i]);
    return;
  }
  // A copy: a digest function may change the caller's array, and what was compared must be what is
  // cached.
  tokens_room_.assign(key.tokens, key.tokens + key.num_tokens);
  const Token* const tokens = tokens_room_.data();
  const auto digest_size = nth(nodes_.digest_size);
  digests_room_.resize(nth(count) * digest_size);
  const RootReference root(index_, key.name);
  const ExtrasMap extras(index_.extras(), key.extras);
  NodeId node = key.parent == kNoNode ? root.node() : nodes_.owner(key.parent);
  const std::int64_t num_cached =
      plan_promotion(ids, count, tokens, node, extras.ids(), digests_room_.data(), out);
  if (announce) announce(num_cached ? nodes_.name(out[0]) : static_cast<std::int32_t>(ids[0]));

  RetainingPolicy* retention = pool_.partition(partition_of_chain(key)).retention;
  for (std::int64_t i = 0; i < num_cached; ++i) {
    const NodeId twin = out[i];
    index_.set_hint(node, twin);
    if (const NodeId own = nodes_.owner(ids[i]); twin != own) {
      if (retention) retention->inherit(own, twin);
      pool_.acquire(twin);
      drop_reference(own);
    }
    node = twin;
  }
  const std::uint8_t* digest = digests_room_.data() + nth(num_cached) * digest_size;
  for (std::int64_t i = num_cached; i < count; ++i, digest += digest_size) {
    if (i + kInsertAhead < count) index_.prefetch_bucket(digest + nth(kInsertAhead) * digest_size);
    const NodeId b = nodes_.owner(ids[i]);
    std::copy_n(tokens + i * nodes_.block_size, nodes_.block_size, nodes_.tokens(b));
    make_findable(b, {node, extras_at(&extras.ids(), i), nodes_.tokens(b)}, digest, out, i);
    out[i] = node = b;
  }
  pool_.tell_cached({out + num_cached, count - num_cached});
  name_blocks(out, count);
}

void BlockPool::promote_end(std::int64_t id, const ChainKey& key) {
  const Held held(monitor_);
  check_end_fill(key.num_tokens);
  check_promotion(&id, 1, key);
  const NodeId b = nodes_.owner(id);
  if (nodes_[b].keyed()) throw WrongBlockState(id, "cannot promote it: it is cached already");
  if (nodes_[b].copy_source != kNoNode || nodes_[b].in_flight)
    throw WrongBlockState(id, "cannot promote it: it waits for a copy");
  if (key.parent >= 0 && cached(key.parent).key_tokens < key.num_tokens)
    throw WrongBlockState(key.parent, "cannot continue it: it is a shorter end");
  if (!digester_) return;
  const RootReference root(index_, key.name);
  const ExtrasMap extras(index_.extras(), key.extras);
  const NodeId parent = key.parent == kNoNode ? root.node() : nodes_.owner(key.parent);
  std::copy_n(key.tokens, key.num_tokens, nodes_.tokens(b));
  if (parent >= 0) pool_.pin(parent);  // which was idle, perhaps
  pool_.promote_tail(b, {parent, extras_at(&extras.ids(), 0), nodes_.tokens(b)},
                     static_cast<int>(key.num_tokens));
  if (parent >= 0) pool_.unpin(parent);
  pool_.tell_cached({&b, 1});
}

std::int32_t BlockPool::make_writable(std::int64_t id, std::int64_t num_tokens,
                                      const Announce& announce) {
  const Held held(monitor_);
  if (!uses(id).ref_count) throw WrongBlockState(id, "cannot make it writable: it is not held");
  check_bounds("num_tokens", num_tokens, 0, nodes_.block_size);
  const NodeId shared = nodes_.owner(id);
  const bool in_place = !is_shared(shared);
  const int partition = pool_.partition_of(shared);
  if (!in_place) check_available(1, partition);
  const BlockId chosen = in_place ? nodes_.block(shared) : pool_.next(partition);
  if (announce) announce(number(chosen));
  if (in_place) return number(chosen);
  const NodeId fresh = pool_.take_next(partition, chosen, std::max(nodes_[shared].parent, kNoNode));
  copy_to_fresh(shared, fresh, 0, num_tokens);
  drop_reference(shared);
  return nodes_.name(fresh);
}

void BlockPool::check_evict(std::int64_t count, std::string_view name) const {
  check_at_least("n", count, 0);
  const int idle = quota(name).idle.size();
  if (count > idle) throw OutOfBlocks(count, idle, 0);
}

void BlockPool::evict(std::int64_t count, std::string_view name, std::int32_t* out) {
  const Held held(monitor_);
  check_evict(count, name);
  const int partition = partition_of(name);
  for (std::int64_t i = 0; i < count; ++i) out[i] = nodes_.name(pool_.take_idle(partition));
}

void BlockPool::forget(std::int64_t count, std::string_view name, std::int32_t* out) {
  const Held held(monitor_);
  check_evict(count, name);
  const int partition = partition_of(name);
  for (std::int64_t i = 0; i < count; ++i) {
    const NodeId victim = pool_.victim(partition);  // has no cached child
    out[i] = nodes_.name(victim);
    pool_.forget(victim);
  }
}

std::int64_t BlockPool::forget_blocks(const std::int64_t* ids, std::int64_t count) {
  const Held held(monitor_);
  for (std::int64_t i = 0; i < count; ++i)
    if (!listed(ids[i], i).keyed())
      throw WrongBlockState(ids[i], "cannot forget it: it is not cached");
  const int before = index_.num_keyed();
  for (std::int64_t i = 0; i < count; ++i) {
    const NodeId n = nodes_.owner(ids[i]);  // none: it was forgotten with another
    if (n >= 0 && nodes_[n].keyed()) pool_.forget_tree(n, [](NodeId) {});
  }
  return before - index_.num_keyed();
}

void BlockPool::reset() {
  const Held held(monitor_);
  if (pool_.num_used()) {
    std::int64_t b = pool_.num_reserved();
    while (uses(b) == Uses()) ++b;
    throw WrongBlockState(b, "cannot reset: it is in use");
  }
  const PrefixIndex::Clearing clearing(index_);
  for (int i = 0; i < pool_.num_partitions(); ++i) {
    const IdleSegments& idle = pool_.idle_list(i);
    while (!idle.empty()) pool_.forget(idle.front());  // has no cached child
    if (ReuseTracker* past = pool_.past(i)) past->forget_ghosts();
  }
}

std::vector<std::int32_t> BlockPool::children(std::int64_t parent, std::string_view name) const {
  std::vector<std::int32_t> result;
  const NodeId node = parent_node(parent, name);
  if (node == kNoNode) return result;
  for (NodeId b = index_.first_child(node); b >= 0; b = nodes_[b].next_sibling)
    result.push_back(nodes_.name(b));
  return result;
}

void BlockPool::retain(const std::int64_t* ids, std::int64_t count, int level, double ttl) {
  const Held held(monitor_);
  check_retaining("retain");
  check_known(ids, count, "retain");
  // The last first, for a block's level reaches those before it.
  for (std::int64_t i = count; i-- > 0;) {
    const NodeId b = nodes_.owner(ids[i]);
    retaining("retain", pool_.partition_of(b)).retain(b, level, time_ + ttl);
  }
}

std::int64_t BlockPool::pin(std::int64_t id, const std::function<void(std::int64_t)>& announce) {
  const Held held(monitor_);
  check_retaining("pin");
  cached(id);
  const NodeId tail = nodes_.owner(id);
  std::int64_t num_blocks = 0;
  for (NodeId b = tail; b >= 0; b = nodes_[b].parent) ++num_blocks;
  return pin_chain(retaining("pin", pool_.partition_of(tail)), tail, num_blocks, announce);
}

std::size_t BlockPool::memory() const {
  return store_memory() + digests_room_.capacity() + tokens_room_.capacity() * sizeof(Token) +
         marks_.bytes() + run_room_.capacity() * sizeof(NodeId) +
         ghosts_room_.capacity() * sizeof(std::int32_t);
}

}  // namespace blockmgr
