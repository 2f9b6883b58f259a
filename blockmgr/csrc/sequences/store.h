// The store: what stands under every holder of blocks: sequences with tables (sequences.h) or
// callers who name single blocks (block_pool.h).
//
// Blocks, the prefix index, the pool with its partitions, copy-on-write and the steps are here and
// nowhere else; a holder adds who refers to which block.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "identity/digest.h"
#include "identity/event_columns.h"
#include "identity/index.h"
#include "memory/errors.h"
#include "memory/node.h"
#include "places/group.h"
#include "places/pool.h"
#include "policies/retention.h"
#include "sequences/copies.h"
#include "sequences/monitor.h"

namespace blockmgr {

class BlockAudit;

// Blocks set apart for one namespace.
struct Quota {
  std::string name;
  int blocks;
};

struct StoreConfig {
  int num_blocks = 0;
  int block_size = 0;
  bool null_block = false;
  bool remap = true;  // deduplicate by remapping; else leave tables append-only
  int steps_in_flight = 0;
  std::string eviction = "lru";
  int ghost_blocks = 0;  // evicted blocks that are remembered; 0: uses are not followed at all
  bool retention = false;
  int max_pinned_blocks = 0;
  int max_sessions = 0;  // that sequences belong to
  int event_blocks = 0;  // blocks that wait in the log of events; 0: there is none
  std::vector<Quota> quotas;
  std::vector<Group> groups;      // of layers, beside one of full attention
  int full_group = 0;             // which one that is, in the order of the engine
  int num_nodes = 0;              // where there is no such group: the most nodes there are
  bool evicts_on_demand = false;  // a holder may have blocks evicted while others are free

  // Calls with the name of each option that is a number, a flag or a name, and with its member.
  template <class Visit>
  void each_option(Visit visit) {
    visit("num_blocks", num_blocks);
    visit("block_size", block_size);
    visit("null_block", null_block);
    visit("remap", remap);
    visit("steps_in_flight", steps_in_flight);
    visit("eviction", eviction);
    visit("ghost_blocks", ghost_blocks);
    visit("retention", retention);
    visit("max_pinned_blocks", max_pinned_blocks);
    visit("event_blocks", event_blocks);
    visit("full_group", full_group);
    visit("num_nodes", num_nodes);
  }
};

class Store {
 public:
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  const Nodes& nodes() const { return nodes_; }
  const Pool& pool() const { return pool_; }
  const PrefixIndex& index() const { return index_; }
  const CopyTracker& copies() const { return copies_; }
  bool has_groups() const { return has_groups_; }
  bool retains() const { return retains_; }
  // Sums a count over the retention of all partitions.
  template <class Count>
  std::int64_t sum_retained(Count count) const {
    std::int64_t total = 0;
    for (int i = 0; retains_ && i < pool_.num_partitions(); ++i)
      total += count(*pool_.partition(i).retention);
    return total;
  }
  // The retention of the partition of a block; nullptr: there is none.
  const RetainingPolicy* retention(NodeId b) const {
    return retains_ ? pool_.partition(pool_.partition_of(b)).retention : nullptr;
  }
  // The level of a block; kNormal without retention.
  Level level(NodeId b) const {
    return retains_ ? pool_.partition(pool_.partition_of(b)).retention->level(b) : kNormal;
  }
  // The pins that a partition may have at a time, and the blocks they may cover.
  static int share_of_pins(const StoreConfig& config, int capacity);
  // The blocks that holders in this namespace are given.
  const Pool::Partition& quota(std::string_view name) const {
    return pool_.partition(partition_of(name));
  }
  // Retention: levels, pins and time. See RetainingPolicy.
  void unpin(std::int64_t pin);
  RetainingPolicy::Pin view_pin(std::int64_t pin) const;
  void set_time(double seconds);
  double time() const;
  // Throws unless there is retention to do this call.
  void check_retaining(const char* call) const;

  // Held by every call that is not const. Readers hold it as well.
  Monitor& monitor() const { return monitor_; }

  // The plan's copies stay valid until the ticket is resolved.
  std::int64_t take_copies(std::vector<BlockCopy>& copies);
  void copies_applied(std::int64_t ticket);
  void copies_aborted(std::int64_t ticket);
  // For a caller that could not pass the plan on: as if it had never been taken.
  void return_copies(std::int64_t ticket) noexcept;
  void complete(std::int64_t ticket);

  // What became findable and what stopped being so since the last drop, and what is findable now.
  // The caller holds the monitor.
  EventColumns events() const { return pending_events(index_, nodes_); }
  EventColumns residents() const { return resident_events(index_, nodes_, step_); }
  // Once they are passed on. False: there are others by now, and nothing is dropped.
  bool drop_events(std::int64_t version);

  // take_copies, copies_aborted and return_copies under a monitor that the caller holds.
  std::int64_t take_plan(std::vector<BlockCopy>& copies);
  void apply_plan(std::int64_t ticket);
  void abort_plan(std::int64_t ticket);
  bool return_plan(std::int64_t ticket) noexcept;

  std::uint16_t partition_of(std::uint32_t root) const {
    return root < partitions_.size() ? partitions_[root] : std::uint16_t{0};
  }
  std::uint16_t partition_of(std::string_view name) const {
    return partitions_.empty() ? std::uint16_t{0} : partition_of(index_.find_root(name));
  }
  std::int64_t available(int partition) const { return pool_.partition(partition).available(); }
  // Throws unless so many blocks can be had.
  void check_available(std::int64_t needed, int partition = 0) const {
    if (needed > available(partition)) throw_out_of_blocks(needed, partition);
  }
  // Likewise of so many nodes, with their own blocks, and of other blocks for sequences that have
  // their nodes in this partition.
  void check_available(std::int64_t nodes, std::int64_t others, int partition) const {
    const int home = pool_.home(partition);
    if (home == partition) [[likely]]
      return check_available(nodes + others, partition);
    check_available(nodes, partition);
    check_available(others, home);
  }
  [[noreturn]] void throw_out_of_blocks(std::int64_t needed, int partition) const;

  // The node that has this block; kNoNode: it is free. Throws for what is no block. position: of
  // the block in a list, for the message; -1: it stands alone.
  NodeId checked_block(std::int64_t id, std::int64_t position) const {
    if (id < pool_.num_reserved() || id >= pool_.num_blocks()) [[unlikely]]
      throw_no_block(id, position);
    return nodes_.owner(id);
  }
  // Whether a write into this block would be seen by others.
  bool is_shared(NodeId b) const { return nodes_.uses(b).ref_count > 1 || nodes_[b].keyed(); }
  // A fresh block stands for a shared one from here on, of which it takes over the leading
  // num_known token ids. The K/V of the leading num_tokens is copied, as far as a copy can bring
  // it: of how many. The caller drops its reference to the shared one.
  std::int32_t copy_to_fresh(NodeId shared, NodeId fresh, std::int64_t num_known,
                             std::int64_t num_tokens) noexcept;
  // Blocks that are set apart, by quota.
  static std::vector<int> apart(const StoreConfig& config);
  // A table's reference goes, and with the last one what was to be copied into the block.
  void drop_reference(NodeId b) noexcept {
    if (nodes_[b].copy_source != kNoNode) [[unlikely]]
      release_destination(b);
    pool_.release(b);
  }
  // Makes block i of a chain findable, the blocks before it being chain[0, i). The caller that
  // promotes a run tells of it when it is whole: Pool::tell_cached.
  void make_findable(NodeId b, const Key& key, const std::uint8_t* digest, const NodeId* chain,
                     std::int64_t i) noexcept {
    pool_.promote(b, key, digest);
    if (i >= kSkip) nodes_[chain[i - kSkip]].skip = b;
  }
  std::size_t store_memory() const;
  // checks/holders.cc
  void audit_shares(BlockAudit& audit) const;
  // The blocks that follow a chain and were evicted: what a larger pool would have found. Hashes
  // blocks [from, limit) of the tokens as far as they are remembered, and one more; node is what
  // the first of them continues. How many, into out.
  std::int64_t find_ghosts(const ReuseTracker& past, const Token* tokens, std::int64_t from,
                           std::int64_t limit, NodeId node, const ExtrasIds* extras,
                           std::int32_t* out);

  // retention.cc: by partition, as every call on retention is. Throws unless there is retention.
  RetainingPolicy& retaining(const char* call, int partition) const;
  // The partition that a pin is of. Throws for none that is known.
  RetainingPolicy& pinning(const char* call, std::int64_t pin) const;
  // Makes a pin of these blocks, the last of which is the deepest; announce is told its number.
  std::int64_t pin_chain(RetainingPolicy& policy, NodeId tail, std::int64_t num_blocks,
                         const std::function<void(std::int64_t)>& announce);

 protected:
  // what: the kind of holder, for messages. make: makes a policy of the caller's own, for each
  // partition that has blocks; empty: the config names one.
  Store(const StoreConfig& config, std::unique_ptr<Digester> digester, const char* what,
        const PolicyMaker& make = nullptr);
  ~Store() = default;

  std::unique_ptr<Digester> digester_;
  Nodes nodes_;
  PrefixIndex index_;
  Pool pool_;
  CopyTracker copies_;
  NodeList unwritten_;                     // what was promoted ahead of this step's forward
  std::vector<std::uint16_t> partitions_;  // by root, of those that may have one of their own

  std::int64_t step_ = 0;  // steps whose copies were applied: what was committed before is written
  std::int64_t last_ticket_ = 0;
  struct OpenStep {
    std::int64_t ticket;
    int fence;
  };
  std::vector<OpenStep> open_steps_;  // launched and not complete, oldest first
  int steps_in_flight_;
  bool retains_;
  bool has_groups_;
  double time_ = 0;  // set last; all partitions have the same
  mutable Monitor monitor_;

 private:
  friend class Audit;
  template <class, class...>
  friend class Part;
  [[noreturn, gnu::cold]] void throw_no_block(std::int64_t id, std::int64_t position) const;
  void release_destination(NodeId b) noexcept;
  void name_partitions(const StoreConfig& config);
  void observe(const StoreConfig& config, const PolicyMaker& make);
  void check_launch() const;
  void abort_copies(std::int64_t ticket) noexcept;
};

}  // namespace blockmgr
