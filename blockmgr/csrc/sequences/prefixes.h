// What prompts and sequences have in common.
#pragma once

#include <cstdint>

#include "sequences/part.h"

namespace blockmgr {

class Prefixes : public Part<Prefixes> {
 public:
  void reset_hit_rate();
  // Leading whole computed blocks that all of these sequences have in their tables; or all that
  // run.
  std::int64_t num_common_prefix_blocks(const Handle* handles, std::int64_t count);
  std::int64_t num_common_prefix_blocks();
  // Whole blocks of a prompt, and their digests, into out. Throws what the digest function throws.
  std::int64_t num_digests(const Prompt& prompt) const;
  void block_digests(const Prompt& prompt, std::uint8_t* out);

 private:
  std::int64_t common_with(const Sequence& s, const std::int32_t*& first,
                           std::int64_t common) const;
};

}  // namespace blockmgr
