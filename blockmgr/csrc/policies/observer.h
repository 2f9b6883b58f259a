// Observers: notified of all that happens to the blocks of one partition.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "memory/run.h"

namespace blockmgr {

class BlockAudit;

// Notices of a partition, in the order of the changes. Nothing here may throw or allocate: all
// memory is taken at construction.
//
//   on_cached ──► (used) ──► on_idle ──► on_used ──► ... ──► on_idle ──► on_uncached
//
// Blocks are cached while they are used, and idle each time their last use ends; or they wait for a
// step first, in which they count as used.
class Observer {
 public:
  Observer() = default;
  virtual ~Observer() = default;
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

  // Free blocks are handed out; blocks without a key are free again.
  virtual void on_taken(std::int64_t count) noexcept { (void)count; }
  virtual void on_freed(std::int64_t count) noexcept { (void)count; }
  // The used blocks became findable.
  virtual void on_cached(Run run) noexcept = 0;
  // The last use of the blocks ended. Their other cached children, if any, are idle already.
  virtual void on_idle(Run run) noexcept = 0;
  // The idle blocks are used again. Their children may still be idle; the parent of the first may
  // be so only if no sequence uses it: it is touched, or retained above the ordinary.
  virtual void on_used(Run run) noexcept = 0;
  // A waiting request will use the idle block: it counts as just used, but not as found. Its
  // children, if they are touched as well, were so before it.
  virtual void on_touched(NodeId b) noexcept {
    on_used({&b, 1});
    on_idle({&b, 1});
  }
  // The key of a block that is not idle, with its children and with what is known of it, has passed
  // to a used one with the same content, which was not cached.
  virtual void on_moved(NodeId from, NodeId to) noexcept = 0;
  // The block, idle or used, loses its content or its key. It has no cached children.
  virtual void on_uncached(NodeId b, bool evicted) noexcept = 0;

  virtual std::size_t memory() const = 0;
  // Every broken promise of the observer's own books, recomputed from scratch.
  virtual void audit(BlockAudit& audit) const { (void)audit; }
  // Every fact that decides what it answers later, as bytes.
  virtual void fingerprint(std::string& out) const { (void)out; }
};

}  // namespace blockmgr
