#include "runs.h"

#include <iterator>

#include "group_play.h"
#include "play.h"
#include "pool_play.h"

namespace blockmgr::testing {

namespace {

// Kinds from kPoolKind on drive a BlockPool, those from kGroupKind on a manager with groups of
// layers, and smaller ones a manager with the profile of that number. Half of the managers of each
// sort are called through the C interface.
constexpr int kPoolKind = 192;
constexpr int kGroupKind = 128;
constexpr int kGroupKindThroughC = 160;
// Two kinds for each of these, from the last one down: directly and through C.
constexpr int kLast = 254;
struct Apart {
  const char* name;
  Sort sort;
};
constexpr Apart kApart[] = {
    {"families", {false, false, -1}},
    {"resize", {false, false, -2}},
    {"resize_in_groups", {false, true, 0, GroupPlay::kResizes}},
    {"loads", {false, true, 0, GroupPlay::kLoads}},
    {"uncached", {false, true, 0, GroupPlay::kUncached}},
    {"slots", {false, true, 0, GroupPlay::kSlots}},
    {"sizes", {false, true, 0, GroupPlay::kSizes}},
};
constexpr int kFirstApart = kLast - 2 * (static_cast<int>(std::size(kApart)) - 1);

}  // namespace

std::vector<std::string> kind_names() {
  std::vector<std::string> names;
  for (const Profile& profile : profiles()) names.emplace_back(profile.name);
  names.emplace_back("pool");
  return names;
}

std::vector<std::string> kind_names_through_c() {
  std::vector<std::string> names = {"c:groups"};
  for (const Profile& profile : profiles()) names.push_back(std::string("c:") + profile.name);
  return names;
}

std::vector<std::string> kind_names_apart() {
  std::vector<std::string> names = {"groups"};
  for (const Apart& apart : kApart)
    for (const char* way : {"", "c:"}) names.push_back(std::string(way) + apart.name);
  return names;
}

std::uint8_t kind_of(const std::string& name) {
  const bool through_c = name.starts_with("c:");
  const std::string own = name.substr(through_c ? 2 : 0);
  int kind = own == "groups" ? through_c ? kGroupKindThroughC : kGroupKind : kPoolKind;
  const auto size = static_cast<int>(profiles().size());
  for (int i = 0; i < size; ++i)
    if (own == profiles()[static_cast<std::size_t>(i)].name)
      kind = through_c ? (64 / size + 1) * size + i : i;
  for (int i = 0; i < static_cast<int>(std::size(kApart)); ++i)
    if (own == kApart[i].name) kind = kLast - 2 * i + through_c;
  return static_cast<std::uint8_t>(kind);
}

Sort sort_of(std::uint8_t kind) {
  if (kind >= kFirstApart) {
    Sort sort = kApart[(kLast + 1 - kind) / 2].sort;
    sort.through_c = kind % 2;
    return sort;
  }
  if (kind >= kPoolKind) return {true};
  if (kind >= kGroupKind) return {false, true, 0, 0, kind >= kGroupKindThroughC};
  return {false, false, kind % static_cast<int>(profiles().size()), 0, kind >= 64};
}

namespace {

// Adds up on exit from the scope, also by exception.
template <class Anything>
struct CallCount {
  const Anything& play;
  std::int64_t& calls;
  ~CallCount() { calls += play.calls(); }
};

template <class AnyManager>
void play_to_the_end(AnyManager& play, int moves, std::int64_t& calls) {
  const CallCount<AnyManager> count_calls{play, calls};
  try {
    for (int i = 0; i < moves && play.move(); ++i) continue;
    play.finish_up();
  } catch (const std::exception& violation) {
    throw Violation(std::string(violation.what()) + "\n  in " + play.config());
  }
}

}  // namespace

void run(Bytes& bytes, std::uint8_t kind, int moves, std::int64_t& calls, Counts* counts) {
  const Sort sort = sort_of(kind);
  if (sort.is_pool) {
    PoolPlay play(bytes);
    const CallCount<PoolPlay> count_calls{play, calls};
    for (int i = 0; i < moves && play.move(); ++i) continue;
  } else if (sort.has_groups) {
    GroupPlay play(bytes, counts, nullptr, sort.through_c, sort.features);
    play_to_the_end(play, moves, calls);
  } else {
    Play play(bytes, sort.profile, counts, nullptr, sort.through_c);
    play_to_the_end(play, moves, calls);
  }
}

}  // namespace blockmgr::testing
