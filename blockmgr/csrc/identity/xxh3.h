// The default digest, by a function of the xxHash library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "identity/digest.h"

namespace blockmgr {

// xxh3_128 through the C function of the xxHash library: the one that Python's xxhash wraps, or
// that the C interface was built with.
class Xxh3Digester final : public Digester {
 public:
  static constexpr int kSize = 16;
  // XXH128_hash_t of the library, low half first.
  struct Halves {
    std::uint64_t low;
    std::uint64_t high;
  };
  using Function = Halves (*)(const void*, std::size_t);

  Xxh3Digester(Function function, std::size_t plain_length)
      : Digester(false, true), function_(function), message_(plain_length) {}
  int size() const override { return kSize; }
  std::uint8_t* message(std::size_t length) override {
    if (message_.size() < length) message_.resize(length);
    return message_.data();
  }
  void digest(std::size_t length, std::uint8_t* out) override {
    const Halves halves = function_(message_.data(), length);
    const std::uint64_t canonical[] = {big_endian(halves.high), big_endian(halves.low)};
    std::memcpy(out, canonical, sizeof canonical);
  }

 private:
  // The number whose bytes in memory are those of this one, the highest first.
  static std::uint64_t big_endian(std::uint64_t number) {
#if (defined(__GNUC__) || defined(__clang__)) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return __builtin_bswap64(number);  // compilers see no swap in the loop
#else
    std::uint8_t bytes[8];
    for (int i = 0; i < 8; ++i) bytes[i] = static_cast<std::uint8_t>(number >> (56 - 8 * i));
    std::memcpy(&number, bytes, sizeof bytes);
    return number;
#endif
  }

  Function function_;
  std::vector<std::uint8_t> message_;
};

}  // namespace blockmgr
