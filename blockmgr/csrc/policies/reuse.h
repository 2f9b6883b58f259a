// How soon blocks are used again: what LRU pools of every size, up to a bound, would hold. Each
// partition has a past of its own, as if it were a pool.
//
// All the blocks there are or were stand in one order, the last used first, and each has a place in
// it. A pool of c blocks that evicts the least recently used one holds exactly what stands at the
// first c places, for any c, so one order answers for all pool sizes at once (Mattson, Gecsei,
// Slutz and Traiger, "Evaluation techniques for storage hierarchies", IBM Systems Journal 9(2),
// 1970).
//
//   place   1 ............ in use | in_use + 1 ...................................... limit
//           blocks in use, which no  idle blocks, ghosts (evicted, known by digest), and
//           pool evicts              holes, by the tick at which their last use ended
//
// A hole is a place that nothing stands at: a free block, in each pool large enough to reach it. A
// block that is taken into use fills the first hole, so that what stands behind it keeps its place;
// without one, everything moves back by one place and what passes the limit is dropped. A block
// that ends its use at a place leaves a hole there.
//
// A ghost is known by the first eight bytes of its digest alone: nothing here decides a hit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "identity/index.h"
#include "memory/bit_tree.h"
#include "memory/node.h"
#include "memory/ring.h"
#include "memory/tag_table.h"
#include "policies/observer.h"

namespace blockmgr {

using Tick = std::uint32_t;
inline constexpr Tick kNoTick = 0xffffffff;

class ReuseTracker final : public Observer {
 public:
  // Follows these blocks, and num_ghosts places beyond them. by_recency: the least recently used
  // of them is evicted, so that ghosts only stand beyond them.
  ReuseTracker(const Nodes& nodes, const PrefixIndex& index, Range range, int num_ghosts,
               bool by_recency);

  // Blocks that wait for a step count as in use.
  void on_taken(std::int64_t count) noexcept override;
  void on_freed(std::int64_t count) noexcept override;
  void on_cached(Run run) noexcept override;
  void on_idle(Run run) noexcept override;
  void on_used(Run run) noexcept override;
  void on_moved(NodeId from, NodeId to) noexcept override;
  void on_uncached(NodeId b, bool evicted) noexcept override;
  // An idle block takes the place of one in use, which is free now.
  void on_exchanged(NodeId b) noexcept { leave(b); }

  // The ghost with this digest, or -1.
  std::int32_t find(const std::uint8_t* digest) const noexcept {
    return table_.find(first_eight(digest));
  }
  // A sequence is about to compute this ghost's content again; larger pools have it in use instead.
  // The ghost stands nowhere from here on, and is known until the content is cached.
  void resolve(std::int32_t ghost) noexcept;
  // The blocks that were cached have been forgotten, by pools of all sizes, and so are the ghosts.
  void forget_ghosts() noexcept;
  // The same of one namespace, which is about to be retired. Cost: O(places).
  void forget_ghosts_of(std::string_view name) noexcept;
  // Counts a look-up: full blocks that were found, and the ghosts that follow them.
  void count(const NodeId* found, std::int64_t num_found, const std::int32_t* ghosts,
             std::int64_t num_ghosts, std::int64_t num_tokens) noexcept;

  // Pools with at least this many blocks would hold it; 0: each one does, it is in use.
  std::int64_t place(NodeId b) const noexcept;
  std::int64_t place_of_ghost(std::int32_t ghost) const noexcept {
    const Ghost& entry = ghosts_[static_cast<std::size_t>(ghost)];
    return entry.is_resolved() ? entry.at : in_use_ + rank(entry.at);
  }
  // Blocks handed out since the ghost was evicted.
  std::int64_t evicted_ago(std::int32_t ghost) const noexcept {
    return num_taken_ - ghosts_[static_cast<std::size_t>(ghost)].evicted_at;
  }

  // Blocks looked up and found by pools of exactly so many blocks and no fewer, by number of
  // blocks.
  const ZeroedArray<std::int64_t>& histogram() const { return histogram_; }
  std::int64_t query_tokens() const { return query_tokens_; }
  std::int64_t num_ghosts() const noexcept { return table_.size(); }
  // Evicted full blocks that nothing remembers any more.
  std::int64_t num_forgotten() const { return num_forgotten_; }
  std::size_t memory() const override;
  void audit(BlockAudit& audit) const override;
  void fingerprint(std::string& out) const override;

 private:
  struct Ghost {
    std::uint64_t key = 0;
    std::int64_t evicted_at = 0;
    std::uint32_t at = 0;    // its tick; once it is resolved, the place where it stood
    std::uint32_t name = 0;  // see tag_of
    std::int32_t prev = -1;  // resolved ones in order, the first to be forgotten in front
    std::int32_t next = -1;  // likewise; or the next unused one
    bool is_resolved() const { return prev >= 0; }
  };
  // Where the prefix of a cached block begins.
  struct Origin {
    std::uint32_t root;
    std::uint32_t generation;  // of the root: another one by now if the block is retired
  };
  // The entry of a tick: block b as b + 1, ghost g as -(g + 1), or one of these.
  static constexpr std::int32_t kNothing = 0;
  static constexpr std::int32_t kHole = INT32_MIN;
  static constexpr std::int32_t kAnonymous = INT32_MIN + 1;  // evicted, and not to be found again

  // Of a namespace. Two with the same one only share what is forgotten.
  static std::uint32_t tag_of(std::string_view name) {
    return static_cast<std::uint32_t>(std::hash<std::string_view>{}(name));
  }
  bool is_retired(NodeId b) const noexcept {
    const Origin& origin = origin_[b];
    return origin.generation != index_.generation(root_node(origin.root));
  }
  std::int64_t rank(Tick t) const noexcept;  // entries from this tick on
  void leave(NodeId b) noexcept;
  void evicted(NodeId b) noexcept;
  Tick next_tick() noexcept;
  void compact() noexcept;
  void own(Tick t, std::int32_t what) noexcept;
  void add(Tick t, std::int32_t what) noexcept;
  void remove(Tick t) noexcept;
  void make_hole(Tick t) noexcept;
  void enter_use() noexcept;
  void drop_oldest() noexcept;
  void add_ghost(Tick t, NodeId b) noexcept;
  void remove_ghost(std::int32_t ghost) noexcept;
  void forget_resolved(std::int32_t ghost) noexcept {
    ring::remove(ghosts_.data(), ghost);
    remove_ghost(ghost);
  }
  // The sentinel of the resolved ones.
  std::int32_t end() const { return static_cast<std::int32_t>(ghosts_.size()) - 1; }
  std::int32_t oldest_resolved() const { return ghosts_[ghosts_.size() - 1].next; }
  void add_to_sums(std::size_t word, std::int32_t change) noexcept;

  const Nodes& nodes_;
  const PrefixIndex& index_;
  std::int64_t capacity_;
  std::int64_t limit_;  // places there are
  bool by_recency_;
  std::size_t num_ticks_;
  BitTree live_;                     // ticks at which something stands
  BitTree holes_;                    // of those, holes
  ZeroedArray<std::int32_t> at_;     // what stands at a tick
  ZeroedArray<std::uint32_t> sums_;  // Fenwick tree over the words of live_
  Range range_;
  Column<Tick> tick_;  // of an idle block
  Column<Origin> origin_;
  ZeroedArray<Ghost> ghosts_;  // then the sentinel
  TagTable table_;             // ghosts by key
  ZeroedArray<std::int64_t> histogram_;
  Tick next_ = 0;
  std::int64_t num_live_ = 0;
  std::int64_t in_use_ = 0;
  std::int64_t num_taken_ = 0;
  std::int64_t num_forgotten_ = 0;
  std::int64_t query_tokens_ = 0;
  std::int32_t unused_ghost_ = -1;
};

}  // namespace blockmgr
