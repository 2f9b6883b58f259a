// The most that any order of eviction could find: see blockmgr.lab.optimum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "replays/runs.h"

namespace blockmgr {

class Future {
 public:
  // The runs outlive it.
  explicit Future(const Runs& runs);

  struct Hits {
    std::int64_t blocks = 0;
    std::int64_t tokens = 0;
  };
  // In a pool of so many blocks and rows.
  Hits most_hits(std::int64_t num_blocks, std::int64_t max_seqs) const;

 private:
  const Runs& runs_;
  // Every run that is in the pool when a request has ended, once, parents first; by request.
  std::vector<std::int32_t> paths_;
  std::vector<std::size_t> starts_;
};

}  // namespace blockmgr
