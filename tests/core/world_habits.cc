// What an engine remembers about its sequences, if it does not look everything up.
#include <algorithm>

#include "world.h"

namespace blockmgr::testing {

namespace {

// Explicit instantiations name the private members, because access control does not apply there.
template <class Tag>
struct Reached {
  static inline typename Tag::Member member;
};
template <class Tag, typename Tag::Member value>
struct Reaching {
  struct Set {
    Set() { Reached<Tag>::member = value; }
  };
  static inline Set set;
};
struct StepOf {
  using Member = std::int64_t Store::*;
};
struct LastTicketOf {
  using Member = std::int64_t Store::*;
};
template struct Reaching<StepOf, &Store::step_>;
template struct Reaching<LastTicketOf, &Store::last_ticket_>;

}  // namespace

void skip_steps(Sequences& core, std::int64_t count) {
  core.*Reached<StepOf>::member += count;
  core.*Reached<LastTicketOf>::member += count;
}

// ---- what is in memory before the forward -------------------------------------------------------

void World::begin_early(Entry& entry) const {
  if (!early() || entry.early_step == num_applied_) return;
  entry.early_step = num_applied_;
  entry.settled = entry.kept = view(entry).num_computed;
}

std::int64_t World::settled(const Entry& entry) const {
  return entry.early_step == num_applied_ ? entry.settled : view(entry).num_computed;
}

std::int64_t World::kept(const Entry& entry) const {
  return entry.early_step == num_applied_ ? entry.kept : view(entry).num_computed;
}

void World::limit_kept(Entry& entry) const {
  entry.settled = std::min(entry.settled, view(entry).num_computed);
  entry.kept = std::min(entry.kept, view(entry).num_computed);
}

bool World::ahead(const Entry& entry) const { return view(entry).num_computed > settled(entry); }

void World::note_admitted(Entry& entry) const {
  entry.early_step = -1;
  begin_early(entry);
}

// It may end within a block that only this step's forward writes.
void World::note_cut(Entry& entry) const {
  const std::int64_t computed = view(entry).num_computed;
  if (!early() || ahead(entry) || computed % config_.block_size == 0) return;
  begin_early(entry);
  const std::int64_t i = computed / config_.block_size;
  const auto b = static_cast<std::size_t>(blocks_of(entry)[static_cast<std::size_t>(i)]);
  entry.kept = std::min(computed, (i + 1) * config_.block_size - promised_[b]);
}

// Notes the blocks of a sequence that an early commit has cached.
void World::note_promised(const Entry& entry, const std::vector<bool>& was_keyed) {
  const std::vector<std::int32_t> table = blocks_of(entry);
  for (std::int64_t i = 0; i < view(entry).num_chained; ++i) {
    const auto b = static_cast<std::size_t>(table[static_cast<std::size_t>(i)]);
    if (was_keyed[b] || !record_of(static_cast<std::int64_t>(b)).keyed()) continue;
    const std::int64_t end = (i + 1) * config_.block_size;
    promised_[b] =
        static_cast<int>(std::clamp<std::int64_t>(end - kept(entry), 0, config_.block_size));
  }
}

std::vector<bool> World::keyed() const {
  std::vector<bool> keyed(promised_.size());
  for (std::size_t b = 0; b < keyed.size(); ++b)
    keyed[b] = record_of(static_cast<std::int64_t>(b)).keyed();
  return keyed;
}

// Whether a write into this block needs a copy of words that only the forward writes.
bool World::lacks_words(const Entry& entry, std::int64_t logical) const {
  const std::int64_t due = open_ ? view(entry).num_computed : settled(entry);
  return due > std::max(kept(entry), logical * config_.block_size);
}

// The computed tokens after growth: all, or those that a copy of the written block can bring.
std::int64_t World::computed_after(const Entry& entry, std::int64_t slots,
                                   std::int64_t num_tokens) const {
  const Sequence& s = view(entry);
  const std::int64_t logical = s.num_tokens / config_.block_size;
  if (std::max(slots, num_tokens) <= s.num_tokens || logical >= s.num_blocks) return s.num_computed;
  if (is_private(nodes_of(entry)[logical])) return s.num_computed;
  return std::min(s.num_computed, std::max(kept(entry), logical * config_.block_size));
}

// ---- what the engine remembers ------------------------------------------------------------------

// The first position that the next forward writes.
std::int64_t World::first_to_write(const Entry& entry) const {
  if (!habits_.looks_up()) return entry.left_off;
  return early() ? entry.start : view(entry).num_computed;
}

// Records the slots of all unwritten tokens, as they are after the last call on the sequence.
void World::hand(Entry& entry) const {
  if (habits_.writes != Writes::kAsHanded) return;
  const std::int64_t end = std::min(view(entry).num_tokens, slots_of(entry));
  const std::int64_t start = std::min(entry.left_off, end);
  entry.handed.resize(static_cast<std::size_t>(end));
  caller_.slot_mapping(entry.handle, start, end, entry.handed.data() + start);
}

// The sequences in the order in which the engine launches them.
std::vector<EntryPtr> World::to_launch() const {
  if (!habits_.by_row) return entries_;
  std::vector<EntryPtr> by_row(static_cast<std::size_t>(config_.max_seqs));
  for (const EntryPtr& entry : entries_)
    by_row[static_cast<std::size_t>(Sequences::row_of(entry->handle))] = entry;
  std::vector<EntryPtr> found;
  for (std::size_t row = 0; row < by_row.size(); ++row) {
    const EntryPtr& entry = by_row[row];
    const std::int64_t due =
        entry && entry->running ? static_cast<std::int64_t>(entry->tokens.size()) : 0;
    EXPECT(settings_.scribbles || core_.shown_lengths[row] == due, "a row has a wrong length");
    if (entry) found.push_back(entry);
  }
  return found;
}

}  // namespace blockmgr::testing
