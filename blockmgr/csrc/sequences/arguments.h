// Checks of options and arguments that do not depend on who calls: the bindings and the C interface
// make them. All throw Error(kValue) with the name of the argument.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sequences/records.h"

namespace blockmgr {

// Ids are int32, and there are a fifth more nodes than blocks.
inline constexpr int kMaxIds = INT32_MAX - 511;
inline constexpr int kMaxBlocks = kMaxIds / 6 * 5;
inline constexpr int kMaxBlockSize = UINT16_MAX;
inline constexpr int kMaxExtraBlocks = 1024;  // slots for drafts beside a state
inline constexpr int kMinDigest = 8;
inline constexpr std::size_t kMaxBytes = 1024;  // of a namespace or an extra key

[[noreturn, gnu::cold]] void throw_bounds(std::string_view name, std::int64_t value,
                                          std::int64_t low, std::int64_t high);
inline void check_bounds(std::string_view name, std::int64_t value, std::int64_t low,
                         std::int64_t high) {
  if (value < low || value > high) [[unlikely]]
    throw_bounds(name, value, low, high);
}
// high = INT64_MAX: there is none.
inline void check_at_least(std::string_view name, std::int64_t value, std::int64_t low) {
  check_bounds(name, value, low, INT64_MAX);
}
// The length of a namespace or an extra key.
void check_length(const std::string& name, std::size_t length, std::size_t least,
                  std::size_t most = kMaxBytes);
// The size of something that must not be empty.
std::int64_t not_empty(std::int64_t size, const char* name);
// The number of handles in a batch, which must be distinct.
void check_batch(std::int64_t count, int max_seqs);
void same_number(std::int64_t handles, std::int64_t others, const char* name);

// Adds the extra key of a block; the bytes must outlive the list.
void add_extra(ExtrasBytes& extras, std::int64_t block, std::string_view bytes);
// Sorts extra keys by block. Throws if a block has two.
void sort_extras(ExtrasBytes& extras);

// The prompt takes exactly what a match found. limited: another limit was given.
void take_exactly(Prompt& prompt, std::int64_t num_cached, bool limited);

// Of the tokens that something else than a forward provides, some of those that get slots, the ones
// that the first forward does not compute again.
[[gnu::noinline]] std::int64_t checked_loaded(const Prompt& prompt);

void check_retention(int level, double ttl);

// Bounds that protect memory, and options that need others. Quotas and groups are set before.
void check_options(const StoreConfig& config);
void check_options(const Config& config);
void add_quota(StoreConfig& config, std::string_view name, std::int64_t blocks);
// The groups of layers in the order of the engine. All options but row_width are set before;
// without full attention it chooses num_nodes, if that is 0.
void set_groups(Config& config, const std::vector<Group>& groups);

}  // namespace blockmgr
