#include <algorithm>

#include "sequences/arguments.h"
#include "sequences/sequences.h"

namespace blockmgr {

// Before a write into this block that would copy it. A prompt may have found what others committed
// in this step: it is there for the forward, and not for the copies before it. The writer would
// have to compute it again without being told so. What the sequence committed itself it takes back,
// unless the forward that writes it may be under way.
void Growing::refuse_unwritten(const Sequence& s, std::int64_t logical, const char* call) const {
  const std::int64_t start = logical * config().block_size;
  const std::int64_t kept = copies().in_flight() ? s.num_computed : rows().settled(s);
  if (kept <= std::max(rows().written(s), start)) return;
  rows().refuse(s, call,
                "positions " + std::to_string(std::max(rows().written(s), start)) + " to " +
                    std::to_string(kept - 1) +
                    " of the block to copy are written by this step's forward; take and apply the "
                    "step's copies first");
}

bool Growing::must_copy(const Sequence& s, std::int64_t logical) const {
  if (logical >= s.num_blocks) return false;
  return rows().is_shared(rows().table(s)[logical]);
}

// Moves the sequence to a block that only it names, in front of a write. Of k sharers k - 1 move;
// the last finds itself alone and writes in place.
void Growing::make_private(Sequence& s, std::int64_t logical, std::int64_t num_valid) noexcept {
  const NodeId shared = rows().table(s)[logical];
  if (!must_copy(s, logical)) {
    pool().drop_twin(shared);  // about to differ from it
    return;
  }
  const std::int64_t start = logical * config().block_size;
  const std::int64_t known = std::min<std::int64_t>(s.num_tokens - start, config().block_size);
  const std::int64_t valid = std::max<std::int64_t>(num_valid - start, 0);
  const NodeId fresh = pool().take(s.partition, rows().before(s, logical));
  const std::int32_t num_copied = rows().copy_to_fresh(shared, fresh, known, valid);
  rows().set_entry(rows().row_of(s), logical, fresh);
  if (has_groups()) [[unlikely]]
    use<GroupTables>().make_parts_private(s, logical, shared, static_cast<std::int32_t>(valid));
  // Only now: with its last reference its key may pass to a twin, and its parts with it.
  rows().drop_reference(shared);
  // Tokens that the copy cannot bring have to be computed again.
  rows().limit_computed(s, start + num_copied);
}

// What it takes to have this many slots, and to write up to num_tokens: with more than the present
// ones, the block they will be written to is made private first.
[[gnu::always_inline]] inline GrowthPlan Growing::plan_growth(const Sequence& s, std::int64_t slots,
                                                              std::int64_t num_tokens,
                                                              const char* call) const {
  const std::int64_t target = rows().blocks_for(slots);
  if (target > rows().longest(s.partition)) use<Needs>().throw_never_fits(slots, 0, s.partition);
  std::int64_t logical = s.num_tokens / config().block_size;
  // Tokens may wait for slots of the last node, which forks may share.
  const bool completes = s.missing_slots && slots > rows().num_slots(s);
  if (completes) [[unlikely]]
    logical = std::min<std::int64_t>(logical, s.num_blocks - 1);
  const bool grows = std::max(slots, num_tokens) > s.num_tokens || completes;
  const bool writes = grows && logical < s.num_blocks;
  const bool copies = writes && must_copy(s, logical);
  if (copies) {
    refuse_unwritten(s, logical, call);
    use<GroupTables>().refuse_moved(s, call);
  }
  const GrowthPlan plan{std::max<std::int64_t>(target - s.num_blocks, 0), writes ? logical : -1};
  const std::int64_t needed = plan.num_fresh + copies;
  const std::int64_t parts = use<GroupTables>().parts_to_grow(s, slots, copies ? logical : -1);
  if (needed + parts) rows().check_available(needed, parts, s.partition);
  return plan;
}

// Takes the blocks, and moves waiting tokens into them.
[[gnu::always_inline]] inline void Growing::grow(Sequence& s, std::int64_t slots,
                                                 const GrowthPlan& plan) noexcept {
  if (plan.written >= 0) make_private(s, plan.written, rows().written(s));
  const std::int64_t had_slots = rows().num_slots(s);
  if (plan.num_fresh) {
    const std::int64_t had_room = rows().token_room(s);
    const std::int64_t row = rows().row_of(s);
    for (std::int64_t i = 0; i < plan.num_fresh; ++i) {
      const NodeId n = pool().take(s.partition, rows().before(s, s.num_blocks));
      rows().set_entry(row, s.num_blocks, n);
      ++s.num_blocks;
    }
    const std::int64_t moved = std::min(s.num_waiting(), rows().token_room(s) - had_room);
    if (moved > 0) {
      rows().store_tokens(s, had_room, s.waiting.data() + s.waiting_start, moved);
      s.waiting_start += static_cast<std::uint32_t>(moved);
      if (!s.num_waiting()) {
        std::vector<Token>().swap(s.waiting);
        s.waiting_start = 0;
      }
    }
  }
  use<GroupTables>().take_parts(s, had_slots, slots);
}

void Growing::extend(Sequence& s, std::int64_t slots) noexcept {
  const std::int64_t fresh = rows().blocks_for(slots) - s.num_blocks;
  grow(s, slots, {std::max<std::int64_t>(fresh, 0), -1});
}

void Growing::reserve(Handle handle, std::int64_t num_slots) {
  Call call(rows());
  Sequence& s = rows().running(handle);
  check_at_least("num_slots", num_slots, 1);
  grow(s, num_slots, plan_growth(s, num_slots, s.num_tokens, "reserve slots of"));
}

void Growing::check_append(Handle handle, std::int64_t count) const {
  const Sequence& s = rows().running(handle);
  const std::int64_t total = s.num_tokens + std::min(count, INT64_MAX - s.num_tokens);
  if (rows().blocks_for(total) > rows().longest(s.partition))
    use<Needs>().throw_never_fits(total, 0, s.partition);
}

void Growing::append(Handle handle, const Token* tokens, std::int64_t count) {
  Call call(rows());
  Sequence& s = rows().running(handle);
  const std::int64_t total = s.num_tokens + count;
  grow(s, total, plan_growth(s, total, total, "append to"));
  rows().store_tokens(s, s.num_tokens, tokens, count);
  s.num_tokens = total;
  rows().show_length(s);
  rows().note_computing(s);
}

}  // namespace blockmgr
