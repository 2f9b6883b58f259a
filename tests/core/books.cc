// Can the audit fail? Breaks one field of a live manager at a time: books --runs 44 --moves 60.
//
// After the moves of a play, every tampering below is tried on a random block, list or sequence, at
// the first moves that leave something to break. violations() must report the tampering, and report
// nothing once the field is restored. Compiled without access control, because these fields are
// private. A play resolves each plan in the move that takes it, so no copy is in flight between
// moves.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "digester.h"
#include "play.h"
#include "policies/arc.h"
#include "policies/s3fifo.h"
#include "runs.h"

namespace blockmgr::testing {
namespace {

using Undo = std::function<void()>;

// The core to tamper with, and random choices of a place in it.
struct Victim {
  Sequences& core;
  std::mt19937_64& rng;

  std::size_t below(std::size_t bound) { return rng() % bound; }
  // A random node for which the predicate holds, or kNoNode. Some ids are free.
  template <class Holds>
  NodeId node(Holds holds) {
    const int size = core.nodes_.count;
    const auto start = static_cast<int>(below(static_cast<std::size_t>(size)));
    for (int i = 0; i < size; ++i) {
      const NodeId n = (start + i) % size;
      if (holds(n, core.nodes_[n])) return n;
    }
    return kNoNode;
  }
  // A random node that has a block, or kNoNode.
  NodeId owner() {
    return node([&](NodeId n, const Node&) { return core.nodes_.block(n) != kNoBlock; });
  }
  // A random running sequence with at least one block, or nullptr.
  Sequence* running() {
    const std::size_t size = core.sequences.size();
    const std::size_t start = below(size);
    for (std::size_t i = 0; i < size; ++i) {
      Sequence& s = core.sequences[(start + i) % size];
      if (s.state == Sequence::kRunning && s.num_blocks) return &s;
    }
    return nullptr;
  }
};

// Sets a field to a different value. Returns the undo, or nothing if the value is the same.
template <class Field, class Value>
Undo set(Field& field, Value value) {
  const Field before = field;
  if (before == static_cast<Field>(value)) return {};
  field = static_cast<Field>(value);
  return [&field, before] { field = before; };
}

using Holds = bool (*)(NodeId, const Node&);
bool any(NodeId, const Node&) { return true; }
bool cached(NodeId, const Node& k) { return k.keyed(); }
bool pending(NodeId, const Node& k) { return k.copy_source != kNoNode; }
bool deep(NodeId, const Node& k) { return k.keyed() && k.parent >= 0; }
bool has_extras(NodeId, const Node& k) { return k.keyed() && k.extras; }

// Adds to a field of a node for which the predicate holds.
template <class Field>
std::function<Undo(Victim&)> more(Field Node::* field, Holds holds, int by = 1) {
  return [=](Victim& v) -> Undo {
    const NodeId b = v.node(holds);
    if (b < 0) return {};
    return set(v.core.nodes_[b].*field, v.core.nodes_[b].*field + static_cast<Field>(by));
  };
}

template <class Field, class Value>
std::function<Undo(Victim&)> to(Field Node::* field, Holds holds, Value value) {
  return [=](Victim& v) -> Undo {
    const NodeId b = v.node(holds);
    return b < 0 ? Undo() : set(v.core.nodes_[b].*field, value);
  };
}

// Makes the count of a list wrong by one.
template <class List>
Undo miscount(Victim& v, List& list) {
  return set(list.size_, list.size_ + (v.rng() % 2 ? 1 : -1));
}

std::function<Undo(Victim&)> more_uses(std::uint32_t Uses::* field) {
  return [=](Victim& v) -> Undo {
    const NodeId n = v.node(any);
    return n < 0 ? Undo() : set(v.core.nodes_.uses(n).*field, v.core.nodes_.uses(n).*field + 1);
  };
}

// Moves the first two idle nodes, a child and its parent, to the end in the wrong order.
Undo turn(IdleSegments& idle, Nodes& nodes) {
  std::vector<NodeId> order;
  for (NodeId n = idle.front(); n != idle.end(); n = idle.after(n)) order.push_back(n);
  if (order.size() < 2 || nodes[order[0]].parent != order[1]) return {};
  idle.remove(order[0]);
  idle.remove(order[1]);
  idle.push_back(order[1]);
  idle.push_back(order[0]);
  return [&idle, order] {
    idle.remove_front(static_cast<int>(order.size()));
    for (const NodeId n : order) idle.push_back(n);
  };
}

Pool::Partition& partition(Victim& v) {
  return v.core.pool_.at(
      static_cast<int>(v.below(static_cast<std::size_t>(v.core.pool_.num_partitions()))));
}

// The eviction queues of a partition, if its policy has any.
Queues* queues(Pool::Partition& own) {
  Policy* policy = own.policy.get();
  if (auto* arc = dynamic_cast<ArcPolicy*>(policy)) return &arc->queues_;
  if (auto* s3fifo = dynamic_cast<S3FifoPolicy*>(policy)) return &s3fifo->queues_;
  return nullptr;
}

struct Tampering {
  const char* name;
  std::function<Undo(Victim&)> tamper;
};

std::vector<Tampering> of_blocks() {
  return {
      {"one extra reference", more_uses(&Uses::ref_count)},
      {"one extra pin", more_uses(&Uses::pins)},
      {"a later generation", more(&Node::parent_generation, cached)},
      {"no extra keys", to(&Node::extras, has_extras, 0u)},
      {"a key of no tokens", to(&Node::key_tokens, cached, 0)},
      {"a key with one token less",
       [](Victim& v) -> Undo {
         const NodeId b = v.node([&](NodeId, const Node& k) {
           return k.key_tokens == v.core.nodes_.block_size && k.key_tokens > 1;
         });
         return b < 0 ? Undo() : set(v.core.nodes_[b].key_tokens, v.core.nodes_[b].key_tokens - 1);
       }},
      {"another parent",
       [](Victim& v) -> Undo {
         const NodeId b = v.node(deep);
         const NodeId other = v.node(any);
         return b < 0 || b == other ? Undo() : set(v.core.nodes_[b].parent, other);
       }},
      {"no next sibling",
       to(
           &Node::next_sibling,
           [](NodeId, const Node& k) { return k.keyed() && k.next_sibling >= 0; }, kNoNode)},
      {"no previous sibling",
       to(
           &Node::prev_sibling,
           [](NodeId, const Node& k) { return k.keyed() && k.prev_sibling >= 0; }, kNoNode)},
      {"no child",
       to(
           &Node::first_child, [](NodeId, const Node& k) { return k.first_child >= 0; }, kNoNode)},
      {"a child of a block without children",
       [](Victim& v) -> Undo {
         const NodeId b = v.node([](NodeId, const Node& k) { return k.first_child < 0; });
         const NodeId other = v.node(any);
         return b < 0 ? Undo() : set(v.core.nodes_[b].first_child, other);
       }},
      {"a copy of no tokens", to(&Node::copy_tokens, pending, 0)},
      {"a copy of too many tokens", to(&Node::copy_tokens, pending, 0xffff)},
      {"a copy without a source", to(&Node::copy_source, pending, kNoNode)},
      {"an unplanned copy",
       [](Victim& v) -> Undo {
         const NodeId b = v.node([](NodeId, const Node& k) { return k.copy_source == kNoNode; });
         const NodeId other = v.node(any);
         return b < 0 ? Undo() : set(v.core.nodes_[b].copy_source, other);
       }},
      {"a copy from another block",
       [](Victim& v) -> Undo {
         const NodeId b = v.node(pending);
         const NodeId other = v.node(any);
         return b < 0 ? Undo() : set(v.core.nodes_[b].copy_source, other);
       }},
      {"in flight",
       [](Victim& v) -> Undo {
         const NodeId b = v.node([](NodeId, const Node& k) { return !k.in_flight; });
         if (b < 0) return Undo();
         v.core.nodes_[b].in_flight = 1;
         return [&v, b] { v.core.nodes_[b].in_flight = 0; };
       }},
      {"a digest that the table does not know",
       [](Victim& v) -> Undo {
         const NodeId b = v.node([](NodeId, const Node& k) { return !k.digested; });
         if (b < 0) return Undo();
         v.core.nodes_[b].digested = 1;
         return [&v, b] { v.core.nodes_[b].digested = 0; };
       }},
      {"a fence", to(
                      &Node::fence, [](NodeId, const Node& k) { return !k.fence; }, 1)},
      {"no fence", to(
                       &Node::fence, [](NodeId, const Node& k) { return k.fence != 0; }, 0)},
      {"two nodes with swapped blocks",
       [](Victim& v) -> Undo {
         const NodeId one = v.owner();
         const NodeId other = v.owner();
         if (one < 0 || one == other) return {};
         auto& places = v.core.nodes_.places;
         const auto swap = [&places, one, other] {
           std::swap(places[static_cast<std::size_t>(one)],
                     places[static_cast<std::size_t>(other)]);
         };
         swap();
         return swap;
       }},
      {"a written block marked as unwritten",
       to(
           &Node::unwritten, [](NodeId, const Node& k) { return !k.unwritten; }, 1)},
      {"an unwritten block without its mark",
       to(
           &Node::unwritten, [](NodeId, const Node& k) { return k.unwritten != 0; }, 0)},
      {"a node without a block",
       [](Victim& v) -> Undo {
         const NodeId n = v.owner();
         return n < 0 ? Undo() : set(v.core.nodes_.places[static_cast<std::size_t>(n)], kNoBlock);
       }},
      {"the block of another node",
       [](Victim& v) -> Undo {
         auto& owners = v.core.nodes_.owners;
         return set(owners[v.below(owners.size())], v.node(any));
       }},
      {"a missing or wrong child",
       [](Victim& v) -> Undo {
         const auto n = static_cast<std::size_t>(v.node(any));
         auto& word = v.core.index_.continued_[n >> 6];
         return set(word, word ^ std::uint64_t{1} << (n & 63));
       }},
  };
}

std::vector<Tampering> of_pool() {
  return {
      {"a wrong count of free blocks",
       [](Victim& v) -> Undo {
         auto& free = partition(v).free;
         return free.empty() ? Undo() : set(free.size_, free.size_ - 1);
       }},
      {"a wrong free block",
       [](Victim& v) -> Undo {
         auto& free = partition(v).free;
         if (free.empty()) return {};
         return set(free.next_, BlockId{(number(free.next_) + 1) % v.core.nodes_.num_blocks});
       }},
      {"an id that is free and in use, or neither",
       [](Victim& v) -> Undo {
         NodeIds& ids = partition(v).ids;
         if (!ids.count_) return {};
         const auto i = v.below(ids.count_);
         std::uint64_t& word = ids.free_.words_[i >> 6];
         return set(word, word ^ std::uint64_t{1} << (i & 63));
       }},
      {"a word of free ids that is not known, or is none",
       [](Victim& v) -> Undo {
         NodeIds& ids = partition(v).ids;
         if (!ids.count_) return {};
         std::uint64_t& word = ids.empty_.words_[0];
         return set(word, word ^ 1);
       }},
      {"a wrong count of idle blocks", [](Victim& v) { return miscount(v, partition(v).idle); }},
      {"a wrong count of copies", [](Victim& v) { return miscount(v, v.core.copies_.pending_); }},
      {"a word of free ids that no search finds",
       [](Victim& v) -> Undo {
         auto& levels = partition(v).ids.free_.levels_;
         if (levels.size() < 2) return {};
         return set(levels[1][0], levels[1][0] ^ 1);
       }},
      {"a wrong count of unwritten blocks",
       [](Victim& v) { return miscount(v, v.core.unwritten_); }},
      {"a wrong count of a fence",
       [](Victim& v) -> Undo {
         auto& fences = v.core.pool_.fences_;
         return fences.empty() ? Undo() : miscount(v, fences[v.below(fences.size())]);
       }},
      {"one extra fenced block in the pool",
       [](Victim& v) { return set(v.core.pool_.num_fenced_, v.core.pool_.num_fenced_ + 1); }},
      {"one extra fenced block in a partition",
       [](Victim& v) -> Undo {
         Pool::Partition& own = partition(v);
         return set(own.num_fenced, own.num_fenced + 1);
       }},
      {"one extra queued block",
       [](Victim& v) -> Undo {
         if (!v.core.pool_.partitions_) return {};
         return set(v.core.pool_.num_queued_, v.core.pool_.num_queued_ + 1);
       }},
      {"a smaller partition",
       [](Victim& v) -> Undo {
         Pool::Partition& own = partition(v);
         return set(own.capacity, own.capacity - 1);
       }},
      {"a parent evicted before its child",
       [](Victim& v) { return turn(partition(v).idle, v.core.nodes_); }},
      {"a link between segments of idle nodes",
       [](Victim& v) -> Undo {
         IdleSegments& idle = partition(v).idle;
         if (idle.empty()) return {};
         return set(v.core.nodes_.links[static_cast<std::size_t>(idle.front())].prev, idle.front());
       }},
      {"a segment of idle nodes that begins, or does not",
       [](Victim& v) -> Undo {
         IdleSegments& idle = partition(v).idle;
         if (!idle.range_.count) return {};
         const std::size_t i = v.below(static_cast<std::size_t>(idle.range_.count));
         std::uint64_t& word = idle.begins_[i >> 6];
         return set(word, word ^ std::uint64_t{1} << (i & 63));
       }},
      {"the end of an eviction queue",
       [](Victim& v) -> Undo {
         Queues* const found = queues(partition(v));
         if (!found) return {};
         const int q = static_cast<int>(v.below(found->sizes_.size()));
         return set(found->nodes_[found->end(q)].prev, v.node(any));
       }},
      {"one extra cached block in the index",
       [](Victim& v) { return set(v.core.index_.num_keyed_, v.core.index_.num_keyed_ + 1); }},
      {"a block more that passed a bucket",
       [](Victim& v) -> Undo {
         auto& buckets = v.core.index_.buckets_.buckets_;
         auto& passed = buckets[v.below(buckets.size())].passed;
         return set(passed, passed + 1);
       }},
      {"one extra holder of a namespace",
       [](Victim& v) -> Undo {
         const NodeId b = v.node([](NodeId, const Node& k) {
           return k.keyed() && is_root(k.parent) && root_index(k.parent) > 0;
         });
         if (b < 0) return {};
         auto& entry = v.core.index_.roots_by_name_.entries_[root_index(v.core.nodes_[b].parent)];
         return set(entry.refs, entry.refs + 1);
       }},
      {"one extra holder of extra keys",
       [](Victim& v) -> Undo {
         const NodeId b = v.node(has_extras);
         if (b < 0) return {};
         auto& entry = v.core.index_.extras_.entries_[v.core.nodes_[b].extras];
         return set(entry.refs, entry.refs + 1);
       }},
      {"another quota",
       [](Victim& v) -> Undo {
         if (!v.core.pool_.partitions_) return {};
         const NodeId b = v.node(any);
         auto& owner = v.core.pool_.partitions_[static_cast<std::size_t>(b)];
         return set(owner, owner ? 0 : 1);
       }},
  };
}

std::vector<Tampering> of_sequences() {
  const auto with = [](auto change) {
    return [change](Victim& v) -> Undo {
      Sequence* s = v.running();
      return s ? change(v, *s) : Undo();
    };
  };
  return {
      {"a table with one block less",
       with([](Victim&, Sequence& s) { return set(s.num_blocks, s.num_blocks - 1); })},
      {"more computed tokens than tokens",
       with([](Victim&, Sequence& s) { return set(s.num_computed, s.num_tokens + 1); })},
      {"a negative number of computed tokens",
       with([](Victim&, Sequence& s) { return set(s.num_computed, -1); })},
      {"more tokens than slots", with([](Victim& v, Sequence& s) {
         const std::int64_t slots = s.num_blocks * std::int64_t{v.core.config_.block_size};
         return set(s.num_tokens, slots + s.num_waiting() + 1);
       })},
      {"a waiting sequence that holds blocks",
       with([](Victim&, Sequence& s) { return set(s.state, Sequence::kPreempted); })},
      {"an invalid block in a table",
       with([](Victim& v, Sequence& s) { return set(v.core.table(s)[0], v.core.nodes_.count); })},
      {"another block in a table",
       with([](Victim& v, Sequence& s) { return set(v.core.table(s)[0], v.node(any)); })},
      {"the same block twice in a table", with([](Victim& v, Sequence& s) -> Undo {
         return s.num_blocks < 2 ? Undo() : set(v.core.table(s)[1], v.core.table(s)[0]);
       })},
      {"one extra block in a chain", with([](Victim& v, Sequence& s) -> Undo {
         if (s.num_chained >= s.num_blocks) return {};
         const Node& next = v.core.nodes_[v.core.table(s)[s.num_chained]];
         if (next.keyed() || next.parent != kNoNode) return {};
         return set(s.num_chained, s.num_chained + 1);
       })},
      {"two swapped blocks in a chain", with([](Victim& v, Sequence& s) -> Undo {
         if (s.num_chained < 2) return {};
         std::int32_t* const t = v.core.table(s);
         if (!v.core.nodes_[t[0]].keyed() || !v.core.nodes_[t[1]].keyed()) return {};
         std::swap(t[0], t[1]);
         return [t] { std::swap(t[0], t[1]); };
       })},
      {"another namespace", with([](Victim&, Sequence& s) -> Undo { return set(s.root, 0u); })},
      {"another quota of a sequence", with([](Victim& v, Sequence& s) -> Undo {
         if (v.core.partitions_.empty()) return {};
         return set(s.partition, s.partition ? 0 : 1);
       })},
      {"a waiting token", with([](Victim&, Sequence& s) -> Undo {
         s.waiting.push_back(0);
         return [&s] { s.waiting.pop_back(); };
       })},
      {"a token of a twin",
       [](Victim& v) -> Undo {
         for (const Sequence& s : v.core.sequences)
           for (std::int64_t i = 0; i < s.num_chained; ++i)
             if (const NodeId b = v.core.table(s)[i]; !v.core.nodes_[b].keyed()) {
               Token& token = v.core.nodes_.tokens(b)[v.core.nodes_.block_size - 1];
               return set(token, token + 1);
             }
         return {};
       }},
      {"a row with blocks to commit that is not known",
       [](Victim& v) -> Undo {
         BitTree& rows = v.core.computing;
         for (const Sequence& s : v.core.sequences) {
           const auto row = static_cast<std::uint32_t>(v.core.row_of(s));
           if (!v.core.is_computing(s)) continue;
           rows.erase(row);
           return [&rows, row] { rows.insert(row); };
         }
         return {};
       }},
      {"one unused row less",
       [](Victim& v) -> Undo {
         auto& rows = v.core.unused_rows;
         if (rows.empty()) return {};
         const std::int32_t row = rows.back();
         rows.pop_back();
         return [&rows, row] { rows.push_back(row); };
       }},
      {"the ticket of a future step",
       [](Victim& v) -> Undo {
         auto& steps = v.core.open_steps_;
         return steps.empty() ? Undo() : set(steps.back().ticket, v.core.last_ticket_ + 1);
       }},
      {"a step older than its predecessor",
       [](Victim& v) -> Undo {
         auto& steps = v.core.open_steps_;
         return steps.empty() ? Undo() : set(steps.back().ticket, 0);
       }},
      {"a step without its fence",
       [](Victim& v) -> Undo {
         auto& steps = v.core.open_steps_;
         for (auto& step : steps)
           if (!v.core.pool_.fence_list(step.fence).empty()) return set(step.fence, 0);
         return {};
       }},
  };
}

constexpr std::int64_t kTimes = 2;  // tries of each in a run

// Reports the tamperings that this run has not tried often enough.
void tamper(Victim& victim, const std::vector<Tampering>& all, std::vector<std::int64_t>& tried) {
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (tried[i] == kTimes) continue;
    const Undo undo = all[i].tamper(victim);
    if (!undo) continue;
    const bool noticed = !victim.core.violations().empty();
    undo();
    if (!noticed) throw Violation(std::string("the audit misses: ") + all[i].name);
    if (const auto broken = victim.core.violations(); !broken.empty())
      throw Violation(std::string(all[i].name) + ", undone: " + broken.front());
    ++tried[i];
  }
}

// Counts that no audit can check. The fingerprint of a manager includes them, so that a refused
// call that changes one of them is noticed.
void check_fingerprint(Victim& victim) {
  CopyTracker& copies = victim.core.copies_;
  const std::string before = victim.core.fingerprint();
  const auto check = [&](const char* name, auto& number) {
    ++number;
    const bool noticed = victim.core.fingerprint() != before;
    --number;
    if (!noticed) throw Violation(std::string("the fingerprint does not count ") + name);
  };
  check("planned copies", copies.num_planned_);
  check("cancelled copies", copies.num_cancelled_);
  Pool::Partition& own = partition(victim);
  check("evicted blocks", own.num_evicted);
  if (own.retention && own.range.count) check("hints", own.retention->kept_[own.range.first].hint);
}

std::vector<Tampering> everything() {
  std::vector<Tampering> all = of_blocks();
  for (auto more : {of_pool(), of_sequences()}) all.insert(all.end(), more.begin(), more.end());
  return all;
}

// A small core at a debug level, and calls on tampered books that its checks should notice.
class AtLevel {
 public:
  explicit AtLevel(int level) : core_(config(), digester(), {}) {
    core_.set_debug(level);
    first_ = admit({1, 2, 3, 4, 5});
    core_.commit(first_, 5);
    other_ = admit({9, 9, 9, 9, 9});
  }

  // A block of the sequence is released twice.
  void release_another() {
    entry(first_, 1) = entry(other_, 1);
    core_.free(first_);
    core_.free(other_);
  }
  // An append writes tokens to a free node.
  void write_to_a_free_one() {
    const NodeId own = entry(first_, 1);
    entry(first_, 1) = own + 1;  // the next id, a free node
    append(first_, {1, 2, 3});
    entry(first_, 1) = own;
    append(first_, {4});
  }
  // The call does not touch the wrong table.
  void touch_nothing() {
    entry(first_, 1) = entry(other_, 1);
    core_.reserve(other_, 1);
  }
  // The same, with a call that is refused.
  void be_refused() {
    entry(first_, 1) = entry(other_, 1);
    try {
      admit(std::vector<Token>(30, 1));
    } catch (const std::exception&) {
      return;
    }
    throw Violation("a prompt larger than the pool was admitted");
  }

  bool has_findings() { return !core_.findings().empty(); }

 private:
  static Config config() {
    Config config;
    config.num_blocks = 8;
    config.block_size = 4;
    config.max_seqs = 4;
    config.row_width = 8;
    return config;
  }
  static std::unique_ptr<Digester> digester() {
    return std::make_unique<TestDigester>(TestDigester::kWide);
  }
  Handle admit(const std::vector<Token>& tokens) {
    Handle handle = 0;
    core_.admit({tokens.data(), static_cast<std::int64_t>(tokens.size()), {}, {}, 0},
                [&](Handle made) { handle = made; });
    return handle;
  }
  void append(Handle handle, const std::vector<Token>& tokens) {
    core_.append(handle, tokens.data(), static_cast<std::int64_t>(tokens.size()));
  }
  std::int32_t& entry(Handle handle, int index) {
    return core_.table_at(Sequences::row_of(handle))[index];
  }

  Sequences core_;
  Handle first_ = 0;
  Handle other_ = 0;
};

// Level 1 checks what each call touches, level 2 checks everything after each call.
void check_levels() {
  const struct {
    const char* name;
    void (AtLevel::*act)();
    int found_from;
  } acts[] = {{"a block released twice", &AtLevel::release_another, 1},
              {"a write to a free node", &AtLevel::write_to_a_free_one, 1},
              {"a table that is not touched", &AtLevel::touch_nothing, 2},
              {"a table after a refused call", &AtLevel::be_refused, 2}};
  for (const auto& each : acts)
    for (int level = 1; level <= 2; ++level) {
      AtLevel world(level);
      if (world.has_findings()) throw Violation("the audit reports a violation without a bug");
      (world.*each.act)();
      if (world.has_findings() != (level >= each.found_from))
        throw Violation(std::string(each.name) + " at debug level " + std::to_string(level));
    }
}

}  // namespace
}  // namespace blockmgr::testing

int main(int argc, char** argv) {
  using namespace blockmgr::testing;
  int seed = 1, runs = 44, moves = 60;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    int* value = name == "--seed" ? &seed : name == "--runs" ? &runs : &moves;
    if (name != "--seed" && name != "--runs" && name != "--moves") argc = 0;
    *value = std::atoi(argv[i + 1]);
  }
  if (argc % 2 == 0) {
    std::fprintf(stderr, "usage: books [--seed N] [--runs N] [--moves N]\n");
    return 2;
  }
  const std::vector<Tampering> all = everything();
  std::vector<std::int64_t> tallies(all.size());
  const int kinds = static_cast<int>(profiles().size());
  int number = 0;
  try {
    check_levels();
    for (; number < runs; ++number) {
      const auto stream =
          static_cast<std::uint64_t>(seed) * 1'000'003 + static_cast<unsigned>(number);
      Bytes bytes(stream);
      std::mt19937_64 rng(stream);
      Play play(bytes, number % kinds);
      std::vector<std::int64_t> tried(all.size());
      for (int i = 0; i < moves && play.move(); ++i) {
        Victim victim{const_cast<blockmgr::Sequences&>(play.world().core()), rng};
        tamper(victim, all, tried);
        if (i == 0) check_fingerprint(victim);
      }
      for (std::size_t i = 0; i < all.size(); ++i) tallies[i] += tried[i];
    }
  } catch (const std::exception& violation) {
    std::printf("violation in run %d of seed %d: %s\n", number, seed, violation.what());
    return 1;
  }
  bool complete = true;
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::printf("%8lld  %s\n", static_cast<long long>(tallies[i]), all[i].name);
    complete &= tallies[i] > 0;
  }
  std::printf("seed %d, %d runs of %d moves, each seen\n", seed, runs, moves);
  if (!complete) std::printf("some fields were never tried\n");
  return complete ? 0 : 1;
}
