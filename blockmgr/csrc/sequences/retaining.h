// What callers say of blocks that will be used again: retention, pins, touches.
#pragma once

#include <cstdint>
#include <functional>

#include "sequences/finding.h"
#include "sequences/group_ends.h"
#include "sequences/group_tables.h"
#include "sequences/needs.h"

namespace blockmgr {

class Retaining : public Part<Retaining, Finding, Needs, GroupEnds> {
 public:
  // A level of kNoLevel withdraws; ttl is in seconds. Answers are in blocks, and announced as
  // admit's.
  using Announce = std::function<void(std::int64_t)>;

  std::int64_t retain(Handle handle, std::int64_t start, std::int64_t stop, int level, double ttl,
                      const Announce& announce = {});
  std::int64_t retain_prefix(const Prompt& prompt, int level, double ttl,
                             const Announce& announce = {});
  std::int64_t pin(const Prompt& prompt, const Announce& announce = {});
  std::int64_t touch(const Prompt& prompt, const Announce& announce = {});

 private:
  Found find_cached(const Prompt& prompt);
};

}  // namespace blockmgr
