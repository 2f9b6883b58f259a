#include "identity/cbor.h"

#include <cstring>

namespace blockmgr {

namespace {

std::uint8_t* put(std::string_view bytes, std::uint8_t* out) {
  if (!bytes.empty()) std::memcpy(out, bytes.data(), bytes.size());
  return out + bytes.size();
}

// put_head of a token, without branches: ids of many sizes come in no order that could be
// predicted. Writes nine bytes, of which those past the returned place mean nothing.
std::uint8_t* put_token(std::uint64_t token, std::uint8_t* out) {
  const auto wide = static_cast<unsigned>((token >= 24) + (token >> 8 != 0) + (token >> 16 != 0));
  const unsigned more = wide + (wide == 3);  // bytes after the first: 0, 1, 2 or 4
  *out = static_cast<std::uint8_t>(wide ? 23 + wide : token);
  const std::uint64_t first = token << 1 << (63 - 8 * more);  // the top byte comes first
  for (unsigned i = 0; i < 8; ++i) out[1 + i] = static_cast<std::uint8_t>(first >> (56 - 8 * i));
  return out + 1 + more;
}

}  // namespace

void CborDigester::digest_root(std::string_view name, std::uint8_t* out) {
  if (name.empty()) return digest_item(cbor::kText, seed_, out);
  digest_item(cbor::kBytes, name, out);
}

void CborDigester::digest_item(cbor::Major major, std::string_view content, std::uint8_t* out) {
  const std::size_t length = cbor::head_size(content.size()) + content.size();
  put(content, cbor::put_head(major, content.size(), inner_->message(length)));
  inner_->digest(length, out);
}

// Written to memory of its own first: how long it is shows only then, and the message is asked for
// by its length.
void CborDigester::digest_block(const std::uint8_t* parent, std::string_view extras,
                                const Token* tokens, int num_tokens, std::uint8_t* out) {
  const auto count = static_cast<std::size_t>(num_tokens);
  const auto digest_size = static_cast<std::size_t>(size());
  const std::size_t most =
      3 * cbor::kMaxHead + digest_size + count * cbor::head_size(UINT32_MAX) + extras.size() + 1;
  if (item_.size() < most) item_.resize(most);
  std::uint8_t* at = cbor::put_head(cbor::kArray, 3, item_.data());
  at = cbor::put_head(cbor::kBytes, digest_size, at);
  at = put({reinterpret_cast<const char*>(parent), digest_size}, at);
  at = cbor::put_head(cbor::kArray, count, at);
  for (std::size_t i = 0; i < count; ++i) at = put_token(tokens[i], at);
  if (extras.empty()) {
    *at++ = cbor::kNull;
  } else {
    at = put(extras, at);
  }
  const auto length = static_cast<std::size_t>(at - item_.data());
  std::memcpy(inner_->message(length), item_.data(), length);
  inner_->digest(length, out);
}

}  // namespace blockmgr
