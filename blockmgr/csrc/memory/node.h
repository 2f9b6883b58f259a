// The node record, its states, and the arrays that hold everything a node has.
//
// A node is identity: block_size tokens after one parent, or fewer. A block is place: memory for
// the K/V of one node. Ids of nodes come in runs: where one prompt goes on, the next node has the
// next id as a rule, so that its tokens and facts lie in the order in which they are read. Which
// block a node has says nothing about either id.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

#include "memory/ring.h"
#include "memory/zeroed_array.h"

namespace blockmgr {

using Token = std::uint32_t;
// A node of the tree of prefixes, or (negative) the root of a namespace.
using NodeId = std::int32_t;
inline constexpr NodeId kNoNode = -1;

// A block. Callers and tensors know blocks and no nodes; here it is the other way round, so the
// two are different types.
enum class BlockId : std::int32_t {};
inline constexpr BlockId kNoBlock{-1};
inline constexpr std::int32_t number(BlockId b) { return static_cast<std::int32_t>(b); }

// An index or a count, as containers take it.
template <class Integer>
constexpr std::size_t nth(Integer i) {
  return static_cast<std::size_t>(i);
}

inline constexpr bool is_root(NodeId node) { return node < kNoNode; }
inline constexpr NodeId root_node(std::uint32_t root) { return -2 - static_cast<NodeId>(root); }
inline constexpr std::uint32_t root_index(NodeId node) {
  return static_cast<std::uint32_t>(-2 - node);
}

// Who keeps a node. A column of its own, for references come and go by runs.
//
// ref_count counts block tables. Pins are every other reason to keep a node: it is the root of a
// pending copy, an end of a copy in flight, or the parent of a used cached node. So a pin never
// makes a node look shared, and since a used node pins its parent, a parent becomes idle after
// its last child does: the idle queue has children before parents, and evicting its head never
// orphans a cached node.
struct Uses {
  std::uint32_t ref_count = 0;
  std::uint32_t pins = 0;
};
inline constexpr bool operator==(Uses a, Uses b) {
  return a.ref_count == b.ref_count && a.pins == b.pins;
}

// In the one list a node is in: a fence or (an end of a segment) the idle ones when unused, the
// pending copies when it is the destination of one, the unwritten nodes when unwritten is not 0.
struct Links {
  NodeId prev;
  NodeId next;
};

// The state of a node, read off its record and its uses. There is no state field: two facts are the
// state, so nothing can disagree with them. Used means ref_count + pins > 0; keyed means
// key_tokens > 0.
// An id that is free is that of no node, and has no block.
//
// clang-format off
//           used  keyed  findable  queue                    left by
//   owned    yes   no      no      none                     promote -> cached; release -> gone
//   cached   yes   yes     yes     none                     last release -> idle
//   idle     no    yes     yes     idle, in eviction order  acquire -> cached; evicted -> gone
// clang-format on
//
// Only an owned node with ref_count 1 may be written: every other one is shared with another
// sequence or promised to a future one.
//
// With append-only deduplication an owned node can have a cached twin: the node with the same
// content that stands for it in the chain. Both are named by a table. When the last table drops
// of the cached one, its key moves to a twin (Pool::hand_over), so no block is kept for a twin.
struct Node {
  // Fields that a match reads come first: half a cache line, so that few records cross one there.
  NodeId hint = kNoNode;  // child last registered or matched; a guess that is always verified
  NodeId skip = 0;        // a descendant some generations on; only ever prefetched
  // Keyed: the node before this one in its prefix. Owned: the cached twin, or kNoNode.
  NodeId parent = kNoNode;
  std::uint32_t parent_generation = 0;
  std::uint32_t generation = 0;   // grows whenever the node loses its content
  std::uint32_t extras = 0;       // interned extra keys of this node
  std::uint16_t key_tokens = 0;   // tokens the key covers; fewer than block_size: a cached tail
  std::uint16_t unwritten = 0;    // trailing tokens of a full node that the forward of this step
                                  // has yet to write: it was committed early
  std::uint16_t copy_tokens = 0;  // leading tokens of the pending copy
  std::uint8_t fence = 0;         // number of the fence list the node waits in; 0: none
  std::uint8_t in_flight : 1;     // destination of a copy that was taken and not resolved
  std::uint8_t digested : 1;      // has a digest, and stands in the table of the index
  std::uint8_t crowded : 1;       // all of its full children are digested

  NodeId first_child = kNoNode;
  NodeId prev_sibling = kNoNode;  // keyed: among the children of its parent; owned and with a
  NodeId next_sibling = kNoNode;  // cached twin: among that node's twins
  NodeId copy_source = kNoNode;   // root of the pending copy into this node's block

  Node() : in_flight(0), digested(0), crowded(0) {}
  bool keyed() const { return key_tokens != 0; }
};
static_assert(sizeof(Node) + sizeof(Uses) + sizeof(Links) == 64, "one cache line a node");

// The number in the first eight bytes, which lie at any address.
inline std::uint64_t first_eight(const void* bytes) {
  std::uint64_t number;
  std::memcpy(&number, bytes, sizeof number);
  return number;
}

inline void prefetch(const void* address) {
#if defined(__GNUC__) || defined(__clang__)
  __builtin_prefetch(address);
#else
  (void)address;
#endif
}

#if defined(__GNUC__) || defined(__clang__)
typedef std::uint64_t FourTokens __attribute__((vector_size(16)));

// Through memcpy, for a caller's tokens lie at any multiple of four bytes.
inline FourTokens load_four(const Token* tokens) {
  FourTokens four;
  std::memcpy(&four, tokens, sizeof four);
  return four;
}
#endif

inline bool same_tokens(const Token* a, const Token* b, int count) {
#if defined(__GNUC__) || defined(__clang__)
  if (count == 16) {
    // The usual block size, without a call: four vector comparisons and no early exit, because a
    // candidate is rarely wrong.
    const FourTokens differs =
        (load_four(a) ^ load_four(b)) | (load_four(a + 4) ^ load_four(b + 4)) |
        (load_four(a + 8) ^ load_four(b + 8)) | (load_four(a + 12) ^ load_four(b + 12));
    return (differs[0] | differs[1]) == 0;
  }
#endif
  return std::memcmp(a, b, static_cast<std::size_t>(count) * sizeof(Token)) == 0;
}

// The nodes of a pool: records, uses, links, the tokens each holds, the digest of each keyed one,
// and which block each has.
struct Nodes {
  Nodes(int count, int num_blocks, int block_size, int digest_size, int num_lists)
      : count(count),
        num_blocks(num_blocks),
        block_size(block_size),
        digest_size(digest_size),
        records(static_cast<std::size_t>(count)),
        uses_of(static_cast<std::size_t>(count)),
        links(static_cast<std::size_t>(count + num_lists)),
        token_data(static_cast<std::size_t>(count) * static_cast<std::size_t>(block_size)),
        digest_data(static_cast<std::size_t>(count) * static_cast<std::size_t>(digest_size)),
        places(static_cast<std::size_t>(count)),
        owners(static_cast<std::size_t>(num_blocks)) {
    // Those that a match walks through.
    records.prefer_huge_pages();
    uses_of.prefer_huge_pages();
    links.prefer_huge_pages();
    token_data.prefer_huge_pages();
    places.prefer_huge_pages();
    owners.prefer_huge_pages();
    for (std::size_t i = 0; i < records.size(); ++i) new (&records[i]) Node();
    for (std::size_t i = 0; i < places.size(); ++i) places[i] = kNoBlock;
    for (std::size_t i = 0; i < owners.size(); ++i) owners[i] = kNoNode;
  }

  Node& operator[](NodeId n) { return records[static_cast<std::size_t>(n)]; }
  const Node& operator[](NodeId n) const { return records[static_cast<std::size_t>(n)]; }
  Uses& uses(NodeId n) { return uses_of[static_cast<std::size_t>(n)]; }
  const Uses& uses(NodeId n) const { return uses_of[static_cast<std::size_t>(n)]; }
  bool used(NodeId n) const { return (uses(n).ref_count | uses(n).pins) != 0; }
  // Cached, in no use, and waiting for no step.
  bool idle(NodeId n) const { return (*this)[n].keyed() && !used(n) && !(*this)[n].fence; }
  Token* tokens(NodeId n) const {
    return token_data.data() + static_cast<std::size_t>(n) * static_cast<std::size_t>(block_size);
  }
  std::uint8_t* digest(NodeId n) const {
    return digest_data.data() + static_cast<std::size_t>(n) * static_cast<std::size_t>(digest_size);
  }
  // The block that a node has; kNoBlock: it is the id of no node now.
  BlockId block(NodeId n) const { return places[static_cast<std::size_t>(n)]; }
  // The node that has a block; kNoNode: the block is free, or kept back.
  NodeId owner(std::int64_t block) const {
    const NodeId n = owners[static_cast<std::size_t>(block)];
    return n < 0 ? kNoNode : n;
  }
  // As callers name what a node stands for: its block, kNoNode, or a root.
  std::int32_t name(NodeId n) const { return n < 0 ? n : number(block(n)); }
  // The same of many nodes, which are neighbours more often than not.
  void name_all(const NodeId* nodes, std::int64_t count, std::int32_t* out) const {
    const BlockId* const blocks = places.data();
    std::int64_t i = 0;
    for (; i + 4 <= count; i += 4) {
      std::uint64_t pairs[2];
      std::memcpy(pairs, nodes + i, sizeof pairs);
      // Neighbours, as they lie in memory where the low half comes first; else one by one.
      const auto n = static_cast<std::uint64_t>(nodes[i]);
      const std::uint64_t first = n | (n + 1) << 32;
      if (pairs[0] == first && pairs[1] == first + 0x200000002u) {
        std::memcpy(out + i, blocks + nodes[i], sizeof pairs);
        continue;
      }
      for (std::int64_t j = i; j < i + 4; ++j) out[j] = number(blocks[nodes[j]]);
    }
    for (; i < count; ++i) out[i] = number(blocks[nodes[i]]);
  }
  void bind(NodeId n, BlockId b) noexcept {
    places[static_cast<std::size_t>(n)] = b;
    owners[static_cast<std::size_t>(number(b))] = n;
  }
  // The block that it had is free or gets another node next.
  BlockId unbind(NodeId n) noexcept {
    const BlockId b = block(n);
    places[static_cast<std::size_t>(n)] = kNoBlock;
    return b;
  }
  std::size_t bytes() const {
    return records.bytes() + uses_of.bytes() + links.bytes() + token_data.bytes() +
           digest_data.bytes() + places.bytes() + owners.bytes();
  }

  int count;
  int num_blocks;
  int block_size;
  int digest_size;
  ZeroedArray<Node> records;
  ZeroedArray<Uses> uses_of;
  ZeroedArray<Links> links;  // then one sentinel for each list
  ZeroedArray<Token> token_data;
  ZeroedArray<std::uint8_t> digest_data;
  ZeroedArray<BlockId> places;  // by node
  ZeroedArray<NodeId> owners;   // by block; of a free one: see FreeBlocks
};

// Blocks that no node has. The one that came free last is handed out first, so that the blocks of
// a released table, which come free last to first, are handed out in the order of the table.
// Threaded through the owners: -2 - b where block b is handed out next.
class FreeBlocks {
 public:
  // These blocks, the first of which is handed out first.
  FreeBlocks(Nodes& nodes, std::int32_t first, int count) : nodes_(&nodes) {
    for (int i = count; i-- > 0;) push(BlockId{first + i});
  }
  bool empty() const { return size_ == 0; }
  int size() const { return size_; }
  // The block that is handed out next. There must be one.
  BlockId next() const { return next_; }
  BlockId pop() noexcept {
    const BlockId b = next_;
    next_ = after(b);
    --size_;
    return b;
  }
  void push(BlockId b) noexcept {
    link(b, next_);
    next_ = b;
    ++size_;
  }
  // Takes out every block of which `chosen` is true, and leaves the others in their order.
  template <class Chosen>
  void remove_if(Chosen chosen) noexcept {
    BlockId kept = kNoBlock;  // the last one that stays
    for (BlockId b = next_; b != kNoBlock;) {
      const BlockId following = after(b);
      if (!chosen(b)) {
        kept = b;
      } else {
        if (kept == kNoBlock)
          next_ = following;
        else
          link(kept, following);
        --size_;
      }
      b = following;
    }
  }
  // In the order in which they will be handed out.
  template <class Visit>
  void each(Visit visit) const {
    int left = size_;
    for (BlockId b = next_; left-- > 0 && number(b) >= 0; b = after(b)) visit(b);
  }

 private:
  BlockId after(BlockId b) const {
    return BlockId{-2 - nodes_->owners[static_cast<std::size_t>(number(b))]};
  }
  void link(BlockId b, BlockId following) noexcept {
    nodes_->owners[static_cast<std::size_t>(number(b))] = -2 - number(following);
  }

  Nodes* nodes_;
  BlockId next_ = kNoBlock;
  int size_ = 0;
};

// A ring through the links of the nodes, so that membership costs nothing and removal from the
// middle is O(1). The sentinel is past the last node.
class NodeList {
 public:
  NodeList(Nodes& nodes, NodeId sentinel) : links_(nodes.links.data()), sentinel_(sentinel) {
    clear();
  }

  void push_front(NodeId b) {
    ring::insert_after(links_, b, sentinel_);
    ++size_;
  }
  void push_back(NodeId b) {
    ring::insert_before(links_, b, sentinel_);
    ++size_;
  }
  void remove(NodeId b) {
    ring::remove(links_, b);
    --size_;
  }
  void clear() {
    ring::clear(links_, sentinel_);
    size_ = 0;
  }
  bool empty() const { return size_ == 0; }
  int size() const { return size_; }
  NodeId front() const { return links_[sentinel_].next; }
  NodeId after(NodeId b) const { return links_[b].next; }
  NodeId end() const { return sentinel_; }

 private:
  Links* links_;
  NodeId sentinel_;
  int size_ = 0;
};

}  // namespace blockmgr
