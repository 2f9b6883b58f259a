#include "identity/digest.h"

#include <cstring>
#include <stdexcept>

#include "memory/copy.h"

namespace blockmgr {

void Digester::digest_root(std::string_view name, std::uint8_t* out) {
  if (name.empty()) {
    std::memset(out, 0, static_cast<std::size_t>(size()));
    return;
  }
  std::memcpy(message(name.size()), name.data(), name.size());
  digest(name.size(), out);
}

void Digester::digest_block(const std::uint8_t*, std::string_view, const Token*, int,
                            std::uint8_t*) {
  throw std::logic_error("this digester leaves the layout of blocks to the index");
}

void digest_block_with(Digester& digester, int size, const std::uint8_t* parent,
                       std::string_view keys, const Token* tokens, int num_tokens,
                       std::uint8_t* out) {
  if (digester.lays_out_blocks()) [[unlikely]]
    return digester.digest_block(parent, keys, tokens, num_tokens, out);
  const auto digest_size = static_cast<std::size_t>(size);
  const auto token_bytes = static_cast<std::size_t>(num_tokens) * sizeof(Token);
  const std::size_t length = digest_size + keys.size() + token_bytes;
  std::uint8_t* message = digester.message(length);
  copy_usual<16>(message, parent, digest_size);
  if (!keys.empty()) std::memcpy(message + digest_size, keys.data(), keys.size());
  std::uint8_t* at = message + digest_size + keys.size();
  const std::uint16_t probe = 1;
  std::uint8_t little_endian;
  std::memcpy(&little_endian, &probe, 1);
  if (little_endian) {
    copy_usual<64>(at, tokens, token_bytes);
  } else {
    for (int i = 0; i < num_tokens; ++i)
      for (int byte = 0; byte < 4; ++byte)
        *at++ = static_cast<std::uint8_t>(tokens[i] >> (8 * byte));
  }
  digester.digest(length, out);
}

}  // namespace blockmgr
