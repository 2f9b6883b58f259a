// One manager as a Python object: how it is made, shared and collected.
#pragma once

#include <memory>
#include <vector>

#include "bindings.h"
#include "sequences.h"

namespace blockmgr {

// One manager: the core, and buffers that the conversions of its calls reuse.
struct Core {
  Core(const Config& config, std::unique_ptr<PythonDigest> digester)
      : digest(digester.get()), core(config, std::move(digester)) {}

  // What the function reads off the core, with no call half-way through. It makes no Python object:
  // that may run the garbage collector, and with it code that calls the manager.
  template <class Read>
  auto read(Read read) const {
    const Held held(core.monitor());
    return read(core);
  }

  // After a call that may change something, finished or not: throws what its checks found. The call
  // is done, so a check that runs out of memory must not look like a call that was refused.
  void check() {
    try {
      if (std::vector<std::string> found = core.findings(); !found.empty())
        throw BrokenInvariants(std::move(found));
    } catch (const std::bad_alloc&) {
    }
  }

  PythonDigest* digest;  // the core's; nullptr without a prefix cache
  Sequences core;
  std::vector<Token> tokens;
  std::vector<std::int64_t> handles;
  std::vector<std::int64_t> parents;
};

void init_core(Core* self, nb::kwargs options);

// The block tables and sequence lengths as NumPy arrays that share the core's memory.
nb::object block_tables(Core& self);
nb::object seq_lens(Core& self);

// Every block, as columns by the names of blockmgr.BlockSnapshot.
nb::dict inspect_blocks(Core& self);

}  // namespace blockmgr
