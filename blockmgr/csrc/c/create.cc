// Managers through the C interface: options, creation and end.
#include <algorithm>
#include <concepts>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "c/digests.h"
#include "c/structs.h"
#include "identity/xxh3.h"

namespace blockmgr::c {

namespace {

blockmgr_options default_options() {
  blockmgr_options options{};
  options.struct_size = sizeof options;
  options.max_seqs = 256;
  options.hit_rate_window = 1000;
  options.halfway_stop_tokens = 8192;
  options.prompt_end_stop = -1;
  options.prefix_caching = 1;
  options.eviction = "lru";
  options.digest_size = Xxh3Digester::kSize;
  options.max_sessions = 65'536;
  return options;
}

// An option of the caller into the member of the core's config that has its name.
struct ReadOption {
  const blockmgr_options& given;

  void operator()(const char* name, bool& out) const {
    const auto number = value_of(name);
    check_bounds(name, number, 0, 1);
    out = number;
  }
  void operator()(const char*, std::string& out) const {
    out = &not_null(given.eviction, "eviction");
  }
  template <std::integral Number>
  void operator()(const char* name, Number& out) const {
    const auto number = value_of(name);
    if (number == out) return;  // a member's own default may lie outside the bounds, as -1 does
    check_bounds(name, number, 0, INT32_MAX);
    out = static_cast<Number>(number);
  }

 private:
  std::int64_t value_of(std::string_view name) const {
    const std::pair<std::string_view, std::int64_t> values[] = {
        {"num_blocks", given.num_blocks},
        {"block_size", given.block_size},
        {"null_block", given.null_block},
        {"remap", !given.append_only},
        {"steps_in_flight", given.steps_in_flight},
        {"ghost_blocks", given.ghost_blocks},
        {"retention", given.retention},
        {"max_pinned_blocks", given.max_pinned_blocks},
        {"event_blocks", given.event_blocks},
        {"full_group", 0},
        {"num_nodes", given.num_nodes},
        {"full_block_size", 0},
        {"max_sessions", given.max_sessions},
        {"max_seqs", given.max_seqs},
        {"row_width", given.max_blocks_per_seq},
        {"prefix_caching", given.prefix_caching},
        {"min_partial_tokens", given.min_partial_tokens},
        {"watermark_blocks", given.watermark_blocks},
        {"early_commit", given.early_commit},
        {"strict_decode", given.strict_decode},
        {"hit_rate_window", given.hit_rate_window},
        {"max_rollback_tokens", given.max_rollback_tokens},
        {"halfway_stop_tokens", given.halfway_stop_tokens},
        {"prompt_end_stop", given.prompt_end_stop},
        {"stop_margin_tokens", given.stop_margin_tokens},
    };
    const auto* const found = std::find_if(std::begin(values), std::end(values),
                                           [&](const auto& each) { return each.first == name; });
    if (found == std::end(values))
      throw std::logic_error("an option is missing in c/create.cc: " + std::string(name));
    return found->second;
  }
};

Group group_of(const blockmgr_group& given) {
  constexpr std::int64_t kMostDetail[] = {0, INT32_MAX, 0, kMaxExtraBlocks, INT32_MAX};
  check_bounds("kind of a group", given.kind, BLOCKMGR_FULL, BLOCKMGR_RING);
  check_bounds("detail of a group", given.detail, 0, kMostDetail[given.kind]);
  Group group{static_cast<Group::Kind>(given.kind), given.width};
  if (group.kind == Group::kWindow && given.detail) {
    group.kind = Group::kReplayed;
    group.replay = given.detail;
  } else if (group.recurrent()) {
    group.extra_blocks = given.detail;
  } else if (group.is_ring() && given.detail) {
    group.restart = given.detail;
  }
  return group;
}

std::vector<Group> groups_of(const blockmgr_options& given) {
  std::vector<Group> groups;
  if (given.num_groups) not_null(given.groups, "groups");
  check_bounds("num_groups", static_cast<std::int64_t>(given.num_groups), 0, 64);
  for (std::size_t i = 0; i < given.num_groups; ++i) {
    Group group = group_of(given.groups[i]);
    const std::int64_t size = given.group_block_sizes ? given.group_block_sizes[i] : 0;
    const bool has_blocks = !group.recurrent() && !group.is_ring();
    check_bounds("group_block_sizes", size, 0, has_blocks ? given.block_size : 0);
    if (size && given.block_size % size)
      throw Error(ErrorKind::kValue, "group_block_sizes must divide block_size, " +
                                         std::to_string(given.block_size) + ", got " +
                                         std::to_string(size));
    if (size) group.num_slices = static_cast<int>(given.block_size / size);
    groups.push_back(group);
  }
  return groups;
}

void add_quotas(const blockmgr_options& given, Config& config) {
  if (given.num_quotas) not_null(given.quotas, "quotas");
  for (std::size_t i = 0; i < given.num_quotas; ++i) {
    const blockmgr_quota& quota = given.quotas[i];
    const auto* name = static_cast<const char*>(quota.name);
    if (quota.name_size) not_null(name, "name of a quota");
    add_quota(config, {name, quota.name_size}, quota.num_blocks);
  }
  std::vector<std::string_view> names;
  for (const Quota& quota : config.quotas) names.push_back(quota.name);
  std::sort(names.begin(), names.end());
  if (std::adjacent_find(names.begin(), names.end()) != names.end())
    throw Error(ErrorKind::kValue, "quotas must name each namespace once, got one twice");
}

Config config_of(const blockmgr_options& given) {
  check_bounds("append_only", given.append_only, 0, 1);
  check_bounds("events", given.events, 0, 1);
  check_bounds("debug", given.debug, 0, 2);
  if (!given.events) check_bounds("event_blocks", given.event_blocks, 0, 0);
  Config config;
  config.each_option(ReadOption{given});
  add_quotas(given, config);
  check_options(static_cast<const StoreConfig&>(config));
  set_groups(config, groups_of(given));
  if (!config.row_width) {
    const int most = config.num_nodes ? config.num_nodes : config.num_blocks - config.null_block;
    config.row_width = std::min(most, INT32_MAX / config.block_size);
  }
  if (given.events && !config.event_blocks)
    config.event_blocks = static_cast<int>(
        std::clamp<std::int64_t>(4 * std::int64_t{config.num_blocks}, 256, 65'536));
  check_options(config);
  return config;
}

std::unique_ptr<Digester> digester_of(const blockmgr_options& given, const Config& config) {
  check_bounds("digest_size", given.digest_size, kMinDigest, kMaxDigest);
  if (!config.prefix_caching) return nullptr;
  if (given.digest)
    return std::make_unique<CallbackDigester>(
        given.digest, given.digest_context, static_cast<int>(given.digest_size), config.block_size);
  check_bounds("digest_size of xxh3_128", given.digest_size, Xxh3Digester::kSize,
               Xxh3Digester::kSize);
  return default_digester(config.block_size);
}

}  // namespace

}  // namespace blockmgr::c

using namespace blockmgr::c;

blockmgr_status blockmgr_options_init(blockmgr_options* options, size_t struct_size) {
  return guarded([&] {
    not_null(options, "options");
    check_size<blockmgr_options>(struct_size, "options", kFirstOptions);
    write_struct(options, struct_size, default_options());
  });
}

blockmgr_status blockmgr_create(const blockmgr_options* options, blockmgr_manager** manager) {
  return guarded([&] {
    blockmgr_manager*& out = not_null(manager, "manager");
    const blockmgr_options given =
        read_struct(options, "options", kFirstOptions, default_options());
    const blockmgr::Config config = config_of(given);
    auto made = std::make_unique<blockmgr_manager>(config, digester_of(given, config));
    made->core.set_debug(given.debug);
    out = made.release();
  });
}

void blockmgr_destroy(blockmgr_manager* manager) { delete manager; }
