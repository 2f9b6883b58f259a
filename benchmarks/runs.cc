// How long runs of consecutive ids are when they are hit, after churn: see benchmarks/runs.py.
//
//   runs NUM_BLOCKS LAPS < requests
//
// A request is a line: its time, its number of decode steps, the number of blocks of its prompt,
// and a number for each of those blocks. A block is one token here, which does not affect ids. Each
// lap serves all requests once, with content that no earlier lap had; the last lap is counted. At
// the end the cached prompts are matched, in the used pool and in a fresh one.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <queue>
#include <tuple>
#include <vector>

#include "sequences/sequences.h"

namespace {

using namespace blockmgr;

constexpr std::int64_t kStepTime = 64 * 30;  // ms to decode a block of 64 tokens
constexpr int kMaxSeqs = 4096;

// Tokens distinguish blocks, and few digests are needed.
class Mixer : public Digester {
 public:
  int size() const override { return 16; }
  std::uint8_t* message(std::size_t length) override {
    message_.resize(length);
    return message_.data();
  }
  void digest(std::size_t length, std::uint8_t* out) override {
    std::uint64_t a = 0x9e3779b97f4a7c15u, b = 0xc2b2ae3d27d4eb4fu;
    for (std::size_t i = 0; i < length; ++i) {
      a = (a ^ message_[i]) * 0x100000001b3u;
      b = (b + message_[i]) * 0xff51afd7ed558ccdu;
      b ^= b >> 29;
    }
    std::memcpy(out, &a, 8);
    std::memcpy(out + 8, &b, 8);
  }

 private:
  std::vector<std::uint8_t> message_;
};

struct Runs {
  std::int64_t blocks = 0;
  std::int64_t runs = 0;
  void count(const NodeId* nodes, std::int64_t size) {
    blocks += size;
    for (std::int64_t i = 0; i < size; ++i) runs += i == 0 || nodes[i] != nodes[i - 1] + 1;
  }
  double mean() const {
    return static_cast<double>(blocks) / static_cast<double>(std::max<std::int64_t>(runs, 1));
  }
};

struct Request {
  std::int64_t time;
  std::int64_t steps;
  std::vector<Token> tokens;
};

std::vector<Request> read_requests() {
  std::vector<Request> requests;
  std::int64_t time, steps, count;
  while (std::scanf("%ld %ld %ld", &time, &steps, &count) == 3) {
    std::vector<Token> tokens(static_cast<std::size_t>(count));
    for (Token& token : tokens)
      if (std::scanf("%u", &token) != 1) std::exit(2);
    requests.push_back({time, steps, std::move(tokens)});
  }
  return requests;
}

// Prompts of the last lap that are fully cached, the newest first, up to a quarter of the pool.
std::vector<std::vector<Token>> cached_prompts(Sequences& core,
                                               const std::vector<Request>& requests, Token offset) {
  std::vector<std::vector<Token>> prompts;
  std::int64_t size = 0;
  for (auto r = requests.rbegin(); r != requests.rend() && size < core.config().num_blocks / 4;
       ++r) {
    std::vector<Token> tokens = r->tokens;
    for (Token& token : tokens) token += offset;
    const auto count = static_cast<std::int64_t>(tokens.size());
    if (count < 64 || core.match({tokens.data(), count, {}, {}, 0}).num_cached + 1 < count)
      continue;
    size += count;
    prompts.push_back(std::move(tokens));
  }
  return prompts;
}

// Nanoseconds per block, the least of several rounds.
double match_time(Sequences& core, const std::vector<std::vector<Token>>& prompts) {
  double least = 1e9;
  for (int round = 0; round < 20; ++round) {
    std::int64_t found = 0;
    const auto begin = std::chrono::steady_clock::now();
    for (const std::vector<Token>& tokens : prompts)
      found += core.match({tokens.data(), static_cast<std::int64_t>(tokens.size()), {}, {}, 0})
                   .num_cached;
    const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - begin;
    if (found) least = std::min(least, time.count() / static_cast<double>(found));
  }
  return least;
}

}  // namespace

int main(int, char** argv) {
  Config config;
  config.num_blocks = std::atoi(argv[1]);
  config.block_size = 1;
  config.max_seqs = kMaxSeqs;
  config.row_width = std::min(config.num_blocks, 1 << 14);
  Sequences core(config, std::make_unique<Mixer>());
  Runs hits, outputs;
  std::int64_t refused = 0;
  using Turn = std::tuple<std::int64_t, Handle, std::int64_t>;  // time, sequence, steps left
  std::priority_queue<Turn, std::vector<Turn>, std::greater<>> turns;
  Token fresh = 1u << 31;
  const auto end = [&](Handle handle) {
    const Sequence& s = core.view(handle);
    outputs.count(core.table_at(Sequences::row_of(handle)), s.num_blocks);
    core.commit(handle, s.num_tokens);
    core.free(handle);
  };
  const auto serve = [&](std::int64_t now, const Request& request, Token offset) {
    std::vector<Token> tokens = request.tokens;
    for (Token& token : tokens) token += offset;
    const auto count = static_cast<std::int64_t>(tokens.size());
    while (!turns.empty() && std::get<0>(turns.top()) <= now) {
      const auto [when, handle, left] = turns.top();
      turns.pop();
      std::int64_t slot;
      ++fresh;
      try {
        if (left) core.decode(&handle, &fresh, 1, &slot);
      } catch (const OutOfBlocks&) {
        ++refused;
        end(handle);
        continue;
      }
      if (left) turns.emplace(when + kStepTime, handle, left - 1);
      if (!left) end(handle);
    }
    const Prompt prompt{tokens.data(), count, {}, {}, 0};
    try {
      const Handle handle = core.admit(prompt);
      hits.count(core.table_at(Sequences::row_of(handle)), core.view(handle).num_cached);
      core.commit(handle, count);
      turns.emplace(now + kStepTime, handle, request.steps);
    } catch (const std::exception&) {
      ++refused;
    }
  };
  const std::vector<Request> requests = read_requests();
  Token most = 0;
  for (const Request& request : requests)
    for (const Token token : request.tokens) most = std::max(most, token);
  const int laps = std::atoi(argv[2]);
  std::int64_t start = 0, evicted = 0;
  for (int lap = 0; lap < laps; ++lap) {
    hits = outputs = Runs();
    refused = 0;
    evicted = core.pool().num_evicted();
    for (const Request& request : requests)
      serve(start + request.time, request, static_cast<Token>(lap) * (most + 1));
    start += requests.back().time;
  }
  const auto prompts = cached_prompts(core, requests, static_cast<Token>(laps - 1) * (most + 1));
  Sequences fresh_core(config, std::make_unique<Mixer>());
  for (const std::vector<Token>& tokens : prompts) {
    const auto count = static_cast<std::int64_t>(tokens.size());
    const Handle handle = fresh_core.admit({tokens.data(), count, {}, {}, 0});
    fresh_core.commit(handle, count);
    fresh_core.free(handle);
  }
  const double fresh_time = match_time(fresh_core, prompts);
  const double worn_time = match_time(core, prompts);
  std::printf("%ld %.2f %ld %.2f %ld %ld %.2f %.2f\n", static_cast<long>(hits.blocks), hits.mean(),
              static_cast<long>(outputs.blocks), outputs.mean(),
              static_cast<long>(core.pool().num_evicted() - evicted), static_cast<long>(refused),
              worn_time, fresh_time);
  return 0;
}
