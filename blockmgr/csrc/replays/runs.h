// A trace as paths through a forest of runs: see blockmgr.lab.runs, whose RunColumns these are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace blockmgr {

struct RunRequest {
  std::int64_t arrival_ms;
  std::int64_t service_ms;
  std::int64_t limit;   // last run of the prompt that may hit, -1: none
  std::int64_t prompt;  // last run of the prompt that is cached
  std::int64_t limit_blocks;
  std::int64_t prompt_blocks;
  std::int64_t asked_blocks;
  std::int64_t held_blocks;
  std::int64_t first_held_blocks;
  std::int64_t query_tokens;
  std::int64_t last_tokens;
  std::int64_t num_samples;
};

// Runs stand behind their parents, and ends of samples behind one another, as many as each request
// has samples.
struct Runs {
  // Throws unless every number of a run is that of one, and a parent's is smaller.
  Runs(int block_size, std::vector<std::int64_t> parent, std::vector<std::int64_t> length,
       std::vector<std::int64_t> end, std::vector<RunRequest> requests,
       std::vector<std::int64_t> ends);

  std::int64_t parent_of(std::int64_t run) const { return parent[static_cast<std::size_t>(run)]; }
  std::int64_t length_of(std::int64_t run) const { return length[static_cast<std::size_t>(run)]; }
  std::int64_t end_of(std::int64_t run) const { return end[static_cast<std::size_t>(run)]; }
  // The last run of each sample of a request.
  const std::int64_t* ends_of(std::size_t request) const {
    return ends.data() + first_end[request];
  }

  std::int64_t block_size;
  std::vector<std::int64_t> parent;  // -1: a root
  std::vector<std::int64_t> length;
  std::vector<std::int64_t> end;  // blocks from the root to its end
  std::vector<RunRequest> requests;
  std::vector<std::int64_t> ends;
  std::vector<std::size_t> first_end;
};

}  // namespace blockmgr
