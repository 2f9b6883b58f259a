#include "identity/digest.h"

#include <cstring>
#include <stdexcept>

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

}  // namespace blockmgr
