// Every sequence of operations on a pool of three blocks, breadth first, up to a depth.
//
// Three blocks of two tokens, two token values, two namespaces, three sequences. States that differ
// only in the names of blocks, of sequences or of token values count once. A state is reached by
// repeating the operations that lead to it; the last one is checked in full: outcome, nothing
// changed by a refusal, the books, and the memory of everything computed or cached.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "canonical.h"
#include "world.h"

namespace {

using namespace blockmgr::testing;
using blockmgr::Token;

struct Operation {
  std::string name;
  std::function<void(World&)> run;
};

constexpr int kSequences = 3;

// Prompts of up to three tokens. Few: of one and of three, beginning with two equal ones; appended
// tokens make the others.
void add_admissions(std::vector<Operation>& all, bool few) {
  for (std::size_t length = 1; length <= 3; ++length)
    for (unsigned bits = 0; bits < 1u << length; ++bits) {
      if (few && (length == 2 || (length == 3 && (bits & 1) != (bits >> 1 & 1)))) continue;
      for (int name = 0; name < 2; ++name) {
        std::vector<Token> tokens;
        std::string shown;
        for (std::size_t i = 0; i < length; ++i) {
          tokens.push_back(bits >> i & 1);
          shown += std::to_string(tokens.back());
        }
        all.push_back({"admit " + shown + " in " + std::to_string(name),
                       [=](World& world) { world.admit(tokens, name, 0, 0); }});
      }
    }
}

// One operation for each sequence there may be.
void add_for_each(std::vector<Operation>& all, const std::string& name,
                  const std::function<void(World&, const EntryPtr&)>& run) {
  for (std::size_t i = 0; i < kSequences; ++i)
    all.push_back({name + " " + std::to_string(i), [=](World& world) {
                     if (i < world.entries().size()) run(world, EntryPtr(world.entries()[i]));
                   }});
}

void add_reparents(std::vector<Operation>& all) {
  static const std::vector<std::vector<std::int64_t>> kParents = {{0, 0},    {1, 1},    {1, 0},
                                                                  {0, 0, 1}, {1, 2, 0}, {2, 2, 2}};
  for (const auto& parents : kParents) {
    std::string shown;
    for (const std::int64_t parent : parents) shown += std::to_string(parent);
    all.push_back({"reparent " + shown, [=](World& world) {
                     if (world.entries().size() < parents.size()) return;
                     const auto& entries = world.entries();
                     world.reparent({entries.begin(),
                                     entries.begin() + static_cast<std::ptrdiff_t>(parents.size())},
                                    parents);
                   }});
  }
}

void add_decodes(std::vector<Operation>& all) {
  for (const Token token : {Token{0}, Token{1}})
    all.push_back({"decode " + std::to_string(token), [=](World& world) {
                     std::vector<EntryPtr> running;
                     for (const EntryPtr& entry : world.entries())
                       if (entry->running) running.push_back(entry);
                     world.decode(running, std::vector<Token>(running.size(), token));
                   }});
}

void add_steps(std::vector<Operation>& all) {
  all.push_back({"step", [](World& world) { world.step(); }});
  all.push_back({"begin", [](World& world) {
                   if (world.steps().empty()) world.begin(SIZE_MAX, false);
                 }});
  all.push_back({"finish", [](World& world) {
                   if (!world.steps().empty()) world.finish(world.steps().front(), 0);
                 }});
  all.push_back({"abort", [](World& world) {
                   if (world.open()) world.abort();
                 }});
}

// Few: those that the others cannot be made of, so that the search gets deeper.
std::vector<Operation> operations(bool few) {
  std::vector<Operation> all;
  add_admissions(all, few);
  for (const Token token : {Token{0}, Token{1}})
    add_for_each(all, "append " + std::to_string(token) + " to",
                 [=](World& world, const EntryPtr& entry) { world.append(*entry, {token}); });
  add_for_each(all, "fork", [](World& world, const EntryPtr& entry) { world.fork(entry, 1); });
  add_for_each(all, "free", [](World& world, const EntryPtr& entry) { world.free(entry); });
  add_steps(all);
  if (few) return all;
  add_for_each(all, "truncate", [](World& world, const EntryPtr& entry) {
    world.truncate(*entry, static_cast<std::int64_t>(entry->tokens.size()) - 1);
  });
  add_for_each(all, "preempt", [](World& world, const EntryPtr& e) { world.preempt(*e); });
  add_for_each(all, "resume", [](World& world, const EntryPtr& e) { world.resume(*e, 0); });
  add_for_each(all, "look ahead of", [](World& world, const EntryPtr& entry) {
    world.reserve(*entry, static_cast<std::int64_t>(entry->tokens.size()) + 2);
  });
  add_decodes(all);
  add_reparents(all);
  all.push_back({"step, one token held back", [](World& world) { world.step(SIZE_MAX, 1); }});
  all.push_back({"copies applied", [](World& world) { world.resolve(); }});
  return all;
}

class Search {
 public:
  Search(const Settings& settings, bool few, std::size_t limit)
      : settings_(settings), operations_(operations(few)), limit_(limit) {
    nodes_.push_back({0, 0});
    seen_.insert(hash(canonical(*replay(0))));
  }

  // Adds the states first reached with one operation more.
  void deepen() {
    const std::size_t end = nodes_.size();
    for (; next_ < end && !limited(); ++next_) expand(next_);
  }
  std::size_t num_states() const { return nodes_.size(); }
  std::int64_t num_operations() const { return num_operations_; }
  bool limited() const { return nodes_.size() >= limit_; }

 private:
  struct Node {
    std::uint32_t parent;
    std::uint8_t op;
  };

  static std::size_t hash(const std::string& state) { return std::hash<std::string>()(state); }

  std::vector<std::size_t> path(std::size_t node) const {
    std::vector<std::size_t> ops;
    for (; node; node = nodes_[node].parent) ops.push_back(nodes_[node].op);
    return {ops.rbegin(), ops.rend()};
  }

  std::unique_ptr<World> replay(std::size_t node) const {
    auto world = std::make_unique<World>(settings_);
    world->check_calls(false);
    for (const std::size_t op : path(node)) operations_[op].run(*world);
    world->check_calls(true);
    return world;
  }

  void expand(std::size_t node) {
    std::unique_ptr<World> world;
    std::string state;
    std::string fingerprint;
    for (std::size_t op = 0; op < operations_.size(); ++op) {
      if (!world) {
        world = replay(node);
        state = canonical(*world);
        fingerprint = world->core().fingerprint();
      }
      ++num_operations_;
      try {
        operations_[op].run(*world);
        world->check();
      } catch (const std::exception& violation) {
        report(violation, node, op);
      }
      const std::string after = canonical(*world);
      // What was refused leaves the world as it was, and good for the next operation.
      if (after == state && world->core().fingerprint() == fingerprint) continue;
      world = nullptr;
      if (seen_.insert(hash(after)).second)
        nodes_.push_back({static_cast<std::uint32_t>(node), static_cast<std::uint8_t>(op)});
    }
  }

  [[noreturn]] void report(const std::exception& violation, std::size_t node, std::size_t op) {
    std::printf("violation: %s\nafter\n", violation.what());
    for (const std::size_t step : path(node)) std::printf("  %s\n", operations_[step].name.c_str());
    std::printf("  %s\n", operations_[op].name.c_str());
    std::exit(1);
  }

  Settings settings_;
  std::vector<Operation> operations_;
  std::size_t limit_;
  std::vector<Node> nodes_;
  std::unordered_set<std::size_t> seen_;  // hashes of 64 bits: a state in 10^12 may go unvisited
  std::size_t next_ = 0;
  std::int64_t num_operations_ = 0;
};

}  // namespace

// exhaustive [depth] [all|few operations] [remap|append_only] [fewest tokens of a partial match]
//            [most states]
int main(int argc, char** argv) {
  const int depth = argc > 1 ? std::atoi(argv[1]) : 4;
  const bool few = argc > 2 && std::strcmp(argv[2], "few") == 0;
  Settings settings;
  settings.core.num_blocks = settings.core.row_width = 3;
  settings.core.block_size = 2;
  settings.core.max_seqs = kSequences;
  settings.core.remap = argc < 4 || std::strcmp(argv[3], "append_only") != 0;
  settings.core.min_partial_tokens = argc > 4 ? std::atoi(argv[4]) : 1;
  Search search(settings, few, argc > 5 ? std::strtoull(argv[5], nullptr, 10) : SIZE_MAX);
  const auto started = std::chrono::steady_clock::now();
  std::printf("depth 0: 1 state\n");
  for (int d = 1; d <= depth; ++d) {
    const std::size_t before = search.num_states();
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
  std::printf("%zu states, %lld operations, 0 violations\n", search.num_states(),
              static_cast<long long>(search.num_operations()));
  return 0;
}
