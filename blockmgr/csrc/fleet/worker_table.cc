#include "fleet/worker_table.h"

#include <algorithm>
#include <bit>
#include <random>
#include <utility>

#include "memory/node.h"

namespace blockmgr {

namespace {

constexpr int kFirstTableBits = 10;
// Entries whose memory is fetched ahead of the one being read.
constexpr std::int64_t kKeysAhead = 8;
// Blocks of a prompt are counted in planes of bits: plane p has the bits of weight 2**p of all
// workers of a word, so counting a block is an addition of one bit to each.
constexpr std::size_t kCountPlanes = 32;

std::array<std::uint64_t, 3> drawn(std::uint64_t secret) {
  std::mt19937_64 draw(secret);
  const std::uint64_t first = draw(), second = draw(), third = draw();
  return {first, second | 1, third | 1};
}

}  // namespace

WorkerTable::WorkerTable(int max_workers, std::int64_t max_blocks, std::uint64_t secret)
    : secret_(drawn(secret)),
      max_workers_(max_workers),
      max_blocks_(max_blocks),
      words_((static_cast<std::size_t>(max_workers) + 63) / 64),
      stride_(words_ * kTiers),
      shift_(64 - kFirstTableBits),
      keys_(std::size_t{1} << kFirstTableBits),
      masks_(keys_.size() * stride_),
      counts_(static_cast<std::size_t>(max_workers) * kTiers) {}

void WorkerTable::prefetch(std::uint64_t key) const {
  const std::size_t i = home(key_of(key));
  blockmgr::prefetch(&keys_[i]);
  blockmgr::prefetch(masks(i));
}

std::int64_t WorkerTable::store(int worker, int tier, const std::uint64_t* keys,
                                std::int64_t count) {
  const auto word = static_cast<std::size_t>(tier) * words_ + static_cast<std::size_t>(worker) / 64;
  const std::uint64_t bit = std::uint64_t{1} << (worker % 64);
  std::int64_t& held = counts_[static_cast<std::size_t>(worker * kTiers + tier)];
  std::int64_t refused = 0;
  for (std::int64_t n = 0; n < count; ++n) {
    if (n + kKeysAhead < count) prefetch(keys[n + kKeysAhead]);
    const std::uint64_t key = key_of(keys[n]);
    std::size_t i = place(key);
    if (!keys_[i]) {
      if (num_entries_ == max_blocks_) {
        ++refused;
        continue;
      }
      if (2 * static_cast<std::size_t>(num_entries_ + 1) > keys_.size()) {
        grow();
        i = place(key);
      }
      keys_[i] = key;
      ++num_entries_;
    }
    std::uint64_t& mask = masks(i)[word];
    held += !(mask & bit);
    mask |= bit;
  }
  return refused;
}

std::int64_t WorkerTable::remove(int worker, int tier, const std::uint64_t* keys,
                                 std::int64_t count) noexcept {
  const auto word = static_cast<std::size_t>(tier) * words_ + static_cast<std::size_t>(worker) / 64;
  const std::uint64_t bit = std::uint64_t{1} << (worker % 64);
  std::int64_t missing = 0;
  for (std::int64_t n = 0; n < count; ++n) {
    if (n + kKeysAhead < count) prefetch(keys[n + kKeysAhead]);
    const std::size_t i = place(key_of(keys[n]));
    if (!keys_[i] || !(masks(i)[word] & bit)) {
      ++missing;
      continue;
    }
    masks(i)[word] &= ~bit;
    if (is_empty(i)) erase(i);
  }
  counts_[static_cast<std::size_t>(worker * kTiers + tier)] -= count - missing;
  return missing;
}

std::int64_t WorkerTable::clear(int worker, int tier, std::int64_t from,
                                std::int64_t count) noexcept {
  const auto word = static_cast<std::size_t>(tier) * words_ + static_cast<std::size_t>(worker) / 64;
  const std::uint64_t bit = std::uint64_t{1} << (worker % 64);
  std::int64_t& held = counts_[static_cast<std::size_t>(worker * kTiers + tier)];
  const std::size_t last = keys_.size() - 1;
  std::size_t i = static_cast<std::size_t>(from) & last;  // the table may have grown meanwhile
  // An entry that moves up into a gap may come from the front of the table to its end, or from
  // behind the places looked at to before them. So it goes round until nothing is left.
  for (; held && count > 0; --count, i = next(i))
    while (keys_[i] && (masks(i)[word] & bit)) {
      masks(i)[word] &= ~bit;
      --held;
      if (is_empty(i)) erase(i);
    }
  return held ? static_cast<std::int64_t>(i) : -1;
}

bool WorkerTable::is_empty(std::size_t i) const {
  const std::uint64_t* all = masks(i);
  return std::all_of(all, all + stride_, [](std::uint64_t mask) { return mask == 0; });
}

// Entries behind a gap move into it, unless their home lies behind it.
void WorkerTable::erase(std::size_t i) noexcept {
  --num_entries_;
  const std::size_t last = keys_.size() - 1;
  std::size_t gap = i;
  for (std::size_t at = next(gap); keys_[at]; at = next(at)) {
    if (((at - home(keys_[at])) & last) < ((at - gap) & last)) continue;
    keys_[gap] = keys_[at];
    std::copy_n(masks(at), stride_, masks(gap));
    gap = at;
  }
  keys_[gap] = 0;
  std::fill_n(masks(gap), stride_, std::uint64_t{0});
}

void WorkerTable::grow() {
  std::vector<std::uint64_t> keys(2 * keys_.size());
  std::vector<std::uint64_t> all(keys.size() * stride_);
  keys.swap(keys_);
  all.swap(masks_);
  --shift_;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (!keys[i]) continue;
    const std::size_t to = place(keys[i]);
    keys_[to] = keys[i];
    std::copy_n(all.data() + i * stride_, stride_, masks(to));
  }
}

void WorkerTable::find(const std::uint64_t* keys, std::int64_t count, std::int32_t* found) const {
  std::vector<std::uint64_t> alive(words_, ~std::uint64_t{0});
  std::vector<std::uint64_t> planes(stride_ * kCountPlanes);
  std::size_t used = 0;  // planes that have a bit
  for (std::int64_t n = 0; n < count; ++n) {
    if (n + kKeysAhead < count) prefetch(keys[n + kKeysAhead]);
    const std::size_t i = place(key_of(keys[n]));
    if (!keys_[i]) break;
    std::uint64_t any = 0;
    for (std::size_t w = 0; w < words_; ++w) {
      std::uint64_t seen = 0;
      for (std::size_t t = 0; t < kTiers; ++t) {
        std::uint64_t carry = masks(i)[t * words_ + w] & alive[w] & ~seen;
        seen |= carry;
        std::uint64_t* plane = planes.data() + (t * words_ + w) * kCountPlanes;
        for (std::size_t p = 0; carry; ++p) {
          const std::uint64_t both = plane[p] & carry;
          plane[p] ^= carry;
          carry = both;
          used = std::max(used, p + 1);
        }
      }
      alive[w] = seen;
      any |= seen;
    }
    if (!any) break;
  }
  for (int worker = 0; worker < max_workers_; ++worker)
    for (std::size_t t = 0; t < kTiers; ++t) {
      const auto w = static_cast<std::size_t>(worker) / 64;
      const std::uint64_t* plane = planes.data() + (t * words_ + w) * kCountPlanes;
      std::uint64_t total = 0;
      for (std::size_t p = 0; p < used; ++p) total |= (plane[p] >> (worker % 64) & 1) << p;
      found[static_cast<std::size_t>(worker) * kTiers + t] = static_cast<std::int32_t>(total);
    }
}

void WorkerTable::has(int worker, const std::uint64_t* keys, std::int64_t count, bool* out) const {
  const auto word = static_cast<std::size_t>(worker) / 64;
  for (std::int64_t n = 0; n < count; ++n) {
    if (n + kKeysAhead < count) prefetch(keys[n + kKeysAhead]);
    const std::size_t i = place(key_of(keys[n]));
    std::uint64_t any = 0;
    for (std::size_t t = 0; keys_[i] && t < kTiers; ++t) any |= masks(i)[t * words_ + word];
    out[n] = any >> (worker % 64) & 1;
  }
}

}  // namespace blockmgr
