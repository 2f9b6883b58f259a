// Whether the places of the reuse tracker add up, and what they are.
#include "policies/reuse.h"

#include "checks/audit.h"

namespace blockmgr {

void ReuseTracker::audit(BlockAudit& audit) const {
  std::int64_t live = 0, known = 0, blocks = 0;
  for (Tick t = 0; t < num_ticks_; ++t) {
    const std::int32_t what = at_[t];
    const std::string where = "tick " + std::to_string(t);
    audit.expect(live_.contains(t) == (what != kNothing), where + " is live and holds nothing");
    audit.expect(holes_.contains(t) == (what == kHole), where + " is in the wrong set");
    if (what == kNothing) continue;
    ++live;
    audit.expect(t < next_, where + " was not given out");
    if (what > 0) {
      ++blocks;
      audit.expect(tick_[what - 1] == t, where + " names another block");
    } else if (what > kAnonymous) {
      ++known;
      const Ghost& ghost = ghosts_[static_cast<std::size_t>(-(what + 1))];
      audit.expect(!ghost.is_resolved() && ghost.at == t, where + " names another ghost");
      audit.expect(table_.holds(-(what + 1)), "a ghost cannot be found by its digest");
      audit.expect(!by_recency_ || place_of_ghost(-(what + 1)) > capacity_,
                   "a ghost stands where the pool still holds");
    }
  }
  audit.expect(live_.adds_up() && holes_.adds_up(), "the sets of places do not add up");
  std::int64_t before = live;
  for (Tick t = 0; t < next_; ++t) {
    if (!live_.contains(t)) continue;
    audit.expect(rank(t) == before--, "the places are miscounted");
  }
  audit.expect(live == num_live_ && in_use_ + live <= limit_,
               "more places are taken than there are");
  audit.expect(in_use_ == audit.partition().capacity - audit.partition().available(),
               "the blocks in use are miscounted for the places");
  const auto num_ghosts = static_cast<std::int64_t>(end());
  std::int64_t unused = 0, ticked = 0;
  for (std::int32_t g = unused_ghost_; g >= 0 && unused <= num_ghosts;
       g = ghosts_[static_cast<std::size_t>(g)].next)
    ++unused;
  std::int64_t resolved = 0;
  std::int32_t last = end();
  for (std::int32_t g = oldest_resolved(); g != end() && resolved <= num_ghosts;
       g = ghosts_[static_cast<std::size_t>(g)].next) {
    ++resolved;
    audit.expect(ghosts_[static_cast<std::size_t>(g)].prev == last,
                 "resolved ghosts are not linked");
    last = g;
  }
  audit.expect(ghosts_[ghosts_.size() - 1].prev == last,
               "resolved ghosts are not linked to their end");
  audit.expect(unused + known + resolved == num_ghosts && table_.size() == known + resolved,
               "ghosts are lost");
  Tick earlier = 0;
  for (NodeId b = audit.partition().idle.front(); b != audit.partition().idle.end();
       b = audit.partition().idle.after(b)) {
    const Tick t = tick_[b];
    if (t == kNoTick) {
      audit.expect(!by_recency_, "an idle block has no place");
      continue;
    }
    ++ticked;
    audit.expect(t >= earlier, "the places are in another order than the idle blocks");
    earlier = t;
    audit.expect(!by_recency_ || place(b) <= capacity_, "an idle block stands beyond the pool");
  }
  audit.expect(ticked == blocks, "a block that is not idle has a place");
}

void ReuseTracker::fingerprint(std::string& out) const {
  put_numbers(out, in_use_, num_taken_, num_forgotten_, query_tokens_);
  for (Tick t = 0; t < next_; ++t) {
    const std::int32_t what = at_[t];
    if (what == kNothing) continue;
    put_numbers(out, what > 0 || what <= kAnonymous ? what : -1);
    if (what < 0 && what > kAnonymous) {
      const Ghost& ghost = ghosts_[static_cast<std::size_t>(-(what + 1))];
      put_numbers(out, ghost.key, ghost.evicted_at);
    }
  }
  for (std::int32_t g = oldest_resolved(); g != end();
       g = ghosts_[static_cast<std::size_t>(g)].next)
    put_numbers(out, ghosts_[static_cast<std::size_t>(g)].key,
                ghosts_[static_cast<std::size_t>(g)].at);
  for (std::size_t i = 0; i < histogram_.size(); ++i) put_numbers(out, histogram_[i]);
}

}  // namespace blockmgr
