#include "replays/id_replay.h"

#include <algorithm>
#include <cstring>
#include <memory>

namespace blockmgr {

namespace {

// Digests that are known already, by the names of blocks. What stands for a namespace is asked for
// where it comes from.
class KnownDigests final : public Digester {
 public:
  KnownDigests(const std::vector<std::uint8_t>& digests, Digester& origin)
      : Digester(true, origin.never_fails()),
        digests_(digests),
        origin_(origin),
        size_(origin.size()) {}
  int size() const override { return size_; }
  std::uint8_t* message(std::size_t length) override { return origin_.message(length); }
  void digest(std::size_t length, std::uint8_t* out) override { origin_.digest(length, out); }
  void digest_block(const std::uint8_t*, std::string_view, const Token* tokens, int,
                    std::uint8_t* out) override {
    const auto size = static_cast<std::size_t>(size_);
    std::memcpy(out, digests_.data() + *tokens * size, size);
  }
  void digest_root(std::string_view name, std::uint8_t* out) override {
    origin_.digest_root(name, out);
  }

 private:
  const std::vector<std::uint8_t>& digests_;
  Digester& origin_;
  int size_;
};

}  // namespace

IdReplay::IdReplay(const IdTrace& trace, const std::vector<std::uint8_t>& digests,
                   Digester& digester, const Config& config)
    : trace_(trace),
      core_(config, std::make_unique<KnownDigests>(digests, digester)),
      free_rows_(config.max_seqs) {
  std::int64_t most = 0;
  for (const IdRequest& request : trace.requests())
    most = std::max(most, trace.num_blocks(request));
  names_.resize(static_cast<std::size_t>(most));
}

bool IdReplay::run(std::int64_t num_requests) {
  const std::vector<IdRequest>& requests = trace_.requests();
  for (; num_requests > 0 && next_ < requests.size(); --num_requests, ++next_) {
    const std::int64_t now = requests[next_].arrival_ms;
    end_until(now);
    waiting_.push_back(next_);
    admit_waiting(now);
  }
  if (next_ < requests.size()) return false;
  while (!running_.empty()) end_until(std::get<0>(running_.top()));
  return true;
}

void IdReplay::end_until(std::int64_t now) {
  while (!running_.empty() && std::get<0>(running_.top()) <= now) {
    const std::int64_t instant = std::get<0>(running_.top());
    while (!running_.empty() && std::get<0>(running_.top()) == instant) {
      const auto [_, order, request, handle] = running_.top();
      running_.pop();
      end(request, handle);
    }
    count_step(instant);
    admit_waiting(instant);
  }
}

void IdReplay::admit_waiting(std::int64_t now) {
  while (!waiting_.empty()) {
    const std::size_t request = waiting_.front();
    const IdRequest& r = trace_.requests()[request];
    if (trace_.num_blocks(r) > core_.config().num_blocks) {
      ++counts_.rejected;
      counts_.query_tokens += r.num_tokens;
    } else if (admit(request, now)) {
      count_step(now);
      counts_.waited += now > r.arrival_ms;
      counts_.wait_ms += now - r.arrival_ms;
    } else {
      return;
    }
    waiting_.pop_front();
  }
}

const Token* IdReplay::named(std::size_t request) {
  if (named_ != request) trace_.names(request, names_.data());
  named_ = request;
  return names_.data();
}

bool IdReplay::admit(std::size_t request, std::int64_t now) {
  if (!free_rows_) return false;
  const IdRequest& r = trace_.requests()[request];
  Prompt prompt{};
  prompt.tokens = named(request);
  prompt.num_tokens = trace_.blocks_for(r.num_tokens);
  prompt.name = trace_.space(r);
  prompt.num_slots = trace_.num_blocks(r);
  Handle handle;
  try {
    handle = core_.admit(prompt);
  } catch (const OutOfBlocks&) {
    return false;
  }
  counts_.query_tokens += r.num_tokens;
  counts_.hit_tokens += core_.view(handle).num_cached * trace_.block_size();
  core_.commit(handle, r.num_cached);
  core_.take_remaps();
  --free_rows_;
  running_.push({now + r.service_ms, admitted_++, request, handle});
  return true;
}

void IdReplay::end(std::size_t request, Handle handle) {
  const IdRequest& r = trace_.requests()[request];
  if (r.num_output_tokens) {
    const std::int64_t prompt = trace_.blocks_for(r.num_tokens);
    const std::int64_t more = trace_.num_blocks(r) - prompt;
    if (more) core_.append(handle, named(request) + prompt, more);
    const std::int64_t computed = r.num_tokens + r.num_output_tokens - 1;
    core_.commit(handle, computed / trace_.block_size());
  }
  core_.free(handle);
  core_.take_remaps();
  ++free_rows_;
}

ReplayCounts IdReplay::counts() const {
  ReplayCounts counts = counts_;
  counts.evictions = core_.pool().num_evicted();
  counts.deduplicated = core_.counters.deduplicated_blocks;
  counts.peak_used_blocks = core_.counters.peak_used_blocks;
  return counts;
}

std::size_t IdReplay::manager_memory() const {
  const auto tokens = static_cast<std::size_t>(trace_.block_size()) - 1;
  return core_.memory() + tokens * sizeof(Token) * static_cast<std::size_t>(core_.nodes().count);
}

}  // namespace blockmgr
