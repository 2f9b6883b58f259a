// One run: a kind, and a stream from which the rest is drawn.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bytes.h"
#include "world.h"

namespace blockmgr::testing {

// Kinds from kPoolKind on drive a BlockPool, those from kGroupKind on a manager with groups of
// layers, and smaller ones a manager with the profile of that number.
inline constexpr int kPoolKind = 192;
inline constexpr int kGroupKind = 128;
// The last twelve: the profiles of families and of resized pools, these with groups, too, and with
// groups of loads, of uncached windows and of slots for states; directly and through C.
inline constexpr int kFamilyKind = 254;
inline constexpr int kResizeKind = 252;
inline constexpr int kResizeInGroupsKind = 250;
inline constexpr int kLoadsKind = 248;
inline constexpr int kUncachedKind = 246;
inline constexpr int kSlotsKind = 244;
// Managers of these kinds are called through the C interface: half of those of each sort.
inline bool is_through_c(std::uint8_t kind) {
  return kind < kPoolKind && kind % kGroupKind >= (kind < kGroupKind ? 64 : 32);
}

// The kinds by name: every profile, and "pool". Further kinds are called "groups", "families",
// "resize", "resize_in_groups", "loads", "uncached" and "slots".
std::vector<std::string> kind_names();
// Those of managers that are called through the C interface: "c:" and the name of the profile, or
// "c:groups".
std::vector<std::string> kind_names_through_c();
std::uint8_t kind_of(const std::string& name);

// Makes up to that many moves, or until the stream ends, and adds the number of calls to calls,
// also before it throws a Violation, whose message has the configuration.
void run(Bytes& bytes, std::uint8_t kind, int moves, std::int64_t& calls, Counts* counts = nullptr);

}  // namespace blockmgr::testing
