// Checks the books of each eviction policy, of its queues and ghosts, and the order that decides a
// victim in them.
#include <set>

#include "checks/audit.h"
#include "policies/arc.h"
#include "policies/lfuda.h"
#include "policies/s3fifo.h"

namespace blockmgr {

void LfudaPolicy::audit(BlockAudit& audit) const {
  std::int32_t idle = 0;
  for (const NodeId b : range_) {
    const Node& record = nodes_[b];
    const Facts& f = facts(b);
    const std::string who = BlockAudit::name(b);
    const bool keyed = record.keyed() && !Pool::is_part(record);
    const bool is_idle = keyed && nodes_.idle(b);
    idle += is_idle;
    audit.expect((f.uses > 0) == keyed, who + " is cached and not counted, or counted only");
    audit.expect((f.position > 0) == is_idle, who + " is idle or in the heap, not both");
    audit.expect(!f.uses || (f.key <= age_ + f.uses && f.key > f.uses - 1),
                 who + " has a wrong key");
    if (!f.position) continue;
    const std::int32_t at = f.position - 1;
    audit.expect(at < size_ && heap_[static_cast<std::size_t>(at)] == b, who + " is misplaced");
    audit.expect(!at || before(heap_[static_cast<std::size_t>((at - 1) / 2)], b),
                 who + " is out of order in the heap");
  }
  audit.expect(idle == size_, "the heap has another size than there are idle blocks");
}

void LfudaPolicy::fingerprint(std::string& out) const {
  put_numbers(out, age_, size_);
  for (std::int32_t i = 0; i < size_; ++i) {
    const NodeId b = heap_[static_cast<std::size_t>(i)];
    put_numbers(out, b, facts(b).stamp);
  }
  for (const NodeId b : range_)
    if (facts(b).uses) put_numbers(out, facts(b).uses, facts(b).key);
  cursor_.fingerprint(out);
}

void S3FifoPolicy::audit(BlockAudit& audit) const {
  queues_.audit(audit, nodes_, false);
  ghosts_.audit(audit);
  for (const NodeId b : range_) {
    if (queues_.queue_of(b) == Queues::kNone) continue;
    audit.expect(facts(b).hits <= kMostHits, BlockAudit::name(b) + " was hit too often");
    audit.expect(!facts(b).front || !queues_.linked(b),
                 BlockAudit::name(b) + " was taken out of the queue it is in");
  }
}

void S3FifoPolicy::fingerprint(std::string& out) const {
  queues_.fingerprint(out);
  ghosts_.fingerprint(out);
  for (const LeafCursor& cursor : cursors_) cursor.fingerprint(out);
  for (const NodeId b : range_)
    if (queues_.queue_of(b) != Queues::kNone)
      put_numbers(out, facts(b).hits, facts(b).front, facts(b).idle);
}

void ArcPolicy::audit(BlockAudit& audit) const {
  queues_.audit(audit, nodes_, true);
  ghosts_.audit(audit);
  audit.expect(target_ >= 0 && target_ <= capacity_, "the target of the first queue is impossible");
  audit.expect(!ghosts_.size(kB1) || queues_.size(kT1) + ghosts_.size(kB1) <= capacity_,
               "the first queue and its ghosts are more than the cache");
  audit.expect(queues_.size(kT1) + queues_.size(kT2) + ghosts_.size() <= 2 * capacity_,
               "blocks and ghosts are more than twice the cache");
}

void ArcPolicy::fingerprint(std::string& out) const {
  queues_.fingerprint(out);
  ghosts_.fingerprint(out);
  for (const LeafCursor& cursor : cursors_) cursor.fingerprint(out);
  out += std::to_string(target_) + ' ';
}

void Queues::audit(BlockAudit& audit, const Nodes& nodes, bool only_idle) const {
  const Column<char> listed(range_);
  for (int q = 0; q < static_cast<int>(sizes_.size()); ++q) {
    int members = 0;
    for (const NodeId b : range_) members += queue_of(b) == q;
    audit.expect(members == size(q), "an eviction queue has another size than its count");
    NodeId before = end(q);
    for (NodeId b = front(q); b != end(q); b = after(b)) {
      if (!range_.holds(b) || queue_of(b) != q || nodes_[b].prev != before || listed[b]) {
        audit.expect(false, "an eviction queue is not linked right");
        return;
      }
      listed[b] = 1;
      before = b;
    }
    audit.expect(nodes_[end(q)].prev == before, "an eviction queue has a wrong end");
  }
  for (const NodeId b : range_) {
    const blockmgr::Node& record = nodes[b];
    const bool keyed = record.keyed() && !Pool::is_part(record);
    const bool idle = keyed && nodes.idle(b);
    const std::string who = BlockAudit::name(b);
    audit.expect((queue_of(b) != kNone) == keyed,
                 who + (keyed ? " is in no eviction queue" : " is left in a queue"));
    audit.expect(linked(b) == (listed[b] == 1), who + " has a wrong link");
    audit.expect(!idle || linked(b), who + " is idle and can never be a victim");
    audit.expect(idle || !only_idle || !linked(b), who + " is in use and may be a victim");
  }
}

void Queues::fingerprint(std::string& out) const {
  for (int q = 0; q < static_cast<int>(sizes_.size()); ++q) {
    out += "q ";
    put_numbers(out, size(q));
    for (NodeId b = front(q); b != end(q); b = after(b)) put_numbers(out, b);
  }
  for (const NodeId b : range_) put_numbers(out, queue_of(b));
}

void LeafCursor::fingerprint(std::string& out) const {
  put_numbers(out, chosen_, start_, chosen_generation_, start_generation_);
}

void GhostSet::audit(BlockAudit& audit) const {
  std::set<Tag> tags;
  int total = 0;
  for (int l = 0; l < num_lists(); ++l) {
    int length = 0;
    std::int32_t before = end(l);
    for (std::int32_t i = node(end(l)).next; i != end(l) && length <= capacity();
         i = node(i).next) {
      audit.expect(node(i).list == l && node(i).prev == before,
                   "a list of ghosts is not linked right");
      audit.expect(tags.insert(node(i).tag).second, "a ghost is remembered twice");
      audit.expect(table_.find(node(i).tag) == i, "a ghost cannot be found");
      before = i;
      ++length;
    }
    audit.expect(before == node(end(l)).prev && length == size(l),
                 "a list of ghosts is miscounted");
    total += length;
  }
  audit.expect(total == num_ghosts_ && total <= capacity(), "there are more ghosts than allowed");
  audit.expect(table_.size() == total, "the table of ghosts has stale entries");
}

void GhostSet::fingerprint(std::string& out) const {
  for (int l = 0; l < num_lists(); ++l) {
    out += "g ";
    for (std::int32_t i = node(end(l)).next; i != end(l); i = node(i).next)
      put_numbers(out, node(i).tag);
  }
}

}  // namespace blockmgr
