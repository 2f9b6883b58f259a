// Eviction policies: which idle block is evicted next.
//
// The default order, least recently used first, is the pool's own idle list: blocks arrive there
// children before parents (see block.h), so its head never has a cached child. Any other order is a
// Policy, which the pool tells what happens to cached blocks and asks for victims.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "memory/block.h"

namespace blockmgr {

class BlockAudit;
class PrefixIndex;

// What the pool tells a policy, in the order things happen. Nothing here may throw or allocate: all
// memory is taken at construction.
//
//   on_cached ──► (used) ──► on_idle ──► on_used ──► ... ──► on_idle ──► on_uncached
//
// A block is cached while it is used, idle each time its last use ends, and a victim only while it
// is idle. Between a released block and on_idle may lie a step that has to complete first.
class Policy {
 public:
  Policy(Blocks& blocks, const PrefixIndex& index) : blocks_(blocks), index_(index) {}
  virtual ~Policy() = default;
  Policy(const Policy&) = delete;
  Policy& operator=(const Policy&) = delete;

  // A prompt of num_blocks blocks is admitted, and these leading blocks of it were found; they may
  // be idle or in use, and become used afterwards. The result is kept with the sequence and
  // given to enter before the policy is notified of the sequence's blocks again.
  virtual std::uint32_t admitted(const BlockId* found, std::int64_t num_found,
                                 std::int64_t num_blocks) noexcept;
  // Until the next call, on_cached and on_idle are about blocks of a sequence with this context; 0:
  // of blocks that no sequence stands behind.
  virtual void enter(std::uint32_t context) noexcept { (void)context; }

  // The used block became findable.
  virtual void on_cached(BlockId b) noexcept = 0;
  // A look-up found the block, idle or in use.
  virtual void on_hit(BlockId b) noexcept = 0;
  // The last use of the block ended. Its cached children, if any, are idle already.
  virtual void on_idle(BlockId b) noexcept = 0;
  // The idle block is used again. Its children may still be idle; its parent may be so only if no
  // sequence uses the block: it is touched, or retained above the ordinary.
  virtual void on_used(BlockId b) noexcept = 0;
  // A waiting request will use the idle block: it counts as just used, but not as found. Its
  // children, if they are touched as well, were so before it.
  virtual void on_touched(BlockId b) noexcept {
    on_used(b);
    on_idle(b);
  }
  // The key of a used block, with its children and with what is known of it, has passed to another
  // used one with the same content, which was not cached.
  virtual void on_moved(BlockId from, BlockId to) noexcept = 0;
  // The block, idle or used, loses its content or its key. It has no cached children.
  virtual void on_uncached(BlockId b, bool evicted) noexcept = 0;
  // An idle block without cached children; kNoBlock leaves the choice to the pool, which takes the
  // least recently used. At least one block is idle.
  virtual BlockId victim() noexcept = 0;
  // The victim was one it had been told is in use: another one goes.
  virtual void on_refused(BlockId victim) noexcept { (void)victim; }

  // Steps that searches for victims have taken, beyond looking at the first candidate.
  virtual std::int64_t num_steps() const { return 0; }
  virtual std::size_t memory() const = 0;
  // Every broken promise of the policy's own books, recomputed from scratch.
  virtual void audit(BlockAudit& audit) const { (void)audit; }
  // Every fact that decides a future victim, as bytes.
  virtual void fingerprint(std::string& out) const { (void)out; }

 protected:
  Blocks& blocks_;
  const PrefixIndex& index_;
};

inline std::uint32_t Policy::admitted(const BlockId* found, std::int64_t num_found,
                                      std::int64_t) noexcept {
  for (std::int64_t i = 0; i < num_found; ++i) on_hit(found[i]);
  return 0;
}

using PolicyMaker = std::function<std::unique_ptr<Policy>(Blocks&, const PrefixIndex&)>;

// The policy of this name for a pool of so many blocks; nullptr for "lru". Throws Error(kValue) for
// an unknown one. A policy that may choose a block with cached children finds a leaf below it with
// a LeafCursor, see queues.h.
std::unique_ptr<Policy> make_policy(std::string_view name, Blocks& blocks, const PrefixIndex& index,
                                    int capacity);

}  // namespace blockmgr
