// Retention: levels of blocks above and below the ordinary, on top of any eviction policy. Each
// partition has one of its own, so that the levels of its blocks affect no other.
//
// A level is an order of its own: no idle block goes while one of a lower level is left. A cached
// block stands at the highest of
//
//   pinned            while a pin ends at it
//   its retention     low, normal, expected or high, until withdrawn or expired; or else its hint:
//                     low or expected by its last user, else normal
//   expected         while a session whose path ends at it waits for its next prompt
//   its cached children's levels
//
// By the last, a parent never stands below its child, so that the lowest level holds a block
// without cached children whenever it holds any. Within a level blocks go by recency, children
// first, except that the normal level is the policy's below, if there is one. To that policy a
// block of a higher level is in use: those are closed under parents, as blocks in use are.
//
// A hint is about the next use and is consumed by it: by the admission that finds the block.
//
// Cost: O(1) to become idle or used; O(log blocks) for a block whose level changes while it is
// idle. A change may climb to the root; each step raises or lowers one block, and blocks are only
// raised one by one by the calls that retain them.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "memory/heap.h"
#include "memory/ring.h"
#include "policies/policy.h"
#include "policies/session_table.h"

namespace blockmgr {

// In the order of blockmgr.Priority.
enum Level : std::uint8_t { kLow, kNormal, kExpected, kHigh, kPinned };
inline constexpr int kNumLevels = 5;
inline constexpr int kNoLevel = -1;
inline constexpr int kOrderBits = 60;
inline constexpr double kForever = std::numeric_limits<double>::infinity();

class RetainingPolicy final : public Policy {
 public:
  struct Pin {
    std::int64_t id = 0;
    NodeId tail = kNoNode;        // deepest block that is still cached
    std::int32_t next = -1;       // of the pins that end there; of unused records
    std::int32_t prev = -1;       // of the pins that end there; -1: the first
    std::int32_t num_blocks = 0;  // when it was made
    std::int32_t num_cached = 0;
  };
  struct Counts {
    std::int64_t expired = 0;         // blocks whose retention ran out
    std::int64_t pinned_evicted = 0;  // pinned blocks evicted because nothing else was left
  };

  // Its pins are numbered from first_pin on, so that a pin tells of which partition it is.
  RetainingPolicy(Nodes& nodes, const PrefixIndex& index, Range range, std::unique_ptr<Policy> base,
                  int max_pinned, std::int32_t first_pin, int max_sessions);

  void admitted(Run found) noexcept override;
  void on_hit(NodeId b) noexcept override;
  void on_cached(Run run) noexcept override;
  void on_idle(Run run) noexcept override;
  void on_used(Run run) noexcept override;
  void on_touched(NodeId b) noexcept override;
  void on_moved(NodeId from, NodeId to) noexcept override;
  void on_uncached(NodeId b, bool evicted) noexcept override;
  NodeId victim() noexcept override;
  std::int64_t num_steps() const override { return base_ ? base_->num_steps() : 0; }
  std::size_t memory() const override;
  void audit(BlockAudit& audit) const override;
  void fingerprint(std::string& out) const override;

  // Sets the block's retention until that time, or (kNoLevel) withdraws it. A block that is not
  // cached yet has it from when it becomes so, unless it loses its content before.
  void retain(NodeId b, int level, double until) noexcept;
  // The cached block stands for the other one from here on: the higher retention holds.
  void inherit(NodeId from, NodeId cached) noexcept;
  // Records what the last user of a cached block states about its next use.
  void hint(NodeId cached, bool reuse) noexcept;
  // Nothing is stated any more.
  void forget_hint(NodeId cached) noexcept {
    if (at(cached).hint == kNormal) return;
    at(cached).hint = kNormal;
    refresh(cached);
  }
  bool is_expected(NodeId b) const { return at(b).hint == kExpected; }
  // What a call set for the block, until when: no pin, no hint, and nothing of its children.
  int retention(NodeId b) const { return is_current(b) ? at(b).retention : kNoLevel; }
  double until(NodeId b) const { return is_current(b) ? at(b).until : kForever; }
  // Whether a call keeps the block by itself above the normal level: no hint, and no session.
  bool is_kept(NodeId b) const { return at(b).first_pin >= 0 || retention(b) > kNormal; }
  // Its cached children above the lowest level.
  std::uint32_t num_children(NodeId b) const {
    const auto& children = at(b).children;
    return std::accumulate(children.begin() + kNormal, children.end(), 0u);
  }
  // Whether sessions that wait have paths that end at the cached block.
  void expect(NodeId cached, bool expected) noexcept;
  bool is_expected_by_sessions(NodeId b) const { return at(b).expected; }
  // nullptr: no session was named yet.
  SessionTable* sessions() const { return sessions_.get(); }
  std::int64_t num_sessions() const { return sessions_ ? sessions_->size() : 0; }
  // May allocate.
  SessionTable& named_sessions();

  double now() const { return now_; }
  // Ends what has expired, at once: when a block comes back to the policy below decides its place
  // there, and must not depend on who looks.
  void set_time(double now) noexcept;

  // Blocks up from this one (or from kNoNode: none) that no pin covers yet.
  std::int64_t count_unpinned(NodeId tail) const;
  bool can_pin() const { return first_unused_ >= 0; }
  std::int64_t pin(NodeId tail, std::int64_t num_blocks) noexcept;
  // The number of the next pin.
  std::int64_t next_pin() const noexcept {
    const std::int64_t uses = pins_[static_cast<std::size_t>(first_unused_)].id >> 32;
    return (uses + 1) << 32 | (first_pin_ + first_unused_);
  }
  // Whether all of its pins are numbered higher than this one.
  bool begins_after(std::int64_t id) const { return (id & kSlotBits) < first_pin_; }
  const Pin* find_pin(std::int64_t id) const;
  void unpin(std::int64_t id) noexcept;
  int max_pinned() const { return max_pinned_; }
  std::int64_t num_pins() const { return num_pins_; }

  Level level(NodeId b) const { return at(b).cached ? at(b).level : kNormal; }
  std::int64_t num_cached(Level level) const { return num_cached_[level]; }
  std::int64_t num_idle(Level level) const { return num_idle_[level]; }
  const Counts& counts() const { return counts_; }

 private:
  // The retention of a block: one cache line beside its record.
  struct alignas(64) Kept {
    std::uint64_t order = 0;  // grows with every time it became idle
    double until = kForever;  // end of the retention
    NodeId prev = kNoNode;    // in the order of its level, while idle
    NodeId next = kNoNode;
    std::uint32_t generation = 0;                      // of the content that is retained
    std::int32_t first_pin = -1;                       // of those that end here
    std::array<std::uint32_t, kNumLevels> children{};  // cached ones, by level
    std::int8_t retention = kNoLevel;
    std::uint8_t hint = kNormal;
    Level level = kNormal;
    bool cached = false;
    bool idle = false;
    bool found = false;     // idle, and about to be used by the admission that found it
    bool expected = false;  // by sessions
  };
  // The bits of a pin's number that name its slot; those above count how often the slot was used.
  static constexpr std::int64_t kSlotBits = 0xffffffff;

  Kept& at(NodeId b) const { return kept_[b]; }
  bool is_current(NodeId b) const {
    return at(b).retention != kNoLevel && at(b).generation == nodes_[b].generation;
  }
  static bool below_base(Level level) { return level <= kNormal; }
  // The blocks of a run of which the policy below is notified: the last ones, because no level is
  // below that of the blocks after it.
  Run below_base(Run run) const;
  std::size_t slot_of(std::int64_t id) const {
    return static_cast<std::size_t>((id & kSlotBits) - first_pin_);
  }
  NodeId end(int level) const { return range_.last_end() + level; }
  void cached(NodeId b) noexcept;
  Level due_level(NodeId b) const;
  void refresh(NodeId b) noexcept;
  void move(NodeId b, Level to) noexcept;
  void queue(NodeId b) noexcept;
  void unqueue(NodeId b) noexcept;
  static std::uint64_t stray_key(Level level, std::uint64_t order) {
    return static_cast<std::uint64_t>(level) << kOrderBits | order;
  }
  // The first of this level, the lowest that has any.
  NodeId front(Level level) const;
  void forget_retention(NodeId b) noexcept;
  void link_pin(std::int32_t slot, NodeId tail) noexcept;

  std::unique_ptr<Policy> base_;
  Column<Kept> kept_;  // then one sentinel for each level
  std::uint64_t last_order_ = 0;
  std::array<std::int64_t, kNumLevels> num_idle_{};  // of a level, wherever they are queued
  Column<std::int32_t> order_positions_;
  Column<std::int32_t> deadline_positions_;
  // The idle blocks that came to their level out of order, the lowest level first.
  BlockHeap<std::uint64_t> strays_;
  BlockHeap<double> deadlines_;
  double now_ = 0;
  int max_pinned_;
  std::int32_t first_pin_;
  std::vector<Pin> pins_;
  std::int32_t first_unused_ = -1;
  std::int64_t num_pins_ = 0;
  int max_sessions_;
  std::unique_ptr<SessionTable> sessions_;
  std::array<std::int64_t, kNumLevels> num_cached_{};
  Counts counts_;
};

}  // namespace blockmgr
