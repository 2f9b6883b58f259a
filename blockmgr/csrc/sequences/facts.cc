#include "sequences/facts.h"

namespace blockmgr {

Facts facts_of(const Sequences& core) {
  const auto at_level = [&](Level level) {
    return core.sum_retained([level](const RetainingPolicy& r) { return r.num_cached(level); });
  };
  const auto summed = [&](std::int64_t RetainingPolicy::Counts::* count) {
    return core.sum_retained([count](const RetainingPolicy& r) { return r.counts().*count; });
  };
  const Counters& n = core.counters;
  const Pool& pool = core.pool();
  return std::to_array<std::pair<const char*, std::int64_t>>({
      {"capacity", pool.capacity() - pool.num_withheld()},
      {"free_blocks", pool.num_free()},
      {"idle_blocks", pool.num_idle()},
      {"fenced_blocks", pool.num_fenced()},
      {"used_blocks", pool.num_used()},
      {"cached_blocks",
       (core.pool().is_bare() ? 0 : core.index().num_keyed()) + core.groups()->num_cached()},
      {"peak_used_blocks", n.peak_used_blocks},
      {"num_sequences", core.num_sequences()},
      {"pending_copies", core.copies().num_to_do()},
      {"query_tokens", n.query_tokens},
      {"hit_tokens", n.hit_tokens},
      {"partial_hit_tokens", n.partial_hit_tokens},
      {"resumed_query_tokens", n.resumed_query_tokens},
      {"resumed_hit_tokens", n.resumed_hit_tokens},
      {"promoted_blocks", n.promoted_blocks},
      {"deduplicated_blocks", n.deduplicated_blocks},
      {"cached_tails", n.cached_tails},
      {"evicted_blocks", pool.num_evicted()},
      {"planned_copies", core.copies().num_planned()},
      {"cancelled_copies", core.copies().num_cancelled()},
      {"forks", n.forks},
      {"preemptions", n.preemptions},
      {"low_priority_blocks", at_level(kLow)},
      {"expected_blocks", at_level(kExpected)},
      {"high_priority_blocks", at_level(kHigh)},
      {"pinned_blocks", at_level(kPinned)},
      {"pins", core.sum_retained([](const RetainingPolicy& r) { return r.num_pins(); })},
      {"expired_blocks", summed(&RetainingPolicy::Counts::expired)},
      {"evicted_pinned_blocks", summed(&RetainingPolicy::Counts::pinned_evicted)},
      {"touched_blocks", n.touched_blocks},
      {"forgotten_blocks", n.forgotten_blocks},
      {"sessions", core.sum_retained([](const RetainingPolicy& r) { return r.num_sessions(); })},
      {"superseded_blocks", n.superseded_blocks},
  });
}

}  // namespace blockmgr
