// Copies whose length is known nearly always.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace blockmgr {

// memcpy() of as many bytes as there are nearly always, without a call for those.
template <std::size_t kUsual>
inline void copy_usual(std::uint8_t* to, const void* from, std::size_t bytes) {
  if (bytes == kUsual) [[likely]] {
    std::memcpy(to, from, kUsual);
  } else {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace blockmgr
