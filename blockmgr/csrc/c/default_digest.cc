// The one file that needs xxHash: its header alone, compiled in, so that no user of the library
// needs it. The programs of tests/core, which have digests of their own, are built without.
#if __has_include(<xxhash.h>)
#define XXH_INLINE_ALL
#include <xxhash.h>
#endif

#include "c/digests.h"
#include "identity/xxh3.h"

namespace blockmgr::c {

std::unique_ptr<Digester> default_digester(int block_size) {
#ifdef XXH_INLINE_ALL
  const auto function = [](const void* message, std::size_t length) {
    const XXH128_hash_t hash = XXH3_128bits(message, length);
    return Xxh3Digester::Halves{hash.low64, hash.high64};
  };
  const std::size_t plain_length =
      Xxh3Digester::kSize + static_cast<std::size_t>(block_size) * sizeof(Token);
  return std::make_unique<Xxh3Digester>(function, plain_length);
#else
  (void)block_size;
  throw Error(ErrorKind::kValue, "digest must not be NULL in a build without xxhash.h");
#endif
}

}  // namespace blockmgr::c
