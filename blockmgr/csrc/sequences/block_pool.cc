#include "sequences/block_pool.h"

#include <algorithm>
#include <cstring>

#include "memory/errors.h"

namespace blockmgr {

// A namespace's root, kept for the length of a promotion: its first block keeps it from then on.
class BlockPool::RootReference {
 public:
  RootReference(PrefixIndex& index, std::string_view name)
      : index_(index), root_(index.acquire_root(name)) {}
  ~RootReference() { index_.release_root(root_); }
  RootReference(const RootReference&) = delete;
  RootReference& operator=(const RootReference&) = delete;
  NodeId node() const { return root_node(root_); }

 private:
  PrefixIndex& index_;
  std::uint32_t root_;
};

BlockPool::BlockPool(int num_blocks, int block_size, bool null_block,
                     std::unique_ptr<Digester> digester)
    : digester_(std::move(digester)),
      blocks_(num_blocks, block_size, digester_ ? digester_->size() : 0, Pool::num_lists(0, 0)),
      index_(blocks_, digester_.get()),
      pool_(blocks_, index_, null_block ? 1 : 0, 0, nullptr),
      copies_(blocks_, pool_),
      first_(null_block ? 1 : 0),
      marks_(static_cast<std::size_t>(num_blocks)) {}

BlockId BlockPool::checked(std::int64_t id, std::int64_t position) const {
  if (id >= first_ && id < blocks_.count) return static_cast<BlockId>(id);
  const std::string bound =
      "[" + std::to_string(first_) + ", " + std::to_string(blocks_.count) + ")";
  if (position < 0)
    throw Error(ErrorKind::kValue, "block must be in " + bound + ", got " + std::to_string(id));
  throw Error(ErrorKind::kValue, "blocks must be in " + bound + ", got " + std::to_string(id) +
                                     " at index " + std::to_string(position));
}

// A block that only a copy in flight or pending keeps holds nothing that anybody may refer to.
void BlockPool::check_known(const std::int64_t* ids, std::int64_t count, const char* call) const {
  for (std::int64_t i = 0; i < count; ++i) {
    const Block& block = blocks_[checked(ids[i], i)];
    if (!block.ref_count && !block.keyed())
      throw WrongBlockState(
          ids[i], std::string("cannot ") + call + " it: nobody holds it, and it is not cached");
  }
}

const Block& BlockPool::cached(std::int64_t id) const {
  const Block& block = view(id);
  if (!block.keyed()) throw WrongBlockState(id, "it is not cached");
  return block;
}

void BlockPool::check_take(std::int64_t count) const {
  if (count < 0)
    throw Error(ErrorKind::kValue, "n must be at least 0, got " + std::to_string(count));
  if (count > pool_.available()) throw OutOfBlocks(count, pool_.available(), 0);
}

void BlockPool::take(std::int64_t count, BlockId* out) {
  const Held held(monitor_);
  check_take(count);
  for (std::int64_t i = 0; i < count; ++i) out[i] = pool_.take();
}

void BlockPool::acquire(const std::int64_t* ids, std::int64_t count) {
  const Held held(monitor_);
  check_known(ids, count, "acquire");
  for (std::int64_t i = 0; i < count; ++i) pool_.acquire(static_cast<BlockId>(ids[i]));
}

void BlockPool::drop_reference(BlockId b) noexcept {
  if (blocks_[b].copy_source != kNoBlock && blocks_[b].ref_count == 1) copies_.drop(b);
  pool_.release(b);
}

void BlockPool::release(const std::int64_t* ids, std::int64_t count) {
  const Held held(monitor_);
  // A block may stand there as often as it is held, so the references are counted off and put
  // back before any of them is really dropped.
  struct Restore {
    Blocks& blocks;
    const std::int64_t* ids;
    std::int64_t counted = 0;
    ~Restore() {
      while (counted > 0) ++blocks[static_cast<BlockId>(ids[--counted])].ref_count;
    }
  };
  {
    Restore counted_off{blocks_, ids};
    for (std::int64_t i = 0; i < count; ++i) {
      Block& block = blocks_[checked(ids[i], i)];
      if (!block.ref_count)
        throw WrongBlockState(ids[i], "it is released more often than it is held");
      --block.ref_count;
      ++counted_off.counted;
    }
  }
  for (std::int64_t i = 0; i < count; ++i) drop_reference(static_cast<BlockId>(ids[i]));
}

void BlockPool::touch(const std::int64_t* ids, std::int64_t count) {
  const Held held(monitor_);
  check_known(ids, count, "touch");
  // All at once used and unused again: a block takes what it continues along, and goes before it.
  for (std::int64_t i = 0; i < count; ++i) pool_.pin(static_cast<BlockId>(ids[i]));
  for (std::int64_t i = 0; i < count; ++i) pool_.unpin(static_cast<BlockId>(ids[i]));
}

// The cached block that a chain continues, or the root of its namespace; kNoBlock: nothing was ever
// cached there.
NodeId BlockPool::parent_node(std::int64_t parent, std::string_view name) const {
  if (parent != kNoBlock) {
    if (parent < first_ || parent >= blocks_.count)
      throw Error(ErrorKind::kValue, "parent must be -1 or in [" + std::to_string(first_) + ", " +
                                         std::to_string(blocks_.count) + "), got " +
                                         std::to_string(parent));
    if (!name.empty())
      throw Error(ErrorKind::kValue,
                  "namespace must be empty for a block with a parent, which has one already");
    cached(parent);
    return static_cast<NodeId>(parent);
  }
  const std::uint32_t root = index_.find_root(name);
  return root == kUnknownId ? kNoBlock : root_node(root);
}

std::vector<BlockId> BlockPool::find(const ChainKey& key) {
  const Held held(monitor_);
  std::vector<BlockId> found;
  const NodeId node = parent_node(key.parent, key.name);
  const std::int64_t most = key.num_tokens / blocks_.block_size;
  if (!digester_ || node == kNoBlock || !most) return found;
  const ExtrasIds extras = known_extras(index_.extras(), key.extras);
  found.resize(static_cast<std::size_t>(std::min<std::int64_t>(most, index_.num_keyed())));
  const Chain chain = index_.find_chain(key.tokens, static_cast<std::int64_t>(found.size()), node,
                                        &extras, found.data());
  found.resize(static_cast<std::size_t>(chain.num_blocks));
  return found;
}

void BlockPool::check_distinct(std::int64_t count) const {
  if (count > blocks_.count)
    throw Error(ErrorKind::kValue, "blocks must be distinct, so at most " +
                                       std::to_string(blocks_.count) + ", got " +
                                       std::to_string(count));
}

void BlockPool::check_fill(std::int64_t count, std::int64_t num_tokens) const {
  const std::int64_t wanted = count * blocks_.block_size;
  if (num_tokens != wanted)
    throw Error(ErrorKind::kValue, "tokens must fill the blocks, " + std::to_string(wanted) +
                                       " of them, got " + std::to_string(num_tokens));
}

void BlockPool::check_promotion(const std::int64_t* ids, std::int64_t count, const ChainKey& key) {
  check_fill(count, key.num_tokens);
  if (!key.extras.empty() && key.extras.back().first >= count)
    throw Error(ErrorKind::kValue, "extras index must be in [0, " + std::to_string(count) +
                                       "), got " + std::to_string(key.extras.back().first));
  parent_node(key.parent, key.name);
  if (!++mark_) {
    for (std::size_t b = 0; b < marks_.size(); ++b) marks_[b] = 0;
    mark_ = 1;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const BlockId b = checked(ids[i], i);
    if (!blocks_[b].ref_count) throw WrongBlockState(b, "cannot promote it: nobody holds it");
    std::uint32_t& mark = marks_[static_cast<std::size_t>(b)];
    if (mark == mark_)
      throw Error(ErrorKind::kValue,
                  "blocks must be distinct, got " + std::to_string(b) + " twice");
    mark = mark_;
  }
}

// Finds the blocks that are cached already, into out, and computes the digests of the others.
// Returns how many are cached: they are the first ones, since a fresh block has no children.
std::int64_t BlockPool::plan_promotion(const std::int64_t* ids, std::int64_t count,
                                       const Token* tokens, NodeId node, const ExtrasIds& extras,
                                       BlockId* out) {
  const auto digest_size = static_cast<std::size_t>(blocks_.digest_size);
  digests_.resize(static_cast<std::size_t>(count) * digest_size);
  const std::uint8_t* before = index_.digest_of(node);
  std::uint8_t* digest = digests_.data();
  std::int64_t num_cached = 0;
  for (std::int64_t i = 0; i < count; ++i, before = digest, digest += digest_size) {
    const auto b = static_cast<BlockId>(ids[i]);
    const Block& block = blocks_[b];
    const Key key{node, extras_at(&extras, i), tokens + i * blocks_.block_size};
    const bool may_be_cached = num_cached == i && index_.first_child(node) >= 0;
    BlockId known = may_be_cached ? index_.find_hinted(key) : kNoBlock;
    if (known >= 0) {
      std::memcpy(digest, blocks_.digest(known), digest_size);
    } else {
      index_.digest(before, key.extras, key.tokens, digest);
      if (may_be_cached) known = index_.find(key, digest);
    }
    if (block.keyed() && known != b)
      throw WrongBlockState(b, "cannot promote it: it is cached already, with another content");
    if (known >= 0) {
      out[i] = node = known;
      ++num_cached;
    } else if (block.copy_source != kNoBlock || block.in_flight) {
      throw WrongBlockState(b, "cannot promote it: it waits for a copy");
    }
  }
  return num_cached;
}

void BlockPool::promote(const std::int64_t* ids, std::int64_t count, const ChainKey& key,
                        BlockId* out, const Announce& announce) {
  const Held held(monitor_);
  check_promotion(ids, count, key);
  if (!digester_) {
    if (announce) announce(static_cast<BlockId>(ids[0]));
    for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<BlockId>(ids[i]);
    return;
  }
  // A copy: a digest function may change the caller's array, and what was compared must be what is
  // cached.
  tokens_.assign(key.tokens, key.tokens + key.num_tokens);
  const RootReference root(index_, key.name);
  ExtrasMap extras(index_.extras(), key.extras.size());
  for (const auto& [block, bytes] : key.extras) extras.add(block, bytes);
  NodeId node = key.parent == kNoBlock ? root.node() : static_cast<NodeId>(key.parent);
  const std::int64_t num_cached =
      plan_promotion(ids, count, tokens_.data(), node, extras.ids(), out);
  if (announce) announce(num_cached ? out[0] : static_cast<BlockId>(ids[0]));

  for (std::int64_t i = 0; i < num_cached; ++i) {
    const BlockId twin = out[i];
    index_.set_hint(node, twin);
    if (twin != ids[i]) {
      pool_.acquire(twin);
      drop_reference(static_cast<BlockId>(ids[i]));
    }
    node = twin;
  }
  const auto digest_size = static_cast<std::size_t>(blocks_.digest_size);
  const std::size_t block_size = static_cast<std::size_t>(blocks_.block_size);
  for (std::int64_t i = num_cached; i < count; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const std::uint8_t* digest = digests_.data() + at * digest_size;
    if (i + kInsertAhead < count)
      index_.prefetch_bucket(digest + static_cast<std::size_t>(kInsertAhead) * digest_size);
    const auto b = static_cast<BlockId>(ids[i]);
    std::copy_n(tokens_.data() + at * block_size, block_size, blocks_.tokens(b));
    pool_.promote(b, {node, extras_at(&extras.ids(), i), blocks_.tokens(b)}, digest);
    if (i >= kSkip) blocks_[out[i - kSkip]].skip = b;
    out[i] = node = b;
  }
}

BlockId BlockPool::make_writable(std::int64_t id, std::int64_t num_tokens,
                                 const Announce& announce) {
  const Held held(monitor_);
  const BlockId shared = checked(id, -1);
  const Block& block = blocks_[shared];
  if (!block.ref_count) throw WrongBlockState(id, "cannot make it writable: nobody holds it");
  if (num_tokens < 0 || num_tokens > blocks_.block_size)
    throw Error(ErrorKind::kValue, "num_tokens must be in [0, " +
                                       std::to_string(blocks_.block_size) + "], got " +
                                       std::to_string(num_tokens));
  const bool in_place = block.ref_count == 1 && !block.keyed();
  if (!in_place) check_take(1);
  if (announce) announce(in_place ? shared : pool_.next());
  if (in_place) return shared;
  const BlockId fresh = pool_.take();
  const auto wanted = copies_.reach(shared, static_cast<std::int32_t>(num_tokens));
  if (wanted > 0) copies_.plan(shared, fresh, wanted);
  drop_reference(shared);
  return fresh;
}

void BlockPool::check_evict(std::int64_t count) const {
  if (count < 0)
    throw Error(ErrorKind::kValue, "n must be at least 0, got " + std::to_string(count));
  if (count > pool_.num_idle()) throw OutOfBlocks(count, pool_.num_idle(), 0);
}

void BlockPool::evict(std::int64_t count, BlockId* out) {
  const Held held(monitor_);
  check_evict(count);
  for (std::int64_t i = 0; i < count; ++i) out[i] = pool_.take_idle();
}

void BlockPool::forget(std::int64_t count, BlockId* out) {
  const Held held(monitor_);
  check_evict(count);
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = pool_.victim();  // has no cached child
    pool_.forget(out[i]);
  }
}

void BlockPool::reset() {
  const Held held(monitor_);
  if (pool_.num_used()) {
    BlockId b = first_;
    while (!blocks_[b].used()) ++b;
    throw WrongBlockState(b, "cannot reset: it is in use");
  }
  while (pool_.num_idle()) pool_.forget(pool_.victim());
}

std::int64_t BlockPool::take_copies(std::vector<Copy>& copies) {
  const Held held(monitor_);
  check_resolved(copies_.in_flight(), last_ticket_);
  copies_.reserve();
  copies.reserve(static_cast<std::size_t>(copies_.num_pending()));
  copies = copies_.take();
  return ++last_ticket_;
}

void BlockPool::copies_applied(std::int64_t ticket) {
  const Held held(monitor_);
  check_ticket(copies_.in_flight(), ticket, last_ticket_);
  copies_.applied();
}

void BlockPool::copies_aborted(std::int64_t ticket) {
  const Held held(monitor_);
  check_ticket(copies_.in_flight(), ticket, last_ticket_);
  copies_.aborted();
}

void BlockPool::return_copies(std::int64_t ticket) noexcept {
  const Held held(monitor_, Held::Afterwards());
  // Unless another thread has guessed the number, and resolved it.
  if (!held || !copies_.in_flight() || ticket != last_ticket_) return;
  copies_.aborted();
  --last_ticket_;
}

std::vector<BlockId> BlockPool::children(std::int64_t parent, std::string_view name) const {
  std::vector<BlockId> result;
  const NodeId node = parent_node(parent, name);
  if (node == kNoBlock) return result;
  for (BlockId b = index_.first_child(node); b >= 0; b = blocks_[b].next_sibling)
    result.push_back(b);
  return result;
}

std::size_t BlockPool::memory() const {
  return blocks_.bytes() + index_.memory() + copies_.memory() + marks_.bytes() +
         digests_.capacity() + tokens_.capacity() * sizeof(Token);
}

}  // namespace blockmgr
