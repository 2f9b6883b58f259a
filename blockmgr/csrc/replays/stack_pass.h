// Stack distances of the look-ups of a replay, from a pool without bounds: see blockmgr.lab.curve.
//
// Every event of a replay in which no request waits for blocks is known before: requests are
// admitted when they come, and end when their time is over. What a pool of some size still holds
// then follows from the order of releases alone.
#pragma once

#include <cstdint>
#include <vector>

#include "replays/release_stack.h"
#include "replays/runs.h"

namespace blockmgr {

class StackPass {
 public:
  // The runs outlive the pass.
  StackPass(const Runs& runs, std::int64_t max_seqs);

  // Goes through the trace, once.
  void run();

  // Look-ups by stack distance: for each distance from first to last, so many blocks and tokens.
  struct Hits {
    std::vector<std::int64_t> first, last, blocks, tokens;
  };
  const Hits& hits() const { return hits_; }
  // Most blocks that were in use or asked for at one time.
  std::int64_t peak() const { return peak_; }

 private:
  // Stand in a run in place of the release that made it idle.
  static constexpr std::int64_t kInUse = -1;
  static constexpr std::int64_t kAbsent = -2;

  void admit(std::size_t request);
  void end(std::size_t request);
  void look_up(const RunRequest& request);
  void acquire(std::int64_t run, std::int64_t start);
  void release(std::int64_t run, std::int64_t start);
  void take();
  void note_peak(std::int64_t more);
  // The runs from behind `start` to `run`, parents first. Until the next call.
  const std::vector<std::int64_t>& path(std::int64_t run, std::int64_t start);

  const Runs& runs_;
  std::int64_t rows_;
  std::vector<std::int64_t> state_;
  std::vector<std::int32_t> holders_;
  ReleaseStack stack_;
  std::vector<std::int64_t> tail_;  // blocks from the root to the end of each release
  std::int64_t in_use_ = 0;         // cached blocks that running requests refer to
  std::int64_t private_ = 0;        // blocks of running requests that are not cached
  std::int64_t peak_ = 0;
  Hits hits_;
  std::vector<std::int64_t> path_;
};

}  // namespace blockmgr
