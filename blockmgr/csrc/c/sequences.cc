// The C interface: calls on sequences, steps and blocks.
#include <algorithm>
#include <vector>

#include "c/structs.h"
#include "sequences/handing.h"

using namespace blockmgr::c;
using blockmgr::Sequences;

namespace {

void check_flags(std::uint32_t flags, std::uint32_t known) {
  blockmgr::check_bounds("flags", flags, 0, known);
}

static_assert(offsetof(blockmgr_copy, group) == offsetof(blockmgr::BlockCopy, group));

}  // namespace

blockmgr_status blockmgr_reserve(blockmgr_manager* manager, blockmgr_handle handle,
                                 int64_t num_slots) {
  return change(manager, [&](Sequences& core) { core.reserve(handle, num_slots); });
}

blockmgr_status blockmgr_append(blockmgr_manager* manager, blockmgr_handle handle,
                                const uint32_t* tokens, int64_t num_tokens) {
  return change(manager, [&](Sequences& core) {
    elements(tokens, "tokens", num_tokens, "num_tokens");
    // More than any pool holds is refused unread.
    core.append(handle, tokens, std::min(blockmgr::not_empty(num_tokens, "tokens"), kPastAnyPool));
  });
}

blockmgr_status blockmgr_commit(blockmgr_manager* manager, blockmgr_handle handle,
                                int64_t num_computed_tokens) {
  return change(manager, [&](Sequences& core) { core.commit(handle, num_computed_tokens); });
}

blockmgr_status blockmgr_decode(blockmgr_manager* manager, const blockmgr_handle* handles,
                                const uint32_t* tokens, int64_t count, int64_t* slots) {
  return change(manager, [&](Sequences& core) {
    elements(handles, "handles", count, "count");
    elements(tokens, "tokens", count, "count");
    elements(slots, "slots", count, "count");
    blockmgr::check_batch(count, core.config().max_seqs);
    core.decode(handles, tokens, count, slots);
  });
}

blockmgr_status blockmgr_fork(blockmgr_manager* manager, blockmgr_handle handle, int64_t n,
                              blockmgr_handle* children) {
  return change(manager, [&](Sequences& core) {
    if (n > 0) not_null(children, "children");
    core.fork(handle, n, children);
  });
}

blockmgr_status blockmgr_reparent(blockmgr_manager* manager, const blockmgr_handle* handles,
                                  const int64_t* parents, int64_t count) {
  return change(manager, [&](Sequences& core) {
    elements(handles, "handles", count, "count");
    elements(parents, "parents", count, "count");
    blockmgr::check_batch(count, core.config().max_seqs);
    core.reparent(handles, parents, count);
  });
}

blockmgr_status blockmgr_truncate(blockmgr_manager* manager, blockmgr_handle handle,
                                  int64_t num_tokens, int64_t* num_computed_tokens) {
  return change(manager, [&](Sequences& core) {
    tell(num_computed_tokens, core.truncate(handle, num_tokens));
  });
}

blockmgr_status blockmgr_free(blockmgr_manager* manager, blockmgr_handle handle, uint32_t flags) {
  return change(manager, [&](Sequences& core) {
    check_flags(flags, BLOCKMGR_WITHDRAW);
    core.free(handle, flags & BLOCKMGR_WITHDRAW);
  });
}

blockmgr_status blockmgr_free_expecting(blockmgr_manager* manager, blockmgr_handle handle,
                                        int32_t expect_reuse, uint32_t flags) {
  return change(manager, [&](Sequences& core) {
    blockmgr::check_bounds("expect_reuse", expect_reuse, 0, 1);
    check_flags(flags, BLOCKMGR_WITHDRAW);
    core.free_expecting(handle, expect_reuse, flags & BLOCKMGR_WITHDRAW);
  });
}

blockmgr_status blockmgr_preempt(blockmgr_manager* manager, blockmgr_handle handle,
                                 uint32_t flags) {
  return change(manager, [&](Sequences& core) {
    check_flags(flags, BLOCKMGR_WITHDRAW);
    core.preempt(handle, flags & BLOCKMGR_WITHDRAW);
  });
}

blockmgr_status blockmgr_resume(blockmgr_manager* manager, blockmgr_handle handle,
                                int64_t num_slots, uint32_t flags) {
  return change(manager, [&](Sequences& core) {
    blockmgr::check_at_least("num_slots", num_slots, 0);
    check_flags(flags, BLOCKMGR_SKIP_CACHE);
    core.resume(handle, num_slots, !(flags & BLOCKMGR_SKIP_CACHE));
  });
}

blockmgr_status blockmgr_resume_together(blockmgr_manager* manager, const blockmgr_handle* handles,
                                         int64_t count, int64_t num_slots, uint32_t flags) {
  return change(manager, [&](Sequences& core) {
    elements(handles, "handles", count, "count");
    blockmgr::check_batch(count, core.config().max_seqs);
    blockmgr::check_at_least("num_slots", num_slots, 0);
    check_flags(flags, BLOCKMGR_SKIP_CACHE);
    core.resume_together(handles, count, num_slots, !(flags & BLOCKMGR_SKIP_CACHE));
  });
}

blockmgr_status blockmgr_cache_state(blockmgr_manager* manager, blockmgr_handle handle,
                                     int32_t* cached) {
  return change(manager, [&](Sequences& core) { tell(cached, core.cache_state(handle)); });
}

blockmgr_status blockmgr_mark_state_moved(blockmgr_manager* manager, blockmgr_handle handle) {
  return change(manager, [&](Sequences& core) { core.mark_state_moved(handle); });
}

blockmgr_status blockmgr_place_state(blockmgr_manager* manager, blockmgr_handle handle,
                                     int64_t slot) {
  return change(manager, [&](Sequences& core) { core.place_state(handle, slot); });
}

blockmgr_status blockmgr_num_common_prefix_blocks(blockmgr_manager* manager,
                                                  const blockmgr_handle* handles, int64_t count,
                                                  int64_t* num_blocks) {
  return change(manager, [&](Sequences& core) {
    not_null(num_blocks, "num_blocks");
    blockmgr::check_at_least("count", count, 0);
    *num_blocks =
        handles ? core.num_common_prefix_blocks(handles, count) : core.num_common_prefix_blocks();
  });
}

blockmgr_status blockmgr_take_copies(blockmgr_manager* manager, blockmgr_copy* copies, int64_t room,
                                     int64_t* num_copies, int64_t* ticket) {
  return change(manager, [&](Sequences& core) {
    not_null(num_copies, "num_copies");
    not_null(ticket, "ticket");
    elements(copies, "copies", room, "room");
    std::vector<blockmgr::BlockCopy> plan;
    const std::int64_t taken = core.take_copies(plan);
    if (static_cast<std::int64_t>(plan.size()) > room) core.return_copies(taken);
    put_all(plan, copies, room, *num_copies);
    *ticket = taken;
  });
}

blockmgr_status blockmgr_copies_applied(blockmgr_manager* manager, int64_t ticket) {
  return change(manager, [&](Sequences& core) { core.copies_applied(ticket); });
}

blockmgr_status blockmgr_copies_aborted(blockmgr_manager* manager, int64_t ticket) {
  return change(manager, [&](Sequences& core) { core.copies_aborted(ticket); });
}

blockmgr_status blockmgr_complete(blockmgr_manager* manager, int64_t ticket) {
  return change(manager, [&](Sequences& core) { core.complete(ticket); });
}

blockmgr_status blockmgr_take_remaps(blockmgr_manager* manager, blockmgr_remap* remaps,
                                     int64_t room, int64_t* num_remaps) {
  return change(manager, [&](Sequences& core) {
    not_null(num_remaps, "num_remaps");
    elements(remaps, "remaps", room, "room");
    *num_remaps = blockmgr::hand_over_remaps(core, [&](const auto& records) {
      const auto count = static_cast<std::int64_t>(records.size());
      check_room(room, count, *num_remaps);
      std::transform(records.begin(), records.end(), remaps, [](const blockmgr::RemapRecord& r) {
        return blockmgr_remap{r.handle, r.index, r.old_block, r.new_block, 0};
      });
      return count;
    });
  });
}

blockmgr_status blockmgr_retain(blockmgr_manager* manager, blockmgr_handle handle, int64_t start,
                                int64_t stop, int32_t priority, double seconds,
                                int64_t* num_blocks) {
  return change(manager, [&](Sequences& core) {
    blockmgr::check_retention(priority, seconds);
    tell(num_blocks, core.retain(handle, start, stop, priority, seconds));
  });
}

blockmgr_status blockmgr_unpin(blockmgr_manager* manager, int64_t pin) {
  return change(manager, [&](Sequences& core) { core.unpin(pin); });
}

blockmgr_status blockmgr_set_time(blockmgr_manager* manager, double seconds) {
  return change(manager, [&](Sequences& core) { core.set_time(seconds); });
}

blockmgr_status blockmgr_acquire(blockmgr_manager* manager, const int64_t* blocks, int64_t count) {
  return change(manager, [&](Sequences& core) {
    core.acquire(elements(blocks, "blocks", count, "count"), count);
  });
}

blockmgr_status blockmgr_release(blockmgr_manager* manager, const int64_t* blocks, int64_t count) {
  return change(manager, [&](Sequences& core) {
    core.release(elements(blocks, "blocks", count, "count"), count);
  });
}

blockmgr_status blockmgr_touch_blocks(blockmgr_manager* manager, const int64_t* blocks,
                                      int64_t count) {
  return change(manager, [&](Sequences& core) {
    core.touch_blocks(elements(blocks, "blocks", count, "count"), count);
  });
}

blockmgr_status blockmgr_forget(blockmgr_manager* manager, const int64_t* blocks, int64_t count,
                                int64_t* num_forgotten) {
  return change(manager, [&](Sequences& core) {
    tell(num_forgotten, core.forget(elements(blocks, "blocks", count, "count"), count));
  });
}

blockmgr_status blockmgr_shrink(blockmgr_manager* manager, int64_t num_blocks,
                                int64_t* num_leaving) {
  return change(manager, [&](Sequences& core) { tell(num_leaving, core.shrink_pool(num_blocks)); });
}

blockmgr_status blockmgr_grow(blockmgr_manager* manager, int64_t num_blocks) {
  return change(manager, [&](Sequences& core) { core.grow_pool(num_blocks); });
}

blockmgr_status blockmgr_reset_prefix_cache(blockmgr_manager* manager, int32_t reset_hit_rate,
                                            int64_t* num_forgotten) {
  return change(manager, [&](Sequences& core) {
    blockmgr::check_bounds("reset_hit_rate", reset_hit_rate, 0, 1);
    tell(num_forgotten, core.reset_prefix_cache(reset_hit_rate));
  });
}
