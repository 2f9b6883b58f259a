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

}  // namespace blockmgr
