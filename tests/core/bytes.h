// The source of an operation stream: a buffer (from a fuzzer or a file) or a seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace blockmgr::testing {

class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  explicit Bytes(std::uint64_t seed) : rng_(seed), endless_(true) {}

  bool done() const { return !endless_ && at_ == size_; }
  // The next byte; 0 past the end of a buffer.
  std::uint8_t next() {
    if (!endless_) return at_ < size_ ? data_[at_++] : 0;
    if (!left_) {
      word_ = rng_();
      left_ = 8;
    }
    const auto byte = static_cast<std::uint8_t>(word_);
    word_ >>= 8;
    --left_;
    used_.push_back(byte);
    return byte;
  }
  // 0 to count - 1; count is at most 65,536.
  int below(int count) {
    if (count <= 256) return next() % count;
    const int high = next();
    return (high << 8 | next()) % count;
  }
  int between(int low, int high) { return low + below(high - low + 1); }
  bool one_in(int count) { return below(count) == 0; }

  // Every byte drawn so far from a seed's stream: used as a buffer, they repeat the run.
  const std::vector<std::uint8_t>& used() const { return used_; }

 private:
  const std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t at_ = 0;
  std::mt19937_64 rng_;
  std::uint64_t word_ = 0;
  int left_ = 0;
  bool endless_ = false;
  std::vector<std::uint8_t> used_;
};

}  // namespace blockmgr::testing
