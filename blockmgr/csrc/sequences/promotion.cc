// Commit: K/V is written, so full blocks become findable, and identical ones are merged.
#include <algorithm>

#include "sequences/sequences.h"

namespace blockmgr {

// The node that stands for everything before this logical block.
NodeId Sequences::chain_node(const Sequence& s, std::int64_t logical) const {
  if (logical == 0) return root_node(s.root);
  const NodeId b = table(s)[logical - 1];
  return nodes_[b].keyed() ? b : nodes_[b].parent;
}

// Blocks that are full and computed, up to one whose content still waits for a copy.
std::int64_t Sequences::promotable(const Sequence& s, std::int64_t num_computed) const {
  const std::int64_t end = num_computed / config_.block_size;
  const std::int32_t* t = table(s);
  for (std::int64_t i = s.num_chained; i < end; ++i)
    if (nodes_[t[i]].copy_source != kNoNode || nodes_[t[i]].in_flight) return i;
  return end;
}

// Computes the digests of the blocks to promote. Hashing may fail, so it all happens before
// anything is promoted; and it is the costly part, so a hinted child with the same tokens lends
// its digest. written_now: leading tokens that are in memory before this step's forward. Returns how
// many blocks fewer may be available afterwards.
std::int64_t Sequences::plan_promotion(Sequence& s, std::int64_t num_computed,
                                       std::int64_t written_now, PromotionPlan& plan) {
  if (!digester_ || s.outdated) return 0;
  const std::int64_t until = promotable(s, num_computed);
  if (until <= s.num_chained) return 0;
  const auto digest_size = static_cast<std::size_t>(nodes_.digest_size);
  const std::size_t offset = plan.digests.size();
  plan.digests.resize(offset + static_cast<std::size_t>(until - s.num_chained) * digest_size);
  plan.promotions.push_back({&s, row_of(s), until, offset});

  const std::int32_t* t = table(s);
  NodeId node = chain_node(s, s.num_chained);  // kNoNode once the chain is not cached yet
  const std::uint8_t* before = index_.digest_of(node);
  std::uint8_t* out = plan.digests.data() + offset;
  std::int64_t lost = 0;
  for (std::int64_t i = s.num_chained; i < until; ++i, before = out, out += digest_size) {
    const Key key{node, extras_at(s.extras_ids(), i), nodes_.tokens(t[i])};
    const bool cached_here = nodes_[t[i]].keyed();
    if (cached_here) {
      std::memcpy(out, nodes_.digest(t[i]), digest_size);
      node = t[i];
    } else {
      node = index_.find_or_digest(key, before, out);
    }
    if (node < 0 || node == t[i]) continue;  // nothing to merge with
    // A block whose K/V is in memory is not replaced by one that this step's forward has yet to
    // write: in this step the sequence could not be copied from any more. A later commit merges
    // them.
    if ((groups_ || nodes_[node].unwritten) &&
        is_kept_apart(s, i, node, (i + 1) * config_.block_size <= written_now)) {
      plan.promotions.back().until = i;
      break;
    }
    if (plan.counts_taken) [[unlikely]]
      lost += num_lost(s, i, node, plan);
  }
  return lost;
}

// Whether a block is not merged with a cached one now: see plan_promotion, and must_stay.
bool Sequences::is_kept_apart(const Sequence& s, std::int64_t logical, NodeId cached,
                              bool is_written) const {
  if (!groups_) return is_written;
  return (is_written && most_unwritten(cached)) || must_stay(s, logical, cached);
}

// Of several groups: blocks that a sequence leaves for cached ones which are available, or are to be
// once another of the batch has dropped them; and that a copy to come, a caller or another sequence
// keeps. All sharers may be of the batch; then more is counted than is taken.
std::int64_t Sequences::num_lost(const Sequence& s, std::int64_t logical, NodeId cached,
                                 PromotionPlan& plan) const {
  const std::vector<NodeId>& dropped = plan.dropped;
  std::int64_t lost = 0;
  const auto count = [&](NodeId left, NodeId there) {
    const Uses& uses = nodes_.uses(left);
    if (uses.ref_count + uses.pins == 1) return;
    const bool taken = pool_.counts_as_available(there) ||
                       std::find(dropped.begin(), dropped.end(), there) != dropped.end();
    lost += taken && plan.taken.add(there) == 1;
  };
  count(table(s)[logical], cached);
  each_part(s, logical, [&](int g, NodeId part) {
    if (const NodeId there = groups_->part(g, cached); there >= 0) count(part, there);
  });
  return lost;
}

void Sequences::promote_all(const PromotionPlan& plan) noexcept {
  for (const Promotion& promotion : plan.promotions)
    promote(promotion, plan.digests.data() + promotion.digest_offset);
}

void Sequences::promote(const Promotion& promotion, const std::uint8_t* digest) noexcept {
  Sequence& s = *promotion.sequence;
  const auto digest_size = static_cast<std::size_t>(nodes_.digest_size);
  const std::int32_t* t = table(s);
  NodeId node = chain_node(s, s.num_chained);
  std::int64_t told = s.num_chained;  // what policies know of
  const auto tell = [&](std::int64_t until) {
    pool_.tell_cached({t + told, until - told});
    told = until + 1;
  };
  std::int64_t end = promotion.until;
  for (std::int64_t i = s.num_chained; i < end; ++i, digest += digest_size) {
    if (i + kInsertAhead < end) {
      index_.prefetch_bucket(digest + kInsertAhead * static_cast<std::int64_t>(digest_size));
      prefetch(&nodes_[t[i + kInsertAhead]]);
    }
    const NodeId b = t[i];
    Node& record = nodes_[b];
    if (record.keyed()) {  // a fork of this sequence has promoted it
      tell(i);
      if (groups_) settle_parts(s, i, b, b);
      node = b;
      continue;
    }
    if (record.parent >= 0) {  // likewise, and found its twin
      tell(i);
      node = record.parent;
      continue;
    }
    const Key key{node, extras_at(s.extras_ids(), i), nodes_.tokens(b)};
    const NodeId cached = index_.find_continuing(key, digest);
    if (cached >= 0) {
      if (groups_ && must_stay(s, i, cached)) [[unlikely]] {
        end = i;  // another of the batch, or what was evicted, has changed what was planned
        break;
      }
      tell(i);
      index_.set_hint(node, cached);
      deduplicate(promotion, i, cached);
      node = nodes_[b].keyed() ? b : cached;
      continue;
    }
    if (config_.min_partial_tokens && !groups_) supersede_tails(key, config_.block_size);
    make_findable(b, key, digest, t, i);
    if (groups_) [[unlikely]] {
      groups_->place(b, i);
      config_.early_commit ? settle_parts(s, i, b, b) : groups_->keep_parts(b);
      if (record.next_sibling >= 0 && groups_->has_tails(node)) drop_unseen_tails(node);
    }
    if (config_.early_commit) note_unwritten(s, i, b);
    ++counters_.promoted_blocks;
    node = b;
  }
  tell(end);
  const std::int64_t from = s.num_chained;
  s.num_chained = static_cast<std::int32_t>(end);
  if (groups_) [[unlikely]] {
    mark_boundaries(s, from);
    groups_->tell_kept(t + from, s.num_chained - from);
  }
}

// The forward of this step fills the block if its sequence was committed early.
void Sequences::note_unwritten(const Sequence& s, std::int64_t logical, NodeId b) noexcept {
  const std::int64_t size = config_.block_size;
  const std::int64_t filled = std::clamp<std::int64_t>(written(s) - logical * size, 0, size);
  if (filled == size) return;
  nodes_[b].unwritten = static_cast<std::uint16_t>(size - filled);
  unwritten_.push_back(b);
}

// Room in the log for whatever the planned promotions may deduplicate; the last part of a plan.
// An engine that never reads the log must not make it grow: what earlier calls left beyond the
// limit is dropped, and the loss remembered.
void Sequences::reserve_remaps(const PromotionPlan& plan) {
  if (!config_.remap || plan.promotions.empty()) return;
  const bool drops = remaps_.size() > max_remaps_;
  std::size_t wanted = drops ? 0 : remaps_.size();
  for (const Promotion& p : plan.promotions)
    wanted += static_cast<std::size_t>(p.until - p.sequence->num_chained);
  if (wanted > remaps_.capacity()) remaps_.reserve(wanted);
  if (drops) {
    remaps_.clear();
    remaps_lost_ = true;
  }
}

void Sequences::deduplicate(const Promotion& promotion, std::int64_t logical,
                            NodeId cached) noexcept {
  const NodeId own = table_at(promotion.row)[logical];
  ++counters_.deduplicated_blocks;
  if (RetainingPolicy* retention = pool_.partition(promotion.sequence->partition).retention)
    retention->inherit(own, cached);
  if (!config_.remap) {
    pool_.set_twin(own, cached);
    note_unwritten(*promotion.sequence, logical, own);  // the key may pass to it within the step
    return;
  }
  if (groups_) [[unlikely]]
    merge_parts(*promotion.sequence, logical, cached);
  set_entry(promotion.row, logical, cached);
  ++remaps_version_;
  remaps_.push_back({handle_of(promotion.row), static_cast<std::int32_t>(logical),
                     nodes_.name(own), nodes_.name(cached)});
  pool_.exchange(own, cached);  // a copy into it would have kept it from being promoted
}

Sequences::Remaps Sequences::remaps() {
  Call call(*this);
  if (!remaps_lost_) return {remaps_, remaps_version_};
  Remaps all{{}, remaps_version_};
  for (const Sequence& s : sequences_) {
    const std::int64_t index = row_of(s);
    for (std::int32_t i = 0; i < s.num_blocks; ++i)
      all.records.push_back({handle_of(index), i, kNoNode, nodes_.name(table_at(index)[i])});
  }
  return all;
}

bool Sequences::drop_remaps(std::int64_t version) {
  Call call(*this);
  if (version != remaps_version_) return false;
  remaps_.clear();
  remaps_lost_ = false;
  return true;
}

std::vector<RemapRecord> Sequences::take_remaps() {
  for (;;) {
    Remaps taken = remaps();
    if (drop_remaps(taken.version)) return std::move(taken.records);
  }
}

void Sequences::commit(Handle handle, std::int64_t num_computed) {
  Call call(*this);
  Sequence& s = running(handle);
  refuse_open_ticket("commit");
  const std::int64_t most = std::min(s.num_tokens, num_slots(s));
  if (num_computed < s.num_computed || num_computed > most)
    throw Error(ErrorKind::kValue,
                "num_computed_tokens must be in [" + std::to_string(s.num_computed) + ", " +
                    std::to_string(most) + "], got " + std::to_string(num_computed));
  PromotionPlan& plan = decode_room_.promotions;
  plan.clear();
  if (groups_) [[unlikely]]
    keeps_.reserve(keeps_.size() + static_cast<std::size_t>(num_states_));
  if (size_.whole(num_computed) > s.num_chained) {
    plan_promotion(s, num_computed, written(s), plan);
    reserve_remaps(plan);
  }

  if (config_.early_commit && s.early_step != step_) {
    s.early_step = step_;
    s.num_settled = s.num_written = s.num_computed;
  }
  s.num_computed = num_computed;
  promote_all(plan);
  if (groups_) commit_groups(s);
}

}  // namespace blockmgr
