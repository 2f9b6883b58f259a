// A binary heap of node ids by a key, in memory taken at construction, that can lose any member.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/run.h"

namespace blockmgr {

// positions: of each node that may be a member, negative while it is in no heap; several heaps may
// share it if a block is in one of them at most.
template <class Key>
class BlockHeap {
 public:
  BlockHeap(std::size_t capacity, const Column<std::int32_t>& positions) : positions_(positions) {
    entries_.reserve(capacity);
  }

  bool empty() const { return entries_.empty(); }
  std::size_t size() const { return entries_.size(); }
  NodeId front() const { return entries_.front().block; }
  Key front_key() const { return entries_.front().key; }
  std::size_t memory() const { return entries_.capacity() * sizeof(Entry); }

  void insert(NodeId b, Key key) noexcept {
    entries_.push_back({key, b});
    up(entries_.size() - 1);
  }
  void remove(NodeId b) noexcept {
    const auto at = static_cast<std::size_t>(positions_[b]);
    positions_[b] = -1;
    const Entry last = entries_.back();
    entries_.pop_back();
    if (at == entries_.size()) return;
    entries_[at] = last;
    down(up(at));
  }

 private:
  struct Entry {
    Key key;
    NodeId block;
  };
  void place(std::size_t at, const Entry& entry) noexcept {
    entries_[at] = entry;
    positions_[entry.block] = static_cast<std::int32_t>(at);
  }
  std::size_t up(std::size_t at) noexcept {
    const Entry entry = entries_[at];
    while (at > 0 && entry.key < entries_[(at - 1) / 2].key) {
      place(at, entries_[(at - 1) / 2]);
      at = (at - 1) / 2;
    }
    place(at, entry);
    return at;
  }
  void down(std::size_t at) noexcept {
    const Entry entry = entries_[at];
    for (;;) {
      std::size_t child = 2 * at + 1;
      if (child >= entries_.size()) break;
      if (child + 1 < entries_.size() && entries_[child + 1].key < entries_[child].key) ++child;
      if (!(entries_[child].key < entry.key)) break;
      place(at, entries_[child]);
      at = child;
    }
    place(at, entry);
  }

  std::vector<Entry> entries_;
  const Column<std::int32_t>& positions_;
};

}  // namespace blockmgr
