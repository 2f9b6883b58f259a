// Checks sequences and their tables, in addition to the checks of blocks; and a pool.
#include <set>

#include "checks/audit.h"
#include "sequences/block_pool.h"
#include "sequences/sequences.h"

namespace blockmgr {

class Audit : public BlockAudit {
 public:
  explicit Audit(const Sequences& core)
      : BlockAudit(core.nodes_, core.index_, core.pool_, core.copies_), core_(core) {}

  std::vector<std::string> run() {
    check_sequences();
    check_holds();
    check_unwritten();
    core_.audit_shares(*this);
    check_blocks();
    check_steps();
    std::vector<std::string> found = result();
    for (std::string& each : core_.groups_->violations()) found.push_back(std::move(each));
    return found;
  }

 private:
  void check_sequences() {
    std::size_t unused = 0;
    for (const Sequence& s : core_.sequences) {
      const std::int64_t row = core_.row_of(s);
      const std::string who = "row " + std::to_string(row);
      const std::int32_t* t = core_.table_at(row);
      unused += s.state == Sequence::kUnused;
      if (s.state != Sequence::kRunning)
        BLOCKMGR_EXPECT(s.num_blocks == 0 && s.num_computed == 0,
                        who + " does not run and holds blocks");
      const std::int64_t slots = core_.num_slots(s);
      BLOCKMGR_EXPECT(s.num_blocks >= 0 && s.num_blocks <= core_.config_.row_width,
                      who + " holds more blocks than a row has");
      BLOCKMGR_EXPECT(
          0 <= s.num_computed && s.num_computed <= s.num_tokens && s.num_computed <= slots,
          who + " has computed tokens that are not there");
      const std::int64_t room = core_.token_room(s);
      const std::int64_t waiting = s.num_tokens > room ? s.num_tokens - room : 0;
      BLOCKMGR_EXPECT(s.num_waiting() == waiting, who + " has the wrong number of waiting tokens");
      std::set<NodeId> seen;
      for (std::int64_t i = 0; i < s.num_blocks; ++i) {
        if (!valid(t[i])) {
          BLOCKMGR_EXPECT(false, who + " names " + name(t[i]));
          return;
        }
        BLOCKMGR_EXPECT(seen.insert(t[i]).second, who + " names " + name(t[i]) + " twice");
        ++refs(t[i]);
        const Node& record = nodes_[t[i]];
        BLOCKMGR_EXPECT(!record.keyed() || record.key_tokens == size_,
                        who + " shares a cached tail");
        if (i * size_ >= s.num_tokens)
          BLOCKMGR_EXPECT(nodes_.uses(t[i]).ref_count == 1 && !record.keyed(),
                          who + " shares a look-ahead block");
        if (i < s.num_chained) check_keyed(s, t, i, who);
        BLOCKMGR_EXPECT(s.outdated || !pool_.is_out(t[i]),
                        who + " may cache " + name(t[i]) + ", which is out of use");
      }
      if (s.state == Sequence::kRunning) check_parts(s, who);
      BLOCKMGR_EXPECT(!s.outdated || (s.num_chained == 0 && s.state == Sequence::kRunning),
                      who + " is cached and runs on what was forgotten");
      BLOCKMGR_EXPECT(
          !core_.is_computing(s) || core_.computing.contains(static_cast<std::uint32_t>(row)),
          who + " has blocks to commit that no observer is notified of");
      if (s.state == Sequence::kUnused) continue;
      ++root_refs(s.root);
      BLOCKMGR_EXPECT(s.partition == core_.partition_of(s.root),
                      who + " is given blocks of another quota");
      for (std::int32_t i = 0; i < s.num_blocks; ++i)
        BLOCKMGR_EXPECT(pool_.partition(s.partition).holds(nodes_.block(t[i])),
                        who + " holds " + name(t[i]) + " outside its quota");
      if (s.extras) extras_holders_.insert(s.extras.get());
    }
    for (const Kept& kept : core_.keeps)
      BLOCKMGR_EXPECT(core_.waits(kept), name(kept.block) + " is kept and waits for no copy");
    core_.each_referenced([&](NodeId n) {
      BLOCKMGR_EXPECT(valid(n), name(n) + " waits for its copy and cannot");
      if (!valid(n)) return;
      ++refs(n);
      awaited_.insert(n);
    });
    for (const ExtrasMap* map : extras_holders_)
      for (const auto& entry : map->ids()) ++extras_refs(entry.second);
    BLOCKMGR_EXPECT(unused == core_.unused_rows.size(), "the list of unused rows is wrong");
  }

  // It has a part of each unit from the first on that the group still reads, and states of its own.
  void check_parts(const Sequence& s, const std::string& who) {
    const GroupPlaces& groups = *core_.groups_;
    const GroupRow& row = core_.group_row(s);
    const NodeId* t = core_.table(s);
    for (const NodeId other : row.others) {
      BLOCKMGR_EXPECT(valid(other), who + " lacks a slot for its states");
      if (!valid(other)) continue;
      ++refs(other);
      BLOCKMGR_EXPECT(nodes_.uses(other).ref_count == 1 && !nodes_[other].keyed(),
                      who + " shares a slot for its states");
    }
    for (int g = 0; g < groups.num_groups(); ++g) {
      const std::string what = who + ", group " + std::to_string(g);
      if (groups.group(g).is_replayed()) {
        check_own(s, g, what);
        continue;
      }
      if (!groups.group(g).is_attention()) {
        const NodeId state = row.states[nth(g)];
        BLOCKMGR_EXPECT(valid(state), what + " has no state");
        if (!valid(state)) continue;
        ++refs(state);
        BLOCKMGR_EXPECT(nodes_.uses(state).ref_count == 1 && !nodes_[state].keyed(),
                        what + " shares its state");
        continue;
      }
      for (std::int64_t i = row.first[nth(g)]; i < s.num_blocks; ++i) {
        const NodeId part = groups.part(g, t[i]);
        const bool has_slots = i * size_ + groups.group(g).begin < core_.num_slots(s);
        BLOCKMGR_EXPECT(valid(part) == has_slots, what + " has a gap at " + std::to_string(i));
        if (valid(part)) ++refs(part);
      }
      const std::int64_t read = s.loads ? row.num_loaded : core_.settled(s);
      BLOCKMGR_EXPECT(groups.first_unit(g, read) >= row.first[nth(g)],
                      what + " has given back what it reads");
    }
  }

  // From the first unit on that it reads or computes again, its blocks are its own.
  void check_own(const Sequence& s, int g, const std::string& what) {
    const GroupRow& row = core_.group_row(s);
    const std::int64_t first = row.first[nth(g)];
    const auto& own = row.own[nth(g)];
    for (std::int64_t i = first; i * size_ + core_.groups_->group(g).begin < core_.num_slots(s);
         ++i) {
      const NodeId block = own[nth(i)];
      BLOCKMGR_EXPECT(valid(block), what + " has a gap at " + std::to_string(i));
      if (!valid(block)) continue;
      ++refs(block);
      BLOCKMGR_EXPECT(nodes_.uses(block).ref_count == 1 && !nodes_[block].keyed(),
                      what + " shares what nobody finds");
    }
    const std::int64_t begins = core_.begins(s);
    const std::int64_t due =
        begins < row.hit ? core_.groups_->unit_at(g, begins) : core_.groups_->first_unit(g, begins);
    BLOCKMGR_EXPECT(first <= due, what + " has given back what it reads");
    BLOCKMGR_EXPECT(
        row.start <= row.replayed && row.replayed <= row.hit && row.hit <= s.num_computed,
        what + " replays in no order");
  }

  void check_keyed(const Sequence& s, const std::int32_t* t, std::int64_t i,
                   const std::string& who) {
    const Node& record = nodes_[t[i]];
    const NodeId node = record.keyed() ? t[i] : record.parent;
    const std::string what = who + ", logical block " + std::to_string(i);
    BLOCKMGR_EXPECT(valid(node) && nodes_[node].keyed(), what + " should be cached or have a twin");
    if (!valid(node)) return;
    BLOCKMGR_EXPECT(nodes_[node].parent == core_.chain_node(s, i),
                    what + " continues another prefix");
    BLOCKMGR_EXPECT(same_tokens(nodes_.tokens(node), nodes_.tokens(t[i]), size_),
                    what + " differs from its twin");
    BLOCKMGR_EXPECT(nodes_[node].extras == extras_at(s.extras_ids(), i),
                    what + " has other extra keys");
  }

  // A block that a caller holds by its id is used, and so is the parent of a cached one.
  void check_holds() {
    for (NodeId b = 0; b < count_; ++b) {
      const std::int64_t held = core_.num_holds(b);
      BLOCKMGR_EXPECT(held == 0 || valid(b), name(b) + " is held and cannot be");
      if (valid(b)) pins(b) += static_cast<std::uint32_t>(held);
    }
  }

  // A block committed ahead of this step's forward is in use until it is written, and it is cached
  // or has a cached twin.
  void check_unwritten() {
    const NodeList& list = core_.unwritten_;
    std::set<NodeId> listed;
    NodeId before = list.end();
    for (NodeId n = list.front(); n != list.end(); n = list.after(n)) {
      if (!valid(n) || !listed.insert(n).second || nodes_.links[nth(n)].prev != before) {
        BLOCKMGR_EXPECT(false, "the list of unwritten blocks is not linked right at " + name(n));
        return;
      }
      before = n;
      const Node& record = nodes_[n];
      const bool is_part = core_.groups_->owner(n) >= 0;  // of a twin, perhaps
      BLOCKMGR_EXPECT(nodes_.used(n) && (record.keyed() || record.parent >= 0 || is_part),
                      name(n) + " is unwritten and nobody's");
    }
    BLOCKMGR_EXPECT(static_cast<int>(listed.size()) == list.size(),
                    "the unwritten blocks are miscounted");
    for (NodeId n = 0; n < count_; ++n)
      BLOCKMGR_EXPECT(
          (nodes_[n].unwritten != 0) == (listed.count(n) == 1) && nodes_[n].unwritten <= size_,
          name(n) + " has a wrong mark of what is not written");
  }

  void check_steps() {
    const Sequences& c = core_;
    std::int64_t before = 0;
    std::set<int> open;
    for (const auto& step : c.open_steps_) {
      BLOCKMGR_EXPECT(step.ticket > before && step.ticket <= c.last_ticket_,
                      "open steps are out of order");
      before = step.ticket;
      open.insert(step.fence);
    }
    for (int fence = 1; fence <= c.pool_.num_fences(); ++fence)
      BLOCKMGR_EXPECT(open.count(fence) || c.pool_.fence_list(fence).empty(),
                      "a fence outlived its step");
  }

  const Sequences& core_;
  std::set<const ExtrasMap*> extras_holders_;
};

std::vector<std::string> Sequences::violations() const { return Audit(*this).run(); }

// All but its sources, which only an admission reads.
static void put_row(std::string& out, const GroupRow& row) {
  for (const auto first : row.first) put_numbers(out, first);
  for (const NodeId state : row.states) put_numbers(out, state);
  for (const NodeId other : row.others) put_numbers(out, other);
  for (const std::int64_t stop : row.stops) put_numbers(out, stop);
  for (const auto& own : row.own)
    for (const NodeId n : own) put_numbers(out, n);
  put_numbers(out, row.slot, row.moves, row.since, row.farthest, row.num_loaded, row.start, row.hit,
              row.replayed, row.begun);
}

std::string Sequences::fingerprint() const {
  std::string out = block_fingerprint(nodes_, index_, pool_, copies_);
  for (const Sequence& s : sequences) {
    put_numbers(out, s.generation - first_generation, s.state, s.num_blocks, s.num_chained,
                s.num_tokens, s.num_computed, s.num_cached, settled(s), written(s), begins(s),
                s.root, s.partition, s.num_waiting(), s.outdated, s.loads, computed(s),
                s.missing_slots);
    for (std::int32_t i = 0; i < s.num_blocks; ++i) put_numbers(out, table(s)[i]);
    for (std::size_t i = s.waiting_start; i < s.waiting.size(); ++i) put_numbers(out, s.waiting[i]);
    put_row(out, group_row(s));
  }
  groups()->fingerprint(out);
  for (const Kept& k : keeps)
    put_numbers(out, k.block, k.destination, k.block_generation, k.destination_generation,
                k.referenced, k.is_state);
  const Counters& n = counters;
  put_numbers(out, n.query_tokens, n.hit_tokens, n.partial_hit_tokens, n.resumed_query_tokens,
              n.resumed_hit_tokens, n.promoted_blocks, n.deduplicated_blocks, n.cached_tails,
              n.forks, n.preemptions, n.touched_blocks, n.forgotten_blocks, n.superseded_blocks,
              n.has_retired, remaps_.size(), remaps_lost_, step_, last_ticket_, open_steps_.size());
  for (NodeId b = 0; b < nodes_.count; ++b)
    if (num_holds(b)) put_numbers(out, b, num_holds(b));
  recent_hits.fingerprint(out);
  return out;
}

// Of nodes and parts that can be found or are in use. Where boundaries are nearest follows from
// that.
void GroupPlaces::fingerprint(std::string& out) const {
  for (NodeId n = 0; n < num_places(); ++n) {
    const Node& record = nodes_[n];
    if (!nodes_.used(n) && !record.keyed()) continue;
    put_numbers(out, n, owner(n));
    if (!record.keyed()) continue;
    if (Pool::is_part(record)) {
      put_numbers(out, node_of(n), group_of(n), is_being_kept(n), is_told(n));
    } else {
      put_numbers(out, unit(n), facts_[nth(n)]);
      for (int g = 0; g < num_groups(); ++g) put_numbers(out, part(g, n));
    }
  }
  const auto put_ring = [&](const ZeroedArray<Links>& links) {
    for (NodeId sentinel = num_places(); nth(sentinel) < links.size(); ++sentinel) {
      out += "| ";
      for (NodeId n = links[nth(sentinel)].next; n != sentinel; n = links[nth(n)].next)
        put_numbers(out, n);
    }
  };
  put_ring(links_);
  put_ring(passed_);
  for (const OneOrder& one : one_orders_) one.fingerprint(out);
  continued_ends_.fingerprint(out);
}

void OneOrder::fingerprint(std::string& out) const {
  put_numbers(out, num_blocks_, found_, missed_);
}

void ContinuedEnds::fingerprint(std::string& out) const {
  put_numbers(out, num_ended_, whole_blocks_, again_, ends_);
}

void RecentHits::fingerprint(std::string& out) const {
  put_numbers(out, next_, sums_.requests);
  for (std::size_t i = 0; i < nth(sums_.requests); ++i)
    put_numbers(out, ring_[i].query_tokens, ring_[i].hit_tokens);
}

// Namespaces with a quota are kept for good, and blocks cached under one are of its partition.
void Store::audit_shares(BlockAudit& audit) const {
  for (std::uint32_t root = 0; root < partitions_.size(); ++root)
    if (partitions_[root]) ++audit.root_refs(root);
  for (NodeId b = 0; b < nodes_.count; ++b) {
    if (!nodes_[b].keyed() || Pool::is_part(nodes_[b])) continue;
    const NodeId parent = nodes_[b].parent;
    const int due = is_root(parent) ? partition_of(root_index(parent)) : pool_.partition_of(parent);
    audit.expect(pool_.partition_of(b) == due,
                 BlockAudit::name(b) + " is cached outside its quota");
  }
}

std::vector<std::string> BlockPool::violations() const {
  BlockAudit audit(nodes_, index_, pool_, copies_);
  for (NodeId b = 0; b < nodes_.count; ++b) audit.refs(b) = nodes_.uses(b).ref_count;
  audit_shares(audit);
  audit.check_blocks();
  for (std::int64_t b = 0; b < nodes_.num_blocks; ++b)
    audit.expect(pool_.generation(b) >= pool_.last_generation(b),
                 "block " + std::to_string(b) + " has a generation that it had before");
  return audit.result();
}

std::string BlockPool::fingerprint() const {
  std::string out = block_fingerprint(nodes_, index_, pool_, copies_);
  put_numbers(out, last_ticket_);
  for (std::int64_t b = 0; b < nodes_.num_blocks; ++b) put_numbers(out, pool_.generation(b));
  return out;
}

}  // namespace blockmgr
