// The most that any order of eviction could find, of paths through a forest of runs: see
// blockmgr.lab.optimum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace blockmgr {

struct FutureRequest {
  std::int64_t limit;         // last run of the prompt that may hit, -1: none
  std::int64_t limit_blocks;  // blocks up to there
  std::int64_t asked;         // blocks that a pool must have for it to be admitted
  std::int64_t held;          // blocks it holds when nothing of it is cached
  std::int64_t last_tokens;   // tokens in the last block of the path
  std::int64_t num_samples;
};

class Future {
 public:
  // Runs in the order of blockmgr.lab.runs, parents before children. ends: the last run of each
  // sample of each request, one after another, as many as num_samples says.
  Future(int block_size, std::vector<std::int64_t> parent, std::vector<std::int64_t> length,
         std::vector<std::int64_t> end, std::vector<FutureRequest> requests,
         const std::vector<std::int64_t>& ends);

  struct Hits {
    std::int64_t blocks = 0;
    std::int64_t tokens = 0;
  };
  // In a pool of so many blocks and rows.
  Hits most_hits(std::int64_t num_blocks, std::int64_t max_seqs) const;

 private:
  using Run = std::int32_t;

  std::int64_t block_size_;
  std::vector<std::int64_t> parent_, length_, end_;
  std::vector<FutureRequest> requests_;
  // Every run that is in the pool when a request has ended, once, parents first; by request.
  std::vector<Run> paths_;
  std::vector<std::size_t> starts_;
};

}  // namespace blockmgr
