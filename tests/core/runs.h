// One run: a kind, and the stream that the rest is drawn from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bytes.h"
#include "world.h"

namespace blockmgr::testing {

// Kinds from here on drive a BlockPool; those before it a manager, by profile.
inline constexpr int kPoolKind = 192;

// The kinds by name: every profile, and "pool".
std::vector<std::string> kind_names();
std::uint8_t kind_of(const std::string& name);

// Up to that many moves, or until the stream ends; returns how many calls they made. Throws
// Violation, with the configuration.
std::int64_t run(Bytes& bytes, std::uint8_t kind, int moves, Counts* counts = nullptr);

}  // namespace blockmgr::testing
