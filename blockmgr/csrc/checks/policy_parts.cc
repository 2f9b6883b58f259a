// Checks the books of queues and ghosts, and the order that decides a victim.
#include <set>

#include "checks/audit.h"
#include "policies/ghosts.h"
#include "policies/queues.h"

namespace blockmgr {

void Queues::audit(BlockAudit& audit, const Nodes& nodes, bool only_idle) const {
  const Column<char> listed(range_);
  for (int q = 0; q < static_cast<int>(sizes_.size()); ++q) {
    int members = 0;
    for (const NodeId b : range_) members += queue_of(b) == q;
    audit.expect(members == size(q), "an eviction queue has another size than its count");
    NodeId before = end(q);
    for (NodeId b = front(q); b != end(q); b = after(b)) {
      if (!range_.holds(b) || queue_of(b) != q || nodes_[b].prev != before ||
          listed[b]) {
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
    for (std::int32_t i = node(end(l)).next; i != end(l) && length <= capacity(); i = node(i).next) {
      audit.expect(node(i).list == l && node(i).prev == before,
                   "a list of ghosts is not linked right");
      audit.expect(tags.insert(node(i).tag).second, "a ghost is remembered twice");
      audit.expect(table_.find(node(i).tag) == i, "a ghost cannot be found");
      before = i;
      ++length;
    }
    audit.expect(before == node(end(l)).prev && length == size(l), "a list of ghosts is miscounted");
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
