#include "sequences/arguments.h"

#include <algorithm>
#include <numeric>

#include "memory/errors.h"

namespace blockmgr {

namespace {

constexpr int kMaxPlaces = 1 << 30;
constexpr int kMaxStepsInFlight = 200;
constexpr int kMaxSessions = 1 << 24;
constexpr int kMaxWindow = 1 << 24;
constexpr std::size_t kMaxGroups = 64;
constexpr int kMaxParts = 254;

[[noreturn]] void bad_value(const std::string& message) { throw Error(ErrorKind::kValue, message); }

std::int64_t capacity_of(const StoreConfig& config) {
  return std::int64_t{config.num_blocks} - config.null_block;
}

void check_quotas(const StoreConfig& config) {
  std::int64_t left = capacity_of(config);
  for (const Quota& quota : config.quotas) left -= quota.blocks;
  if (left < 0)
    bad_value("quotas must add up to at most " + std::to_string(capacity_of(config)) +
              ", the capacity, got " + std::to_string(capacity_of(config) - left));
  const std::int64_t most = (kMaxBlocks - config.num_blocks) / 2;
  if (const auto count = static_cast<std::int64_t>(config.quotas.size()); count && count > most)
    bad_value("quotas must be at most " + std::to_string(most) + " for this num_blocks, got " +
              std::to_string(count));
}

}  // namespace

void throw_bounds(std::string_view name, std::int64_t value, std::int64_t low, std::int64_t high) {
  const std::string bound = high == INT64_MAX
                                ? "at least " + std::to_string(low)
                                : "in [" + std::to_string(low) + ", " + std::to_string(high) + "]";
  bad_value(std::string(name) + " must be " + bound + ", got " + std::to_string(value));
}

void check_length(const std::string& name, std::size_t length, std::size_t least,
                  std::size_t most) {
  if (length < least || length > most)
    bad_value(name + " must be " + std::to_string(least) + " to " + std::to_string(most) +
              " bytes long, got " + std::to_string(length));
}

std::int64_t not_empty(std::int64_t size, const char* name) {
  if (!size) bad_value(std::string(name) + " must not be empty");
  return size;
}

void check_batch(std::int64_t count, int max_seqs) {
  if (count > max_seqs)
    bad_value("handles must be distinct, so at most " + std::to_string(max_seqs) +
              " (max_seqs), got " + std::to_string(count));
}

void same_number(std::int64_t handles, std::int64_t others, const char* name) {
  if (handles != others)
    bad_value(std::string(name) + " must be as many as handles (" + std::to_string(handles) +
              "), got " + std::to_string(others));
}

void add_extra(ExtrasBytes& extras, std::int64_t block, std::string_view bytes) {
  if (block < 0 || block > INT32_MAX)
    bad_value("extras index must be in [0, 2**31), got " + std::to_string(block));
  if (bytes.empty() || bytes.size() > kMaxBytes)
    check_length("extras[" + std::to_string(block) + "]", bytes.size(), 1);
  extras.emplace_back(static_cast<std::int32_t>(block), bytes);
}

void sort_extras(ExtrasBytes& extras) {
  std::sort(extras.begin(), extras.end());
  for (std::size_t i = 1; i < extras.size(); ++i)
    if (extras[i].first == extras[i - 1].first)
      bad_value("extras index " + std::to_string(extras[i].first) +
                " must appear once, got it twice");
}

void take_exactly(Prompt& prompt, std::int64_t num_cached, bool limited) {
  if (!prompt.read_cache || limited)
    bad_value(
        "match says what is taken from the cache: leave out read_cache and max_cached_tokens");
  prompt.due_cached = prompt.most_cached = num_cached;
}

std::int64_t checked_loaded(const Prompt& prompt) {
  const std::int64_t slots = prompt.num_slots ? prompt.num_slots : prompt.num_tokens;
  check_bounds("num_loaded_tokens", prompt.num_loaded, 0, std::min(slots, prompt.num_tokens));
  return std::min(prompt.num_loaded, prompt.num_tokens - 1);
}

void check_retention(int level, double ttl) {
  check_bounds("level", level, kNoLevel, kHigh);
  if (!(ttl > 0)) bad_value("ttl must be above 0, got " + std::to_string(ttl));
}

void check_options(const StoreConfig& config) {
  check_bounds("num_blocks", config.num_blocks, 1 + config.null_block, kMaxBlocks);
  check_bounds("block_size", config.block_size, 1, kMaxBlockSize);
  check_bounds("steps_in_flight", config.steps_in_flight, 0, kMaxStepsInFlight);
  check_bounds("ghost_blocks", config.ghost_blocks, 0, std::max(0, kMaxPlaces - config.num_blocks));
  check_bounds("event_blocks", config.event_blocks, 0, kMaxPlaces);
  check_bounds("max_pinned_blocks", config.max_pinned_blocks, 0,
               config.retention ? capacity_of(config) : 0);
  check_bounds("max_sessions", config.max_sessions, 0, kMaxSessions);
  check_quotas(config);
}

void check_options(const Config& config) {
  check_options(static_cast<const StoreConfig&>(config));
  check_bounds("num_nodes", config.num_nodes, 0, kMaxBlocks - config.num_blocks);
  if (config.num_nodes &&
      (config.groups.empty() || !config.quotas.empty() || config.retention || config.event_blocks))
    bad_value("num_nodes needs groups, no quotas, no retention and no events");
  check_bounds("max_seqs", config.max_seqs, 1, INT32_MAX);
  check_bounds("max_blocks_per_seq", config.row_width, 1, INT32_MAX / config.block_size);
  check_bounds("full_block_size", config.full_block_size, 0, config.block_size);
  check_bounds("min_partial_tokens", config.min_partial_tokens, 0, config.block_size);
  check_bounds("watermark_blocks", config.watermark_blocks, 0, capacity_of(config));
  check_bounds("hit_rate_window", config.hit_rate_window, 0, kMaxWindow);
  for (const Group& group : config.groups)
    if (group.extra_blocks >= config.row_width)
      bad_value("max_blocks_per_seq must be at least " + std::to_string(group.extra_blocks + 1) +
                " for the slots of states, got " + std::to_string(config.row_width));
}

void add_quota(StoreConfig& config, std::string_view name, std::int64_t blocks) {
  check_length("quotas", name.size(), 0);
  check_bounds("quotas", blocks, 1, INT32_MAX);
  if (config.quotas.size() == UINT16_MAX)
    bad_value("quotas must be at most " + std::to_string(UINT16_MAX) + ", got more");
  config.quotas.push_back({std::string(name), static_cast<int>(blocks)});
}

// As blockmgr.groups.default_nodes.
static int default_nodes(const std::vector<Group>& groups, std::int64_t block_size,
                         std::int64_t capacity) {
  constexpr std::int64_t kTokensOfPrefix = 8192, kMost = 1 << 20;
  const auto blocks = [&](std::int64_t tokens) { return (tokens + block_size - 1) / block_size; };
  std::int64_t each = 0;
  for (const Group& group : groups) each += group.is_attention() ? blocks(group.width) + 1 : 1;
  const std::int64_t ends = (capacity + each - 1) / each;
  return static_cast<int>(std::max(std::min(ends * blocks(kTokensOfPrefix), kMost), capacity));
}

// Checks the numbers of each group by itself, and those that all rings or all states share.
static void check_each(const Config& config, const std::vector<Group>& groups) {
  std::int64_t restart = 1;
  int extra = -1;
  for (const Group& group : groups) {
    const bool has_width = group.kind != Group::kFull && !group.recurrent();
    check_bounds("width of a group", group.width, has_width, has_width ? INT32_MAX : 0);
    check_bounds("restart of a group", group.restart, 1, group.is_ring() ? group.width : 1);
    restart = std::lcm(restart, group.restart);
    if (restart > INT32_MAX)
      bad_value("groups must restart at common positions below 2**31, got rings that do not");
    if (group.is_ring())
      check_bounds("width of a ring", group.width, group.restart + config.max_rollback, INT32_MAX);
    const std::int64_t least = std::max<std::int64_t>(group.width - 1, 1);
    check_bounds("replay of a group", group.replay, group.is_replayed() ? least : 0,
                 group.is_replayed() ? INT32_MAX : 0);
    if (!group.recurrent()) continue;
    if (extra >= 0) check_bounds("extra blocks of a group", group.extra_blocks, extra, extra);
    extra = group.extra_blocks;
  }
}

// Checks what windows that are computed again need of the other groups.
static void check_replay(const std::vector<Group>& groups, bool bare) {
  std::int64_t replay = 0;
  for (const Group& group : groups) replay = std::max(replay, group.replay);
  if (!replay) return;
  const auto lacks = [&](const Group& group) {
    return group.recurrent() || (group.is_ring() && group.restart > replay + 1);
  };
  if (bare || std::any_of(groups.begin(), groups.end(), lacks))
    bad_value(
        "groups with replay need full attention, no states beside them, and rings that restart "
        "within it");
}

// The slices of all groups, but not those that are the nodes' own blocks: as
// blockmgr.groups.core_groups.
static void set_slices(Config& config, const std::vector<Group>& groups, bool bare) {
  for (const bool of_tables : {bare, !bare})
    for (int i = 0; i < static_cast<int>(groups.size()); ++i) {
      if ((i == config.full_group) != of_tables) continue;
      Group slice = groups[nth(i)];
      const int size = config.block_size / slice.num_slices;
      slice.number = i;
      slice.has_events = (bare || !of_tables) && !slice.is_replayed();
      for (slice.slice = of_tables && !bare; slice.slice < slice.num_slices; ++slice.slice) {
        slice.begin = std::int64_t{slice.slice} * size;
        slice.end = slice.begin + size;
        config.groups.push_back(slice);
      }
      if (of_tables) config.full_block_size = size;
    }
}

void set_groups(Config& config, const std::vector<Group>& groups) {
  if (groups.size() > kMaxGroups)
    bad_value("groups must be at most " + std::to_string(kMaxGroups) + ", got " +
              std::to_string(groups.size()));
  const auto first = [&](const auto& fits) {
    return std::find_if(groups.begin(), groups.end(), fits) - groups.begin();
  };
  const auto end = static_cast<std::ptrdiff_t>(groups.size());
  const bool recurrent = first([](const Group& group) { return group.recurrent(); }) < end;
  std::ptrdiff_t of_tables = first([](const Group& group) { return group.kind == Group::kFull; });
  const bool bare = of_tables == end && !groups.empty();
  if (bare) of_tables = first([](const Group& group) { return group.is_attention(); });
  if (of_tables == end) of_tables = 0;
  if (bare && first([](const Group& group) { return !group.is_ring(); }) == end)
    bad_value("groups must have one that is no ring, got none");
  check_each(config, groups);
  check_replay(groups, bare);
  if (!groups.empty() && (!config.null_block || !config.prefix_caching || config.ghost_blocks))
    bad_value("groups need null_block, prefix_caching and no ghost_blocks");
  if (groups.empty()) check_bounds("max_rollback_tokens", config.max_rollback, 0, 0);
  if (config.prompt_end_stop >= 0 && !(recurrent && config.min_partial_tokens))
    bad_value("prompt_end_stop needs a group of recurrent states and min_partial_tokens");
  if (!bare) check_bounds("num_nodes without full attention", config.num_nodes, 0, 0);
  if (bare && !config.num_nodes)
    config.num_nodes =
        default_nodes(groups, config.block_size, config.num_blocks - config.null_block);
  config.full_group = static_cast<int>(of_tables);
  int parts = 0;
  for (const Group& group : groups) parts += group.num_slices;
  if (parts > kMaxParts)
    bad_value("groups must have at most " + std::to_string(kMaxParts) +
              " blocks in block_size tokens, got " + std::to_string(parts));
  set_slices(config, groups, bare);
}

}  // namespace blockmgr
