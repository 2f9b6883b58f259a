// The books, recomputed from scratch: nothing here trusts a count or a link kept elsewhere.
#include <map>
#include <set>
#include <string>
#include <vector>

#include "sequences.h"

namespace blockmgr {

class Audit {
 public:
  explicit Audit(const Sequences& core)
      : core_(core),
        blocks_(core.blocks_),
        count_(core.config_.num_blocks),
        size_(core.config_.block_size),
        refs_(static_cast<std::size_t>(count_)),
        pins_(static_cast<std::size_t>(count_)),
        listed_(static_cast<std::size_t>(count_), -1) {}

  std::vector<std::string> run() {
    check_sequences();
    check_copies();
    check_references();
    check_queues();
    check_index();
    check_children();
    check_order();
    check_steps();
    return std::move(broken_);
  }

 private:
  static std::string name(BlockId b) { return "block " + std::to_string(b); }
  void expect(bool holds, const std::string& otherwise) {
    if (!holds) broken_.push_back(otherwise);
  }
  bool valid(BlockId b) const { return b >= (core_.config_.null_block ? 1 : 0) && b < count_; }
  std::uint32_t& refs(BlockId b) { return refs_[static_cast<std::size_t>(b)]; }
  std::uint32_t& pins(BlockId b) { return pins_[static_cast<std::size_t>(b)]; }

  void check_sequences() {
    std::size_t unused = 0;
    for (const Sequence& s : core_.sequences_) {
      const std::int64_t row = core_.row_of(s);
      const std::string who = "row " + std::to_string(row);
      const std::int32_t* t = core_.table_at(row);
      unused += s.state == Sequence::kUnused;
      if (s.state != Sequence::kRunning)
        expect(s.num_blocks == 0 && s.num_computed == 0, who + " does not run and holds blocks");
      const std::int64_t slots = core_.num_slots(s);
      expect(s.num_blocks >= 0 && s.num_blocks <= core_.config_.row_width,
             who + " holds more blocks than a row has");
      expect(0 <= s.num_computed && s.num_computed <= s.num_tokens && s.num_computed <= slots,
             who + " has computed tokens that are not there");
      const std::int64_t waiting = s.num_tokens > slots ? s.num_tokens - slots : 0;
      expect(s.num_waiting() == waiting, who + " has the wrong number of waiting tokens");
      const std::int32_t length =
          s.state == Sequence::kRunning ? static_cast<std::int32_t>(s.num_tokens) : 0;
      expect(core_.lengths_[static_cast<std::size_t>(row)] == length, who + " has a wrong length");
      std::set<BlockId> seen;
      for (std::int64_t i = 0; i < core_.config_.row_width; ++i) {
        if (i >= s.num_blocks) {
          // Scanning the unused part of a wide row would touch memory nobody else does.
          if (i > s.num_blocks + 64) break;
          expect(t[i] == 0, who + " has an entry past its blocks");
          continue;
        }
        if (!valid(t[i])) {
          broken_.push_back(who + " names " + name(t[i]));
          return;
        }
        expect(seen.insert(t[i]).second, who + " names " + name(t[i]) + " twice");
        ++refs(t[i]);
        const Block& block = blocks_[t[i]];
        expect(!block.keyed() || block.key_tokens == size_, who + " shares a cached tail");
        if (i * size_ >= s.num_tokens)
          expect(block.ref_count == 1 && !block.keyed(), who + " shares a look-ahead block");
        if (i < s.num_chained) check_keyed(s, t, i, who);
      }
      if (s.state == Sequence::kUnused) continue;
      ++roots_[s.root];
      if (s.extras) extras_holders_.insert(s.extras.get());
    }
    expect(unused == core_.unused_rows_.size(), "the list of unused rows is wrong");
  }

  void check_keyed(const Sequence& s, const std::int32_t* t, std::int64_t i,
                   const std::string& who) {
    const Block& block = blocks_[t[i]];
    const BlockId node = block.keyed() ? t[i] : block.parent;
    const std::string what = who + ", logical block " + std::to_string(i);
    expect(valid(node) && blocks_[node].keyed(), what + " should be cached or have a twin");
    if (!valid(node)) return;
    expect(blocks_[node].parent == core_.chain_node(s, i), what + " continues another prefix");
    expect(same_tokens(blocks_.tokens(node), blocks_.tokens(t[i]), size_),
           what + " differs from its twin");
    expect(blocks_[node].extras == extras_at(s.extras_ids(), i), what + " has other extra keys");
  }

  void check_copies() {
    std::set<BlockId> sources, destinations;
    int pending = 0;
    core_.copies_.each_pending([&](const Copy& copy) {
      ++pending;
      const Block& destination = blocks_[copy.destination];
      const std::string what = "pending copy into " + name(copy.destination);
      expect(valid(copy.source) && valid(copy.destination), what + " names no block");
      expect(destinations.insert(copy.destination).second, what + " appears twice");
      sources.insert(copy.source);
      expect(copy.num_tokens > 0 && copy.num_tokens <= size_, what + " has no valid length");
      expect(destination.ref_count > 0 && !destination.keyed(), what + " has no private target");
      if (valid(copy.source)) ++pins(copy.source);
    });
    expect(pending == core_.copies_.num_pending(), "the number of pending copies is wrong");
    for (const BlockId b : sources)
      expect(!destinations.count(b), name(b) + " is source and destination of pending copies");
    std::set<BlockId> in_flight;
    for (const Copy& copy : core_.copies_.flight()) {
      ++pins(copy.source);
      ++pins(copy.destination);
      in_flight.insert(copy.destination);
    }
    for (BlockId b = 0; b < count_; ++b) {
      expect(blocks_[b].in_flight == in_flight.count(b), name(b) + " has a wrong in-flight mark");
      expect((blocks_[b].copy_source != kNoBlock) == (destinations.count(b) == 1),
             name(b) + " has a copy outside the pending list");
    }
  }

  void check_references() {
    for (BlockId b = 0; b < count_; ++b) {
      const NodeId parent = blocks_[b].parent;
      if (blocks_[b].used() && valid(parent)) ++pins(parent);
    }
    for (BlockId b = 0; b < count_; ++b) {
      expect(blocks_[b].ref_count == refs(b),
             name(b) + " has ref count " + std::to_string(blocks_[b].ref_count) +
                 ", tables name it " + std::to_string(refs(b)) + " times");
      expect(blocks_[b].pins == pins(b), name(b) + " has " + std::to_string(blocks_[b].pins) +
                                             " pins, " + std::to_string(pins(b)) +
                                             " accounted for");
    }
  }

  // Lists: 0 free, 1 idle, 1 + i fence i.
  void check_list(const BlockList& list, int number) {
    int length = 0;
    BlockId before = list.end();
    for (BlockId b = list.front(); b != list.end(); b = list.after(b)) {
      if (!valid(b) || listed_[static_cast<std::size_t>(b)] >= 0 || blocks_[b].prev != before) {
        broken_.push_back("a queue is not linked right at " + name(b));
        return;
      }
      listed_[static_cast<std::size_t>(b)] = number;
      position_[b] = length++;
      before = b;
    }
    expect(length == list.size(), "a queue has another length than its count");
  }

  void check_queues() {
    const Pool& pool = core_.pool_;
    check_list(pool.free_list(), 0);
    check_list(pool.idle_list(), 1);
    int fenced = 0;
    for (int fence = 1; fence <= pool.num_fences(); ++fence) {
      check_list(pool.fence_list(fence), 1 + fence);
      fenced += pool.fence_list(fence).size();
    }
    for (BlockId b = 0; b < count_; ++b) {
      const Block& block = blocks_[b];
      const int list = listed_[static_cast<std::size_t>(b)];
      if (!valid(b)) {
        expect(list < 0 && !block.used() && !block.keyed(), "the null block is in use");
        continue;
      }
      const int due = block.used() ? -1 : block.fence ? 1 + block.fence : block.keyed() ? 1 : 0;
      expect(list == due, name(b) + " is in queue " + std::to_string(list) + ", should be in " +
                              std::to_string(due));
      expect(!block.used() || !block.fence, name(b) + " is used and fenced");
      if (list >= 0) expect(block.copy_source == kNoBlock, name(b) + " is unused, a copy pending");
    }
    expect(pool.num_used() + pool.available() + fenced == pool.capacity(),
           "used, free, idle and fenced blocks do not add up to the capacity");
  }

  void check_index() {
    std::set<BlockId> indexed;
    core_.index_.each_bucket([&](BlockId b) {
      expect(valid(b) && indexed.insert(b).second, name(b) + " is in the index twice");
    });
    int keyed = 0;
    for (BlockId b = 0; b < count_; ++b) {
      const Block& block = blocks_[b];
      const bool full = block.key_tokens == size_;
      keyed += block.keyed();
      expect(indexed.count(b) == full,
             name(b) + (full ? " is missing from" : " is stale in") + " the index");
      if (!full) continue;
      const Key key{block.parent, block.extras, blocks_.tokens(b)};
      expect(core_.index_.find(key, blocks_.digest(b)) == b,
             name(b) + " cannot be found by its key");
    }
    expect(keyed == core_.index_.num_keyed(), "the number of cached blocks is wrong");
  }

  void check_children() {
    std::map<NodeId, std::set<BlockId>> children;
    std::map<std::uint32_t, std::uint32_t> extras;
    for (BlockId b = 0; b < count_; ++b) {
      const Block& block = blocks_[b];
      if (!block.keyed()) continue;
      children[block.parent].insert(b);
      if (block.extras) ++extras[block.extras];
      if (is_root(block.parent)) ++roots_[root_index(block.parent)];
      const NodeId parent = block.parent;
      expect(is_root(parent) || (valid(parent) && blocks_[parent].key_tokens == size_),
             name(b) + " is cached and its parent is not");
      expect(block.parent_generation == core_.index_.generation(parent),
             name(b) + " outlived the content of its parent");
    }
    for (BlockId b = 0; b < count_; ++b)
      if (blocks_[b].first_child >= 0) children[b];
    for (const auto& [node, expected] : children) {
      std::set<BlockId> listed;
      BlockId before = kNoBlock;
      for (BlockId b = core_.index_.first_child(node); b >= 0; b = blocks_[b].next_sibling) {
        expect(blocks_[b].prev_sibling == before, name(b) + " has a wrong sibling link");
        if (!listed.insert(b).second) break;
        before = b;
      }
      expect(listed == expected, "the children of node " + std::to_string(node) + " are wrong");
    }
    for (const auto& [root, refs] : roots_)
      expect(root == 0 || core_.index_.root_refs(root) == refs, "a namespace is miscounted");
    for (const ExtrasMap* map : extras_holders_)
      for (const auto& entry : map->ids()) ++extras[entry.second];
    for (const auto& [id, refs] : extras)
      expect(core_.index_.extras().refs(id) == refs, "extra keys are miscounted");
  }

  void check_order() {
    for (BlockId b = 0; b < count_; ++b) {
      const NodeId parent = blocks_[b].parent;
      if (listed_[static_cast<std::size_t>(b)] != 1 || !valid(parent)) continue;
      if (listed_[static_cast<std::size_t>(parent)] != 1) continue;
      expect(position_[parent] > position_[b], name(b) + " would be evicted after its parent");
    }
  }

  void check_steps() {
    const Sequences& c = core_;
    std::int64_t before = 0;
    std::set<int> open;
    for (const auto& step : c.open_steps_) {
      expect(step.ticket > before && step.ticket <= c.last_ticket_, "open steps are out of order");
      before = step.ticket;
      open.insert(step.fence);
    }
    for (int fence = 1; fence <= c.pool_.num_fences(); ++fence)
      expect(open.count(fence) || c.pool_.fence_list(fence).empty(), "a fence outlived its step");
  }

  const Sequences& core_;
  const Blocks& blocks_;
  int count_;
  int size_;
  std::vector<std::uint32_t> refs_;
  std::vector<std::uint32_t> pins_;
  std::vector<int> listed_;
  std::map<BlockId, int> position_;
  std::map<std::uint32_t, std::uint32_t> roots_;
  std::set<const ExtrasMap*> extras_holders_;
  std::vector<std::string> broken_;
};

std::vector<std::string> Sequences::violations() const { return Audit(*this).run(); }

namespace {

template <class... Values>
void put(std::string& out, Values... values) {
  ((out += std::to_string(static_cast<std::int64_t>(values)) += ' '), ...);
}

}  // namespace

std::string Sequences::fingerprint() const {
  std::string out;
  for (BlockId b = 0; b < blocks_.count; ++b) {
    const Block& k = blocks_[b];
    put(out, b, k.ref_count, k.pins, k.parent, k.generation, k.extras, k.copy_source, k.key_tokens,
        k.copy_tokens, k.fence, k.in_flight, k.first_child, k.next_sibling);
    if (k.used() || k.keyed())
      for (int i = 0; i < blocks_.block_size; ++i) put(out, blocks_.tokens(b)[i]);
  }
  const auto put_list = [&](const BlockList& list) {
    out += "| ";
    for (BlockId b = list.front(); b != list.end(); b = list.after(b)) put(out, b);
  };
  put_list(pool_.free_list());
  put_list(pool_.idle_list());
  for (int fence = 1; fence <= pool_.num_fences(); ++fence) put_list(pool_.fence_list(fence));
  copies_.each_pending([&](const Copy& c) { put(out, c.source, c.destination, c.num_tokens); });
  for (const Copy& c : copies_.flight()) put(out, c.source, c.destination, c.num_tokens);
  for (const Sequence& s : sequences_) {
    put(out, s.generation - first_generation_, s.state, s.num_blocks, s.num_chained, s.num_tokens,
        s.num_computed, s.num_cached, s.num_written, s.committed_step, s.root, s.num_waiting());
    for (std::int32_t i = 0; i < s.num_blocks; ++i) put(out, table(s)[i]);
    for (std::size_t i = s.waiting_start; i < s.waiting.size(); ++i) put(out, s.waiting[i]);
  }
  const Counters& n = counters_;
  put(out, n.query_tokens, n.hit_tokens, n.partial_hit_tokens, n.resumed_query_tokens,
      n.resumed_hit_tokens, n.promoted_blocks, n.deduplicated_blocks, n.cached_tails, n.forks,
      n.preemptions, pool_.num_evicted(), copies_.num_planned(), copies_.num_cancelled(),
      remaps_.size(), remaps_lost_, step_, last_ticket_, open_steps_.size(), copies_.in_flight());
  return out;
}

}  // namespace blockmgr
