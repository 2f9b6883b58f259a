// Digests over canonical CBOR (RFC 8949, section 4.2.1): for those that others must reproduce.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "identity/digest.h"

namespace blockmgr {

namespace cbor {

enum Major : std::uint8_t { kUnsigned, kNegative, kBytes, kText, kArray };
inline constexpr std::uint8_t kNull = 0xf6;
inline constexpr std::size_t kMaxHead = 9;

// Bytes that the head of an item takes: its kind, and its number or length.
constexpr std::size_t head_size(std::uint64_t number) {
  return number < 24 ? 1 : number >> 8 == 0 ? 2 : number >> 16 == 0 ? 3 : number >> 32 == 0 ? 5 : 9;
}

// Writes the shortest head, as canonical CBOR has it. Returns the place after it.
inline std::uint8_t* put_head(Major major, std::uint64_t number, std::uint8_t* out) {
  const auto kind = static_cast<std::uint8_t>(major << 5);
  const std::size_t size = head_size(number);
  if (size == 1) {
    *out++ = static_cast<std::uint8_t>(kind | number);
    return out;
  }
  // 24 to 27: that one, two, four or eight bytes follow.
  const int more = size == 2 ? 24 : size == 3 ? 25 : size == 5 ? 26 : 27;
  *out++ = static_cast<std::uint8_t>(kind | more);
  for (std::size_t i = size - 1; i-- > 0;) *out++ = static_cast<std::uint8_t>(number >> (8 * i));
  return out;
}

}  // namespace cbor

// vLLM's digests ("sha256_cbor"): H(CBOR [parent digest, [tokens], extra keys]), where the extras
// of a block are the CBOR of its extra keys, and a block without any has null.
//
// Source: vLLM 0.33, v1/core/kv_cache_utils.py: hash_block_tokens, init_none_hash.
class CborDigester : public Digester {
 public:
  // The root digest is the digest of seed as a text.
  CborDigester(std::unique_ptr<Digester> inner, std::string seed)
      : Digester(true), inner_(std::move(inner)), seed_(std::move(seed)) {}
  int size() const override { return inner_->size(); }
  std::uint8_t* message(std::size_t length) override { return inner_->message(length); }
  void digest(std::size_t length, std::uint8_t* out) override { inner_->digest(length, out); }

  // vLLM has no namespaces. The empty one is its root for all prompts; others are digests of their
  // names as byte strings, which no block's array can be taken for.
  void digest_root(std::string_view name, std::uint8_t* out) override;
  void digest_block(const std::uint8_t* parent, std::string_view extras, const Token* tokens,
                    int num_tokens, std::uint8_t* out) override;

 private:
  void digest_item(cbor::Major major, std::string_view content, std::uint8_t* out);

  std::unique_ptr<Digester> inner_;
  std::string seed_;
  std::vector<std::uint8_t> item_;
};

}  // namespace blockmgr
