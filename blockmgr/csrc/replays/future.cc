#include "replays/future.h"

#include <algorithm>
#include <queue>
#include <tuple>
#include <utility>

#include "memory/errors.h"

namespace blockmgr {

namespace {

[[noreturn]] void refuse(const char* what) { throw Error(ErrorKind::kValue, what); }

}  // namespace

Future::Future(int block_size, std::vector<std::int64_t> parent, std::vector<std::int64_t> length,
               std::vector<std::int64_t> end, std::vector<FutureRequest> requests,
               const std::vector<std::int64_t>& ends)
    : block_size_(block_size),
      parent_(std::move(parent)),
      length_(std::move(length)),
      end_(std::move(end)),
      requests_(std::move(requests)) {
  const auto count = static_cast<std::int64_t>(parent_.size());
  if (length_.size() != parent_.size() || end_.size() != parent_.size() || count > INT32_MAX)
    refuse("runs must have a parent, a length and an end each");
  for (std::int64_t i = 0; i < count; ++i)
    if (parent_[static_cast<std::size_t>(i)] < -1 || parent_[static_cast<std::size_t>(i)] >= i)
      refuse("the parent of a run must have a smaller number");
  std::size_t next = 0;
  starts_.reserve(requests_.size() + 1);
  for (const FutureRequest& request : requests_) {
    if (request.limit < -1 || request.limit >= count || request.num_samples < 1 ||
        request.num_samples > static_cast<std::int64_t>(ends.size() - next))
      refuse("a request is out of range");
    starts_.push_back(paths_.size());
    for (std::int64_t sample = 0; sample < request.num_samples; ++sample) {
      std::int64_t run = ends[next++];
      if (run < -1 || run >= count) refuse("an end is out of range");
      for (; run >= 0; run = parent_[static_cast<std::size_t>(run)])
        paths_.push_back(static_cast<Run>(run));
    }
    const auto first = paths_.begin() + static_cast<std::ptrdiff_t>(starts_.back());
    // A parent has a smaller number, so this is from roots to leaves.
    std::sort(first, paths_.end());
    paths_.erase(std::unique(first, paths_.end()), paths_.end());
  }
  if (next != ends.size()) refuse("there are more ends than samples");
  starts_.push_back(paths_.size());
}

Future::Hits Future::most_hits(std::int64_t num_blocks, std::int64_t max_seqs) const {
  std::vector<std::size_t> admitted;
  admitted.reserve(requests_.size());
  for (std::size_t i = 0; i < requests_.size(); ++i)
    if (requests_[i].asked <= num_blocks && requests_[i].num_samples <= max_seqs)
      admitted.push_back(i);

  // For each request and run of its path, the next request that may hit it.
  const auto never = static_cast<std::int64_t>(admitted.size());
  std::vector<std::int32_t> next_uses(paths_.size());
  std::vector<std::int32_t> upcoming(parent_.size(), static_cast<std::int32_t>(never));
  std::vector<std::int64_t> looked_up(parent_.size(), -1);
  for (std::int64_t number = never; number-- > 0;) {
    const std::size_t i = admitted[static_cast<std::size_t>(number)];
    for (std::int64_t run = requests_[i].limit; run >= 0;
         run = parent_[static_cast<std::size_t>(run)])
      looked_up[static_cast<std::size_t>(run)] = number;
    for (std::size_t at = starts_[i]; at < starts_[i + 1]; ++at) {
      const auto run = static_cast<std::size_t>(paths_[at]);
      next_uses[at] = upcoming[run];
      // What is not looked up is computed anyway, so until then it is worth nothing.
      upcoming[run] = static_cast<std::int32_t>(looked_up[run] == number ? number : never);
    }
  }

  constexpr std::int32_t kCannotGo = -1;
  std::vector<std::int64_t> kept(parent_.size(), 0);
  std::vector<std::int32_t> due(parent_.size(), kCannotGo);  // the next use
  // What goes first on top: the farthest use, then the deepest. An entry counts as long as it names
  // the run's next use.
  using Entry = std::tuple<std::int32_t, std::int64_t, std::int32_t>;  // use, end, -run
  std::priority_queue<Entry> order;
  std::int64_t total = 0;
  Hits hits;
  for (const std::size_t i : admitted) {
    const FutureRequest& request = requests_[i];
    std::int64_t found = 0;
    for (std::int64_t run = request.limit; run >= 0; run = parent_[static_cast<std::size_t>(run)])
      found += kept[static_cast<std::size_t>(run)];
    hits.blocks += found;
    hits.tokens += found * block_size_;
    if (found && found == request.limit_blocks) hits.tokens -= block_size_ - request.last_tokens;
    for (std::size_t at = starts_[i]; at < starts_[i + 1]; ++at) {
      const auto run = static_cast<std::size_t>(paths_[at]);
      total -= kept[run];
      due[run] = kCannotGo;
    }
    std::int64_t surplus = total - (num_blocks - request.held);
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
      kept[run] = length_[run];
      due[run] = next_uses[at];
      total += length_[run];
      order.push({next_uses[at], end_[run], -paths_[at]});
    }
  }
  return hits;
}

}  // namespace blockmgr
