// One run: a kind, and the stream that the rest is drawn from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bytes.h"
#include "world.h"

namespace blockmgr::testing {

// Kinds from here on drive a BlockPool; those before it a manager, with groups of layers from
// kGroupKind on, else by profile.
inline constexpr int kPoolKind = 192;
inline constexpr int kGroupKind = 128;

// The kinds by name: every profile, and "pool". One more is called "groups".
std::vector<std::string> kind_names();
std::uint8_t kind_of(const std::string& name);

// Up to that many moves, or until the stream ends; adds to calls how many calls they made, before
// it throws Violation as well, with the configuration.
void run(Bytes& bytes, std::uint8_t kind, int moves, std::int64_t& calls, Counts* counts = nullptr);

}  // namespace blockmgr::testing
