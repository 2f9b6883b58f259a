#include <algorithm>
#include <bit>

#include "sequences/sequences.h"

namespace blockmgr {

namespace {

int common_prefix(const Token* a, const Token* b, int limit) {
  int n = 0;
  while (n < limit && a[n] == b[n]) ++n;
  return n;
}

}  // namespace

// The leading whole blocks of a prompt that are cached.
void Finding::find_prefix(const Token* tokens, std::int64_t count, NodeId root,
                          const ExtrasIds* extras, Found& found) {
  found.node = root;
  if (!digester()) return;
  // The last token is always left to compute; and no chain is longer than the row it came from.
  const std::int64_t limit =
      std::min<std::int64_t>((count - 1) / config().block_size, config().row_width);
  const Chain chain = index().find_chain(tokens, limit, root, extras, found_room_.data());
  found.full = found_room_.data();
  found.num_full = found.num_lead = chain.num_blocks;
  found.num_unused = pool().count_available(found.full, found.num_full);
  found.node = chain.node;
  found.strayed = chain.strayed;
}

// The last unit of the chain before `to` that lacks a cached part of some group; -1: none.
std::int64_t Finding::last_gap(const NodeId* chain, std::int64_t position, std::int64_t to) const {
  std::int64_t gap = -1;
  for (const int g : attention()) {
    const std::int64_t from = groups()->first_unit(g, position);
    for (std::int64_t unit = to; unit-- > from && unit > gap;)
      if (groups()->cached(g, chain[unit]) < 0) gap = unit;
  }
  return gap;
}

// Whether every recurrent group has a state at the end of this node.
bool Finding::has_states(NodeId node) const {
  for (const int g : recurrent()) {
    const NodeId state = groups()->cached(g, node);
    if (state < 0 || groups()->is_being_kept(state)) return false;
  }
  return true;
}

bool Finding::has_parts(NodeId node, std::int64_t unit, std::int64_t length) const {
  for (const int g : attention())
    if (groups()->cached(g, node) < 0 && groups()->reads(g, length, unit)) return false;
  return true;
}

// Whether every group has what the query behind so many tokens of this child reads.
bool Finding::is_served(const Found& found, NodeId child, int num_partial) const {
  const std::int64_t length = found.num_full * config().block_size + num_partial;
  return can_start(length) && has_parts(child, found.num_full, length) && has_states(child) &&
         last_gap(found.full, length, found.num_full) < 0;
}

// The child of the first num_full blocks that serves most of the tokens after them in every group.
// Below the end of what full attention has, only tails are worth a look: a whole unit would have
// been found. The most of these tokens that any child has, served or not.
int Finding::find_partial(const Token* tokens, std::int64_t count, const ExtrasIds* extras,
                          bool tails_only, Found& found) const {
  const std::int64_t start = found.num_full * config().block_size;
  const auto limit =
      static_cast<int>(std::min<std::int64_t>(count - 1 - start, config().block_size));
  if (limit < config().min_partial_tokens) return 0;
  const std::uint32_t keys = extras_at(extras, found.num_full);
  int best = config().min_partial_tokens - 1;
  int most_shared = 0;
  NodeId child = index().first_child(found.node);
  for (int seen = 0; child >= 0 && seen < kMostChildren;
       ++seen, child = nodes()[child].next_sibling) {
    const Node& record = nodes()[child];
    const bool tail = record.key_tokens < config().block_size;
    if (record.extras != keys || (tails_only && !tail)) continue;
    int n = common_prefix(nodes().tokens(child), tokens + start,
                          std::min<int>(limit, record.key_tokens));
    most_shared = std::max(most_shared, n);  // also of what this step's forward has yet to write
    n = std::min(n, record.key_tokens - use<GroupTables>().most_unwritten(child));
    n -= static_cast<int>(groups()->past_start(start + n));
    const bool at_end = tail && n == record.key_tokens;
    // A tail that can be taken over needs no copy.
    const bool is_better =
        n > best || (n == best && at_end && found.partial >= 0 && !found.take_over);
    const bool may_end = n < config().block_size && (at_end || !(num_states() || tails_only));
    if (!is_better || !may_end) continue;
    if (has_groups() && !is_served(found, child, n)) continue;
    // What does not match would be lost to others, so a tail is taken over whole or copied.
    const bool takes_over = at_end && !groups()->is_branch(child) && is_unused(child, true);
    if (n > best || takes_over) {
      found.partial = child;
      found.num_partial = n;
      found.take_over = takes_over;
    }
    best = n;
  }
  return most_shared;
}

// Whether no sequence uses the end of what is found, so that it can become this one's own: a tail
// as it is, or the states of a whole block.
bool Finding::may_take_over(const Found& found) const {
  const bool within = found.partial >= 0;
  if (within && nodes()[found.partial].key_tokens != found.num_partial) return false;
  if (!within && !(num_states() && found.num_full)) return false;
  return is_unused(last_node(found), within);
}

inline bool Finding::is_unused(NodeId end, bool within) const {
  if (within && !pool().counts_as_available(end)) return false;
  const auto is_used = [&](int g) {
    const NodeId m = groups()->cached(g, end);
    return m >= 0 && !pool().counts_as_available(m);
  };
  return std::none_of(recurrent().begin(), recurrent().end(), is_used) &&
         !(within && std::any_of(attention().begin(), attention().end(), is_used));
}

// The blocks of a chain, so many at most, up to the deepest place that every group serves. look: at
// each place on the way there.
template <class Look>
std::int64_t Finding::go_back(const NodeId* chain, std::int64_t length, const Look& look) const {
  while (true) {
    look(length);
    const std::int64_t gap = last_gap(chain, length * config().block_size, length);
    const bool starts = can_start(length * config().block_size);
    if (gap < 0 && starts && (!length || has_states(chain[length - 1]))) return length;
    length = gap < 0 ? length - 1 : gap;
  }
}

// From the end of what full attention has back to where every group serves it. On the way, the
// first tail that every group serves is found, unless there is such a part of a block already.
// Returns the number of blocks that they serve as a whole, and leaves the most as found.
std::int64_t Finding::find_served(const Token* tokens, std::int64_t count,
                                  const Applicant& applicant, Found& found) const {
  const NodeId* const chain = found.full;
  const std::int64_t from = found.num_full;
  // Where rings restart within whole units, these can be served in part.
  const bool tails_only = config().block_size % groups()->restart() == 0;
  const std::int64_t length = go_back(chain, from, [&](std::int64_t at) {
    if (at == from || !config().min_partial_tokens || found.partial >= 0) return;
    if (tails_only && !groups()->has_tails(at ? chain[at - 1] : applicant.root)) return;
    Found shorter = found;
    cut(shorter, at, applicant.root);
    find_partial(tokens, count, applicant.extras, tails_only, shorter);
    if (shorter.partial >= 0) found = shorter;
  });
  if (found.partial < 0 || found.num_full < length) cut(found, length, applicant.root);
  if (applicant.num_loaded <= num_cached(found)) return length;
  const std::int64_t kept = kept_before_load(chain, from, applicant.num_loaded);
  // A match may have looked for a prompt that loads nothing.
  if (applicant.due_cached >= 0 && kept * config().block_size != applicant.due_cached)
    return length;
  cut(found, kept, applicant.root);
  return kept;
}

// The leading blocks of a chain that need not come with a load of so many tokens: every group has
// what the query behind the load reads of them.
std::int64_t Finding::kept_before_load(const NodeId* chain, std::int64_t count,
                                       std::int64_t num_loaded) const {
  std::int64_t kept = std::min<std::int64_t>(count, block_size().whole(num_loaded - 1));
  for (const int g : attention())
    for (std::int64_t unit = groups()->first_unit(g, num_loaded); unit < kept; ++unit)
      if (groups()->cached(g, chain[unit]) < 0) kept = unit;
  return kept;
}

// Of a call that takes less than is cached: where prompts diverge does not depend on that.
std::int64_t Finding::count_shared(const Token* tokens, std::int64_t num_tokens,
                                   const ExtrasIds* extras, Found lead) const {
  if (!config().min_partial_tokens || !(num_states() || config().stop_margin)) return 0;
  return find_partial(tokens, num_tokens, extras, false, lead);
}

void Finding::cut(Found& found, std::int64_t num_full, NodeId root) const {
  found.partial = kNoNode;
  found.num_partial = 0;
  found.take_over = false;
  if (found.num_full == num_full) return;
  found.num_full = num_full;
  found.node = num_full ? found.full[num_full - 1] : root;
  found.num_unused = pool().count_available(found.full, num_full);
}

std::int64_t Finding::served_of(const Found& chain) const {
  return go_back(chain.full, chain.num_full, [](std::int64_t) {});
}

std::int64_t Finding::num_computing(const Prompt& prompt, const Found& found) {
  if (!digester() || rows().computing.first() == BitTree::kNone) return 0;
  const std::uint32_t root = index().find_root(prompt.name);
  if (root == kUnknownId) return 0;
  const std::int64_t size = config().block_size;
  const std::int64_t last = std::min(prompt.num_tokens - 1, most_hit(prompt));
  const ExtrasIds extras = known_extras(index().extras(), prompt.extras);
  const std::int64_t most = count_with_computing(prompt.tokens, last / size, root, extras, found);
  return most > found.num_full ? most * size - num_cached(found) : 0;
}

// Leading whole blocks of these tokens, limit at most, that are cached or that a running sequence
// has yet to commit. Forgets rows that have nothing left to commit.
std::int64_t Finding::count_with_computing(const Token* tokens, std::int64_t limit,
                                           std::uint32_t root, const ExtrasIds& extras,
                                           const Found& found) {
  std::int64_t most = found.num_full;
  for (std::uint32_t word = rows().computing.next_word(0); word != BitTree::kNone;
       word = rows().computing.next_word(word + 1)) {
    for (std::uint64_t left = rows().computing.word(word); left; left &= left - 1) {
      const std::uint32_t row = word << 6 | static_cast<std::uint32_t>(std::countr_zero(left));
      const Sequence& s = rows().sequences[row];
      if (!rows().is_computing(s)) {
        rows().computing.erase(row);
      } else if (s.root == root) {
        most = std::max(most, count_computing(s, tokens, limit, extras, found));
      }
    }
  }
  return most;
}

// The same for one sequence. What it has committed is cached; if that is not the beginning of what
// was found, the sequence computes other blocks.
std::int64_t Finding::count_computing(const Sequence& s, const Token* tokens, std::int64_t limit,
                                      const ExtrasIds& extras, const Found& found) const {
  const std::int64_t size = config().block_size;
  std::int64_t i = s.num_chained;
  if (i > found.num_full || (i && rows().chain_node(s, i) != found.full[i - 1])) return 0;
  const NodeId* t = rows().table(s);
  const std::int64_t end = std::min(limit, s.num_tokens / size);
  const Token* const waiting = s.waiting.data() + s.waiting_start;
  for (; i < end; ++i) {
    const Token* own =
        i < s.num_blocks ? nodes().tokens(t[i]) : waiting + (i - s.num_blocks) * size;
    if (extras_at(s.extras_ids(), i) != extras_at(&extras, i) ||
        !same_tokens(own, tokens + i * size, static_cast<int>(size)))
      break;
  }
  return i;
}

}  // namespace blockmgr
