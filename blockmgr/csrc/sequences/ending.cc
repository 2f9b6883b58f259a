#include <algorithm>

#include "sequences/arguments.h"
#include "sequences/sequences.h"

namespace blockmgr {

// Tail first: a prefix is only useful from its start, so its end should be evicted before it.
void Ending::release_blocks(Sequence& s, std::int64_t keep) noexcept {
  use<GroupTables>().drop_parts(s, keep);
  release_nodes(s, keep);
}

// With copies pending. None is into a block that is found by its content, or whose twin is; but a
// short table is not worth a run.
void Ending::release_written(const Sequence& s, std::int64_t keep) noexcept {
  constexpr std::int64_t kShort = 16;
  const std::int32_t* t = rows().table(s);
  std::int64_t end = s.num_blocks;
  const bool runs = end - keep > kShort;
  const std::int64_t stop = runs ? std::max<std::int64_t>(keep, s.num_chained) : keep;
  while (end > stop) rows().drop_reference(t[--end]);
  if (runs) pool().release_table(t + keep, end - keep);
}

void Ending::release_nodes(Sequence& s, std::int64_t keep) noexcept {
  const std::int32_t* t = rows().table(s);
  const std::int64_t count = s.num_blocks - keep;
  if (count <= 0) return;
  if (copies().num_pending()) {
    release_written(s, keep);
  } else {
    pool().release_table(t + keep, count);
  }
  if (!pool().is_bare())  // else GroupTables shows none of them any more
    std::fill_n(rows().shown_at(rows().row_of(s)) + rows().shown_width(keep),
                rows().shown_width(count), 0);
  s.num_blocks = static_cast<std::int32_t>(keep);
  s.missing_slots = 0;
}

// Its end becomes findable; what it committed ahead of this step's forward is taken back first.
[[gnu::always_inline]] inline void Ending::leave(Sequence& s, bool resumes,
                                                 bool withdraws) noexcept {
  if (withdraws) withdraw(s);
  use<GroupEnds>().leave(s, resumes);
}

void Ending::free(Handle handle, bool withdraws) {
  Call call(rows());
  Sequence& s = rows().live(handle);
  check_leaving(s, withdraws, "free");
  leave(s, false, withdraws);
  end(s);
}

void Ending::release_all(Sequence& s, bool resumes) noexcept {
  if (!s.session) [[likely]]
    return release_blocks(s, 0);
  const SessionPath path = use<Sessions>().path_of(s);
  release_blocks(s, 0);
  use<Sessions>().end(s, path, resumes);
}

void Ending::end(Sequence& s) noexcept {
  release_all(s, false);
  index().release_root(s.root);
  const std::uint32_t generation = (s.generation + 1) & 0x7fffffff;
  const std::uint64_t mark = s.mark;
  s = Sequence();
  s.generation = generation ? generation : 1;
  s.mark = mark;
  rows().show_length(s);
  rows().unused_rows.push_back(static_cast<std::int32_t>(rows().row_of(s)));
}

void Ending::preempt(Handle handle, bool withdraws) {
  Call call(rows());
  Sequence& s = rows().running(handle);
  check_leaving(s, withdraws, "preempt");
  std::vector<Token> tokens(nth(s.num_tokens));
  rows().copy_tokens(handle, tokens.data());

  leave(s, true, withdraws);
  release_all(s, true);
  s.waiting.swap(tokens);
  s.waiting_start = 0;
  s.state = Sequence::kPreempted;
  s.outdated = false;  // it will compute all of it again
  s.num_chained = 0;
  s.num_computed = s.num_cached = 0;
  s.early_step = -1;
  rows().show_length(s);
  ++rows().counters.preemptions;
}

std::int64_t Ending::truncate(Handle handle, std::int64_t num_tokens) {
  Call call(rows());
  Sequence& s = rows().running(handle);
  check_bounds("num_tokens", num_tokens, 1, s.num_tokens);
  if (num_tokens < s.num_computed) rows().refuse_ahead(s, "truncate");
  const std::int64_t before = s.num_computed;
  std::int64_t length = std::min(before, num_tokens);
  std::int64_t whole = num_tokens / config().block_size;
  std::int64_t kept = rows().blocks_for(num_tokens);
  use<GroupTables>().refuse_loading(s, "truncate");
  const bool is_settled = !rows().committed_ahead(s);
  const bool falls = has_groups() && is_settled;  // to where every group serves it
  if (falls) [[unlikely]] {
    const std::int64_t given = rows().computed(s);  // to its rings
    length = fall_of(s, length, before);
    whole = length / config().block_size;
    const std::int64_t units = units_after_fall(s, length);
    if (units < std::min<std::int64_t>(kept, s.num_blocks))
      wait_from(s, units * config().block_size, num_tokens);
    GroupRow& row = rows().group_row(s);  // nothing is refused from here on
    row.farthest = std::max(row.farthest, given);
    row.sure = std::max(row.sure, given);
    kept = std::min(kept, units);
    if (whole < s.num_chained) use<GroupEnds>().keep_path(s);
  }
  const std::int64_t room = std::min<std::int64_t>(kept, s.num_blocks) * config().block_size;
  if (num_tokens <= room) {
    std::vector<Token>().swap(s.waiting);
    s.waiting_start = 0;
  } else {
    s.waiting.resize(s.waiting_start + nth(num_tokens - room));
  }
  release_blocks(s, kept);
  s.num_tokens = num_tokens;
  rows().limit_computed(s, num_tokens);
  s.num_cached = std::min(s.num_cached, length);
  s.num_chained = std::min(s.num_chained, static_cast<std::int32_t>(whole));
  rows().show_length(s);
  if (falls) [[unlikely]] {
    fall_to(s, length, before);
    rows().note_computing(s);
  }
  if (config().early_commit && is_settled) use<GroupTables>().note_written(s);
  return rows().computed(s);
}

// Its tokens from here on are to wait for slots again. Nothing else changes.
void Ending::wait_from(Sequence& s, std::int64_t from, std::int64_t num_tokens) {
  std::vector<Token> tokens(nth(s.num_tokens));
  rows().copy_tokens(rows().handle_of(rows().row_of(s)), tokens.data());
  std::vector<Token> waiting(tokens.begin() + std::min(from, num_tokens),
                             tokens.begin() + num_tokens);
  s.waiting.swap(waiting);
  s.waiting_start = 0;
}

// Where a truncated sequence goes on: the deepest prefix, of so many tokens at most, at which every
// group has what it reads. before: where its states stand.
std::int64_t Ending::fall_of(const Sequence& s, std::int64_t most, std::int64_t before) const {
  const std::int64_t size = config().block_size;
  const GroupRow& row = rows().group_row(s);
  const NodeId* t = rows().table(s);
  const auto has_attention = [&](std::int64_t length) {
    for (const int g : attention()) {
      for (std::int64_t unit = groups()->first_unit(g, length); unit < rows().blocks_for(length);
           ++unit) {
        if (unit >= row.first[nth(g)]) continue;
        if ((unit + 1) * size > length || !nodes()[t[unit]].keyed() ||
            groups()->cached(g, t[unit]) < 0)
          return false;
      }
    }
    return true;
  };
  const auto has_state = [&](std::int64_t length) {
    if (!length || !num_states() || (length == before && row.stands())) return true;
    const NodeId end = length % size ? kNoNode : rows().chain_node(s, length / size);
    if (end < 0) return false;
    for (const int g : recurrent()) {
      const NodeId own = row.states[nth(g)];
      if (nodes().uses(own).pins || nodes()[own].in_flight) return false;
      const NodeId kept = groups()->cached(g, end);
      if (kept < 0 || (!config().remap && groups()->is_being_kept(kept))) return false;
    }
    return true;
  };
  for (std::int64_t length = most; length > 0; --length) {
    const bool has_rings = rows().replays(s) || groups()->begins_empty(length) ||
                           use<GroupTables>().rings_reach(s, length);
    if (has_rings && use<GroupTables>().has_own(s, length) && has_state(length) &&
        has_attention(length))
      return length;
  }
  return 0;
}

// The units that it keeps there: behind a gap in a window it loses its slots.
std::int64_t Ending::units_after_fall(const Sequence& s, std::int64_t length) const {
  std::int64_t units = s.num_blocks;
  const std::int64_t whole = length / config().block_size;
  for (const int g : growing())
    if (rows().group_row(s).first[nth(g)] > whole)
      units = std::min(units, std::max(whole, groups()->first_unit(g, length)));
  return units;
}

void Ending::fall_to(Sequence& s, std::int64_t length, std::int64_t before) noexcept {
  GroupRow& row = rows().group_row(s);
  const NodeId* t = rows().table(s);
  const std::int64_t whole = length / config().block_size;
  const bool moves_states = length && (length != before || !row.stands());
  for (const int g : recurrent()) {
    if (!moves_states) break;
    const NodeId state = row.states[nth(g)];
    copies().drop(state);
    copies().plan(groups()->cached(g, use<GroupTables>().path_node(s, whole - 1)), state,
                  config().block_size);
  }
  if (!rings().empty()) {
    // A replay goes on where it is or, if the rings have lost what it reads there, begins again.
    const bool goes_on = length && rows().replays(s);
    if (!use<GroupTables>().rings_reach(s, goes_on ? row.replayed : length)) {
      const std::int64_t start = goes_on ? row.start : length;
      use<GroupTables>().empty_rings(s, start);
      row.replayed = std::min(row.replayed, start);
    }
  }
  for (const int g : attention()) {
    std::int32_t& first = row.first[nth(g)];
    const auto due = static_cast<std::int32_t>(groups()->first_unit(g, length));
    for (std::int32_t unit = due; unit < first && unit < whole; ++unit)
      pool().acquire(groups()->part(g, t[unit]));
    first = std::min(first, due);
  }
  row.hit = std::min(row.hit, length);
  row.start = std::min(row.start, length);
  row.replayed = row.begun = std::min(row.replayed, length);
  row.moves = 0;
  s.num_computed = length;
  use<GroupTables>().show_groups(s, 0);
}

// A conversation that goes on will use all its blocks. One that ends releases what is its own: from
// its end up to a block that is in use by others, that others continue from, or that another one
// has promised to use.
void Ending::hint_blocks(const Sequence& s, bool expect_reuse) noexcept {
  RetainingPolicy& policy = *pool().partition(s.partition).retention;
  NodeId below = kNoNode;
  for (std::int64_t i = s.num_blocks; i-- > 0;) {
    const NodeId own = rows().table(s)[i];
    const bool keyed = nodes()[own].keyed();
    const NodeId node = keyed ? own : nodes()[own].parent;
    if (node < 0) continue;
    if (!expect_reuse) {
      const Node& record = nodes()[node];
      const bool in_use = nodes().uses(node).ref_count > (keyed ? 1 : 0);
      const bool branches = record.first_child >= 0 &&
                            (record.first_child != below || nodes()[below].next_sibling >= 0);
      if (in_use || branches || policy.is_expected(node)) return;
    }
    policy.hint(node, expect_reuse);
    below = node;
  }
}

void Ending::free_expecting(Handle handle, bool expect_reuse, bool withdraws) {
  Call call(rows());
  rows().check_retaining("expect_reuse");
  Sequence& s = rows().live(handle);
  check_leaving(s, withdraws, "free");
  leave(s, expect_reuse, withdraws);
  hint_blocks(s, expect_reuse);
  end(s);
}

// Before a sequence releases its blocks. The forward will not write them, so no prompt may find
// them afterwards. Another sequence that has found one already relies on it: then the call is
// refused.
void Ending::check_withdrawal(const Sequence& s, const char* call) const {
  if (!rows().committed_ahead(s)) return;
  rows().refuse_open_ticket(call);
  const auto check = [&](NodeId n) {
    if (nodes()[n].unwritten && nodes().uses(n).ref_count > 1)
      rows().refuse(s, call,
                    "block " + std::to_string(rows().name(n)) +
                        ", which this step's forward writes for it, is shared");
  };
  const std::int32_t* t = rows().table(s);
  for (std::int64_t i = rows().settled(s) / config().block_size; i < s.num_chained; ++i) {
    check(t[i]);
    use<GroupTables>().each_part(s, i, [&](int, NodeId part) { check(part); });
  }
}

void Ending::forget_unwritten(NodeId n) noexcept {
  unwritten().remove(n);
  nodes()[n].unwritten = 0;
}

// The last first, so that each goes after what continues it. A block may have come to its key, and
// to children, by a twin without a table: those go with it.
void Ending::withdraw(Sequence& s) noexcept {
  if (!rows().committed_ahead(s)) return;
  const std::int64_t kept = rows().settled(s) / config().block_size;
  const std::int32_t* t = rows().table(s);
  for (std::int64_t i = s.num_chained; i-- > kept;) {
    const Node& record = nodes()[t[i]];
    // A key that passes to a twin goes without what was not written.
    const bool passes = record.keyed() && record.unwritten && pool().first_twin(t[i]) >= 0;
    use<GroupTables>().each_part(s, i, [&](int g, NodeId part) {
      const bool is_unwritten = nodes()[part].unwritten;
      if (is_unwritten) forget_unwritten(part);
      if (passes || (is_unwritten && !record.unwritten)) groups()->lose_part(g, t[i]);
    });
    if (!record.unwritten) continue;
    forget_unwritten(t[i]);
    // To a twin, which the same forward writes for another, the key passes with the release.
    if (!record.keyed()) {
      pool().drop_twin(t[i]);
    } else if (pool().first_twin(t[i]) < 0) {
      use<Forgetting>().forget_chain(t[i]);
    }
  }
  s.num_chained = static_cast<std::int32_t>(std::min<std::int64_t>(s.num_chained, kept));
  rows().limit_computed(s, rows().settled(s));
}

}  // namespace blockmgr
