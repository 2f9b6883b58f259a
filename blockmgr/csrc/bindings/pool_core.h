// One pool as a Python object.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/digest.h"
#include "bindings/policy.h"
#include "sequences/block_pool.h"

namespace blockmgr {

// One pool: the core, and buffers that the conversions of its calls reuse.
struct PoolCore {
  PoolCore(const StoreConfig& config, DigestOption option, const nb::list& python_policies)
      : digest(option.python),
        core(config, std::move(option.digester), policies.maker(python_policies)) {}

  // Calls a function that reads the core, with no call half-way through. It makes no Python object:
  // that may run the garbage collector, and with it code that calls the pool.
  template <class Read>
  auto read(Read read) const {
    const Held held(core.monitor());
    return read(core);
  }

  // Fixed at construction.
  Inside inside() const {
    return digest || !policies.all.empty() ? Inside::kPython : Inside::kNative;
  }

  // Tokens that all blocks hold: more are never looked at, and room for more is not kept.
  std::int64_t most_tokens() const {
    return static_cast<std::int64_t>(core.nodes().num_blocks) * core.nodes().block_size;
  }

  PythonDigest* digest;     // the core's, if it calls Python
  PythonPolicies policies;  // the core's
  BlockPool core;
  std::vector<Token> tokens;
  std::vector<std::int64_t> ids;
};

}  // namespace blockmgr
