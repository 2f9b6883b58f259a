// The counts of a manager, by the names that its users know them by.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "sequences/sequences.h"

namespace blockmgr {

inline constexpr std::size_t kNumFacts = 33;
using Facts = std::array<std::pair<const char*, std::int64_t>, kNumFacts>;

// The caller holds the monitor.
Facts facts_of(const Sequences& core);

}  // namespace blockmgr
