// Several threads for the thread sanitizer, each with its own manager or all with one manager.
//
//   threads own MOVES THREADS      every thread drives its own world: no state is shared
//   threads one CALLS THREADS      all threads call one manager, which locks itself
//   threads c CALLS THREADS        likewise, through the C interface
//
// In the last two cases, each thread has its own sequences and checks the state that only it can
// change; the books are recomputed when all threads are done.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "caller.h"
#include "digester.h"
#include "runs.h"
#include "sequences/inspect.h"

namespace {

using namespace blockmgr;
using blockmgr::testing::TestDigester;

void play_alone(std::uint64_t seed, int moves) {
  std::int64_t calls = 0;
  for (std::uint8_t kind = 0; kind < 10; ++kind) {
    testing::Bytes bytes(seed * 16 + kind);
    testing::run(bytes, kind, moves, calls);
  }
  testing::Bytes bytes(seed);
  testing::run(bytes, testing::kind_of("pool"), moves, calls);
}

// The sequences of one thread, on the shared manager.
class Caller {
 public:
  Caller(testing::Caller& calls, std::uint64_t seed, bool sets_debug)
      : calls_(calls), core_(calls.core()), rng_(seed), sets_debug_(sets_debug) {}

  void call() {
    try {
      const auto choice = rng_() % 16;
      if (own_.empty() || choice < 3) return admit();
      const std::size_t index = rng_() % own_.size();
      Own& own = own_[index];
      if (choice < 6) return append(own);
      if (choice == 6) return fork(own);
      if (choice == 7) return free(index);
      if (choice == 8) return calls_.commit(own.handle, computable(own));
      if (choice == 9) return preempt_and_resume(own);
      if (choice == 10) return take_copies();
      if (choice == 11) return truncate(own);
      if (choice == 12) return look();
      if (choice == 13) return keep(own);
      if (choice == 14) return tell();
      read(own);
    } catch (const OutOfBlocks&) {
      if (!own_.empty()) free(own_.size() - 1);
    } catch (const PinBudget&) {
      // Other threads have pinned their prompts.
    } catch (const OutOfSequences&) {
      if (!own_.empty()) free(0);
    } catch (const Error& refusal) {
      // Another thread's copies may be open, or a sequence may still be preempted.
      if (refusal.kind != ErrorKind::kStep && refusal.kind != ErrorKind::kTicket &&
          refusal.kind != ErrorKind::kSequenceState && refusal.kind != ErrorKind::kNeverFits)
        throw;
    }
  }

  void finish() {
    while (!own_.empty()) free(own_.size() - 1);
  }

 private:
  struct Own {
    Handle handle;
    std::vector<Token> tokens;
  };

  Token token() { return static_cast<Token>(rng_() % 2); }

  void admit() {
    Own own{0, std::vector<Token>(1 + rng_() % 12)};
    for (Token& t : own.tokens) t = token();
    const Prompt prompt{own.tokens.data(), static_cast<std::int64_t>(own.tokens.size()), "", {}, 0};
    calls_.can_admit(prompt);
    own.handle = calls_.admit(prompt);
    own_.push_back(own);
  }

  void append(Own& own) {
    const Token t = token();
    calls_.append(own.handle, &t, 1);
    own.tokens.push_back(t);
  }

  void fork(const Own& own) {
    Own child{0, own.tokens};
    calls_.fork(own.handle, 1, &child.handle);
    own_.push_back(child);
  }

  void free(std::size_t index) {
    calls_.free(own_[index].handle);
    own_.erase(own_.begin() + static_cast<std::ptrdiff_t>(index));
  }

  void truncate(Own& own) {
    if (own.tokens.size() < 2) return;
    calls_.truncate(own.handle, static_cast<std::int64_t>(own.tokens.size()) - 1);
    own.tokens.pop_back();
  }

  // Calls that need no sequence: match, explain, touch, pin and unpin.
  void look() {
    std::vector<Token> tokens(1 + rng_() % 12);
    for (Token& t : tokens) t = token();
    const Prompt prompt{tokens.data(), static_cast<std::int64_t>(tokens.size()), "", {}, 0};
    calls_.match(prompt);
    core_.explain(prompt);
    calls_.touch(prompt);
    calls_.unpin(calls_.pin(prompt));
  }

  void keep(const Own& own) {
    calls_.retain(own.handle, 0, static_cast<std::int64_t>(own.tokens.size()), kHigh, 2.0);
  }

  // Calls that read the whole manager, and set_time.
  void tell() {
    if (sets_debug_) core_.set_debug(static_cast<int>(rng_() % 2));
    const Held held(core_.monitor());
    if (!core_.violations().empty()) throw testing::Violation("the audit found a violation");
    inspect(core_);
    core_.handles();
  }

  void preempt_and_resume(const Own& own) {
    if (view(own.handle).state == Sequence::kRunning) calls_.preempt(own.handle);
    calls_.resume(own.handle, 0);
  }

  void take_copies() {
    std::vector<BlockCopy> copies;
    calls_.copies_applied(calls_.take_copies(copies));
  }

  Sequence view(Handle handle) const {
    const Held held(core_.monitor());
    return core_.view(handle);
  }

  std::int64_t computable(const Own& own) const {
    const Held held(core_.monitor());
    const Sequence& s = core_.view(own.handle);
    return std::min<std::int64_t>(s.num_tokens, s.num_blocks * core_.config().block_size);
  }

  void read(const Own& own) const {
    std::vector<Token> tokens(own.tokens.size());
    {
      const Held held(core_.monitor());
      core_.copy_tokens(own.handle, tokens.data());
    }
    if (tokens != own.tokens) throw testing::Violation("another thread changed a sequence");
  }

  testing::Caller& calls_;
  Sequences& core_;
  std::mt19937_64 rng_;
  bool sets_debug_;  // the C interface has no call for that
  std::vector<Own> own_;
};

template <class Body>
int in_threads(int count, Body body) {
  std::vector<std::thread> threads;
  std::vector<std::string> found(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i)
    threads.emplace_back([&, i] {
      try {
        body(i);
      } catch (const std::exception& violation) {
        found[static_cast<std::size_t>(i)] = violation.what();
      }
    });
  int failed = 0;
  for (std::thread& thread : threads) thread.join();
  for (const std::string& violation : found)
    if (!violation.empty()) failed += std::printf("violation: %s\n", violation.c_str()) > 0;
  return failed;
}

int share_one(int calls, int threads, bool through_c) {
  Config config;
  config.num_blocks = config.row_width = 48;
  config.block_size = 4;
  config.max_seqs = 16;
  config.min_partial_tokens = 1;
  config.ghost_blocks = 16;
  config.retention = true;
  config.max_pinned_blocks = 8;
  auto* const digester = new TestDigester(TestDigester::kTiny);
  testing::Caller face(config, digester, through_c, nullptr, {}, false);
  const Sequences& core = face.core();
  int failed = in_threads(threads, [&](int i) {
    Caller caller(face, static_cast<std::uint64_t>(i), !through_c);
    for (int call = 0; call < calls; ++call) caller.call();
    caller.finish();
  });
  for (const std::string& violation : core.violations())
    failed += std::printf("violation: %s\n", violation.c_str()) > 0;
  return failed;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: threads own|one|c CALLS THREADS\n");
    return 2;
  }
  const int calls = std::atoi(argv[2]);
  const int threads = std::atoi(argv[3]);
  const int failed =
      std::string(argv[1]) == "own"
          ? in_threads(threads,
                       [&](int i) { play_alone(static_cast<std::uint64_t>(i) + 1, calls); })
          : share_one(calls, threads, std::string(argv[1]) == "c");
  std::printf("%d threads, %d calls each: %d violations\n", threads, calls, failed);
  return failed ? 1 : 0;
}
