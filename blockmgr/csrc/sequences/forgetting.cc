#include <algorithm>

#include "sequences/arguments.h"
#include "sequences/sequences.h"

namespace blockmgr {

// What a sequence has computed stays its own, and so does all it computes from there on: that
// continues what was to be forgotten.
void Forgetting::detach(Sequence& s) noexcept {
  s.outdated = true;
  s.num_chained = 0;
}

// A node goes after the last of its children: each is tried in turn, and after it what it
// continues. By blocks, so that the order in which these are handed out next says nothing of ids
// that callers do not know.
std::int64_t Forgetting::reset_prefix_cache(bool reset_hit_rate) {
  Call call(rows());
  // A block that is not written yet would lose its mark with its key.
  for (const Sequence& s : rows().sequences)
    rows().refuse_ahead(s, "reset the prefix cache around");
  for (Sequence& s : rows().sequences)
    if (s.state == Sequence::kRunning) detach(s);
  const std::int64_t count = index().num_keyed();
  const PrefixIndex::Clearing clearing(index());
  int left = 0;
  do {
    left = index().num_keyed();
    for (std::int32_t block = 0; block < nodes().num_blocks; ++block)
      for (NodeId n = nodes().owner(block); n >= 0 && nodes()[n].keyed() &&
                                            !Pool::is_part(nodes()[n]) &&
                                            nodes()[n].first_child < 0;) {
        const NodeId parent = nodes()[n].parent;
        pool().forget(n);
        n = parent;
      }
    // With groups, a node may go with what continued it: what it continued is left then.
  } while (index().num_keyed() && index().num_keyed() < left);
  for (int i = 0; i < pool().num_partitions(); ++i)
    if (ReuseTracker* past = pool().past(i)) past->forget_ghosts();
  rows().counters.forgotten_blocks += count;
  if (reset_hit_rate) rows().recent_hits.clear();
  return count;
}

// The blocks are not looked at, with two exceptions. Events must name each of them, so that mirrors
// know no more than prompts find; and what a boundary of several groups needs goes with the
// boundary.
std::int64_t Forgetting::retire_root(std::uint32_t root) {
  const auto is_of = [root](const Sequence& s) {
    return s.state == Sequence::kRunning && s.root == root;
  };
  // A block that is not written yet would lose its mark with its key.
  for (const Sequence& s : rows().sequences)
    if (is_of(s)) rows().refuse_ahead(s, "retire a namespace around");
  index().reserve_retired();
  std::int64_t count = 0;
  for (Sequence& s : rows().sequences) {
    if (!is_of(s)) continue;
    detach(s);
    ++count;
  }
  const int before = index().num_keyed();
  if (has_groups() || index().log())
    for (NodeId b; (b = index().first_child(root_node(root))) >= 0;)
      pool().forget_tree(b, [](NodeId) {});
  rows().counters.forgotten_blocks += before - index().num_keyed();
  index().retire(root);
  rows().counters.has_retired = true;
  return count;
}

std::int64_t Forgetting::retire(std::string_view name) {
  Call call(rows());
  const std::uint32_t root = index().find_root(name);
  const std::int64_t count = root == kUnknownId ? 0 : retire_root(root);
  // No prompt could find what was evicted, either, in a pool of any size.
  if (ReuseTracker* past = pool().past(rows().partition_of(name))) past->forget_ghosts_of(name);
  return count;
}

// Takes a cached block and all that continues it out of the cache, children first, and marks them.
// With further groups of layers, a node may go with the last one that used it, if no boundary needs
// it; and what the chain continues goes if only the chain did.
std::int64_t Forgetting::forget_chain(NodeId b, std::vector<bool>* gone) noexcept {
  const int before = index().num_keyed();
  const NodeId start = nodes()[b].parent;
  pool().forget_tree(b, [gone](NodeId node) {
    if (gone) (*gone)[nth(node)] = true;
  });
  const int count = before - index().num_keyed();
  groups()->prune(start);
  return count;
}

// A sequence that reads wrong K/V continues, but nothing that it has from there on, or will
// compute, may be found. Returns whether that marks more blocks as wrong.
bool Forgetting::forget_table(Sequence& s, std::vector<bool>& wrong,
                              std::int64_t& forgotten) noexcept {
  const auto is_wrong = [&wrong](NodeId b) { return wrong[nth(b)]; };
  const std::int32_t* t = rows().table(s);
  const std::int32_t* end = t + s.num_blocks;
  const std::int32_t* at = std::find_if(t, end, is_wrong);
  if (at == end) return false;
  detach(s);
  bool more = false;
  for (; at != end; ++at) {
    more |= !is_wrong(*at);
    if (nodes()[*at].keyed()) {
      forgotten += forget_chain(*at, &wrong);
    } else {
      pool().drop_twin(*at);
      wrong[nth(*at)] = true;
    }
  }
  return more;
}

// The node that goes with a block of a further group of layers. The state that a sequence computes
// with has none, nor has a slot that it may be in later: the sequence is detached.
NodeId Forgetting::forget_part(NodeId n) noexcept {
  const int g = groups()->owner(n);
  if (g < 0) return n;
  for (Sequence& s : rows().sequences) {
    if (s.state != Sequence::kRunning) continue;
    if (!groups()->group(g).is_attention()) {
      const GroupRow& row = rows().group_row(s);
      const bool is_slot = std::count(row.others.begin(), row.others.end(), n) > 0;
      const bool is_own = std::count(row.own[nth(g)].begin(), row.own[nth(g)].end(), n) > 0;
      if (is_slot || is_own || row.states[nth(g)] == n) detach(s);
      continue;
    }
    for (std::int64_t i = rows().group_row(s).first[nth(g)]; i < s.num_blocks; ++i)
      if (groups()->part(g, rows().table(s)[i]) == n) return rows().table(s)[i];
  }
  return use<Holding>().node_behind(n);
}

// A sequence that stood beside a forgotten block with one of its own computed that itself: its
// blocks are cached again with its next commit.
void Forgetting::mend_chains() noexcept {
  for (Sequence& s : rows().sequences) {
    const std::int32_t* t = rows().table(s);
    for (std::int32_t i = 0; i < s.num_chained; ++i)
      if (!nodes()[t[i]].keyed() && nodes()[t[i]].parent < 0) s.num_chained = i;
    rows().note_computing(s);
  }
}

std::int64_t Forgetting::forget(const std::int64_t* ids, std::int64_t count) {
  Call call(rows());
  for (std::int64_t i = 0; i < count; ++i) rows().checked_block(ids[i], i);
  // A block that is not written yet would lose its mark with its key.
  for (const Sequence& s : rows().sequences) rows().refuse_ahead(s, "forget blocks around");
  std::vector<bool> wrong(nth(nodes().count));
  return forget_all(ids, count, wrong);
}

std::int64_t Forgetting::forget_all(const std::int64_t* ids, std::int64_t count,
                                    std::vector<bool>& wrong) noexcept {
  std::int64_t forgotten = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    NodeId n = nodes().owner(ids[i]);  // none: it was forgotten with another
    if (n >= 0) n = forget_part(n);
    if (n < 0) continue;
    wrong[nth(n)] = true;
    if (nodes()[n].keyed()) forgotten += forget_chain(n, &wrong);
  }
  // Where tables are append-only, another sequence may name what this one computed after a block
  // that only this one has.
  for (bool more = true; more;) {
    more = false;
    for (Sequence& s : rows().sequences) more |= forget_table(s, wrong, forgotten);
  }
  mend_chains();
  rows().counters.forgotten_blocks += forgotten;
  return forgotten;
}

// No prompt may find what loses its memory, and nothing may be cached in it any more: as if it were
// wrong. Private blocks are forgotten with the rest, so that their sequences cache nothing in them.
std::int64_t Forgetting::shrink_pool(std::int64_t num_blocks) {
  Call call(rows());
  const std::int64_t limit = pool().limit();
  check_bounds("num_blocks", num_blocks, rows().home_of(0).first, limit);
  if (num_blocks == limit) return pool().num_leaving();
  // A block that is not written yet would lose its mark with its key.
  for (const Sequence& s : rows().sequences) rows().refuse_ahead(s, "shrink the pool around");
  std::vector<std::int64_t> ids;
  for (std::int64_t b = num_blocks; b < limit; ++b)
    if (nodes().owner(b) >= 0) ids.push_back(b);
  std::vector<bool> wrong(nth(nodes().count));
  forget_all(ids.data(), static_cast<std::int64_t>(ids.size()), wrong);
  pool().shrink(static_cast<std::int32_t>(num_blocks));
  rows().settle_keeps();  // states that would be kept for what is forgotten leave, too
  return pool().num_leaving();
}

void Forgetting::grow_pool(std::int64_t num_blocks) {
  Call call(rows());
  check_bounds("num_blocks", num_blocks, pool().limit(), pool().num_blocks());
  pool().grow(static_cast<std::int32_t>(num_blocks));
}

}  // namespace blockmgr
