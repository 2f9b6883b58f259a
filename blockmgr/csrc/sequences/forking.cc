#include <algorithm>
#include <cstring>

#include "sequences/arguments.h"
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

void Forking::next_handles(std::int64_t count, Handle* out) const {
  const auto unused = static_cast<std::int64_t>(rows().unused_rows.size());
  for (std::int64_t i = 0; i < std::min(count, unused); ++i)
    out[i] = rows().handle_of(rows().unused_rows[nth(unused - 1 - i)]);
}

void Forking::check_fork(const Sequence& parent, std::int64_t count) const {
  // The parent's forward may move to a copy of the tail; the children would wait for K/V that never
  // comes.
  rows().refuse_ahead(parent, "fork");
  check_at_least("n", count, 1);
  if (nth(count) > rows().unused_rows.size())
    throw OutOfSequences(count, static_cast<std::int64_t>(rows().unused_rows.size()));
  if (!has_groups()) [[likely]]
    return;
  use<GroupTables>().refuse_moved(parent, "fork");
  rows().check_available(count * use<GroupTables>().blocks_to_fork(parent),
                         pool().home(parent.partition));
}

// To the blocks that have tokens.
void Forking::limit_blocks(Sequence& s) const {
  const auto most = static_cast<std::int32_t>(rows().blocks_for(s.num_tokens));
  if (s.num_blocks <= most) return;
  s.num_blocks = most;
  s.missing_slots = 0;
}

bool Forking::fork(Handle handle, std::int64_t count, Handle* children, const Handle* expected) {
  Call call(rows());
  Sequence& parent = rows().running(handle);
  check_fork(parent, count);
  Sequence model = parent;
  model.session = SessionTable::kNone;
  // Look-ahead blocks hold nothing yet, so there is nothing in them to share.
  limit_blocks(model);
  std::vector<std::vector<Token>> waiting(nth(count), model.waiting);
  next_handles(count, children);
  if (expected && !std::equal(children, children + count, expected)) return false;

  const std::int32_t* from = rows().table(parent);
  constexpr std::int32_t kAhead = 16;
  for (std::int32_t i = 0; i < model.num_blocks; ++i) {
    if (i + kAhead < model.num_blocks) prefetch(&nodes()[from[i + kAhead]]);
    nodes().uses(from[i]).ref_count += static_cast<std::uint32_t>(count);
  }
  const std::int32_t* shown = nullptr;
  for (std::int64_t c = 0; c < count; ++c) {
    const std::int32_t row = rows().unused_rows.back();
    rows().unused_rows.pop_back();
    Sequence& child = rows().sequences[nth(row)];
    model.generation = child.generation;
    model.mark = child.mark;
    model.waiting.clear();
    child = model;
    child.waiting.swap(waiting[nth(c)]);
    index().retain_root(child.root);
    copy_table(from, model.num_blocks, rows().table_at(row));
    // The blocks are looked up for the first child only: nothing was written to its row since.
    if (c) {
      copy_table(shown, rows().shown_width(model.num_blocks), rows().shown_at(row));
    } else {
      rows().show(row, 0, model.num_blocks);
      shown = rows().shown_at(row);
    }
    rows().show_length(child);
    rows().note_computing(child);
  }
  for (std::int64_t c = 0; has_groups() && c < count; ++c)
    fork_groups(parent, rows().live(children[c]));
  rows().counters.forks += count;
  return true;
}

namespace {

struct Successor {
  Sequence state;  // what the sequence will be
  std::vector<NodeId> table;
  std::int64_t num_kept = 0;  // leading blocks that it has already
};

}  // namespace

void Forking::reparent(const Handle* handles, const std::int64_t* parents, std::int64_t count) {
  Call call(rows());
  ++rows().batch_mark;
  for (std::int64_t i = 0; i < count; ++i) {
    Sequence& s = rows().running(handles[i]);
    rows().name_once(s);
    if (parents[i] < 0 || parents[i] >= count)
      throw Error(ErrorKind::kValue, "parents must be in [0, " + std::to_string(count) + "), got " +
                                         std::to_string(parents[i]) + " at index " +
                                         std::to_string(i));
    if (parents[i] != i) rows().refuse_ahead(s, "reparent");
  }
  for (std::int64_t i = 0; i < count; ++i)
    if (parents[i] != i) rows().refuse_ahead(rows().live(handles[parents[i]]), "fork");
  std::vector<Successor> successors;
  successors.reserve(nth(count));
  std::vector<Sequence*> changed;
  changed.reserve(nth(count));
  for (std::int64_t i = 0; i < count; ++i) {
    if (parents[i] == i) continue;
    Sequence& s = rows().live(handles[i]);
    const Sequence& parent = rows().live(handles[parents[i]]);
    Successor next;
    next.state = parent;
    next.state.generation = s.generation;
    next.state.mark = s.mark;
    // Each session belongs to one namespace.
    next.state.session = s.root == parent.root ? s.session : SessionTable::kNone;
    limit_blocks(next.state);
    const std::int32_t* from = rows().table(parent);
    const std::int32_t* old = rows().table(s);
    next.table.assign(from, from + next.state.num_blocks);
    const std::int64_t both = std::min(next.state.num_blocks, s.num_blocks);
    while (next.num_kept < both && from[next.num_kept] == old[next.num_kept]) ++next.num_kept;
    changed.push_back(&s);
    successors.push_back(std::move(next));
  }

  // What the parents were before, with the successors' states; none without groups.
  std::vector<GroupRow> group_rows;
  std::vector<std::int64_t> needed(nth(pool().num_partitions()));
  for (std::int64_t i = 0; has_groups() && i < count; ++i) {
    if (parents[i] == i) continue;
    const Sequence& parent = rows().live(handles[parents[i]]);
    use<GroupTables>().refuse_moved(parent, "fork");
    const int home = pool().home(parent.partition);
    rows().check_available(needed[nth(home)] += use<GroupTables>().blocks_to_fork(parent), home);
    group_rows.push_back(rows().group_row(parent));
  }
  for (std::size_t c = 0; c < group_rows.size(); ++c)
    share_parts(successors[c].state, successors[c].table.data(), group_rows[c], group_rows[c]);
  // Every new reference before any release: a block may pass from one beam to another.
  for (const Successor& next : successors) {
    for (auto i = nth(next.num_kept); i < next.table.size(); ++i)
      ++nodes().uses(next.table[i]).ref_count;
    index().retain_root(next.state.root);
  }
  for (std::size_t c = 0; c < changed.size(); ++c) {
    Sequence& s = *changed[c];
    Successor& next = successors[c];
    if (!group_rows.empty()) {
      use<GroupEnds>().keep_path(s);
      use<GroupTables>().drop_states(s);
      use<GroupTables>().drop_parts(s, 0);
      rows().group_row(s) = group_rows[c];
    }
    use<Ending>().release_nodes(s, next.num_kept);
    index().release_root(s.root);
    if (s.session && !next.state.session) use<Sessions>().leave_session(s);
    s = std::move(next.state);
    copy_table(next.table.data() + next.num_kept, s.num_blocks - next.num_kept,
               rows().table(s) + next.num_kept);
    rows().show(rows().row_of(s), next.num_kept, s.num_blocks - next.num_kept);
    rows().show_length(s);
    rows().note_computing(s);
    use<GroupTables>().show_groups(s, 0);
  }
}

void Forking::fork_groups(const Sequence& parent, const Sequence& child) noexcept {
  const GroupRow& from = rows().group_row(parent);
  GroupRow& to = rows().group_row(child);
  to.first = from.first;
  to.stops = from.stops;
  to.moves = from.moves;
  share_parts(child, rows().table(child), from, to);
  use<GroupTables>().show_groups(child, 0);
}

// Gives a sequence the parts of another's nodes, and states of its own, before anything is
// released. model: what it is to be, in any row. Both rows may be one.
void Forking::share_parts(const Sequence& model, const NodeId* table, const GroupRow& from,
                          GroupRow& to) noexcept {
  for (const int g : attention()) {
    const std::int64_t until = use<Slices>().units_of(g, rows().num_slots(model));
    for (std::int64_t unit = from.first[nth(g)]; unit < until; ++unit)
      ++nodes().uses(groups()->part(g, table[unit])).ref_count;
  }
  for (const int g : recurrent()) {
    const NodeId source = from.states[nth(g)];
    to.states[nth(g)] = use<GroupTables>().take_of(g, model.partition, kNoNode);
    if (model.num_computed) copies().plan(source, to.states[nth(g)], config().block_size);
  }
  use<GroupTables>().fork_rings(from, model.partition, to);
  use<GroupTables>().fork_own(model, from, to);
  use<GroupTables>().take_others(to, model.partition);
}

}  // namespace blockmgr
