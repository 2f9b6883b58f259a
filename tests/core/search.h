// Breadth-first search over every sequence of operations on a board, up to a depth.
//
// Only programs of one source file may include it, see arena.h. A game supplies the board, the
// operations, and a description of a state, which is equal for states that no further operation can
// distinguish.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "arena.h"
#include "world.h"

namespace blockmgr::testing {

struct Extent {
  int depth = 4;
  std::size_t most_states = SIZE_MAX;
  std::size_t threads = 1;
  std::size_t twins = 0;  // compares one in this many of the other paths to a state; 0: none
};

using Path = std::vector<std::uint8_t>;  // operations, by number
using StateHash = std::uint64_t;         // 63 bits of hash, never 0

// A set of hashes in one array, so that a hundred million fit in memory.
class HashSet {
 public:
  HashSet() : places_(1 << 16) {}
  bool contains(StateHash hash) const { return places_[find(hash)]; }
  // Returns whether the hash was absent.
  bool insert(StateHash hash) {
    StateHash& place = places_[find(hash)];
    if (place) return false;
    place = hash;
    if (++size_ > places_.size() / 4 * 3) grow();
    return true;
  }

 private:
  std::size_t find(StateHash hash) const {
    const std::size_t mask = places_.size() - 1;
    std::size_t at = hash & mask;
    while (places_[at] && places_[at] != hash) at = (at + 1) & mask;
    return at;
  }
  void grow() {
    std::vector<StateHash> before(places_.size() * 2);
    before.swap(places_);
    for (const StateHash hash : before)
      if (hash) places_[find(hash)] = hash;
  }
  std::vector<StateHash> places_;  // 0: nothing
  std::size_t size_ = 0;
};

// A board that moves from state to state. It keeps a snapshot of its memory for every state on the
// path, so that one step further costs one operation.
template <class Game>
class Walker {
 public:
  using Board = typename Game::Board;
  using Operations = std::vector<typename Game::Operation>;

  Walker(const Game& game, const Operations& operations)
      : game_(game), operations_(operations), arena_(1 << 20) {
    {
      const Arena::Scope scope(arena_);
      board_ = game.make(&counts_).release();
    }
    arena_.save(next_snapshot(0));
  }

  void go_to(const Path& path) {
    const auto [here, there] = std::mismatch(path_.begin(), path_.end(), path.begin(), path.end());
    path_.erase(here, path_.end());
    go_back();
    for (auto at = there; at != path.end(); ++at) {
      run_again(*at);
      path_.push_back(*at);
      arena_.save(next_snapshot(path_.size()));
    }
  }
  void go_back() { arena_.restore(snapshots_[path_.size()]); }

  // Returns whether the operation changed anything. If not, the board is reused for the next
  // operation, where a side effect of a refused call has another chance to show.
  bool run(std::uint8_t op) {
    const Arena::Scope scope(arena_);
    const std::int64_t before = num_done();
    const std::size_t open = Game::num_open(*board_);
    play(op, *board_);
    if (num_done() == before && Game::num_open(*board_) == open) return false;
    board_->check();
    return true;
  }
  StateHash hash() const { return hash_of(*board_); }
  // The hash of the state that a fresh board reaches on this path.
  StateHash hash_afresh(const Path& path) const {
    const std::unique_ptr<Board> board = game_.make(nullptr);
    for (const std::uint8_t op : path) play(op, *board);
    return hash_of(*board);
  }
  const Counts& counts() const { return counts_; }

 private:
  void play(std::uint8_t op, Board& board) const {
    operations_[op].run(board);
    if constexpr (requires { board.lose_what_left(); }) board.lose_what_left();
  }
  StateHash hash_of(const Board& board) const {
    return std::hash<std::string>()(game_.describe(board)) | 1;
  }
  void run_again(std::uint8_t op) {
    const Arena::Scope scope(arena_);
    board_->check_calls(false);
    play(op, *board_);
    board_->check_calls(true);
  }
  Arena::Snapshot& next_snapshot(std::size_t depth) {
    if (snapshots_.size() <= depth) snapshots_.resize(depth + 1);
    return snapshots_[depth];
  }
  // Calls that were not refused, other than queries.
  std::int64_t num_done() const {
    std::int64_t done = 0;
    for (std::size_t op = 0; op < kNumOps; ++op)
      if (op != kMatch && op != kCanAdmit) done += counts_[op][kDone];
    return done;
  }

  const Game& game_;
  const Operations& operations_;
  Counts counts_{};
  Arena arena_;
  Board* board_;  // allocated in the arena and freed with it
  Path path_;
  std::vector<Arena::Snapshot> snapshots_;  // after each operation of path_
};

template <class Game>
class Search {
 public:
  Search(const Game& game, const Extent& extent)
      : game_(game), extent_(extent), operations_(game.operations()) {
    for (std::size_t i = 0; i < extent.threads; ++i)
      walkers_.push_back(std::make_unique<Walker<Game>>(game_, operations_));
    nodes_.push_back({0, 0});
    seen_.insert(walkers_[0]->hash());
  }

  // Adds the states that are first reached with one more operation.
  void deepen() {
    const std::size_t end = nodes_.size();
    while (next_ < end && !limited()) {
      const std::size_t count = std::min(end - next_, kShare * walkers_.size());
      expand(count);
      next_ += count;
      num_operations_ += static_cast<std::int64_t>(count * operations_.size());
    }
  }
  // Follows some of the other paths to a known state: they must lead to the same states as the
  // first path, with the same outcomes. Returns the number of paths compared.
  std::int64_t compare_twins(std::size_t end);

  std::size_t num_states() const { return nodes_.size(); }
  std::int64_t num_operations() const { return num_operations_; }
  bool limited() const { return nodes_.size() >= extent_.most_states; }

 private:
  static constexpr std::size_t kShare = 1024;  // states a thread expands at a time
  struct Node {
    std::uint32_t parent;
    std::uint8_t op;
  };
  struct Reached {
    StateHash hash;
    Node node;
  };

  Path path(std::size_t node) const {
    Path path;
    for (; node; node = nodes_[node].parent) path.push_back(nodes_[node].op);
    std::reverse(path.begin(), path.end());
    return path;
  }

  // Expands the next states. Each thread gets consecutive ones, because their paths have much in
  // common.
  void expand(std::size_t count) {
    std::vector<std::vector<Reached>> reached(walkers_.size());
    const auto run_share = [&](std::size_t i) {
      const std::size_t first = next_ + count * i / walkers_.size();
      const std::size_t last = next_ + count * (i + 1) / walkers_.size();
      for (std::size_t node = first; node < last; ++node) expand(node, *walkers_[i], reached[i]);
    };
    std::vector<std::thread> others;
    for (std::size_t i = 1; i < walkers_.size(); ++i) others.emplace_back(run_share, i);
    run_share(0);
    for (std::thread& other : others) other.join();
    for (const auto& share : reached)
      for (const Reached& state : share)
        if (seen_.insert(state.hash)) nodes_.push_back(state.node);
  }

  void expand(std::size_t node, Walker<Game>& walker, std::vector<Reached>& reached) const {
    const Path here = path(node);
    walker.go_to(here);
    if (node % kShare == 0 && walker.hash() != walker.hash_afresh(here))
      report("a restored board differs", here);
    for (std::size_t i = 0; i < operations_.size(); ++i) {
      const auto op = static_cast<std::uint8_t>(i);
      if (!run(walker, here, op)) continue;
      const StateHash hash = walker.hash();
      if (!seen_.contains(hash)) reached.push_back({hash, {static_cast<std::uint32_t>(node), op}});
      walker.go_back();
    }
  }

  bool run(Walker<Game>& walker, const Path& here, std::uint8_t op) const {
    try {
      return walker.run(op);
    } catch (const std::exception& violation) {
      Path path = here;
      path.push_back(op);
      report(violation.what(), path);
    }
  }

  [[noreturn]] void report(const char* what, const Path& path) const {
    std::printf("violation: %s\nafter\n", what);
    for (const std::uint8_t op : path) std::printf("  %s\n", operations_[op].name.c_str());
    std::fflush(stdout);
    std::_Exit(1);
  }

  // The states and outcomes that can follow, independent of names.
  struct Future {
    std::vector<StateHash> states;  // sorted, unique
    Counts outcomes{};
    bool operator==(const Future&) const = default;
  };
  Future future(const Path& path, std::vector<std::pair<StateHash, std::uint8_t>>* ways) {
    Walker<Game>& walker = *walkers_[0];
    walker.go_to(path);
    const Counts before = walker.counts();
    Future future;
    for (std::size_t i = 0; i < operations_.size(); ++i) {
      const auto op = static_cast<std::uint8_t>(i);
      if (!run(walker, path, op)) continue;
      const StateHash hash = walker.hash();
      future.states.push_back(hash);
      if (ways) ways->emplace_back(hash, op);
      walker.go_back();
    }
    for (std::size_t op = 0; op < kNumOps; ++op)
      for (std::size_t outcome = 0; outcome < kNumOutcomes; ++outcome)
        future.outcomes[op][outcome] = walker.counts()[op][outcome] - before[op][outcome];
    std::sort(future.states.begin(), future.states.end());
    future.states.erase(std::unique(future.states.begin(), future.states.end()),
                        future.states.end());
    return future;
  }

  const Game& game_;
  const Extent extent_;
  std::vector<typename Game::Operation> operations_;
  std::vector<std::unique_ptr<Walker<Game>>> walkers_;  // one a thread
  std::vector<Node> nodes_;
  HashSet seen_;
  std::size_t next_ = 0;
  std::int64_t num_operations_ = 0;
};

template <class Game>
std::int64_t Search<Game>::compare_twins(std::size_t end) {
  std::unordered_map<StateHash, std::size_t> first;
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    walkers_[0]->go_to(path(node));
    first.emplace(walkers_[0]->hash(), node);
  }
  std::int64_t arrivals = 0;
  std::int64_t compared = 0;
  for (std::size_t node = 0; node < end; ++node) {
    Path way = path(node);
    std::vector<std::pair<StateHash, std::uint8_t>> ways;
    future(way, &ways);
    for (const auto& [hash, op] : ways) {
      const std::size_t known = first.at(hash);
      if (nodes_[known].parent == node && nodes_[known].op == op) continue;
      if (arrivals++ % static_cast<std::int64_t>(extent_.twins)) continue;
      way.push_back(op);
      if (future(way, nullptr) != future(path(known), nullptr)) {
        for (const std::uint8_t step : path(known))
          std::printf("  %s\n", operations_[step].name.c_str());
        report("equal states lead to different states", way);
      }
      way.pop_back();
      ++compared;
    }
  }
  return compared;
}

// Deepens the search to its final depth and prints the counts.
template <class Game>
void search(const Game& game, const Extent& extent) {
  const auto started = std::chrono::steady_clock::now();
  Search<Game> search(game, extent);
  std::size_t before = 0;
  std::printf("depth 0: 1 state\n");
  for (int d = 1; d <= extent.depth; ++d) {
    before = search.num_states();
    search.deepen();
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
    std::printf("depth %d: %zu states more, %zu in all, %lld operations, %.0f s%s\n", d,
                search.num_states() - before, search.num_states(),
                static_cast<long long>(search.num_operations()), seconds,
                search.limited() ? ", stopped half-way" : "");
    std::fflush(stdout);
    if (search.limited() || search.num_states() == before) break;
  }
  if (extent.twins)
    std::printf("%lld other paths to a state have the same outcomes\n",
                static_cast<long long>(search.compare_twins(before)));
  std::printf("%zu states, %lld operations, 0 violations\n", search.num_states(),
              static_cast<long long>(search.num_operations()));
}

}  // namespace blockmgr::testing
