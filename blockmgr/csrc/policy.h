// The eviction order: which idle block is given up next.
#pragma once

#include "block.h"

namespace blockmgr {

// Least recently used first. Blocks arrive children before parents (see block.h), so the victim
// never has a cached child: the tail of a prefix goes before its head.
class LruOrder {
 public:
  LruOrder(Blocks& blocks, BlockId sentinel) : idle_(blocks, sentinel) {}

  void add(BlockId b) { idle_.push_back(b); }
  void remove(BlockId b) { idle_.remove(b); }
  BlockId victim() const { return idle_.front(); }
  int size() const { return idle_.size(); }
  const BlockList& list() const { return idle_; }

 private:
  BlockList idle_;
};

}  // namespace blockmgr
