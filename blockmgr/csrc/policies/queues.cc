#include "policies/queues.h"

#include "checks/audit.h"

namespace blockmgr {

Queues::Queues(const Blocks& blocks, int num_queues)
    : count_(blocks.count),
      nodes_(static_cast<std::size_t>(blocks.count + num_queues)),
      sizes_(static_cast<std::size_t>(num_queues)) {
  for (BlockId b = 0; b < count_; ++b) nodes_[at(b)] = {kNoBlock, kNoBlock, kNone};
  for (int q = 0; q < num_queues; ++q) nodes_[at(end(q))] = {end(q), end(q), kNone};
}

void Queues::audit(BlockAudit& audit, const Blocks& blocks, bool only_idle) const {
  std::vector<char> listed(static_cast<std::size_t>(count_));
  for (int q = 0; q < static_cast<int>(sizes_.size()); ++q) {
    int members = 0;
    for (BlockId b = 0; b < count_; ++b) members += queue_of(b) == q;
    audit.expect(members == size(q), "an eviction queue has another size than its count");
    BlockId before = end(q);
    for (BlockId b = front(q); b != end(q); b = after(b)) {
      if (b < 0 || b >= count_ || queue_of(b) != q || nodes_[at(b)].prev != before ||
          listed[at(b)]) {
        audit.expect(false, "an eviction queue is not linked right");
        return;
      }
      listed[at(b)] = 1;
      before = b;
    }
    audit.expect(nodes_[at(end(q))].prev == before, "an eviction queue has a wrong end");
  }
  for (BlockId b = 0; b < count_; ++b) {
    const Block& block = blocks[b];
    const bool keyed = block.keyed() && audit.concerns(b);
    const bool idle = keyed && !block.used() && !block.fence;
    const std::string who = BlockAudit::name(b);
    audit.expect((queue_of(b) != kNone) == keyed,
                 who + (keyed ? " is in no eviction queue" : " is left in a queue"));
    audit.expect(linked(b) == (listed[at(b)] == 1), who + " has a wrong link");
    audit.expect(!idle || linked(b), who + " is idle and can never be a victim");
    audit.expect(idle || !only_idle || !linked(b), who + " is in use and may be a victim");
  }
}

void Queues::fingerprint(std::string& out) const {
  for (int q = 0; q < static_cast<int>(sizes_.size()); ++q) {
    out += "q ";
    put_numbers(out, size(q));
    for (BlockId b = front(q); b != end(q); b = after(b)) put_numbers(out, b);
  }
  for (BlockId b = 0; b < count_; ++b) put_numbers(out, queue_of(b));
}

BlockId LeafCursor::find(const Blocks& blocks, BlockId chosen) noexcept {
  BlockId b = chosen;
  // Generations grow when a block loses its content or its key, and a cached block gets another
  // parent only when that one has lost it; so what was below stays below for as long as both are
  // the same.
  if (chosen == chosen_ && blocks[chosen].generation == chosen_generation_ &&
      blocks[start_].generation == start_generation_)
    b = start_;
  while (blocks[b].first_child >= 0) {
    b = blocks[b].first_child;
    ++steps_;
  }
  chosen_ = chosen;
  chosen_generation_ = blocks[chosen].generation;
  start_ = b == chosen ? b : blocks[b].parent;
  start_generation_ = blocks[start_].generation;
  return b;
}

void LeafCursor::fingerprint(std::string& out) const {
  put_numbers(out, chosen_, start_, chosen_generation_, start_generation_);
}

}  // namespace blockmgr
