// With further groups of layers: the deepest boundary of a prompt, and a sequence's first blocks.
#include <algorithm>

#include "sequences/sequences.h"

namespace blockmgr {

// Whether the copy that put a state in place is not applied yet.
bool Sequences::waits_for_copy(const KeptState& k) const {
  const Node& successor = nodes_[k.successor];
  if (successor.generation != k.successor_generation) return false;
  if (successor.copy_source == k.state) return true;
  for (const Copy& copy : copies_.flight())
    if (copy.destination == k.successor && copy.source == k.state) return true;
  return false;
}

// The states that were put in place by copies which are resolved by now can be found. A look-up
// leaves no event, so those that mirrors should know of stay in the list for settle_events.
void Sequences::settle_keeps() noexcept {
  std::erase_if(keeps_, [this](const KeptState& k) {
    if (nodes_[k.state].generation != k.state_generation) return true;
    if (groups_->is_being_kept(k.state) && waits_for_copy(k)) return false;
    if (!nodes_[k.state].keyed()) return true;
    groups_->set_being_kept(k.state, false);
    return !groups_->is_untold(k.state);
  });
}

// The last unit of the chain before `to` that lacks a cached part of some group; -1: none.
std::int64_t Sequences::last_gap(const NodeId* chain, std::int64_t position,
                                 std::int64_t to) const {
  std::int64_t gap = -1;
  for (int g = 0; g < groups_->num_groups(); ++g) {
    if (groups_->group(g).recurrent()) continue;
    const std::int64_t from = groups_->first_unit(g, position);
    for (std::int64_t unit = to; unit-- > from && unit > gap;)
      if (groups_->cached(g, chain[unit]) < 0) gap = unit;
  }
  return gap;
}

// Whether every recurrent group has a state at the end of this node.
bool Sequences::has_states(NodeId node) const {
  for (int g = 0; g < groups_->num_groups(); ++g) {
    if (!groups_->group(g).recurrent()) continue;
    const NodeId state = groups_->cached(g, node);
    if (state < 0 || groups_->is_being_kept(state)) return false;
  }
  return true;
}

bool Sequences::has_parts(NodeId node) const {
  for (int g = 0; g < groups_->num_groups(); ++g)
    if (!groups_->group(g).recurrent() && groups_->cached(g, node) < 0) return false;
  return true;
}

// The child of the first num_full blocks that serves most of the tokens after them in every group.
// Below the end of what full attention has, only tails are worth a look: a whole unit would have
// been found. The most of these tokens that any child has, served or not.
int Sequences::find_grouped_partial(const Token* tokens, std::int64_t count,
                                    const ExtrasIds* extras, bool tails_only,
                                    Found& found) const {
  const std::int64_t start = found.num_full * config_.block_size;
  const auto limit =
      static_cast<int>(std::min<std::int64_t>(count - 1 - start, config_.block_size));
  if (limit < config_.min_partial_tokens) return 0;
  const std::uint32_t keys = extras_at(extras, found.num_full);
  int best = config_.min_partial_tokens - 1;
  int most_shared = 0;
  NodeId child = index_.first_child(found.node);
  for (int seen = 0; child >= 0 && seen < kMostChildren; ++seen) {
    const Node& record = nodes_[child];
    const NodeId next = record.next_sibling;
    const int most = std::min<int>(limit, record.key_tokens);
    const Token* own = nodes_.tokens(child);
    const bool tail = record.key_tokens < config_.block_size;
    int n = 0;
    if (record.extras == keys && (tail || !tails_only))
      n = static_cast<int>(std::mismatch(own, own + most, tokens + start).first - own);
    most_shared = std::max(most_shared, n);  // also of what this step's forward has yet to write
    n = std::min(n, record.key_tokens - most_unwritten(child));
    const bool at_end = tail && n == record.key_tokens;
    // A tail that can be taken over needs no copy.
    const bool is_better =
        n > best || (n == best && at_end && found.partial >= 0 && !found.take_over);
    const bool serves = is_better && n < config_.block_size &&
                        ((num_states_ || tails_only) ? at_end : true) && has_parts(child) &&
                        (!num_states_ || has_states(child)) &&
                        last_gap(found.full, start + n, found.num_full) < 0;
    if (serves) {
      Found other = found;
      other.partial = child;
      other.num_partial = n;
      other.take_over = !groups_->is_branch(child) && may_take_over(other);
      if (n > best || other.take_over) found = other;
      best = n;
    }
    child = next;
  }
  return most_shared;
}

// Whether no sequence uses the end of what is found, so that it can become this one's own: a tail
// as it is, or the states of a whole block.
bool Sequences::may_take_over(const Found& found) const {
  const bool within = found.partial >= 0;
  const NodeId end = within ? found.partial : found.node;
  if (within && (nodes_[end].key_tokens != found.num_partial || !pool_.counts_as_available(end)))
    return false;
  if (!within && !num_states_) return false;
  for (int g = 0; g < groups_->num_groups(); ++g)
    if ((within || groups_->group(g).recurrent()) &&
        !pool_.counts_as_available(groups_->cached(g, end)))
      return false;
  return true;
}

// What the first blocks of a chain serve as a whole, and what of the unit after it. A call may take
// less than is cached; where prompts diverge does not depend on that.
Sequences::GroupedFound Sequences::find_grouped(const Token* tokens, std::int64_t num_tokens,
                                                const Applicant& applicant) {
  settle_keeps();
  GroupedFound result;
  const bool partly = config_.min_partial_tokens > 0;
  const std::int64_t count = applicant.looked_up(num_tokens);
  Found chain;
  find_prefix(tokens, num_tokens, applicant.root, applicant.extras, chain);
  const std::int64_t most = std::min(chain.num_full, size_.whole(count - 1));
  result.num_shared = chain.num_full * config_.block_size;
  const auto share = [&](int shared) {
    if (shared >= config_.min_partial_tokens) result.num_shared += shared;
  };
  if (partly && num_states_ && count < num_tokens) {
    Found shared = chain;
    share(find_grouped_partial(tokens, num_tokens, applicant.extras, false, shared));
  }
  const auto cut = [&](std::int64_t length) {
    Found found = chain;
    found.num_full = length;
    found.node = length ? chain.full[length - 1] : applicant.root;
    found.num_unused = pool_.count_available(found.full, length);
    return found;
  };
  std::int64_t length = most;
  while (true) {
    const NodeId node = length ? chain.full[length - 1] : applicant.root;
    const bool deepest = length == most;
    if (partly && result.partial.partial < 0 && (deepest || groups_->has_tails(node))) {
      Found found = cut(length);
      const int shared = find_grouped_partial(tokens, count, applicant.extras, !deepest, found);
      if (deepest && count == num_tokens) share(shared);
      if (found.partial >= 0) result.partial = found;
    }
    const std::int64_t gap = last_gap(chain.full, length * config_.block_size, length);
    if (gap >= 0) {
      length = gap;
      continue;
    }
    if (!length || !num_states_ || has_states(node)) break;
    --length;
  }
  result.whole = cut(length);
  return result;
}

Sequences::Demand Sequences::grouped_demand(const Found& found, std::int64_t slots) const {
  Demand d = demand(found, slots);
  const std::int64_t cached = num_cached(found);
  const NodeId end = found.partial >= 0 ? found.partial : found.num_full ? found.node : kNoNode;
  const auto uses = [&](NodeId part) { d.unused_hits += pool_.counts_as_available(part); };
  for (int g = 0; g < groups_->num_groups(); ++g) {
    if (groups_->group(g).recurrent()) {
      ++d.to_take;
      if (end < 0) continue;
      d.to_take -= found.take_over;
      uses(groups_->cached(g, end));
      continue;
    }
    const std::int64_t first = groups_->first_unit(g, cached);
    d.to_take += d.num_blocks - std::max(first, found.num_full);
    for (std::int64_t unit = first; unit < found.num_full; ++unit)
      uses(groups_->cached(g, found.full[unit]));
    if (found.partial < 0) continue;
    d.to_take -= found.take_over;
    uses(groups_->cached(g, found.partial));
  }
  return d;
}

// The most that is found first; then what takes less: its end taken over instead of copied, less of
// it, nothing. Of these, what was due must be there, whether or not it fits. If none fits now, the plan
// is to wait for the most.
void Sequences::plan_grouped(const Token* tokens, std::int64_t count, std::int64_t slots,
                             const Applicant& applicant, AdmissionPlan& plan) {
  GroupedFound found;
  const std::int64_t left = available(applicant.partition);
  const std::int64_t most =
      pool_.partition(applicant.partition).capacity - applicant.held_back;
  plan.never = true;
  AdmissionPlan waits;
  const auto fits = [&](const Found& candidate) {
    plan.found = candidate;
    plan.demand = grouped_demand(candidate, slots);
    const bool may_fit = first_blocks(candidate, slots) <= most;
    plan.never = plan.never && !may_fit;
    plan.fits = may_fit && plan.demand.fits(left, applicant.held_back);
    if (may_fit && num_cached(candidate) >= num_cached(waits.found)) waits = plan;
    return plan.fits;
  };
  const auto is_due = [&](const Found& candidate) {
    return applicant.due_cached < 0 || num_cached(candidate) == applicant.due_cached;
  };
  const auto tried = [&] {
    const auto fits_somehow = [&](Found candidate) {
      if (fits(candidate)) return true;
      if (candidate.take_over || !may_take_over(candidate)) return false;
      candidate.take_over = true;
      return fits(candidate);
    };
    const bool within =
        found.partial.partial >= 0 && found.partial.num_full >= found.whole.num_full;
    const bool partial_due = within && is_due(found.partial);
    if (partial_due && fits_somehow(found.partial)) return;
    const bool whole_due = found.whole.num_full && is_due(found.whole);
    if (whole_due && fits_somehow(found.whole)) return;
    Found nothing;
    nothing.node = applicant.root;
    if (is_due(nothing)) {
      fits(nothing);
    } else if (!partial_due && !whole_due) {
      throw StaleMatch(applicant.due_cached, num_cached(within ? found.partial : found.whole));
    }
  };
  if (applicant.read_cache && applicant.root != kNoNode && digester_) {
    found = find_grouped(tokens, count, applicant);
  }
  tried();
  if (!plan.fits && !plan.never) plan = waits;
  plan.num_shared = found.num_shared;
}

// The blocks of a sequence that begins with so many slots behind what is found.
std::int64_t Sequences::first_blocks(const Found& found, std::int64_t slots) const {
  const std::int64_t cached = num_cached(found);
  const std::int64_t units = std::max(blocks_for(slots), blocks_for(cached));
  std::int64_t sum = units + num_states_;
  for (int g = 0; g < groups_->num_groups(); ++g)
    if (!groups_->group(g).recurrent()) sum += units - groups_->first_unit(g, cached);
  return sum;
}

// The most blocks of a sequence that has so many slots, has computed them, and goes on taking as
// few as it can.
std::int64_t Sequences::later_blocks(std::int64_t num_tokens, std::int64_t slots) const {
  const std::int64_t size = config_.block_size;
  std::int64_t attention = 1;
  for (int g = 0; g < groups_->num_groups(); ++g) attention += !groups_->group(g).recurrent();
  std::int64_t most = 0;
  // Within a block it can only fall.
  for (std::int64_t position = slots; position < num_tokens; position += size - position % size) {
    const std::int64_t blocks = position / size + 1;
    std::int64_t sum = attention * blocks;
    for (int g = 0; g < groups_->num_groups(); ++g)
      if (!groups_->group(g).recurrent()) sum -= groups_->first_unit(g, position);
    most = std::max(most, sum);
  }
  return most + num_states_;
}

// The most slots with which a prompt can begin alone in so many blocks, and then be computed in parts
// to its end; 0: it never can.
std::int64_t Sequences::most_first_slots(std::int64_t num_tokens, std::int64_t most) const {
  std::int64_t units = (most - num_states_) / grouped_need(1);
  units = std::min(units, blocks_for(num_tokens));
  const std::int64_t slots = std::min(units * config_.block_size, num_tokens);
  return slots > 0 && later_blocks(num_tokens, slots) <= most ? slots : 0;
}

// Why a prompt never fits in all groups, and with which slots it would.
std::string Sequences::never_in_groups(std::int64_t num_tokens, std::int64_t slots,
                                       const Found& found, std::int64_t most) const {
  const std::string groups = std::to_string(1 + groups_->num_groups()) + " groups of layers";
  const std::int64_t first = first_blocks(found, slots);
  const std::int64_t parts = most_first_slots(num_tokens, most);
  if (first <= most || (!parts && slots <= num_tokens))
    return "a prompt of " + std::to_string(num_tokens) + " tokens takes " +
           std::to_string(std::max(first, later_blocks(num_tokens, slots))) + " blocks in " + groups;
  std::string text = "slots for " + std::to_string(std::max(slots, num_cached(found))) +
                     " tokens take " + std::to_string(first) + " blocks in " + groups;
  if (parts && parts < slots)
    text += " (computed in parts it fits, with num_slots of at most " + std::to_string(parts) + ")";
  return text;
}

// Of a chain that full attention has, the blocks up to the deepest place that every group serves.
std::int64_t Sequences::served_of(const Found& chain) const {
  std::int64_t length = chain.num_full;
  while (length) {
    const std::int64_t gap = last_gap(chain.full, length * config_.block_size, length);
    if (gap < 0 && (!num_states_ || has_states(chain.full[length - 1]))) break;
    length = gap < 0 ? length - 1 : gap;
  }
  return length;
}

// In the order of GroupRow::Stop, without the end of what is retained: the last whole block that can
// be served again; where the prompt diverges from what is cached; half of what is computed; and what
// the next turn repeats, if it does not repeat the answer. The state halfway takes a block in each
// group, so the halves are several times as long: when the end of the path is evicted, the first one
// is still found.
Stops Sequences::stops_of(std::int64_t num_tokens, std::int64_t num_computed,
                          std::int64_t num_shared, std::int64_t prompt_end) const noexcept {
  constexpr std::int64_t kLeastBlocks = 8;  // to compute, for each group of states
  const std::int64_t size = config_.block_size;
  if (!num_states_) num_shared -= num_shared % size;  // a tail without a state is no stop
  const std::int64_t last = (num_tokens - 1) / size;
  const std::int64_t first = num_computed / size;
  const std::int64_t blocks = last - first;
  const std::int64_t least = config_.halfway_stop_tokens;
  const bool is_long =
      num_states_ && least && blocks >= kLeastBlocks * num_states_ && blocks * size >= least;
  const std::int64_t halfway = is_long ? (first + blocks / 2) * size : 0;
  const bool is_end = num_states_ && prompt_end > num_computed && prompt_end != last * size &&
                      prompt_end != num_shared && prompt_end != halfway && can_stop_at(prompt_end);
  return {last * size > num_computed && last * size != num_shared ? last * size : 0,
          num_shared > num_computed ? num_shared : 0, halfway != num_shared ? halfway : 0,
          is_end ? prompt_end : 0};
}

void Sequences::choose_stops(Sequence& s, std::int64_t num_shared) noexcept {
  auto& stops = group_row(s).stops;
  // A sequence that resumes may have tokens that were not in its prompt.
  const std::int64_t prompt_end = s.state == Sequence::kPreempted ? stops[GroupRow::kPromptEnd]
                                                                  : prompt_end_of(s.num_tokens);
  const auto [last, diverges, halfway, end] =
      stops_of(s.num_tokens, s.num_computed, num_shared, prompt_end);
  stops = {last, diverges, halfway, end, 0};
}

NodeId Sequences::take_of(int g, int partition, NodeId before) noexcept {
  const NodeId m = pool_.take(partition, before);
  groups_->set_owner(m, g);
  return m;
}

// Parts of units [from, to) of its table, each to continue the one before it. The last of them.
NodeId Sequences::take_part_run(const Sequence& s, int g, std::int64_t from, std::int64_t to,
                                NodeId before) noexcept {
  const NodeId* t = table(s);
  NodeId* const fresh = parts_room_.data();
  if (to - from == 1) {
    *fresh = pool_.take(s.partition, before);
  } else {
    pool_.take_run(s.partition, before, to - from, fresh);
  }
  for (std::int64_t unit = from; unit < to; ++unit) {
    const NodeId m = fresh[unit - from];
    groups_->set_owner(m, g);
    groups_->set_part(g, t[unit], m);
  }
  return from < to ? fresh[to - from - 1] : before;
}

// What occupy does, for all groups. Everything found is kept before anything is taken.
void Sequences::occupy_grouped(Sequence& s, const AdmissionPlan& plan) noexcept {
  const Found& found = plan.found;
  const std::int64_t num_blocks = plan.demand.num_blocks;
  const std::int64_t cached = num_cached(found);
  const int num_groups = groups_->num_groups();
  GroupRow& row = group_row(s);
  NodeId* t = table(s);
  pool_.admitted(s.partition, {found.full, found.num_full});
  std::copy_n(found.full, found.num_full, t);
  pool_.acquire_chain(t, found.num_full);
  const NodeId end = found.partial >= 0 ? found.partial : found.num_full ? found.node : kNoNode;
  if (end >= 0 && groups_->length(end) == cached) groups_->continue_from(end);
  for (int g = 0; g < num_groups; ++g) {
    if (groups_->group(g).recurrent()) continue;
    row.first[nth(g)] =
        static_cast<std::int32_t>(groups_->first_unit(g, cached));
    for (std::int64_t unit = row.first[nth(g)]; unit < found.num_full; ++unit)
      pool_.acquire_part(groups_->part(g, t[unit]));
  }
  // What is copied, or taken over. source[g]: the same for each group.
  const auto each_source = [&](const auto& visit) {
    for (int g = 0; g < num_groups; ++g)
      if (end >= 0 && (groups_->group(g).recurrent() || found.partial >= 0))
        visit(g, sources_room_[nth(g)]);
  };
  for (int g = 0; g < num_groups; ++g)
    sources_room_[nth(g)] = end >= 0 ? groups_->part(g, end) : kNoNode;
  std::int64_t i = found.num_full;
  if (found.partial >= 0) {
    pool_.hit(found.partial);
    index_.bring_forward(found.partial);
  }
  if (found.take_over) {
    each_source([&](int, NodeId m) { pool_.acquire(m); });
    if (found.partial >= 0) {
      pool_.take_over(found.partial);
      t[i++] = found.partial;
    } else {
      groups_->end_boundary(end);
    }
    each_source([&](int g, NodeId m) {
      if (!groups_->group(g).recurrent()) return;
      groups_->unkeep(m);
      if (groups_->part(g, end) == m) groups_->clear_part(g, end);
      row.states[nth(g)] = m;
    });
  } else {
    if (found.partial >= 0) pool_.pin(found.partial);
    each_source([&](int, NodeId m) { pool_.pin(m); });
  }
  if (!found.take_over && found.partial >= 0) {
    const NodeId fresh = pool_.take(s.partition, i ? t[i - 1] : kNoNode);
    groups_->clear_parts(fresh);
    copies_.plan(found.partial, fresh, found.num_partial);
    t[i++] = fresh;
  }
  const std::int64_t fresh_from = i;
  pool_.take_run(s.partition, i ? t[i - 1] : kNoNode, num_blocks - i, t + i);
  groups_->clear_parts(t + i, num_blocks - i);
  for (int g = 0; g < num_groups; ++g) {
    const NodeId source = sources_room_[nth(g)];
    if (groups_->group(g).recurrent()) {
      NodeId& state = row.states[nth(g)];
      if (found.take_over) continue;
      state = take_of(g, s.partition, kNoNode);
      if (source >= 0) copies_.plan(source, state, config_.block_size);
      continue;
    }
    const std::int64_t first = row.first[nth(g)];
    NodeId before = found.num_full > first ? groups_->part(g, t[found.num_full - 1]) : kNoNode;
    if (found.partial >= 0 && !found.take_over) {
      before = take_part_run(s, g, found.num_full, found.num_full + 1, before);
      copies_.plan(source, before, found.num_partial);
    }
    take_part_run(s, g, std::max(first, fresh_from), num_blocks, before);
  }
  if (!found.take_over) {
    each_source([&](int, NodeId m) { pool_.unpin(m); });
    if (found.partial >= 0) pool_.unpin(found.partial);
  }
  row.stands = true;
  row.moves = 0;
}

// A row is zero where the sequence has no part.
void Sequences::show_groups(const Sequence& s, std::int64_t from) noexcept {
  const NodeId* t = table(s);
  for (int g = 0; g < groups_->num_groups(); ++g) {
    std::int32_t* out = shown_group_at(g, row_of(s));
    if (groups_->group(g).recurrent()) {
      const NodeId state = group_row(s).states[nth(g)];
      out[0] = state < 0 ? 0 : number(nodes_.block(state));
      continue;
    }
    for (std::int64_t unit = std::max<std::int64_t>(from, group_row(s).first[nth(g)]);
         unit < s.num_blocks; ++unit)
      out[unit] = number(nodes_.block(groups_->part(g, t[unit])));
  }
}

}  // namespace blockmgr
