#include "replays/runs.h"

#include <utility>

#include "memory/errors.h"

namespace blockmgr {

namespace {

void require(bool holds, const char* what) {
  if (!holds) throw Error(ErrorKind::kValue, what);
}

}  // namespace

Runs::Runs(int block_size, std::vector<std::int64_t> parents, std::vector<std::int64_t> lengths,
           std::vector<std::int64_t> run_ends, std::vector<RunRequest> all,
           std::vector<std::int64_t> sample_ends)
    : block_size(block_size),
      parent(std::move(parents)),
      length(std::move(lengths)),
      end(std::move(run_ends)),
      requests(std::move(all)),
      ends(std::move(sample_ends)) {
  const auto count = static_cast<std::int64_t>(parent.size());
  require(length.size() == parent.size() && end.size() == parent.size() && count < INT32_MAX,
          "runs must have a parent, a length and an end each");
  for (std::int64_t i = 0; i < count; ++i)
    require(parent_of(i) >= -1 && parent_of(i) < i && length_of(i) >= 0 && end_of(i) >= 0,
            "the parent of a run must have a smaller number");
  const auto is_run = [&](std::int64_t run) { return run >= -1 && run < count; };
  first_end.reserve(requests.size());
  std::size_t next = 0;
  for (const RunRequest& request : requests) {
    require(is_run(request.limit) && is_run(request.prompt) && request.num_samples >= 1 &&
                request.num_samples <= static_cast<std::int64_t>(ends.size() - next),
            "a request is out of range");
    first_end.push_back(next);
    next += static_cast<std::size_t>(request.num_samples);
  }
  require(next == ends.size(), "there are more ends than samples");
  for (const std::int64_t run : ends) require(is_run(run), "an end is out of range");
}

}  // namespace blockmgr
