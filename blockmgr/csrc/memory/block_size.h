// Tokens a block, and which block a token lies in.
//
// Block sizes are powers of two as a rule. A shift takes one cycle, and a division as many as all
// else that a decode step does for a sequence.
#pragma once

#include <bit>
#include <cstdint>

namespace blockmgr {

class BlockSize {
 public:
  explicit BlockSize(int size)
      : size_(size),
        shift_(std::has_single_bit(static_cast<unsigned>(size))
                   ? std::countr_zero(static_cast<unsigned>(size))
                   : -1) {}

  operator std::int64_t() const { return size_; }
  // The whole blocks that so many tokens fill: the index of the block that the next one lies in.
  std::int64_t whole(std::int64_t tokens) const {
    return shift_ >= 0 ? tokens >> shift_ : tokens / size_;
  }

 private:
  std::int64_t size_;
  int shift_;
};

}  // namespace blockmgr
