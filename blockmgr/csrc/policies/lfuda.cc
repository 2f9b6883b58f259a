#include "policies/lfuda.h"

#include <algorithm>
#include <limits>

#include "checks/audit.h"

namespace blockmgr {

LfudaPolicy::LfudaPolicy(Blocks& blocks, const PrefixIndex& index)
    : Policy(blocks, index),
      facts_(static_cast<std::size_t>(blocks.count)),
      heap_(static_cast<std::size_t>(blocks.count)) {}

void LfudaPolicy::sift(BlockId b, std::int32_t position) noexcept {
  while (position > 0) {
    const std::int32_t above = (position - 1) / 2;
    const BlockId parent = heap_[static_cast<std::size_t>(above)];
    if (!before(b, parent)) break;
    place(parent, position);
    position = above;
  }
  for (;;) {
    std::int32_t below = 2 * position + 1;
    if (below >= size_) break;
    if (below + 1 < size_ &&
        before(heap_[static_cast<std::size_t>(below + 1)], heap_[static_cast<std::size_t>(below)]))
      ++below;
    const BlockId child = heap_[static_cast<std::size_t>(below)];
    if (!before(child, b)) break;
    place(child, position);
    position = below;
  }
  place(b, position);
}

void LfudaPolicy::remove(BlockId b) noexcept {
  const std::int32_t position = facts(b).position - 1;
  facts(b).position = 0;
  const BlockId last = heap_[static_cast<std::size_t>(--size_)];
  if (last != b) sift(last, position);
}

void LfudaPolicy::on_cached(BlockId b) noexcept {
  facts(b).uses = 1;
  facts(b).key = age_ + 1;
}

void LfudaPolicy::on_hit(BlockId b) noexcept {
  Facts& f = facts(b);
  if (f.uses < std::numeric_limits<std::uint32_t>::max()) ++f.uses;
  f.key = age_ + f.uses;
  if (f.position) sift(b, f.position - 1);
}

void LfudaPolicy::on_idle(BlockId b) noexcept {
  facts(b).stamp = ++clock_;
  sift(b, size_++);
}

void LfudaPolicy::on_uncached(BlockId b, bool evicted) noexcept {
  // The age is the key of what was chosen; if that had children, one of them goes in its place. A
  // block that was in use while the cache aged may have a lower key.
  if (evicted) age_ = std::max(age_, facts(heap_[0]).key);
  if (facts(b).position) remove(b);
  facts(b).uses = 0;
}

void LfudaPolicy::audit(BlockAudit& audit) const {
  std::int32_t idle = 0;
  for (BlockId b = 0; b < blocks_.count; ++b) {
    const Block& block = blocks_[b];
    const Facts& f = facts(b);
    const std::string who = BlockAudit::name(b);
    const bool keyed = block.keyed() && audit.concerns(b);
    const bool is_idle = keyed && !block.used() && !block.fence;
    idle += is_idle;
    audit.expect((f.uses > 0) == keyed, who + " is cached and not counted, or counted only");
    audit.expect((f.position > 0) == is_idle, who + " is idle or in the heap, not both");
    audit.expect(!f.uses || (f.key <= age_ + f.uses && f.key > f.uses - 1),
                 who + " has a wrong key");
    if (!f.position) continue;
    const std::int32_t at = f.position - 1;
    audit.expect(at < size_ && heap_[static_cast<std::size_t>(at)] == b, who + " is misplaced");
    audit.expect(!at || before(heap_[static_cast<std::size_t>((at - 1) / 2)], b),
                 who + " is out of order in the heap");
  }
  audit.expect(idle == size_, "the heap has another size than there are idle blocks");
}

void LfudaPolicy::fingerprint(std::string& out) const {
  put_numbers(out, age_, size_);
  for (std::int32_t i = 0; i < size_; ++i) {
    const BlockId b = heap_[static_cast<std::size_t>(i)];
    put_numbers(out, b, facts(b).stamp);
  }
  for (BlockId b = 0; b < blocks_.count; ++b)
    if (facts(b).uses) put_numbers(out, facts(b).uses, facts(b).key);
  cursor_.fingerprint(out);
}

}  // namespace blockmgr
