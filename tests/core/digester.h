// Digests for tests: weak on purpose, failing on request, and able to call back into the core.
#pragma once

#include <cstring>
#include <functional>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "identity/digest.h"

namespace blockmgr::testing {

struct DigestFailed : std::runtime_error {
  DigestFailed() : std::runtime_error("the digest function failed") {}
};

class TestDigester : public Digester {
 public:
  // Constant: every block collides with every other. Tiny: one of four digests.
  enum Kind { kWide, kTiny, kConstant, kNumKinds };

  // never_fails: a core may compute digests on demand.
  explicit TestDigester(Kind kind, bool never_fails = false)
      : Digester(false, never_fails), kind_(kind) {
    buffer_.reserve(256);  // as every digester that never fails has room for a plain block
  }
  int size() const override { return 16; }
  std::uint8_t* message(std::size_t length) override {
    buffer_.resize(length);
    return buffer_.data();
  }
  void digest(std::size_t length, std::uint8_t* out) override {
    if (!never_fails()) {
      if (intrusion) intrusion();
      if (fails_in && !--fails_in) throw DigestFailed();
    }
    const std::string_view bytes(reinterpret_cast<const char*>(buffer_.data()), length);
    std::uint64_t value = std::hash<std::string_view>()(bytes);
    if (kind_ == kTiny) value &= 3;
    if (kind_ == kConstant) value = 0;
    std::memcpy(out, &value, 8);
    std::memcpy(out + 8, &value, 8);
  }

  std::size_t memory() const { return buffer_.capacity(); }

  int fails_in = 0;  // throws in this many calls; 0: never
  std::function<void()> intrusion;

 private:
  Kind kind_;
  std::vector<std::uint8_t> buffer_;
};

}  // namespace blockmgr::testing
