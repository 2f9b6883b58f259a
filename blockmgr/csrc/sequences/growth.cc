// More slots and more tokens: reserve, append, decode, and the copy-on-write they may need.
#include <algorithm>

#include "sequences/sequences.h"

namespace blockmgr {

bool Sequences::must_copy(const Sequence& s, std::int64_t logical) const {
  if (logical >= s.num_blocks) return false;
  const Block& block = blocks_[table(s)[logical]];
  return block.ref_count > 1 || block.keyed();
}

// Moves the sequence to a block that only it names, in front of a write. Of k sharers k - 1 move;
// the last finds itself alone and writes in place.
void Sequences::make_private(Sequence& s, std::int64_t logical, std::int64_t num_valid) noexcept {
  const BlockId shared = table(s)[logical];
  if (!must_copy(s, logical)) {
    pool_.drop_twin(shared);  // about to differ from it
    return;
  }
  const std::int64_t start = logical * config_.block_size;
  const BlockId fresh = pool_.take(s.partition);
  std::copy_n(blocks_.tokens(shared),
              std::min<std::int64_t>(s.num_tokens - start, config_.block_size),
              blocks_.tokens(fresh));
  const auto wanted = static_cast<std::int32_t>(std::max<std::int64_t>(num_valid - start, 0));
  const std::int32_t brought = copies_.reach(shared, wanted);
  if (brought > 0) copies_.plan(shared, fresh, brought);
  // Whatever the copy cannot bring has to be computed again.
  limit_computed(s, start + brought);
  drop_reference(shared);
  set_entry(row_of(s), logical, fresh);
}

// Takes blocks up to this many slots and moves waiting tokens into them. With num_tokens beyond
// the present ones, the block they will be written to is made private first.
void Sequences::grow(Sequence& s, std::int64_t slots, std::int64_t num_tokens, const char* call) {
  const std::int64_t target = blocks_for(slots);
  if (target > longest(s.partition)) throw_never_fits(slots, 0, s.partition);
  const std::int64_t logical = s.num_tokens / config_.block_size;
  const bool writes = std::max(slots, num_tokens) > s.num_tokens && logical < s.num_blocks;
  const bool copies = writes && must_copy(s, logical);
  if (copies) refuse_unwritten(s, logical, call);
  const std::int64_t fresh = std::max<std::int64_t>(target - s.num_blocks, 0);
  if (fresh + copies > available(s.partition))
    throw OutOfBlocks(fresh + copies, available(s.partition), 0);

  if (writes) make_private(s, logical, written(s));
  const std::int64_t had_slots = num_slots(s);
  const std::int64_t row = row_of(s);
  for (std::int64_t i = 0; i < fresh; ++i)
    set_entry(row, s.num_blocks++, pool_.take(s.partition));
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
  grow(s, num_slots, s.num_tokens, "reserve slots of");
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
  grow(s, total, total, "append to");
  store_tokens(s, s.num_tokens, tokens, count);
  s.num_tokens = total;
  show_length(s);
}

// Before decode copies this block: all of its tokens count as computed afterwards, so that the copy
// has to bring them.
void Sequences::refuse_uncopied(const Sequence& s, std::int64_t logical) const {
  refuse_unwritten(s, logical, "decode");
  const Block& block = blocks_[table(s)[logical]];
  const std::int64_t offset = s.num_tokens - logical * config_.block_size;
  if (block.copy_source == kNoBlock || block.copy_tokens >= offset) return;
  throw Error(ErrorKind::kStep, "cannot decode sequence " + std::to_string(handle_of(row_of(s))) +
                                    ": its last tokens are not computed, for a copy into their "
                                    "block is pending; take and apply the step's copies first");
}

// The blocks the batch takes, by partition in needs_ if there are any. Changes nothing.
std::int64_t Sequences::count_decode(const Handle* handles, std::int64_t count) {
  const std::int64_t size = config_.block_size;
  std::int64_t needed = 0;
  const bool by_partition = !needs_.empty();
  if (by_partition) std::fill(needs_.begin(), needs_.end(), 0);
  const auto need_block = [&](const Sequence& s) {
    ++needed;
    if (by_partition) [[unlikely]]
      ++needs_[s.partition];
  };
  // A sharer that moves away may leave the next one alone: count as the commit will find it.
  leaving_.clear();
  leaving_.reserve(static_cast<std::size_t>(count));
  rewritten_.clear();
  if (!config_.remap) rewritten_.reserve(static_cast<std::size_t>(count));
  struct Restore {
    Sequences& core;
    ~Restore() {
      for (const BlockId b : core.leaving_) ++core.blocks_[b].ref_count;
    }
  };
  {
    Restore restore{*this};
    ++batch_mark_;
    for (std::int64_t i = 0; i < count; ++i) {
      if (i + 8 < count && row_of(handles[i + 8]) < config_.max_seqs) {
        const Sequence& ahead = sequences_[static_cast<std::size_t>(row_of(handles[i + 8]))];
        if (ahead.num_blocks > 0) prefetch(&blocks_[table(ahead)[ahead.num_blocks - 1]]);
      }
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
      const std::int64_t logical = s.num_tokens / size;
      if (logical < s.num_blocks) {
        const BlockId b = table(s)[logical];
        Block& block = blocks_[b];
        if (block.keyed()) {
          refuse_uncopied(s, logical);
          need_block(s);
        } else if (block.ref_count > 1) {
          refuse_uncopied(s, logical);
          need_block(s);
          --block.ref_count;
          leaving_.push_back(b);
        } else if (block.parent >= 0) {
          rewritten_.push_back(b);
        }
      } else {
        if (logical >= longest(s.partition)) throw_never_fits(s.num_tokens + 1, 0, s.partition);
        need_block(s);
      }
    }
  }
  return needed;
}

void Sequences::check_needs() const {
  for (std::size_t p = 0; p < needs_.size(); ++p) {
    const std::int64_t left = available(static_cast<int>(p));
    if (needs_[p] > left) throw OutOfBlocks(needs_[p], left, 0);
  }
}

void Sequences::decode(const Handle* handles, const Token* tokens, std::int64_t count,
                       std::int64_t* slots) {
  Call call(*this);
  refuse_open_ticket("decode");
  const std::int64_t needed = count_decode(handles, count);
  if (needs_.empty()) {
    if (needed > pool_.available()) throw OutOfBlocks(needed, pool_.available(), 0);
  } else {
    check_needs();
  }
  const std::int64_t size = config_.block_size;
  digests_.clear();
  promotions_.clear();
  for (std::int64_t i = 0; i < count; ++i) {
    Sequence& s = sequences_[static_cast<std::size_t>(row_of(handles[i]))];
    if (s.num_tokens / size > s.num_chained) plan_promotion(s, s.num_tokens, s.num_tokens);
  }
  reserve_remaps();

  // First of all: another of the batch may let go of a cached block, whose key would pass to its
  // twin. That was counted as written in place.
  for (const BlockId b : rewritten_) pool_.drop_twin(b);
  for (std::int64_t i = 0; i < count; ++i) {
    Sequence& s = sequences_[static_cast<std::size_t>(row_of(handles[i]))];
    const std::int64_t logical = s.num_tokens / size;
    const std::int64_t offset = s.num_tokens % size;
    s.num_computed = s.num_settled = s.num_written = s.num_tokens;  // by the forward before
    const std::int32_t* t = table(s);
    if (logical < s.num_blocks) {
      // Nearly always the block is the sequence's own already, and costs no call.
      const Block& block = blocks_[t[logical]];
      if (block.ref_count > 1 || block.keyed() || block.parent >= 0)
        make_private(s, logical, s.num_tokens);
    } else {
      set_entry(row_of(s), s.num_blocks++, pool_.take(s.partition));
    }
    blocks_.tokens(t[logical])[offset] = tokens[i];
    slots[i] = static_cast<std::int64_t>(t[logical]) * size + offset;
    ++s.num_tokens;
    show_length(s);
  }
  for (const Promotion& promotion : promotions_) promote(promotion);
}

}  // namespace blockmgr
