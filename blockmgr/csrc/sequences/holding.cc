#include <algorithm>

#include "sequences/sequences.h"

namespace blockmgr {

// A block that only a copy keeps holds nothing that a caller may refer to.
void Holding::check_known(const std::int64_t* ids, std::int64_t count, const char* call) const {
  for (std::int64_t i = 0; i < count; ++i) {
    const NodeId n = rows().checked_block(ids[i], i);
    if (n < 0 || (!nodes().uses(n).ref_count && !nodes()[n].keyed() && !num_holds(n)))
      throw WrongBlockState(
          ids[i], std::string("cannot ") + call + " it: it is not held, and it is not cached");
  }
}

std::int64_t Holding::ref_count(std::int64_t id) const {
  const NodeId n = rows().checked_block(id, -1);
  return n < 0 ? 0 : nodes().uses(n).ref_count + num_holds(n);
}

// A hold is a pin: it keeps the block and its ancestors, and does not cause a copy before a write.
// With further groups of layers it keeps no boundary: one may end, and the block goes with the
// hold.
void Holding::acquire(const std::int64_t* ids, std::int64_t count) {
  Call call(rows());
  check_known(ids, count, "acquire");
  if (!holds_) holds_ = std::make_unique<ZeroedArray<std::uint32_t>>(nth(nodes().count));
  for (std::int64_t i = 0; i < count; ++i) {
    const NodeId n = nodes().owner(ids[i]);
    pool().pin(n);
    ++holds_of(n);
  }
}

void Holding::release(const std::int64_t* ids, std::int64_t count) {
  Call call(rows());
  // A block may stand there as often as it is held, so the holds are counted off and put back
  // before any of them is really dropped.
  struct Restore {
    Holding& holding;
    const std::int64_t* ids;
    std::int64_t counted = 0;
    ~Restore() {
      while (counted > 0) ++holding.holds_of(holding.nodes().owner(ids[--counted]));
    }
  };
  {
    Restore counted_off{*this, ids};
    for (std::int64_t i = 0; i < count; ++i) {
      const NodeId n = rows().checked_block(ids[i], i);
      if (n < 0 || !num_holds(n))
        throw WrongBlockState(ids[i], "it is released more often than it is held");
      --holds_of(n);
      ++counted_off.counted;
    }
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const NodeId n = nodes().owner(ids[i]);
    --holds_of(n);
    pool().unpin(n);
  }
}

// The node that a block is found by; kNoNode: it is a part that cannot be found.
NodeId Holding::node_behind(NodeId n) const {
  if (groups()->owner(n) < 0) return n;
  return nodes()[n].keyed() ? groups()->node_of(n) : kNoNode;
}

// A block takes its ancestors along, and goes before them. Ancestors of a used block are used.
void Holding::touch_blocks(const std::int64_t* ids, std::int64_t count) {
  Call call(rows());
  check_known(ids, count, "touch");
  for (std::int64_t i = 0; i < count; ++i)
    for (NodeId b = node_behind(nodes().owner(ids[i])); b >= 0 && !nodes().used(b);
         b = nodes()[b].parent)
      if (pool().counts_as_available(b)) {
        pool().touch(b);
        ++rows().counters.touched_blocks;
      }
}

}  // namespace blockmgr
