#include "replays/future.h"

#include <algorithm>
#include <queue>
#include <tuple>
#include <utility>

namespace blockmgr {

Future::Future(const Runs& runs) : runs_(runs) {
  starts_.reserve(runs.requests.size() + 1);
  for (std::size_t i = 0; i < runs.requests.size(); ++i) {
    starts_.push_back(paths_.size());
    for (std::int64_t sample = 0; sample < runs.requests[i].num_samples; ++sample)
      for (std::int64_t run = runs.ends_of(i)[sample]; run >= 0; run = runs.parent_of(run))
        paths_.push_back(static_cast<std::int32_t>(run));
    const auto first = paths_.begin() + static_cast<std::ptrdiff_t>(starts_.back());
    // A parent has a smaller number, so this is from roots to leaves.
    std::sort(first, paths_.end());
    paths_.erase(std::unique(first, paths_.end()), paths_.end());
  }
  starts_.push_back(paths_.size());
}

Future::Hits Future::most_hits(std::int64_t num_blocks, std::int64_t max_seqs) const {
  const std::vector<RunRequest>& requests = runs_.requests;
  std::vector<std::size_t> admitted;
  admitted.reserve(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i)
    if (requests[i].asked_blocks <= num_blocks && requests[i].num_samples <= max_seqs)
      admitted.push_back(i);

  // For each request and run of its path, the next request that may hit it.
  const auto never = static_cast<std::int64_t>(admitted.size());
  std::vector<std::int32_t> next_uses(paths_.size());
  std::vector<std::int32_t> upcoming(runs_.parent.size(), static_cast<std::int32_t>(never));
  std::vector<std::int64_t> looked_up(runs_.parent.size(), -1);
  for (std::int64_t number = never; number-- > 0;) {
    const std::size_t i = admitted[static_cast<std::size_t>(number)];
    for (std::int64_t run = requests[i].limit; run >= 0; run = runs_.parent_of(run))
      looked_up[static_cast<std::size_t>(run)] = number;
    for (std::size_t at = starts_[i]; at < starts_[i + 1]; ++at) {
      const auto run = static_cast<std::size_t>(paths_[at]);
      next_uses[at] = upcoming[run];
      // A block that is not looked up is computed anyway: it is worth nothing until the next use.
      upcoming[run] = static_cast<std::int32_t>(looked_up[run] == number ? number : never);
    }
  }

  constexpr std::int32_t kCannotGo = -1;
  std::vector<std::int64_t> kept(runs_.parent.size(), 0);
  std::vector<std::int32_t> due(runs_.parent.size(), kCannotGo);  // the next use
  // The next victim on top: the farthest use, then the deepest. An entry counts as long as it names
  // the run's next use.
  using Entry = std::tuple<std::int32_t, std::int64_t, std::int32_t>;  // use, end, -run
  std::priority_queue<Entry> order;
  std::int64_t total = 0;
  Hits hits;
  for (const std::size_t i : admitted) {
    const RunRequest& request = requests[i];
    std::int64_t found = 0;
    for (std::int64_t run = request.limit; run >= 0; run = runs_.parent_of(run))
      found += kept[static_cast<std::size_t>(run)];
    hits.blocks += found;
    hits.tokens += found * runs_.block_size;
    if (found && found == request.limit_blocks)
      hits.tokens -= runs_.block_size - request.last_tokens;
    for (std::size_t at = starts_[i]; at < starts_[i + 1]; ++at) {
      const auto run = static_cast<std::size_t>(paths_[at]);
      total -= kept[run];
      due[run] = kCannotGo;
    }
    std::int64_t surplus = total - (num_blocks - request.held_blocks);
    while (surplus > 0 && !order.empty()) {
      const auto [use, end, negated] = order.top();
      const auto run = static_cast<std::size_t>(-negated);
      if (due[run] != use) {
        order.pop();
        continue;
      }
      const std::int64_t gone = std::min(surplus, kept[run]);
      kept[run] -= gone;
      total -= gone;
      surplus -= gone;
      if (!kept[run]) order.pop();
    }
    for (std::size_t at = starts_[i]; at < starts_[i + 1]; ++at) {
      const auto run = static_cast<std::size_t>(paths_[at]);
      kept[run] = runs_.length[run];
      due[run] = next_uses[at];
      total += runs_.length[run];
      order.push({next_uses[at], runs_.end[run], -paths_[at]});
    }
  }
  return hits;
}

}  // namespace blockmgr
