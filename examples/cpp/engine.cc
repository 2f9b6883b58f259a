// The engine of the guide "An engine's step" in C++: it admits, decodes, preempts when blocks run
// out, resumes, runs the copies, and ends sequences.
#include <algorithm>
#include <blockmgr.hpp>
#include <cstdio>
#include <vector>

using Tokens = std::vector<std::uint32_t>;

// Stands for a model: reads all of the context, as attention does.
std::uint32_t sampled(const std::vector<std::uint32_t>& context) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < context.size(); ++i) sum += context[i] * (i + 1);
  return static_cast<std::uint32_t>(sum % 97);
}

struct Engine {
  struct Running {
    blockmgr::Handle handle;
    std::uint32_t sampled_last;
  };

  Engine(std::int64_t num_blocks, std::int64_t block_size, const blockmgr_options& options)
      : manager(options), block_size(block_size), kv(num_blocks * block_size) {}

  void step(std::int64_t max_tokens) {
    decode();
    admit();
    apply_copies();
    for (Running& sequence : running) sequence.sampled_last = forward(sequence.handle);
    std::erase_if(running, [&](const Running& sequence) {
      if (manager.view(sequence.handle).num_tokens < max_tokens) return false;
      finished.push_back(manager.tokens(sequence.handle));
      manager.commit(sequence.handle, max_tokens);  // its K/V is written: keep it findable
      manager.free(sequence.handle);
      return true;
    });
  }

  void decode() {
    while (!running.empty()) {
      std::vector<blockmgr::Handle> handles;
      Tokens tokens;
      for (const Running& sequence : running) {
        handles.push_back(sequence.handle);
        tokens.push_back(sequence.sampled_last);
      }
      try {
        manager.decode(handles, tokens);
        return;
      } catch (const blockmgr::OutOfBlocks&) {   // nothing has changed: preempt the newest
        manager.preempt(running.back().handle);  // its last token will be sampled again
        preempted.push_back(running.back().handle);
        running.pop_back();
      }
    }
  }

  void admit() try {
    while (!preempted.empty()) {
      manager.resume(preempted.back());
      running.push_back({preempted.back(), 0});
      preempted.pop_back();
    }
    while (!waiting.empty()) {
      running.push_back({manager.admit(blockmgr::Prompt(waiting.front())), 0});
      waiting.erase(waiting.begin());
    }
  } catch (const blockmgr::OutOfBlocks&) {
    // Later, once something is freed.
  }

  void apply_copies() {
    const blockmgr::CopyPlan plan = manager.take_copies();
    for (const blockmgr::Copy& copy : plan.copies)
      std::copy_n(kv.begin() + copy.source * block_size, copy.num_tokens,
                  kv.begin() + copy.destination * block_size);
    manager.copies_applied(plan.ticket);
  }

  std::uint32_t forward(blockmgr::Handle handle) {
    const blockmgr::SequenceView sequence = manager.view(handle);
    const Tokens tokens = manager.tokens(handle);
    const auto slots = manager.slot_mapping(handle, 0, sequence.num_tokens);
    Tokens context;
    for (std::int64_t i = 0; i < sequence.num_tokens; ++i) {
      if (i >= sequence.num_computed_tokens) kv[slots[i]] = tokens[i];
      context.push_back(kv[slots[i]]);
    }
    return sampled(context);
  }

  blockmgr::Manager manager;
  std::int64_t block_size;
  Tokens kv;  // stands for the K/V tensors
  std::vector<Tokens> waiting, finished;
  std::vector<blockmgr::Handle> preempted;
  std::vector<Running> running;
};

int main() {
  blockmgr::Options options(12, 4);
  options.watermark_blocks = 1;
  Engine engine(12, 4, options);
  std::vector<Tokens> due;
  for (std::uint32_t n = 0; n < 8; ++n) {
    Tokens tokens = {9, 8, 7, 6, 5, 4, 3, 2, 10 + n};  // a common prefix
    engine.waiting.push_back(tokens);
    while (tokens.size() < 20) tokens.push_back(sampled(tokens));
    due.push_back(tokens);
  }
  while (engine.finished.size() < due.size()) {
    engine.step(20);
    engine.manager.check_invariants();
  }
  std::sort(due.begin(), due.end());
  std::sort(engine.finished.begin(), engine.finished.end());
  if (engine.finished != due) {
    std::puts("sharing has changed the output");
    return 1;
  }
  const blockmgr::Stats stats = engine.manager.stats();
  std::printf("%lld prompt tokens found in the cache, %lld preemptions\n",
              static_cast<long long>(stats.hit_tokens), static_cast<long long>(stats.preemptions));
}
