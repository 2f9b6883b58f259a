// A description of a board with groups of layers in which the names of blocks and nodes do not
// matter.
//
// Only one program includes this file; it is compiled without access control. The descriptions of
// two boards are equal if no further operation can distinguish them, except by names and by
// counters. The description leaves out hints of the index, and the memory, which follows from the
// rest because check() verifies it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "group_board.h"

namespace blockmgr::testing {

class GroupNames {
 public:
  explicit GroupNames(const GroupBoard& board)
      : board_(board),
        core_(board.core_),
        nodes_(core_.nodes()),
        groups_(*core_.groups()),
        labels_(static_cast<std::size_t>(nodes_.num_blocks), -1) {
    out_.reserve(1024);
    for (int g = 0; g < groups_.num_groups(); ++g) has_rings_ |= groups_.group(g).is_ring();
  }

  std::string describe() {
    for (const auto& seq : board_.seqs_) put_sequence(*seq);
    put_list();
    put_ring(groups_.links_);
    put_ring(groups_.passed_);
    put(groups_.continued_ends_.num_ended_);
    put(groups_.continued_ends_.whole_blocks_);
    put(groups_.continued_ends_.again_);
    put(groups_.continued_ends_.ends_);
    for (const OneOrder& one : groups_.one_orders_) {
      put(one.num_blocks_);
      put(one.found_);
      put(one.missed_);
    }
    put_copies();
    if (board_.closed_) put_closed(*board_.closed_);
    const std::uint32_t root = core_.index().find_root(World::text_of(0));
    put_children(root == kUnknownId ? kNoNode : core_.index().first_child(root_node(root)));
    // Describing a block may add further blocks to met_, which are then described too.
    for (std::size_t i = 0; i < met_.size(); ++i) put_block(met_[i]);
    // The order of ids decides which id is allocated next.
    for (NodeId n = 0; n < nodes_.count; ++n) put_node(n);
    put(core_.pool().num_free());
    if (board_.setup_.features & GroupPlay::kResizes) {  // the last ones leave first
      put(core_.pool().limit());
      put_free_blocks();
      // Without full attention, a node is no block of memory.
      for (const std::int32_t b : met_) put(b < board_.setup_.core.num_blocks ? b : -1);
    }
    return std::move(out_);
  }

 private:
  void put(std::int64_t value) { out_ += static_cast<char>(value + 2); }

  void put_block_name(std::int32_t b) {
    if (b <= 0) return put(-1);  // none, or the null block
    int& label = labels_[static_cast<std::size_t>(b)];
    if (label < 0) {
      label = static_cast<int>(met_.size());
      met_.push_back(b);
    }
    put(label);
  }
  void put_node(NodeId n) { put_block_name(nodes_.name(n)); }

  void put_sequence(const GroupPlay::Seq& seq) {
    const Sequence& s = core_.view(seq.handle);
    // Includes stops at which no forward has to end: they decide which boundaries are passed.
    const GroupRow& row = core_.group_row(s);
    put(seq.preempted);
    put(s.num_tokens);
    for (const Token token : seq.tokens) put(token);
    put(s.num_computed);
    put(core_.settled(s));
    put(core_.written(s));
    put(seq.preempted ? 0 : board_.settled(seq));
    put(s.num_chained);
    put(s.outdated);
    put(s.num_blocks);
    put(s.missing_slots);
    for (const std::int64_t stop : row.stops) put(stop);
    if (seq.preempted) return;  // with other blocks, and from its beginning
    if (has_rings_) {           // where they begin, and what they have lost
      put(row.since);
      put(row.farthest);
    }
    if (groups_.replay())
      for (const std::int64_t length : {row.start, row.hit, row.replayed, row.begun}) put(length);
    // In a step of others, two are too many. An abort takes one back.
    put(std::min(row.moves, core_.copies().in_flight() ? 3 : 2));
    put(seq.loads);
    put(s.num_cached);
    const NodeId* table = core_.table_at(Sequences::row_of(seq.handle));
    for (std::int32_t i = 0; i < s.num_blocks; ++i) put_node(table[i]);
    for (const NodeId other : row.others) put_node(other);
    for (int g = 0; g < groups_.num_groups(); ++g) {
      if (groups_.group(g).is_replayed()) {
        put(row.first[nth(g)]);
        for (const NodeId own : row.own[nth(g)]) put_node(own);
        continue;
      }
      if (!groups_.group(g).is_attention()) {
        put_node(row.states[nth(g)]);
        put(row.slot);
        continue;
      }
      put(row.first[nth(g)]);
      for (std::int32_t i = row.first[nth(g)]; i < s.num_blocks; ++i)
        put_node(groups_.part(g, table[i]));
    }
  }

  void put_list() {
    const IdleSegments& idle = core_.pool().idle_list();
    put(idle.size());
    for (NodeId n = idle.front(); n != idle.end(); n = idle.after(n)) put_node(n);
  }

  // For the only partition.
  void put_ring(const ZeroedArray<Links>& links) {
    const auto end = static_cast<std::size_t>(nodes_.count);
    for (NodeId n = links[end].next; n != nodes_.count; n = links[static_cast<std::size_t>(n)].next)
      put_node(n);
    put(-2);
  }

  void put_copy(const Copy& copy) {
    put_node(copy.source);
    put_node(copy.destination);
    put(copy.num_tokens);
  }
  void put_copies() {
    put(core_.copies().num_pending());
    core_.copies().each_pending([&](const Copy& copy) { put_copy(copy); });
    put(core_.copies().in_flight());
    if (core_.copies().in_flight())
      for (const Copy& copy : core_.copies().flight()) put_copy(copy);
  }
  // The pending writes, including those to blocks of freed sequences.
  void put_closed(const GroupPlay::Closed& closed) {
    for (const GroupWork& work : closed.work) {
      put(work.start);
      put(work.stop);
      put(static_cast<std::int64_t>(work.from));
      for (const std::size_t slot : work.to) put(static_cast<std::int64_t>(slot));
      for (const auto& table : work.tables)
        for (const std::int32_t b : table) put_block_name(b);
    }
    put(-2);
    for (const GroupPlay::Part& part : board_.uncommitted_.front()) {
      for (std::size_t i = 0; i < board_.seqs_.size(); ++i)
        if (board_.seqs_[i]->handle == part.handle) put(static_cast<std::int64_t>(i));
      put(part.stop);
    }
    put(-2);
    for (const auto& seq : board_.seqs_) put(std::ranges::count(core_.moved_, seq->handle));
    // The free blocks decide which sequence gets a block that is still to be written.
    put_free_blocks();
  }

  // Those that name memory.
  void put_free_blocks() {
    const Pool& pool = core_.pool();
    pool.free_blocks(pool.home(0)).each([this](BlockId b) { put_block_name(number(b)); });
  }

  void put_children(NodeId child) {
    for (; child >= 0; child = nodes_[child].next_sibling) put_node(child);
    put(-2);
  }

  // A free block appears here only if a step still writes to it.
  void put_block(std::int32_t b) {
    const NodeId n = nodes_.owner(b);
    if (n < 0) return put(-2);
    const Node& record = nodes_[n];
    put(groups_.owner(n));
    put(nodes_.uses(n).ref_count);
    put(nodes_.uses(n).pins);
    put(record.key_tokens);
    put(record.unwritten);
    put(record.in_flight);
    if (groups_.owner(n) >= 0) {
      if (record.keyed()) put_node(groups_.node_of(n));
      put(record.keyed() && groups_.is_being_kept(n));
      // It is found once this copy is resolved; others of the same state may be pending.
      for (const Kept& keep : core_.keeps)
        if (keep.block == n) put_node(keep.destination);
      return;
    }
    if (!record.keyed()) return;
    put(groups_.facts_[static_cast<std::size_t>(n)]);
    for (int i = 0; i < record.key_tokens; ++i) put(nodes_.tokens(n)[i]);
    put_node(is_root(record.parent) ? kNoNode : record.parent);
    put_children(record.first_child);
    for (int g = 0; g < groups_.num_groups(); ++g) put_node(groups_.part(g, n));
    put(core_.index().goes_on(n));
  }

  const GroupBoard& board_;
  const Sequences& core_;
  const Nodes& nodes_;
  const GroupPlaces& groups_;
  bool has_rings_ = false;
  std::vector<int> labels_;
  std::vector<std::int32_t> met_;
  std::string out_;
};

}  // namespace blockmgr::testing
