// Events as columns, copied out of the index: what its log holds, or what a mirror that knows
// nothing has to be told.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "events/log.h"
#include "identity/index.h"

namespace blockmgr {

struct EventColumns {
  std::int64_t version = 0;  // of the log, when this was read off it
  std::int64_t num_lost = 0;
  int digest_size = 0;
  std::vector<EventRun> runs;
  std::vector<std::uint8_t> digests;                         // of each block of each run
  std::vector<std::uint8_t> parents;                         // one a run, zeros if it has none
  std::vector<Token> tokens;                                 // of each block of each stored run
  std::vector<std::pair<std::int64_t, std::string>> extras;  // by stored block
  std::vector<std::string> names;                            // the namespace of each run
  std::vector<std::string> sessions;  // the session of each run; none at all, if there are none
};

// The events that wait in the log; empty without a log.
EventColumns pending_events(const PrefixIndex& index, const Nodes& nodes);
// Parts beside the nodes' own blocks: how many each node has, of which group, in the order of the
// engine, each is, and whether events tell of that of a full block.
struct PartsTold {
  int num_parts = 0;
  std::function<int(int part)> group_of;
  std::function<bool(int part, NodeId n)> is_told;
};
// A clearing, and then every block that can be found by its digest, parents before children, and
// the parts of each after it.
EventColumns resident_events(const PrefixIndex& index, const Nodes& nodes, std::int64_t step,
                             const PartsTold& parts = {});

}  // namespace blockmgr
