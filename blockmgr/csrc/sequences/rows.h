// The rows of sequences and their tables: what every part of a manager reads and changes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "memory/bit_tree.h"
#include "memory/block_size.h"
#include "places/group_places.h"
#include "sequences/recent_hits.h"
#include "sequences/records.h"
#include "sequences/store.h"

namespace blockmgr {

class Rows : public Store {
 public:
  // make: makes a policy of the caller's own; empty: the config names one.
  Rows(const Config& config, std::unique_ptr<Digester> digester, const PolicyMaker& make);

  const Config& config() const { return config_; }
  const BlockSize& block_size() const { return size_; }
  // Further groups of layers, of which there may be none.
  const GroupPlaces* groups() const { return groups_.get(); }
  std::size_t memory() const;

  const Sequence& view(Handle handle) const;
  // The group of a block in the order of the engine; 0 if there is one.
  int group_number(NodeId n) const { return in_engine(groups_->owner(n)); }
  // The number that the engine gives a further group; -1: the one of the block tables.
  // With bare nodes, -1 is that of the block tables as well, and no block is asked for it.
  int in_engine(int g) const { return g < 0 ? config_.full_group : config_.groups[nth(g)].number; }
  // The tokens that a block has of so many leading ones of its node.
  std::int32_t tokens_of_block(int g, std::int64_t num_tokens) const {
    return static_cast<std::int32_t>(g < 0 ? std::min<std::int64_t>(num_tokens, full_size())
                                           : config_.groups[nth(g)].tokens_of(num_tokens));
  }
  // Tokens of a block of full attention.
  std::int64_t full_size() const {
    return config_.block_size / static_cast<std::int64_t>(full_slices_);
  }
  void copy_tokens(Handle handle, Token* out) const;
  std::vector<Handle> handles() const;
  // The nodes of a row, as many as its sequence has blocks; what follows them means nothing.
  NodeId* table_at(std::int64_t row) const { return tables_.data() + row * config_.row_width; }
  static std::int64_t row_of(Handle handle) { return handle & 0xffffffff; }
  // The sequence of a handle that is known to be live.
  Sequence& at(Handle handle) { return sequences[nth(row_of(handle))]; }
  const Sequence& at(Handle handle) const { return sequences[nth(row_of(handle))]; }
  int num_sequences() const { return config_.max_seqs - static_cast<int>(unused_rows.size()); }
  bool is_computing(const Sequence& s) const {
    return s.state == Sequence::kRunning && !s.outdated &&
           size_.whole(s.num_tokens) > s.num_chained;
  }
  // Called when a sequence was given blocks that it may have to commit.
  void note_computing(const Sequence& s) noexcept {
    if (is_computing(s)) computing.insert(static_cast<std::uint32_t>(row_of(s)));
  }
  Sequence& live(Handle handle);
  const Sequence& live(Handle handle) const;
  const Sequence& running(Handle handle) const;
  Sequence& running(Handle handle);
  Handle handle_of(std::int64_t row) const;
  std::int64_t blocks_for(std::int64_t slots) const {
    return slots / config_.block_size + (slots % config_.block_size != 0);
  }
  std::int64_t num_slots(const Sequence& s) const { return token_room(s) - s.missing_slots; }
  std::int64_t token_room(const Sequence& s) const {
    return static_cast<std::int64_t>(s.num_blocks) * config_.block_size;
  }
  std::int64_t row_of(const Sequence& s) const { return &s - sequences.data(); }
  NodeId* table(const Sequence& s) const { return table_at(row_of(s)); }
  // The session whose last prompt the sequence has; empty: none.
  [[gnu::noinline]] std::string_view session_name(const Sequence& s) const noexcept;
  // The node that a new one behind these blocks continues; kNoNode: there are none.
  NodeId before(const Sequence& s, std::int64_t logical) const {
    return logical ? table(s)[logical - 1] : kNoNode;
  }
  // Whether its forwards still compute tokens before its hit, for uncached groups alone. For all
  // others num_computed is the hit.
  bool replays(const Sequence& s) const {
    return !replayed.empty() && group_row(s).replayed < group_row(s).hit;
  }
  // Where its next forward begins.
  std::int64_t computed(const Sequence& s) const {
    return replays(s) ? group_row(s).replayed : s.num_computed;
  }
  // Where the forward of this step begins.
  std::int64_t begins(const Sequence& s) const {
    if (replayed.empty()) return settled(s);
    const GroupRow& row = group_row(s);
    const std::int64_t begun = s.early_step == step_ ? row.begun : row.replayed;
    return begun < row.hit ? begun : settled(s);
  }
  // How many of the tokens found are computed again.
  std::int64_t num_replayed(const Sequence& s) const {
    return group_row(s).hit - group_row(s).start;
  }
  bool committed_ahead(const Sequence& s) const {
    if (s.early_step != step_) return false;
    return s.num_computed > s.num_settled ||
           (!replayed.empty() && group_row(s).replayed > group_row(s).begun);
  }
  std::int64_t settled(const Sequence& s) const {
    return s.early_step == step_ ? s.num_settled : s.num_computed;
  }
  std::int64_t written(const Sequence& s) const {
    return s.early_step == step_ ? s.num_written : s.num_computed;
  }
  void limit_computed(Sequence& s, std::int64_t most) noexcept;
  void refuse_ahead(const Sequence& s, const char* call) const {
    if (committed_ahead(s)) [[unlikely]]
      refuse(
          s, call,
          "it was committed ahead of this step's forward; take and apply the step's copies first");
  }
  // Throws that a call cannot be made on a sequence in this step, and why.
  [[noreturn, gnu::cold]] void refuse(const Sequence& s, const char* call,
                                      std::string_view why) const;
  // Throws if this batch has named the sequence before: its handles must be distinct.
  void name_once(Sequence& s) {
    if (s.mark == batch_mark) [[unlikely]]
      throw_named_twice(s);
    s.mark = batch_mark;
  }
  // With early commits, what is committed between taking a plan and applying it could be meant for
  // the forward to come or for the one after; the difference decides what may be copied from.
  void refuse_open_ticket(const char* call) const {
    if (config_.early_commit && copies_.in_flight()) [[unlikely]]
      throw_open_ticket(call);
  }
  void set_entry(std::int64_t row, std::int64_t logical, NodeId n) noexcept {
    const auto at = nth(row * config_.row_width + logical);
    tables_[at] = n;
    if (!pool_.is_bare()) [[likely]]
      shown_tables[at * full_slices_] = nodes_.name(n);
  }
  // Entries of a node follow one another: one for each slice of full attention.
  std::int32_t* shown_at(std::int64_t row) const {
    return shown_tables.data() + row * shown_width(config_.row_width);
  }
  std::int64_t shown_width(std::int64_t num_nodes) const {
    return num_nodes * static_cast<std::int64_t>(full_slices_);
  }
  // The block by which a caller knows a node: that of the block tables, or 0 if it has none there.
  std::int32_t name(NodeId n) const {
    if (!pool_.is_bare() || n < 0) [[likely]]
      return nodes_.name(n);
    const NodeId m = has_table_slots() ? groups_->part(0, n) : kNoNode;
    return m < 0 ? 0 : nodes_.name(m);
  }
  // Whether the block tables are those of attention: of full attention, or of the group whose
  // slices come first.
  bool has_table_slots() const { return !pool_.is_bare() || config_.groups[0].is_attention(); }
  // Shows callers the blocks of these nodes of a row, without those of further slices.
  void show(std::int64_t row, std::int64_t from, std::int64_t count) noexcept {
    if (pool_.is_bare()) return;  // GroupTables::show_groups does
    if (full_slices_ == 1) [[likely]]
      return nodes_.name_all(table_at(row) + from, count, shown_at(row) + from);
    for (std::int64_t i = from; i < from + count; ++i)
      shown_at(row)[shown_width(i)] = nodes_.name(table_at(row)[i]);
  }
  void show_length(const Sequence& s) noexcept;
  // Blocks that a sequence can have at most.
  std::int64_t longest(int partition) const {
    return std::min(config_.row_width, pool_.partition(partition).capacity);
  }
  // Where sequences whose nodes a partition has get blocks beside these.
  const Pool::Partition& home_of(int partition) const {
    return pool_.partition(pool_.home(partition));
  }
  // Blocks held back from admission: of a partition, its share of all, rounded down. asked: all
  // that are held back in this call; -1: as the config says.
  std::int64_t watermark(int partition, std::int64_t asked = -1) const {
    if (asked < 0 && partitions_.empty()) [[likely]]
      return config_.watermark_blocks;
    return share_of_watermark(partition, asked);
  }
  void store_tokens(Sequence& s, std::int64_t from, const Token* tokens,
                    std::int64_t count) noexcept;
  NodeId chain_node(const Sequence& s, std::int64_t logical) const;
  void note_unwritten(const Sequence& s, std::int64_t logical, NodeId b) noexcept;
  GroupRow& group_row(const Sequence& s) const { return group_rows_[nth(row_of(s))]; }

  // At the end of each call, so that no later one finds anything to settle: a read changes nothing.
  void settle_keeps() noexcept {
    if (!keeps.empty()) [[unlikely]]
      settle_all();
  }

  std::vector<Sequence> sequences;
  std::vector<std::int32_t> unused_rows;
  // For callers, who may write to them: nothing here ever reads them back.
  // [max_seqs, row_width * slices of full attention]: blocks, and 0 past a sequence's last one.
  ZeroedArray<std::int32_t> shown_tables;
  ZeroedArray<std::int32_t> shown_lengths;  // [max_seqs]
  ZeroedArray<std::int32_t> shown_groups;   // by group: [max_seqs, row_width * its slices]
  BitTree computing;  // rows of all sequences with a full block to commit, and of some others
  Counters counters;
  RecentHits recent_hits;
  // Further groups of layers by kind, in order: all empty if full attention is alone.
  std::vector<int> attention;
  std::vector<int> recurrent;
  std::vector<int> rings;
  std::vector<int> replayed;
  std::vector<int> growing;  // those of attention, and the last ones
  std::vector<Kept> keeps;   // all of them wait for their copies whenever no call is under way
  std::uint64_t batch_mark = 0;
  std::uint32_t first_generation;  // of every row: handles of other managers are told apart

 private:
  friend class Audit;
  template <class, class...>
  friend class Part;
  [[gnu::noinline]] void settle_all() noexcept;
  std::int64_t share_of_watermark(int partition, std::int64_t asked) const;
  [[noreturn, gnu::cold]] void throw_named_twice(const Sequence& s) const;
  [[noreturn]] void throw_open_ticket(const char* call) const;

  Config config_;
  const BlockSize size_;
  const std::size_t full_slices_;  // blocks of full attention in a node
  ZeroedArray<NodeId> tables_;     // [max_seqs, row_width]
  std::unique_ptr<GroupPlaces> groups_;
  mutable std::vector<GroupRow> group_rows_;
};

// Holds the monitor for a call, settles what it has resolved, and keeps the peak.
class Call {
 public:
  explicit Call(Rows& rows) : held_(rows.monitor()), rows_(rows) {}
  ~Call() {
    rows_.settle_keeps();
    const int used = rows_.pool().num_used();
    if (used > rows_.counters.peak_used_blocks) rows_.counters.peak_used_blocks = used;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

 private:
  Held held_;
  Rows& rows_;
};

}  // namespace blockmgr
