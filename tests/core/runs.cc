#include "runs.h"

#include "play.h"
#include "pool_play.h"

namespace blockmgr::testing {

std::vector<std::string> kind_names() {
  std::vector<std::string> names;
  for (const Profile& profile : profiles()) names.emplace_back(profile.name);
  names.emplace_back("pool");
  return names;
}

std::uint8_t kind_of(const std::string& name) {
  for (std::size_t i = 0; i < profiles().size(); ++i)
    if (name == profiles()[i].name) return static_cast<std::uint8_t>(i);
  return kPoolKind;
}

namespace {

// Adds up on the way out, whatever way that is.
template <class Anything>
struct CallCount {
  const Anything& play;
  std::int64_t& calls;
  ~CallCount() { calls += play.calls(); }
};

}  // namespace

void run(Bytes& bytes, std::uint8_t kind, int moves, std::int64_t& calls, Counts* counts) {
  if (kind >= kPoolKind) {
    PoolPlay play(bytes);
    const CallCount<PoolPlay> count_calls{play, calls};
    for (int i = 0; i < moves && play.move(); ++i) continue;
    return;
  }
  Play play(bytes, kind % static_cast<int>(profiles().size()), counts);
  const CallCount<Play> count_calls{play, calls};
  try {
    for (int i = 0; i < moves && play.move(); ++i) continue;
    play.finish_up();
  } catch (const std::exception& violation) {
    throw Violation(std::string(violation.what()) + "\n  in " + play.config());
  }
}

}  // namespace blockmgr::testing
