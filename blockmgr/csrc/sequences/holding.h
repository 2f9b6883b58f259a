// References by block id: a caller that moves K/V out of a block, or into one, keeps it meanwhile.
#pragma once

#include <cstdint>
#include <memory>

#include "sequences/part.h"

namespace blockmgr {

class Holding : public Part<Holding> {
 public:
  std::size_t memory() const { return holds_ ? holds_->bytes() : 0; }

  // Blocks kept by their ids, whatever becomes of the sequences that name them. Ids
  // may repeat.
  void acquire(const std::int64_t* ids, std::int64_t count);
  void release(const std::int64_t* ids, std::int64_t count);
  // Makes cached blocks, and what they continue, the ones that were used last.
  void touch_blocks(const std::int64_t* ids, std::int64_t count);
  bool is_cached(std::int64_t id) const {
    const NodeId n = rows().checked_block(id, -1);
    return n >= 0 && nodes()[n].keyed() && !(index().has_retired() && index().is_retired(n));
  }
  // Block tables that name it, and holds.
  std::int64_t ref_count(std::int64_t id) const;
  std::int64_t num_holds(NodeId b) const { return holds_ ? (*holds_)[nth(b)] : 0; }
  NodeId node_behind(NodeId n) const;

 private:
  void check_known(const std::int64_t* ids, std::int64_t count, const char* call) const;
  std::uint32_t& holds_of(NodeId n) { return (*holds_)[nth(n)]; }

  // By node, references that no table has; nullptr: there never were any.
  std::unique_ptr<ZeroedArray<std::uint32_t>> holds_;
};

}  // namespace blockmgr
