// What a manager tells of sequences, blocks and counts.
#include <tuple>
#include <utility>

#include "bindings/manager.h"
#include "sequences/facts.h"
#include "sequences/inspect.h"

namespace blockmgr {
namespace {

template <class... Kinds>
auto read(auto what) {
  return reading<Sequences, Kinds...>(what);
}

nb::dict stats(Core& self) {
  const Facts facts = self.read([](const Sequences& core) { return facts_of(core); });
  nb::dict d = made(nb::dict());
  for (const auto& [name, value] : facts) d[name] = value;
  return d;
}

// Every block, as columns by the names of blockmgr.BlockSnapshot.
nb::dict inspect_blocks(Core& self) {
  const std::vector<BlockFacts> facts =
      self.read([](const Sequences& core) { return inspect(core); });
  nb::dict columns = made(nb::dict());
  const auto add = [&]<class T>(const char* name, T BlockFacts::* field) {
    columns[name] = column_of<T>(facts, field);
  };
  add("state", &BlockFacts::state);
  add("priority", &BlockFacts::priority);
  add("group", &BlockFacts::group);
  add("ref_count", &BlockFacts::ref_count);
  add("pins", &BlockFacts::pins);
  add("parent", &BlockFacts::parent);
  add("twin", &BlockFacts::twin);
  add("num_children", &BlockFacts::num_children);
  add("num_tokens", &BlockFacts::num_tokens);
  add("num_computed_tokens", &BlockFacts::num_computed);
  add("eviction_rank", &BlockFacts::eviction_rank);
  add("copy_source", &BlockFacts::copy_source);
  add("copy_tokens", &BlockFacts::copy_tokens);
  add("copy_taken", &BlockFacts::copy_taken);
  return columns;
}

nb::tuple view_groups(Core& self, nb::handle handle) {
  const std::int64_t h = handle_argument(handle);
  const GroupRow row = self.read([&](const Sequences& core) { return core.view_groups(h); });
  nb::list stops;
  for (const std::int64_t stop : row.stops)
    if (stop) stops.append(stop);
  return nb::make_tuple(row.stands(), stops);
}

nb::list cached_digests(Core& self, nb::handle handle) {
  const std::int64_t h = handle_argument(handle);
  return list_of(self.read([&](const Sequences& core) { return core.cached_digests(h); }),
                 static_cast<std::size_t>(self.core.nodes().digest_size));
}

nb::object session_digests(Core& self, nb::handle name, nb::handle session) {
  const std::string_view space = namespace_argument(name);
  const std::string_view own = session_argument(session, 1);
  const auto digests =
      self.read([&](const Sequences& core) { return core.session_digests(space, own); });
  if (!digests) return nb::none();
  return list_of(*digests, static_cast<std::size_t>(self.core.nodes().digest_size));
}

}  // namespace

void add_reads(nb::class_<Core>& type) {
  type.def("view", read<Number>([](const Sequences& core, Handle handle) {
             const Sequence& s = core.view(handle);
             const std::int64_t again = core.num_replayed(s);
             return std::tuple(s.num_tokens, core.computed(s), s.num_cached - again,
                               core.num_full_blocks(s), s.state == Sequence::kPreempted,
                               core.num_slots(s), again);
           }))
      .def("view_groups", view_groups)
      .def("tokens", read<Number>([](const Sequences& core, Handle handle) {
             const Array<Token> tokens(core.view(handle).num_tokens);
             core.copy_tokens(handle, tokens.numbers);
             return tokens.array;
           }))
      .def("block_ids", read<Number>([](const Sequences& core, Handle handle) {
             return array_of(core.block_ids(handle, 0));
           }))
      .def("block_ids_from",
           read<Number, Int<"start">>([](const Sequences& core, Handle handle, auto start) {
             check_at_least("start", start, 0);
             return core.block_ids(handle, start);
           }))
      .def("slot_mapping",
           read<Number, Int<"start">, Int<"stop">>(
               [](const Sequences& core, Handle handle, std::int64_t start, std::int64_t stop) {
                 core.check_table_slots(handle, start, stop);
                 const Array<std::int64_t> slots(stop - start);
                 core.slot_mapping(handle, start, stop, slots.numbers);
                 return slots.array;
               }))
      .def("group_slots", read<Number, Int<"start">, Int<"stop">, Plain<int>>(
                              [](const Sequences& core, Handle handle, std::int64_t start,
                                 std::int64_t stop, int group) {
                                core.check_group_slots(handle, group, start, stop);
                                const Array<std::int64_t> slots(stop - start);
                                core.group_slots(handle, group, start, stop, slots.numbers);
                                return slots.array;
                              }))
      .def("is_cached", read<Int<"block">>([](const Sequences& core, std::int64_t block) {
             return core.is_cached(block);
           }))
      .def("ref_count", read<Int<"block">>([](const Sequences& core, std::int64_t block) {
             return core.ref_count(block);
           }))
      .def("leaving", read<>([](const Sequences& core) {
             const std::vector<LeavingBlock> leaving = core.leaving();
             return std::tuple(column_of<std::int32_t>(leaving, &LeavingBlock::block),
                               column_of<std::int64_t>(leaving, &LeavingBlock::handle));
           }))
      .def("cached_digests", cached_digests)
      .def("session_digests", session_digests)
      .def("handles", read<>([](const Sequences& core) { return core.handles(); }))
      .def("stats", stats)
      .def("recent_hits", read<>([](const Sequences& core) {
             const auto sums = core.recent_hits.sums();
             return std::tuple(sums.requests, sums.query_tokens, sums.hit_tokens);
           }))
      .def("blocks", inspect_blocks);
}

}  // namespace blockmgr
