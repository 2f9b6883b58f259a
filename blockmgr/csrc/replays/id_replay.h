// A trace of ids through the store that a manager stands on, at a token a block.
//
// A manager treats full blocks by which of them are the same and by how many there are. The number
// of tokens in each decides nothing. So a block of the trace is a block of one token here, its
// name, and has the digest that it would have with all its tokens, which is what policies remember
// blocks by. The loop is that of blockmgr.lab.replay, step by step.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <queue>
#include <string>
#include <tuple>
#include <vector>

#include "replays/id_trace.h"
#include "sequences/sequences.h"

namespace blockmgr {

// The counts of a replay, in the words of blockmgr.lab.ReplayResult. Tokens are those of the trace.
struct ReplayCounts {
  std::int64_t rejected = 0;
  std::int64_t waited = 0;
  std::int64_t wait_ms = 0;
  std::int64_t query_tokens = 0;
  std::int64_t hit_tokens = 0;
  std::int64_t evictions = 0;
  std::int64_t deduplicated = 0;
  std::int64_t peak_used_blocks = 0;
  std::int64_t steps = 0;
};

class IdReplay {
 public:
  // digests: of all names, each so long; outlives the replay, as the trace does. config: of a core
  // with blocks of one token.
  IdReplay(const IdTrace& trace, const std::vector<std::uint8_t>& digests, Digester& digester,
           const Config& config);

  // Goes on by so many requests of the trace, or to its end. Whether that is reached.
  bool run(std::int64_t num_requests);
  ReplayCounts counts() const;
  // Bytes of a manager after the same calls, with blocks of as many tokens as the trace's.
  std::size_t manager_memory() const;

 private:
  void end_until(std::int64_t now);
  void admit_waiting(std::int64_t now);
  bool admit(std::size_t request, std::int64_t now);
  void end(std::size_t request, Handle handle);
  void count_step(std::int64_t now) noexcept {
    counts_.steps += now != last_step_;
    last_step_ = now;
  }
  const Token* named(std::size_t request);

  // When it ends, in which order it was admitted, which request it is, and its handle.
  using Running = std::tuple<std::int64_t, std::int64_t, std::size_t, Handle>;

  const IdTrace& trace_;
  Sequences core_;
  ReplayCounts counts_;
  std::size_t next_ = 0;
  std::deque<std::size_t> waiting_;
  std::priority_queue<Running, std::vector<Running>, std::greater<>> running_;
  std::vector<Token> names_;
  std::size_t named_ = SIZE_MAX;  // the request whose names they are
  std::int64_t admitted_ = 0;
  std::int64_t free_rows_;
  std::int64_t last_step_ = -1;
};

}  // namespace blockmgr
