// The blocks of further groups of layers, by node; and which of them are worth keeping.
//
// A node is identity, and full attention's block is that of the node itself. Each further group has
// blocks of its own: a *part* is a record of the pool with one block, and each node has at most one
// part in a group. A part is owned or cached as a node is; it has no key of its own, because
// it is found through its node.
//
// A *boundary* is the end of a cached prefix at which every group holds what the next query reads.
// An idle block that no boundary needs is free at once, nodes included. So the pool evicts
// boundaries: mostly first the oldest of those that a sequence only passed; then the oldest path's
// deepest, as the pool orders idle nodes; then, of those that running sequences have passed, the
// one that came into use last. With retention, the lowest level of the last two goes first.
//
// With windows or chunks and no states, each block that a sequence fills ends at a boundary, and
// each takes a block of every window. Prompts continue from few of them: from the end of a prompt
// or of a sequence, and from where prompts diverge. All others are *passed* boundaries. When a
// prompt has continued from the end of an earlier turn, that end and those before it are passed,
// too: the next turn reads the windows of the new end. They stay where several prompts continue,
// where others use them, and where they are retained. Where the windows and chunks of a boundary
// begin with its path, the query at an earlier place reads nothing else. So eviction shortens the
// path from its end.
//
// Prompts may also diverge anywhere. Where full attention has more of a prompt than it finds, a
// passed boundary that had stayed would have served it: then some blocks are evicted in one order
// of all boundaries, see OneOrder.
//
// With a margin, prompts continue so many tokens before a boundary that they find. So a boundary
// keeps what the queries from there on read, as long as it is cached; and the end of an earlier
// turn is passed, although the next prompt continued before it. States have no margin: stops come
// earlier.
//
// With states, a sequence leaves three boundaries: the one from which it continued, the end of its
// last whole block, and its own end, a tail behind that block. Their states take blocks that could
// hold a part of another path instead. Of the last two, the one that is expected to serve fewer
// tokens a block is passed, until a prompt continues from it. So is the first one, unless others
// continue there, too. What prompts continue from is counted: see ContinuedEnds. With
// prompt_end_stop it leaves a fourth, near the end of its prompt, which is passed from the first.
//
// For each node, `near` is the length of the shortest prefix that ends at a boundary at or below
// the node, as long as that boundary keeps the node's unit, or one before it, in some group of
// attention.
// Longer prefixes keep later units, so this one tells which parts of the node are needed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "identity/index.h"
#include "memory/node.h"
#include "places/group.h"
#include "policies/observer.h"

namespace blockmgr {

class Pool;

// Which boundaries of a sequence with states are worth their blocks? Counts from which ones prompts
// continue. Of 32 sequences one is observed: none of its boundaries is passed.
class ContinuedEnds {
 public:
  enum class Kind { kWholeBlock, kEnd, kAgain };

  // A prompt continued from an observed boundary. kAgain: as one had done before.
  void count(Kind kind) noexcept {
    ++(kind == Kind::kAgain ? again_ : kind == Kind::kEnd ? ends_ : whole_blocks_);
    if (whole_blocks_ + ends_ < kMost) return;
    whole_blocks_ = (whole_blocks_ + 1) / 2;
    again_ = (again_ + 1) / 2;
    ends_ /= 2;
  }
  // A sequence has ended; whether it is observed.
  bool observes_next() noexcept { return ++num_ended_ % kEvery == 0; }
  // The last whole block serves all prompts that continue, the end those that continue behind it:
  // whether the former serves more tokens for each block that it takes.
  bool prefers_whole_block(std::int64_t path_blocks, int block_size, int tail_tokens,
                           int state_blocks) const {
    const auto tokens = static_cast<double>(path_blocks * block_size);
    const auto blocks = static_cast<double>(path_blocks + state_blocks);
    const auto all = static_cast<double>(whole_blocks_ + ends_);
    return all * tokens * (blocks + 1) >
           static_cast<double>(ends_) * (tokens + tail_tokens) * blocks;
  }
  // Whether the states of a boundary from which one prompt continued are worth less, by those that
  // continue a second time, than as many blocks of another path.
  bool outlives(std::int64_t path_blocks, int state_blocks) const {
    return again_ * (path_blocks + state_blocks) >= (whole_blocks_ + ends_) * state_blocks;
  }
  // checks/holders.cc
  void fingerprint(std::string& out) const;

 private:
  static constexpr std::int64_t kEvery = 32;
  static constexpr std::int64_t kMost = 1024;
  std::int64_t num_ended_ = 0;
  std::int64_t whole_blocks_ = 1;
  std::int64_t again_ = 1;
  std::int64_t ends_ = 4;
};

// With windows or chunks and no states: how many of the next blocks of a partition are evicted as
// if no boundary were passed. The number grows with the units that prompts compute again although
// full attention has them, and with the share of prompts that continue from passed boundaries:
// where no prompt does so, another order would not help.
class OneOrder {
 public:
  bool is_due() const { return num_blocks_ > 0; }
  void count_evicted(std::int64_t blocks) noexcept { num_blocks_ -= blocks; }
  // A prompt continued from a passed boundary.
  void count_found() noexcept { ++found_; }
  // A prompt computes so many units again. Their blocks were evicted under an earlier order, so at
  // most all blocks are evicted once in this one.
  void count_missed(std::int64_t units, std::int64_t most_blocks) noexcept {
    ++missed_;
    const std::int64_t blocks = kBlocksPerUnit * units * found_ / (found_ + missed_);
    num_blocks_ = std::min(most_blocks, num_blocks_ + blocks);
    if (found_ + missed_ < kMost) return;
    found_ /= 2;
    missed_ /= 2;
  }
  // checks/holders.cc
  void fingerprint(std::string& out) const;

 private:
  // Measured: with a larger number, prompts that continue from ends find less; with a smaller one,
  // prompts that diverge anywhere do.
  static constexpr std::int64_t kBlocksPerUnit = 32;
  static constexpr std::int64_t kMost = 64;
  std::int64_t num_blocks_ = 0;  // below 0 if the last eviction freed more
  std::int64_t found_ = 0;
  std::int64_t missed_ = 0;
};

class GroupPlaces {
 public:
  // groups: all but the one of full attention whose blocks are the nodes' own.
  GroupPlaces(Nodes& nodes, PrefixIndex& index, Pool& pool, std::vector<Group> groups,
              int num_partitions, std::int64_t margin);

  int num_groups() const { return num_groups_; }
  // Whether a sequence can begin after so many tokens: every ring is right there if it is empty, or
  // is computed again. A hit of no more tokens than are computed again counts as none.
  bool can_start(std::int64_t length) const {
    return (restart_ == 1 || length % restart_ == 0) && (length > replay_ || !length);
  }
  std::int64_t restart() const { return restart_; }
  // Of so many tokens, those behind the last place where every ring can begin empty.
  std::int64_t past_start(std::int64_t length) const {
    return restart_ == 1 ? 0 : length % restart_;
  }
  // Whether every ring is right after so many tokens if it is empty there.
  bool begins_empty(std::int64_t length) const { return length % ring_restart_ == 0; }
  // Tokens before a hit that are computed again, for all uncached groups: the most of any.
  std::int64_t replay() const { return replay_; }
  // Where the first forward behind a hit of so many tokens begins.
  std::int64_t start_of(std::int64_t hit) const { return hit - std::min(replay_, hit); }
  // The first unit of a slice that has this position or a later one.
  std::int64_t unit_at(int g, std::int64_t position) const {
    return (position + nodes_.block_size - group(g).end) / nodes_.block_size;
  }
  const Group& group(int g) const { return groups_[nth(g)]; }
  // The first unit that the query at this position reads or writes.
  std::int64_t first_unit(int g, std::int64_t position) const {
    return unit_at(g, group(g).first_read(position));
  }
  // Whether the query after so many tokens reads this unit. Attention only.
  [[gnu::always_inline]] bool reads(const Group& group, std::int64_t length,
                                    std::int64_t unit) const {
    const std::int64_t start = unit * nodes_.block_size;
    return group.first_read(length) < start + group.end && start + group.begin < length;
  }
  bool reads(int g, std::int64_t length, std::int64_t unit) const {
    return reads(group(g), length, unit);
  }
  // Whether the boundary after so many tokens keeps this unit. Attention only.
  bool keeps(const Group& group, std::int64_t length, std::int64_t unit) const {
    const std::int64_t start = unit * nodes_.block_size;
    return group.first_read(continued_at(length)) < start + group.end &&
           start + group.begin < length;
  }
  // How many tokens before a boundary prompts continue that find it; and where that is.
  std::int64_t margin() const { return margin_; }
  std::int64_t continued_at(std::int64_t length) const {
    return length - std::min(margin_, length);
  }

  // The part that a node has in a group; kNoNode: none.
  NodeId part(int g, NodeId n) const { return stored(g, n) - 1; }
  // The same if others may find it.
  NodeId cached(int g, NodeId n) const {
    const NodeId m = part(g, n);
    return m >= 0 && nodes_[m].keyed() ? m : kNoNode;
  }
  // Gives a node this part. What stands there is forgotten, not released.
  void set_part(int g, NodeId n, NodeId part) noexcept;
  void clear_part(int g, NodeId n) noexcept { stored(g, n) = 0; }
  // A new node has none.
  void clear_parts(NodeId n) noexcept {
    set_owner(n, -1);
    for (int g = 0; g < num_groups(); ++g) clear_part(g, n);
  }
  void clear_parts(const NodeId* nodes, std::int64_t count) noexcept;
  // The group of a record; -1: full attention.
  int owner(NodeId m) const { return groups_.empty() ? -1 : owners_[nth(m)] - 1; }
  void set_owner(NodeId m, int g) noexcept { owners_[nth(m)] = static_cast<std::uint8_t>(g + 1); }
  // Makes a part that is used findable through its node.
  void keep(NodeId part) noexcept {
    num_cached_ += !nodes_[part].keyed();
    nodes_[part].key_tokens = 1;
  }
  // All parts of attention that a node has.
  void keep_parts(NodeId n) noexcept {
    for (int g = 0; g < num_groups(); ++g)
      if (const NodeId m = part(g, n); m >= 0 && group(g).is_attention()) keep(m);
  }
  // Takes that away again.
  void unkeep(NodeId part) noexcept {
    if (is_told(part)) [[unlikely]]
      tell_lost(part);
    num_cached_ -= nodes_[part].keyed();
    ++nodes_[part].generation;  // it may be kept again with other content, as a state is
    nodes_[part].key_tokens = 0;
  }
  // Writes down for mirrors, if there is a log, that a part can be found, or all parts of some
  // nodes, group by group. Tails have no events, and their parts have none; a state has none while
  // it is being kept.
  void tell_kept(NodeId part) noexcept;
  void tell_kept(const NodeId* nodes, std::int64_t count) noexcept;
  bool is_told(NodeId part) const { return facts_[nth(part)] & kTold; }
  // Whether mirrors do not know of it, and should.
  bool is_untold(NodeId part) const {
    return index_.log() && !is_told(part) && has_event(group_of(part), node_of(part));
  }
  // Whether events tell of a full node by this slice, among others: it has all slices of the group
  // that the query right behind the node reads, and this is one of them.
  bool has_event(int g, NodeId n) const {
    const Group& of = group(g);
    if (!of.has_events || nodes_[n].key_tokens != nodes_.block_size) return false;
    return of.num_slices == 1 || (g >= first_told(g, n) && is_whole(g, n));
  }
  // Whether the part of this node is the one in the events, among those of nodes with its digest.
  bool stands_for_digest(int g, NodeId n) const;
  // Parts that can be found.
  int num_cached() const { return num_cached_; }
  int group_of(NodeId part) const { return static_cast<int>(nodes_[part].extras); }
  NodeId node_of(NodeId part) const { return nodes_[part].hint; }

  // A node that became findable as the given unit of its path.
  void place(NodeId n, std::int64_t unit) noexcept;
  std::int64_t unit(NodeId n) const { return units_[nth(n)]; }
  // Tokens of the prefix that ends here.
  std::int64_t length(NodeId n) const { return unit(n) * nodes_.block_size + nodes_[n].key_tokens; }
  bool is_boundary(NodeId n) const { return facts_[nth(n)] & kBoundary; }
  // Whether prompts continue from the end of a node; with full attention alone, from that of each.
  bool continues(NodeId n) const { return !num_groups_ || is_boundary(n); }
  // Whether shorter tails than a unit may continue this node: a guess that is never wrongly no.
  bool has_tails(NodeId n) const { return n < 0 || (facts_[nth(n)] & kHasTails); }
  // Whether prompts diverge here: each continues in a copy, so that the next one finds it, too.
  bool is_branch(NodeId n) const { return num_groups_ && facts_[nth(n)] & kBranch; }
  void set_branch(NodeId n) noexcept { facts_[nth(n)] |= kBranch; }
  // Whether a copy that is not applied put this state here: prompts find it afterwards.
  bool is_being_kept(NodeId part) const { return nodes_[part].skip < 0; }
  void set_being_kept(NodeId part, bool being_kept) noexcept {
    nodes_[part].skip = being_kept ? kNoNode : 0;
  }

  // All that its next query reads is cached. As the last one to come into use, if it is in use.
  // passed: only the passing of a sequence made it one, so it goes before all that are not.
  void add_boundary(NodeId n, bool passed = false) noexcept;
  // The same of nodes that are none yet, each the parent of the next; as passed ones.
  void add_passed(const NodeId* nodes, std::int64_t count) noexcept;
  // Visits the passed boundaries of a partition in the order of eviction, as long as it is answered
  // yes.
  template <class Visit>
  void each_passed(int partition, Visit visit) const {
    const NodeId sentinel = nodes_.count + partition;
    for (NodeId n = passed_[nth(sentinel)].next; n != sentinel && visit(n);)
      n = passed_[nth(n)].next;
  }
  bool is_passed(NodeId n) const { return facts_[nth(n)] & kPassed; }
  void clear_passed(NodeId n) noexcept;
  // Prompts continue from this boundary, or diverge there: it is more than passed.
  void note_continued(NodeId n) noexcept {
    if (!num_groups_ || !is_boundary(n)) return;
    clear_passed(n);
    facts_[nth(n)] |= kContinued;
  }
  // The end of what is retained: without a boundary there, no prompt could continue from it.
  void keep_boundary(NodeId n) noexcept {
    if (!continues(n)) add_boundary(n);
    note_continued(n);
  }
  // The same, and a prompt does so now.
  void continue_from(NodeId n) noexcept;
  // A prompt computes so many units again of what full attention has of it.
  void count_missed(int partition, std::int64_t units) noexcept;
  // The nodes of a path up to the boundary from which a prompt has continued, when the prompt has a
  // boundary of its own: those of earlier turns are passed from now on, unless others need them.
  void pass_earlier(const NodeId* path, std::int64_t count) noexcept;
  // A boundary from which no prompt is expected to continue is passed from now on, even if prompts
  // diverged there before. False: with full attention alone, levels say which blocks go first.
  bool let_go(NodeId n) noexcept {
    if (!num_groups_) return false;
    if (is_boundary(n)) {
      facts_[nth(n)] &= static_cast<std::uint8_t>(~kDiverged);
      pass(n);
    }
    return true;
  }
  // Prompts diverge here: several continue.
  void note_diverged(NodeId n) noexcept;
  // With states, a sequence has continued from one boundary, stopped at the end of its last whole
  // block and ended in a tail: some of the three are passed. found, whole, tail: kNoNode for none.
  // resumes: it is preempted.
  void end_path(NodeId found, NodeId whole, NodeId tail, bool resumes) noexcept;
  // It goes, for instance since what it needs becomes a sequence's own.
  void end_boundary(NodeId n) noexcept {
    if (is_boundary(n)) remove_boundary(n);
  }
  // The part of a node, which is used, is found no more, and the boundaries that read it end.
  void lose_part(int g, NodeId n) noexcept;
  // Before an unused block waits in a queue: if no boundary needs it, it loses its key.
  void before_unused(NodeId b) noexcept {
    if (nodes_[b].keyed()) before_idle(b);
  }
  // Gives the pool free blocks until there are so many, which must be available in the partition.
  void evict(int from, std::int64_t count) noexcept;
  // From a node on, towards the root: takes the keys of idle nodes that no boundary needs.
  void prune(NodeId n) noexcept;

  // Whether an idle node stays, by what is cached below it or what ends there.
  bool stays(NodeId n) const { return is_boundary(n) || nodes_[n].first_child >= 0; }
  // Whether the node's part stays when its use ends.
  bool is_needed(int g, NodeId n) const {
    if (group(g).is_attention()) [[likely]]
      return is_kept(group(g), n, unit(n));
    return group(g).recurrent() && is_boundary(n);
  }
  // Whether a boundary keeps a node, which is this unit of its path, in a group of attention.
  bool is_kept(const Group& group, NodeId n, std::int64_t unit) const {
    return near(n) != kNever && keeps(group, near(n), unit);
  }

  // Told by the pool, of nodes.
  void on_used(NodeId n) noexcept {
    if ((facts_[nth(n)] & (kBoundary | kPassed)) == kBoundary) link(n);
  }
  void on_idle(NodeId n) noexcept { unlink(n); }
  void on_uncached(NodeId n) noexcept;
  // With tables that never change: whether a node lacks a part that its twin has for a table.
  bool lacks_part_of(NodeId n, NodeId twin) const;
  // The key of a node has passed to its twin, which is used, and all that is known of the node with
  // it.
  void move(NodeId from, NodeId to) noexcept;

  std::size_t memory() const;
  // Every broken promise of these books, recomputed from scratch.
  std::vector<std::string> violations() const;
  // checks/holders.cc
  void fingerprint(std::string& out) const;

 private:
  static constexpr std::uint8_t kBoundary = 1;
  static constexpr std::uint8_t kLinked = 2;
  static constexpr std::uint8_t kHasTails = 4;
  static constexpr std::uint8_t kBranch = 8;
  static constexpr std::uint8_t kPassed = 16;
  static constexpr std::uint8_t kContinued = 32;
  static constexpr std::uint8_t kObserved = 64;
  static constexpr std::uint8_t kDiverged = 128;
  // The flags that end with a boundary.
  static constexpr std::uint8_t kOfBoundary = kBoundary | kContinued | kObserved | kDiverged;
  static constexpr std::uint8_t kTold = kDiverged;  // of a part: mirrors know of it
  static constexpr std::int64_t kNever = INT64_MAX / 2;

  // All nodes; or none, with full attention alone.
  NodeId num_places() const { return static_cast<NodeId>(near_.size()); }
  NodeId& stored(int g, NodeId n) const { return parts_[nth(n) * nth(num_groups_) + nth(g)]; }
  std::int64_t& near(NodeId n) const { return near_[nth(n)]; }
  bool any_keeps(std::int64_t length, std::int64_t unit) const;
  [[gnu::noinline]] bool keeps_before(std::int64_t length, std::int64_t unit,
                                      std::int64_t own) const;
  std::int64_t computed_near(NodeId n) const;
  bool is_idle(NodeId part) const { return part >= 0 && nodes_.idle(part); }
  bool frees_something(NodeId n) const;
  NodeId reader_of(NodeId n) const;
  void set_passed(NodeId n) noexcept;
  void pass(NodeId n) noexcept;
  bool serves_others(NodeId n) const;
  void pass_found(NodeId found, bool observed) noexcept;
  void pass_last(NodeId whole, NodeId tail, bool observed, bool resumes) noexcept;
  void remove_boundary(NodeId n) noexcept;
  void drop_states(NodeId n) noexcept;
  bool find_near(NodeId n) noexcept;
  void refresh(NodeId n) noexcept;
  NodeId first_to_go(NodeId last) const;
  NodeId earlier_end(NodeId n) const;
  bool reads_as_far_back(NodeId earlier, NodeId later) const;
  void prefetch_before(NodeId n) const;
  bool ignores_passing(int partition) const;
  bool evict_passed(int partition, const FreeBlocks& free, std::int64_t count) noexcept;
  void evict_used(int partition) noexcept;
  template <class Wanted>
  bool evict_last_used(int partition, Wanted wanted) noexcept;
  [[gnu::noinline]] bool evict_used_below(int partition) noexcept;
  void forget_part(NodeId part) noexcept;
  NodeId table_part(int g, NodeId n) const;
  void move_part(int g, NodeId from, NodeId to) noexcept;
  void drop_unneeded(int g, NodeId n) noexcept;
  NodeId detach_unused(int g, NodeId n) noexcept;
  void link(NodeId n) noexcept;
  void unlink(NodeId n) noexcept;
  void before_idle(NodeId b) noexcept;
  // The slices of a group by which events tell of a node.
  int first_told(int g, NodeId n) const;
  int last_slice(int g) const { return g - group(g).slice + group(g).num_slices - 1; }
  bool is_whole(int g, NodeId n) const;
  bool is_known(int g, NodeId n) const;
  bool knows_like(NodeId part) const;
  [[gnu::noinline]] void tell_lost(NodeId part) noexcept;

  Nodes& nodes_;
  PrefixIndex& index_;
  Pool& pool_;
  std::vector<Group> groups_;
  int num_groups_;
  int num_states_ = 0;
  std::int64_t ring_restart_ = 1;  // of all rings: the least common multiple
  std::int64_t restart_ = 1;       // the same, unless they are computed again
  std::int64_t replay_ = 0;
  std::int64_t margin_;
  ContinuedEnds continued_ends_;
  int num_cached_ = 0;
  ZeroedArray<NodeId> parts_;  // by node, then group: the part, plus 1
  ZeroedArray<std::int64_t> near_;
  ZeroedArray<std::int32_t> units_;
  ZeroedArray<std::uint8_t> facts_;
  ZeroedArray<std::uint8_t> owners_;  // the group of a record, plus 1
  // Boundaries whose node is used and that are not just passed, in the order in which they came
  // into use: a ring for each partition, whose sentinel is past the last node.
  ZeroedArray<Links> links_;
  // Passed boundaries likewise, the oldest path first, and of a path the deepest.
  ZeroedArray<Links> passed_;
  std::vector<OneOrder> one_orders_;  // by partition
};

}  // namespace blockmgr
