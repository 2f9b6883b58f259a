// Finding what of a prompt is cached, and giving a sequence its first blocks.
#include <algorithm>

#include "sequences/sequences.h"

namespace blockmgr {

namespace {

int common_prefix(const Token* a, const Token* b, int limit) {
  int n = 0;
  while (n < limit && a[n] == b[n]) ++n;
  return n;
}

}  // namespace

// The leading whole blocks of a prompt that are cached.
void Sequences::find_prefix(const Token* tokens, std::int64_t count, NodeId root,
                            const ExtrasIds* extras, Found& found) {
  found.node = root;
  if (!digester_) return;
  // The last token is always left to compute; and no chain is longer than the row it came from.
  const std::int64_t limit =
      std::min<std::int64_t>((count - 1) / config_.block_size, config_.row_width);
  const Chain chain = index_.find_chain(tokens, limit, root, extras, found_room_.data());
  found.full = found_room_.data();
  found.num_full = chain.num_blocks;
  found.num_unused = pool_.count_available(found.full, found.num_full);
  found.node = chain.node;
  found.strayed = chain.strayed;
}

// The child of the last matched node that begins like the tokens after it, the longest first.
void Sequences::find_partial(const Token* tokens, std::int64_t count, const ExtrasIds* extras,
                             Found& found) const {
  if (!config_.min_partial_tokens || !digester_) return;
  const std::int64_t start = found.num_full * config_.block_size;
  const auto limit =
      static_cast<int>(std::min<std::int64_t>(count - 1 - start, config_.block_size));
  if (limit < config_.min_partial_tokens) return;
  const std::uint32_t keys = extras_at(extras, found.num_full);
  int best = config_.min_partial_tokens - 1;
  NodeId child = index_.first_child(found.node);
  for (int seen = 0; child >= 0 && seen < kMostChildren; ++seen) {
    const Node& record = nodes_[child];
    if (record.extras == keys) {
      // The copy runs before this step's forward.
      const int n = common_prefix(nodes_.tokens(child), tokens + start,
                                  std::min(limit, record.key_tokens - record.unwritten));
      if (n > best) {
        best = n;
        found.partial = child;
        found.num_partial = n;
        // What does not match would be lost to others, so a tail is taken over whole or copied.
        found.take_over =
            n == record.key_tokens && n < config_.block_size && pool_.counts_as_available(child);
      }
    }
    child = record.next_sibling;
  }
}

inline bool Sequences::never_fits(std::int64_t num_tokens, std::int64_t slots, int partition,
                           std::int64_t watermark) const {
  std::int64_t blocks = blocks_for(std::max(num_tokens, slots));
  if (blocks > config_.row_width) return true;
  if (groups_) [[unlikely]]
    blocks = later_blocks(num_tokens, slots ? slots : num_tokens);
  return blocks > pool_.partition(partition).capacity - watermark;
}

void Sequences::throw_never_fits(std::int64_t num_tokens, std::int64_t slots, int partition,
                                 std::int64_t held_back, const Found* found) const {
  if (held_back < 0) held_back = watermark(partition);
  const std::int64_t most = std::max(num_tokens, slots);
  const std::int64_t capacity = pool_.partition(partition).capacity;
  const char* whose = partitions_.empty() ? "the pool has "
                      : partition         ? "the quota of its namespace is "
                                          : "the quotas leave other namespaces ";
  std::string message;
  if (groups_ && blocks_for(most) <= longest(partition)) {
    message = never_in_groups(num_tokens, slots ? slots : num_tokens, found ? *found : Found(),
                              capacity - held_back) +
              "; ";
  } else {
    message = "slots for " + std::to_string(most) + " tokens take " +
              std::to_string(blocks_for(most)) + " blocks; a block table row holds " +
              std::to_string(config_.row_width) + " and ";
  }
  message += whose + std::to_string(capacity);
  if (held_back)
    message +=
        ", " + std::to_string(held_back) + " of them held back from admission by the watermark";
  throw Error(ErrorKind::kNeverFits, message);
}

std::int64_t Sequences::checked_slots(std::int64_t num_tokens, std::int64_t num_slots,
                                      int partition, std::int64_t watermark) const {
  const std::int64_t slots = num_slots ? num_slots : num_tokens;
  if (never_fits(num_tokens, slots, partition, watermark))
    throw_never_fits(num_tokens, slots, partition, watermark);
  return slots;
}

bool Sequences::can_fit(std::int64_t num_tokens, const Prompt& prompt) const {
  const std::uint16_t partition = partition_of(prompt.name);
  return !never_fits(num_tokens, prompt.num_slots, partition,
                     watermark(partition, prompt.watermark_blocks));
}

void Sequences::check_admission(std::int64_t num_tokens, const Prompt& prompt) const {
  const std::uint16_t partition = partition_of(prompt.name);
  checked_slots(num_tokens, prompt.num_slots, partition,
                watermark(partition, prompt.watermark_blocks));
}

void Sequences::check_lookup(std::int64_t num_tokens, std::string_view name) const {
  if (blocks_for(num_tokens) > config_.row_width)
    throw_never_fits(num_tokens, 0, partition_of(name));
}

// Tokens of the leading blocks found that are in memory before this step's forward.
std::int64_t Sequences::written_of(const Found& found) const {
  const std::int64_t size = config_.block_size;
  for (std::int64_t i = 0; !unwritten_.empty() && i < found.num_full; ++i)
    if (const int rest = nodes_[found.full[i]].unwritten) return (i + 1) * size - rest;
  return num_cached(found);
}

// All counting happens here, before any change.
Sequences::AdmissionPlan Sequences::plan_admission(const Token* tokens, std::int64_t count,
                                                   std::int64_t slots, const Applicant& applicant) {
  AdmissionPlan plan;
  if (groups_) [[unlikely]] {
    plan_grouped(tokens, count, slots, applicant, plan);
    return plan;
  }
  Found& found = plan.found;
  if (applicant.read_cache && applicant.root != kNoNode) {
    const std::int64_t looked_up = applicant.looked_up(count);
    find_prefix(tokens, looked_up, applicant.root, applicant.extras, found);
    if (blocks_for(std::max(slots, applicant.due_cached)) > found.num_full)
      find_partial(tokens, looked_up, applicant.extras, found);
  }
  const std::int64_t left = available(applicant.partition);
  plan.demand = demand(found, slots);
  plan.fits = plan.demand.fits(left, applicant.held_back);
  if (found.partial >= 0 && applicant.due_cached < 0 && !plan.fits) {
    // A copy holds its source as well; without it the prompt may still fit.
    found.partial = kNoNode;
    found.num_partial = 0;
    found.take_over = false;
    plan.demand = demand(found, slots);
    plan.fits = plan.demand.fits(left, applicant.held_back);
  }
  if (applicant.due_cached >= 0 && num_cached(found) != applicant.due_cached) [[unlikely]]
    throw StaleMatch(applicant.due_cached, num_cached(found));
  return plan;
}

Sequences::AdmissionPlan Sequences::settled_admission(const Token* tokens, std::int64_t count,
                                                      std::int64_t slots,
                                                      const Applicant& applicant) {
  AdmissionPlan plan = plan_admission(tokens, count, slots, applicant);
  if (!plan.fits) [[unlikely]] {
    if (plan.never)
      throw_never_fits(count, slots, applicant.partition, applicant.held_back, &plan.found);
    throw OutOfBlocks(plan.demand.needed(), available(applicant.partition), applicant.held_back);
  }
  if (const ReuseTracker* past = pool_.past(applicant.partition); past && applicant.read_cache) {
    Found& found = plan.found;
    const std::int64_t limit = (applicant.looked_up(count) - 1) / config_.block_size;
    found.ghosts = ghosts_room_.data();
    found.num_ghosts = find_ghosts(*past, tokens, found.num_full, limit, found.node,
                                   applicant.extras, ghosts_room_.data());
  }
  return plan;
}

void Sequences::store_tokens(Sequence& s, std::int64_t from, const Token* tokens,
                             std::int64_t count) noexcept {
  const BlockSize size = size_;
  const std::int64_t first = size.whole(from);
  const std::int32_t* t = table(s) + first;
  std::int64_t offset = from - first * size;
  while (count > 0) {
    // The tokens of neighbours lie side by side.
    const std::int64_t blocks = size.whole(offset + count + size - 1);
    const std::int64_t run = count_neighbours(t, blocks);
    const std::int64_t n = std::min(count, run * size - offset);
    std::copy_n(tokens, n, nodes_.tokens(*t) + offset);
    t += run;
    tokens += n;
    count -= n;
    offset = 0;
  }
}

void Sequences::occupy(Sequence& s, const Token* tokens, const AdmissionPlan& plan) noexcept {
  const Found& found = plan.found;
  const std::int64_t num_blocks = plan.demand.num_blocks;
  if (groups_) [[unlikely]] {
    occupy_grouped(s, plan);
    return settle_occupied(s, tokens, plan);
  }
  std::int32_t* t = table(s);
  // Before anything is taken into use, which may drop a ghost.
  for (std::int64_t i = 0; i < found.num_ghosts; ++i)
    pool_.past(s.partition)->resolve(found.ghosts[i]);
  pool_.admitted(s.partition, {found.full, found.num_full});
  std::copy_n(found.full, found.num_full, t);
  pool_.acquire_chain(t, found.num_full);
  NodeId parent = root_node(s.root);
  for (std::int64_t i = 0; found.strayed && i < found.num_full; ++i) {
    index_.set_hint(parent, t[i]);
    parent = t[i];
  }
  std::int64_t i = found.num_full;
  if (found.partial >= 0) pool_.hit(found.partial);
  if (found.partial >= 0 && found.take_over) {
    pool_.take_over(found.partial);
    t[i++] = found.partial;
  } else if (found.partial >= 0) {
    pool_.pin(found.partial);  // before anything is taken: it may be the next victim
    const NodeId fresh = pool_.take(s.partition, i ? t[i - 1] : kNoNode);
    copies_.plan(found.partial, fresh, found.num_partial);
    pool_.unpin(found.partial);
    t[i++] = fresh;
  }
  pool_.take_run(s.partition, i ? t[i - 1] : kNoNode, num_blocks - i, t + i);
  settle_occupied(s, tokens, plan);
}

// What holds of a sequence that has its first blocks.
inline void Sequences::settle_occupied(Sequence& s, const Token* tokens,
                                       const AdmissionPlan& plan) noexcept {
  const Found& found = plan.found;
  const std::int64_t num_blocks = plan.demand.num_blocks;
  const std::int64_t size = config_.block_size;
  show(row_of(s), 0, num_blocks);
  s.num_blocks = static_cast<std::int32_t>(num_blocks);
  s.num_chained = static_cast<std::int32_t>(found.num_full);
  s.num_computed = s.num_cached = num_cached(found);
  if (config_.early_commit) {
    s.early_step = step_;
    s.num_settled = s.num_computed;
    s.num_written = written_of(found);
  }
  if (groups_) [[unlikely]] {
    choose_stops(s, plan.num_shared);
    show_groups(s, 0);
  }
  s.state = Sequence::kRunning;
  const std::int64_t from = found.num_full * size;
  store_tokens(s, from, tokens + from, std::min(s.num_tokens, num_slots(s)) - from);
  show_length(s);
  note_computing(s);
}

Handle Sequences::admit(const Prompt& prompt, const std::function<void(Handle)>& announce) {
  Call call(*this);
  const std::uint16_t partition = partition_of(prompt.name);
  const std::int64_t held_back = watermark(partition, prompt.watermark_blocks);
  const std::int64_t slots =
      checked_slots(prompt.num_tokens, prompt.num_slots, partition, held_back);
  if (unused_rows_.empty()) throw OutOfSequences(1, 0);

  RootReference root(index_, prompt.name);
  std::shared_ptr<ExtrasMap> extras;
  if (!prompt.extras.empty()) extras = std::make_shared<ExtrasMap>(index_.extras(), prompt.extras);
  const AdmissionPlan plan = settled_admission(
      prompt.tokens, prompt.num_tokens, slots,
      {root.node(), extras ? &extras->ids() : nullptr, partition, held_back, prompt.read_cache,
       prompt.most_cached, prompt.due_cached});
  const std::int64_t has_slots = plan.demand.num_blocks * config_.block_size;
  std::vector<Token> waiting;
  if (has_slots < prompt.num_tokens)
    waiting.assign(prompt.tokens + has_slots, prompt.tokens + prompt.num_tokens);

  const std::int32_t index = unused_rows_.back();
  if (announce) announce(handle_of(index));

  unused_rows_.pop_back();
  Sequence& s = sequences_[static_cast<std::size_t>(index)];
  s.root = root.keep();
  s.partition = partition;
  s.extras = std::move(extras);
  s.waiting.swap(waiting);
  s.num_tokens = prompt.num_tokens;
  const Found& found = plan.found;
  if (ReuseTracker* past = pool_.past(partition); past && prompt.read_cache)
    past->count(found.full, found.num_full, found.ghosts, found.num_ghosts, s.num_tokens);
  occupy(s, prompt.tokens, plan);
  if (prompt.read_cache) {
    counters_.query_tokens += s.num_tokens;
    counters_.hit_tokens += s.num_cached;
    counters_.partial_hit_tokens += found.num_partial;
    recent_hits_.count(s.num_tokens, s.num_cached);
  }
  return handle_of(index);
}

void Sequences::resume(Handle handle, std::int64_t num_slots_wanted, bool read_cache) {
  Call call(*this);
  Sequence& s = live(handle);
  if (s.state != Sequence::kPreempted)
    throw Error(ErrorKind::kSequenceState,
                "sequence " + std::to_string(handle) + " is running; only a preempted one resumes");
  const std::int64_t slots = checked_slots(s.num_tokens, num_slots_wanted, s.partition, 0);
  std::int64_t held_back = watermark(s.partition);
  if (held_back) {
    // A sequence that grew past the watermark must be able to come back to an empty pool.
    const std::int64_t all =
        groups_ ? std::max(first_blocks(Found(), slots), later_blocks(s.num_tokens, slots))
                : blocks_for(std::max(s.num_tokens, slots));
    held_back = std::clamp<std::int64_t>(pool_.partition(s.partition).capacity - all, 0, held_back);
  }
  const AdmissionPlan plan =
      settled_admission(s.waiting.data(), s.num_tokens, slots,
                        {root_node(s.root), s.extras_ids(), s.partition, held_back, read_cache});
  occupy(s, s.waiting.data(), plan);
  if (num_slots(s) < s.num_tokens) {
    s.waiting_start = static_cast<std::size_t>(num_slots(s));
  } else {
    std::vector<Token>().swap(s.waiting);
  }
  if (!read_cache) return;
  counters_.resumed_query_tokens += s.num_tokens;
  counters_.resumed_hit_tokens += s.num_cached;
}

// The plan that admission would make for this prompt, with nothing acquired for it: its namespace
// and extra keys may be unknown.
Sequences::AdmissionPlan Sequences::plan_prompt(const Prompt& prompt, int partition,
                                                std::int64_t held_back) {
  const std::uint32_t root = index_.find_root(prompt.name);
  const ExtrasIds extras = known_extras(index_.extras(), prompt.extras);
  const NodeId node = root == kUnknownId ? kNoNode : root_node(root);
  const Applicant applicant{node, &extras, partition, held_back, prompt.read_cache,
                            prompt.most_cached, prompt.due_cached};
  const std::int64_t slots = prompt.num_slots ? prompt.num_slots : prompt.num_tokens;
  return plan_admission(prompt.tokens, prompt.num_tokens, slots, applicant);
}

MatchResult Sequences::match(const Prompt& prompt) {
  Call call(*this);
  MatchResult result;
  const std::uint16_t partition = partition_of(prompt.name);
  std::int64_t held_back = watermark(partition, prompt.watermark_blocks);
  // What can never be admitted finds whatever there is.
  const auto anything = [&] {
    const std::int64_t most = blocks_for(std::max(prompt.num_tokens, prompt.num_slots));
    return -config_.num_blocks - (groups_ ? grouped_need(most) + num_states_ : most);
  };
  if (never_fits(prompt.num_tokens, prompt.num_slots, partition, held_back)) [[unlikely]]
    held_back = anything();
  AdmissionPlan plan = plan_prompt(prompt, partition, held_back);
  if (plan.never) [[unlikely]]
    plan = plan_prompt(prompt, partition, anything());
  const Found& found = plan.found;
  result.num_partial = found.num_partial;
  result.num_cached = num_cached(found);
  const Demand& demand = plan.demand;
  result.num_idle = demand.needed() - (demand.num_blocks - found.num_full);
  result.num_computing = num_computing(prompt, found);
  if (num_states_) [[unlikely]]
    result.stops = stops_of(prompt.num_tokens, result.num_cached, plan.num_shared,
                            prompt_end_of(prompt.num_tokens));
  result.blocks.resize(static_cast<std::size_t>(found.num_full));
  nodes_.name_all(found.full, found.num_full, result.blocks.data());
  return result;
}

Admission Sequences::can_admit(const Prompt& prompt) {
  Call call(*this);
  const std::int64_t slots = prompt.num_slots ? prompt.num_slots : prompt.num_tokens;
  const std::uint16_t partition = partition_of(prompt.name);
  const std::int64_t held_back = watermark(partition, prompt.watermark_blocks);
  if (never_fits(prompt.num_tokens, slots, partition, held_back)) return Admission::kNever;
  if (unused_rows_.empty()) return Admission::kLater;
  const AdmissionPlan plan = plan_prompt(prompt, partition, held_back);
  return plan.fits ? Admission::kNow : plan.never ? Admission::kNever : Admission::kLater;
}

// Whether a child already begins with these tokens.
bool Sequences::is_covered(const Key& key, int num_tokens) const {
  NodeId child = index_.first_child(key.parent);
  for (int seen = 0; child >= 0 && seen < kMostChildren; ++seen) {
    const Node& record = nodes_[child];
    if (record.extras == key.extras && record.key_tokens >= num_tokens &&
        same_tokens(nodes_.tokens(child), key.tokens, num_tokens))
      return true;
    child = record.next_sibling;
  }
  return false;
}

// Drops the tails that are a mere beginning of what is about to be cached beside them.
void Sequences::supersede_tails(const Key& key, int num_tokens) noexcept {
  NodeId child = index_.first_child(key.parent);
  for (int seen = 0; child >= 0 && seen < kMostChildren; ++seen) {
    const Node& record = nodes_[child];
    const NodeId after = record.next_sibling;
    if (record.key_tokens < num_tokens && record.extras == key.extras &&
        same_tokens(nodes_.tokens(child), key.tokens, record.key_tokens))
      pool_.forget(child);
    child = after;
  }
}

void Sequences::cache_tail(Sequence& s) noexcept {
  if (!config_.min_partial_tokens || !digester_ || s.state != Sequence::kRunning || s.outdated)
    return;
  const std::int64_t logical = s.num_computed / config_.block_size;
  const auto num_tokens = static_cast<int>(s.num_computed % config_.block_size);
  if (num_tokens < config_.min_partial_tokens || s.num_chained != logical) return;
  const NodeId b = table(s)[logical];
  const Node& record = nodes_[b];
  if (nodes_.uses(b).ref_count != 1 || record.keyed() || record.copy_source != kNoNode ||
      record.in_flight)
    return;
  const Key key{chain_node(s, logical), extras_at(s.extras_ids(), logical), nodes_.tokens(b)};
  if (is_covered(key, num_tokens)) return;
  supersede_tails(key, num_tokens);
  pool_.drop_twin(b);  // a truncated twin, as a tail of its own from here on
  pool_.promote_tail(b, key, num_tokens);
  pool_.tell_cached({&b, 1});
  ++counters_.cached_tails;
}

}  // namespace blockmgr
