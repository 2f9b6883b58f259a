#include "runs.h"

#include "group_play.h"
#include "play.h"
#include "pool_play.h"

namespace blockmgr::testing {

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

std::uint8_t kind_of(const std::string& name) {
  if (name == "c:groups") return kGroupKind + 32;
  if (name.ends_with("resize_in_groups")) return kResizeInGroupsKind + name.starts_with("c:");
  if (name.ends_with("loads")) return kLoadsKind + name.starts_with("c:");
  if (name.ends_with("uncached")) return kUncachedKind + name.starts_with("c:");
  if (name.ends_with("slots")) return kSlotsKind + name.starts_with("c:");
  if (name.ends_with(families().name)) return kFamilyKind + name.starts_with("c:");
  if (name.ends_with(resizes().name)) return kResizeKind + name.starts_with("c:");
  if (name.starts_with("c:")) {
    const auto size = static_cast<int>(profiles().size());
    return static_cast<std::uint8_t>((64 / size + 1) * size + kind_of(name.substr(2)));
  }
  for (std::size_t i = 0; i < profiles().size(); ++i)
    if (name == profiles()[i].name) return static_cast<std::uint8_t>(i);
  if (name == "groups") return kGroupKind;
  return kPoolKind;
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
  if (kind >= kFamilyKind) {
    Play play(bytes, -1, counts, nullptr, kind > kFamilyKind);
    return play_to_the_end(play, moves, calls);
  }
  if (kind >= kResizeKind) {
    Play play(bytes, -2, counts, nullptr, kind > kResizeKind);
    return play_to_the_end(play, moves, calls);
  }
  if (kind >= kResizeInGroupsKind) {
    GroupPlay play(bytes, counts, nullptr, kind > kResizeInGroupsKind, GroupPlay::kResizes);
    return play_to_the_end(play, moves, calls);
  }
  if (kind >= kLoadsKind) {
    GroupPlay play(bytes, counts, nullptr, kind > kLoadsKind, GroupPlay::kLoads);
    return play_to_the_end(play, moves, calls);
  }
  if (kind >= kUncachedKind) {
    GroupPlay play(bytes, counts, nullptr, kind > kUncachedKind, GroupPlay::kUncached);
    return play_to_the_end(play, moves, calls);
  }
  if (kind >= kSlotsKind) {
    GroupPlay play(bytes, counts, nullptr, kind > kSlotsKind, GroupPlay::kSlots);
    return play_to_the_end(play, moves, calls);
  }
  if (kind >= kPoolKind) {
    PoolPlay play(bytes);
    const CallCount<PoolPlay> count_calls{play, calls};
    for (int i = 0; i < moves && play.move(); ++i) continue;
    return;
  }
  if (kind >= kGroupKind) {
    GroupPlay play(bytes, counts, nullptr, is_through_c(kind));
    return play_to_the_end(play, moves, calls);
  }
  Play play(bytes, kind % static_cast<int>(profiles().size()), counts, nullptr, is_through_c(kind));
  play_to_the_end(play, moves, calls);
}

}  // namespace blockmgr::testing
