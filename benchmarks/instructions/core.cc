// The hot calls of the core, each on a known state and each counted separately by callgrind.
//
// Prints "name <tab> calls <tab> unit" in the order of the dumps that callgrind writes. Every call
// runs once before it is counted. Without callgrind it does the same work and counts nothing, which
// shows that no state is exhausted on the way.
#include <valgrind/callgrind.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "sequences/block_pool.h"
#include "sequences/sequences.h"

namespace {

using namespace blockmgr;

constexpr int kBlockSize = 16;
constexpr int kPromptBlocks = 2048;
constexpr int kPromptTokens = kPromptBlocks * kBlockSize;
constexpr int kPoolBlocks = 4 * kPromptBlocks;
constexpr int kBatch = 1024;
constexpr Token kVocabulary = 128'000;

// Fails loudly: a case that stopped doing its work must not look cheap.
void require(bool holds, const std::string& otherwise) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", otherwise.c_str());
  std::exit(1);
}

// The digest function is another library's code, so the count of a call leaves it out.
class UncountedDigester : public Digester {
 public:
  UncountedDigester() : Digester(false, true) {}  // as the default one
  int size() const override { return 16; }
  std::uint8_t* message(std::size_t length) override {
    if (buffer_.size() < length) buffer_.resize(length);
    return buffer_.data();
  }
  void digest(std::size_t length, std::uint8_t* out) override {
    if (counting) CALLGRIND_TOGGLE_COLLECT;
    const std::string_view bytes(reinterpret_cast<const char*>(buffer_.data()), length);
    const std::uint64_t value = std::hash<std::string_view>()(bytes);
    std::memcpy(out, &value, 8);
    std::memcpy(out + 8, &value, 8);
    if (counting) CALLGRIND_TOGGLE_COLLECT;
  }

  static inline bool counting = false;

 private:
  std::vector<std::uint8_t> buffer_ = std::vector<std::uint8_t>(256);
};

template <class Call>
void count(const std::string& name, std::int64_t calls, const char* unit, Call call) {
  UncountedDigester::counting = true;
  CALLGRIND_TOGGLE_COLLECT;
  call();
  CALLGRIND_TOGGLE_COLLECT;
  UncountedDigester::counting = false;
  CALLGRIND_DUMP_STATS_AT(name.c_str());
  std::printf("%s\t%lld\t%s\n", name.c_str(), static_cast<long long>(calls), unit);
}

using Tokens = std::vector<Token>;

// Random token ids, the same ones in every run.
class Prompts {
 public:
  Tokens draw(std::int64_t num_tokens) {
    Tokens tokens(static_cast<std::size_t>(num_tokens));
    for (Token& token : tokens) token = static_cast<Token>(rng_() % kVocabulary);
    return tokens;
  }

 private:
  std::mt19937 rng_{1};
};

Prompt prompt_of(const Tokens& tokens) {
  return {tokens.data(), static_cast<std::int64_t>(tokens.size()), {}, {}, 0};
}

Config pool_of(int num_blocks, const std::string& eviction = "lru") {
  Config config;
  config.num_blocks = num_blocks;
  config.block_size = kBlockSize;
  config.max_seqs = kBatch + 8;
  config.row_width = kPromptBlocks + 1;
  config.eviction = eviction;
  return config;
}

// The same with two further groups, each of which needs blocks in the same pool.
Config groups_of(Group::Kind kind, std::int64_t narrow, std::int64_t wide) {
  Config config = pool_of(3 * kPoolBlocks);
  config.groups = {{kind, narrow}, {kind, wide}};
  config.null_block = true;
  return config;
}

class World {
 public:
  explicit World(const Config& config) : core(config, std::make_unique<UncountedDigester>()) {}

  // Leaves every full block of the prompt cached and idle.
  void cache(const Tokens& tokens) {
    const Handle handle = core.admit(prompt_of(tokens));
    core.commit(handle, static_cast<std::int64_t>(tokens.size()));
    core.free(handle);
  }
  // Leaves no block free, so that every allocation evicts. With several groups, an eviction frees
  // further blocks.
  void fill() {
    while (core.has_groups() ? !evicted() : core.pool().num_free() > 0)
      cache(prompts.draw(std::min(core.pool().num_free(), kPromptBlocks) * kBlockSize));
  }
  std::int64_t evicted() const { return core.pool().num_evicted(); }

  Prompts prompts;
  Sequences core;
};

// A cached prompt followed by one token.
void count_hits(const Config& config, const std::string& which) {
  World world(config);
  Tokens prompt = world.prompts.draw(kPromptTokens);
  world.cache(prompt);
  prompt.push_back(1);
  for (const bool counted : {false, true}) {
    Handle handle = 0;
    std::int64_t found = 0;
    const auto match = [&] { found = world.core.match(prompt_of(prompt)).num_cached; };
    const auto admit = [&] { handle = world.core.admit(prompt_of(prompt)); };
    const auto free = [&] { world.core.free(handle); };
    if (counted) {
      count(which + "match, a cached prompt", kPromptBlocks, "block", match);
      count(which + "admit, a cached prompt", kPromptBlocks, "block", admit);
      count(which + "free", kPromptBlocks, "block", free);
    } else {
      match(), admit(), free();
    }
    require(found == kPromptTokens, "the cached prompt is not found");
  }
}

// A prompt that is not cached, into free blocks or into evicted ones.
void count_misses(const Config& config, const std::string& which, bool evicting) {
  World world(config);
  if (evicting) world.fill();
  const std::string ending = evicting ? ", each block evicts" : "";
  for (const bool counted : {false, true}) {
    const Tokens prompt = world.prompts.draw(kPromptTokens);
    const std::int64_t before = world.evicted();
    Handle handle = 0;
    const auto admit = [&] { handle = world.core.admit(prompt_of(prompt)); };
    const auto commit = [&] { world.core.commit(handle, kPromptTokens); };
    if (counted) {
      count(which + "admit, a new prompt" + ending, kPromptBlocks, "block", admit);
      count(which + "commit" + ending, kPromptBlocks, "block", commit);
    } else {
      admit(), commit();
    }
    const std::int64_t evicted = world.evicted() - before;
    if (config.groups.empty()) {
      require(evicted == (evicting ? kPromptBlocks : 0), "not the evictions due");
    } else {
      require((evicted > 0) == evicting, "not the evictions due");
    }
    world.core.free(handle);
    if (evicting) continue;
    const Tokens other = world.prompts.draw(kPromptTokens);
    handle = world.core.admit(prompt_of(other));
    const auto free = [&] { world.core.free(handle); };
    counted ? count(which + "free, not computed", kPromptBlocks, "block", free) : free();
  }
}

class Batch {
 public:
  Batch(World& world, int num_tokens, int stagger) : world_(world), handles_(kBatch) {
    for (int i = 0; i < kBatch; ++i)
      handles_[static_cast<std::size_t>(i)] =
          world.core.admit(prompt_of(world.prompts.draw(num_tokens + i % stagger)));
    slots_.resize(kBatch);
    tokens_ = world.prompts.draw(kBatch);
  }
  void step() { world_.core.decode(handles_.data(), tokens_.data(), kBatch, slots_.data()); }

 private:
  World& world_;
  std::vector<Handle> handles_;
  std::vector<std::int64_t> slots_;
  Tokens tokens_;
};

void count_decode(const Config& config, const std::string& which, bool evicting) {
  const std::string ending = evicting ? ", evicting" : "";
  const auto step = [&](const std::string& name, int num_tokens, int stagger, std::int64_t taken) {
    World world(config);
    Batch batch(world, num_tokens, stagger);
    for (int i = 0; i < 2; ++i) batch.step();
    if (evicting) world.fill();
    const std::int64_t used = world.core.pool().num_used();
    const std::int64_t evicted = world.evicted();
    count(which + name + ending, kBatch, "sequence", [&] { batch.step(); });
    if (!config.groups.empty()) return;
    require(world.core.pool().num_used() - used == taken, "not the blocks due: " + name);
    require(world.evicted() - evicted == (evicting ? taken : 0), "not the evictions due: " + name);
  };
  if (!evicting) step("decode, in place", 4 * kBlockSize + 2, 1, 0);
  step("decode, each takes a block", 4 * kBlockSize - 2, 1, kBatch);
  step("decode, one in 16 takes a block", 4 * kBlockSize, kBlockSize, kBatch / kBlockSize);
}

void count_forks(const Config& config, const std::string& which) {
  constexpr int kChildren = 8;
  World world(config);
  const Tokens prompt = world.prompts.draw(kPromptTokens);
  const Handle parent = world.core.admit(prompt_of(prompt));
  world.core.commit(parent, kPromptTokens);
  Handle children[kChildren];
  const auto fork = [&] { world.core.fork(parent, kChildren, children); };
  const auto free = [&] {
    for (const Handle child : children) world.core.free(child);
  };
  fork(), free();
  count(which + "fork", kChildren * kPromptBlocks, "block", fork);
  count(which + "free, a fork", kChildren * kPromptBlocks, "block", free);

  fork();
  const std::int64_t parents[kChildren] = {1, 1, 2, 2, 3, 3, 4, 4};
  const auto reparent = [&] { world.core.reparent(children, parents, kChildren); };
  reparent();
  count(which + "reparent, 8 beams", kChildren * kPromptBlocks, "block", reparent);
}

void count_copies() {
  World world(pool_of(kPoolBlocks));
  std::vector<Handle> parents;
  for (int i = 0; i < kBatch / 2; ++i) {
    const Tokens prompt = world.prompts.draw(kBlockSize + 4);
    parents.push_back(world.core.admit(prompt_of(prompt)));
    world.core.commit(parents.back(), kBlockSize + 4);
  }
  const auto calls = static_cast<std::int64_t>(parents.size());
  std::vector<Handle> children(parents.size());
  std::vector<BlockCopy> copies;
  const Token token = 1;
  for (const bool counted : {false, true}) {
    const auto fork = [&] {
      for (std::size_t i = 0; i < parents.size(); ++i) world.core.fork(parents[i], 1, &children[i]);
    };
    const auto append = [&] {
      for (const Handle child : children) world.core.append(child, &token, 1);
    };
    const auto take = [&] { world.core.copies_applied(world.core.take_copies(copies)); };
    if (counted) {
      count("fork, a short sequence", calls, "call", fork);
      count("append, copy-on-write", calls, "call", append);
      count("take_copies and copies_applied", calls, "copy", take);
    } else {
      fork(), append(), take();
    }
    require(copies.size() == parents.size(), "not the copies due");
    for (const Handle child : children) world.core.free(child);
  }
}

// Prompts with a common prefix: where they diverge, the hint is mostly wrong.
void count_many_prompts() {
  constexpr int kShared = 8;
  constexpr int kOwn = 24;
  World world(pool_of(kPoolBlocks));
  const Tokens shared = world.prompts.draw(kShared * kBlockSize);
  std::vector<Tokens> prompts;
  for (int i = 0; i < 128; ++i) {
    prompts.push_back(shared);
    for (const Token token : world.prompts.draw(kOwn * kBlockSize)) prompts.back().push_back(token);
    world.cache(prompts.back());
    prompts.back().push_back(1);
  }
  const auto calls = static_cast<std::int64_t>(prompts.size());
  std::int64_t found = 0;
  const auto match = [&] {
    found = 0;
    for (const Tokens& prompt : prompts) found += world.core.match(prompt_of(prompt)).num_cached;
  };
  match();
  count("match, many prompts", calls * (kShared + kOwn), "block", match);
  require(found == calls * (kShared + kOwn) * kBlockSize, "the prompts are not found");
}

// Calls whose cost per call outweighs the cost per block. Each sequence fills one block.
void count_short_sequences() {
  constexpr int kTokens = kBlockSize + 4;
  World world(pool_of(kPoolBlocks));
  std::vector<Tokens> prompts(kBatch / 2);
  std::vector<Handle> handles(prompts.size());
  const Token token = 1;
  for (const bool counted : {false, true}) {
    for (Tokens& prompt : prompts) prompt = world.prompts.draw(kTokens);
    const auto run = [&](const char* name, auto call) {
      const auto calls = [&] {
        for (std::size_t i = 0; i < prompts.size(); ++i) call(handles[i], prompts[i]);
      };
      if (counted) {
        count(std::string(name) + ", a short sequence", static_cast<std::int64_t>(prompts.size()),
              "call", calls);
      } else {
        calls();
      }
    };
    Sequences& core = world.core;
    run("match, not cached", [&](Handle&, Tokens& prompt) { core.match(prompt_of(prompt)); });
    run("admit", [&](Handle& h, Tokens& prompt) { h = core.admit(prompt_of(prompt)); });
    run("commit, promotes a block", [&](Handle h, Tokens&) { core.commit(h, kTokens); });
    run("append", [&](Handle h, Tokens&) { core.append(h, &token, 1); });
    run("commit", [&](Handle h, Tokens&) { core.commit(h, kTokens + 1); });
    run("truncate", [&](Handle h, Tokens&) { core.truncate(h, kTokens); });
    run("reserve, a block more", [&](Handle h, Tokens&) { core.reserve(h, 2 * kBlockSize + 1); });
    run("preempt", [&](Handle h, Tokens&) { core.preempt(h); });
    run("resume", [&](Handle h, Tokens&) { core.resume(h, 0); });
    run("free", [&](Handle h, Tokens&) { core.free(h); });
    run("admit again", [&](Handle& h, Tokens& prompt) { h = core.admit(prompt_of(prompt)); });
    for (const Handle handle : handles) core.free(handle);
  }
}

// The next turn of a conversation continues the cached tail of the last one.
void count_tails() {
  Config config = pool_of(kPoolBlocks);
  config.min_partial_tokens = 1;
  World world(config);
  constexpr int kTurn = 3 * kBlockSize + 5;
  std::vector<Tokens> prompts;
  for (int i = 0; i < 128; ++i) prompts.push_back(world.prompts.draw(kTurn));
  for (const Tokens& prompt : prompts) world.cache(prompt);
  const auto calls = static_cast<std::int64_t>(prompts.size());
  std::vector<Handle> handles(prompts.size());
  std::int64_t turn = kTurn;
  const auto admit = [&] {
    for (std::size_t i = 0; i < prompts.size(); ++i)
      handles[i] = world.core.admit(prompt_of(prompts[i]));
  };
  const auto free = [&] {
    for (const Handle handle : handles) world.core.free(handle);
  };
  for (const bool counted : {false, true}) {
    for (Tokens& prompt : prompts) prompt.insert(prompt.end(), {1, 2, 3});
    turn += 3;
    if (counted) {
      count("admit, from a cached tail", calls, "call", admit);
    } else {
      admit();
    }
    for (const Handle handle : handles) world.core.commit(handle, turn);
    if (counted) {
      count("free, leaving a tail", calls, "call", free);
    } else {
      free();
    }
  }
  require(world.core.counters.partial_hit_tokens > 0, "no tail is found");
}

void count_pool() {
  constexpr int kChain = 64;
  StoreConfig config;
  config.num_blocks = kPoolBlocks;
  config.block_size = kBlockSize;
  BlockPool pool(config, std::make_unique<UncountedDigester>());
  Prompts prompts;
  std::vector<NodeId> taken(kChain);
  std::vector<std::int64_t> ids(kChain);
  for (const bool counted : {false, true}) {
    const Tokens tokens = prompts.draw(kChain * kBlockSize);
    const ChainKey key{tokens.data(), kChain * kBlockSize, -1, {}, {}};
    const auto take = [&] { pool.take(kChain, {}, taken.data()); };
    const auto promote = [&] { pool.promote(ids.data(), kChain, key, taken.data()); };
    const auto release = [&] { pool.release(ids.data(), kChain); };
    const auto acquire = [&] { pool.acquire(ids.data(), kChain, true); };
    std::size_t num_found = 0;
    const auto find = [&] { num_found = pool.find(key).size(); };
    const auto run = [&](const char* name, auto call) {
      if (counted) {
        count(std::string("pool: ") + name, kChain, "block", call);
      } else {
        call();
      }
    };
    run("take", take);
    ids.assign(taken.begin(), taken.end());
    run("promote", promote);
    run("release", release);
    run("find", find);
    run("acquire", acquire);
    require(num_found == kChain, "the pool does not find the chain");
    pool.release(ids.data(), kChain);
  }
}

void count_construction() {
  constexpr int kBlocks = 65536;
  Config config = pool_of(kBlocks);
  config.max_seqs = 1;
  const auto construct = [&config] { World world(config); };
  construct();
  count("construction", kBlocks, "block", construct);
}

}  // namespace

int main() {
  const Config plain = pool_of(kPoolBlocks);
  count_hits(plain, "");
  count_misses(plain, "", false);
  count_misses(plain, "", true);
  count_decode(plain, "", false);
  count_decode(plain, "", true);
  count_forks(plain, "");
  count_copies();
  count_many_prompts();
  count_short_sequences();
  count_tails();
  count_pool();
  for (const std::string policy : {BLOCKMGR_POLICIES}) {
    if (policy == "lru") continue;
    const Config config = pool_of(kPoolBlocks, policy);
    count_hits(config, policy + ": ");
    count_misses(config, policy + ": ", true);
    count_decode(config, policy + ": ", true);
  }
  Config retaining = plain;
  retaining.retention = true;
  count_hits(retaining, "retention: ");
  count_misses(retaining, "retention: ", true);
  Config following = plain;
  following.ghost_blocks = kPoolBlocks;
  count_hits(following, "ghost_blocks: ");
  count_misses(following, "ghost_blocks: ", true);
  const Config windows = groups_of(Group::kWindow, 1024, 4096);
  const Config states = groups_of(Group::kRecurrent, 0, 0);
  for (const bool recurrent : {false, true}) {
    const Config& config = recurrent ? states : windows;
    const std::string which = recurrent ? "2 states: " : "2 windows: ";
    count_hits(config, which);
    count_misses(config, which, false);
    count_misses(config, which, true);
    count_decode(config, which, false);
    count_decode(config, which, true);
    count_forks(config, which);
  }
  count_construction();
  return 0;
}
