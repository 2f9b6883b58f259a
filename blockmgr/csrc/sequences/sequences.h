// Sequences and their block tables: everything an engine asks for, on block ids and tokens.
//
// Every public call first checks and counts, with nothing changed (it may throw, it may hash, it
// may allocate), and then commits without being able to fail.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "memory/bit_tree.h"
#include "memory/block_size.h"
#include "memory/tally.h"
#include "places/group_places.h"
#include "sequences/recent_hits.h"
#include "sequences/records.h"
#include "sequences/store.h"

namespace blockmgr {

class Sequences : public Store {
 public:
  // Children looked at for a partial match; the recently used ones of a wider node come first.
  // The tails of all sequences with one system prompt are children of its last block: with 32, trees
  // of thought at 256 tokens a block stayed 1.4 points below a block size of 1, with 128 none
  // (benchmarks/partial_reuse.py).
  static constexpr int kMostChildren = 128;

  // make: makes a policy of the caller's own; empty: the config names one.
  Sequences(const Config& config, std::unique_ptr<Digester> digester,
            const PolicyMaker& make = nullptr);

  // announce gets the handle at the end of the plan, when it may still throw: a caller that needs
  // memory to pass the handle on takes it there. It must not call back.
  Handle admit(const Prompt& prompt, const std::function<void(Handle)>& announce = {});
  // What admit, a look-up or append would refuse for the number of tokens alone, to be asked before
  // they are read. They need to be asked of numbers above fits_anyway() only.
  bool can_fit(std::int64_t num_tokens, const Prompt& prompt) const;
  void check_admission(std::int64_t num_tokens, const Prompt& prompt) const;
  void check_lookup(std::int64_t num_tokens, std::string_view name) const;
  void check_append(Handle handle, std::int64_t count) const;
  // Tokens that fit an empty pool whatever their namespace, and the most that fit any.
  std::int64_t fits_anyway() const { return fits_anyway_; }
  std::int64_t most_tokens() const { return most_tokens_; }
  MatchResult match(const Prompt& prompt);
  // Before events are read: states whose copies are applied count as findable from here on.
  void settle_events();
  // What is findable now, in all groups. The caller holds the monitor.
  EventColumns residents() const;
  Admission can_admit(const Prompt& prompt);
  // What match finds, and why no more, block by block. Changes nothing.
  ExplainResult explain(const Prompt& prompt);
  void reserve(Handle handle, std::int64_t num_slots);
  void append(Handle handle, const Token* tokens, std::int64_t count);
  void commit(Handle handle, std::int64_t num_computed);
  // The state where it stands, at the end of a block, if blocks are free for its copies: nothing is
  // evicted for it, and it goes first. Whether a prompt can continue there from now on.
  bool cache_state(Handle handle);
  // The computed tokens that are left.
  std::int64_t truncate(Handle handle, std::int64_t num_tokens);
  // expected: handles that were announced for the children, see next_handles. If they are others
  // by this time, nothing is done. Whether it was.
  bool fork(Handle handle, std::int64_t count, Handle* children, const Handle* expected = nullptr);
  // What fork would refuse, to be asked before anything is made for so many children.
  void check_fork(Handle handle, std::int64_t count) const { check_fork(running(handle), count); }
  // The handles that the next sequences get, as many as there are rows for.
  void next_handles(std::int64_t count, Handle* out) const;
  void reparent(const Handle* handles, const std::int64_t* parents, std::int64_t count);
  // withdraw: what it committed ahead of this step's forward is taken back first, see there.
  void free(Handle handle, bool withdraw = false);
  // Likewise, and says whether the blocks will be used again.
  void free_expecting(Handle handle, bool expect_reuse, bool withdraw = false);
  void preempt(Handle handle, bool withdraw = false);
  void resume(Handle handle, std::int64_t num_slots, bool read_cache = true);
  void decode(const Handle* handles, const Token* tokens, std::int64_t count, std::int64_t* slots);

  // retaining.cc: levels, pins and hints. A level of kNoLevel withdraws; ttl is in seconds. Answers
  // are in blocks, and announced as admit's.
  using Announce = std::function<void(std::int64_t)>;
  std::int64_t retain(Handle handle, std::int64_t start, std::int64_t stop, int level, double ttl,
                      const Announce& announce = {});
  std::int64_t retain_prefix(const Prompt& prompt, int level, double ttl,
                             const Announce& announce = {});
  std::int64_t pin(const Prompt& prompt, const Announce& announce = {});
  std::int64_t touch(const Prompt& prompt, const Announce& announce = {});

  // prefixes.cc
  // Makes all that is cached unfindable for good, whatever it is in use for. The blocks that were.
  std::int64_t reset_prefix_cache(bool reset_hit_rate);
  void reset_hit_rate();
  // Leading whole computed blocks that all of these sequences have in their tables; or all that
  // run.
  std::int64_t num_common_prefix_blocks(const Handle* handles, std::int64_t count);
  std::int64_t num_common_prefix_blocks();
  // Whole blocks of a prompt, and their digests, into out. Throws what the digest function throws.
  std::int64_t num_digests(const Prompt& prompt) const;
  void block_digests(const Prompt& prompt, std::uint8_t* out);
  const RecentHits& recent_hits() const { return recent_hits_; }

  // holding.cc: blocks kept by their ids, whatever becomes of the sequences that name them. Ids may
  // repeat.
  void acquire(const std::int64_t* ids, std::int64_t count);
  void release(const std::int64_t* ids, std::int64_t count);
  // Makes cached blocks, and what they continue, the ones that were used last.
  void touch_blocks(const std::int64_t* ids, std::int64_t count);
  bool is_cached(std::int64_t id) const {
    const NodeId n = checked_block(id, -1);
    return n >= 0 && nodes_[n].keyed();
  }
  // Block tables that name it, and holds.
  std::int64_t ref_count(std::int64_t id) const;

  // forgetting.cc: makes these blocks unfindable for good, with all that continues them. The blocks
  // that could be found until now.
  std::int64_t forget(const std::int64_t* ids, std::int64_t count);

  // What deduplication changed since the last drop; or, once the log was left to overflow, every
  // entry of every running sequence, with no old block.
  struct Remaps {
    std::vector<RemapRecord> records;
    std::int64_t version;  // of the log
  };
  Remaps remaps();
  // Forgets what remaps() gave. If the log has changed since, nothing is done. Whether it was.
  bool drop_remaps(std::int64_t version);
  std::vector<RemapRecord> take_remaps();

  const Sequence& view(Handle handle) const;
  // Steps may move states, see GroupRow.
  std::int64_t take_copies(std::vector<BlockCopy>& copies);
  void copies_aborted(std::int64_t ticket);
  void return_copies(std::int64_t ticket) noexcept;
  // The first block that a running sequence has of a group of attention.
  std::int64_t first_of(Handle handle, int g) const {
    return group_row(live(handle)).first[static_cast<std::size_t>(g)];
  }
  GroupRow view_groups(Handle handle) const {
    const Sequence& s = view(handle);
    GroupRow row = groups_ ? group_row(s) : GroupRow();
    if (!num_states_ || s.state != Sequence::kRunning) row.stops = {};  // no forward ends there
    return row;
  }
  const ZeroedArray<std::int32_t>& shown_groups() const { return shown_groups_; }
  void check_slots(Handle handle, std::int64_t start, std::int64_t stop) const;
  void slot_mapping(Handle handle, std::int64_t start, std::int64_t stop,
                    std::int64_t* slots) const;
  // The same in a group of attention beside that of the block tables: where its window is gone,
  // there are no slots any more.
  void check_group_slots(Handle handle, int g, std::int64_t start, std::int64_t stop) const;
  void group_slots(Handle handle, int g, std::int64_t start, std::int64_t stop,
                   std::int64_t* slots) const;
  // The group of a block in the order of the engine; 0 if there is one.
  int group_number(NodeId n) const { return groups_ ? in_engine(groups_->owner(n)) : 0; }
  // The number that the engine gives a further group; -1: the one of the block tables.
  int in_engine(int g) const {
    return g < 0 ? config_.full_group : g < config_.full_group ? g : g + 1;
  }
  // Further groups of layers: nullptr if there is full attention alone.
  const GroupPlaces* groups() const { return groups_.get(); }
  void copy_tokens(Handle handle, Token* out) const;
  std::vector<Handle> handles() const;
  // The nodes of a row, as many as its sequence has blocks; what follows them means nothing.
  NodeId* table_at(std::int64_t row) const { return tables_.data() + row * config_.row_width; }
  // Its blocks, from this one on, as many as it has.
  std::vector<std::int32_t> block_ids(Handle handle, std::int64_t start) const;
  static std::int64_t row_of(Handle handle) { return handle & 0xffffffff; }

  const Config& config() const { return config_; }
  const Counters& counters() const { return counters_; }
  int num_sequences() const { return config_.max_seqs - static_cast<int>(unused_rows_.size()); }
  // For callers, who may write to them: nothing here ever reads them back.
  const ZeroedArray<std::int32_t>& shown_tables() const { return shown_tables_; }
  const ZeroedArray<std::int32_t>& shown_lengths() const { return shown_lengths_; }
  std::size_t memory() const;

  // How much each call checks, at run time: 0 its arguments; 1 also each step it makes, with freed
  // blocks overwritten; 2 also every invariant, afterwards.
  void set_debug(int level);
  int debug() const { return debug_; }
  // What those checks found wrong after the last call, one sentence each.
  std::vector<std::string> findings();
  // Every broken invariant, one sentence each, recomputed from scratch.
  std::vector<std::string> violations() const;
  // Every fact a caller could ever observe, as bytes; guesses (hints) and scratch left out.
  std::string fingerprint() const;

 private:
  friend class Audit;
  // What of a prompt is cached. The lists lie in memory of the manager's, until the next look-up.
  struct Found {
    const NodeId* full = nullptr;  // leading blocks found
    std::int64_t num_full = 0;
    std::int64_t num_unused = 0;  // of those, blocks that count as available now
    NodeId node = kNoNode;       // the last of them, or the root
    bool strayed = false;         // hints led elsewhere at some of them
    NodeId partial = kNoNode;   // child that continues with num_partial of the next tokens
    std::int32_t num_partial = 0;
    bool take_over = false;
    const std::int32_t* ghosts = nullptr;  // evicted blocks that continue the full ones
    std::int64_t num_ghosts = 0;
  };
  struct Demand {
    std::int64_t num_blocks = 0;  // blocks the sequence will hold
    std::int64_t to_take = 0;
    std::int64_t unused_hits = 0;  // available blocks it will use by finding them
    std::int64_t needed() const { return to_take + unused_hits; }
    // The watermark holds back blocks; what takes none is free to go.
    bool fits(std::int64_t available, std::int64_t watermark) const {
      return needed() == 0 || needed() <= available - watermark;
    }
  };
  // Each plan is computed with nothing changed, and then carried out as it is.
  struct AdmissionPlan {
    Found found;
    Demand demand;
    bool fits = false;
    // With further groups:
    bool never = false;           // it does not fit behind what is found, whatever is released
    std::int64_t num_shared = 0;  // leading tokens that full attention has
  };
  struct GroupedFound {
    Found whole;                 // whole blocks that every group serves
    Found partial;                // if partial is a node: more than that, within a block
    std::int64_t num_shared = 0;  // leading tokens that full attention has
  };
  // A state that was made findable by a copy into its successor, which is not applied.
  struct KeptState {
    NodeId state;
    NodeId successor;
    std::uint32_t state_generation;
    std::uint32_t successor_generation;
  };
  // Who asks for blocks, and where what it asks for may be found.
  struct Applicant {
    NodeId root;  // kNoNode: nothing was ever cached in its namespace
    const ExtrasIds* extras;
    int partition;
    std::int64_t held_back;  // blocks of the partition it may not take
    bool read_cache;         // false: nothing is looked up
    std::int64_t most_cached = INT64_MAX;  // tokens taken from the cache, at most
    std::int64_t due_cached = -1;          // exactly so many, or none at all; -1: any number

    // One token is always left to compute: of one more than may be taken, so many are found.
    std::int64_t looked_up(std::int64_t count) const {
      return most_cached < count ? most_cached + 1 : count;
    }
  };
  struct GrowthPlan {
    std::int64_t num_fresh;  // blocks to take
    bool writes;             // into the block that the last token is in, or the next one will be
  };
  struct Promotion {
    Sequence* sequence;
    std::int64_t row;
    std::int64_t until;         // blocks [num_chained, until)
    std::size_t digest_offset;  // of the first one, in digests
  };
  struct PromotionPlan {
    std::vector<Promotion> promotions;
    std::vector<std::uint8_t> digests;
    std::vector<NodeId> dropped;  // parts that the batch is counted on to make available
    Tally taken;                  // cached blocks that it takes into use: see num_lost
    bool counts_taken = false;
    void clear() {
      promotions.clear();
      digests.clear();
      counts_taken = false;
    }
    // Of several groups, before blocks are taken. most: cached blocks that it may take into use.
    void count_taken(std::int64_t most) {
      if (!most) return;
      taken.begin(most);
      counts_taken = true;
    }
    std::size_t memory() const {
      return digests.capacity() + promotions.capacity() * sizeof(Promotion) +
             dropped.capacity() * sizeof(NodeId) + taken.memory();
    }
  };
  struct DecodePlan {
    std::vector<std::int64_t> needed_by;  // blocks by partition; empty without quotas
    std::vector<NodeId> rewritten;       // written in place, and twins until then
    Tally sharers;                        // of the batch that write into a shared block
    PromotionPlan promotions;             // of what the forward before has computed
  };

  // Holds the monitor, and keeps the peak.
  class Call;

  // computing.cc
  bool is_computing(const Sequence& s) const {
    return s.state == Sequence::kRunning && !s.outdated &&
           size_.whole(s.num_tokens) > s.num_chained;
  }
  // After a call that gives a sequence blocks to commit.
  void note_computing(const Sequence& s) noexcept {
    if (is_computing(s)) computing_.insert(static_cast<std::uint32_t>(row_of(s)));
  }
  std::int64_t num_computing(const Prompt& prompt, const Found& found);
  std::int64_t count_with_computing(const Token* tokens, std::int64_t limit, std::uint32_t root,
                                    const ExtrasIds& extras, const Found& found);
  std::int64_t count_computing(const Sequence& s, const Token* tokens, std::int64_t limit,
                               const ExtrasIds& extras, const Found& found) const;

  void prefetch_last(Handle handle) const;
  Sequence& live(Handle handle);
  const Sequence& live(Handle handle) const;
  const Sequence& running(Handle handle) const;
  Sequence& running(Handle handle);
  Handle handle_of(std::int64_t row) const;
  std::int64_t blocks_for(std::int64_t slots) const {
    return slots / config_.block_size + (slots % config_.block_size != 0);
  }
  std::int64_t num_slots(const Sequence& s) const {
    return static_cast<std::int64_t>(s.num_blocks) * config_.block_size;
  }
  std::int64_t row_of(const Sequence& s) const { return &s - sequences_.data(); }
  NodeId* table(const Sequence& s) const { return table_at(row_of(s)); }
  // The node that a new one behind these blocks continues; kNoNode: there are none.
  NodeId before(const Sequence& s, std::int64_t logical) const {
    return logical ? table(s)[logical - 1] : kNoNode;
  }
  bool committed_ahead(const Sequence& s) const { return s.num_computed > settled(s); }
  std::int64_t settled(const Sequence& s) const {
    return s.early_step == step_ ? s.num_settled : s.num_computed;
  }
  std::int64_t written(const Sequence& s) const {
    return s.early_step == step_ ? s.num_written : s.num_computed;
  }
  void limit_computed(Sequence& s, std::int64_t most) noexcept;
  void refuse_ahead(const Sequence& s, const char* call) const {
    if (committed_ahead(s)) [[unlikely]]
      throw_ahead(s, call);
  }
  [[noreturn]] void throw_ahead(const Sequence& s, const char* call) const;
  void refuse_unwritten(const Sequence& s, std::int64_t logical, const char* call) const;
  // With early commits, what is committed between taking a plan and applying it could be meant for
  // the forward to come or for the one after; the difference decides what may be copied from.
  void refuse_open_ticket(const char* call) const {
    if (config_.early_commit && copies_.in_flight()) [[unlikely]]
      throw_open_ticket(call);
  }
  [[noreturn]] void throw_open_ticket(const char* call) const;
  void check_fork(const Sequence& parent, std::int64_t count) const;
  void set_entry(std::int64_t row, std::int64_t logical, NodeId n) noexcept {
    const auto at = static_cast<std::size_t>(row * config_.row_width + logical);
    tables_[at] = n;
    shown_tables_[at] = nodes_.name(n);
  }
  std::int32_t* shown_at(std::int64_t row) const {
    return shown_tables_.data() + row * config_.row_width;
  }
  // Shows callers these entries of a row.
  void show(std::int64_t row, std::int64_t from, std::int64_t count) noexcept {
    nodes_.name_all(table_at(row) + from, count, shown_at(row) + from);
  }
  void show_length(const Sequence& s) noexcept;
  // Blocks that a sequence can have at most.
  std::int64_t longest(int partition) const {
    return std::min(config_.row_width, pool_.partition(partition).capacity);
  }
  // Blocks held back from admission: of a partition, its share of all, rounded down. asked: all that
  // are held back in this call; -1: as the config says.
  std::int64_t watermark(int partition, std::int64_t asked = -1) const;
  void measure();

  // retaining.cc
  Found find_cached(const Prompt& prompt);
  Found find_waiting(const Prompt& prompt, NodeId root, const ExtrasIds& extras);
  void hint_blocks(const Sequence& s, bool expect_reuse) noexcept;
  void keep_boundary(const Sequence& s, std::int64_t end) noexcept;
  void keep_boundary(NodeId node) noexcept;
  void end(Sequence& s) noexcept;

  // admission.cc
  void find_prefix(const Token* tokens, std::int64_t count, NodeId root, const ExtrasIds* extras,
                   Found& found);
  std::int64_t written_of(const Found& found) const;
  void find_partial(const Token* tokens, std::int64_t count, const ExtrasIds* extras,
                    Found& found) const;
  std::int64_t num_cached(const Found& found) const {
    return found.num_full * config_.block_size + found.num_partial;
  }
  Demand demand(const Found& found, std::int64_t slots) const;
  std::int64_t checked_slots(std::int64_t num_tokens, std::int64_t num_slots, int partition,
                             std::int64_t watermark) const;
  bool never_fits(std::int64_t num_tokens, std::int64_t slots, int partition,
                  std::int64_t watermark) const;
  // held_back: from this admission; -1: as the config says. found: what of several groups was to be
  // reused.
  [[noreturn]] void throw_never_fits(std::int64_t num_tokens, std::int64_t slots, int partition,
                                     std::int64_t held_back = -1,
                                     const Found* found = nullptr) const;
  AdmissionPlan plan_admission(const Token* tokens, std::int64_t count, std::int64_t slots,
                               const Applicant& applicant);
  AdmissionPlan plan_prompt(const Prompt& prompt, int partition, std::int64_t held_back);
  // The same, and all that carrying it out needs to know. Throws unless it fits.
  AdmissionPlan settled_admission(const Token* tokens, std::int64_t count, std::int64_t slots,
                                  const Applicant& applicant);
  void occupy(Sequence& s, const Token* tokens, const AdmissionPlan& plan) noexcept;
  void store_tokens(Sequence& s, std::int64_t from, const Token* tokens,
                    std::int64_t count) noexcept;
  void release_blocks(Sequence& s, std::int64_t keep) noexcept;
  [[gnu::noinline]] void release_written(const Sequence& s, std::int64_t keep) noexcept;
  void release_nodes(Sequence& s, std::int64_t keep) noexcept;
  void cache_tail(Sequence& s) noexcept;
  bool is_covered(const Key& key, int num_tokens) const;
  void supersede_tails(const Key& key, int num_tokens) noexcept;

  // prefixes.cc
  void detach(Sequence& s) noexcept;
  std::int64_t common_with(const Sequence& s, const std::int32_t*& first,
                           std::int64_t common) const;

  // holding.cc
  // The node that has this block; kNoNode: it is free. Throws for what is no block.
  NodeId checked_block(std::int64_t id, std::int64_t position) const;
  void check_known(const std::int64_t* ids, std::int64_t count, const char* call) const;
  NodeId node_behind(NodeId n) const;
  std::uint32_t& holds_of(NodeId n) { return (*holds_)[static_cast<std::size_t>(n)]; }
  std::int64_t num_holds(NodeId b) const {
    return holds_ ? (*holds_)[static_cast<std::size_t>(b)] : 0;
  }

  // forgetting.cc
  NodeId forget_part(NodeId n) noexcept;
  std::int64_t forget_chain(NodeId b, std::vector<bool>* gone = nullptr) noexcept;
  bool forget_table(Sequence& s, std::vector<bool>& wrong, std::int64_t& forgotten) noexcept;
  void mend_chains() noexcept;

  // withdrawal.cc
  void check_leaving(const Sequence& s, bool withdraws, const char* call) const {
    withdraws ? check_withdrawal(s, call) : refuse_ahead(s, call);
  }
  void check_withdrawal(const Sequence& s, const char* call) const;
  void withdraw(Sequence& s) noexcept;
  void forget_unwritten(NodeId n) noexcept;

  // explain.cc
  class Elsewhere;
  int refusing_group(const NodeId* chain, std::int64_t length) const;
  std::int64_t longest_child_prefix(const Token* tokens, std::uint32_t extras, NodeId node) const;

  // growth.cc
  bool must_copy(const Sequence& s, std::int64_t logical) const;
  void make_private(Sequence& s, std::int64_t logical, std::int64_t num_valid) noexcept;
  GrowthPlan plan_growth(const Sequence& s, std::int64_t slots, std::int64_t num_tokens,
                         const char* call) const;
  void grow(Sequence& s, const GrowthPlan& plan) noexcept;
  void refuse_uncopied(const Sequence& s, std::int64_t logical) const;
  void plan_decode(const Handle* handles, std::int64_t count, DecodePlan& plan);
  void note_decoded(Sequence& s) noexcept;

  // promotion.cc
  NodeId chain_node(const Sequence& s, std::int64_t logical) const;
  std::int64_t promotable(const Sequence& s, std::int64_t num_computed) const;
  std::int64_t plan_promotion(Sequence& s, std::int64_t num_computed, std::int64_t written_now,
                              PromotionPlan& plan);
  [[gnu::noinline]] bool is_kept_apart(const Sequence& s, std::int64_t logical, NodeId cached,
                                       bool is_written) const;
  [[gnu::noinline]] std::int64_t num_lost(const Sequence& s, std::int64_t logical, NodeId cached,
                                          PromotionPlan& plan) const;
  void promote_all(const PromotionPlan& plan) noexcept;
  void promote(const Promotion& promotion, const std::uint8_t* digest) noexcept;
  void note_unwritten(const Sequence& s, std::int64_t logical, NodeId b) noexcept;
  void reserve_remaps(const PromotionPlan& plan);
  void deduplicate(const Promotion& promotion, std::int64_t logical, NodeId cached) noexcept;

  // group_admission.cc
  bool waits_for_copy(const KeptState& k) const;
  std::int64_t served_of(const Found& chain) const;
  void settle_keeps() noexcept;
  std::int64_t last_gap(const NodeId* chain, std::int64_t position, std::int64_t to) const;
  bool has_states(NodeId node) const;
  bool has_parts(NodeId node) const;
  int find_grouped_partial(const Token* tokens, std::int64_t count, const ExtrasIds* extras,
                           bool tails_only, Found& found) const;
  GroupedFound find_grouped(const Token* tokens, std::int64_t num_tokens,
                            const Applicant& applicant);
  bool may_take_over(const Found& found) const;
  Demand grouped_demand(const Found& found, std::int64_t slots) const;
  [[gnu::noinline]] void plan_grouped(const Token* tokens, std::int64_t count, std::int64_t slots,
                                      const Applicant& applicant, AdmissionPlan& plan);
  std::int64_t first_blocks(const Found& found, std::int64_t slots) const;
  [[gnu::noinline]] std::int64_t later_blocks(std::int64_t num_tokens, std::int64_t slots) const;
  std::int64_t most_first_slots(std::int64_t num_tokens, std::int64_t most) const;
  std::string never_in_groups(std::int64_t num_tokens, std::int64_t slots, const Found& found,
                              std::int64_t most) const;
  Stops stops_of(std::int64_t num_tokens, std::int64_t num_computed, std::int64_t num_shared,
                 std::int64_t prompt_end) const noexcept;
  // Where a prompt of so many tokens stops near its end; 0: nowhere.
  std::int64_t prompt_end_of(std::int64_t num_tokens) const {
    return config_.prompt_end_stop < 0 ? 0 : num_tokens - config_.prompt_end_stop;
  }
  // With states: whether a prompt can continue from a state after so many tokens.
  bool can_stop_at(std::int64_t end) const {
    const std::int64_t rest = end % config_.block_size;
    return !rest || (config_.min_partial_tokens && rest >= config_.min_partial_tokens);
  }
  [[gnu::noinline]] void choose_stops(Sequence& s, std::int64_t num_shared) noexcept;
  NodeId take_of(int g, int partition, NodeId before) noexcept;
  NodeId take_part_run(const Sequence& s, int g, std::int64_t from, std::int64_t to,
                       NodeId before) noexcept;
  [[gnu::noinline]] void occupy_grouped(Sequence& s, const AdmissionPlan& plan) noexcept;
  void settle_occupied(Sequence& s, const Token* tokens, const AdmissionPlan& plan) noexcept;
  void show_groups(const Sequence& s, std::int64_t from) noexcept;

  // group_*.cc
  GroupRow& group_row(const Sequence& s) const {
    return group_rows_[static_cast<std::size_t>(row_of(s))];
  }
  std::int32_t* shown_group_at(int g, std::int64_t row) const {
    return shown_groups_.data() + (g * std::int64_t{config_.max_seqs} + row) * config_.row_width;
  }
  // Of each further group of attention, the part of one of its blocks, while the sequence has it.
  template <class Visit>
  void each_part(const Sequence& s, std::int64_t logical, Visit visit) const {
    for (int g = 0; groups_ && g < groups_->num_groups(); ++g)
      if (!groups_->group(g).recurrent() &&
          logical >= group_row(s).first[nth(g)])
        visit(g, groups_->part(g, table(s)[logical]));
  }
  std::int64_t grouped_need(std::int64_t blocks) const;
  void refuse_moved(const Sequence& s, const char* call) const;
  void take_parts(Sequence& s, std::int64_t from) noexcept;
  void make_parts_private(Sequence& s, std::int64_t logical, NodeId shared,
                          std::int32_t num_tokens) noexcept;
  void drop_part(int g, NodeId node) noexcept;
  void drop_part_run(const Sequence& s, int g, std::int64_t from, std::int64_t to) noexcept;
  void drop_parts(Sequence& s, std::int64_t from) noexcept;
  void drop_states(Sequence& s) noexcept;
  void settle_parts(Sequence& s, std::int64_t logical, NodeId own, NodeId node) noexcept;
  [[gnu::noinline]] bool must_stay(const Sequence& s, std::int64_t logical, NodeId cached) const;
  [[gnu::noinline]] void merge_parts(Sequence& s, std::int64_t logical, NodeId cached) noexcept;
  int most_unwritten(NodeId node) const;
  bool serves(const Sequence& s, std::int64_t logical) const;
  std::int64_t cached_since(const Sequence& s, int g, std::int64_t to) const;
  bool reads_cached(NodeId n, std::int64_t end) const;
  void mark_boundaries(Sequence& s, std::int64_t from) noexcept;
  std::optional<GroupRow::Stop> takes_stop(Sequence& s) noexcept;
  bool may_give(NodeId own) const;
  void keep_state(Sequence& s) noexcept;
  bool keep_whole(Sequence& s, std::int64_t room, bool passed) noexcept;
  void give_state(Sequence& s, int g, NodeId node) noexcept;
  void keep_branch(Sequence& s, std::int64_t room, bool passed) noexcept;
  NodeId cache_end_block(Sequence& s, std::int64_t unit, int rest) noexcept;
  struct Seen {
    NodeId next = kNoNode;    // the first child that no look-up sees
    NodeId passed = kNoNode;  // of those that they see, the last idle tail that is just passed
    int count = 0;
  };
  Seen seen_children(NodeId parent) const;
  void drop_tail(NodeId tail) noexcept;
  void drop_unseen_tails(NodeId parent) noexcept;
  void drop_windows(Sequence& s) noexcept;
  void commit_groups(Sequence& s) noexcept;
  bool tells_state(const Sequence& s) const;
  void note_state(Sequence& s) noexcept;
  void refuse_unknown_state(const Sequence& s, const char* call) const;
  // Whether decode gives back what windows have passed before it takes blocks. What steps in flight
  // may read is not there to be taken, so it is given back at the end.
  bool drops_before_taking() const { return groups_ && open_steps_.empty(); }
  std::int64_t num_dropped(const Sequence& s, std::vector<NodeId>& parts) const;
  [[gnu::noinline]] std::int64_t plan_parts(const Handle* handles, std::int64_t count,
                                            std::int64_t blocks, DecodePlan& plan);
  [[gnu::noinline]] void commit_decoded(const Handle* handles, std::int64_t count,
                                  const PromotionPlan& plan) noexcept;
  [[gnu::noinline]] void keep_decoded(const Handle* handles, std::int64_t count) noexcept;
  void keep_end(Sequence& s, bool resumes) noexcept;
  void end_path(const Sequence& s, NodeId end, bool resumes) noexcept;
  void keep_path(const Sequence& s) noexcept;
  void leave_groups(Sequence& s, bool resumes) noexcept;
  void check_states(const Sequence& parent, std::int64_t count) const;
  void fork_groups(const Sequence& parent, const Handle* children, std::int64_t count) noexcept;
  void take_successor(const Sequence& model, const std::vector<NodeId>& table,
                      GroupRow& row) noexcept;
  std::int64_t fall_of(const Sequence& s, std::int64_t most, std::int64_t before) const;
  std::int64_t units_after_fall(const Sequence& s, std::int64_t length) const;
  void fall_to(Sequence& s, std::int64_t length, std::int64_t before) noexcept;
  void truncate_grouped(Sequence& s, std::int64_t num_tokens);
  [[gnu::noinline]] std::int64_t grouped_written(const Sequence& s, std::int64_t length) const;
  [[gnu::noinline]] void launch_groups(std::vector<BlockCopy>& copies) noexcept;
  void return_groups() noexcept;

  Config config_;
  const BlockSize size_;
  std::int64_t fits_anyway_ = 0;  // both constant, so that no call has to be waited for
  std::int64_t most_tokens_ = 0;

  std::vector<Sequence> sequences_;
  std::vector<std::int32_t> unused_rows_;
  ZeroedArray<NodeId> tables_;               // [max_seqs, row_width]
  ZeroedArray<std::int32_t> shown_tables_;   // their blocks, and 0 past a sequence's last one
  ZeroedArray<std::int32_t> shown_lengths_;  // [max_seqs]

  // By node, references that no table has; nullptr: there never were any.
  std::unique_ptr<ZeroedArray<std::uint32_t>> holds_;

  // Memory that plans lie in, kept so that calls seldom allocate. Each call passes its plan on;
  // what an earlier one left here means nothing.
  ZeroedArray<NodeId> found_room_;
  ZeroedArray<std::int32_t> ghosts_room_;
  BitTree computing_;  // rows of all sequences with a full block to commit, and of some others
  DecodePlan decode_room_;
  std::vector<RemapRecord> remaps_;
  std::size_t max_remaps_;  // kept over calls; what one call adds is never dropped by it
  bool remaps_lost_ = false;
  std::int64_t remaps_version_ = 0;  // grows with every record

  std::unique_ptr<GroupPlaces> groups_;  // nullptr: full attention alone
  int num_states_ = 0;                   // recurrent groups
  mutable std::vector<GroupRow> group_rows_;
  ZeroedArray<std::int32_t> shown_groups_;  // [groups, max_seqs, row_width]
  std::vector<KeptState> keeps_;
  std::vector<Handle> moved_;         // whose states the step that was launched last may move
  std::vector<NodeId> sources_room_;  // by group
  std::vector<std::int64_t> since_room_;  // likewise, a unit
  std::vector<NodeId> parts_room_;    // by unit

  std::uint32_t first_generation_;  // of every row: handles of other managers are told apart
  std::uint64_t batch_mark_ = 0;
  int debug_ = 0;
  Counters counters_;
  RecentHits recent_hits_;
};

inline Sequences::Demand Sequences::demand(const Found& found, std::int64_t slots) const {
  Demand d;
  const bool partial = found.partial >= 0;
  d.num_blocks = std::max(blocks_for(slots), found.num_full + partial);
  d.to_take = d.num_blocks - found.num_full - (partial && found.take_over);
  d.unused_hits = found.num_unused + (partial && pool_.counts_as_available(found.partial) ? 1 : 0);
  return d;
}

class Sequences::Call {
 public:
  explicit Call(Sequences& core) : held_(core.monitor_), core_(core) {}
  ~Call() {
    if (core_.pool_.num_used() > core_.counters_.peak_used_blocks)
      core_.counters_.peak_used_blocks = core_.pool_.num_used();
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

 private:
  Held held_;
  Sequences& core_;
};

}  // namespace blockmgr
