#include <algorithm>

#include "sequences/sequences.h"

namespace blockmgr {

void Prefixes::reset_hit_rate() {
  Call call(rows());
  rows().recent_hits.clear();
}

std::int64_t Prefixes::num_common_prefix_blocks(const Handle* handles, std::int64_t count) {
  Call call(rows());
  for (std::int64_t i = 0; i < count; ++i) rows().running(handles[i]);
  std::int64_t common = INT64_MAX;
  const std::int32_t* first = nullptr;
  for (std::int64_t i = 0; i < count; ++i)
    common = common_with(rows().live(handles[i]), first, common);
  return first ? common : 0;
}

std::int64_t Prefixes::num_common_prefix_blocks() {
  Call call(rows());
  std::int64_t common = INT64_MAX;
  const std::int32_t* first = nullptr;
  for (const Sequence& s : rows().sequences)
    if (s.state == Sequence::kRunning) common = common_with(s, first, common);
  return first ? common : 0;
}

// Leading whole computed blocks of the sequence that the first table has as well, of those that are
// common so far. The first sequence of all gives the table.
std::int64_t Prefixes::common_with(const Sequence& s, const std::int32_t*& first,
                                   std::int64_t common) const {
  const std::int32_t* t = rows().table(s);
  common = std::min(common, s.num_computed / config().block_size);
  if (!first) first = t;
  return std::mismatch(t, t + common, first).first - t;
}

std::int64_t Prefixes::num_digests(const Prompt& prompt) const {
  if (!digester())
    throw Error(ErrorKind::kValue, "block_digests needs a manager with prefix_caching=True");
  return prompt.num_tokens / config().block_size;
}

void Prefixes::block_digests(const Prompt& prompt, std::uint8_t* out) {
  Call call(rows());
  const std::int64_t count = num_digests(prompt);
  std::uint8_t root[kMaxDigest];
  index().digest_root(prompt.name, root);
  const std::uint8_t* before = root;
  auto keys = prompt.extras.begin();
  for (std::int64_t i = 0; i < count; ++i, before = out, out += nodes().digest_size) {
    while (keys != prompt.extras.end() && keys->first < i) ++keys;
    const bool has_keys = keys != prompt.extras.end() && keys->first == i;
    index().digest(before, has_keys ? keys->second : std::string_view(),
                   prompt.tokens + i * config().block_size, out);
  }
}

}  // namespace blockmgr
