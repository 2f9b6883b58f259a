// What the books of each eviction policy promise, and what decides a victim in them.
#include "checks/audit.h"
#include "policies/adaptive.h"
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

void AdaptivePolicy::audit(BlockAudit& audit) const {
  int num_listed = 0;
  int num_cached = 0;
  for (const NodeId b : range_) {
    const Node& record = nodes_[b];
    const Facts& f = facts(b);
    const std::string who = BlockAudit::name(b);
    const bool keyed = record.keyed() && !Pool::is_part(record);
    num_cached += keyed;
    const bool idle = keyed && nodes_.idle(b);
    audit.expect(f.idle == idle, who + " is idle and the adaptive policy thinks otherwise");
    audit.expect(f.listed == (idle && record.first_child < 0),
                 who + " is a leaf and no candidate, or the reverse");
    audit.expect(f.sampled == (keyed && is_full(b) && sample_.takes(tag(b))),
                 who + " is in the sample or should be");
    num_listed += f.listed;
  }
  audit.expect(num_listed == lists_.size(), "the candidates are miscounted");
  audit.expect(num_cached == num_cached_, "the adaptive policy miscounts what is cached");
  const Column<bool> seen(range_);
  for (int i = 0; i < spans_.count(); ++i)
    for (int level = 0; level < ReuseModel::kLevels; ++level)
      lists_.each(lists_.list(spans_.slot(i), level), [&](int listed) {
        const NodeId b = range_.first + listed;
        const std::string who = BlockAudit::name(b);
        audit.expect(facts(b).listed && !seen[b],
                     who + " is in a list it does not belong in");
        audit.expect(facts(b).level == level, who + " is in the list of another level");
        // Its time is kept in whole units, so it may seem to be of the span before.
        const int slot = spans_.slot_at(time_of(facts(b).since));
        audit.expect(slot == spans_.slot(i) || (i > 0 && slot == spans_.slot(i - 1)),
                     who + " is in the list of another age");
        seen[b] = true;
        --num_listed;
      });
  audit.expect(num_listed == 0, "a candidate is in no list");
  audit.expect(lists_.least_is_least(), "a candidate is worth less than the next to go");
  sample_.audit(audit);
}

void AdaptivePolicy::fingerprint(std::string& out) const {
  put_numbers(out, now_, next_fit_, next_choice_, follows_lru_, num_held_);
  for (const NodeId b : range_) {
    const Facts& f = facts(b);
    if (!nodes_[b].keyed()) continue;
    put_numbers(out, b, f.since, f.place.turn, f.place.gap, f.diverged, f.level, f.fresh, f.shared,
                f.idle, f.computed);
  }
  for (const Ghost& ghost : ghosts_)
    if (ghost.place.turn)
      put_numbers(out, ghost.tag, ghost.since, ghost.place.turn, ghost.place.gap);
  spans_.fingerprint(out);
  lists_.fingerprint(out);
  sample_.fingerprint(out);
}

}  // namespace blockmgr
