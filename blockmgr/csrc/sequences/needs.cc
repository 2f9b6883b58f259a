#include <algorithm>
#include <numeric>
#include <utility>

#include "sequences/sequences.h"

namespace blockmgr {

void Needs::measure() {
  std::int64_t least = config().row_width;
  std::int64_t most = 0;
  for (int i = 0; i < pool().num_partitions(); ++i) {
    if (pool().nodes_of(i) != i) continue;
    const std::int64_t blocks = rows().longest(i);
    std::int64_t left = rows().home_of(i).capacity - rows().watermark(i);
    left = (left - num_singles()) / use<GroupTables>().blocks_of_units(1);
    least = std::min(least, std::min(blocks, left));
    most = std::max(most, blocks);
  }
  fits_anyway_ = std::max<std::int64_t>(least, 0) * config().block_size;
  most_tokens_ = most * config().block_size;
}

void Needs::throw_never_fits(std::int64_t num_tokens, std::int64_t slots, int partition,
                             std::int64_t held_back, const Found* found) const {
  if (held_back < 0) held_back = rows().watermark(partition);
  const std::int64_t most = std::max(num_tokens, slots);
  const std::int64_t capacity = rows().home_of(partition).capacity;
  const char* whose = partitions().empty() ? "the pool has "
                      : partition          ? "the quota of its namespace is "
                                           : "the quotas leave other namespaces ";
  std::string message;
  if (has_groups() && rows().blocks_for(most) <= rows().longest(partition)) {
    message = never_in_groups(num_tokens, slots ? slots : num_tokens, found ? *found : Found(),
                              capacity - held_back) +
              "; ";
  } else {
    message = "slots for " + std::to_string(most) + " tokens take " +
              std::to_string(rows().blocks_for(most)) + " blocks; a block table row holds " +
              std::to_string(config().row_width) + " and ";
    if (config().num_nodes) message += "num_nodes is " + std::to_string(config().num_nodes) + "; ";
  }
  message += whose + std::to_string(capacity);
  if (held_back)
    message +=
        ", " + std::to_string(held_back) + " of them held back from admission by the watermark";
  throw Error(ErrorKind::kNeverFits, message);
}

std::int64_t Needs::checked_slots(std::int64_t num_tokens, std::int64_t num_slots, int partition,
                                  std::int64_t watermark) const {
  const std::int64_t slots = num_slots ? num_slots : num_tokens;
  if (never_fits(num_tokens, slots, partition, watermark))
    throw_never_fits(num_tokens, slots, partition, watermark);
  return slots;
}

bool Needs::can_fit(std::int64_t num_tokens, const Prompt& prompt) const {
  const std::uint16_t partition = rows().partition_of(prompt.name);
  return !never_fits(num_tokens, prompt.num_slots, partition,
                     rows().watermark(partition, prompt.watermark_blocks));
}

void Needs::check_admission(std::int64_t num_tokens, const Prompt& prompt) const {
  const std::uint16_t partition = rows().partition_of(prompt.name);
  checked_slots(num_tokens, prompt.num_slots, partition,
                rows().watermark(partition, prompt.watermark_blocks));
}

void Needs::check_lookup(std::int64_t num_tokens, std::string_view name) const {
  if (rows().blocks_for(num_tokens) > config().row_width)
    throw_never_fits(num_tokens, 0, rows().partition_of(name));
}

void Needs::add_parts(const Found& found, std::int64_t slots, Demand& d) const {
  const std::int64_t cached = num_cached(found);
  const std::int64_t usable = use<Slices>().usable_slots(std::max(slots, cached));
  d.missing_slots = d.num_blocks * config().block_size - usable;
  const bool takes_states = !resumes(found) || !found.take_over;
  if (config().num_nodes) {
    d.num_held = 0;
    d.fresh_nodes = std::exchange(d.to_take, 0);
    d.unused_nodes = std::exchange(d.unused_hits, 0);
  }
  each_part(found, [&](NodeId part) { d.unused_hits += pool().counts_as_available(part); });
  d.num_held += num_singles();
  d.to_take += static_cast<std::int64_t>(rings().size());
  d.to_take += num_states() * (takes_states + extra_blocks());
  for (const int g : attention()) {
    const std::int64_t first = groups()->first_unit(g, first_query(found));
    const std::int64_t units = use<Slices>().units_of(g, usable);
    d.num_held += std::max<std::int64_t>(units - first, 0);
    d.to_take += std::max<std::int64_t>(units - std::max(first, found.num_full), 0);
    if (found.partial >= 0 && groups()->reads(g, first_query(found), found.num_full))
      d.to_take -= found.take_over;
  }
  for (const int g : replayed()) {
    const std::int64_t own = std::max<std::int64_t>(
        use<Slices>().units_of(g, usable) - use<GroupTables>().first_own(g, cached), 0);
    d.num_held += own;
    d.to_take += own;
  }
}

// The most blocks of a sequence that has so many slots, has computed them, and goes on taking as
// few as it can. Its windows keep what is read if drafts are taken back.
std::int64_t Needs::later_blocks(std::int64_t num_tokens, std::int64_t slots) const {
  const std::int64_t size = config().block_size;
  std::int64_t most = 0;
  // Within a block it can only fall.
  for (std::int64_t position = slots; position < num_tokens; position += size - position % size) {
    const std::int64_t blocks = position / size + 1;
    const std::int64_t from = std::max<std::int64_t>(0, position - config().max_rollback);
    std::int64_t sum = own_blocks(blocks) + blocks * static_cast<std::int64_t>(growing().size());
    for (const int g : growing()) sum -= groups()->first_unit(g, from);
    most = std::max(most, sum);
  }
  return most + num_singles();
}

// The most slots with which a prompt can begin alone in so many blocks, and then be computed in
// parts to its end; 0: it never can.
std::int64_t Needs::most_first_slots(std::int64_t num_tokens, std::int64_t most) const {
  const std::int64_t each = own_blocks(1) + static_cast<std::int64_t>(growing().size());
  std::int64_t units = rows().blocks_for(num_tokens);
  if (each) units = std::min(units, (most - num_singles()) / each);
  const std::int64_t slots = std::min(units * config().block_size, num_tokens);
  return slots > 0 && later_blocks(num_tokens, slots) <= most ? slots : 0;
}

// Why a prompt never fits in all groups, and with which slots it would.
std::string Needs::never_in_groups(std::int64_t num_tokens, std::int64_t slots, const Found& found,
                                   std::int64_t most) const {
  int num_groups = static_cast<int>(own_blocks(1));
  for (int g = 0; g < groups()->num_groups(); ++g)
    num_groups += !groups()->group(g).slice &&
                  (config().num_nodes || groups()->group(g).number != config().full_group);
  const std::string where = std::to_string(num_groups) + " groups of layers";
  const std::int64_t first = demand(found, slots).num_held;
  const std::int64_t parts = most_first_slots(num_tokens, most);
  if (first <= most || (!parts && slots <= num_tokens))
    return "a prompt of " + std::to_string(num_tokens) + " tokens takes " +
           std::to_string(std::max(first, later_blocks(num_tokens, slots))) + " blocks in " + where;
  std::string text = "slots for " + std::to_string(std::max(slots, num_cached(found))) +
                     " tokens take " + std::to_string(first) + " blocks in " + where;
  if (parts && parts < slots)
    text += " (computed in parts it fits, with num_slots of at most " + std::to_string(parts) + ")";
  return text;
}

// At the end of a block; with states, within one as well.
std::int64_t Needs::last_start_of_rings(std::int64_t end) const {
  const std::int64_t restart = groups()->restart();
  for (end -= end % restart; end > 0; end -= restart)
    if (end % config().block_size == 0 || (num_states() && can_stop_at(end))) return end;
  return 0;
}

// In the order of GroupRow::Stop, without the end of what is retained: the last whole block that
// can be served again; where the prompt diverges from what is cached; half of what is computed; and
// what the next turn repeats, if it does not repeat the answer. The state halfway takes a block in
// each group, so the halves are several times as long: when the end of the path is evicted, the
// first one is still found.
Stops Needs::stops_of(std::int64_t num_tokens, std::int64_t num_computed, std::int64_t num_shared,
                      std::int64_t prompt_end) const noexcept {
  constexpr std::int64_t kLeastBlocks = 8;  // to compute, for each group of states
  const std::int64_t size = config().block_size;
  // With a margin, a prompt that shares no more than this one could not continue from the end.
  const std::int64_t margin = num_states() ? config().stop_margin : 0;
  num_shared = std::max<std::int64_t>(0, std::min(num_shared - margin, num_tokens - 1));
  // A tail without a state is no stop.
  if (!num_states() || !can_stop_at(num_shared)) num_shared -= num_shared % size;
  num_shared = last_start(num_shared);
  const std::int64_t step = std::lcm(size, groups()->restart());
  const std::int64_t end_of_last = num_tokens - std::max<std::int64_t>(1, margin);
  const std::int64_t last = std::max<std::int64_t>(0, end_of_last) / step * step;
  const std::int64_t from = end_behind(num_computed);
  const std::int64_t first = num_computed / size;
  const std::int64_t blocks = (num_tokens - 1) / size - first;
  const std::int64_t least = config().halfway_stop_tokens;
  const bool is_long =
      num_states() && least && blocks >= kLeastBlocks * num_states() && blocks * size >= least;
  const std::int64_t halfway = is_long ? (first + blocks / 2) * size / step * step : 0;
  const bool is_end = num_states() && prompt_end > num_computed && prompt_end != last &&
                      prompt_end != num_shared && prompt_end != halfway &&
                      can_stop_at(prompt_end) && can_start(prompt_end);
  return {last > num_computed && last != num_shared ? last : 0, num_shared > from ? num_shared : 0,
          halfway > num_computed && halfway != num_shared ? halfway : 0, is_end ? prompt_end : 0};
}

}  // namespace blockmgr
