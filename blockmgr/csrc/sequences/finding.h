// What of a prompt is cached, or will be soon.
#pragma once

#include <cstdint>

#include "sequences/group_tables.h"

namespace blockmgr {

// Children looked at for a partial match; the recently used ones of a wider node come first.
// The tails of all sequences with one system prompt are children of its last block: with 32, trees
// of thought at 256 tokens a block stayed 1.4 points below a block size of 1, with 128 none
// (benchmarks/partial_reuse.py).
inline constexpr int kMostChildren = 128;

class Finding : public Part<Finding, GroupTables> {
 public:
  Finding() : found_room_(static_cast<std::size_t>(config().row_width)) {}

  std::size_t memory() const { return found_room_.bytes(); }

  std::int64_t num_computing(const Prompt& prompt, const Found& found);
  std::int64_t count_with_computing(const Token* tokens, std::int64_t limit, std::uint32_t root,
                                    const ExtrasIds& extras, const Found& found);
  void find_prefix(const Token* tokens, std::int64_t count, NodeId root, const ExtrasIds* extras,
                   Found& found);
  std::int64_t written_of(const Found& found) const;
  std::int64_t served_of(const Found& chain) const;
  // Whether every group of attention has what the query after so many tokens reads of a node.
  bool has_parts(NodeId node, std::int64_t unit, std::int64_t length) const;
  // What the first blocks of a chain serve as a whole, and what of the block after it. most: with
  // full attention alone, nothing is looked for within a block behind so many.
  void find(const Token* tokens, std::int64_t num_tokens, const Applicant& applicant,
            Candidates& found, std::int64_t most = INT64_MAX);
  bool may_take_over(const Found& found) const;

 private:
  std::int64_t count_computing(const Sequence& s, const Token* tokens, std::int64_t limit,
                               const ExtrasIds& extras, const Found& found) const;
  std::int64_t last_gap(const NodeId* chain, std::int64_t position, std::int64_t to) const;
  bool has_states(NodeId node) const;
  bool is_unused(NodeId end, bool within) const;
  int find_partial(const Token* tokens, std::int64_t count, const ExtrasIds* extras,
                   bool tails_only, Found& found) const;

  // What was found last, kept so that calls seldom allocate. What an earlier one left here means
  // nothing.
  ZeroedArray<NodeId> found_room_;
};

}  // namespace blockmgr
