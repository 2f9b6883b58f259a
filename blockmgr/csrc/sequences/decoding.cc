#include <algorithm>
#include <utility>

#include "sequences/sequences.h"

namespace blockmgr {

// Before decode copies this block: all of its tokens count as computed afterwards, so that the copy
// has to bring them.
void Decoding::refuse_uncopied(const Sequence& s, std::int64_t logical) const {
  use<Growing>().refuse_unwritten(s, logical, "decode");
  const NodeId b = rows().table(s)[logical];
  const std::int64_t offset = s.num_tokens - logical * config().block_size;
  const auto brings = [&](NodeId n) {
    return n < 0 || nodes()[n].copy_source == kNoNode || nodes()[n].copy_tokens >= offset;
  };
  bool all = brings(b);
  use<GroupTables>().each_part(s, logical, [&](int, NodeId part) { all = all && brings(part); });
  if (!all)
    rows().refuse(s, "decode",
                  "its last tokens are not computed, for a copy into their block is pending; take "
                  "and apply the step's copies first");
}

// Decode counts all tokens of a sequence as computed. Only one may be left, which the forward
// before this call computed.
void Decoding::refuse_uncomputed(const Handle* handles, std::int64_t count) const {
  for (std::int64_t i = 0; i < count; ++i) {
    const Sequence& s = rows().running(handles[i]);
    const std::int64_t left = s.num_tokens - rows().computed(s);
    if (left <= 1) continue;
    throw Error(
        ErrorKind::kSequenceState,
        "sequence " + std::to_string(handles[i]) + " has " + std::to_string(left) +
            " tokens to compute, and strict_decode allows 1; commit what forwards computed");
  }
}

// What a step looks at first of a sequence of the batch that comes later.
inline void Decoding::prefetch_last(Handle handle) const {
  const Sequence& s = rows().at(handle);
  if (s.num_blocks <= 0) return;
  const NodeId last = rows().table(s)[s.num_blocks - 1];
  prefetch(&nodes()[last]);
  prefetch(&nodes().uses(last));
}

// The blocks that the batch takes, and what the forward before has made findable. A sharer that
// moves away may leave the last one alone, which then writes in place. What becomes findable before
// the blocks are taken may leave fewer: it moves to cached blocks, and a pin keeps what it leaves.
void Decoding::plan_decode(const Handle* handles, std::int64_t count, DecodePlan& plan) {
  if (config().strict_decode) [[unlikely]]
    refuse_uncomputed(handles, count);
  std::int64_t* const needed = plan.needed_by.data();
  std::fill(plan.needed_by.begin(), plan.needed_by.end(), 0);
  plan.promotions.clear();
  // Counts one more that writes into a shared block: whether all its sharers have been counted now.
  // Most batches have none, and nothing is made for them.
  bool has_sharers = false;
  const auto is_last = [&](NodeId b, std::uint32_t num_sharers) {
    if (!std::exchange(has_sharers, true)) plan.sharers.begin(count);
    return plan.sharers.add(b) == num_sharers;
  };
  plan.rewritten.clear();
  if (!config().remap) plan.rewritten.reserve(nth(count));
  const BlockSize size = block_size();
  ++rows().batch_mark;
  for (std::int64_t i = 0; i < count; ++i) {
    if (i + 8 < count && rows().row_of(handles[i + 8]) < config().max_seqs)
      prefetch_last(handles[i + 8]);
    Sequence& s = rows().running(handles[i]);
    rows().name_once(s);
    if (s.num_tokens > rows().num_slots(s))
      throw Error(ErrorKind::kSequenceState,
                  "sequence " + std::to_string(handles[i]) + " has " +
                      std::to_string(s.num_tokens - rows().num_slots(s)) +
                      " tokens without slots; reserve them before decode");
    rows().refuse_ahead(s, "decode");
    const std::int64_t logical = size.whole(s.num_tokens);
    bool takes = true;
    if (logical < s.num_blocks) {
      const NodeId b = rows().table(s)[logical];
      const Node& record = nodes()[b];
      const std::uint32_t refs = nodes().uses(b).ref_count;
      takes = record.keyed() || (refs > 1 && !is_last(b, refs));
      if (takes) refuse_uncopied(s, logical);
      if (takes) plan_moved_parts(s, logical, plan);
      if (!takes && record.parent >= 0) plan.rewritten.push_back(b);
    } else if (logical >= rows().longest(s.partition)) {
      use<Needs>().throw_never_fits(s.num_tokens + 1, 0, s.partition);
    }
    needed[s.partition] += takes;
  }
  plan.drops_first = false;
  if (has_groups()) [[unlikely]]
    plan_parts(handles, count, plan);
  const auto check = [&] {
    for (std::size_t p = 0; p < plan.needed_by.size(); ++p)
      rows().check_available(needed[p], static_cast<int>(p));
  };
  check();

  std::int64_t lost = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    Sequence& s = rows().at(handles[i]);
    if (size.whole(s.num_tokens) <= s.num_chained) continue;
    const std::int64_t more =
        use<Committing>().plan_promotion(s, s.num_tokens, s.num_tokens, plan.promotions);
    if (!more) [[likely]]
      continue;
    const std::int64_t lost_nodes = std::exchange(plan.promotions.lost_nodes, 0);
    needed[s.partition] += lost_nodes;
    home_needs(plan, s) += more - lost_nodes;
    lost += more;
  }
  if (lost) [[unlikely]]
    check();
  use<Committing>().reserve_remaps(plan.promotions);
}

// The forward before has computed all of it.
inline void Decoding::note_decoded(Sequence& s) noexcept {
  s.num_computed = s.num_settled = s.num_written = s.num_tokens;
}

void Decoding::decode(const Handle* handles, const Token* tokens, std::int64_t count,
                      std::int64_t* slots) {
  Call call(rows());
  rows().refuse_open_ticket("decode");
  DecodePlan& plan = plan_;
  plan_decode(handles, count, plan);
  if (plan.drops_first) [[unlikely]] {
    // Before the commits. The loop below repeats it, which costs other decodes no branch.
    for (std::int64_t i = 0; i < count; ++i) note_decoded(rows().at(handles[i]));
    commit_decoded(handles, count, plan.promotions);
  }

  // First: another of the batch may release a cached block, whose key would pass to its
  // twin. That was counted as written in place.
  for (const NodeId b : plan.rewritten) pool().drop_twin(b);
  const BlockSize size = block_size();
  for (std::int64_t i = 0; i < count; ++i) {
    if (i + 8 < count) prefetch_last(handles[i + 8]);
    Sequence& s = rows().at(handles[i]);
    const std::int64_t logical = size.whole(s.num_tokens);
    const std::int64_t offset = s.num_tokens - logical * size;
    note_decoded(s);
    const std::int32_t* t = rows().table(s);
    if (logical < s.num_blocks) {
      // Nearly always the block is the sequence's own already, and costs no call.
      const NodeId b = t[logical];
      if (rows().is_shared(b) || nodes()[b].parent >= 0)
        use<Growing>().make_private(s, logical, s.num_tokens);
    } else {
      rows().set_entry(rows().row_of(s), logical,
                       pool().take(s.partition, rows().before(s, logical)));
      ++s.num_blocks;
      use<GroupTables>().take_parts(s, s.num_tokens, s.num_tokens + 1);
    }
    nodes().tokens(t[logical])[offset] = tokens[i];
    slots[i] = nodes().name(t[logical]) * size + offset;
    ++s.num_tokens;
    rows().show_length(s);
    if (offset + 1 == size) rows().computing.insert(static_cast<std::uint32_t>(rows().row_of(s)));
  }
  if (has_groups()) [[unlikely]] {
    // Before the commits, which may take cached blocks into use.
    if (use<Slices>().has_other_slots()) [[unlikely]]
      take_slices(handles, count, slots);
    if (!plan.drops_first) commit_decoded(handles, count, plan.promotions);
    return keep_decoded(handles, count);
  }
  use<Committing>().promote_all(plan.promotions);
}

// What is needed where a sequence gets blocks beside its nodes' own.
inline std::int64_t& Decoding::home_needs(DecodePlan& plan, const Sequence& s) const {
  return plan.needed_by[nth(pool().home(s.partition))];
}

// Of a sequence that moves to a block of its own.
void Decoding::plan_moved_parts(const Sequence& s, std::int64_t logical, DecodePlan& plan) const {
  use<GroupTables>().refuse_unknown_state(s, "decode");
  home_needs(plan, s) += use<GroupTables>().num_parts(s, logical);
}

// The parts that a batch takes, less those that it gives back before. Reserves memory for the
// states that decode may keep.
void Decoding::plan_parts(const Handle* handles, std::int64_t count, DecodePlan& plan) {
  use<Keeping>().reserve_keeps(count);
  plan.promotions.dropped.clear();
  plan.drops_first = open_steps().empty();
  std::int64_t committed = 0;
  std::int64_t num_early = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const Sequence& s = rows().at(handles[i]);
    use<GroupTables>().refuse_loading(s, "decode");
    std::int64_t parts = use<GroupTables>().parts_to_grow(s, s.num_tokens + 1, -1);
    if (plan.drops_first) {
      parts -= use<GroupTables>().num_dropped(s, plan.promotions.dropped, num_early);
      committed += std::max<std::int64_t>(block_size().whole(s.num_tokens) - s.num_chained, 0);
    }
    home_needs(plan, s) += parts;
  }
  if (num_early && config().remap) [[unlikely]]
    plan_equal_units(handles, count, plan);
  if (plan.drops_first) plan.promotions.count_taken(use<GroupTables>().blocks_of_units(committed));
}

// Parts that one of the batch gives back right after it has made them findable are not counted on:
// another one with the same tokens may take them into use.
void Decoding::plan_equal_units(const Handle* handles, std::int64_t count, DecodePlan& plan) {
  std::int64_t committing = 0;
  for (std::int64_t i = 0; i < count; ++i)
    committing += use<Committing>().commits_units(rows().at(handles[i]));
  for (std::int64_t i = 0; committing > 1 && i < count; ++i) {
    const Sequence& s = rows().at(handles[i]);
    std::int64_t num_early = 0;
    use<GroupTables>().num_dropped(s, plan.promotions.dropped, num_early);
    home_needs(plan, s) += num_early;
  }
}

// All tokens of these but those that decode appends are computed: what becomes findable, and what
// is given back.
void Decoding::commit_decoded(const Handle* handles, std::int64_t count,
                              const PromotionPlan& plan) noexcept {
  use<Committing>().promote_all(plan);
  for (std::int64_t i = 0; i < count; ++i) {
    Sequence& s = rows().at(handles[i]);
    if (!replayed().empty()) [[unlikely]]
      use<GroupTables>().end_replay(s);
    use<GroupTables>().note_state(s, true);
    use<GroupTables>().drop_windows(s);
  }
}

// Further blocks of nodes that the sequences have, and the slots of blocks that are smaller.
void Decoding::take_slices(const Handle* handles, std::int64_t count,
                           std::int64_t* slots) noexcept {
  for (std::int64_t i = 0; i < count; ++i) {
    Sequence& s = rows().at(handles[i]);
    if (rows().num_slots(s) < s.num_tokens)
      use<GroupTables>().take_parts(s, s.num_tokens - 1, s.num_tokens);
    slots[i] = use<Slices>().full_slot(s, s.num_tokens - 1);
  }
}

// States at a stop, with what decode left over. Not within a block: the caller knows the slots.
void Decoding::keep_decoded(const Handle* handles, std::int64_t count) noexcept {
  for (std::int64_t i = 0; num_states() && i < count; ++i) {
    Sequence& s = rows().at(handles[i]);
    if (s.num_computed % config().block_size == 0) use<GroupEnds>().keep_state(s);
  }
}

}  // namespace blockmgr
