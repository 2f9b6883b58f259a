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

std::int64_t run(Bytes& bytes, std::uint8_t kind, int moves, Counts* counts) {
  if (kind >= kPoolKind) {
    PoolPlay play(bytes);
    for (int i = 0; i < moves && play.move(); ++i) continue;
    return play.calls();
  }
  Play play(bytes, kind % static_cast<int>(profiles().size()), counts);
  try {
    for (int i = 0; i < moves && play.move(); ++i) continue;
    play.finish_up();
  } catch (const std::exception& violation) {
    throw Violation(std::string(violation.what()) + "\n  in " + play.config());
  }
  return play.calls();
}

}  // namespace blockmgr::testing
