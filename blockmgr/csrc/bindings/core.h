// One manager as a Python object: how it is made, shared and collected.
#pragma once

#include <memory>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/digest.h"
#include "bindings/policy.h"
#include "sequences/sequences.h"

namespace blockmgr {

// One manager: the core, and buffers that the conversions of its calls reuse.
struct Core {
  // python_policies: eviction policies written in Python; empty: the config names one.
  Core(const Config& config, DigestOption option, const nb::list& python_policies)
      : digest(option.python),
        core(config, std::move(option.digester), policies.maker(python_policies)) {}

  // Calls a function that reads the core, with no call half-way through. It makes no Python object:
  // that may run the garbage collector, and with it code that calls the manager.
  template <class Read>
  auto read(Read read) const {
    const Held held(core.monitor());
    return read(core);
  }

  // Fixed at construction.
  Inside inside() const {
    return digest || !policies.all.empty() ? Inside::kPython : Inside::kNative;
  }

  PythonDigest* digest;            // the core's, if it calls Python
  PythonPolicies policies;  // the core's
  Sequences core;
  std::vector<Token> tokens;
  std::vector<std::int64_t> handles;
  std::vector<std::int64_t> parents;
};

// options: a dict, because nanobind does not check that it had the memory to make one of keywords.
void init_core(Core* self, nb::dict options);

// The block tables and sequence lengths as NumPy arrays that share the core's memory.
nb::object block_tables(Core& self);
nb::object seq_lens(Core& self);
// int32[groups, max_seqs, row_width], of all groups beside that of block_tables.
nb::object group_tables(Core& self);

// explain: (num_cached, num_partial, diverges_at, reasons, stops, more_blocks, evicted_ago), the
// last four one for each missed block.
nb::tuple explained(const ExplainResult& result);
// bindings/holding.cc: calls by block id.
void acquire_blocks(Core& self, nb::handle blocks);
void release_blocks(Core& self, nb::handle blocks);
void touch_blocks(Core& self, nb::handle blocks);
std::int64_t retire_namespace(Core& self, nb::handle name);
std::int64_t forget_blocks(Core& self, nb::handle blocks);
std::int64_t shrink_pool(Core& self, nb::handle num_blocks);
void grow_pool(Core& self, nb::handle num_blocks);
// (blocks, handles)
nb::tuple leaving_blocks(Core& self);
bool is_cached(Core& self, nb::handle block);
nb::object contents_of(Core& self, nb::handle blocks);
std::int64_t ref_count(Core& self, nb::handle block);
// The blocks of a sequence from a logical one on, as a list.
nb::list block_ids_from(Core& self, nb::handle handle, nb::handle start);

// bindings/naming.cc: calls by digest.
nb::object retain_named(Core& self, const nb::bytes& digests, int size, bool leading,
                        nb::handle name, int level, double ttl, nb::handle max_blocks);
nb::object pin_named(Core& self, const nb::bytes& digests, int size, bool leading,
                     nb::handle name, nb::handle max_blocks);
nb::list cached_digests(Core& self, nb::handle handle);
nb::object session_digests(Core& self, nb::handle name, nb::handle session);

// bindings/reads.cc: reads of sequences, and of the manager.
nb::object slot_mapping(Core& self, nb::handle handle, nb::handle start, nb::handle stop);
nb::object group_slots(Core& self, nb::handle handle, nb::handle start, nb::handle stop, int g);
// (num_tokens, num_computed_tokens, num_cached_tokens, num_blocks, is_preempted)
nb::tuple view(Core& self, nb::handle handle);
// (its states stand, where a forward should stop)
nb::tuple view_groups(Core& self, nb::handle handle);
nb::object block_ids(Core& self, nb::handle handle);
nb::object tokens_of(Core& self, nb::handle handle);
nb::dict stats(Core& self);
// (requests, query_tokens, hit_tokens)
nb::tuple recent_hits(Core& self);
std::vector<Handle> handles(Core& self);
int num_available(Core& self);
std::size_t memory_usage(Core& self);
std::vector<std::string> violations(Core& self);
// The first error of an eviction policy written in Python, or None.
nb::object policy_error(Core& self);

// Every block, as columns by the names of blockmgr.BlockSnapshot.
nb::dict inspect_blocks(Core& self);

}  // namespace blockmgr
