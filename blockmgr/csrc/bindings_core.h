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

  // The core, for reading: not from inside a digest function, half-way through a call.
  const Sequences& idle() const {
    if (core.busy())
      throw Error(ErrorKind::kReentrancy, "the manager is inside another call; one at a time");
    return core;
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
