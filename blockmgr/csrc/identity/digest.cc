#include "identity/digest.h"

#include <cstring>

namespace blockmgr {

void Digester::digest_root(std::string_view name, std::uint8_t* out) {
  if (name.empty()) {
    std::memset(out, 0, static_cast<std::size_t>(size()));
    return;
  }
  std::memcpy(message(name.size()), name.data(), name.size());
  digest(name.size(), out);
}

void Digester::digest_block(const std::uint8_t* parent, std::string_view extras,
                            const Token* tokens, int num_tokens, std::uint8_t* out) {
  const auto digest_size = static_cast<std::size_t>(size());
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
