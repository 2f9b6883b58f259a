// The adaptive policy: evicts the block that is least likely to be used again soon, as learned
// from blocks like it, and leaves the choice to LRU while that does better.
#pragma once

#include <utility>
#include <vector>

#include "policies/aged_lists.h"
#include "policies/policy.h"
#include "policies/reuse_sample.h"

namespace blockmgr {

// Candidates are the idle blocks without cached children, so the closure promise holds whatever is
// chosen; a parent becomes one when its last child goes. They are filed by level (what was seen of
// them when their last use ended: see ReuseModel) and by how long ago that was, and the victim is
// the first of the list that is worth least. Lists are valued when a span of time begins, so a
// victim is found in O(1), and in one look over all lists when a list runs empty.
//
// The clock counts blocks looked up: what a prompt finds and what it adds. It does not depend on
// the order of eviction, and makes the same calls give the same victims.
//
// A conversation is recognised by where the match of a prompt ends: it continues the request that
// used that block last, unless so many diverged there that it must be a common beginning.
// Of conversations that were evicted, their first block is remembered in a table of tags.
class AdaptivePolicy final : public Policy {
 public:
  AdaptivePolicy(Nodes& nodes, const PrefixIndex& index, Range range);

  Context admitted(Run found, std::int64_t num_blocks) noexcept override;
  void on_hit(NodeId b) noexcept override;
  void on_cached(Run run, Context& who) noexcept override;
  void on_waiting(Run run, Context& who) noexcept override;
  void on_idle(Run run, Context& who) noexcept override;
  void on_used(Run run) noexcept override;
  void on_uncached(NodeId b, bool evicted) noexcept override;
  void on_moved(NodeId from, NodeId to) noexcept override {
    facts(to) = std::exchange(facts(from), Facts{});
  }
  NodeId victim() noexcept override;

  std::size_t memory() const override;
  void audit(BlockAudit& audit) const override;
  void fingerprint(std::string& out) const override;

 private:
  // The place of a request in its conversation.
  struct Place {
    std::uint8_t turn : 6 = 0;  // from 1; 0: not known
    std::uint8_t gap : 2 = 0;
    bool operator==(const Place&) const = default;
  };
  // What is known of the request behind a run: kept in a Context, kNobody for none.
  struct Request {
    Place place;
    std::uint8_t computed = 0;  // how much of it was not found: see computed_of
    bool any = false;           // there is one
    bool at_end = false;        // a block of its own has ended its use in this call
  };
  static Request request(Context who);
  static Context context(const Request& request);
  struct Facts {
    std::uint32_t since = 0;  // when its last use ended, in units
    Place place;              // of the request that computed the block or used it last
    std::uint8_t diverged = 0;  // requests whose match ended with it
    std::uint8_t level : 5 = 0;
    bool fresh : 1 = false;   // not found by anyone since it was computed
    bool shared : 1 = false;  // found by a request that begins a conversation
    bool sampled : 1 = false;
    bool idle : 1 = false;
    bool listed : 1 = false;  // idle and without cached children
    std::uint8_t computed : 2 = 0;  // of the request whose use ended last
  };
  // What is remembered of an evicted conversation.
  struct Ghost {
    std::uint64_t tag = 0;
    std::uint32_t since = 0;
    Place place;
  };
  Facts& facts(NodeId b) const { return facts_[b]; }
  // In the lists.
  int item(NodeId b) const { return b - range_.first; }
  bool is_full(NodeId b) const { return nodes_[b].key_tokens == nodes_.block_size; }
  std::uint64_t tag(NodeId b) const;
  Ghost& ghost_at(std::uint64_t tag) {
    return ghosts_[static_cast<std::size_t>(tag) % ghosts_.size()];
  }
  // Whether a conversation begins after this block.
  bool is_beginning(NodeId node) const { return node < 0 || facts(node).shared; }

  std::uint32_t units() const { return static_cast<std::uint32_t>(now_ / unit_); }
  // When it was so many units; the count may have wrapped.
  std::int64_t time_of(std::uint32_t since) const {
    return now_ - std::int64_t{units() - since} * unit_;
  }
  // The next turn of the conversation whose last request, in this place, ended then.
  Place next_place(Place last, std::uint32_t since) const;
  static std::uint8_t computed_of(std::int64_t num_found, std::int64_t num_blocks);
  // What is noted of a block when its last use ends.
  void note(NodeId b, Request& by) noexcept;
  void cached(NodeId b, Request& by) noexcept;
  void idle(NodeId b, std::uint32_t since, bool is_last) noexcept;
  int cell_of(const Facts& f) const;
  void tick() noexcept;
  void begin_span() noexcept;
  void value_lists() noexcept;
  void choose_leader() noexcept;
  bool lost_too_much() const;

  int capacity_;
  std::int64_t unit_;
  std::int64_t now_ = 0;
  Spans spans_;
  AgedLists lists_;
  ReuseSample sample_;
  Column<Facts> facts_;
  std::vector<Ghost> ghosts_;  // by tag; a later one takes the place of an earlier one
  bool follows_lru_ = true;
  int num_cached_ = 0;
  int num_held_;  // of them, when the pool was last full
  std::int64_t least_between_fits_, next_fit_, next_choice_;
};

}  // namespace blockmgr
