// The prefix index: which cached block continues which prefix with which tokens.
//
// A key is (parent node and its generation, extras, tokens). The digest chain only finds a
// candidate; a block is found when its whole key agrees, so no collision can hand out K/V of
// another prefix, whatever digest is used.
//
// Full blocks stand in a table by digest. Every keyed block, full or tail, also stands in its
// parent's list of children, most recently linked first.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "events/log.h"
#include "identity/digest.h"
#include "identity/interning.h"
#include "memory/block.h"
#include "memory/buckets.h"

namespace blockmgr {

// How far a block's skip link reaches: far enough to hide a cache miss behind the comparisons in
// between, near enough to stay inside most prefixes.
inline constexpr std::int64_t kSkip = 12;
// Index buckets prefetched ahead of insertion.
inline constexpr std::int64_t kInsertAhead = 8;
// Longest digest there is, in bytes.
inline constexpr int kMaxDigest = 64;

struct Key {
  NodeId parent;
  std::uint32_t extras;
  const Token* tokens;
};

// A run of cached full blocks, each the parent of the next.
struct Chain {
  std::int64_t num_blocks = 0;
  std::int64_t num_unused = 0;  // of those, blocks that count as available
  NodeId node = 0;              // the last of them, or where the search began
  bool strayed = false;         // hints led elsewhere at some of them
};

class PrefixIndex {
 public:
  PrefixIndex(Blocks& blocks, Digester* digester);

  // The namespace's root with one reference added. Hashes and may allocate: throws or finishes.
  std::uint32_t acquire_root(std::string_view name);
  void retain_root(std::uint32_t root) noexcept;
  void release_root(std::uint32_t root) noexcept;
  std::uint32_t find_root(std::string_view name) const { return roots_by_name_.find(name); }

  // The digest that stands for a namespace before its first block. May throw what the digest
  // function throws.
  void digest_root(std::string_view name, std::uint8_t* out) { digester_->digest_root(name, out); }
  // The digest of a block with this key, given its parent's digest; likewise.
  void digest(const std::uint8_t* parent, std::string_view extras, const Token* tokens,
              std::uint8_t* out);
  void digest(const std::uint8_t* parent, std::uint32_t extras, const Token* tokens,
              std::uint8_t* out) {
    digest(parent, extras_.bytes(extras), tokens, out);
  }
  const std::uint8_t* digest_of(NodeId node) const {
    return is_root(node) ? roots_[root_index(node)].digest.data() : blocks_.digest(node);
  }

  // The child last registered or matched under the parent, if it has this key.
  BlockId find_hinted(const Key& key) const {
    BlockId b = hint(key.parent);
    return b >= 0 && has_key(b, key) ? b : kNoBlock;
  }
  // The full block with this key and digest, or kNoBlock.
  BlockId find(const Key& key, const std::uint8_t* digest) const;
  // Likewise by its hint first, without a look at the table where nothing continues the parent.
  BlockId find_continuing(const Key& key, const std::uint8_t* digest) const {
    if (first_child(key.parent) < 0) return kNoBlock;
    const BlockId hinted = find_hinted(key);
    return hinted >= 0 ? hinted : find(key, digest);
  }
  // The digest of this key, and the full block that has it or kNoBlock. A hinted block lends its
  // digest; all others are hashed, given the parent's. parent kNoBlock: it is not cached.
  BlockId find_or_digest(const Key& key, const std::uint8_t* parent, std::uint8_t* out) {
    const bool continued = key.parent != kNoBlock && first_child(key.parent) >= 0;
    const BlockId hinted = continued ? find_hinted(key) : kNoBlock;
    if (hinted >= 0) {
      std::memcpy(out, blocks_.digest(hinted), static_cast<std::size_t>(blocks_.digest_size));
      return hinted;
    }
    digest(parent, key.extras, key.tokens, out);
    return continued ? find(key, out) : kNoBlock;
  }
  // The longest chain from this node on that holds these tokens, num_blocks blocks at most, into
  // out. Follows hints and compares tokens; hashes once where a hint is wrong. Changes nothing.
  // May throw what the digest function throws.
  Chain find_chain(const Token* tokens, std::int64_t num_blocks, NodeId node,
                   const ExtrasIds* extras, BlockId* out);
  void prefetch_bucket(const std::uint8_t* digest) const { buckets_.prefetch(digest); }

  // Makes a full block findable. Never allocates.
  void insert(BlockId b, const Key& key, const std::uint8_t* digest) noexcept;
  // Makes a partial tail findable as a child: by its leading tokens only, never by digest.
  void insert_tail(BlockId b, const Key& key, int num_tokens) noexcept;
  // Takes the key away. The block must have no children.
  void erase(BlockId b) noexcept;
  // The key of a full block, its children and its place among its siblings pass to a block with
  // the same tokens that has no key.
  void move(BlockId from, BlockId to) noexcept;

  BlockId hint(NodeId node) const {
    return is_root(node) ? roots_[root_index(node)].hint : blocks_[node].hint;
  }
  void set_hint(NodeId node, BlockId child) {
    (is_root(node) ? roots_[root_index(node)].hint : blocks_[node].hint) = child;
  }
  BlockId first_child(NodeId node) const {
    return is_root(node) ? roots_[root_index(node)].first_child : blocks_[node].first_child;
  }
  std::uint32_t generation(NodeId node) const {
    return is_root(node) ? roots_[root_index(node)].generation : blocks_[node].generation;
  }
  bool has_key(BlockId b, const Key& key) const {
    const Block& block = blocks_[b];
    return block.parent == key.parent && block.key_tokens == blocks_.block_size &&
           block.parent_generation == generation(key.parent) && block.extras == key.extras &&
           same_tokens(blocks_.tokens(b), key.tokens, blocks_.block_size);
  }

  // Has all that becomes findable by its digest, or stops being so, written to a log. Before
  // anything is cached.
  void follow(std::unique_ptr<EventLog> log) { log_ = std::move(log); }
  EventLog* log() { return log_.get(); }
  const EventLog* log() const { return log_.get(); }
  // Forgets what stands in the log, if that is still the same.
  bool drop_events(std::int64_t version) noexcept;
  // While it lives, all that is cached is forgotten, which is one event.
  class Clearing {
   public:
    explicit Clearing(PrefixIndex& index) noexcept;
    ~Clearing();
    Clearing(const Clearing&) = delete;
    Clearing& operator=(const Clearing&) = delete;

   private:
    PrefixIndex& index_;
    std::unique_ptr<EventLog> log_;
  };
  // Of the full blocks with one digest, whether this is the one in the events. Others exist only
  // by collisions.
  bool stands_for_digest(BlockId b) const { return with_digest(blocks_.digest(b)) == b; }
  std::string_view root_name(std::uint32_t root) const { return roots_by_name_.bytes(root); }

  Interner& extras() { return extras_; }
  const Interner& extras() const { return extras_; }
  int num_keyed() const { return num_keyed_; }
  std::size_t memory() const;

  // For check_invariants.
  const Buckets& buckets() const { return buckets_; }
  std::uint32_t root_refs(std::uint32_t root) const { return roots_by_name_.refs(root); }
  std::size_t num_roots() const { return roots_.size(); }

 private:
  struct Root {
    BlockId hint = kNoBlock;
    BlockId first_child = kNoBlock;
    std::uint32_t generation = 0;
    std::vector<std::uint8_t> digest;
  };

  void link_child(BlockId b, const Key& key, int num_tokens) noexcept;
  // A full block with this digest, of any key, or kNoBlock.
  BlockId with_digest(const std::uint8_t* digest) const;
  // Apart from their callers, which pay for them only where a log is kept.
  [[gnu::noinline]] void log_stored(BlockId b, const Key& key, const std::uint8_t* digest) noexcept;
  [[gnu::noinline]] void log_removed(BlockId b) noexcept;
  void drop(EventLog& log) noexcept;
  // Extends the chain as far as hints lead, over blocks without extra keys, up to so many blocks in
  // all. kTokens: the block size, if it is the usual one, or 0.
  template <int kTokens>
  void follow_hints(const Token* tokens, std::int64_t num_blocks, Chain& chain, BlockId* out) const;

  Blocks& blocks_;
  Digester* digester_;
  Interner roots_by_name_;
  Interner extras_;
  std::vector<Root> roots_;
  Buckets buckets_;
  std::unique_ptr<EventLog> log_;  // nullptr: events are off
  int num_keyed_ = 0;
};

// A reference to a namespace's root for a scope, or for its owner.
class RootReference {
 public:
  RootReference(PrefixIndex& index, std::string_view name)
      : index_(index), root_(index.acquire_root(name)) {}
  ~RootReference();
  RootReference(const RootReference&) = delete;
  RootReference& operator=(const RootReference&) = delete;
  std::uint32_t root() const { return root_; }
  NodeId node() const { return root_node(root_); }
  // The reference has another owner from here on.
  std::uint32_t keep() noexcept {
    kept_ = true;
    return root_;
  }

 private:
  PrefixIndex& index_;
  std::uint32_t root_;
  bool kept_ = false;
};

}  // namespace blockmgr
