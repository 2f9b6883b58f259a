// One run: a kind, and a stream from which the rest is drawn.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bytes.h"
#include "world.h"

namespace blockmgr::testing {

// What a kind drives.
struct Sort {
  bool is_pool = false;  // a BlockPool
  bool has_groups = false;
  int profile = 0;        // without groups: see Play
  unsigned features = 0;  // with groups: see GroupPlay
  bool through_c = false;
};
Sort sort_of(std::uint8_t kind);

// The kinds by name: every profile, and "pool".
std::vector<std::string> kind_names();
// Those of managers that are called through the C interface: "c:" and the name of the profile, or
// "c:groups".
std::vector<std::string> kind_names_through_c();
// Further ones, which run only if they are asked for: "groups"; "sizes", "c:sizes" and the like.
std::vector<std::string> kind_names_apart();
std::uint8_t kind_of(const std::string& name);

// Makes up to that many moves, or until the stream ends, and adds the number of calls to calls,
// also before it throws a Violation, whose message has the configuration.
void run(Bytes& bytes, std::uint8_t kind, int moves, std::int64_t& calls, Counts* counts = nullptr);

}  // namespace blockmgr::testing
