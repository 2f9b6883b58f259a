// Replays of traces of ids, the curve of LRU and the optimum. Columns of numbers come as the bytes
// of native 64-bit ones: their caller is blockmgr.lab, which has them as arrays.
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/digest.h"
#include "memory/errors.h"
#include "replays/future.h"
#include "replays/id_replay.h"
#include "replays/runs.h"
#include "replays/stack_pass.h"

namespace blockmgr {
namespace {

template <class T>
std::vector<T> column(const nb::bytes& bytes, const char* name) {
  if (bytes.size() % sizeof(T))
    throw Error(ErrorKind::kValue, std::string(name) + " must be " + std::to_string(sizeof(T)) +
                                       " bytes each, got " + std::to_string(bytes.size()) +
                                       " bytes");
  std::vector<T> numbers(bytes.size() / sizeof(T));
  if (!numbers.empty()) std::memcpy(numbers.data(), bytes.c_str(), bytes.size());
  return numbers;
}

int number(nb::handle value, const char* name, std::int64_t low, std::int64_t high) {
  return static_cast<int>(int_argument(value, name, low, high));
}

void init_trace(IdTrace* self, nb::handle block_size, nb::handle tokens_per_id, nb::handle words,
                const nb::list& spaces, const nb::bytes& requests, const nb::bytes& ids) {
  std::vector<std::string> names;
  for (nb::handle space : spaces) names.emplace_back(bytes_argument(space, "spaces", 0));
  new (self) IdTrace(number(block_size, "block_size", 1, kMaxBlockSize),
                     number(tokens_per_id, "tokens_per_id", 1, INT32_MAX),
                     number(words, "words", 1, 64), std::move(names),
                     column<IdRequest>(requests, "requests"), column<std::uint64_t>(ids, "ids"));
}

nb::tuple runs_of(const IdTrace& self, const nb::bytes& limits) {
  std::vector<std::int64_t> ends;
  const IdRuns runs = self.runs(column<std::int64_t>(limits, "limits"), ends);
  return nb::make_tuple(array_of(runs.parent), array_of(runs.length), array_of(runs.end),
                        array_of(ends));
}

// A trace with the digests of its blocks.
struct Replays {
  Replays(nb::object owner, const nb::dict& digest)
      : owner(std::move(owner)), trace(*nb::inst_ptr<IdTrace>(this->owner)) {
    digester = digest_option(digest, static_cast<int>(trace.block_size())).digester;
    digests = trace.digests(*digester);
  }
  nb::object owner;
  const IdTrace& trace;
  std::unique_ptr<Digester> digester;
  std::vector<std::uint8_t> digests;
};

void init_replays(Replays* self, nb::handle trace, const nb::dict& digest) {
  if (!nb::isinstance<IdTrace>(trace))
    raise(PyExc_TypeError, "trace must be an IdTrace, got " + kind_of(trace));
  new (self) Replays(nb::borrow(trace), digest);
}

struct Replay {
  Replay(nb::object owner, const Config& config) : owner(std::move(owner)) {
    const Replays& replays = *nb::inst_ptr<Replays>(this->owner);
    replay = std::make_unique<IdReplay>(replays.trace, replays.digests, *replays.digester, config);
  }
  nb::object owner;
  std::unique_ptr<IdReplay> replay;
};

void init_replay(Replay* self, nb::handle replays, nb::handle num_blocks, nb::handle max_seqs,
                 nb::handle row_width, nb::handle hit_rate_window, bool remap,
                 const std::string& eviction) {
  if (!nb::isinstance<Replays>(replays))
    raise(PyExc_TypeError, "replays must be IdReplays, got " + kind_of(replays));
  Config config;
  config.block_size = 1;
  config.num_blocks = number(num_blocks, "num_blocks", 1, kMaxIds);
  config.max_seqs = number(max_seqs, "max_seqs", 1, INT32_MAX);
  config.row_width = number(row_width, "row_width", 1, kMaxIds);
  config.hit_rate_window = number(hit_rate_window, "hit_rate_window", 0, INT32_MAX);
  config.remap = remap;
  config.eviction = eviction;
  new (self) Replay(nb::borrow(replays), config);
}

nb::dict counts(const Replay& self) {
  const ReplayCounts n = self.replay->counts();
  nb::dict d;
  d["rejected"] = n.rejected;
  d["waited"] = n.waited;
  d["wait_ms"] = n.wait_ms;
  d["query_tokens"] = n.query_tokens;
  d["hit_tokens"] = n.hit_tokens;
  d["evictions"] = n.evictions;
  d["deduplicated"] = n.deduplicated;
  d["peak_used_blocks"] = n.peak_used_blocks;
  d["steps"] = n.steps;
  d["memory_bytes"] = self.replay->manager_memory();
  return d;
}

// Runs of a trace, and results computed from them.
struct RunPaths {
  Runs runs;
  std::unique_ptr<Future> future;  // once it was asked for
};

void init_paths(RunPaths* self, nb::handle block_size, const nb::bytes& parent,
                const nb::bytes& length, const nb::bytes& end, const nb::bytes& requests,
                const nb::bytes& ends) {
  new (self) RunPaths{
      Runs(number(block_size, "block_size", 1, INT32_MAX), column<std::int64_t>(parent, "parent"),
           column<std::int64_t>(length, "length"), column<std::int64_t>(end, "end"),
           column<RunRequest>(requests, "requests"), column<std::int64_t>(ends, "ends")),
      nullptr};
}

nb::tuple most_hits(RunPaths& self, nb::handle num_blocks, nb::handle max_seqs) {
  const std::int64_t blocks = int_argument(num_blocks, "num_blocks");
  const std::int64_t rows = int_argument(max_seqs, "max_seqs");
  if (!self.future) self.future = std::make_unique<Future>(self.runs);
  const Future::Hits hits = self.future->most_hits(blocks, rows);
  return nb::make_tuple(hits.blocks, hits.tokens);
}

nb::dict stack_pass(const RunPaths& self, nb::handle max_seqs) {
  StackPass pass(self.runs, int_argument(max_seqs, "max_seqs"));
  pass.run();
  nb::dict d;
  d["first"] = array_of(pass.hits().first);
  d["last"] = array_of(pass.hits().last);
  d["blocks"] = array_of(pass.hits().blocks);
  d["tokens"] = array_of(pass.hits().tokens);
  d["peak"] = pass.peak();
  return d;
}

}  // namespace

void bind_replays(nb::module_& m) {
  nb::class_<IdTrace>(m, "IdTrace", "A trace of ids; for blockmgr.lab.by_ids.")
      .def("__init__", init_trace)
      .def("num_names", &IdTrace::num_names)
      .def("runs", runs_of);
  nb::class_<Replays>(m, "IdReplays", "A trace of ids with the digests of its blocks.")
      .def("__init__", init_replays);
  nb::class_<Replay>(m, "IdReplay", "One replay of a trace of ids.")
      .def("__init__", init_replay)
      .def("run",
           [](Replay& self, nb::handle num_requests) {
             return self.replay->run(int_argument(num_requests, "num_requests"));
           })
      .def("counts", counts);
  nb::class_<RunPaths>(m, "RunPaths", "A trace as runs; for blockmgr.lab.runs.")
      .def("__init__", init_paths)
      .def("most_hits", most_hits)
      .def("stack_pass", stack_pass);
}

}  // namespace blockmgr
