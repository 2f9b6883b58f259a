// The KV oracle: a fake memory in which every slot remembers the prefix it was computed from.
//
// Prefixes are nodes of a trie, so two prefixes are equal exactly if their numbers are. Reads of a
// sequence are checked inside the step, after the step's copies and writes. A later check would not
// notice a copy that comes too late.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sequences/sequences.h"

namespace blockmgr::testing {

using Prefix = std::uint32_t;  // 0: nothing was ever written

struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A macro, so that the message is built only when it is needed.
#define EXPECT(holds, otherwise)   \
  do {                             \
    if (!(holds)) fail(otherwise); \
  } while (false)

class PrefixTrie {
 public:
  static constexpr Prefix kRoots = 16;  // 1 to 15 stand for namespaces

  Prefix root(int name) const { return static_cast<Prefix>(name) + 1; }
  Prefix after_token(Prefix prefix, Token token) { return child(prefix, token); }
  Prefix after_extras(Prefix prefix, int extras) {
    return child(prefix, (std::uint64_t{1} << 32) + static_cast<std::uint64_t>(extras));
  }

 private:
  Prefix child(Prefix prefix, std::uint64_t edge) {
    const std::uint64_t key = static_cast<std::uint64_t>(prefix) << 33 | edge;
    return nodes_.try_emplace(key, static_cast<Prefix>(kRoots + nodes_.size())).first->second;
  }
  std::unordered_map<std::uint64_t, Prefix> nodes_;
};

// What one sequence does in one forward: writes [start, end), then reads [0, end).
struct Work {
  Handle handle;
  std::vector<std::int64_t> slots;
  std::vector<Prefix> prefixes;
  std::int64_t start;
  // Where the engine writes if it uses the slots it was given earlier; empty: where it reads.
  std::vector<std::int64_t> handed = {};
};

// A word that a sequence counts as computed and that a copy brings.
struct Brought {
  std::int32_t block;
  int word;
  Prefix prefix;
};

class Device {
 public:
  Device(int num_blocks, int block_size)
      : size_(block_size),
        cells_(static_cast<std::size_t>(num_blocks) * static_cast<std::size_t>(block_size)) {}

  // Copies word by word in random order, because a plan promises that every order is correct.
  void run(const std::vector<BlockCopy>& copies, const std::vector<Brought>& brought,
           const std::vector<Work>& work) {
    words_.clear();
    for (const BlockCopy& copy : copies)
      for (int word = 0; word < copy.num_tokens; ++word)
        words_.emplace_back(at(copy.source, word), at(copy.destination, word));
    std::shuffle(words_.begin(), words_.end(), rng_);
    for (const auto& [from, to] : words_) cells_[to] = cells_[from];
    for (const Brought& b : brought)
      if (cell(b.block, b.word) != b.prefix)
        throw Violation("a copy into block " + std::to_string(b.block) +
                        " brings a token that was not in memory at word " + std::to_string(b.word));
    for (const Work& w : work)
      for (auto i = static_cast<std::size_t>(w.start); i < w.slots.size(); ++i)
        cells_[static_cast<std::size_t>(w.handed.empty() ? w.slots[i] : w.handed[i])] =
            w.prefixes[i];
    for (const Work& w : work)
      for (std::size_t i = 0; i < w.slots.size(); ++i)
        if (cells_[static_cast<std::size_t>(w.slots[i])] != w.prefixes[i])
          throw Violation("sequence " + std::to_string(w.handle & 0xffffffff) +
                          " reads foreign K/V at position " + std::to_string(i) +
                          ", it wrote from " + std::to_string(w.start));
  }
  Prefix cell(std::int32_t b, int word) const { return cells_[at(b, word)]; }

 private:
  std::size_t at(std::int32_t b, int word) const {
    return static_cast<std::size_t>(b) * static_cast<std::size_t>(size_) +
           static_cast<std::size_t>(word);
  }
  int size_;
  std::vector<Prefix> cells_;
  std::vector<std::pair<std::size_t, std::size_t>> words_;
  std::minstd_rand rng_;
};

}  // namespace blockmgr::testing
