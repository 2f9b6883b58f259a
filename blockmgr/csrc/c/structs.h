// Structs that may grow: callers that were built with an older header pass smaller ones.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "c/blockmgr.h"
#include "c/status.h"

namespace blockmgr::c {

// Their sizes in the first release that had them.
inline constexpr std::size_t kFirstOptions = offsetof(blockmgr_options, digest_size) + 8;
inline constexpr std::size_t kFirstPrompt = offsetof(blockmgr_prompt, reserved) + 4;
inline constexpr std::size_t kFirstMatch = offsetof(blockmgr_match_result, stops) + 4 * 8;
inline constexpr std::size_t kFirstSequence = offsetof(blockmgr_sequence, stops) + 5 * 8;
inline constexpr std::size_t kFirstEvents = offsetof(blockmgr_event_list, extras) + sizeof(void*);
inline constexpr std::size_t kFirstStats = offsetof(blockmgr_stats, forgotten_blocks) + 8;

// Tokens that no pool holds; so many can be counted in blocks of all groups without an overflow.
inline constexpr std::int64_t kPastAnyPool = std::int64_t{1} << 48;

template <class Struct>
void check_size(std::size_t size, const char* name, std::size_t least) {
  if (size < least || size > sizeof(Struct))
    throw Error(ErrorKind::kValue,
                std::string(name) + ".struct_size must be in [" + std::to_string(least) + ", " +
                    std::to_string(sizeof(Struct)) + "], got " + std::to_string(size));
}

template <class Struct>
std::size_t checked_size(const Struct* given, const char* name, std::size_t least) {
  const std::size_t size = not_null(given, name).struct_size;
  check_size<Struct>(size, name, least);
  return size;
}

// The caller's values, and the defaults for the rest.
template <class Struct>
Struct read_struct(const Struct* given, const char* name, std::size_t least, Struct defaults = {}) {
  const std::size_t size = checked_size(given, name, least);
  std::memcpy(&defaults, given, size);
  return defaults;
}

// size: as it was checked.
template <class Struct>
void write_struct(Struct* out, std::size_t size, Struct result) {
  result.struct_size = size;
  std::memcpy(out, &result, size);
}

// A result that the caller may not want.
template <class Number>
void tell(Number* out, std::int64_t value) {
  if (out) *out = static_cast<Number>(value);
}

// Records as elements of the caller, and their number. Plain ones have the members of those of the
// interface.
template <class Record, class Out>
void put_all(const std::vector<Record>& records, Out* out, std::int64_t room, std::int64_t& count) {
  static_assert(sizeof(Out) == sizeof(Record) && std::is_trivially_copyable_v<Record>);
  check_room(room, static_cast<std::int64_t>(records.size()), count);
  if (!records.empty()) std::memcpy(out, records.data(), records.size() * sizeof(Record));
  count = static_cast<std::int64_t>(records.size());
}

// The stops of a prompt after this position, each once; how many.
template <class Stops, std::size_t kMost>
std::int64_t ascending(Stops stops, std::int64_t after, std::int64_t (&out)[kMost]) {
  static_assert(std::tuple_size_v<Stops> == kMost);
  std::sort(stops.begin(), stops.end());
  const auto end = std::unique(stops.begin(), stops.end());
  const auto first = std::upper_bound(stops.begin(), end, after);
  return std::copy(first, end, out) - out;
}

}  // namespace blockmgr::c
