// The block record, its states, and the arrays that hold everything a block has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

namespace blockmgr {

using Token = std::uint32_t;
using BlockId = std::int32_t;
// A place in the tree of cached prefixes: a block, or (negative) the root of a namespace.
using NodeId = std::int32_t;

inline constexpr BlockId kNoBlock = -1;

inline constexpr bool is_root(NodeId node) { return node < kNoBlock; }
inline constexpr NodeId root_node(std::uint32_t root) { return -2 - static_cast<NodeId>(root); }
inline constexpr std::uint32_t root_index(NodeId node) {
  return static_cast<std::uint32_t>(-2 - node);
}

// The state of a block, read off its record. There is no state field: two facts are the state,
// so nothing can disagree with them. Used means ref_count + pins > 0; keyed means key_tokens > 0.
//
// clang-format off
//           used  keyed  findable  queue                    left by
//   free     no    no      no      free, LIFO               take -> owned
//   owned    yes   no      no      none                     promote -> cached; release -> free
//   cached   yes   yes     yes     none                     last release -> idle
//   idle     no    yes     yes     idle, in eviction order  acquire -> cached; evicted -> owned
// clang-format on
//
// Only an owned block with ref_count 1 may be written: every other one is shared with another
// sequence or promised to a future one.
//
// ref_count counts block tables. Pins are every other reason to keep a block: it is the root of a
// pending copy, an end of a copy in flight, or the parent of a used cached block. So a pin never
// makes a block look shared, and since a used block pins its parent, a parent becomes idle after
// its last child does: the idle queue has children before parents, and evicting its head never
// orphans a cached block.
//
// With append-only deduplication an owned block can have a cached twin: the block with the same
// content that stands for it in the chain. Both are named by a table. When the last table drops
// of the cached one, its key moves to a twin (Pool::hand_over), so no block is kept for a twin.
struct alignas(64) Block {
  std::uint32_t ref_count = 0;
  std::uint32_t pins = 0;
  // Links of the one list the block is in: free, idle or a fence when unused, the pending copies
  // when it is the destination of one, the unwritten blocks when unwritten is not 0.
  BlockId prev = kNoBlock;
  BlockId next = kNoBlock;
  BlockId hint = kNoBlock;  // child last registered or matched; a guess that is always verified
  BlockId skip = 0;         // a descendant some generations on; only ever prefetched
  // Keyed: the node before this block in its prefix. Owned: the cached twin, or kNoBlock.
  NodeId parent = kNoBlock;
  std::uint32_t parent_generation = 0;

  std::uint32_t generation = 0;  // grows whenever the block loses its content
  BlockId first_child = kNoBlock;
  BlockId prev_sibling = kNoBlock;  // keyed: among the children of its parent; owned and with a
  BlockId next_sibling = kNoBlock;  // cached twin: among that block's twins
  std::uint32_t extras = 0;         // interned extra keys of this block
  BlockId copy_source = kNoBlock;   // root of the pending copy into this block
  std::uint16_t key_tokens = 0;     // tokens the key covers; fewer than block_size: a cached tail
  std::uint16_t copy_tokens = 0;    // leading tokens of the pending copy
  std::uint16_t unwritten = 0;      // trailing tokens of a full block that the forward of this step
                                    // has yet to write: it was committed early
  std::uint8_t fence = 0;           // number of the fence list the block waits in; 0: none
  std::uint8_t in_flight = 0;       // destination of a copy that was taken and not resolved

  bool used() const { return (ref_count | pins) != 0; }
  bool keyed() const { return key_tokens != 0; }
};
static_assert(sizeof(Block) == 64, "one record, one cache line");

// Zeroed memory, aligned to cache lines. Pages that are never touched stay unmapped, which is
// what makes a wide block table array affordable.
template <class T>
class ZeroedArray {
 public:
  explicit ZeroedArray(std::size_t size) : size_(size) {
    if (size > (SIZE_MAX - kAlignment) / sizeof(T)) throw std::bad_alloc();
    memory_.reset(std::calloc(size * sizeof(T) + kAlignment, 1), std::free);
    if (!memory_) throw std::bad_alloc();
    auto address = reinterpret_cast<std::uintptr_t>(memory_.get());
    data_ = reinterpret_cast<T*>((address + kAlignment - 1) / kAlignment * kAlignment);
  }
  T* data() const { return data_; }
  T& operator[](std::size_t i) const { return data_[i]; }
  std::size_t size() const { return size_; }
  std::size_t bytes() const { return size_ * sizeof(T); }
  // For views that may outlive this array.
  const std::shared_ptr<void>& memory() const { return memory_; }

 private:
  static constexpr std::size_t kAlignment = 64;
  std::size_t size_;
  std::shared_ptr<void> memory_;
  T* data_;
};

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
    // The usual block size, without a call: four vector comparisons and no exit before the end,
    // for a candidate is rarely wrong.
    const FourTokens differs =
        (load_four(a) ^ load_four(b)) | (load_four(a + 4) ^ load_four(b + 4)) |
        (load_four(a + 8) ^ load_four(b + 8)) | (load_four(a + 12) ^ load_four(b + 12));
    return (differs[0] | differs[1]) == 0;
  }
#endif
  return std::memcmp(a, b, static_cast<std::size_t>(count) * sizeof(Token)) == 0;
}

// The blocks of a pool: records, the tokens each holds, and the digest of each keyed block.
struct Blocks {
  Blocks(int count, int block_size, int digest_size, int num_lists)
      : count(count),
        block_size(block_size),
        digest_size(digest_size),
        records(static_cast<std::size_t>(count + num_lists)),
        token_data(static_cast<std::size_t>(count) * static_cast<std::size_t>(block_size)),
        digest_data(static_cast<std::size_t>(count) * static_cast<std::size_t>(digest_size)) {
    for (std::size_t i = 0; i < records.size(); ++i) new (&records[i]) Block();
  }

  Block& operator[](BlockId b) { return records[static_cast<std::size_t>(b)]; }
  const Block& operator[](BlockId b) const { return records[static_cast<std::size_t>(b)]; }
  Token* tokens(BlockId b) const {
    return token_data.data() + static_cast<std::size_t>(b) * static_cast<std::size_t>(block_size);
  }
  std::uint8_t* digest(BlockId b) const {
    return digest_data.data() + static_cast<std::size_t>(b) * static_cast<std::size_t>(digest_size);
  }
  std::size_t bytes() const { return records.bytes() + token_data.bytes() + digest_data.bytes(); }

  int count;
  int block_size;
  int digest_size;
  ZeroedArray<Block> records;  // then one sentinel for each list
  ZeroedArray<Token> token_data;
  ZeroedArray<std::uint8_t> digest_data;
};

// A circular list threaded through the records' prev and next, so that membership costs nothing
// and removal from the middle is O(1). The sentinel is a record past the last block.
class BlockList {
 public:
  BlockList(Blocks& blocks, BlockId sentinel) : blocks_(&blocks), sentinel_(sentinel) { clear(); }

  void push_front(BlockId b) { link(b, sentinel_, (*blocks_)[sentinel_].next); }
  void push_back(BlockId b) { link(b, (*blocks_)[sentinel_].prev, sentinel_); }
  void remove(BlockId b) {
    Block& block = (*blocks_)[b];
    (*blocks_)[block.prev].next = block.next;
    (*blocks_)[block.next].prev = block.prev;
    --size_;
  }
  // Takes out the first count members; after is the one that follows them, or end().
  void remove_front(int count, BlockId after) {
    (*blocks_)[sentinel_].next = after;
    (*blocks_)[after].prev = sentinel_;
    size_ -= count;
  }
  // Takes out these members, given in the reverse of the list's order. Of each run of neighbours
  // only the ends are written to.
  template <class Visit>
  void remove_reversed(const BlockId* members, std::int64_t count, Visit visit) {
    Block* const records = blocks_->records.data();
    for (std::int64_t i = 0; i < count;) {
      const BlockId after = records[members[i]].next;
      BlockId before;
      do {
        // Found by the array, not by the link before, so that the processor may read ahead.
        Block& block = records[members[i]];
        before = block.prev;
        visit(block);
      } while (++i < count && members[i] == before);
      records[before].next = after;
      records[after].prev = before;
    }
    size_ -= static_cast<int>(count);
  }
  // Adds blocks at the end, which is written down only after the last of them.
  class Appending {
   public:
    explicit Appending(BlockList& list)
        : list_(list),
          records_(list.blocks_->records.data()),
          last_(records_[list.sentinel_].prev) {}
    ~Appending() {
      records_[last_].next = list_.sentinel_;
      records_[list_.sentinel_].prev = last_;
      list_.size_ += count_;
    }
    Appending(const Appending&) = delete;
    Appending& operator=(const Appending&) = delete;
    void push_back(BlockId b) {
      records_[b].prev = last_;
      records_[last_].next = b;
      last_ = b;
      ++count_;
    }

   private:
    BlockList& list_;
    Block* records_;
    BlockId last_;
    int count_ = 0;
  };
  void clear() {
    (*blocks_)[sentinel_].prev = (*blocks_)[sentinel_].next = sentinel_;
    size_ = 0;
  }
  bool empty() const { return size_ == 0; }
  int size() const { return size_; }
  BlockId front() const { return (*blocks_)[sentinel_].next; }
  BlockId after(BlockId b) const { return (*blocks_)[b].next; }
  BlockId end() const { return sentinel_; }

 private:
  void link(BlockId b, BlockId before, BlockId after) {
    (*blocks_)[b].prev = before;
    (*blocks_)[b].next = after;
    (*blocks_)[before].next = b;
    (*blocks_)[after].prev = b;
    ++size_;
  }
  Blocks* blocks_;
  BlockId sentinel_;
  int size_ = 0;
};

}  // namespace blockmgr
