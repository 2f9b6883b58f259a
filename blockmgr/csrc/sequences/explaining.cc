#include <algorithm>
#include <cstring>

#include "sequences/sequences.h"

namespace blockmgr {

namespace {

// Where else the blocks of a prompt are cached: under any namespace, with any extra keys.
class Elsewhere {
 public:
  Elsewhere(const Rows& rows, const Prompt& prompt, std::uint32_t root)
      : rows_(rows), prompt_(prompt) {
    for (std::uint32_t r = 0; r < rows.index().num_roots(); ++r)
      (r == root ? here_ : others_).push_back(root_node(r));
  }
  // Steps over one more block; afterwards here() and others() say where all blocks so far are.
  void step(std::int64_t logical) {
    step(logical, here_);
    step(logical, others_);
  }
  bool here() const { return !here_.empty(); }
  bool others() const { return !others_.empty(); }

 private:
  void step(std::int64_t logical, std::vector<NodeId>& nodes) {
    const int size = rows_.config().block_size;
    const Token* tokens = prompt_.tokens + logical * size;
    next_.clear();
    for (const NodeId node : nodes)
      for (NodeId child = rows_.index().first_child(node); child >= 0;
           child = rows_.nodes()[child].next_sibling)
        if (rows_.nodes()[child].key_tokens == size &&
            same_tokens(rows_.nodes().tokens(child), tokens, size))
          next_.push_back(child);
    nodes.swap(next_);
  }

  const Rows& rows_;
  const Prompt& prompt_;
  std::vector<NodeId> here_;
  std::vector<NodeId> others_;
  std::vector<NodeId> next_;
};

}  // namespace

// The most leading tokens that any child of the node has in common with these.
std::int64_t Explaining::longest_child_prefix(const Token* tokens, std::uint32_t extras,
                                              NodeId node) const {
  std::int64_t most = 0;
  for (NodeId child = index().first_child(node); child >= 0; child = nodes()[child].next_sibling) {
    const Node& record = nodes()[child];
    if (record.extras != extras) continue;
    std::int64_t n = 0;
    while (n < record.key_tokens && nodes().tokens(child)[n] == tokens[n]) ++n;
    most = std::max(most, n);
  }
  return most;
}

// The group, in the order of the engine, that does not serve so many blocks of a cached chain.
int Explaining::refusing_group(const NodeId* chain, std::int64_t length) const {
  for (const int g : rings())
    if (!groups()->replay() && length * config().block_size % groups()->group(g).restart)
      return rows().in_engine(g);
  for (const int g : replayed())
    if (length * config().block_size <= groups()->group(g).replay) return rows().in_engine(g);
  for (int g = 0; g < groups()->num_groups(); ++g) {
    if (!groups()->group(g).is_cached()) continue;
    if (groups()->group(g).recurrent()) {
      const NodeId state = groups()->cached(g, chain[length - 1]);
      if (state < 0 || groups()->is_being_kept(state)) return rows().in_engine(g);
      continue;
    }
    const std::int64_t first = groups()->first_unit(g, length * config().block_size);
    for (std::int64_t unit = first; unit < length; ++unit)
      if (groups()->cached(g, chain[unit]) < 0) return rows().in_engine(g);
  }
  return -1;
}

ExplainResult Explaining::explain(const Prompt& prompt) {
  Call call(rows());
  const std::int64_t count = prompt.num_tokens;
  use<Needs>().check_lookup(count, prompt.name);
  ExplainResult result;
  if (!digester()) {
    result.missed.push_back({Miss::kCachingOff, count});
    return result;
  }
  const std::int64_t size = config().block_size;
  const std::int64_t limit = (count - 1) / size;  // the last token is always left to compute
  const std::uint32_t root = index().find_root(prompt.name);
  const ExtrasIds extras = known_extras(index().extras(), prompt.extras);
  Found found;
  Reach reach;
  if (root != kUnknownId)
    use<Finding>().find(prompt.tokens, count,
                        {root_node(root), &extras, rows().partition_of(root), 0, true}, found,
                        reach);
  result.num_partial = found.num_partial;
  result.num_cached = num_cached(found);
  for (std::int64_t i = found.num_full; i < reach.num_lead; ++i)
    result.missed.push_back(
        {Miss::kGroup, (i + 1) * size, 0, -1, refusing_group(found.full, i + 1)});
  found.num_full = reach.num_lead;  // what full attention has
  if (found.num_full) found.node = found.full[found.num_full - 1];

  const bool missing = found.num_full < limit;
  const std::int64_t held =
      missing && root != kUnknownId
          ? use<Finding>().count_with_computing(prompt.tokens, limit, root, extras, found)
          : 0;
  Elsewhere elsewhere(rows(), prompt, root);
  if (missing)
    for (std::int64_t i = 0; i < found.num_full; ++i) elsewhere.step(i);
  const int partition = rows().partition_of(root);
  const ReuseTracker* reuse = pool().past(partition);
  std::uint8_t digest[kMaxDigest];
  if (missing && reuse) {
    if (root != kUnknownId) {
      std::memcpy(digest, index().digest_of(found.node), nth(nodes().digest_size));
    } else {
      index().digest_root(prompt.name, digest);
    }
  }
  const std::int64_t evicted = pool().partition(partition).num_evicted;
  const bool all_known = !rows().counters.forgotten_blocks && !rows().counters.has_retired &&
                         (reuse ? !reuse->num_forgotten() : !evicted);
  Miss unseen = all_known ? Miss::kNeverSeen : Miss::kNotRemembered;
  auto keys = prompt.extras.begin();
  for (std::int64_t i = found.num_full; i < limit; ++i) {
    const Token* tokens = prompt.tokens + i * size;
    MissedBlock missed{unseen, (i + 1) * size};
    elsewhere.step(i);
    std::int32_t ghost = -1;
    if (reuse) {
      while (keys != prompt.extras.end() && keys->first < i) ++keys;
      const bool has_keys = keys != prompt.extras.end() && keys->first == i;
      index().digest(digest, has_keys ? keys->second : std::string_view(), tokens, digest);
      ghost = reuse->find(digest);
    }
    if (i < held) {
      missed.reason = Miss::kNotCommitted;
    } else if (ghost >= 0) {
      missed.reason = Miss::kEvicted;
      missed.more_blocks = std::max<std::int64_t>(
          reuse->place_of_ghost(ghost) - pool().partition(partition).capacity, 0);
      missed.evicted_ago = reuse->evicted_ago(ghost);
    } else if (elsewhere.here()) {
      missed.reason = Miss::kOtherExtras;
    } else if (elsewhere.others()) {
      missed.reason = Miss::kOtherNamespace;
    } else if (i == found.num_full && root != kUnknownId) {
      const std::int64_t n = longest_child_prefix(tokens, extras_at(&extras, i), found.node);
      if (n) {
        result.diverges_at = i * size + n;
        missed.reason = unseen = Miss::kDiverged;
      }
    }
    result.missed.push_back(missed);
  }
  const std::int64_t rest = count - std::max(limit * size, result.num_cached);
  const bool last = rest == 1 || count % size == 0;
  result.missed.push_back({last ? Miss::kLastToken : Miss::kPartialBlock, count});
  return result;
}

}  // namespace blockmgr
