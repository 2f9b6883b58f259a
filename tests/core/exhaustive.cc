// Every sequence of operations on a pool of three blocks, breadth first, up to a depth.
//
// Three blocks of two tokens, two token values, two namespaces, three sequences. States that differ
// only in names count once. Every operation is tried in every state, and checked in full: outcome,
// nothing changed by a refusal, the books, and the memory of everything computed or cached.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "arena.h"
#include "canonical.h"
#include "operations.h"
#include "world.h"

namespace {

using namespace blockmgr::testing;

struct Options {
  int depth = 4;
  std::string operations = "all";
  Names names = {1, 2};
  std::size_t most_states = SIZE_MAX;
  std::size_t threads = 1;
  std::size_t twins = 0;
  Settings settings;
};

using Path = std::vector<std::uint8_t>;  // operations, by number
using StateHash = std::uint64_t;         // 63 bits of hash, never 0

// Hashes in one array, so that a hundred million fit.
class HashSet {
 public:
  HashSet() : places_(1 << 16) {}
  bool contains(StateHash hash) const { return places_[find(hash)]; }
  // Whether it was not in it.
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

// A world that goes from state to state. One operation further is one operation's work: it keeps
// what its memory was in every state on the way.
class Walker {
 public:
  Walker(const Options& options, const std::vector<Operation>& operations)
      : options_(options), operations_(operations), arena_(1 << 20) {
    {
      const Arena::Scope scope(arena_);
      world_ = new World(options.settings, &counts_);
    }
    arena_.save(next_snapshot(0));
  }

  World& world() { return *world_; }

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

  // Whether the operation changed anything. If it did not, the world is good for the next one: a
  // refused call that leaves something behind has another chance to show.
  bool run(std::uint8_t op) {
    const Arena::Scope scope(arena_);
    const std::int64_t before = num_done();
    const std::size_t steps = world_->steps().size();
    operations_[op].run(*world_);
    if (num_done() == before && world_->steps().size() == steps) return false;
    world_->check();
    return true;
  }
  StateHash hash() const { return hash_of(*world_); }
  // Of the state that a world reaches that has never been anywhere else.
  StateHash hash_afresh(const Path& path) const {
    World world(options_.settings);
    for (const std::uint8_t op : path) operations_[op].run(world);
    return hash_of(world);
  }
  const Counts& counts() const { return counts_; }

 private:
  StateHash hash_of(const World& world) const {
    return std::hash<std::string>()(canonical(world, options_.names)) | 1;
  }
  void run_again(std::uint8_t op) {
    const Arena::Scope scope(arena_);
    world_->check_calls(false);
    operations_[op].run(*world_);
    world_->check_calls(true);
  }
  Arena::Snapshot& next_snapshot(std::size_t depth) {
    if (snapshots_.size() <= depth) snapshots_.resize(depth + 1);
    return snapshots_[depth];
  }
  // Calls that were not refused, other than questions.
  std::int64_t num_done() const {
    std::int64_t done = 0;
    for (std::size_t op = 0; op < kNumOps; ++op)
      if (op != kMatch && op != kCanAdmit) done += counts_[op][kDone];
    return done;
  }

  const Options& options_;
  const std::vector<Operation>& operations_;
  Counts counts_{};
  Arena arena_;
  World* world_;  // in the arena; goes with it
  Path path_;
  std::vector<Arena::Snapshot> snapshots_;  // after each operation of path_
};

class Search {
 public:
  explicit Search(const Options& options)
      : options_(options), operations_(make_operations(options.operations, options.names)) {
    for (std::size_t i = 0; i < options.threads; ++i)
      walkers_.push_back(std::make_unique<Walker>(options_, operations_));
    nodes_.push_back({0, 0});
    seen_.insert(walkers_[0]->hash());
  }

  // Adds the states first reached with one operation more.
  void deepen() {
    const std::size_t end = nodes_.size();
    while (next_ < end && !limited()) {
      const std::size_t count = std::min(end - next_, kShare * walkers_.size());
      expand(count);
      next_ += count;
      num_operations_ += static_cast<std::int64_t>(count * operations_.size());
    }
  }
  // Of the ways to a state that were not followed, some are: they must lead to the same states as
  // the first one, with the same outcomes. Returns how many.
  std::int64_t compare_twins(std::size_t end);

  std::size_t num_states() const { return nodes_.size(); }
  std::int64_t num_operations() const { return num_operations_; }
  bool limited() const { return nodes_.size() >= options_.most_states; }

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

  // The next so many states, each thread a share of neighbours: their paths have much in common.
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

  void expand(std::size_t node, Walker& walker, std::vector<Reached>& reached) const {
    const Path here = path(node);
    walker.go_to(here);
    if (node % kShare == 0 && walker.hash() != walker.hash_afresh(here))
      report("a world that went back is not as it was", here);
    for (std::size_t i = 0; i < operations_.size(); ++i) {
      const auto op = static_cast<std::uint8_t>(i);
      if (!run(walker, here, op)) continue;
      const StateHash hash = walker.hash();
      if (!seen_.contains(hash)) reached.push_back({hash, {static_cast<std::uint32_t>(node), op}});
      walker.go_back();
    }
  }

  bool run(Walker& walker, const Path& here, std::uint8_t op) const {
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

  // What can come next, whatever it is called.
  struct Future {
    std::vector<StateHash> states;  // sorted, each once
    Counts outcomes{};
    bool operator==(const Future&) const = default;
  };
  Future future(const Path& path, std::vector<std::pair<StateHash, std::uint8_t>>* ways) {
    Walker& walker = *walkers_[0];
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

  const Options& options_;
  std::vector<Operation> operations_;
  std::vector<std::unique_ptr<Walker>> walkers_;  // one a thread
  std::vector<Node> nodes_;
  HashSet seen_;
  std::size_t next_ = 0;
  std::int64_t num_operations_ = 0;
};

std::int64_t Search::compare_twins(std::size_t end) {
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
      if (arrivals++ % static_cast<std::int64_t>(options_.twins)) continue;
      way.push_back(op);
      if (future(way, nullptr) != future(path(known), nullptr)) {
        for (const std::uint8_t step : path(known))
          std::printf("  %s\n", operations_[step].name.c_str());
        report("this and what follows look alike and lead elsewhere", way);
      }
      way.pop_back();
      ++compared;
    }
  }
  return compared;
}

Options parse(int argc, char** argv) {
  Options options;
  options.settings.core.num_blocks = options.settings.core.row_width = 3;
  options.settings.core.block_size = 2;
  options.settings.core.max_seqs = kMostSequences;
  options.settings.core.min_partial_tokens = 1;
  options.settings.check_every = INT32_MAX;  // the walker checks what an operation leaves
  if (argc > 1) options.depth = std::atoi(argv[1]);
  if (argc > 2) options.operations = argv[2];
  for (int i = 3; i < argc; ++i) {
    const std::string option = argv[i];
    const std::string name = option.substr(0, option.find('='));
    const std::size_t value =
        name == option ? 0 : std::strtoull(option.c_str() + name.size() + 1, nullptr, 10);
    if (option == "append_only")
      options.settings.core.remap = false;
    else if (option == "unnamed")
      options.names = {0, 1};
    else if (name == "partial")
      options.settings.core.min_partial_tokens = static_cast<int>(value);
    else if (name == "states")
      options.most_states = value;
    else if (name == "threads")
      options.threads = std::max<std::size_t>(value, 1);
    else if (name == "twins")
      options.twins = value;
    else
      throw std::invalid_argument("no such option: " + option);
  }
  return options;
}

void run(const Options& options) {
  const auto started = std::chrono::steady_clock::now();
  Search search(options);
  std::size_t before = 0;
  std::printf("depth 0: 1 state\n");
  for (int d = 1; d <= options.depth; ++d) {
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
  if (options.twins)
    std::printf("%lld other ways to a state lead on as the first one does\n",
                static_cast<long long>(search.compare_twins(before)));
  std::printf("%zu states, %lld operations, 0 violations\n", search.num_states(),
              static_cast<long long>(search.num_operations()));
}

}  // namespace

// exhaustive [depth] [all|few|few+FAMILY+...] [append_only] [partial=TOKENS] [unnamed]
//            [states=MOST] [threads=COUNT] [twins=EVERY]
// partial: fewest tokens of a partial match. unnamed: one of the namespaces is the one without a
// name, which is not taken for the other. twins: see compare_twins.
int main(int argc, char** argv) {
  try {
    run(parse(argc, argv));
  } catch (const std::invalid_argument& wrong) {
    std::fprintf(stderr, "%s\n", wrong.what());
    return 2;
  }
  return 0;
}
