// How a digest is asked for. The core knows bytes and lengths; which function makes a digest of
// them is the caller's choice, and the core never trusts it further than to find a candidate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "memory/node.h"

namespace blockmgr {

class Digester {
 public:
  virtual ~Digester() = default;
  // Length of every digest, in bytes.
  virtual int size() const = 0;
  // Where to put a message of this length before calling digest(length, out).
  virtual std::uint8_t* message(std::size_t length) = 0;
  // Writes the digest of the message to out. May throw, unless it never fails; then nothing was
  // written.
  virtual void digest(std::size_t length, std::uint8_t* out) = 0;

  // Whether the digester itself lays out what is digested of a block. Most do not; then it is
  // parent || extras || tokens as little-endian u32, written where a message goes.
  bool lays_out_blocks() const { return lays_out_blocks_; }
  // Whether a digest of a message for which there was room before neither throws nor allocates, and
  // calls no function of a caller. Then it can be made in the middle of a call.
  bool never_fails() const { return never_fails_; }
  // For digesters that do: the digest of a block, given its parent's. May throw, as digest does.
  virtual void digest_block(const std::uint8_t* parent, std::string_view extras,
                            const Token* tokens, int num_tokens, std::uint8_t* out);
  // The bytes that stand for a namespace before its first block: zeros for the empty one, else the
  // digest of its name. May throw, as digest does.
  virtual void digest_root(std::string_view name, std::uint8_t* out);

 protected:
  explicit Digester(bool lays_out_blocks = false, bool never_fails = false)
      : lays_out_blocks_(lays_out_blocks), never_fails_(never_fails) {}

 private:
  bool lays_out_blocks_;
  bool never_fails_;
};

// The digest of a block, given its parent's, by this digester, whose digests have this size. May
// throw, as digest does.
void digest_block_with(Digester& digester, int size, const std::uint8_t* parent,
                       std::string_view extras, const Token* tokens, int num_tokens,
                       std::uint8_t* out);

}  // namespace blockmgr
