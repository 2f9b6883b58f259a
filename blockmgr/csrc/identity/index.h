// The prefix index: which cached block continues which prefix with which tokens.
//
// A key is (parent node and its generation, extras, tokens). The digest chain only finds a
// candidate; a block is found when its whole key agrees, so no collision can hand out K/V of
// another prefix, whatever digest is used.
//
// Every keyed block, full or tail, stands in its parent's list of children, most recently linked or
// brought forward first. Full blocks also stand in a table by digest: all of them, or on demand
// only the children of a parent that has many, and those whose digests a caller asked for.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "events/log.h"
#include "identity/digest.h"
#include "identity/interning.h"
#include "memory/buckets.h"
#include "memory/node.h"

namespace blockmgr {

// How far a block's skip link reaches: far enough to hide a cache miss behind the comparisons in
// between, near enough to stay inside most prefixes.
inline constexpr std::int64_t kSkip = 12;
// Index buckets prefetched ahead of insertion.
inline constexpr std::int64_t kInsertAhead = 8;
// With more children than these, a block has them in the table: a look at the list would be long.
inline constexpr int kFewChildren = 2;
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
  NodeId node = 0;       // the last of them, or where the search began
  bool strayed = false;  // hints led elsewhere at some of them
};

class PrefixIndex {
 public:
  PrefixIndex(Nodes& nodes, Digester* digester);

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
  // The digest of a full block, or of a root. On demand, the first call computes it, and those of
  // the blocks before it as far as these have none.
  const std::uint8_t* digest_of(NodeId node) const noexcept {
    if (is_root(node)) return roots_[root_index(node)].digest.data();
    if (!has_digest(node)) [[unlikely]]
      add_digest(node);
    return nodes_.digest(node);
  }

  // From here on, blocks get their digests on demand. Before anything is cached; needs a digester
  // that never fails, no log, and no observer that reads digests.
  void digest_on_demand() noexcept { on_demand_ = true; }
  bool digests_on_demand() const { return on_demand_; }
  // Gives every full block its digest; from here on, blocks get theirs at once. Cost: O(blocks),
  // and nothing from the second call on.
  void add_digests() const noexcept;
  bool has_digest(NodeId n) const { return nodes_[n].digested; }
  // Whether all full children of this block, or root, are in the table.
  bool is_crowded(NodeId node) const {
    return is_root(node) ? roots_[root_index(node)].is_crowded : nodes_[node].crowded;
  }
  // Has the digester make room for a block with these extra keys. May throw.
  void make_room_for(std::uint32_t extras) {
    digester_->message(static_cast<std::size_t>(nodes_.digest_size) + extras_.bytes(extras).size() +
                       static_cast<std::size_t>(nodes_.block_size) * sizeof(Token));
  }

  // The child last registered or matched under the parent, if it has this key.
  NodeId find_hinted(const Key& key) const {
    NodeId b = hint(key.parent);
    return b >= 0 && has_key(b, key) ? b : kNoNode;
  }
  // The full block with this key and digest, or kNoNode.
  NodeId find(const Key& key, const std::uint8_t* digest) const;
  // Likewise, among few children by a look at each, else by a digest that it computes. May throw
  // what the digest function throws.
  NodeId find(const Key& key);
  // Likewise by a look at each child. Cost: O(children).
  NodeId find_listed(const Key& key) const;
  // Likewise by its hint first, without a look at the table where nothing continues the parent.
  // digest: on demand, nullptr.
  NodeId find_continuing(const Key& key, const std::uint8_t* digest) {
    if (first_child(key.parent) < 0) return kNoNode;
    const NodeId hinted = find_hinted(key);
    if (hinted >= 0) return hinted;
    return digest ? find(key, digest) : find(key);
  }
  // The digest of this key, and the full block that has it or kNoNode. A hinted block lends its
  // digest; all others are hashed, given the parent's. parent kNoNode: it is not cached.
  [[gnu::always_inline]] NodeId find_or_digest(const Key& key, const std::uint8_t* parent,
                                               std::uint8_t* out) {
    const bool continued = key.parent != kNoNode && first_child(key.parent) >= 0;
    const NodeId hinted = continued ? find_hinted(key) : kNoNode;
    if (hinted >= 0) {
      std::memcpy(out, nodes_.digest(hinted), static_cast<std::size_t>(nodes_.digest_size));
      return hinted;
    }
    digest(parent, key.extras, key.tokens, out);
    return continued ? find(key, out) : kNoNode;
  }
  // The longest chain from this node on that holds these tokens, num_blocks blocks at most, into
  // out. Follows ids and hints and compares tokens; hashes once where both lead elsewhere. Changes
  // nothing.
  // May throw what the digest function throws.
  Chain find_chain(const Token* tokens, std::int64_t num_blocks, NodeId node,
                   const ExtrasIds* extras, NodeId* out);
  void prefetch_bucket(const std::uint8_t* digest) const { buckets_.prefetch(digest); }
  // Likewise for a block that is about to be erased, whose digest prefetch_digest has fetched.
  void prefetch_bucket_of(NodeId n) const {
    if (has_digest(n)) buckets_.prefetch(nodes_.digest(n));
  }
  void prefetch_digest(NodeId n) const {
    if (has_digest(n)) prefetch(nodes_.digest(n));
  }

  // Makes a full block findable. Never allocates. digest: on demand, nullptr.
  void insert(NodeId b, const Key& key, const std::uint8_t* digest) noexcept;
  // Makes a partial tail findable as a child: by its leading tokens only, never by digest.
  void insert_tail(NodeId b, const Key& key, int num_tokens) noexcept;
  // The first of its siblings from here on: look-ups within a block see so many children only.
  void bring_forward(NodeId b) noexcept;
  // Takes the key away. The block must have no children.
  void erase(NodeId b) noexcept;
  // The key of a full block, its children and its place among its siblings pass to a block with
  // the same tokens that has no key.
  void move(NodeId from, NodeId to) noexcept;

  NodeId hint(NodeId node) const {
    return is_root(node) ? roots_[root_index(node)].hint : nodes_[node].hint;
  }
  void set_hint(NodeId node, NodeId child) {
    (is_root(node) ? roots_[root_index(node)].hint : nodes_[node].hint) = child;
  }
  NodeId first_child(NodeId node) const {
    return is_root(node) ? roots_[root_index(node)].first_child : nodes_[node].first_child;
  }
  std::uint32_t generation(NodeId node) const {
    return is_root(node) ? roots_[root_index(node)].generation : nodes_[node].generation;
  }
  bool has_key(NodeId b, const Key& key) const {
    const Node& record = nodes_[b];
    return record.parent == key.parent && record.key_tokens == nodes_.block_size &&
           record.parent_generation == generation(key.parent) && record.extras == key.extras &&
           same_tokens(nodes_.tokens(b), key.tokens, nodes_.block_size);
  }

  // First blocks of a namespace that no prompt may find any more, with all that continues them.
  // Room for one more such list; throws or finishes.
  void reserve_retired() { retired_.reserve(retired_.size() + 1); }
  // Makes what the namespace has unfindable, without a look at it: its first blocks stand in a list
  // of their own, and no key agrees with them, for the root has another generation.
  void retire(std::uint32_t root) noexcept;
  bool has_retired() const { return !retired_.empty(); }
  struct Retired {
    std::uint32_t root;
    NodeId first;        // of the list of siblings
    std::int64_t again;  // evictions before which a look for idle blocks finds too few
  };
  // The oldest first. A list goes with its last block.
  std::vector<Retired>& retired() { return retired_; }
  const std::vector<Retired>& retired() const { return retired_; }
  // Whether this keyed block is, or continues, a retired one. Cost: O(blocks before it).
  bool is_retired(NodeId b) const;

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
  // Whether this full block is the one in the events, among those with its digest. There are others
  // only if digests collide.
  bool stands_for_digest(NodeId b) const { return with_digest(nodes_.digest(b)) == b; }
  // A full block with this digest for which `wanted` holds, or kNoNode.
  template <class Wanted>
  NodeId with_digest(const std::uint8_t* digest, Wanted wanted) const {
    return with_beginning(digest, static_cast<std::size_t>(nodes_.digest_size), wanted);
  }
  // Likewise for so many bytes at the beginning of the digest: eight, by which the table knows a
  // block, or more.
  template <class Wanted>
  NodeId with_beginning(const std::uint8_t* digest, std::size_t size, Wanted wanted) const {
    return buckets_.find(digest, [&](NodeId b) {
      return std::memcmp(nodes_.digest(b), digest, size) == 0 && wanted(b);
    });
  }
  // Writes down that the part of a full block in a further group of layers became findable, or
  // stopped being so; only with a log.
  void log_part_stored(NodeId b, int group) noexcept { log_block(b, group); }
  void log_part_removed(NodeId b, int group) noexcept { log_->removed(group, nodes_.digest(b)); }
  std::string_view root_name(std::uint32_t root) const { return roots_by_name_.bytes(root); }

  Interner& extras() { return extras_; }
  const Interner& extras() const { return extras_; }
  int num_keyed() const { return num_keyed_; }
  std::size_t memory() const;

  // Whether the next id is that of a full block without extra keys that continues this one: proof,
  // not a guess.
  bool goes_on(NodeId n) const {
    return continued_[static_cast<std::size_t>(n) >> 6] >> (n & 63) & 1;
  }
  // How many ids in a row from this one on go on, as far as one word says.
  int count_ahead(NodeId n) const {
    return std::countr_one(continued_[static_cast<std::size_t>(n) >> 6] >> (n & 63));
  }
  // How many ids in a row before this one go on, as far as so many.
  std::int64_t count_going_on(NodeId n, std::int64_t most) const {
    std::int64_t count = 0;
    for (auto i = static_cast<std::uint32_t>(n); i && count < most;) {
      const int bit = static_cast<int>(--i & 63);
      const int ones = std::countl_one(continued_[i >> 6] << (63 - bit));
      count += ones;
      if (ones <= bit) break;
      i -= static_cast<std::uint32_t>(bit);
    }
    return std::min(count, most);
  }
  // For check_invariants.
  const Buckets& buckets() const { return buckets_; }
  std::uint32_t root_refs(std::uint32_t root) const { return roots_by_name_.refs(root); }
  std::size_t num_roots() const { return roots_.size(); }

 private:
  NodeId find_on_demand(const Key& key);  // find(key), inlined where a chain is followed
  struct Root {
    NodeId hint = kNoNode;
    NodeId first_child = kNoNode;
    std::uint32_t generation = 0;
    bool is_crowded = false;
    std::vector<std::uint8_t> digest;
  };

  // Whether a full block of this id and key is what goes_on() of its parent is about.
  static bool is_next(NodeId n, NodeId parent, std::uint32_t extras) {
    return parent >= 0 && parent + 1 == n && !extras;
  }
  void flip_goes_on(NodeId n) noexcept {
    continued_[static_cast<std::size_t>(n) >> 6] ^= std::uint64_t{1} << (n & 63);
  }
  void link_child(NodeId b, const Key& key, int num_tokens) noexcept;
  // On demand: a full block gets its digest and its place in the table.
  [[gnu::noinline]] void add_digest(NodeId n) const noexcept;
  void digest_if_due(NodeId b, NodeId parent) noexcept;
  // On demand: likewise all children of a parent that now has more than a few.
  [[gnu::noinline]] void crowd_if_many(NodeId parent) noexcept;
  NodeId& head_of(NodeId parent) noexcept;
  NodeId& head_of(const Node& record) noexcept;
  void drop_empty_retired() noexcept;
  void put_first(NodeId b) noexcept;
  void leave_siblings(const Node& record, NodeId parent) noexcept;
  // A full block with this digest, of any key, or kNoNode.
  NodeId with_digest(const std::uint8_t* digest) const {
    return with_digest(digest, [](NodeId) { return true; });
  }
  // Apart from their callers, which pay for them only where a log is kept.
  [[gnu::noinline]] void log_stored(NodeId b, const Key& key, const std::uint8_t* digest) noexcept;
  [[gnu::noinline]] void log_removed(NodeId b) noexcept;
  void log_block(NodeId b, int group) noexcept;
  void drop(EventLog& log) noexcept;
  // Extends the chain along ids and hints as far as they lead, over blocks without extra keys, up
  // to so many blocks in all. kTokens: the block size, if it is the usual one, or 0.
  template <int kTokens>
  void follow(const Token* tokens, std::int64_t num_blocks, Chain& chain, NodeId* out) const;

  Nodes& nodes_;
  Digester* digester_;
  Interner roots_by_name_;
  Interner extras_;
  std::vector<Root> roots_;
  std::vector<Retired> retired_;
  // What on demand is computed once is no change that callers see.
  mutable Buckets buckets_;
  mutable bool on_demand_ = false;
  ZeroedArray<std::uint64_t> continued_;  // a bit a node: goes_on()
  std::unique_ptr<EventLog> log_;         // nullptr: events are off
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
