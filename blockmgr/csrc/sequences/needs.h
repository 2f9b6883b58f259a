// How many blocks a sequence takes, and whether it ever fits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "sequences/group_tables.h"

namespace blockmgr {

class Needs : public Part<Needs, Slices, GroupTables> {
 public:
  Needs() { measure(); }

  // Refuse what admit, a look-up or append would refuse for the number of tokens alone, before the
  // tokens are read. Only numbers above fits_anyway() have to be checked.
  bool can_fit(std::int64_t num_tokens, const Prompt& prompt) const;
  void check_admission(std::int64_t num_tokens, const Prompt& prompt) const;
  void check_lookup(std::int64_t num_tokens, std::string_view name) const;
  // Tokens that fit an empty pool whatever their namespace, and the most that fit any.
  std::int64_t fits_anyway() const { return fits_anyway_; }
  std::int64_t most_tokens() const { return most_tokens_; }
  // Tokens of a prompt that can matter to a look-up: one more than fit, because the last one is
  // never served. A caller passes no more than these.
  std::int64_t most_matched() const { return most_tokens_ + 1; }
  // What it takes to begin with so many slots behind what is found, in all groups.
  Demand demand(const Found& found, std::int64_t slots) const;
  std::int64_t checked_slots(std::int64_t num_tokens, std::int64_t num_slots, int partition,
                             std::int64_t watermark) const;
  bool never_fits(std::int64_t num_tokens, std::int64_t slots, int partition,
                  std::int64_t watermark) const;
  // held_back: from this admission; -1: as the config says. found: what of several groups was to be
  // reused.
  [[noreturn]] void throw_never_fits(std::int64_t num_tokens, std::int64_t slots, int partition,
                                     std::int64_t held_back = -1,
                                     const Found* found = nullptr) const;
  [[gnu::noinline]] std::int64_t later_blocks(std::int64_t num_tokens, std::int64_t slots) const;
  Stops stops_of(std::int64_t num_tokens, std::int64_t num_computed, std::int64_t num_shared,
                 std::int64_t prompt_end) const noexcept;
  // Where a prompt of so many tokens stops near its end; 0: nowhere.
  std::int64_t prompt_end_of(std::int64_t num_tokens) const {
    if (config().prompt_end_stop < 0) return 0;
    return num_tokens - config().prompt_end_stop - config().stop_margin;
  }
  // The last place of a boundary that lets prompts find so many tokens: a margin behind them, and
  // at the end of a unit if nothing is found within one.
  std::int64_t end_behind(std::int64_t cached) const {
    const std::int64_t end = cached + groups()->margin();
    return config().min_partial_tokens ? end : rows().blocks_for(end) * config().block_size;
  }
  // The last place up to here at which a sequence can begin: rings are right there if empty.
  std::int64_t last_start(std::int64_t end) const {
    if (end <= groups()->replay()) return 0;
    return groups()->restart() == 1 ? end : last_start_of_rings(end);
  }
  // With states: whether a prompt can continue from a state after so many tokens.
  bool can_stop_at(std::int64_t end) const {
    const std::int64_t rest = end % config().block_size;
    return !rest || (config().min_partial_tokens && rest >= config().min_partial_tokens);
  }

  // Visits the cached parts that a prompt takes into use, or copies, in all further groups.
  template <class Visit>
  void each_part(const Found& found, Visit visit) const {
    for (const int g : recurrent())
      if (resumes(found)) visit(groups()->cached(g, last_node(found)));
    for (const int g : attention()) {
      const std::int64_t first = groups()->first_unit(g, first_query(found));
      for (std::int64_t unit = first; unit < found.num_full; ++unit)
        visit(groups()->cached(g, found.full[unit]));
      if (found.partial >= 0 && groups()->reads(g, first_query(found), found.num_full))
        visit(groups()->cached(g, found.partial));
    }
  }

 private:
  void measure();
  [[gnu::noinline]] std::int64_t last_start_of_rings(std::int64_t end) const;
  [[gnu::noinline]] void add_parts(const Found& found, std::int64_t slots, Demand& d) const;
  std::int64_t most_first_slots(std::int64_t num_tokens, std::int64_t most) const;
  std::string never_in_groups(std::int64_t num_tokens, std::int64_t slots, const Found& found,
                              std::int64_t most) const;

  std::int64_t fits_anyway_ = 0;  // both constant, so that no call has to be waited for
  std::int64_t most_tokens_ = 0;
};

inline Demand Needs::demand(const Found& found, std::int64_t slots) const {
  Demand d;
  const bool partial = found.partial >= 0;
  d.num_held = d.num_blocks = std::max(rows().blocks_for(slots), found.num_full + partial);
  d.to_take = d.num_blocks - found.num_full - (partial && found.take_over);
  d.unused_hits = found.num_unused + (partial && pool().counts_as_available(found.partial) ? 1 : 0);
  if (has_groups()) [[unlikely]]
    add_parts(found, slots, d);
  return d;
}

inline bool Needs::never_fits(std::int64_t num_tokens, std::int64_t slots, int partition,
                              std::int64_t watermark) const {
  std::int64_t blocks = rows().blocks_for(std::max(num_tokens, slots));
  if (blocks > rows().longest(partition)) return true;
  if (has_groups()) [[unlikely]]
    blocks = later_blocks(num_tokens, slots ? slots : num_tokens);
  return blocks > rows().home_of(partition).capacity - watermark;
}

}  // namespace blockmgr
