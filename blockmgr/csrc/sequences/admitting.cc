#include <algorithm>

#include "sequences/arguments.h"
#include "sequences/sequences.h"

namespace blockmgr {

// All counting happens here, before any change.
AdmissionPlan Admitting::plan_admission(const Token* tokens, std::int64_t count, std::int64_t slots,
                                        const Applicant& applicant) {
  AdmissionPlan plan;
  Reach reach;
  if (applicant.read_cache && applicant.root != kNoNode)
    use<Finding>().find(tokens, count, applicant, plan.found, reach,
                        rows().blocks_for(std::max(slots, applicant.due_cached)));
  plan.num_shared = reach.num_shared;
  plan.found.num_loaded = applicant.num_loaded;
  if (applicant.num_loaded && leaves_states(plan.found)) plan.found.take_over = false;
  // Mostly there is room for the most that is found.
  if (applicant.due_cached >= 0 || !fits(plan, slots, applicant)) [[unlikely]]
    choose(plan, reach.num_whole, slots, applicant);
  return plan;
}

bool Admitting::has_nodes(const Demand& demand, int partition) const {
  return demand.num_nodes() == 0 || demand.num_nodes() <= rows().available(partition);
}

// Whether it does now, and what it takes.
[[gnu::always_inline]] inline bool Admitting::fits(AdmissionPlan& plan, std::int64_t slots,
                                                   const Applicant& applicant) const {
  plan.demand = use<Needs>().demand(plan.found, slots);
  const Pool::Partition& home = rows().home_of(applicant.partition);
  plan.never = plan.demand.num_held > home.capacity - applicant.held_back;
  plan.fits = !plan.never && has_nodes(plan.demand, applicant.partition) &&
              plan.demand.fits(home.available(), applicant.held_back);
  return plan.fits;
}

// The most that is found first; then what takes less: its end taken over instead of copied, less of
// it, nothing. Of these, what was due must be there, whether or not it fits. If none fits now, the
// plan is to wait for the most; with full attention alone, for whole blocks, because a copy uses
// its source as well.
void Admitting::choose(AdmissionPlan& plan, std::int64_t num_whole, std::int64_t slots,
                       const Applicant& applicant) const {
  const std::int64_t most = num_cached(plan.found);
  // Whole blocks of full attention alone take no more than fresh ones would for all tokens: they
  // are waited for, even if the slots asked for take fewer.
  const bool waits_for_whole = !has_groups();
  std::optional<AdmissionPlan> waits;
  bool any_due = false;
  const auto try_one = [&](const Found& candidate) {
    plan.found = candidate;
    if (fits(plan, slots, applicant)) return true;
    const bool is_most = !waits || num_cached(candidate) >= num_cached(waits->found);
    if (!plan.never && (waits_for_whole || is_most)) waits = plan;
    return false;
  };
  const auto fits_somehow = [&](Found candidate) {
    if (applicant.due_cached >= 0 && num_cached(candidate) != applicant.due_cached) return false;
    any_due = true;
    if (try_one(candidate)) return true;
    if (candidate.take_over || leaves_states(candidate)) return false;
    if (!use<Finding>().may_take_over(candidate)) return false;
    candidate.take_over = true;
    return try_one(candidate);
  };
  Found whole = plan.found;
  use<Finding>().cut(whole, num_whole, applicant.root);
  if (plan.found.partial >= 0 && fits_somehow(plan.found)) return;
  if (fits_somehow(whole)) return;
  Found nothing;
  nothing.node = applicant.root;
  nothing.num_loaded = applicant.num_loaded;
  if (!waits_for_whole && num_whole && fits_somehow(nothing)) return;
  if (!any_due) throw StaleMatch(start_of(applicant.due_cached), start_of(most));
  if (waits) plan = *waits;
}

AdmissionPlan Admitting::settled_admission(const Token* tokens, std::int64_t count,
                                           std::int64_t slots, const Applicant& applicant) {
  AdmissionPlan plan = plan_admission(tokens, count, slots, applicant);
  if (!plan.fits) [[unlikely]] {
    if (plan.never)
      use<Needs>().throw_never_fits(count, slots, applicant.partition, applicant.held_back,
                                    &plan.found);
    if (!has_nodes(plan.demand, applicant.partition))
      rows().check_available(plan.demand.num_nodes(), applicant.partition);
    throw OutOfBlocks(plan.demand.needed(), rows().home_of(applicant.partition).available(),
                      applicant.held_back);
  }
  if (const ReuseTracker* past = pool().past(applicant.partition); past && applicant.read_cache) {
    Found& found = plan.found;
    const std::int64_t limit = (applicant.looked_up(count) - 1) / config().block_size;
    found.ghosts = ghosts_room_.data();
    found.num_ghosts = rows().find_ghosts(*past, tokens, found.num_full, limit, found.node,
                                          applicant.extras, ghosts_room_.data());
  }
  return plan;
}

[[gnu::always_inline]] inline void Admitting::keep_found(Sequence& s,
                                                         const AdmissionPlan& plan) noexcept {
  const Found& found = plan.found;
  std::int32_t* t = rows().table(s);
  // Before anything is taken into use, which may drop a ghost.
  for (std::int64_t i = 0; i < found.num_ghosts; ++i)
    pool().past(s.partition)->resolve(found.ghosts[i]);
  pool().admitted(s.partition, {found.full, found.num_full});
  std::copy_n(found.full, found.num_full, t);
  pool().acquire_chain(t, found.num_full);
  if (has_groups()) [[unlikely]]
    keep_found_parts(s, found);
  NodeId parent = root_node(s.root);
  for (std::int64_t i = 0; found.strayed && i < found.num_full; ++i) {
    index().set_hint(parent, t[i]);
    parent = t[i];
  }
  if (found.partial < 0) return;
  pool().hit(found.partial);
  if (!found.take_over) pool().pin(found.partial);  // it may be the next victim
}

// An end that is taken over is cached no more, and what only it needed is forgotten. Others that
// resume with it may have found some of that, so all of them keep what they found before.
[[gnu::always_inline]] inline void Admitting::take_over_found(Sequence& s,
                                                              const Found& found) noexcept {
  if (!found.take_over) [[likely]]
    return;
  if (has_groups()) [[unlikely]]
    take_over_parts(s, found);
  if (found.partial < 0) return;
  pool().take_over(found.partial);
  rows().table(s)[found.num_full] = found.partial;
}

[[gnu::always_inline]] inline void Admitting::take_rest(Sequence& s, const Token* tokens,
                                                        const AdmissionPlan& plan) noexcept {
  const Found& found = plan.found;
  const std::int64_t num_blocks = plan.demand.num_blocks;
  std::int32_t* t = rows().table(s);
  std::int64_t i = found.num_full + (found.partial >= 0 && found.take_over);
  if (found.partial >= 0 && !found.take_over) {
    const NodeId fresh = pool().take(s.partition, i ? t[i - 1] : kNoNode);
    copies().plan(found.partial, fresh, found.num_partial);
    pool().unpin(found.partial);
    t[i++] = fresh;
  }
  pool().take_run(s.partition, i ? t[i - 1] : kNoNode, num_blocks - i, t + i);
  rows().show(rows().row_of(s), 0, num_blocks);
  s.num_blocks = static_cast<std::int32_t>(num_blocks);
  s.missing_slots = static_cast<std::int32_t>(plan.demand.missing_slots);
  s.num_chained = static_cast<std::int32_t>(found.num_full);
  s.num_computed = s.num_cached = num_cached(found);
  if (has_groups()) [[unlikely]] {
    take_first_parts(s, found);
    use<GroupEnds>().choose_stops(s, plan.num_shared);
    use<GroupTables>().show_groups(s, 0);
  }
  s.state = Sequence::kRunning;
  const std::int64_t from = found.num_full * config().block_size;
  rows().store_tokens(s, from, tokens + from, std::min(s.num_tokens, rows().token_room(s)) - from);
  rows().show_length(s);
  rows().note_computing(s);
}

// Everything found is kept before anything is taken.
void Admitting::occupy(Sequence& s, const Token* tokens, const AdmissionPlan& plan) noexcept {
  keep_found(s, plan);
  take_over_found(s, plan.found);
  take_rest(s, tokens, plan);
}

// Where the first forward begins behind a load, which brings no ring.
[[gnu::always_inline]] inline std::int64_t Admitting::first_behind_load(
    const Prompt& prompt) const {
  if (!prompt.num_loaded) [[likely]]
    return 0;
  const std::int64_t end = checked_loaded(prompt);
  if (end && groups()->replay())
    throw Error(ErrorKind::kValue,
                "num_loaded_tokens must be 0 with uncached windows, got " + std::to_string(end));
  return end - groups()->past_start(end);
}

// Inlined twice, so that a prompt without a session pays nothing for those that have one.
[[gnu::always_inline]] inline Handle Admitting::admit_of(
    const Prompt& prompt, const std::function<void(Handle)>& announce,
    SessionTable::Claim* session) {
  const std::uint16_t partition = rows().partition_of(prompt.name);
  const std::int64_t held_back = rows().watermark(partition, prompt.watermark_blocks);
  const std::int64_t slots =
      use<Needs>().checked_slots(prompt.num_tokens, prompt.num_slots, partition, held_back);
  if (rows().unused_rows.empty()) throw OutOfSequences(1, 0);

  RootReference root(index(), prompt.name);
  std::shared_ptr<ExtrasMap> extras;
  if (!prompt.extras.empty()) extras = std::make_shared<ExtrasMap>(index().extras(), prompt.extras);
  const AdmissionPlan plan = settled_admission(
      prompt.tokens, prompt.num_tokens, slots,
      {root.node(), extras ? &extras->ids() : nullptr, partition, held_back, prompt.read_cache,
       most_hit(prompt), due_hit(prompt), first_behind_load(prompt)});
  const std::int64_t room = plan.demand.num_blocks * config().block_size;
  std::vector<Token> waiting;
  if (room < prompt.num_tokens)
    waiting.assign(prompt.tokens + room, prompt.tokens + prompt.num_tokens);

  const std::int32_t index = rows().unused_rows.back();
  if (announce) announce(rows().handle_of(index));

  rows().unused_rows.pop_back();
  Sequence& s = rows().sequences[nth(index)];
  s.root = root.keep();
  s.partition = partition;
  s.extras = std::move(extras);
  s.waiting.swap(waiting);
  s.num_tokens = prompt.num_tokens;
  const Found& found = plan.found;
  if (ReuseTracker* past = pool().past(partition); past && prompt.read_cache)
    past->count(found.full, found.num_full, found.ghosts, found.num_ghosts, s.num_tokens);
  if (session) [[unlikely]]
    use<Sessions>().begin(s, *session, found);
  occupy(s, prompt.tokens, plan);
  if (prompt.read_cache) {
    rows().counters.query_tokens += s.num_tokens;
    const std::int64_t hit = start_of(s.num_cached);
    rows().counters.hit_tokens += hit;
    rows().counters.partial_hit_tokens += std::min<std::int64_t>(found.num_partial, hit);
    rows().recent_hits.count(s.num_tokens, hit);
  }
  return rows().handle_of(index);
}

Handle Admitting::admit(const Prompt& prompt, const std::function<void(Handle)>& announce) {
  Call call(rows());
  if (prompt.session.empty()) [[likely]]
    return admit_of(prompt, announce, nullptr);
  const RootReference root(index(), prompt.name);
  SessionTable::Claim session =
      use<Sessions>().claim(rows().partition_of(prompt.name), root.root(), prompt.session);
  return admit_of(prompt, announce, &session);
}

Sequence& Admitting::preempted(Handle handle) {
  Sequence& s = rows().live(handle);
  if (s.state != Sequence::kPreempted)
    throw Error(ErrorKind::kSequenceState,
                "sequence " + std::to_string(handle) + " is running; only a preempted one resumes");
  return s;
}

// What grew past the watermark must be able to come back to an empty pool.
std::int64_t Admitting::held_back_from(int partition, std::int64_t most) const {
  return std::clamp<std::int64_t>(rows().home_of(partition).capacity - most, 0,
                                  rows().watermark(partition));
}

void Admitting::settle_resumed(Sequence& s, bool read_cache) noexcept {
  if (rows().token_room(s) < s.num_tokens) {
    s.waiting_start = static_cast<std::uint32_t>(rows().token_room(s));
  } else {
    std::vector<Token>().swap(s.waiting);
    s.waiting_start = 0;
  }
  if (!read_cache) return;
  rows().counters.resumed_query_tokens += s.num_tokens;
  rows().counters.resumed_hit_tokens += start_of(s.num_cached);
}

void Admitting::begin_resumed(Sequence& s, const AdmissionPlan& plan) noexcept {
  keep_found(s, plan);
}

void Admitting::take_over_resumed(Sequence& s, const AdmissionPlan& plan) noexcept {
  take_over_found(s, plan.found);
}

void Admitting::end_resumed(Sequence& s, const AdmissionPlan& plan) noexcept {
  take_rest(s, s.waiting.data(), plan);
}

void Admitting::resume(Handle handle, std::int64_t num_slots_wanted, bool read_cache) {
  Call call(rows());
  Sequence& s = preempted(handle);
  const std::int64_t slots =
      use<Needs>().checked_slots(s.num_tokens, num_slots_wanted, s.partition, 0);
  std::int64_t held_back = rows().watermark(s.partition);
  if (held_back)
    held_back =
        held_back_from(s.partition, std::max(use<Needs>().demand(Found(), slots).num_held,
                                             use<Needs>().later_blocks(s.num_tokens, slots)));
  const AdmissionPlan plan =
      settled_admission(s.waiting.data(), s.num_tokens, slots,
                        {root_node(s.root), s.extras_ids(), s.partition, held_back, read_cache});
  if (s.session) [[unlikely]]
    use<Sessions>().take_path_back(s);
  occupy(s, s.waiting.data(), plan);
  settle_resumed(s, read_cache);
}

// The plan that admission would make for this prompt, with nothing acquired for it: its namespace
// and extra keys may be unknown.
AdmissionPlan Admitting::plan_prompt(const Prompt& prompt, int partition, std::int64_t held_back) {
  const std::uint32_t root = index().find_root(prompt.name);
  ExtrasIds extras;
  if (!prompt.extras.empty()) extras = known_extras(index().extras(), prompt.extras);
  const NodeId node = root == kUnknownId ? kNoNode : root_node(root);
  const Applicant applicant{node,
                            &extras,
                            partition,
                            held_back,
                            prompt.read_cache,
                            most_hit(prompt),
                            due_hit(prompt),
                            first_behind_load(prompt)};
  const std::int64_t slots = prompt.num_slots ? prompt.num_slots : prompt.num_tokens;
  return plan_admission(prompt.tokens, prompt.num_tokens, slots, applicant);
}

MatchResult Admitting::match(const Prompt& prompt) {
  Call call(rows());
  MatchResult result;
  const std::uint16_t partition = rows().partition_of(prompt.name);
  std::int64_t held_back = rows().watermark(partition, prompt.watermark_blocks);
  // What can never be admitted finds whatever there is.
  const auto anything = [&] {
    const std::int64_t most = rows().blocks_for(std::max(prompt.num_tokens, prompt.num_slots));
    return -config().num_blocks - use<GroupTables>().blocks_of_units(most) - num_singles();
  };
  if (use<Needs>().never_fits(prompt.num_tokens, prompt.num_slots, partition, held_back))
      [[unlikely]]
    held_back = anything();
  AdmissionPlan plan = plan_prompt(prompt, partition, held_back);
  if (plan.never) [[unlikely]]
    plan = plan_prompt(prompt, partition, anything());
  const Found& found = plan.found;
  result.num_partial = found.num_partial;
  result.num_cached = start_of(num_cached(found));
  result.num_replayed = num_cached(found) - result.num_cached;
  result.num_shared = plan.num_shared;
  const Demand& demand = plan.demand;
  result.num_idle = demand.needed() - own_blocks(demand.num_blocks - found.num_full);
  result.num_computing = use<Finding>().num_computing(prompt, found);
  if (num_states()) [[unlikely]]
    result.stops = use<Needs>().stops_of(prompt.num_tokens, result.num_cached, plan.num_shared,
                                         use<Needs>().prompt_end_of(prompt.num_tokens));
  result.blocks.resize(nth(found.num_full));
  if (!pool().is_bare()) [[likely]]
    nodes().name_all(found.full, found.num_full, result.blocks.data());
  for (std::size_t i = 0; pool().is_bare() && i < result.blocks.size(); ++i)
    result.blocks[i] = rows().name(found.full[i]);
  return result;
}

Admission Admitting::can_admit(const Prompt& prompt) {
  Call call(rows());
  const std::int64_t slots = prompt.num_slots ? prompt.num_slots : prompt.num_tokens;
  const std::uint16_t partition = rows().partition_of(prompt.name);
  const std::int64_t held_back = rows().watermark(partition, prompt.watermark_blocks);
  if (use<Needs>().never_fits(prompt.num_tokens, slots, partition, held_back))
    return Admission::kNever;
  if (rows().unused_rows.empty()) return Admission::kLater;
  const AdmissionPlan plan = plan_prompt(prompt, partition, held_back);
  return plan.fits ? Admission::kNow : plan.never ? Admission::kNever : Admission::kLater;
}

NodeId Admitting::source_of(int g, const Found& found) const {
  const NodeId end = last_node(found);
  if (groups()->group(g).recurrent()) return resumes(found) ? groups()->part(g, end) : kNoNode;
  if (!groups()->group(g).is_cached()) return kNoNode;
  const bool reads = found.partial >= 0 && groups()->reads(g, first_query(found), found.num_full);
  return reads ? groups()->part(g, end) : kNoNode;
}

// The boundary from which a prompt continues that finds so much. With a margin, this is behind what
// it finds: the windows there are kept for it. kNoNode: none.
NodeId Admitting::continued_boundary(const Found& found) const {
  const std::int64_t cached = num_cached(found);
  if (cached && groups()->margin()) {
    std::int64_t units = block_size().whole(use<Needs>().end_behind(cached));
    for (units = std::min(units, found.num_lead); units * config().block_size > cached; --units)
      if (groups()->is_boundary(found.full[units - 1])) return found.full[units - 1];
  }
  const NodeId end = last_node(found);
  return end >= 0 && groups()->length(end) == cached ? end : kNoNode;
}

// In all further groups: the windows that it finds, and what it is to copy or to take over.
void Admitting::keep_found_parts(Sequence& s, const Found& found) noexcept {
  GroupRow& row = rows().group_row(s);
  const NodeId* t = rows().table(s);
  if (const NodeId n = continued_boundary(found); n >= 0) groups()->continue_from(n);
  for (int g = 0; g < groups()->num_groups(); ++g) {
    row.sources[nth(g)] = source_of(g, found);
    if (!groups()->group(g).is_attention()) continue;
    row.first[nth(g)] = static_cast<std::int32_t>(groups()->first_unit(g, first_query(found)));
    for (std::int64_t unit = row.first[nth(g)]; unit < found.num_full; ++unit)
      pool().acquire_part(groups()->part(g, t[unit]));
  }
  if (found.partial >= 0) index().bring_forward(found.partial);
  row.each_source([&](int, NodeId m) { found.take_over ? pool().acquire(m) : pool().pin(m); });
}

void Admitting::take_over_parts(const Sequence& s, const Found& found) noexcept {
  GroupRow& row = rows().group_row(s);
  const NodeId end = last_node(found);
  if (found.partial < 0) groups()->end_boundary(end);
  row.each_source([&](int g, NodeId m) {
    if (!groups()->group(g).recurrent()) return;
    groups()->unkeep(m);
    if (groups()->part(g, end) == m) groups()->clear_part(g, end);
    row.states[nth(g)] = m;
  });
}

// In all further groups: parts of its fresh blocks, and copies of what it does not take over.
void Admitting::take_first_parts(Sequence& s, const Found& found) noexcept {
  GroupRow& row = rows().group_row(s);
  const NodeId* t = rows().table(s);
  const bool copies_partial = found.partial >= 0 && !found.take_over;
  const std::int64_t known = found.num_full + (found.partial >= 0);  // units that are not new
  const std::int64_t fresh = known - copies_partial;
  groups()->clear_parts(t + fresh, s.num_blocks - fresh);
  for (int g = 0; g < groups()->num_groups(); ++g) {
    const NodeId source = row.sources[nth(g)];
    if (groups()->group(g).recurrent()) {
      if (found.take_over) continue;
      const NodeId state = use<GroupTables>().take_of(g, s.partition, kNoNode);
      row.states[nth(g)] = state;
      if (source >= 0) copies().plan(source, state, config().block_size);
      continue;
    }
    if (!groups()->group(g).is_cached()) continue;
    const std::int64_t first = row.first[nth(g)];
    const std::int64_t until = use<Slices>().units_of(g, rows().num_slots(s));
    NodeId before = found.num_full > first ? groups()->part(g, t[found.num_full - 1]) : kNoNode;
    if (found.partial >= 0 && first < known && (source < 0 || copies_partial)) {
      before =
          use<GroupTables>().take_part_run(s, g, found.num_full, std::min(known, until), before);
      if (source >= 0) copies().plan(source, before, found.num_partial);
    }
    use<GroupTables>().take_part_run(s, g, std::max(first, known), until, before);
  }
  use<GroupTables>().take_others(row, s.partition);
  if (!found.take_over) row.each_source([&](int, NodeId m) { pool().unpin(m); });
  use<GroupTables>().take_rings(s, groups()->start_of(first_query(found)));
  if (!replayed().empty()) [[unlikely]]
    use<GroupTables>().begin_replay(s);
  s.loads = found.num_loaded > num_cached(found);
  row.num_loaded = found.num_loaded;
  row.moves = 0;
}

}  // namespace blockmgr
