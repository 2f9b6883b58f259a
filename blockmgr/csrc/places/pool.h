// The pool: references, pins, and the queues of blocks in no use.
//
//   capacity = free + idle + fenced + used + withheld
//
// Blocks can be set apart: a partition is a range of blocks and of node ids, with queues, an
// eviction order and a memory of the past of its own, so that nothing that happens in one partition
// is felt in another. Partition 0 is what is left to all others; most pools have no other. It has
// the last blocks, of which a holder can withhold some: see shrink.
//
// Where no group of layers has full attention, the nodes' own blocks are *bare*: they name no
// memory and bound how many nodes there are. Then partition 0 has these, the last ones, and
// partition 1 all others; counts of blocks leave them out.
//
// Observers are notified of runs, each with what a policy knows of the request behind it.
//
// Every function here is noexcept and allocates nothing: callers count first, then commit.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "identity/index.h"
#include "identity/node_ids.h"
#include "memory/node.h"
#include "places/idle_segments.h"
#include "policies/policy.h"
#include "policies/retention.h"
#include "policies/reuse.h"

namespace blockmgr {

class GroupPlaces;

class Pool {
 public:
  // A pool of all blocks but the first num_reserved, with this many fence lists, and a partition
  // for each number of blocks that are set apart. num_bare: blocks that name no memory.
  Pool(Nodes& nodes, PrefixIndex& index, int num_reserved, int num_fences,
       const std::vector<int>& apart = {}, int num_bare = 0);
  // Groups of layers beside full attention have blocks here as well: see there. Before anything is
  // taken.
  void set_groups(GroupPlaces& groups);
  // nullptr: full attention alone.
  const GroupPlaces* groups() const { return groups_; }
  // The node ids that such a pool needs.
  static int num_nodes(int num_blocks, int num_reserved, const std::vector<int>& apart);
  // Records needed past the last node: pending copies, unwritten nodes, fences, and an idle list
  // for each partition.
  static int num_lists(int num_fences, int num_apart) { return 3 + num_fences + num_apart; }
  NodeId copies_sentinel() const { return nodes_.count; }
  NodeId unwritten_sentinel() const { return nodes_.count + 1; }

  int num_blocks() const { return nodes_.num_blocks - num_bare_; }
  int num_reserved() const { return num_reserved_; }
  int capacity() const { return capacity_; }
  int available() const {
    if (is_bare()) [[unlikely]]
      return apart_[0].available();
    return partitions_ ? num_queued_ : common_.available();
  }
  int num_free() const;
  int num_idle() const;
  int num_fenced() const { return is_bare() ? apart_[0].num_fenced : num_fenced_; }
  // Whether the nodes' own blocks are bare.
  bool is_bare() const { return num_bare_ != 0; }
  bool is_bare(NodeId n) const { return is_bare() && number(nodes_.block(n)) >= num_blocks(); }
  // Where the sequences whose nodes a partition has get blocks with memory: there, or beside it.
  int home(int partition) const { return partition + is_bare(); }
  // The partition whose nodes' boundaries keep the blocks of this one.
  int nodes_of(int partition) const { return is_bare() ? 0 : partition; }
  std::int64_t num_evicted() const;

  struct Partition {
    Partition(Nodes& nodes, std::int32_t first, int capacity, NodeId first_node, NodeId sentinel)
        : first(first),
          capacity(capacity),
          range{first_node, NodeIds::count_for(capacity), capacity},
          ids(range),
          free(nodes, first, capacity),
          idle(nodes, range, sentinel) {}
    int available() const { return free.size() + idle.size() + num_kept; }
    bool holds(BlockId b) const { return number(b) >= first && number(b) < first + capacity; }
    // Whether an observer is notified of what happens here.
    bool observed() const { return policy || past; }
    template <class Call>
    void tell(Call call) noexcept {
      if (policy) call(static_cast<Observer&>(*policy));
      if (past) call(static_cast<Observer&>(*past));
    }

    std::int32_t first;  // block
    int capacity;        // blocks
    Range range;
    NodeIds ids;
    FreeBlocks free;
    IdleSegments idle;  // by recency: what became idle first is in front, children before parents
    std::unique_ptr<Policy> policy;        // nullptr: the least recently used block goes first
    RetainingPolicy* retention = nullptr;  // the policy, if it is one
    std::unique_ptr<ReuseTracker> past;    // nullptr: there is no memory
    int num_fenced = 0;
    int num_kept = 0;  // idle parts, each of which a boundary needs
    std::int64_t num_evicted = 0;
    int num_withheld = 0;
  };
  // Blocks from this one on are not handed out: `limit` is one block of home(0), or its end. Free
  // ones are withheld at once, others when they become free. Nothing of what they hold is cached,
  // and it may not be promoted any more.
  void shrink(std::int32_t limit) noexcept;
  // Blocks below this one, which is no lower than the limit, are handed out again.
  void grow(std::int32_t limit) noexcept;
  std::int32_t limit() const { return limit_; }
  bool is_out(NodeId b) const { return number(nodes_.block(b)) >= limit_ && !is_bare(b); }
  int num_withheld() const { return partition(home(0)).num_withheld; }
  // At the end of every call.
  int num_used() const {
    if (is_bare()) [[unlikely]] {
      const Partition& own = apart_[0];
      return capacity() - own.available() - own.num_fenced - own.num_withheld;
    }
    const int available = partitions_ ? num_queued_ : common_.available();
    return capacity() - available - num_fenced_ - common_.num_withheld;
  }
  // Blocks from the limit on that are not free yet. They do not become available.
  int num_leaving() const { return num_leaving_; }
  // Gives a partition its eviction order, under retention or not, and its past. Likewise.
  void observe(int number, std::unique_ptr<Policy> policy, RetainingPolicy* retention,
               std::unique_ptr<ReuseTracker> past);
  int num_partitions() const { return 1 + static_cast<int>(apart_.size()); }
  const Partition& partition(int number) const {
    return number ? apart_[nth(number - 1)] : common_;
  }
  int partition_of(NodeId b) const { return partitions_ ? partitions_[nth(b)] : 0; }

  // A node with a block and one reference, for new content. It is to continue `before`, which may
  // be kNoNode. The partition must have a block available.
  NodeId take(int partition, NodeId before) noexcept;
  // That many of them at once, each to continue the one before it. The same blocks in the same
  // order.
  void take_run(int partition, NodeId before, std::int64_t count, NodeId* out) noexcept;
  // take() of these blocks, distinct and free. They are those that have this mark.
  void take_given(const std::int64_t* blocks, std::int64_t count,
                  const ZeroedArray<std::uint32_t>& marks, std::uint32_t mark) noexcept;
  // A block for take_next(), left where it is. A policy that is asked again may answer another.
  BlockId next(int partition) noexcept {
    Partition& own = at(partition);
    return own.free.empty() ? nodes_.block(victim_of(own)) : own.free.next();
  }
  // take() of the block that next() of this partition has just answered.
  NodeId take_next(int partition, BlockId chosen, NodeId before) noexcept;
  // The next idle node in the eviction order, with its block and for new content; free blocks are
  // left alone.
  NodeId take_idle(int partition) noexcept;
  // That block, left where it is. There must be an idle one.
  NodeId victim(int partition) noexcept { return victim_of(at(partition)); }
  // Adds a table's reference.
  void acquire(NodeId b) noexcept {
    if (debug_) [[unlikely]]
      expect(nodes_.used(b) || nodes_[b].keyed(), "a free block is acquired", b);
    if (!nodes_.used(b)) use(b);
    ++nodes_.uses(b).ref_count;
  }
  // Acquires each block of a chain that the index found, first to last.
  void acquire_chain(const NodeId* chain, std::int64_t count) noexcept;
  void release(NodeId b) noexcept {
    Uses& uses = nodes_.uses(b);
    if (debug_) [[unlikely]]
      if (!expect(uses.ref_count, "a block is released more often than it is held", b)) return;
    --uses.ref_count;
    if (twins_ && !uses.ref_count) [[unlikely]]
      part_from_twins(b);
    if (nodes_.used(b)) return;
    // The usual case without a call: a cached block whose parent is released after it, without
    // an observer.
    const NodeId parent = nodes_[b].parent;
    if (nodes_[b].keyed() && idles_unheard_ && parent >= 0 && nodes_.uses(parent).ref_count) {
      common_.idle.push_back(b);
      --nodes_.uses(parent).pins;
      return;
    }
    unuse(b);
  }
  // Releases each block of a table, last to first.
  void release_table(const NodeId* table, std::int64_t count) noexcept;
  [[gnu::always_inline]] void pin(NodeId b) noexcept {
    if (!nodes_.used(b)) [[unlikely]]
      use(b);
    ++nodes_.uses(b).pins;
  }
  void unpin(NodeId b) noexcept {
    if (debug_) [[unlikely]]
      if (!expect(nodes_.uses(b).pins, "a block is unpinned more often than it is pinned", b))
        return;
    --nodes_.uses(b).pins;
    if (!nodes_.used(b)) unuse(b);
  }
  // Tell the policy of a partition about requests: see Policy.
  void admitted(int number, Run found) noexcept {
    if (Policy* policy = at(number).policy.get()) policy->admitted(found);
  }
  void hit(NodeId b) noexcept {
    if (Policy* policy = of(b).policy.get()) policy->on_hit(b);
  }
  // Makes an idle block the one that was used last; of a chain, the deepest first.
  void touch(NodeId b) noexcept {
    Partition& own = of(b);
    own.idle.remove(b);
    own.idle.push_back(b);
    own.tell([b](Observer& each) { each.on_touched(b); });
  }
  std::size_t memory() const;
  // nullptr: there is no tracker.
  ReuseTracker* past(int number) { return at(number).past.get(); }
  const ReuseTracker* past(int number) const { return partition(number).past.get(); }

  // Whether using this block makes one fewer available.
  bool counts_as_available(NodeId b) const { return !nodes_.used(b) && !nodes_[b].fence; }

  // How many of a chain that the index found do so.
  std::int64_t count_available(const NodeId* chain, std::int64_t count) const;

  // acquire(twin), then release(own), of two blocks with the same content.
  void exchange(NodeId own, NodeId twin) noexcept;
  // Gives a used block its key. The parent is kept for as long as the block is used. tell_cached
  // then notifies observers of the run, before anything else happens to it.
  void promote(NodeId b, const Key& key, const std::uint8_t* digest) noexcept {
    if (debug_) [[unlikely]]
      expect(nodes_.used(b) && !nodes_[b].keyed(), "a block that is not owned is promoted", b);
    index_.insert(b, key, digest);
    if (key.parent >= 0) pin(key.parent);
  }
  void promote_tail(NodeId b, const Key& key, int num_tokens) noexcept;
  void tell_cached(Run run) noexcept {
    if (!idles_unheard_ && run.count) [[unlikely]]
      of(run.nodes[0]).tell([&](Observer& each) { each.on_cached(run); });
  }
  // For callers who know blocks by their ids and ask whether one still has the content it had: the
  // generation of its node, which no later node of the block falls below. Before anything is taken.
  void keep_generations() {
    generations_ = std::make_unique<ZeroedArray<std::uint32_t>>(nth(nodes_.num_blocks));
  }
  std::uint32_t generation(std::int64_t block) const {
    const NodeId n = nodes_.owner(block);
    return n < 0 ? last_generation(block) : nodes_[n].generation;
  }
  // The generation of the node that had the block before the present one, or last if it is free.
  std::uint32_t last_generation(std::int64_t block) const { return (*generations_)[nth(block)]; }
  // Takes a block's key away; it must have no children. Unused, it becomes free.
  void forget(NodeId b) noexcept;
  // forget() of a node and of all that continues it, the deepest first: gone(node) after each.
  template <class Gone>
  void forget_tree(NodeId b, Gone gone) noexcept {
    for (NodeId node = b; nodes_[b].keyed();) {
      while (nodes_[node].first_child >= 0) node = nodes_[node].first_child;
      const NodeId parent = nodes_[node].parent;
      forget(node);
      gone(node);
      node = node != b && nodes_[parent].keyed() ? parent : b;
    }
  }
  // forget() of idle nodes [first, last], each but the last the parent of the next and of no other.
  void forget_run(NodeId first, NodeId last) noexcept;
  // Whether this cached record is a part of a further group of layers, see GroupPlaces.
  static bool is_part(const Node& record) { return record.parent == kNoNode; }
  // Idle parts of one partition, whose keys were taken, become free.
  void free_parts(const NodeId* parts, std::int64_t count) noexcept;
  // acquire() of a part that others may find.
  void acquire_part(NodeId m) noexcept {
    Uses& uses = nodes_.uses(m);
    if (nodes_.used(m) || nodes_[m].fence) return acquire(m);
    num_queued_ -= partitions_ != nullptr;
    --of(m).num_kept;
    uses.ref_count = 1;
  }
  // release() of a part that others may find, and that a boundary needs.
  void release_part(NodeId m) noexcept {
    Uses& uses = nodes_.uses(m);
    if (!keeps_parts() || uses.ref_count + uses.pins != 1) return release(m);
    uses = Uses();
    count_kept(partition_of(m), 1);
  }
  // Whether release_part() of one in no other use ends all its uses, and count_kept() is the rest.
  bool keeps_parts() const { return !open_fence_ && !debug_; }
  void count_kept(int partition, int count) noexcept {
    if (partitions_) num_queued_ += count;
    at(partition).num_kept += count;
  }
  // Takes the key of a node that waits in no queue, and is about to.
  void uncache(NodeId b) noexcept;
  // Evicts this idle node of a partition, whose block becomes free. What it continued.
  NodeId evict_idle(int partition, NodeId n) noexcept;
  void count_evicted(int partition, std::int64_t count = 1) noexcept {
    at(partition).num_evicted += count;
  }
  // With append-only deduplication. Before anything is taken.
  void keep_twins() { twins_ = std::make_unique<ZeroedArray<NodeId>>(nth(nodes_.count)); }
  // The cached block stands for this private one, with the same content, from here on; or, if no
  // table names it, its key passes to the private one.
  void set_twin(NodeId b, NodeId cached) noexcept;
  // Before a private block comes to differ from its cached twin, if it has one.
  void drop_twin(NodeId b) noexcept;
  // The private blocks that a cached one stands for, the last to become so first.
  NodeId first_twin(NodeId b) const { return twins_ ? (*twins_)[nth(b)] - 1 : kNoNode; }
  template <class Visit>
  void each_twin(NodeId cached, Visit visit) const {
    for (NodeId b = first_twin(cached); b >= 0; b = nodes_[b].next_sibling) visit(b);
  }
  // Makes an idle tail the private block of one table, its tokens in place.
  void take_over(NodeId tail) noexcept;

  // Blocks released from here on wait in this fence list; 0: in none.
  void set_fence(int fence) {
    open_fence_ = fence;
    idles_unheard_ = !fence && !common_.observed() && plain_ && !num_leaving_;
  }
  // Moves what waits in one fence list to another, or (0) to the queues.
  void move_fence(int from, int to) noexcept;

  // From here on, each step also looks at the blocks it touches, and blocks that become free are
  // overwritten, so that a use of one after that shows. Costs a few instructions a step.
  void set_debug(bool debug) noexcept;
  // The first thing such a look found wrong since the last time; empty: nothing.
  std::string take_fault();

  const FreeBlocks& free_blocks(int number = 0) const { return partition(number).free; }
  const IdleSegments& idle_list(int number = 0) const { return partition(number).idle; }
  const Policy* policy(int number = 0) const { return partition(number).policy.get(); }
  const NodeList& fence_list(int fence) const { return fences_[nth(fence - 1)]; }
  int num_fences() const { return static_cast<int>(fences_.size()); }

 private:
  Partition& at(int number) { return number ? apart_[nth(number - 1)] : common_; }
  // The partition that a block is of, free or not.
  Partition& holder_of(BlockId b) {
    for (Partition& own : apart_)
      if (own.holds(b)) return own;
    return common_;
  }
  Partition& of(NodeId b) { return partitions_ ? at(partition_of(b)) : common_; }
  int number_of(const Partition& own) const {
    return &own == &common_ ? 0 : 1 + static_cast<int>(&own - apart_.data());
  }
  template <class Count>
  auto sum(Count count) const {
    auto total = count(common_);
    for (const Partition& p : apart_) total += count(p);
    return total;
  }
  // Remembers the first thing that does not hold. Nothing here may throw.
  bool expect(bool holds, const char* otherwise, NodeId b) noexcept;
  void set_first_twin(NodeId b, NodeId twin) noexcept { (*twins_)[nth(b)] = twin + 1; }
  void part_from_twins(NodeId b) noexcept;
  void hand_over(NodeId from, NodeId to) noexcept;
  void bind(NodeId n, BlockId b) noexcept;
  [[gnu::always_inline]] inline BlockId unbind(NodeId n) noexcept;
  [[gnu::always_inline]] inline BlockId unbind(Partition& own, NodeId n) noexcept;
  void poison(NodeId b) noexcept;
  void check_taken(NodeId b) noexcept;
  void use(NodeId b) noexcept;
  void unuse(NodeId b) noexcept;
  void free_idle(NodeId b) noexcept;
  [[gnu::noinline]] void requeue(NodeId b) noexcept;
  void enqueue(NodeId b, int fence) noexcept;
  [[gnu::noinline]] void tell_unused(NodeId b) noexcept;
  void withhold_freed() noexcept;
  void dequeue(NodeId b) noexcept;
  [[gnu::noinline]] void tell_used(NodeId b) noexcept;
  [[gnu::noinline]] static void tell_taken(Partition& own) noexcept;
  [[gnu::noinline]] void tell_uncached(Partition& own, NodeId b, bool evicted) noexcept;
  std::int64_t count_run(const NodeId* table, std::int64_t count) const;
  std::int64_t release_cached(const NodeId* table, std::int64_t count) noexcept;
  BlockId take_block(Partition& own) noexcept;
  void evict(Partition& own, NodeId b) noexcept;
  [[gnu::noinline]] BlockId evict_block(Partition& own) noexcept;
  BlockId evict_node(Partition& own, NodeId n) noexcept;
  void sweep(Partition& own, std::int64_t count) noexcept;
  std::int64_t sweep_list(NodeId first, std::int64_t most, std::int64_t& visited) noexcept;
  void evict_run(Partition& own, std::int64_t count, std::int32_t* blocks) noexcept;
  void enqueue_in(Partition& own, NodeId b, int fence) noexcept;
  void dequeue_from(Partition& own, NodeId b) noexcept;
  static NodeId victim_of(Partition& own) noexcept {
    const NodeId chosen = own.policy ? own.policy->victim() : kNoNode;
    return chosen >= 0 ? chosen : own.idle.front();
  }

  Nodes& nodes_;
  PrefixIndex& index_;
  int num_reserved_;
  int num_bare_;
  int capacity_;
  Partition common_;
  std::vector<Partition> apart_;
  std::unique_ptr<std::uint16_t[]>
      partitions_;      // number of each node's partition, if there are any
  int num_queued_ = 0;  // free and idle blocks; with partitions only
  // By cached block, the first of its twins, plus 1; the others are its siblings. nullptr: there
  // are none.
  std::unique_ptr<ZeroedArray<NodeId>> twins_;
  // By block, the generation of the node that had it before the present one. nullptr: not kept.
  std::unique_ptr<ZeroedArray<std::uint32_t>> generations_;
  // As is_part. Asks nothing of the record if there are no further groups.
  bool is_group_part(const Node& record) const { return groups_ && is_part(record); }
  // Tells the places of further groups of layers, if there are any.
  template <class Tell>
  void tell_groups(Tell tell) {
    if (groups_) tell(*groups_);
  }

  // Whether a policy or a group of layers gets to know what stops being cached in a partition.
  bool is_heard(const Partition& own) const { return own.observed() || groups_; }

  GroupPlaces* groups_ = nullptr;  // nullptr: full attention alone
  std::vector<NodeList> fences_;
  int open_fence_ = 0;
  bool plain_;  // none are apart, and there are no further groups
  // The same, and no fence is open, without which no block is fenced; there is no observer, and no
  // block is leaving.
  bool idles_unheard_;
  std::int32_t limit_;
  int num_leaving_ = 0;
  int num_fenced_ = 0;
  bool debug_ = false;
  const char* fault_ = nullptr;
  std::int32_t fault_block_ = -1;
};

}  // namespace blockmgr
