// Forgetting single blocks: what is in them is wrong, or must not be served any more.
#include <algorithm>

#include "sequences/sequences.h"

namespace blockmgr {

// Takes a cached block and all that continues it out of the cache, children first.
std::int64_t Sequences::forget_chain(BlockId b) noexcept {
  std::int64_t count = 0;
  for (NodeId node = b;;) {
    while (blocks_[node].first_child >= 0) node = blocks_[node].first_child;
    const NodeId parent = blocks_[node].parent;
    pool_.forget(node);
    ++count;
    if (node == b) return count;
    node = parent;
  }
}

// Sequences that name the block go on, and none of what they have from there on, or will compute
// from it, is to be found: they read what is to be forgotten.
std::int64_t Sequences::forget_tables(BlockId b) noexcept {
  std::int64_t count = 0;
  for (Sequence& s : sequences_) {
    const std::int32_t* t = table(s);
    const std::int32_t* end = t + s.num_blocks;
    const std::int32_t* at = std::find(t, end, b);
    if (at == end) continue;
    detach(s);
    for (; at != end; ++at) {
      if (blocks_[*at].keyed()) {
        count += forget_chain(*at);
      } else {
        pool_.drop_twin(*at);
      }
    }
  }
  return count;
}

// A sequence that stood beside a forgotten block with one of its own computed that itself: its
// blocks are cached anew with its next commit.
void Sequences::mend_chains() noexcept {
  for (Sequence& s : sequences_) {
    const std::int32_t* t = table(s);
    for (std::int32_t i = 0; i < s.num_chained; ++i)
      if (!blocks_[t[i]].keyed() && blocks_[t[i]].parent < 0) s.num_chained = i;
  }
}

std::int64_t Sequences::forget(const std::int64_t* ids, std::int64_t count) {
  Call call(*this);
  for (std::int64_t i = 0; i < count; ++i) checked_block(ids[i], i);
  // The mark of what is not written yet would go with its key.
  for (const Sequence& s : sequences_) refuse_ahead(s, "forget blocks around");
  std::int64_t forgotten = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto b = static_cast<BlockId>(ids[i]);
    if (blocks_[b].keyed()) forgotten += forget_chain(b);
    if (blocks_[b].ref_count) forgotten += forget_tables(b);
  }
  mend_chains();
  counters_.forgotten_blocks += forgotten;
  return forgotten;
}

}  // namespace blockmgr
