// How a digest is asked for. The core knows bytes and lengths; which function makes a digest of
// them is the caller's choice, and the core never trusts it further than to find a candidate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "memory/block.h"

namespace blockmgr {

class Digester {
 public:
  virtual ~Digester() = default;
  // Length of every digest, in bytes.
  virtual int size() const = 0;
  // Where to put a message of this length before calling digest(length, out).
  virtual std::uint8_t* message(std::size_t length) = 0;
  // Writes the digest of the message to out. May throw; then nothing was written.
  virtual void digest(std::size_t length, std::uint8_t* out) = 0;

  // What stands for a namespace before its first block: zeros for the empty one, else the digest of
  // its name. May throw, as below.
  virtual void digest_root(std::string_view name, std::uint8_t* out);
  // The digest of a block, given its parent's.
  virtual void digest_block(const std::uint8_t* parent, std::string_view extras,
                            const Token* tokens, int num_tokens, std::uint8_t* out) {
    digest_plain(parent, static_cast<std::size_t>(size()), extras, tokens, num_tokens, out);
  }
  // Whether digest_block is digest_plain, which then may be called in its place: it is as hot as a
  // look-up gets.
  virtual bool is_plain() const { return true; }
  // Of parent || extras || tokens as little-endian u32.
  void digest_plain(const std::uint8_t* parent, std::size_t digest_size, std::string_view extras,
                    const Token* tokens, int num_tokens, std::uint8_t* out);
};

inline void Digester::digest_plain(const std::uint8_t* parent, std::size_t digest_size,
                            std::string_view extras, const Token* tokens, int num_tokens,
                            std::uint8_t* out) {
  const auto token_bytes = static_cast<std::size_t>(num_tokens) * sizeof(Token);
  const std::size_t length = digest_size + extras.size() + token_bytes;
  std::uint8_t* at = message(length);
  std::memcpy(at, parent, digest_size);
  if (!extras.empty()) std::memcpy(at + digest_size, extras.data(), extras.size());
  at += digest_size + extras.size();
  const std::uint16_t probe = 1;
  std::uint8_t little_endian;
  std::memcpy(&little_endian, &probe, 1);
  if (little_endian) {
    std::memcpy(at, tokens, token_bytes);
  } else {
    for (int i = 0; i < num_tokens; ++i)
      for (int byte = 0; byte < 4; ++byte)
        *at++ = static_cast<std::uint8_t>(tokens[i] >> (8 * byte));
  }
  digest(length, out);
}

}  // namespace blockmgr
