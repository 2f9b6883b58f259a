// Does a manager grow with the sequences it has served? Admits and frees many sequences, and
// compares resident memory after a warm-up with that at the end.
//
//   ids [COUNT] [SEED]
//
// Prompts are small and together need more than the pool, so that blocks are constantly cached,
// found, evicted and copied. Namespaces and extra keys come and go; most of them are new.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>

#include "digester.h"
#include "sequences/sequences.h"

namespace {

using namespace blockmgr;
using blockmgr::testing::TestDigester;

constexpr std::int64_t kWarmUp = 1'000'000;
constexpr int kLive = 1024;  // sequences at a time
constexpr int kBlockSize = 4;

std::int64_t resident_bytes() {
  std::int64_t size = 0;
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> size >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

Config small_pool() {
  Config config;
  config.num_blocks = 4096;
  config.block_size = kBlockSize;
  config.max_seqs = kLive + 1;
  config.row_width = 16;
  config.min_partial_tokens = 1;
  return config;
}

class Traffic {
 public:
  explicit Traffic(std::uint64_t seed)
      : core_(small_pool(), std::make_unique<TestDigester>(TestDigester::kWide)), rng_(seed) {
    live_.reserve(kLive + 1);
    copies_.reserve(kLive);
  }

  // Admits a sequence. Every sixteenth is forked, and a token is appended to the fork.
  void admit() {
    while (live_.size() >= kLive) free_one();
    const std::uint64_t word = rng_();
    Token tokens[3 * kBlockSize];
    const auto count = static_cast<std::int64_t>(1 + word % (3 * kBlockSize));
    for (std::int64_t i = 0; i < count; ++i) tokens[i] = static_cast<Token>(word >> (20 + i) & 1);
    Prompt prompt{tokens, count, {}, {}, 0};
    const std::string number = std::to_string(created_);
    if (word >> 8 & 1) prompt.name = (word >> 9 & 3) ? std::string_view(number) : "tenant";
    if ((word >> 12 & 15) == 0) prompt.extras = {{0, number}};
    while (true) {
      try {
        live_.push_back(core_.admit(prompt));
        break;
      } catch (const OutOfBlocks&) {
        free_one();
      }
    }
    ++created_;
    core_.commit(live_.back(), count);
    if ((word >> 16 & 15) == 0) fork_one();
  }

  void drain() {
    while (!live_.empty()) free_one();
    step();
    const std::vector<std::string> violations = core_.violations();
    if (core_.num_sequences() || core_.pool().available() != core_.pool().capacity())
      throw std::runtime_error("a sequence or a block was never freed");
    if (!violations.empty()) throw std::runtime_error(violations.front());
  }

  std::int64_t created() const { return created_; }
  const Sequences& core() const { return core_; }

 private:
  void fork_one() {
    if (core_.pool().available() < 2 || live_.size() > kLive) return;
    Handle child = 0;
    const Handle parent = live_.back();
    core_.fork(parent, 1, &child);
    live_.push_back(child);
    ++created_;
    const Token token = 1;
    core_.append(child, &token, 1);
    step();
  }
  void free_one() {
    std::swap(live_[rng_() % live_.size()], live_.back());
    core_.free(live_.back());
    live_.pop_back();
  }
  void step() { core_.copies_applied(core_.take_copies(copies_)); }

  Sequences core_;
  std::mt19937_64 rng_;
  std::vector<Handle> live_;
  std::vector<BlockCopy> copies_;
  std::int64_t created_ = 0;
};

double mib(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t count = argc > 1 ? std::atoll(argv[1]) : 10 * kWarmUp;
  const std::uint64_t seed = argc > 2 ? static_cast<std::uint64_t>(std::atoll(argv[2])) : 1;
  if (count < 2 * kWarmUp) {
    std::fprintf(stderr, "at least %lld sequences\n", static_cast<long long>(2 * kWarmUp));
    return 2;
  }
  const auto started = std::chrono::steady_clock::now();
  Traffic traffic(seed);
  while (traffic.created() < kWarmUp) traffic.admit();
  resident_bytes();  // the first read and print take a few pages themselves
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  const std::int64_t before = resident_bytes();
  std::int64_t most = before;
  std::printf("%12lld sequences  %.2f MiB resident\n", static_cast<long long>(traffic.created()),
              mib(before));
  for (int tenth = 1; tenth <= 10; ++tenth) {
    while (traffic.created() < count / 10 * tenth) traffic.admit();
    const std::int64_t bytes = resident_bytes();
    most = std::max(most, bytes);
    std::printf("%12lld sequences  %.2f MiB resident\n", static_cast<long long>(traffic.created()),
                mib(bytes));
    std::fflush(stdout);
  }
  try {
    traffic.drain();
  } catch (const std::exception& error) {
    std::printf("violation: %s\n", error.what());
    return 1;
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  const double growth = 100.0 * static_cast<double>(most - before) / static_cast<double>(before);
  const Counters& counters = traffic.core().counters;
  std::printf(
      "%lld sequences, %lld blocks evicted, %lld copies, %lld tokens found of %lld\n"
      "%.0f s, growth after warm-up %.2f %% (at most 1 %%)\n",
      static_cast<long long>(traffic.created()),
      static_cast<long long>(traffic.core().pool().num_evicted()),
      static_cast<long long>(traffic.core().copies().num_planned()),
      static_cast<long long>(counters.hit_tokens), static_cast<long long>(counters.query_tokens),
      seconds, growth);
  return growth <= 1 ? 0 : 1;
}
