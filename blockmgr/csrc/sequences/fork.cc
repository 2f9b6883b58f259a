// Sequences made from sequences: fork, and the reparenting of beam search.
#include <algorithm>
#include <cstring>

#include "sequences/sequences.h"

namespace blockmgr {

namespace {

// Copies entries of a table, a cache line at a time. Rows start at any multiple of four bytes,
// where the library's copy of some kilobytes (rep movsb) takes six times as long.
void copy_table(const std::int32_t* from, std::int64_t count, std::int32_t* to) {
  constexpr std::int64_t kLine = 16;
  std::int64_t i = 0;
  for (; i + kLine <= count; i += kLine) {
    std::int32_t line[kLine];
    std::memcpy(line, from + i, sizeof line);
    std::memcpy(to + i, line, sizeof line);
  }
  for (; i < count; ++i) to[i] = from[i];
}

}  // namespace

void Sequences::next_handles(std::int64_t count, Handle* out) const {
  const auto rows = static_cast<std::int64_t>(unused_rows_.size());
  for (std::int64_t i = 0; i < std::min(count, rows); ++i)
    out[i] = handle_of(unused_rows_[static_cast<std::size_t>(rows - 1 - i)]);
}

void Sequences::check_fork(const Sequence& parent, std::int64_t count) const {
  // The parent's forward may move to a copy of the tail; the children would wait for K/V that never
  // comes.
  refuse_ahead(parent, "fork");
  if (count < 1)
    throw Error(ErrorKind::kValue, "n must be at least 1, got " + std::to_string(count));
  if (static_cast<std::size_t>(count) > unused_rows_.size())
    throw OutOfSequences(count, static_cast<std::int64_t>(unused_rows_.size()));
  if (groups_) [[unlikely]]
    check_states(parent, count);
}

bool Sequences::fork(Handle handle, std::int64_t count, Handle* children, const Handle* expected) {
  Call call(*this);
  Sequence& parent = running(handle);
  check_fork(parent, count);
  Sequence model = parent;
  // Look-ahead blocks hold nothing yet, so there is nothing in them to share.
  model.num_blocks = static_cast<std::int32_t>(
      std::min<std::int64_t>(parent.num_blocks, blocks_for(parent.num_tokens)));
  std::vector<std::vector<Token>> waiting(static_cast<std::size_t>(count), model.waiting);
  next_handles(count, children);
  if (expected && !std::equal(children, children + count, expected)) return false;

  const std::int32_t* from = table(parent);
  constexpr std::int32_t kAhead = 16;
  for (std::int32_t i = 0; i < model.num_blocks; ++i) {
    if (i + kAhead < model.num_blocks) prefetch(&nodes_[from[i + kAhead]]);
    nodes_.uses(from[i]).ref_count += static_cast<std::uint32_t>(count);
  }
  const std::int32_t* shown = nullptr;
  for (std::int64_t c = 0; c < count; ++c) {
    const std::int32_t index = unused_rows_.back();
    unused_rows_.pop_back();
    Sequence& child = sequences_[static_cast<std::size_t>(index)];
    model.generation = child.generation;
    model.mark = child.mark;
    model.waiting.clear();
    child = model;
    child.waiting.swap(waiting[static_cast<std::size_t>(c)]);
    index_.retain_root(child.root);
    copy_table(from, model.num_blocks, table_at(index));
    // The blocks are looked up for the first child only: nothing was written to its row since.
    if (c) {
      copy_table(shown, model.num_blocks, shown_at(index));
    } else {
      show(index, 0, model.num_blocks);
      shown = shown_at(index);
    }
    show_length(child);
    note_computing(child);
  }
  if (groups_) [[unlikely]]
    fork_groups(parent, children, count);
  counters_.forks += count;
  return true;
}

namespace {

struct Successor {
  Sequence state;               // what the sequence will be
  std::vector<NodeId> table;
  std::int64_t num_kept = 0;    // leading blocks that it has already
};

}  // namespace

void Sequences::reparent(const Handle* handles, const std::int64_t* parents, std::int64_t count) {
  Call call(*this);
  ++batch_mark_;
  for (std::int64_t i = 0; i < count; ++i) {
    Sequence& s = running(handles[i]);
    if (s.mark == batch_mark_)
      throw Error(ErrorKind::kValue,
                  "handles must be distinct, got " + std::to_string(handles[i]) + " twice");
    s.mark = batch_mark_;
    if (parents[i] < 0 || parents[i] >= count)
      throw Error(ErrorKind::kValue, "parents must be in [0, " + std::to_string(count) + "), got " +
                                         std::to_string(parents[i]) + " at index " +
                                         std::to_string(i));
    if (parents[i] != i) refuse_ahead(s, "reparent");
  }
  for (std::int64_t i = 0; i < count; ++i)
    if (parents[i] != i) refuse_ahead(live(handles[parents[i]]), "fork");
  std::vector<Successor> successors;
  successors.reserve(static_cast<std::size_t>(count));
  std::vector<Sequence*> changed;
  changed.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    if (parents[i] == i) continue;
    Sequence& s = live(handles[i]);
    const Sequence& parent = live(handles[parents[i]]);
    Successor next;
    next.state = parent;
    next.state.generation = s.generation;
    next.state.mark = s.mark;
    next.state.num_blocks = static_cast<std::int32_t>(
        std::min<std::int64_t>(parent.num_blocks, blocks_for(parent.num_tokens)));
    const std::int32_t* from = table(parent);
    const std::int32_t* old = table(s);
    next.table.assign(from, from + next.state.num_blocks);
    const std::int64_t both = std::min(next.state.num_blocks, s.num_blocks);
    while (next.num_kept < both && from[next.num_kept] == old[next.num_kept]) ++next.num_kept;
    changed.push_back(&s);
    successors.push_back(std::move(next));
  }

  std::vector<GroupRow> rows;  // what the parents were before, with the successors' states
  if (groups_) {
    std::vector<std::int64_t> needed(static_cast<std::size_t>(pool_.num_partitions()));
    for (std::int64_t i = 0; i < count; ++i) {
      if (parents[i] == i) continue;
      const Sequence& parent = live(handles[parents[i]]);
      refuse_moved(parent, "fork");
      check_available(needed[parent.partition] += num_states_, parent.partition);
      rows.push_back(group_row(parent));
    }
    for (std::size_t c = 0; c < successors.size(); ++c)
      take_successor(successors[c].state, successors[c].table, rows[c]);
  }
  // Every new reference before any release: a block may pass from one beam to another.
  for (const Successor& next : successors) {
    for (auto i = static_cast<std::size_t>(next.num_kept); i < next.table.size(); ++i)
      ++nodes_.uses(next.table[i]).ref_count;
    index_.retain_root(next.state.root);
  }
  for (std::size_t c = 0; c < changed.size(); ++c) {
    Sequence& s = *changed[c];
    Successor& next = successors[c];
    if (groups_) {
      keep_path(s);
      drop_states(s);
      drop_parts(s, 0);
      group_row(s) = rows[c];
    }
    release_nodes(s, next.num_kept);
    index_.release_root(s.root);
    s = std::move(next.state);
    copy_table(next.table.data() + next.num_kept, s.num_blocks - next.num_kept,
               table(s) + next.num_kept);
    show(row_of(s), next.num_kept, s.num_blocks - next.num_kept);
    show_length(s);
    note_computing(s);
    if (groups_) show_groups(s, 0);
  }
}

}  // namespace blockmgr
