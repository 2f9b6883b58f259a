#include "replays/stack_pass.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <limits>
#include <queue>
#include <tuple>

namespace blockmgr {

StackPass::StackPass(const Runs& runs, std::int64_t max_seqs)
    : runs_(runs),
      rows_(std::min(max_seqs, static_cast<std::int64_t>(runs.ends.size()))),
      state_(runs.parent.size(), kAbsent),
      holders_(runs.parent.size(), 0),
      stack_(static_cast<std::int64_t>(runs.ends.size())) {}

void StackPass::run() {
  // When it ends, the order of admission, and which it is.
  using Running = std::tuple<std::int64_t, std::int64_t, std::size_t>;
  std::priority_queue<Running, std::vector<Running>, std::greater<>> running;
  std::deque<std::size_t> waiting;
  std::int64_t free_rows = rows_, admitted = 0;
  const auto start = [&](std::int64_t now) {
    while (!waiting.empty()) {
      const std::size_t request = waiting.front();
      const std::int64_t samples = runs_.requests[request].num_samples;
      if (free_rows < samples && samples <= rows_) return;
      waiting.pop_front();
      if (samples > rows_) continue;
      free_rows -= samples;
      running.push({now + runs_.requests[request].service_ms, admitted++, request});
      admit(request);
    }
  };
  const auto end_until = [&](std::int64_t until) {
    while (!running.empty() && std::get<0>(running.top()) <= until) {
      const std::int64_t now = std::get<0>(running.top());
      while (!running.empty() && std::get<0>(running.top()) == now) {
        const std::size_t request = std::get<2>(running.top());
        running.pop();
        free_rows += runs_.requests[request].num_samples;
        end(request);
      }
      start(now);
    }
  };
  for (std::size_t i = 0; i < runs_.requests.size(); ++i) {
    const std::int64_t now = runs_.requests[i].arrival_ms;
    end_until(now);
    waiting.push_back(i);
    start(now);
  }
  end_until(std::numeric_limits<std::int64_t>::max());
}

const std::vector<std::int64_t>& StackPass::path(std::int64_t run, std::int64_t start) {
  path_.clear();
  for (; run != start && run >= 0; run = runs_.parent_of(run)) path_.push_back(run);
  std::reverse(path_.begin(), path_.end());
  return path_;
}

void StackPass::admit(std::size_t number) {
  const RunRequest& request = runs_.requests[number];
  look_up(request);
  acquire(request.limit, -1);
  const std::int64_t served = request.limit_blocks;
  // A replay asks for all of them first, twins of cached blocks included.
  if (request.num_samples > 1) note_peak(request.held_blocks - served);
  private_ += request.first_held_blocks - served;
  take();
  acquire(request.prompt, request.limit);
  private_ -= request.prompt_blocks - served;
  if (request.num_samples > 1) {
    private_ += request.held_blocks - request.first_held_blocks;
    take();
  }
}

void StackPass::end(std::size_t number) {
  const RunRequest& request = runs_.requests[number];
  private_ -= request.held_blocks - request.prompt_blocks;
  const std::int64_t* ends = runs_.ends_of(number);
  for (std::int64_t i = 0; i < request.num_samples; ++i) acquire(ends[i], request.prompt);
  for (std::int64_t i = 0; i + 1 < request.num_samples; ++i) release(ends[i], request.prompt);
  release(ends[request.num_samples - 1], -1);
}

// Enters the distance of each block of a prompt that may hit.
void StackPass::look_up(const RunRequest& request) {
  const std::int64_t size = runs_.block_size;
  const auto count = [&](std::int64_t first, std::int64_t last, std::int64_t blocks,
                         std::int64_t tokens) {
    hits_.first.push_back(first);
    hits_.last.push_back(last);
    hits_.blocks.push_back(blocks);
    hits_.tokens.push_back(tokens);
  };
  bool missed = false;
  std::int64_t distance = -1;
  for (const std::int64_t run : path(request.limit, -1)) {
    const std::int64_t release = state_[static_cast<std::size_t>(run)];
    missed = release == kAbsent;
    if (missed) break;
    const std::int64_t length = runs_.length_of(run);
    distance = 0;
    if (release != kInUse) {
      const std::int64_t tail = tail_[static_cast<std::size_t>(release)];
      distance = std::max<std::int64_t>(0, stack_.distance(release) - (tail - runs_.end_of(run)));
    }
    // No block was ever taken at the cost of those with distances below 1.
    const std::int64_t near = std::max<std::int64_t>(0, length - distance);
    count(0, 0, near, near * size);
    count(distance - length + near + 1, distance, 1, size);
  }
  if (!missed && distance >= 0 && request.last_tokens < size)
    count(distance, distance, 0, request.last_tokens - size);
}

void StackPass::acquire(std::int64_t run, std::int64_t start) {
  for (const std::int64_t each : path(run, start)) {
    const auto at = static_cast<std::size_t>(each);
    ++holders_[at];
    const std::int64_t before = state_[at];
    if (before == kInUse) continue;
    const std::int64_t length = runs_.length_of(each);
    if (before != kAbsent) stack_.remove(before, length);
    state_[at] = kInUse;
    in_use_ += length;
  }
}

// Makes the blocks of a path idle that no other request uses.
void StackPass::release(std::int64_t run, std::int64_t start) {
  std::int64_t blocks = 0;
  bool any = false;
  for (const std::int64_t each : path(run, start)) {
    if (--holders_[static_cast<std::size_t>(each)]) continue;
    blocks += runs_.length_of(each);
    any = true;
  }
  if (!any) return;
  const std::int64_t number = stack_.push(blocks);
  tail_.push_back(runs_.end_of(run));
  in_use_ -= blocks;
  for (const std::int64_t each : path_)
    if (!holders_[static_cast<std::size_t>(each)]) state_[static_cast<std::size_t>(each)] = number;
}

// Blocks were taken: idle blocks that have no room beside them are gone.
void StackPass::take() {
  note_peak(0);
  stack_.record(in_use_ + private_);
}

void StackPass::note_peak(std::int64_t more) { peak_ = std::max(peak_, in_use_ + private_ + more); }

}  // namespace blockmgr
