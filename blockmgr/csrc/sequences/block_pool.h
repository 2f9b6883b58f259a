// Blocks held one at a time, or in chains: what adapters stand on that keep tables of their own.
//
// References are the caller's word: the pool counts them and cannot know who holds them. All else
// is as for sequences, by the same store: a call first checks and counts, with nothing changed (it
// may throw, it may hash, it may allocate), and then commits without being able to fail.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sequences/store.h"

namespace blockmgr {

// Where a chain of blocks begins, and what it holds.
struct ChainKey {
  const Token* tokens;
  std::int64_t num_tokens;
  std::int64_t parent;    // a cached block, or -1: the root of the namespace
  std::string_view name;  // of the namespace
  ExtrasBytes extras;     // by block of the chain, sorted
};

class BlockPool : public Store {
 public:
  // steps_in_flight of the config is 0: references are the caller's word, and so is when a step is
  // over. make: as for Store.
  BlockPool(const StoreConfig& config, std::unique_ptr<Digester> digester,
            const PolicyMaker& make = nullptr);

  // Blocks are of one share each: the namespace's, where a call takes its name.
  void check_take(std::int64_t count, std::string_view name) const;
  void take(std::int64_t count, std::string_view name, std::int32_t* out);
  // Free blocks of the caller's choice, of any share.
  void take_blocks(const std::int64_t* ids, std::int64_t count);
  // found: by a request, of which policies are notified; else a further reference to what it has.
  void acquire(const std::int64_t* ids, std::int64_t count, bool found);
  void release(const std::int64_t* ids, std::int64_t count);
  // Makes blocks the most recently used ones, as if acquired and released.
  void touch(const std::int64_t* ids, std::int64_t count);

  std::vector<std::int32_t> find(const ChainKey& key);
  // Finds and acquires, as one request: it counts for what pools of other sizes would have found.
  // Begins at the root of a namespace. Unless so many are found, nothing is done; whether it was.
  // num_asked: tokens of the prompt, of which the key may lack those that no pool of this size
  // holds.
  bool acquire_prefix(const ChainKey& key, std::int64_t num_asked, std::int64_t count,
                      std::int32_t* out);
  // The blocks that stand for the chain afterwards, into out: the given ones, or cached twins to
  // which one reference each has moved.
  //
  // Here and below, announce gets the (first) result at the end of the plan, when it may still
  // throw: a caller that needs memory to pass it on takes it there. It must not call back.
  using Announce = std::function<void(std::int32_t)>;
  void promote(const std::int64_t* ids, std::int64_t count, const ChainKey& key, std::int32_t* out,
               const Announce& announce = {});
  // Makes one block findable by what it holds, and not by find: fewer tokens than a block. Only
  // further ends continue it.
  void promote_end(std::int64_t id, const ChainKey& key);
  // What promote would refuse for the numbers alone, to be asked before anything is read.
  void check_distinct(std::int64_t count) const;
  void check_fill(std::int64_t count, std::int64_t num_tokens) const;
  void check_end_fill(std::int64_t num_tokens) const;
  std::int32_t make_writable(std::int64_t id, std::int64_t num_tokens,
                             const Announce& announce = {});

  void check_evict(std::int64_t count, std::string_view name) const;
  // The idle blocks that are next in the eviction order, with one reference each.
  void evict(std::int64_t count, std::string_view name, std::int32_t* out);
  // Makes them free instead.
  void forget(std::int64_t count, std::string_view name, std::int32_t* out);
  // Cached blocks, idle or in use, with all that continues them: their content is not found any
  // more. How many those are.
  std::int64_t forget_blocks(const std::int64_t* ids, std::int64_t count);
  void reset();

  // A level of kNoLevel withdraws; ttl is in seconds.
  void retain(const std::int64_t* ids, std::int64_t count, int level, double ttl);
  // Pins a cached block with all that it continues.
  std::int64_t pin(std::int64_t id, const std::function<void(std::int64_t)>& announce = {});

  // The record of the node that has this block; of a free block, one that says so.
  const Node& view(std::int64_t id) const { return listed(id, -1); }
  // The same of a block that stands in a list.
  const Node& listed(std::int64_t id, std::int64_t position) const {
    const NodeId n = checked_block(id, position);
    return n < 0 ? free_ : nodes_[n];
  }
  // What keeps it; nothing keeps a free block.
  Uses uses(std::int64_t id, std::int64_t position = -1) const {
    const NodeId n = checked_block(id, position);
    return n < 0 ? Uses() : nodes_.uses(n);
  }
  std::uint32_t generation(std::int64_t id) const {
    checked_block(id, -1);
    return pool_.generation(id);
  }
  // The same of a block that must be cached.
  const Node& cached(std::int64_t id) const;
  std::vector<std::int32_t> children(std::int64_t parent, std::string_view name) const;

  std::size_t memory() const;
  // Every broken invariant, one sentence each, recomputed from scratch.
  std::vector<std::string> violations() const;
  // Every fact a caller could ever observe, as bytes.
  std::string fingerprint() const;

 private:
  void check_known(const std::int64_t* ids, std::int64_t count, const char* call) const;
  NodeId parent_node(std::int64_t parent, std::string_view name) const;
  // The partition whose blocks a chain may be made of.
  int partition_of_chain(const ChainKey& key) const {
    return key.parent == kNoNode ? partition_of(key.name)
                                 : pool_.partition_of(nodes_.owner(key.parent));
  }
  // The part of the list that is a run of cached blocks from this position on; 0: not even one.
  std::int64_t run_from(const std::int64_t* ids, std::int64_t count, std::int64_t first) noexcept;
  void acquire_run(Run run) noexcept;
  Chain find_chain(const ChainKey& key, NodeId node, const ExtrasIds& extras,
                   std::vector<NodeId>& found);
  void begin_list() noexcept;
  void check_first_named(std::int64_t block);
  // Whether this list has named the block before.
  bool named_before(std::int64_t block) noexcept {
    return std::exchange(marks_[nth(block)], mark_) == mark_;
  }
  // Puts the blocks in the place of the nodes that have them.
  void name_blocks(std::int32_t* nodes, std::int64_t count) const noexcept {
    nodes_.name_all(nodes, count, nodes);
  }
  void check_held(const std::int64_t* ids, std::int64_t count);
  void check_counted(const std::int64_t* ids, std::int64_t count) const;
  void check_promotion(const std::int64_t* ids, std::int64_t count, const ChainKey& key);
  std::int64_t plan_promotion(const std::int64_t* ids, std::int64_t count, const Token* tokens,
                              NodeId node, const ExtrasIds& extras, std::uint8_t* digest,
                              NodeId* out);

  const Node free_;

  // Memory that plans lie in, kept so that calls seldom allocate.
  std::vector<std::uint8_t> digests_room_;
  std::vector<Token> tokens_room_;
  ZeroedArray<std::uint32_t> marks_;  // of each block, the last list that named it
  std::uint32_t mark_ = 0;
  std::vector<NodeId> run_room_;
  std::vector<std::int32_t> ghosts_room_;
};

}  // namespace blockmgr
