#include <algorithm>
#include <cstring>

#include "sequences/arguments.h"
#include "sequences/sequences.h"

namespace blockmgr {

namespace {

// The remap log is a convenience for engines that keep tables of their own; one that never reads
// it must not make it grow.
std::size_t remap_limit(const Config& config) {
  return nth(std::clamp(config.num_blocks / 32, 256, 16384));
}

// One copy for the rare paths: inline, it would slow down the others.
[[gnu::noinline]] NodeId find_or_digest(PrefixIndex& index, const Key& key, std::uint8_t* out) {
  return index.find_or_digest(key, index.digest_of(key.parent), out);
}

}  // namespace

Committing::Committing() : max_remaps_(remap_limit(config())) {
  if (config().remap) remaps_.reserve(max_remaps_);
}

bool Committing::commits_units(const Sequence& s) const {
  return digester() && !s.outdated && block_size().whole(s.num_tokens) > s.num_chained;
}

// Blocks that are full and computed, up to one whose content still waits for a copy.
std::int64_t Committing::promotable(const Sequence& s, std::int64_t num_computed) const {
  const std::int64_t end = num_computed / config().block_size;
  const std::int32_t* t = rows().table(s);
  for (std::int64_t i = s.num_chained; i < end; ++i)
    if (nodes()[t[i]].copy_source != kNoNode || nodes()[t[i]].in_flight) return i;
  return end;
}

// The cached block with this key, whose digest stays in the plan if it had to be computed in vain.
inline NodeId Committing::find_on_demand(const Key& key, std::int64_t logical, Promotion& promotion,
                                         std::uint8_t* digest) {
  if (key.parent == kNoNode) return kNoNode;
  if (!index().is_crowded(key.parent)) return index().find_continuing(key, nullptr);
  const NodeId found = find_or_digest(index(), key, digest);
  if (found < 0) promotion.digested = logical;
  return found;
}

// Computes the digests of the blocks to promote, unless these are made on demand. Hashing may fail,
// so it all happens before anything is promoted; and it is the costly part, so a hinted child with
// the same tokens lends its digest. written_now: leading tokens that are in memory before this
// step's forward. Returns how many blocks fewer may be available afterwards.
std::int64_t Committing::plan_promotion(Sequence& s, std::int64_t num_computed,
                                        std::int64_t written_now, PromotionPlan& plan) {
  if (!digester() || s.outdated) return 0;
  const std::int64_t until = promotable(s, num_computed);
  if (until <= s.num_chained) return 0;
  const bool on_demand = index().digests_on_demand();
  const auto digest_size = nth(nodes().digest_size);
  const std::size_t offset = plan.digests.size();
  // As much room on demand, so that memory does not depend on who reads digests.
  plan.digests.resize(offset + nth(until - s.num_chained) * digest_size);
  plan.promotions.push_back({&s, rows().row_of(s), until, offset, on_demand ? -1 : s.num_chained});

  const std::int32_t* t = rows().table(s);
  NodeId node = rows().chain_node(s, s.num_chained);  // kNoNode once the chain is not cached yet
  const std::uint8_t* before = on_demand ? nullptr : index().digest_of(node);
  std::uint8_t* out = plan.digests.data() + offset;
  std::int64_t lost = 0;
  for (std::int64_t i = s.num_chained; i < until; ++i) {
    const Key key{node, extras_at(s.extras_ids(), i), nodes().tokens(t[i])};
    const bool cached_here = nodes()[t[i]].keyed();
    if (on_demand) {
      if (node == kNoNode && !s.extras_ids()) break;  // nothing is cached from here on
      if (key.extras) index().make_room_for(key.extras);
      node = cached_here ? t[i] : find_on_demand(key, i, plan.promotions.back(), out);
    } else {
      if (cached_here) {
        std::memcpy(out, nodes().digest(t[i]), digest_size);
        node = t[i];
      } else {
        node = index().find_or_digest(key, before, out);
      }
      before = out;
      out += digest_size;
    }
    if (node < 0 || node == t[i]) continue;  // nothing to merge with
    // A block whose K/V is in memory is not replaced by one that this step's forward has yet to
    // write: in this step the sequence could not be copied from any more. A later commit merges
    // them.
    if (is_kept_apart(s, i, node, (i + 1) * config().block_size <= written_now)) {
      plan.promotions.back().until = i;
      break;
    }
    if (plan.counts_taken && config().remap) [[unlikely]]
      lost += num_lost(s, i, node, plan);
  }
  return lost;
}

// Whether a block is not merged with a cached one now: see plan_promotion, and must_stay.
bool Committing::is_kept_apart(const Sequence& s, std::int64_t logical, NodeId cached,
                               bool is_written) const {
  return (is_written && use<GroupTables>().most_unwritten(cached)) ||
         (config().remap && use<GroupTables>().must_stay(s, logical, cached));
}

// With several groups: counts the blocks that a sequence leaves for cached ones, and that a copy to
// come, a caller or another sequence keeps, if the cached ones are available, or are to be once
// another of the batch has dropped them. All sharers may be of the batch; then more is counted than
// is taken.
std::int64_t Committing::num_lost(const Sequence& s, std::int64_t logical, NodeId cached,
                                  PromotionPlan& plan) const {
  const std::vector<NodeId>& dropped = plan.dropped;
  std::int64_t lost = 0;
  const auto count = [&](NodeId left, NodeId there) {
    const Uses& uses = nodes().uses(left);
    if (uses.ref_count + uses.pins == 1) return false;
    const bool taken = pool().counts_as_available(there) ||
                       std::find(dropped.begin(), dropped.end(), there) != dropped.end();
    const bool is_lost = taken && plan.taken.add(there) == 1;
    lost += is_lost;
    return is_lost;
  };
  plan.lost_nodes += count(rows().table(s)[logical], cached) && pool().is_bare();
  use<GroupTables>().each_part(s, logical, [&](int g, NodeId part) {
    if (const NodeId there = groups()->part(g, cached); there >= 0) count(part, there);
  });
  return lost;
}

void Committing::promote_all(const PromotionPlan& plan) noexcept {
  for (const Promotion& promotion : plan.promotions)
    promote(promotion, plan.digests.data() + promotion.digest_offset);
}

void Committing::promote(const Promotion& promotion, const std::uint8_t* next) noexcept {
  Sequence& s = *promotion.sequence;
  EventLog* const log = s.session ? index().log() : nullptr;
  if (log) [[unlikely]]
    log->set_session(rows().session_name(s));
  const auto digest_size = nth(nodes().digest_size);
  const bool on_demand = index().digests_on_demand();
  const std::int32_t* t = rows().table(s);
  NodeId node = rows().chain_node(s, s.num_chained);
  std::int64_t told = s.num_chained;  // what policies know of
  const auto tell = [&](std::int64_t until) {
    pool().tell_cached({t + told, until - told});
    told = until + 1;
  };
  std::int64_t end = promotion.until;
  for (std::int64_t i = s.num_chained; i < end; ++i) {
    const bool has_digest = !on_demand || (i == promotion.digested && index().is_crowded(node));
    const std::uint8_t* const digest = has_digest ? next : nullptr;
    if (!on_demand) next += digest_size;
    if (i + kInsertAhead < end) {
      if (!on_demand)
        index().prefetch_bucket(digest + kInsertAhead * static_cast<std::int64_t>(digest_size));
      prefetch(&nodes()[t[i + kInsertAhead]]);
    }
    const NodeId b = t[i];
    Node& record = nodes()[b];
    if (record.keyed()) {  // a fork of this sequence has promoted it
      tell(i);
      use<GroupTables>().settle_parts(s, i, b, b);
      node = b;
      continue;
    }
    if (record.parent >= 0) {  // likewise, and found its twin
      tell(i);
      node = record.parent;
      continue;
    }
    const Key key{node, extras_at(s.extras_ids(), i), nodes().tokens(b)};
    const NodeId cached = index().find_continuing(key, digest);
    if (cached >= 0) {
      if (config().remap && use<GroupTables>().must_stay(s, i, cached)) [[unlikely]] {
        end = i;  // another of the batch, or what was evicted, has changed what was planned
        break;
      }
      tell(i);
      index().set_hint(node, cached);
      deduplicate(promotion, i, cached);
      node = nodes()[b].keyed() ? b : cached;
      continue;
    }
    if (config().min_partial_tokens) use<GroupEnds>().supersede_tails(key, config().block_size);
    rows().make_findable(b, key, digest, t, i);
    if (has_groups()) [[unlikely]] {
      groups()->place(b, i);
      config().early_commit ? use<GroupTables>().settle_parts(s, i, b, b) : groups()->keep_parts(b);
      if (record.next_sibling >= 0 && groups()->has_tails(node))
        use<GroupEnds>().drop_unseen_tails(node);
    }
    if (config().early_commit) rows().note_unwritten(s, i, b);
    ++rows().counters.promoted_blocks;
    node = b;
  }
  tell(end);
  const std::int64_t from = s.num_chained;
  s.num_chained = static_cast<std::int32_t>(end);
  if (has_groups()) [[unlikely]] {
    use<GroupEnds>().mark_boundaries(s, from);
    groups()->tell_kept(use<GroupTables>().path(s, from, s.num_chained), s.num_chained - from);
  }
  if (log) [[unlikely]]
    log->set_session({});
}

// Room in the log for whatever the planned promotions may deduplicate; the last part of a plan.
// An engine that never reads the log must not make it grow: what earlier calls left beyond the
// limit is dropped, and the loss remembered.
void Committing::reserve_remaps(const PromotionPlan& plan) {
  if (!config().remap || plan.promotions.empty()) return;
  const bool drops = remaps_.size() > max_remaps_;
  std::size_t wanted = drops ? 0 : remaps_.size();
  for (const Promotion& p : plan.promotions) wanted += nth(p.until - p.sequence->num_chained);
  if (wanted > remaps_.capacity()) remaps_.reserve(wanted);
  if (drops) {
    remaps_.clear();
    remaps_lost_ = true;
  }
}

void Committing::deduplicate(const Promotion& promotion, std::int64_t logical,
                             NodeId cached) noexcept {
  const NodeId own = rows().table_at(promotion.row)[logical];
  ++rows().counters.deduplicated_blocks;
  if (RetainingPolicy* retention = pool().partition(promotion.sequence->partition).retention)
    retention->inherit(own, cached);
  if (!config().remap) {
    pool().set_twin(own, cached);
    // The key may pass to it within the step, and so may what its parts are found by.
    rows().note_unwritten(*promotion.sequence, logical, own);
    if (config().early_commit) [[unlikely]]
      use<GroupTables>().each_part(*promotion.sequence, logical, [&](int g, NodeId part) {
        use<GroupTables>().note_unwritten(*promotion.sequence, logical, g, part);
      });
    return;
  }
  const std::int32_t left = rows().name(own);
  use<GroupTables>().merge_parts(*promotion.sequence, logical, cached);
  rows().set_entry(promotion.row, logical, cached);
  ++remaps_version_;
  remaps_.push_back({rows().handle_of(promotion.row), static_cast<std::int32_t>(logical), left,
                     rows().name(cached)});
  pool().exchange(own, cached);  // a copy into it would have kept it from being promoted
}

Remaps Committing::remaps() {
  Call call(rows());
  if (!remaps_lost_) return {remaps_, remaps_version_};
  Remaps all{{}, remaps_version_};
  for (const Sequence& s : rows().sequences) {
    const std::int64_t index = rows().row_of(s);
    for (std::int32_t i = 0; i < s.num_blocks; ++i)
      all.records.push_back(
          {rows().handle_of(index), i, kNoNode, rows().name(rows().table_at(index)[i])});
  }
  return all;
}

bool Committing::drop_remaps(std::int64_t version) {
  Call call(rows());
  if (version != remaps_version_) return false;
  remaps_.clear();
  remaps_lost_ = false;
  return true;
}

std::vector<RemapRecord> Committing::take_remaps() {
  for (;;) {
    Remaps taken = remaps();
    if (drop_remaps(taken.version)) return std::move(taken.records);
  }
}

inline void Committing::plan_commit(Sequence& s, std::int64_t num_computed, std::int64_t written) {
  plan_.clear();
  if (block_size().whole(num_computed) <= s.num_chained) return;
  plan_promotion(s, num_computed, written, plan_);
  reserve_remaps(plan_);
}

void Committing::commit_in_groups(Sequence& s, std::int64_t num_computed) {
  const bool loads = s.loads;
  const std::int64_t loaded = loads ? rows().group_row(s).num_loaded : 0;
  if (loads) check_at_least("num_computed_tokens", num_computed, loaded);
  const bool advances = num_computed > rows().computed(s);
  if (!replayed().empty() && use<GroupTables>().replay_to(s, num_computed, advances)) return;
  use<Keeping>().reserve_keeps(1);
  plan_commit(s, num_computed, loads ? loaded : rows().written(s));
  if (loads) use<GroupEnds>().settle_load(s);
  s.num_computed = num_computed;
  promote_all(plan_);
  use<GroupEnds>().commit_groups(s, advances);
}

void Committing::commit(Handle handle, std::int64_t num_computed) {
  Call call(rows());
  Sequence& s = rows().running(handle);
  rows().refuse_open_ticket("commit");
  const std::int64_t most = std::min(s.num_tokens, rows().num_slots(s));
  const std::int64_t least = rows().computed(s);
  check_bounds("num_computed_tokens", num_computed, least, most);
  if (config().early_commit && s.early_step != step()) {
    s.early_step = step();
    s.num_settled = s.num_written = s.num_computed;
    if (!replayed().empty()) [[unlikely]]
      rows().group_row(s).begun = rows().group_row(s).replayed;
  }
  if (has_groups()) [[unlikely]]
    return commit_in_groups(s, num_computed);
  plan_commit(s, num_computed, rows().written(s));
  s.num_computed = num_computed;
  promote_all(plan_);
}

}  // namespace blockmgr
