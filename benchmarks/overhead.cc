// The core's own time for short calls: the work of benchmarks/overhead.py without Python. Prints
// nanoseconds per call, `name minimum median`, one line each.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "sequences/sequences.h"

namespace {

using namespace blockmgr;

constexpr int kCalls = 256;
constexpr Token kPromptTokens = 20;

// The calls hash nothing but the one block that is cached at the start.
class AnyDigest : public Digester {
 public:
  int size() const override { return 16; }
  std::uint8_t* message(std::size_t length) override {
    message_.resize(length);
    return message_.data();
  }
  void digest(std::size_t, std::uint8_t* out) override { std::fill_n(out, 16, std::uint8_t{1}); }

 private:
  std::vector<std::uint8_t> message_;
};

Config config() {
  Config config;
  config.num_blocks = 4096;
  config.block_size = 16;
  config.max_seqs = 1024;
  config.row_width = 64;
  return config;
}

class Loop {
 public:
  Loop() : core_(config(), std::make_unique<AnyDigest>()) {
    for (Token i = 0; i < kPromptTokens; ++i) prompt_.push_back(i);
    const Handle first = core_.admit(prompt());
    core_.commit(first, kPromptTokens);
    core_.free(first);
  }

  void run() {
    const Token token = 7;
    std::vector<Handle> handles(kCalls);
    std::vector<Handle> children(kCalls);
    std::int64_t slot = 0;
    std::int64_t found = 0;
    time("match", [&](int) { found += core_.match(prompt()).num_cached; });
    time("admit", [&](int i) { handles[at(i)] = core_.admit(prompt()); });
    time("append", [&](int i) { core_.append(handles[at(i)], &token, 1); });
    time("commit", [&](int i) { core_.commit(handles[at(i)], kPromptTokens + 1); });
    time("decode of 1", [&](int i) { core_.decode(&handles[at(i)], &token, 1, &slot); });
    time("fork", [&](int i) { core_.fork(handles[at(i)], 1, &children[at(i)]); });
    time("free of a fork", [&](int i) { core_.free(children[at(i)]); });
    time("free", [&](int i) { core_.free(handles[at(i)]); });
    if (found != kCalls * 16) std::abort();
  }

  void print() {
    for (auto& [name, times] : times_) {
      std::sort(times.begin(), times.end());
      std::printf("%s\t%.2f\t%.2f\n", name.c_str(), times.front(), times[times.size() / 2]);
    }
  }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }

  Prompt prompt() const { return {prompt_.data(), kPromptTokens, {}, {}, 0}; }

  template <class Call>
  void time(const char* name, Call call) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) call(i);
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    times_[name].push_back(took.count() / kCalls);
  }

  Sequences core_;
  std::vector<Token> prompt_;
  std::map<std::string, std::vector<double>> times_;
};

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 1000;
  Loop loop;
  for (int i = 0; i < rounds; ++i) loop.run();
  loop.print();
}
