// What state is left when memory runs out? Makes every allocation of every call fail.
//
// Random engines drive managers and pools as in the stress program. Each call is first tried with
// its first allocation failing, then with its second, and so on until it completes; each time with
// only that allocation failing, and with all later ones failing too. After each attempt the core
// must be unchanged: same fingerprint, no broken invariant, and no more bytes than it reports. The
// same bytes drive another engine, whose allocations never fail; both must be in the same state
// after each move.
//
//   faults [--seed N] [--runs N] [--moves N]
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string>

#include "allocations.h"
#include "commits.h"
#include "group_play.h"
#include "play.h"
#include "pool_play.h"
#include "runs.h"

namespace {

std::int64_t allocated = 0;
std::int64_t live = 0;
std::int64_t failing = 0;
std::int64_t asked = 0;  // since a failure was requested
bool for_good = false;
bool failed = false;

bool must_fail() {
  ++allocated;
  if (!failing) return false;
  ++asked;
  if (asked != failing && !(for_good && asked > failing)) return false;
  return failed = true;
}

// The size is stored in front of the returned memory.
constexpr std::size_t kHeader = alignof(std::max_align_t);

}  // namespace

[[gnu::noinline]] void* operator new(std::size_t size) {
  if (must_fail()) throw std::bad_alloc();
  void* memory = std::malloc(size + kHeader);
  if (!memory) throw std::bad_alloc();
  std::memcpy(memory, &size, sizeof size);
  live += static_cast<std::int64_t>(size);
  return static_cast<char*>(memory) + kHeader;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  if (!memory) return;
  void* start = static_cast<char*>(memory) - kHeader;
  std::size_t size;
  std::memcpy(&size, start, sizeof size);
  live -= static_cast<std::int64_t>(size);
  std::free(start);
}
void operator delete(void* memory, std::size_t) noexcept { operator delete(memory); }

// The linker redirects calls of calloc here (see __main__.py).
extern "C" void* __real_calloc(std::size_t count, std::size_t size);
extern "C" void* __wrap_calloc(std::size_t count, std::size_t size) {
  return must_fail() ? nullptr : __real_calloc(count, size);
}

namespace blockmgr::testing {

void Allocations::fail(std::int64_t number, bool persistent) {
  asked = 0;
  failed = false;
  for_good = persistent;
  failing = number;
}
bool Allocations::stop() {
  failing = 0;
  return failed;
}
std::int64_t Allocations::count() { return allocated; }
std::int64_t Allocations::live_bytes() { return live; }

namespace {

struct Tally {
  std::int64_t calls = 0;
  std::int64_t points = 0;     // attempts in which an allocation failed
  std::int64_t completed = 0;  // of those, calls that completed anyway
  std::int64_t silent = 0;     // calls that allocated nothing at all
};

// Tallies by name of a call. Allocates nothing, because it is updated between two counts.
class Tallies {
 public:
  Tally& operator[](const char* name) {
    std::size_t i = 0;
    while (i < size_ && std::strcmp(rows_[i].first, name) != 0) ++i;
    if (i == size_) rows_.at(size_++).first = name;
    return rows_[i].second;
  }
  auto begin() const { return rows_.begin(); }
  auto end() const { return rows_.begin() + static_cast<std::ptrdiff_t>(size_); }

 private:
  std::array<std::pair<const char*, Tally>, 96> rows_{};
  std::size_t size_ = 0;
};

class OutOfMemory : public Trial {
 public:
  explicit OutOfMemory(Tallies& tallies) : tallies_(tallies) {}

  void make(const char* name, const Subject& subject, const std::function<void()>& call) override {
    Tally& tally = tallies_[name];
    ++tally.calls;
    for (std::int64_t number = 1;; ++number) {
      for (const bool persistent : {true, false}) {
        subject.rewind();
        if (attempt(name, subject, call, number, persistent, tally)) {
          if (number == 1) ++tally.silent;
          return;
        }
      }
    }
  }

 private:
  // Whether the call is done: it completed, or was refused for a reason other than memory.
  bool attempt(const char* name, const Subject& subject, const std::function<void()>& call,
               std::int64_t number, bool persistent, Tally& tally) {
    const std::string before = subject.fingerprint();
    const std::int64_t held = Allocations::live_bytes() - signed_size(subject.memory());
    std::exception_ptr thrown;
    Allocations::fail(number, persistent);
    try {
      call();
    } catch (...) {
      thrown = std::current_exception();
    }
    const bool ran_out = Allocations::stop();
    if (!ran_out) {
      if (thrown) std::rethrow_exception(thrown);
      return true;
    }
    ++tally.points;
    if (!thrown) {
      ++tally.completed;
      return true;
    }
    thrown = nullptr;
    const std::int64_t leaked = Allocations::live_bytes() - signed_size(subject.memory()) - held;
    const std::string where = std::string(name) + ", allocation " + std::to_string(number) +
                              (persistent ? " and all after it" : " alone") + " failed: ";
    if (subject.fingerprint() != before) throw Violation(where + "something changed");
    if (const auto broken = subject.violations(); !broken.empty())
      throw Violation(where + broken.front());
    if (leaked) throw Violation(where + std::to_string(leaked) + " bytes leaked");
    return false;
  }
  static std::int64_t signed_size(std::size_t size) { return static_cast<std::int64_t>(size); }

  Tallies& tallies_;
};

// A play on trial beside one whose allocations succeed, move by move.
template <class Driver, class State>
std::int64_t drive(std::uint64_t seed, int moves, const std::function<Driver*(Bytes&, bool)>& make,
                   State state) {
  Bytes bytes(seed);
  Bytes same(seed);
  const std::unique_ptr<Driver> tried(make(bytes, true));
  const std::unique_ptr<Driver> spared(make(same, false));
  for (int i = 0; i < moves; ++i) {
    tried->move();
    spared->move();
    if (state(*tried) != state(*spared))
      throw Violation("move " + std::to_string(i) + " had another outcome than without failures");
  }
  return tried->calls();
}

void try_kind(std::uint8_t kind, std::uint64_t seed, int moves, Trial& trial) {
  const std::int64_t before = Allocations::live_bytes();
  const Sort sort = sort_of(kind);
  const auto on_trial = [&](bool tried) { return tried ? &trial : nullptr; };
  if (sort.has_groups) {
    drive<GroupPlay>(
        seed, moves,
        [&](Bytes& bytes, bool tried) {
          return new GroupPlay(bytes, nullptr, on_trial(tried), sort.through_c, sort.features);
        },
        [](const GroupPlay& play) { return play.core().fingerprint(); });
  } else if (sort.is_pool) {
    drive<PoolPlay>(
        seed, moves, [&](Bytes& bytes, bool tried) { return new PoolPlay(bytes, on_trial(tried)); },
        [](const PoolPlay& play) { return play.pool().fingerprint(); });
  } else {
    drive<Play>(
        seed, moves,
        [&](Bytes& bytes, bool tried) {
          return new Play(bytes, sort.profile, nullptr, on_trial(tried), sort.through_c);
        },
        [](const Play& play) { return play.world().core().fingerprint(); });
  }
  if (Allocations::live_bytes() != before)
    throw Violation(std::to_string(Allocations::live_bytes() - before) +
                    " bytes are left of a destroyed manager");
}

// Makes every allocation of a constructor fail.
void construct(const char* name, Tallies& tallies, const std::function<void()>& make) {
  Tally& tally = tallies[name];
  ++tally.calls;
  for (std::int64_t number = 1;; ++number) {
    for (const bool persistent : {true, false}) {
      const std::int64_t before = Allocations::live_bytes();
      bool thrown = false;
      Allocations::fail(number, persistent);
      try {
        make();
      } catch (const std::bad_alloc&) {
        thrown = true;
      }
      const bool ran_out = Allocations::stop();
      if (Allocations::live_bytes() != before)
        throw Violation(std::string(name) + ", allocation " + std::to_string(number) +
                        " failed: memory leaked");
      if (!ran_out) return;
      ++tally.points;
      if (!thrown) ++tally.completed;
    }
  }
}

void construct_all(Tallies& tallies) {
  for (const char* eviction : kPolicies) {
    Config config;
    config.num_blocks = 8;
    config.block_size = 4;
    config.max_seqs = 4;
    config.row_width = 8;
    config.steps_in_flight = 2;
    config.eviction = eviction;
    config.event_blocks = 4;
    construct("manager", tallies, [&] {
      const Sequences core(config, std::make_unique<TestDigester>(TestDigester::kWide));
    });
  }
  for (const char* eviction : kPolicies) {
    StoreConfig config;
    config.num_blocks = 8;
    config.block_size = 4;
    config.null_block = true;
    config.eviction = eviction;
    config.retention = true;
    config.max_pinned_blocks = config.ghost_blocks = 4;
    config.quotas = {{"a", 3}};
    construct("pool", tallies, [&] {
      const BlockPool core(config, std::make_unique<TestDigester>(TestDigester::kWide));
    });
  }
}

// Calls that allocate nothing once their scratch has grown to the size they need.
void expect_steady(Tallies& tallies) {
  Config config;
  config.num_blocks = 64;
  config.block_size = 2;
  config.max_seqs = 8;
  config.row_width = 32;
  config.min_partial_tokens = 1;
  Sequences core(config, std::make_unique<TestDigester>(TestDigester::kWide));
  const std::vector<Token> tokens = {1, 2, 3, 4, 5, 6};
  std::vector<BlockCopy> copies;
  for (int round = 0; round < 8; ++round) {
    const auto silently = [&](const char* name, const auto& call) {
      const std::int64_t before = Allocations::count();
      call();
      const bool allocates = Allocations::count() != before;
      if (round < 2) return;
      if (allocates) throw Violation(std::string(name) + " allocates in a steady state");
      ++tallies[name].calls;
      ++tallies[name].silent;
    };
    const Handle handle = core.admit({tokens.data(), 6, "", {}, 0});
    Handle child = 0;
    std::int64_t slot = 0;
    silently("steady commit", [&] { core.commit(handle, 6); });
    core.fork(handle, 1, &child);
    silently("steady append", [&] { core.append(child, tokens.data(), 3); });
    silently("steady reserve", [&] { core.reserve(child, 20); });
    silently("steady take", [&] { core.copies_applied(core.take_copies(copies)); });
    silently("steady decode", [&] { core.decode(&handle, tokens.data(), 1, &slot); });
    silently("steady truncate", [&] { core.truncate(child, 3); });
    silently("steady free", [&] { core.free(child); });
    silently("steady free", [&] { core.free(handle); });
  }
}

// Calls of retention for a namespace whose long name needs an allocation. Also tries view_pin and
// explain, which no engine of the plays does.
void try_retaining(Trial& trial) {
  Config config;
  config.num_blocks = 32;
  config.block_size = 2;
  config.max_seqs = 4;
  config.row_width = 16;
  config.retention = true;
  config.max_sessions = 1;
  config.max_pinned_blocks = 8;
  Sequences core(config, std::make_unique<TestDigester>(TestDigester::kWide));
  const std::vector<Token> tokens = {1, 2, 3, 4, 5, 6, 7};
  const Prompt prompt{tokens.data(), 7, "a namespace too long to be kept in place", {}, 0};
  const Handle handle = core.admit(prompt);
  core.commit(handle, 7);
  const Subject subject{[&] { return core.fingerprint(); }, [&] { return core.violations(); },
                        [&] { return core.memory(); }, [] {}};
  std::int64_t pin = 0;
  trial.make("retain", subject, [&] { core.retain(handle, 0, 7, 1, 9.0); });
  trial.make("retain_prefix", subject, [&] { core.retain_prefix(prompt, 2, 9.0); });
  trial.make("pin", subject, [&] { pin = core.pin(prompt); });
  trial.make("view_pin", subject, [&] { core.view_pin(pin); });
  trial.make("explain", subject, [&] { core.explain(prompt); });
  trial.make("set_time", subject, [&] { core.set_time(1.0); });
  trial.make("free, expecting", subject, [&] { core.free_expecting(handle, true); });
  trial.make("touch", subject, [&] { core.touch(prompt); });
  trial.make("unpin", subject, [&] { core.unpin(pin); });
  Prompt named = prompt;
  named.session = "the first session makes the table, which stays";
  core.free(core.admit(named));
  named.session = "a session with a name too long for its place";
  Handle handles[2];
  trial.make("admit, new session", subject, [&] { handles[0] = core.admit(named); });
  core.free(handles[0]);
  trial.make("admit, session", subject, [&] { handles[1] = core.admit(named); });
  core.free(handles[1]);
  trial.make("signal", subject,
             [&] { core.signal(named.name, named.session, Sessions::Signal::kToolWait, 3.0); });
  trial.make("end_session", subject, [&] { core.end_session(named.name, named.session); });
}

// The first commit of each manager is that of a load, so all that commits reserve is yet to grow.
void try_loading(Trial& trial, const std::vector<Group>& groups, bool early) {
  Config config;
  config.num_blocks = 64;
  config.block_size = 2;
  config.max_seqs = 4;
  config.row_width = 16;
  config.null_block = true;
  config.early_commit = early;
  config.groups = groups;
  Sequences core(config, std::make_unique<TestDigester>(TestDigester::kWide));
  const Subject subject{[&] { return core.fingerprint(); }, [&] { return core.violations(); },
                        [&] { return core.memory(); }, [] {}};
  const std::vector<Token> tokens = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  Prompt prompt{tokens.data(), 16, "", {}, 0};
  prompt.num_loaded = 10;
  Handle handles[2];  // both load the same, so the second merges with the first
  for (Handle& handle : handles)
    trial.make("admit, loaded", subject, [&] { handle = core.admit(prompt); });
  for (const Handle handle : handles)
    trial.make("commit, loaded", subject, [&] { core.commit(handle, early ? 16 : 10); });
  std::vector<BlockCopy> copies;
  core.copies_applied(core.take_copies(copies));
  for (const Handle handle : handles) {
    core.commit(handle, 16);
    trial.make("free, loaded", subject, [&] { core.free(handle); });
  }
}

void try_loading(Trial& trial) {
  const Group window{Group::kWindow, 5};
  const Group state{Group::kRecurrent};
  const std::vector<Group> groups[] = {{}, {window}, {state}, {window, state}};
  for (const bool early : {false, true})
    for (const std::vector<Group>& some : groups) try_loading(trial, some, early);
}

int whole_argument(const char* text) {
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (*end || value < 1 || value > 1'000'000'000) {
    std::fprintf(stderr, "expected a number from 1, got %s\n", text);
    std::exit(2);
  }
  return static_cast<int>(value);
}

void print(const Tallies& tallies) {
  Tally all;
  std::printf("%-16s %10s %10s %12s %12s\n", "call", "calls", "points", "did without",
              "allocated 0");
  for (const auto& [name, tally] : tallies) {
    std::printf("%-16s %10lld %10lld %12lld %12lld\n", name, static_cast<long long>(tally.calls),
                static_cast<long long>(tally.points), static_cast<long long>(tally.completed),
                static_cast<long long>(tally.silent));
    all.calls += tally.calls;
    all.points += tally.points;
  }
  std::printf("%lld calls, %lld allocation points, 0 broken states, 0 bytes leaked\n",
              static_cast<long long>(all.calls), static_cast<long long>(all.points));
}

}  // namespace
}  // namespace blockmgr::testing

int main(int argc, char** argv) {
  using namespace blockmgr::testing;
  int seed = 1;
  int runs = 48;
  int moves = 60;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    int* value = name == "--seed" ? &seed : name == "--runs" ? &runs : &moves;
    if (name != "--seed" && name != "--runs" && name != "--moves") argc = 0;
    *value = whole_argument(argv[i + 1]);
  }
  if (argc % 2 == 0) {
    std::fprintf(stderr, "usage: faults [--seed N] [--runs N] [--moves N]\n");
    return 2;
  }
  std::vector<std::string> kinds = kind_names();
  for (const std::string& kind : kind_names_apart())
    if (sort_of(kind_of(kind)).has_groups) kinds.push_back(kind);
  for (const std::string& kind : kind_names_through_c()) kinds.push_back(kind);
  Tallies tallies;
  OutOfMemory trial(tallies);
  int number = 0;
  try {
    construct_all(tallies);
    expect_steady(tallies);
    try_retaining(trial);
    try_loading(trial);
    for (; number < runs; ++number) {
      const std::string& kind = kinds[static_cast<std::size_t>(number) % kinds.size()];
      const auto stream =
          static_cast<std::uint64_t>(seed) * 1'000'003 + static_cast<unsigned>(number);
      try_kind(kind_of(kind), stream, moves, trial);
    }
  } catch (const std::exception& violation) {
    std::printf("violation in run %d of seed %d, %s: %s\n", number, seed,
                kinds[static_cast<std::size_t>(number) % kinds.size()].c_str(), violation.what());
    return 1;
  }
  std::printf("seed %d, %d runs of %d moves\n", seed, runs, moves);
  print(tallies);
  return 0;
}
