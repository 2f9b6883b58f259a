// What a caller takes out of a log: it is dropped once the caller has it.
#pragma once

#include <cstdint>

#include "identity/event_columns.h"
#include "sequences/monitor.h"

namespace blockmgr {

// make(columns) can fail, and can run code that calls the core and so adds events: then all are
// read again. read(core): the columns.
template <class Core, class Read, class Make>
auto hand_over_events(Core& core, Read read, Make make) {
  for (;;) {
    EventColumns columns = [&] {
      const Held held(core.monitor());
      return read(core);
    }();
    const std::int64_t version = columns.version;
    auto result = make(columns);
    if (core.drop_events(version)) return result;
  }
}

// The same for entries of tables that deduplication changed.
template <class Core, class Make>
auto hand_over_remaps(Core& core, Make make) {
  for (;;) {
    const auto remaps = core.remaps();
    auto result = make(remaps.records);
    if (core.drop_remaps(remaps.version)) return result;
  }
}

}  // namespace blockmgr
