// What the books of queues, ghosts, aged lists and the sample promise, and what decides a victim.
#include <set>
#include <span>

#include "checks/audit.h"
#include "policies/aged_lists.h"
#include "policies/ghosts.h"
#include "policies/queues.h"
#include "policies/reuse_sample.h"

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

void Spans::fingerprint(std::string& out) const {
  for (const Span& s : std::span(spans_).first(static_cast<std::size_t>(count_)))
    put_numbers(out, s.start, s.slot);
}

bool AgedLists::least_is_least() const {
  if (least_ < 0) return true;
  if (empty(least_)) return false;
  for (int i = 0; i < num_lists_; ++i)
    if (!empty(i) && worth(i) < worth(least_)) return false;
  return true;
}

void AgedLists::fingerprint(std::string& out) const {
  for (int i = 0; i < num_lists_; ++i) {
    if (empty(i)) continue;
    put_numbers(out, -1, i);
    each(i, [&](int item) { put_numbers(out, item); });
  }
}

// The counts decide every later fit; the worths and levels decide what happens until then.
void ReuseModel::fingerprint(std::string& out) const {
  for (const auto* values : {&hits_, &ended_, &worth_, &cell_ended_, &cell_hits_, &factor_})
    for (const double& value : *values)
      if (value > 0) {
        put_numbers(out, &value - values->data());
        out.append(reinterpret_cast<const char*>(&value), sizeof value);
      }
}

void ReuseSample::audit(BlockAudit& audit) const {
  int seen = 0, lru = 0, learned = 0, listed = 0;
  bool in_lru = true;
  for (int i = entry(end()).prev; i != end() && seen <= num_entries_; i = entry(i).prev) {
    const Entry& e = entry(i);
    const std::string who = "sampled block " + std::to_string(i);
    ++seen;
    lru += e.in_lru;
    learned += e.in_learned;
    listed += e.in_learned && e.idle;
    audit.expect(find(e.tag) == i, who + " cannot be found");
    audit.expect(in_lru || !e.in_lru, who + " is in the LRU directory behind one that is not");
    if (e.in_lru)
      audit.expect((e.prev != end() && entry(e.prev).in_lru) || lru_last_ == i,
                   who + " is the last of the LRU directory and not known as such");
    in_lru = e.in_lru;
  }
  audit.expect(seen == num_entries_, "the order of the sample has another length than the sample");
  audit.expect(lru == num_lru_ && lru <= directory_, "the LRU directory is miscounted or too full");
  audit.expect(learned == num_learned_, "the learned directory is miscounted");
  audit.expect(listed == lists_.size(), "the lists of the sample are miscounted");
  audit.expect(lists_.least_is_least(), "a sampled block is worth less than the next to go");
}

void ReuseSample::fingerprint(std::string& out) const {
  for (int i = entry(end()).prev; i != end(); i = entry(i).prev) {
    const Entry& e = entry(i);
    put_numbers(out, e.tag, e.since, e.cell, e.level, e.idle, e.in_lru, e.in_learned);
  }
  lists_.fingerprint(out);
  out.append(reinterpret_cast<const char*>(&look_ups_), sizeof look_ups_);
  out.append(reinterpret_cast<const char*>(&lru_hits_), sizeof lru_hits_);
  out.append(reinterpret_cast<const char*>(&learned_hits_), sizeof learned_hits_);
  for (const double* count : {&variance_, &won_, &all_look_ups_})
    out.append(reinterpret_cast<const char*>(count), sizeof *count);
  put_numbers(out, difference_, directory_);
  model_.fingerprint(out);
}

}  // namespace blockmgr
