// Finds how much of a prompt is cached, or will be soon.
#pragma once

#include <algorithm>
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
  Finding() : found_room_(nth(config().row_width)) {}

  std::size_t memory() const { return found_room_.bytes(); }

  std::int64_t num_computing(const Prompt& prompt, const Found& found);
  std::int64_t count_with_computing(const Token* tokens, std::int64_t limit, std::uint32_t root,
                                    const ExtrasIds& extras, const Found& found);
  void find_prefix(const Token* tokens, std::int64_t count, NodeId root, const ExtrasIds* extras,
                   Found& found);
  // The blocks of a chain that full attention has, up to the deepest place that every group serves.
  std::int64_t served_of(const Found& chain) const;
  // Whether every group of attention has what the query after so many tokens reads of a node.
  bool has_parts(NodeId node, std::int64_t unit, std::int64_t length) const;
  // The most of a prompt that every group serves. most: with full attention alone, nothing is
  // looked for within a block behind so many.
  void find(const Token* tokens, std::int64_t num_tokens, const Applicant& applicant, Found& found,
            Reach& reach, std::int64_t most = INT64_MAX);
  // The first blocks of what was found, or of a longer chain, as a whole.
  void cut(Found& found, std::int64_t num_full, NodeId root) const;
  bool may_take_over(const Found& found) const;

 private:
  std::int64_t count_computing(const Sequence& s, const Token* tokens, std::int64_t limit,
                               const ExtrasIds& extras, const Found& found) const;
  std::int64_t last_gap(const NodeId* chain, std::int64_t position, std::int64_t to) const;
  bool has_states(NodeId node) const;
  bool is_unused(NodeId end, bool within) const;
  [[gnu::noinline]] bool is_served(const Found& found, NodeId child, int num_partial) const;
  template <class Look>
  std::int64_t go_back(const NodeId* chain, std::int64_t length, const Look& look) const;
  [[gnu::noinline]] std::int64_t find_served(const Token* tokens, std::int64_t count,
                                             const Applicant& applicant, Found& found) const;
  std::int64_t kept_before_load(const NodeId* chain, std::int64_t count,
                                std::int64_t num_loaded) const;
  [[gnu::noinline]] std::int64_t count_shared(const Token* tokens, std::int64_t num_tokens,
                                              const ExtrasIds* extras, Found lead) const;
  int find_partial(const Token* tokens, std::int64_t count, const ExtrasIds* extras,
                   bool tails_only, Found& found) const;

  // What was found last, kept so that calls seldom allocate. What an earlier one left here means
  // nothing.
  ZeroedArray<NodeId> found_room_;
};

// Inlined where prompts are admitted.
[[gnu::always_inline]] inline void Finding::find(const Token* tokens, std::int64_t num_tokens,
                                                 const Applicant& applicant, Found& found,
                                                 Reach& reach, std::int64_t most) {
  const std::int64_t count = applicant.looked_up(num_tokens);
  // With a margin, a hit may need all of the prompt behind it.
  const bool looks_on = config().stop_margin > 0;
  find_prefix(tokens, num_tokens + looks_on, applicant.root, applicant.extras, found);
  std::int64_t shared = 0;
  const std::int64_t lead = found.num_full;
  reach.num_lead = std::min(lead, block_size().whole(num_tokens - 1));
  if (count < num_tokens || looks_on) [[unlikely]] {
    shared = count_shared(tokens, num_tokens + looks_on, applicant.extras, found);
    // One token is left to compute.
    cut(found, std::min(lead, block_size().whole(count - 1)), applicant.root);
  }
  if (config().min_partial_tokens && (has_groups() || found.num_full < most)) {
    const int more = find_partial(tokens, count, applicant.extras, false, found);
    if (count == num_tokens && !looks_on) shared = more;
  }
  reach.num_shared =
      lead * config().block_size + (shared < config().min_partial_tokens ? 0 : shared);
  reach.num_whole = has_groups() ? find_served(tokens, count, applicant, found) : found.num_full;
}

}  // namespace blockmgr
