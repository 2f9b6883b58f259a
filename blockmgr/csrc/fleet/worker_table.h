// Which workers have a block, and in which tier: what a router looks prompts up in.
//
// An entry is a key of 64 bits and, for each tier, a bit a worker. Linear probing, at most half
// full; an entry goes when its last bit does, and those behind it move up. Keys are digests cut
// short: they say where a prompt may be found, and never whether it is. Workers choose the keys, so
// the place of a key depends on a secret of the table: no worker can make keys share a place.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/secret.h"

namespace blockmgr {

class WorkerTable {
 public:
  static constexpr int kTiers = 4;

  // Grows up to max_blocks entries, and takes in no others then.
  WorkerTable(int max_workers, std::int64_t max_blocks, std::uint64_t secret);

  // Each of these keys, for a worker and a tier. May run out of memory with some of them entered.
  // Returns how many were refused.
  std::int64_t store(int worker, int tier, const std::uint64_t* keys, std::int64_t count);
  // Returns how many of them the worker did not have there.
  std::int64_t remove(int worker, int tier, const std::uint64_t* keys, std::int64_t count) noexcept;
  // Takes out what the worker has in the tier, in parts: from one place of the table on, as many
  // places as given. Returns the place to continue at, or -1 if nothing is left.
  std::int64_t clear(int worker, int tier, std::int64_t from, std::int64_t count) noexcept;

  // How many of the leading blocks each worker has, each counted in the first tier that has it:
  // found[worker * kTiers + tier]. A worker's count ends at the first block that it has nowhere.
  void find(const std::uint64_t* keys, std::int64_t count, std::int32_t* found) const;

  // Says of each key whether the worker has it in some tier.
  void has(int worker, const std::uint64_t* keys, std::int64_t count, bool* out) const;

  int max_workers() const { return max_workers_; }
  std::int64_t num_entries() const { return num_entries_; }
  std::int64_t num_blocks(int worker, int tier) const {
    return counts_[static_cast<std::size_t>(worker * kTiers + tier)];
  }
  // Occupied places in a row, at most: no search looks at more places but one. Cost: O(entries).
  std::int64_t longest_run() const {
    return longest_row(keys_.size(), [&](std::size_t i) { return keys_[i] != 0; });
  }
  std::size_t memory() const {
    return (keys_.capacity() + masks_.capacity()) * sizeof(std::uint64_t) +
           counts_.capacity() * sizeof(std::int64_t);
  }

 private:
  // No key is 0: that is an empty place.
  static std::uint64_t key_of(std::uint64_t key) { return key ? key : 1; }
  // With one secret multiplication, keys at equal distances may still fall into few places.
  std::size_t home(std::uint64_t key) const {
    key = (key ^ secret_[0]) * secret_[1];
    return static_cast<std::size_t>(((key ^ key >> 32) * secret_[2]) >> shift_);
  }
  std::size_t next(std::size_t i) const { return (i + 1) & (keys_.size() - 1); }
  std::uint64_t* masks(std::size_t i) { return masks_.data() + i * stride_; }
  const std::uint64_t* masks(std::size_t i) const { return masks_.data() + i * stride_; }
  // The place of a key, or the empty place where it belongs.
  std::size_t place(std::uint64_t key) const {
    std::size_t i = home(key);
    while (keys_[i] && keys_[i] != key) i = next(i);
    return i;
  }
  void prefetch(std::uint64_t key) const;
  bool is_empty(std::size_t i) const;
  void erase(std::size_t i) noexcept;
  void grow();

  std::array<std::uint64_t, 3> secret_;  // the last two are odd
  int max_workers_;
  std::int64_t max_blocks_;
  std::size_t words_;   // of a mask
  std::size_t stride_;  // words of all masks of an entry
  int shift_;
  std::int64_t num_entries_ = 0;
  std::vector<std::uint64_t> keys_;
  std::vector<std::uint64_t> masks_;  // of each place: by tier, then by word
  std::vector<std::int64_t> counts_;  // by worker, then by tier
};

}  // namespace blockmgr
