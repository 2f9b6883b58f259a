// The books, recomputed from scratch: nothing here trusts a count or a link kept elsewhere.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "identity/index.h"
#include "places/pool.h"
#include "sequences/copies.h"

// A sentence about one block in a million is wanted, so it is made only when something is broken.
#define BLOCKMGR_EXPECT(holds, otherwise)   \
  do {                                      \
    if (!(holds)) expect(false, otherwise); \
  } while (false)

namespace blockmgr {

// Everything about blocks that holds for every owner. The owner counts what it refers to, then
// calls check_blocks.
class BlockAudit {
 public:
  BlockAudit(const Nodes& nodes, const PrefixIndex& index, const Pool& pool,
             const CopyTracker& copies)
      : nodes_(nodes),
        index_(index),
        pool_(pool),
        copies_(copies),
        count_(nodes.count),
        size_(nodes.block_size),
        refs_(static_cast<std::size_t>(count_)),
        pins_(static_cast<std::size_t>(count_)),
        listed_(static_cast<std::size_t>(count_), -1) {}

  // References to blocks, namespaces and extra keys that the owner accounts for.
  std::uint32_t& refs(NodeId b) { return refs_[static_cast<std::size_t>(b)]; }
  // Reasons to keep a block that are no table.
  std::uint32_t& pins(NodeId b) { return pins_[static_cast<std::size_t>(b)]; }
  std::uint32_t& root_refs(std::uint32_t root) { return roots_[root]; }
  std::uint32_t& extras_refs(std::uint32_t id) { return extras_[id]; }

  void expect(bool holds, const std::string& otherwise) {
    if (!holds) broken_.push_back(otherwise);
  }
  void check_blocks();
  // Every broken invariant, one sentence each.
  std::vector<std::string> result() { return std::move(broken_); }

  static std::string name(NodeId n) { return "node " + std::to_string(n); }
  // The record of a part of a further group, among what is cached.
  bool is_part(NodeId n) const { return nodes_[n].keyed() && Pool::is_part(nodes_[n]); }
  // Whether this is a node, so that it has a block.
  bool valid(NodeId n) const { return n >= 0 && n < count_ && nodes_.block(n) != kNoBlock; }
  // The partition whose observers are being audited.
  const Pool::Partition& partition() const { return *partition_; }

 protected:
  const Nodes& nodes_;
  const PrefixIndex& index_;
  const Pool& pool_;
  const CopyTracker& copies_;
  int count_;
  int size_;
  std::set<NodeId> awaited_;  // findable already, and used until the copy into them is applied

 private:
  void check_places();
  void check_copies();
  void check_references();
  void check_twins();
  void check_idle(const IdleSegments& idle);
  void check_list(const NodeList& list, int number);
  void check_queues();
  void check_partition(int number);
  void check_index();
  void check_children();
  void check_log();
  void check_order();
  static std::uint32_t counted(const std::map<std::uint32_t, std::uint32_t>& refs,
                               std::uint32_t id) {
    const auto found = refs.find(id);
    return found == refs.end() ? 0 : found->second;
  }

  const Pool::Partition* partition_ = nullptr;
  std::vector<std::uint32_t> refs_;
  std::vector<std::uint32_t> pins_;
  std::vector<int> listed_;
  std::map<NodeId, int> position_;
  std::map<std::uint32_t, std::uint32_t> roots_;
  std::map<std::uint32_t, std::uint32_t> extras_;
  std::vector<std::string> broken_;
};

template <class... Values>
void put_numbers(std::string& out, Values... values) {
  const std::int64_t numbers[] = {static_cast<std::int64_t>(values)...};
  out.append(reinterpret_cast<const char*>(numbers), sizeof numbers);
}

// Every fact about the blocks that a caller could ever observe, as bytes; guesses (hints) and
// scratch left out.
std::string block_fingerprint(const Nodes& nodes, const PrefixIndex& index, const Pool& pool,
                              const CopyTracker& copies);

}  // namespace blockmgr
