#include <algorithm>

#include "sequences/sequences.h"

namespace blockmgr {

void Reading::check_slots(Handle handle, std::int64_t start, std::int64_t stop) const {
  const Sequence& s = rows().live(handle);
  const std::int64_t slots = rows().num_slots(s);
  if (start < 0 || stop < start || stop > slots)
    throw Error(ErrorKind::kValue,
                "start and stop must satisfy 0 <= start <= stop <= " + std::to_string(slots) +
                    " (slots), got " + std::to_string(start) + " and " + std::to_string(stop));
}

void Reading::check_table_slots(Handle handle, std::int64_t start, std::int64_t stop) const {
  if (pool().is_bare() && rows().has_table_slots()) [[unlikely]]
    return check_group_slots(handle, 0, start, stop);
  check_slots(handle, start, stop);
}

void Reading::slot_mapping(Handle handle, std::int64_t start, std::int64_t stop,
                           std::int64_t* slots) const {
  const Sequence& s = rows().live(handle);
  const std::int64_t size = config().block_size;
  std::int64_t* const first = slots;
  if (rows().full_size() != size || pool().is_bare()) [[unlikely]] {
    for (std::int64_t position = start; position < stop; ++position)
      *slots++ = use<Slices>().full_slot(s, position);
    return pad_replay(handle, start, stop, first);
  }
  const std::int32_t* t = rows().table(s);
  for (std::int64_t position = start; position < stop;) {
    const std::int64_t end = std::min(stop, (position / size + 1) * size);
    std::int64_t slot = nodes().name(t[position / size]) * size + position % size;
    for (; position < end; ++position) *slots++ = slot++;
  }
  pad_replay(handle, start, stop, first);
}

void Reading::pad_replay(Handle handle, std::int64_t start, std::int64_t stop,
                         std::int64_t* slots) const {
  const GroupRow& row = rows().group_row(rows().live(handle));
  for (std::int64_t at = std::max(start, row.start); at < std::min(stop, row.hit); ++at)
    slots[at - start] = -1;
}

void Reading::check_group_slots(Handle handle, int g, std::int64_t start, std::int64_t stop) const {
  check_slots(handle, start, stop);
  if (g < 0 || g >= groups()->num_groups() ||
      !(groups()->group(g).is_attention() || groups()->group(g).is_replayed()))
    throw Error(ErrorKind::kValue,
                "group must be one of attention, got " + std::to_string(g) + " of the core");
  const GroupRow& row = rows().group_row(rows().live(handle));
  if (!groups()->group(g).is_replayed() && start >= row.start)
    start = std::max(start, std::min(row.hit, stop));  // there are no slots before
  std::int64_t first = INT64_MAX;
  for (int i = g; i < g + groups()->group(g).num_slices; ++i)
    first = std::min(
        first, row.first[nth(i)] * std::int64_t{config().block_size} + groups()->group(i).begin);
  if (start < first && start < stop)
    throw Error(ErrorKind::kValue, "start must be at least " + std::to_string(first) +
                                       ", where the window of the group begins, got " +
                                       std::to_string(start));
}

void Reading::group_slots(Handle handle, int g, std::int64_t start, std::int64_t stop,
                          std::int64_t* slots) const {
  const std::int64_t size = groups()->group(g).end;
  const std::int32_t* t = &use<Slices>().shown_group_at(g, rows().row_of(handle))[0];
  for (std::int64_t position = start; position < stop; ++position)
    slots[position - start] = t[position / size] * size + position % size;
  if (!groups()->group(g).is_replayed()) pad_replay(handle, start, stop, slots);
}

std::vector<std::int32_t> Reading::block_ids(Handle handle, std::int64_t start) const {
  const Sequence& s = rows().live(handle);
  const std::int64_t count = num_full_blocks(s);
  const std::int64_t first = std::min(start, count);
  std::vector<std::int32_t> ids(nth(count - first));
  if (rows().full_size() == config().block_size && !pool().is_bare()) [[likely]] {
    nodes().name_all(rows().table(s) + first, count - first, ids.data());
  } else {
    for (std::int64_t i = first; i < count; ++i)
      ids[nth(i - first)] = number(use<Slices>().full_block(s, i));
  }
  return ids;
}

std::vector<LeavingBlock> Reading::leaving() const {
  std::vector<LeavingBlock> found;
  if (!pool().num_leaving()) return found;
  std::vector<bool> has_any(nth(nodes().num_blocks));
  for (const Sequence& s : rows().sequences) {
    const auto add = [&](NodeId n) {
      if (n < 0 || !pool().is_out(n)) return;
      has_any[nth(nodes().name(n))] = true;
      found.push_back({nodes().name(n), rows().handle_of(rows().row_of(s))});
    };
    if (s.state != Sequence::kRunning) continue;
    for (std::int32_t i = 0; i < s.num_blocks; ++i) add(rows().table(s)[i]);
    const GroupRow& row = rows().group_row(s);
    for (const int g : growing())
      for (std::int64_t i = row.first[nth(g)]; i < use<Slices>().units_of(g, rows().num_slots(s));
           ++i)
        add(use<GroupTables>().block_of(s, g, i));
    use<GroupTables>().each_single([&](int g) { add(row.states[nth(g)]); });
    for (const NodeId other : row.others) add(other);
  }
  for (std::int32_t b = pool().limit(); b < pool().num_blocks(); ++b)
    if (nodes().owner(b) >= 0 && !has_any[nth(b)]) found.push_back({b, -1});
  std::stable_sort(found.begin(), found.end(),
                   [](const LeavingBlock& a, const LeavingBlock& b) { return a.block < b.block; });
  return found;
}

void Reading::reset_hit_rate() {
  Call call(rows());
  rows().recent_hits.clear();
}

std::int64_t Reading::num_common_prefix_blocks(const Handle* handles, std::int64_t count) {
  Call call(rows());
  for (std::int64_t i = 0; i < count; ++i) rows().running(handles[i]);
  std::int64_t common = INT64_MAX;
  const std::int32_t* first = nullptr;
  for (std::int64_t i = 0; i < count; ++i)
    common = common_with(rows().live(handles[i]), first, common);
  return first ? common : 0;
}

std::int64_t Reading::num_common_prefix_blocks() {
  Call call(rows());
  std::int64_t common = INT64_MAX;
  const std::int32_t* first = nullptr;
  for (const Sequence& s : rows().sequences)
    if (s.state == Sequence::kRunning) common = common_with(s, first, common);
  return first ? common : 0;
}

// Leading whole computed blocks of the sequence that the first table has as well, of those that are
// common so far. The first sequence of all gives the table.
std::int64_t Reading::common_with(const Sequence& s, const std::int32_t*& first,
                                  std::int64_t common) const {
  const std::int32_t* t = rows().table(s);
  common = std::min(common, s.num_computed / config().block_size);
  if (!first) first = t;
  return std::mismatch(t, t + common, first).first - t;
}

std::int64_t Reading::num_digests(const Prompt& prompt) const {
  if (!digester())
    throw Error(ErrorKind::kValue, "block_digests needs a manager with prefix_caching=True");
  return prompt.num_tokens / config().block_size;
}

void Reading::block_digests(const Prompt& prompt, std::uint8_t* out) {
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
