// How much of the last requests was found in the cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "memory/node.h"

namespace blockmgr {

// The last so many look-ups and their sums. All memory is taken at construction.
class RecentHits {
 public:
  struct Sums {
    std::int64_t requests = 0;
    std::int64_t query_tokens = 0;
    std::int64_t hit_tokens = 0;
  };

  explicit RecentHits(int window) : ring_(nth(window)) {}

  void count(std::int64_t query_tokens, std::int64_t hit_tokens) noexcept {
    if (!ring_.size()) return;
    Request& oldest = ring_[next_];
    sums_.query_tokens += query_tokens - oldest.query_tokens;
    sums_.hit_tokens += hit_tokens - oldest.hit_tokens;
    sums_.requests += sums_.requests < static_cast<std::int64_t>(ring_.size());
    oldest = {query_tokens, hit_tokens};
    if (++next_ == ring_.size()) next_ = 0;
  }
  void clear() noexcept {
    std::memset(ring_.data(), 0, ring_.bytes());
    next_ = 0;
    sums_ = Sums();
  }
  const Sums& sums() const { return sums_; }
  std::size_t bytes() const { return ring_.bytes(); }

  void fingerprint(std::string& out) const;

 private:
  struct Request {
    std::int64_t query_tokens;
    std::int64_t hit_tokens;
  };
  ZeroedArray<Request> ring_;
  std::size_t next_ = 0;
  Sums sums_;
};

}  // namespace blockmgr
