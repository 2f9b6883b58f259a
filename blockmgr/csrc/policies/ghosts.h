// Ghosts: what a policy remembers of blocks it has evicted.
//
// A ghost is the first eight bytes of a block's digest. Two blocks with the same tag are one ghost,
// which misleads a policy about the worth of a block and nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "memory/node.h"
#include "memory/ring.h"
#include "memory/tag_table.h"

namespace blockmgr {

class BlockAudit;

// Lists of distinct tags, each in the order they came, oldest first, with a bound on all of them
// together. A tag is in one list at most.
class GhostSet {
 public:
  using Tag = std::uint64_t;
  static constexpr int kNone = -1;

  // At most capacity tags; 0: nothing is ever remembered. Lists are numbered from 0.
  GhostSet(int num_lists, int capacity);

  int size() const { return num_ghosts_; }
  int size(int list) const { return sizes_[static_cast<std::size_t>(list)]; }
  int capacity() const { return capacity_; }

  // Makes the tag the newest of this list, out of any other; at the bound the oldest goes, of this
  // list or, if that is empty, of the fullest.
  void push(int list, Tag tag) noexcept;
  // Forgets the tag. The list it was in, or kNone.
  int erase(Tag tag) noexcept;
  void drop_oldest(int list) noexcept;

  std::size_t memory() const { return nodes_.bytes() + table_.bytes(); }
  void audit(BlockAudit& audit) const;
  void fingerprint(std::string& out) const;

 private:
  struct Node {
    Tag tag;
    std::int32_t prev;  // older
    std::int32_t next;  // newer; of an unused node, the next unused one
    std::int32_t list;
  };
  Node& node(std::int32_t i) const { return nodes_[static_cast<std::size_t>(i)]; }
  int num_lists() const { return static_cast<int>(sizes_.size()); }
  std::int32_t end(int list) const { return capacity_ + list; }
  void remove(std::int32_t i) noexcept;

  int capacity_;
  ZeroedArray<Node> nodes_;  // then one sentinel for each list
  TagTable table_;
  std::vector<int> sizes_;
  std::int32_t unused_ = -1;
  int num_ghosts_ = 0;
};

}  // namespace blockmgr
