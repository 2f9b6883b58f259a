// Digests for managers that are made through the C interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "c/blockmgr.h"
#include "c/status.h"
#include "identity/digest.h"
#include "identity/index.h"

namespace blockmgr::c {

// A function of the caller.
class CallbackDigester final : public Digester {
 public:
  // Takes the memory for the longest message of blocks of this size: one with extra keys.
  CallbackDigester(blockmgr_digest_function function, void* context, int size, int block_size)
      : function_(function), context_(context), size_(size) {
    message_.reserve(static_cast<std::size_t>(size) + kMaxBytes +
                     static_cast<std::size_t>(block_size) * sizeof(Token));
  }
  int size() const override { return size_; }
  std::uint8_t* message(std::size_t length) override {
    message_.resize(length);
    return message_.data();
  }
  void digest(std::size_t length, std::uint8_t* out) override {
    std::uint8_t result[kMaxDigest] = {};  // a function that fails may have written some of it
    if (const int answer = function_(context_, message_.data(), length, result))
      throw DigestFailed{answer};
    std::memcpy(out, result, static_cast<std::size_t>(size_));
  }

 private:
  blockmgr_digest_function function_;
  void* context_;
  int size_;
  std::vector<std::uint8_t> message_;
};

// xxh3_128. Throws in a build without the header of xxHash.
std::unique_ptr<Digester> default_digester(int block_size);

}  // namespace blockmgr::c
