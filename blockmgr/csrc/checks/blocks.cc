// The invariants of the blocks of any pool, for every owner.
#include <set>

#include "checks/audit.h"

namespace blockmgr {

void BlockAudit::check_blocks() {
  check_places();
  check_copies();
  check_references();
  check_twins();
  check_queues();
  check_index();
  check_children();
  check_order();
}

// Each block is free, kept back, or that of one node; and each id is free or that of a node.
void BlockAudit::check_places() {
  std::set<std::int32_t> free;
  const std::int32_t first = pool_.num_blocks() - pool_.capacity();
  for (int i = 0; i < pool_.num_partitions(); ++i) {
    const Pool::Partition& own = pool_.partition(i);
    int bound = 0;
    int listed = 0;
    own.free.each([&](BlockId b) {
      ++listed;
      BLOCKMGR_EXPECT(own.holds(b) && free.insert(number(b)).second,
                      "block " + std::to_string(number(b)) +
                          " is free twice, or in a partition it does not belong to");
    });
    BLOCKMGR_EXPECT(listed == own.free.size(), "free blocks are miscounted");
    for (const NodeId n : own.range) {
      const BlockId b = nodes_.block(n);
      bound += b != kNoBlock;
      BLOCKMGR_EXPECT(own.ids.is_free(n) == (b == kNoBlock), name(n) + " is handed out or is not");
      BLOCKMGR_EXPECT(pool_.partition_of(n) == i, name(n) + " goes back to another partition");
      BLOCKMGR_EXPECT(b == kNoBlock || (own.holds(b) && nodes_.owner(number(b)) == n),
                      name(n) + " has a block that does not know of it");
      const Node& record = nodes_[n];
      BLOCKMGR_EXPECT(b != kNoBlock || (!nodes_.used(n) && !record.keyed() && !record.fence),
                      name(n) + " is in use without a block");
    }
    BLOCKMGR_EXPECT(own.ids.adds_up(), "the words of free ids are miscounted");
    BLOCKMGR_EXPECT(bound + own.free.size() + own.num_withheld == own.capacity,
                    "the blocks of a partition do not add up to what was set apart");
  }
  int leaving = 0;
  for (std::int32_t b = 0; b < nodes_.num_blocks; ++b) {
    const NodeId n = nodes_.owner(b);
    const bool out = b >= pool_.limit() && b < pool_.num_blocks();
    leaving += out && n != kNoNode;
    BLOCKMGR_EXPECT((n == kNoNode) == (b < first || free.count(b)) || (out && n == kNoNode),
                    "block " + std::to_string(b) + " is lost");
    BLOCKMGR_EXPECT(
        !out || !(free.count(b) || (n >= 0 && (nodes_[n].keyed() || nodes_[n].parent >= 0))),
        "block " + std::to_string(b) + " is out of use, and free or cached");
    BLOCKMGR_EXPECT(n == kNoNode || number(nodes_.block(n)) == b,
                    "block " + std::to_string(b) + " has a node that does not know of it");
  }
  BLOCKMGR_EXPECT(leaving == pool_.num_leaving(), "blocks that are leaving are miscounted");
}

void BlockAudit::check_copies() {
  std::set<NodeId> sources, destinations, copied;
  int pending = 0;
  copies_.each_pending([&](const Copy& copy) {
    ++pending;
    const std::string what = "pending copy into " + name(copy.destination);
    BLOCKMGR_EXPECT(valid(copy.source) && valid(copy.destination), what + " names no block");
    BLOCKMGR_EXPECT(destinations.insert(copy.destination).second, what + " appears twice");
    const bool zeros = copy.source == copy.destination;
    if (!zeros) {
      sources.insert(copy.source);
      copied.insert(copy.destination);
    }
    BLOCKMGR_EXPECT(copy.num_tokens > 0 && copy.num_tokens <= size_, what + " has no valid length");
    const bool is_private = !nodes_[copy.destination].keyed() || awaited_.count(copy.destination);
    BLOCKMGR_EXPECT(nodes_.uses(copy.destination).ref_count > 0 && is_private,
                    what + " has no private target");
    if (valid(copy.source)) ++pins(copy.source);
  });
  BLOCKMGR_EXPECT(pending == copies_.num_pending(), "the number of pending copies is wrong");
  for (const NodeId b : sources)
    BLOCKMGR_EXPECT(!copied.count(b), name(b) + " is source and destination of pending copies");
  std::set<NodeId> in_flight;
  for (const Copy& copy : copies_.flight()) {
    ++pins(copy.source);
    ++pins(copy.destination);
    in_flight.insert(copy.destination);
  }
  for (NodeId b = 0; b < count_; ++b) {
    BLOCKMGR_EXPECT(nodes_[b].in_flight == in_flight.count(b),
                    name(b) + " has a wrong in-flight mark");
    BLOCKMGR_EXPECT((nodes_[b].copy_source != kNoNode) == (destinations.count(b) == 1),
                    name(b) + " has a copy outside the pending list");
  }
}

void BlockAudit::check_references() {
  for (NodeId b = 0; b < count_; ++b) {
    const NodeId parent = nodes_[b].parent;
    if (nodes_.used(b) && nodes_[b].keyed() && valid(parent)) ++pins(parent);
  }
  for (NodeId b = 0; b < count_; ++b) {
    BLOCKMGR_EXPECT(nodes_.uses(b).ref_count == refs(b),
                    name(b) + " has ref count " + std::to_string(nodes_.uses(b).ref_count) +
                        ", tables name it " + std::to_string(refs(b)) + " times");
    BLOCKMGR_EXPECT(nodes_.uses(b).pins == pins(b),
                    name(b) + " has " + std::to_string(nodes_.uses(b).pins) + " pins, " +
                        std::to_string(pins(b)) + " accounted for");
  }
}

// A cached block stands for private ones with the same content, and a table names each of them.
void BlockAudit::check_twins() {
  int linked = 0;
  for (NodeId b = 0; b < count_; ++b)
    pool_.each_twin(b, [&](NodeId twin) {
      ++linked;
      BLOCKMGR_EXPECT(valid(twin) && !nodes_[twin].keyed() && nodes_[twin].parent == b,
                      name(b) + " stands for a block that does not know of it");
    });
  for (NodeId b = 0; b < count_; ++b) {
    const NodeId cached = nodes_[b].parent;
    if (nodes_[b].keyed() || cached == kNoNode) continue;
    --linked;
    BLOCKMGR_EXPECT(valid(cached) && nodes_[cached].key_tokens == size_,
                    name(b) + " has a twin that is not cached");
    if (!valid(cached)) continue;
    BLOCKMGR_EXPECT(nodes_.uses(b).ref_count && nodes_.uses(cached).ref_count,
                    name(cached) + " is kept for its twin " + name(b) + " alone");
    BLOCKMGR_EXPECT(same_tokens(nodes_.tokens(b), nodes_.tokens(cached), size_),
                    name(b) + " differs from its twin");
  }
  BLOCKMGR_EXPECT(linked == 0, "a block is missing among the twins of another");
}

// Lists: 1 idle, 1 + i fence i.
void BlockAudit::check_idle(const IdleSegments& idle) {
  if (!idle.adds_up()) {
    broken_.push_back("the segments of idle blocks are not linked right, or miscounted");
    return;
  }
  int length = 0;
  for (NodeId n = idle.front(); n != idle.end(); n = idle.after(n)) {
    listed_[static_cast<std::size_t>(n)] = 1;
    position_[n] = length++;
  }
}

void BlockAudit::check_list(const NodeList& list, int number) {
  int length = 0;
  NodeId before = list.end();
  for (NodeId b = list.front(); b != list.end(); b = list.after(b)) {
    if (!valid(b) || listed_[static_cast<std::size_t>(b)] >= 0 ||
        nodes_.links[static_cast<std::size_t>(b)].prev != before) {
      broken_.push_back("a queue is not linked right at " + name(b));
      return;
    }
    listed_[static_cast<std::size_t>(b)] = number;
    position_[b] = length++;
    before = b;
  }
  BLOCKMGR_EXPECT(length == list.size(), "a queue has another length than its count");
}

void BlockAudit::check_queues() {
  for (int i = 0; i < pool_.num_partitions(); ++i) check_partition(i);
  int fenced = 0;
  for (int fence = 1; fence <= pool_.num_fences(); ++fence) {
    check_list(pool_.fence_list(fence), 1 + fence);
    fenced += pool_.fence_list(fence).size();
  }
  for (NodeId b = 0; b < count_; ++b) {
    const Node& record = nodes_[b];
    const int list = listed_[static_cast<std::size_t>(b)];
    const bool waits = valid(b) && !nodes_.used(b);
    const int due = !waits            ? -1
                    : record.fence    ? 1 + record.fence
                    : !record.keyed() ? 0
                    : is_part(b)      ? -1
                                      : 1;
    BLOCKMGR_EXPECT(list == due, name(b) + " is in queue " + std::to_string(list) +
                                     ", should be in " + std::to_string(due));
    BLOCKMGR_EXPECT(!nodes_.used(b) || !record.fence, name(b) + " is used and fenced");
    if (list >= 0)
      BLOCKMGR_EXPECT(record.copy_source == kNoNode, name(b) + " is unused, a copy pending");
  }
  BLOCKMGR_EXPECT(pool_.num_free() + pool_.num_idle() == pool_.available(),
                  "free and idle blocks do not add up to what is available");
  if (pool_.is_bare()) fenced -= pool_.partition(0).num_fenced;
  BLOCKMGR_EXPECT(
      pool_.num_used() + pool_.available() + fenced + pool_.num_withheld() == pool_.capacity(),
      "used, free, idle, fenced and withheld blocks do not add up to the capacity");
}

// A partition lists its own blocks, and all of them add up to what it was given.
void BlockAudit::check_partition(int number) {
  const Pool::Partition& own = pool_.partition(number);
  partition_ = &own;
  check_idle(own.idle);
  int used = 0, fenced = 0, kept = 0;
  for (const NodeId n : own.range) {
    used += nodes_.used(n);
    kept += nodes_.idle(n) && is_part(n);
    fenced += !nodes_.used(n) && nodes_[n].fence;
  }
  BLOCKMGR_EXPECT(fenced == own.num_fenced, "a partition miscounts its fenced blocks");
  BLOCKMGR_EXPECT(kept == own.num_kept, "a partition miscounts the parts that it keeps");
  BLOCKMGR_EXPECT(used + fenced + own.available() + own.num_withheld == own.capacity,
                  "the blocks of a partition do not add up to what was set apart");
  if (own.policy) own.policy->audit(*this);
  if (own.past) own.past->audit(*this);
}

void BlockAudit::check_index() {
  std::set<NodeId> indexed;
  index_.buckets().each([&](NodeId b) {
    BLOCKMGR_EXPECT(valid(b) && indexed.insert(b).second, name(b) + " is in the index twice");
  });
  BLOCKMGR_EXPECT(index_.buckets().adds_up(nodes_), "a bucket of the index does not add up");
  int keyed = 0;
  for (NodeId b = 0; b < count_; ++b) {
    const Node& record = nodes_[b];
    const bool full = record.key_tokens == size_ && !is_part(b);
    keyed += record.keyed() && !is_part(b);
    const bool digested = index_.has_digest(b);
    BLOCKMGR_EXPECT(indexed.count(b) == digested,
                    name(b) + (digested ? " is missing from" : " is stale in") + " the index");
    BLOCKMGR_EXPECT(full || !(digested || index_.is_crowded(b)), name(b) + " lost its content");
    if (!full) continue;
    const Key key{record.parent, record.extras, nodes_.tokens(b)};
    const bool retired = record.parent_generation != index_.generation(record.parent);
    BLOCKMGR_EXPECT(
        digested || (index_.digests_on_demand() && (retired || !index_.is_crowded(key.parent))),
        name(b) + " has no digest");
    BLOCKMGR_EXPECT(!digested || is_root(key.parent) || index_.has_digest(key.parent),
                    name(b) + " has a digest, and its parent has none");
    const NodeId found = digested ? index_.find(key, nodes_.digest(b)) : index_.find_listed(key);
    BLOCKMGR_EXPECT((found == b) != retired,
                    name(b) + (retired ? " is retired and found" : " cannot be found by its key"));
  }
  BLOCKMGR_EXPECT(keyed == index_.num_keyed(), "the number of cached blocks is wrong");
  for (NodeId n = 0; n < count_; ++n) {
    const bool goes_on = n + 1 < count_ && nodes_[n + 1].parent == n &&
                         nodes_[n + 1].key_tokens == size_ && !nodes_[n + 1].extras;
    BLOCKMGR_EXPECT(index_.goes_on(n) == goes_on, name(n) + " goes on in the next id, or does not");
  }
}

void BlockAudit::check_children() {
  std::map<NodeId, std::set<NodeId>> children;
  std::set<NodeId> retired;
  const auto check_list = [&](NodeId first, std::set<NodeId>& listed) {
    NodeId before = kNoNode;
    for (NodeId b = first; b >= 0; b = nodes_[b].next_sibling) {
      BLOCKMGR_EXPECT(nodes_[b].prev_sibling == before, name(b) + " has a wrong sibling link");
      if (!listed.insert(b).second) break;
      before = b;
    }
  };
  for (const PrefixIndex::Retired& each : index_.retired()) {
    const std::size_t known = retired.size();
    check_list(each.first, retired);
    BLOCKMGR_EXPECT(retired.size() > known, "a list of retired blocks is empty");
    for (NodeId b = each.first; b >= 0 && nodes_[b].keyed(); b = nodes_[b].next_sibling)
      BLOCKMGR_EXPECT(nodes_[b].parent == root_node(each.root),
                      name(b) + " is retired in another namespace");
  }
  for (NodeId b = 0; b < count_; ++b) {
    const Node& record = nodes_[b];
    if (!record.keyed() || is_part(b)) continue;
    if (!retired.contains(b)) children[record.parent].insert(b);
    if (record.extras) ++extras_[record.extras];
    if (is_root(record.parent)) ++roots_[root_index(record.parent)];
    const NodeId parent = record.parent;
    BLOCKMGR_EXPECT(is_root(parent) || (valid(parent) && nodes_[parent].keyed() &&
                                        nodes_[parent].key_tokens >= record.key_tokens),
                    name(b) + " is cached and its parent is not");
    BLOCKMGR_EXPECT((record.parent_generation == index_.generation(parent)) != retired.contains(b),
                    name(b) + " outlived the content of its parent");
  }
  for (NodeId b = 0; b < count_; ++b)
    if (nodes_[b].first_child >= 0) children[b];
  for (const auto& [node, expected] : children) {
    std::set<NodeId> listed;
    check_list(index_.first_child(node), listed);
    BLOCKMGR_EXPECT(listed == expected,
                    "the children of node " + std::to_string(node) + " are wrong");
    const bool may_crowd = is_root(node) || nodes_[node].key_tokens == size_;
    BLOCKMGR_EXPECT(!index_.digests_on_demand() || index_.is_crowded(node) || !may_crowd ||
                        listed.size() <= static_cast<std::size_t>(kFewChildren),
                    "node " + std::to_string(node) + " has many children without digests");
  }
  check_log();
  // All that exist, also without an owner: one that nothing holds must be gone.
  for (std::uint32_t root = 1; root < index_.num_roots(); ++root)
    BLOCKMGR_EXPECT(index_.root_refs(root) == counted(roots_, root), "a namespace is miscounted");
  for (std::uint32_t id = 1; id < index_.extras().size(); ++id)
    BLOCKMGR_EXPECT(index_.extras().refs(id) == counted(extras_, id), "extra keys are miscounted");
}

// The columns of the event log are as long as its runs say. Counts the roots and keys that it
// keeps.
void BlockAudit::check_log() {
  const EventLog* const log = index_.log();
  if (!log) return;
  std::int64_t blocks = 0;
  std::int64_t stored = 0;
  for (const EventRun& run : *log) {
    BLOCKMGR_EXPECT(run.first == blocks, "an event begins at another block");
    blocks += run.num_blocks;
    if (run.kind != EventKind::kStored) continue;
    stored += run.num_blocks;
    ++roots_[run.root];
  }
  BLOCKMGR_EXPECT(blocks == log->num_blocks() && stored == log->num_stored(),
                  "the log of events does not add up");
  for (std::int64_t i = 0; i < log->num_extras(); ++i) {
    BLOCKMGR_EXPECT(log->extras()[i].block < stored, "extra keys of no block are logged");
    ++extras_[log->extras()[i].id];
  }
  for (NodeId b = 0; b < count_; ++b) {
    if (nodes_[b].key_tokens != size_ || Pool::is_part(nodes_[b])) continue;
    const NodeId parent = nodes_[b].parent;
    const std::uint32_t root = is_root(parent) ? root_index(parent) : log->root_of(parent);
    BLOCKMGR_EXPECT(log->root_of(b) == root, name(b) + " is logged in another namespace");
  }
}

void BlockAudit::check_order() {
  for (NodeId b = 0; b < count_; ++b) {
    const NodeId parent = nodes_[b].parent;
    if (listed_[static_cast<std::size_t>(b)] != 1 || !valid(parent)) continue;
    if (listed_[static_cast<std::size_t>(parent)] != 1) continue;
    BLOCKMGR_EXPECT(position_[parent] > position_[b],
                    name(b) + " would be evicted after its parent");
  }
}

std::string block_fingerprint(const Nodes& nodes, const PrefixIndex& index, const Pool& pool,
                              const CopyTracker& copies) {
  std::string out;
  if (const EventLog* log = index.log())
    put_numbers(out, log->num_runs(), log->num_blocks(), log->num_lost());
  for (NodeId b = 0; b < nodes.count; ++b) {
    const Node& k = nodes[b];
    const Uses& uses = nodes.uses(b);
    put_numbers(out, b, uses.ref_count, uses.pins, k.parent, k.generation, k.extras, k.copy_source,
                k.key_tokens, k.copy_tokens, k.unwritten, k.fence, k.in_flight, k.first_child,
                k.keyed() || k.parent >= 0 ? k.next_sibling : kNoNode, nodes.name(b));
    if (nodes.used(b) || k.keyed())
      for (int i = 0; i < nodes.block_size; ++i) put_numbers(out, nodes.tokens(b)[i]);
  }
  for (const PrefixIndex::Retired& each : index.retired())
    put_numbers(out, each.root, each.first, each.again);
  const auto put_list = [&](const auto& list) {
    out += "| ";
    for (NodeId b = list.front(); b != list.end(); b = list.after(b)) put_numbers(out, b);
  };
  for (int i = 0; i < pool.num_partitions(); ++i) {
    const Pool::Partition& own = pool.partition(i);
    own.free.each([&](BlockId b) { put_numbers(out, number(b)); });
    put_list(own.idle);
    put_numbers(out, own.first, own.capacity, own.num_fenced, own.num_evicted, own.num_withheld);
    if (own.policy) own.policy->fingerprint(out);
    if (own.past) own.past->fingerprint(out);
  }
  for (int fence = 1; fence <= pool.num_fences(); ++fence) put_list(pool.fence_list(fence));
  copies.each_pending(
      [&](const Copy& c) { put_numbers(out, c.source, c.destination, c.num_tokens); });
  for (const Copy& c : copies.flight()) put_numbers(out, c.source, c.destination, c.num_tokens);
  put_numbers(out, pool.num_evicted(), copies.num_planned(), copies.num_cancelled(),
              copies.in_flight(), pool.limit());
  return out;
}

}  // namespace blockmgr
