// The cache as a whole: making it forget, and what prompts and sequences have in common.
#include <algorithm>
#include <cstring>

#include "sequences/sequences.h"

namespace blockmgr {

// What a sequence has computed stays its own, and so does all it computes from there on: that
// continues what was to be forgotten.
void Sequences::detach(Sequence& s) noexcept {
  s.outdated = true;
  s.num_chained = 0;
}

// A node goes after the last of its children: each is tried in turn, and after it what it
// continues. By blocks, so that the order in which these are handed out next says nothing of ids
// that callers do not know.
std::int64_t Sequences::reset_prefix_cache(bool reset_hit_rate) {
  Call call(*this);
  // The mark of what is not written yet would go with its key.
  for (const Sequence& s : sequences_) refuse_ahead(s, "reset the prefix cache around");
  for (Sequence& s : sequences_)
    if (s.state == Sequence::kRunning) detach(s);
  const std::int64_t count = index_.num_keyed();
  const PrefixIndex::Clearing clearing(index_);
  for (std::int32_t block = 0; block < nodes_.num_blocks; ++block)
    for (NodeId n = nodes_.owner(block);
         n >= 0 && nodes_[n].keyed() && !Pool::is_part(nodes_[n]) && nodes_[n].first_child < 0;) {
      const NodeId parent = nodes_[n].parent;
      pool_.forget(n);
      n = parent;
    }
  for (int i = 0; i < pool_.num_partitions(); ++i)
    if (ReuseTracker* past = pool_.past(i)) past->forget_ghosts();
  counters_.forgotten_blocks += count;
  if (reset_hit_rate) recent_hits_.clear();
  return count;
}

void Sequences::reset_hit_rate() {
  Call call(*this);
  recent_hits_.clear();
}

std::int64_t Sequences::num_common_prefix_blocks(const Handle* handles, std::int64_t count) {
  Call call(*this);
  for (std::int64_t i = 0; i < count; ++i) running(handles[i]);
  std::int64_t common = INT64_MAX;
  const std::int32_t* first = nullptr;
  for (std::int64_t i = 0; i < count; ++i) common = common_with(live(handles[i]), first, common);
  return first ? common : 0;
}

std::int64_t Sequences::num_common_prefix_blocks() {
  Call call(*this);
  std::int64_t common = INT64_MAX;
  const std::int32_t* first = nullptr;
  for (const Sequence& s : sequences_)
    if (s.state == Sequence::kRunning) common = common_with(s, first, common);
  return first ? common : 0;
}

// Leading whole computed blocks of the sequence that the first table has as well, of those that are
// common so far. The first sequence of all gives the table.
std::int64_t Sequences::common_with(const Sequence& s, const std::int32_t*& first,
                                    std::int64_t common) const {
  const std::int32_t* t = table(s);
  common = std::min(common, s.num_computed / config_.block_size);
  if (!first) first = t;
  return std::mismatch(t, t + common, first).first - t;
}

std::int64_t Sequences::num_digests(const Prompt& prompt) const {
  if (!digester_)
    throw Error(ErrorKind::kValue, "block_digests needs a manager with prefix_caching=True");
  return prompt.num_tokens / config_.block_size;
}

void Sequences::block_digests(const Prompt& prompt, std::uint8_t* out) {
  Call call(*this);
  const std::int64_t count = num_digests(prompt);
  std::uint8_t root[kMaxDigest];
  index_.digest_root(prompt.name, root);
  const std::uint8_t* before = root;
  auto keys = prompt.extras.begin();
  for (std::int64_t i = 0; i < count; ++i, before = out, out += nodes_.digest_size) {
    while (keys != prompt.extras.end() && keys->first < i) ++keys;
    const bool has_keys = keys != prompt.extras.end() && keys->first == i;
    index_.digest(before, has_keys ? keys->second : std::string_view(),
                  prompt.tokens + i * config_.block_size, out);
  }
}

}  // namespace blockmgr
