// References by block id: a caller that moves K/V out of a block, or into one, keeps it meanwhile.
#include "sequences/sequences.h"

namespace blockmgr {

NodeId Sequences::checked_block(std::int64_t id, std::int64_t position) const {
  const int first = config_.null_block ? 1 : 0;
  if (id >= first && id < nodes_.num_blocks) return nodes_.owner(id);
  const std::string bound =
      "[" + std::to_string(first) + ", " + std::to_string(nodes_.num_blocks) + ")";
  if (position < 0)
    throw Error(ErrorKind::kValue, "block must be in " + bound + ", got " + std::to_string(id));
  throw Error(ErrorKind::kValue, "blocks must be in " + bound + ", got " + std::to_string(id) +
                                     " at index " + std::to_string(position));
}

// A block that only a copy keeps holds nothing that a caller may refer to.
void Sequences::check_known(const std::int64_t* ids, std::int64_t count, const char* call) const {
  for (std::int64_t i = 0; i < count; ++i) {
    const NodeId n = checked_block(ids[i], i);
    if (n < 0 || (!nodes_.uses(n).ref_count && !nodes_[n].keyed() && !num_holds(n)))
      throw WrongBlockState(
          ids[i], std::string("cannot ") + call + " it: it is not held, and it is not cached");
  }
}

std::int64_t Sequences::ref_count(std::int64_t id) const {
  const NodeId n = checked_block(id, -1);
  return n < 0 ? 0 : nodes_.uses(n).ref_count + num_holds(n);
}

// A hold is a pin: it keeps the block and its ancestors, and does not cause a copy before a write.
// With further groups of layers it keeps no boundary: one may end, and the block goes with the hold.
void Sequences::acquire(const std::int64_t* ids, std::int64_t count) {
  Call call(*this);
  check_known(ids, count, "acquire");
  if (!holds_)
    holds_ = std::make_unique<ZeroedArray<std::uint32_t>>(static_cast<std::size_t>(nodes_.count));
  for (std::int64_t i = 0; i < count; ++i) {
    const NodeId n = nodes_.owner(ids[i]);
    pool_.pin(n);
    ++holds_of(n);
  }
}

void Sequences::release(const std::int64_t* ids, std::int64_t count) {
  Call call(*this);
  // A block may stand there as often as it is held, so the holds are counted off and put back
  // before any of them is really dropped.
  struct Restore {
    Sequences& core;
    const std::int64_t* ids;
    std::int64_t counted = 0;
    ~Restore() {
      while (counted > 0) ++core.holds_of(core.nodes_.owner(ids[--counted]));
    }
  };
  {
    Restore counted_off{*this, ids};
    for (std::int64_t i = 0; i < count; ++i) {
      const NodeId n = checked_block(ids[i], i);
      if (n < 0 || !num_holds(n))
        throw WrongBlockState(ids[i], "it is released more often than it is held");
      --holds_of(n);
      ++counted_off.counted;
    }
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const NodeId n = nodes_.owner(ids[i]);
    --holds_of(n);
    pool_.unpin(n);
  }
}

// The node that a block is found by; kNoNode: it is a part that cannot be found.
NodeId Sequences::node_behind(NodeId n) const {
  if (!groups_ || groups_->owner(n) < 0) return n;
  return nodes_[n].keyed() ? groups_->node_of(n) : kNoNode;
}

// A block takes its ancestors along, and goes before them. Ancestors of a used block are used.
void Sequences::touch_blocks(const std::int64_t* ids, std::int64_t count) {
  Call call(*this);
  check_known(ids, count, "touch");
  for (std::int64_t i = 0; i < count; ++i)
    for (NodeId b = node_behind(nodes_.owner(ids[i]));
         b >= 0 && !nodes_.used(b); b = nodes_[b].parent)
      if (pool_.counts_as_available(b)) {
        pool_.touch(b);
        ++counters_.touched_blocks;
      }
}

}  // namespace blockmgr
