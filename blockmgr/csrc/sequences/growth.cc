// More slots and more tokens: reserve, append, decode, and the copy-on-write they may need.
#include <algorithm>

#include "sequences/sequences.h"

namespace blockmgr {

bool Sequences::must_copy(const Sequence& s, std::int64_t logical) const {
  if (logical >= s.num_blocks) return false;
  return is_shared(table(s)[logical]);
}

// Moves the sequence to a block that only it names, in front of a write. Of k sharers k - 1 move;
// the last finds itself alone and writes in place.
void Sequences::make_private(Sequence& s, std::int64_t logical, std::int64_t num_valid) noexcept {
  const NodeId shared = table(s)[logical];
  if (!must_copy(s, logical)) {
    pool_.drop_twin(shared);  // about to differ from it
    return;
  }
  const std::int64_t start = logical * config_.block_size;
  const std::int64_t known = std::min<std::int64_t>(s.num_tokens - start, config_.block_size);
  const std::int64_t valid = std::max<std::int64_t>(num_valid - start, 0);
  const NodeId fresh = pool_.take(s.partition, before(s, logical));
  const Writable own = move_to_fresh(shared, fresh, known, valid);
  set_entry(row_of(s), logical, own.node);
  if (groups_) [[unlikely]]
    make_parts_private(s, logical, shared, static_cast<std::int32_t>(valid));
  // Tokens that the copy cannot bring have to be computed again.
  limit_computed(s, start + own.num_copied);
}

// What it takes to have this many slots, and to write up to num_tokens: with more than the present
// ones, the block they will be written to is made private first.
inline Sequences::GrowthPlan Sequences::plan_growth(const Sequence& s, std::int64_t slots,
                                                    std::int64_t num_tokens,
                                                    const char* call) const {
  const std::int64_t target = blocks_for(slots);
  if (target > longest(s.partition)) throw_never_fits(slots, 0, s.partition);
  const std::int64_t logical = s.num_tokens / config_.block_size;
  const bool writes = std::max(slots, num_tokens) > s.num_tokens && logical < s.num_blocks;
  const bool copies = writes && must_copy(s, logical);
  if (copies) refuse_unwritten(s, logical, call);
  const std::int64_t fresh = std::max<std::int64_t>(target - s.num_blocks, 0);
  std::int64_t needed = fresh + copies;
  if (!needed) return {fresh, writes};
  if (groups_) [[unlikely]] {
    if (copies) refuse_moved(s, call);
    needed = grouped_need(needed);
  }
  check_available(needed, s.partition);
  return {fresh, writes};
}

// Takes the blocks, and moves waiting tokens into them.
inline void Sequences::grow(Sequence& s, const GrowthPlan& plan) noexcept {
  if (plan.writes) make_private(s, s.num_tokens / config_.block_size, written(s));
  if (!plan.num_fresh) return;
  const std::int64_t had_slots = num_slots(s);
  const std::int64_t row = row_of(s);
  for (std::int64_t i = 0; i < plan.num_fresh; ++i) {
    set_entry(row, s.num_blocks, pool_.take(s.partition, before(s, s.num_blocks)));
    ++s.num_blocks;
  }
  if (groups_) [[unlikely]]
    take_parts(s, s.num_blocks - plan.num_fresh);
  const std::int64_t moved = std::min(s.num_waiting(), num_slots(s) - had_slots);
  if (moved > 0) {
    store_tokens(s, had_slots, s.waiting.data() + s.waiting_start, moved);
    s.waiting_start += static_cast<std::size_t>(moved);
    if (!s.num_waiting()) {
      std::vector<Token>().swap(s.waiting);
      s.waiting_start = 0;
    }
  }
}

void Sequences::reserve(Handle handle, std::int64_t num_slots) {
  Call call(*this);
  Sequence& s = running(handle);
  if (num_slots < 1)
    throw Error(ErrorKind::kValue,
                "num_slots must be at least 1, got " + std::to_string(num_slots));
  grow(s, plan_growth(s, num_slots, s.num_tokens, "reserve slots of"));
}

void Sequences::check_append(Handle handle, std::int64_t count) const {
  const Sequence& s = running(handle);
  const std::int64_t total = s.num_tokens + std::min(count, INT64_MAX - s.num_tokens);
  if (blocks_for(total) > longest(s.partition)) throw_never_fits(total, 0, s.partition);
}

void Sequences::append(Handle handle, const Token* tokens, std::int64_t count) {
  Call call(*this);
  Sequence& s = running(handle);
  const std::int64_t total = s.num_tokens + count;
  grow(s, plan_growth(s, total, total, "append to"));
  store_tokens(s, s.num_tokens, tokens, count);
  s.num_tokens = total;
  show_length(s);
  note_computing(s);
}

// Before decode copies this block: all of its tokens count as computed afterwards, so that the copy
// has to bring them.
void Sequences::refuse_uncopied(const Sequence& s, std::int64_t logical) const {
  refuse_unwritten(s, logical, "decode");
  const NodeId b = table(s)[logical];
  const std::int64_t offset = s.num_tokens - logical * config_.block_size;
  const auto brings = [&](NodeId n) {
    return n < 0 || nodes_[n].copy_source == kNoNode || nodes_[n].copy_tokens >= offset;
  };
  bool all = brings(b);
  for (int g = 0; groups_ && g < groups_->num_groups(); ++g)
    all = all && (groups_->group(g).recurrent() || brings(groups_->part(g, b)));
  if (all) return;
  throw Error(ErrorKind::kStep, "cannot decode sequence " + std::to_string(handle_of(row_of(s))) +
                                    ": its last tokens are not computed, for a copy into their "
                                    "block is pending; take and apply the step's copies first");
}

namespace {

// Of a batch, those that write into one block. Most batches have none, and nothing is made for
// them.
class Sharers {
 public:
  Sharers(Tally& counts, std::int64_t most) : counts_(counts), most_(most) {}
  // Counts one more sharer of this block; whether all that share it have been counted now.
  bool is_last(NodeId b, std::uint32_t num_sharers) {
    if (!begun_) counts_.begin(most_);
    begun_ = true;
    return counts_.add(b) == num_sharers;
  }

 private:
  Tally& counts_;
  std::int64_t most_;
  bool begun_ = false;
};

}  // namespace

// What a step looks at first of a sequence of the batch that comes later.
inline void Sequences::prefetch_last(Handle handle) const {
  const Sequence& s = sequences_[static_cast<std::size_t>(row_of(handle))];
  if (s.num_blocks <= 0) return;
  const NodeId last = table(s)[s.num_blocks - 1];
  prefetch(&nodes_[last]);
  prefetch(&nodes_.uses(last));
}

// The blocks that the batch takes, and what the forward before has made findable. A sharer that
// moves away may leave the last one alone, which then writes in place. What becomes findable before
// the blocks are taken may leave fewer: it moves to cached blocks, and a pin keeps what it leaves.
void Sequences::plan_decode(const Handle* handles, std::int64_t count, DecodePlan& plan) {
  const bool by_partition = !plan.needed_by.empty();
  if (by_partition) std::fill(plan.needed_by.begin(), plan.needed_by.end(), 0);
  plan.promotions.clear();
  Sharers sharers(plan.sharers, count);
  plan.rewritten.clear();
  if (!config_.remap) plan.rewritten.reserve(static_cast<std::size_t>(count));
  const BlockSize size = size_;
  std::int64_t needed = 0;
  ++batch_mark_;
  for (std::int64_t i = 0; i < count; ++i) {
    if (i + 8 < count && row_of(handles[i + 8]) < config_.max_seqs) prefetch_last(handles[i + 8]);
    Sequence& s = running(handles[i]);
    if (s.mark == batch_mark_)
      throw Error(ErrorKind::kValue,
                  "handles must be distinct, got " + std::to_string(handles[i]) + " twice");
    s.mark = batch_mark_;
    if (s.num_tokens > num_slots(s))
      throw Error(ErrorKind::kSequenceState,
                  "sequence " + std::to_string(handles[i]) + " has " +
                      std::to_string(s.num_waiting()) +
                      " tokens without slots; reserve them before decode");
    refuse_ahead(s, "decode");
    const std::int64_t logical = size.whole(s.num_tokens);
    bool takes = true;
    if (logical < s.num_blocks) {
      const NodeId b = table(s)[logical];
      const Node& record = nodes_[b];
      const std::uint32_t refs = nodes_.uses(b).ref_count;
      takes = record.keyed() || (refs > 1 && !sharers.is_last(b, refs));
      if (takes) refuse_uncopied(s, logical);
      if (takes && groups_) [[unlikely]]
        refuse_unknown_state(s, "decode");
      if (!takes && record.parent >= 0) plan.rewritten.push_back(b);
    } else if (logical >= longest(s.partition)) {
      throw_never_fits(s.num_tokens + 1, 0, s.partition);
    }
    needed += takes;
    if (by_partition) [[unlikely]]
      plan.needed_by[s.partition] += takes;
  }
  if (groups_) [[unlikely]]
    needed = plan_parts(handles, count, needed, plan);
  const auto check = [&] {
    if (!by_partition) check_available(needed);
    for (std::size_t p = 0; p < plan.needed_by.size(); ++p)
      check_available(plan.needed_by[p], static_cast<int>(p));
  };
  check();

  std::int64_t lost = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    Sequence& s = sequences_[static_cast<std::size_t>(row_of(handles[i]))];
    if (size.whole(s.num_tokens) <= s.num_chained) continue;
    const std::int64_t more = plan_promotion(s, s.num_tokens, s.num_tokens, plan.promotions);
    lost += more;
    if (by_partition) [[unlikely]]
      plan.needed_by[s.partition] += more;
  }
  if (lost) [[unlikely]] {
    needed += lost;
    check();
  }
  reserve_remaps(plan.promotions);
}

// The forward before has computed all of it.
inline void Sequences::note_decoded(Sequence& s) noexcept {
  s.num_computed = s.num_settled = s.num_written = s.num_tokens;
}

void Sequences::decode(const Handle* handles, const Token* tokens, std::int64_t count,
                       std::int64_t* slots) {
  Call call(*this);
  refuse_open_ticket("decode");
  DecodePlan& plan = decode_room_;
  plan_decode(handles, count, plan);
  const bool grouped = groups_ != nullptr;
  const bool drops_first = drops_before_taking();
  if (drops_first) [[unlikely]] {
    // Before the commits. The loop below repeats it, which costs other decodes no branch.
    for (std::int64_t i = 0; i < count; ++i)
      note_decoded(sequences_[static_cast<std::size_t>(row_of(handles[i]))]);
    commit_decoded(handles, count, plan.promotions);
  }

  // First: another of the batch may release a cached block, whose key would pass to its
  // twin. That was counted as written in place.
  for (const NodeId b : plan.rewritten) pool_.drop_twin(b);
  const BlockSize size = size_;
  for (std::int64_t i = 0; i < count; ++i) {
    if (i + 8 < count) prefetch_last(handles[i + 8]);
    Sequence& s = sequences_[static_cast<std::size_t>(row_of(handles[i]))];
    const std::int64_t logical = size.whole(s.num_tokens);
    const std::int64_t offset = s.num_tokens - logical * size;
    note_decoded(s);
    const std::int32_t* t = table(s);
    if (logical < s.num_blocks) {
      // Nearly always the block is the sequence's own already, and costs no call.
      const NodeId b = t[logical];
      if (is_shared(b) || nodes_[b].parent >= 0)
        make_private(s, logical, s.num_tokens);
    } else {
      set_entry(row_of(s), logical, pool_.take(s.partition, before(s, logical)));
      ++s.num_blocks;
      if (grouped) [[unlikely]]
        take_parts(s, logical);
    }
    nodes_.tokens(t[logical])[offset] = tokens[i];
    slots[i] = nodes_.name(t[logical]) * size + offset;
    ++s.num_tokens;
    show_length(s);
    if (offset + 1 == size) computing_.insert(static_cast<std::uint32_t>(row_of(s)));
  }
  if (grouped) [[unlikely]] {
    if (!drops_first) commit_decoded(handles, count, plan.promotions);
    return keep_decoded(handles, count);
  }
  promote_all(plan.promotions);
}

}  // namespace blockmgr
