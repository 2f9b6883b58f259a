// The Python face of reads: sequences, their slots and tokens, and the counts of a manager.
#include <algorithm>
#include <tuple>
#include <utility>

#include "bindings/core.h"
#include "sequences/facts.h"

namespace blockmgr {

nb::object slot_mapping(Core& self, nb::handle handle, nb::handle start, nb::handle stop) {
  const std::int64_t h = handle_argument(handle);
  const std::int64_t first = int_argument(start, "start");
  const std::int64_t last = int_argument(stop, "stop");
  auto slots = self.read([&](const Sequences& core) {
    core.check_table_slots(h, first, last);
    auto numbers = new_numbers<std::int64_t>(last - first);
    core.slot_mapping(h, first, last, numbers.get());
    return numbers;
  });
  return to_array(std::move(slots), last - first);
}

nb::object group_slots(Core& self, nb::handle handle, nb::handle start, nb::handle stop, int g) {
  const std::int64_t h = handle_argument(handle);
  const std::int64_t first = int_argument(start, "start");
  const std::int64_t last = int_argument(stop, "stop");
  auto slots = self.read([&](const Sequences& core) {
    core.check_group_slots(h, g, first, last);
    auto numbers = new_numbers<std::int64_t>(last - first);
    core.group_slots(h, g, first, last, numbers.get());
    return numbers;
  });
  return to_array(std::move(slots), last - first);
}

nb::tuple view(Core& self, nb::handle handle) {
  const std::int64_t h = handle_argument(handle);
  const auto facts = self.read([&](const Sequences& core) {
    const Sequence& s = core.view(h);
    const std::int64_t again = core.num_replayed(s);
    return std::make_tuple(s.num_tokens, core.computed(s), s.num_cached - again,
                           core.num_full_blocks(s), s.state == Sequence::kPreempted,
                           core.num_slots(s), again);
  });
  return std::apply([](auto... fact) { return nb::make_tuple(fact...); }, facts);
}

nb::object block_ids(Core& self, nb::handle handle) {
  const std::int64_t h = handle_argument(handle);
  const auto ids = self.read([&](const Sequences& core) { return core.block_ids(h, 0); });
  const auto count = static_cast<std::int64_t>(ids.size());
  auto numbers = new_numbers<std::int32_t>(count);
  std::copy(ids.begin(), ids.end(), numbers.get());
  return to_array(std::move(numbers), count);
}

nb::object tokens_of(Core& self, nb::handle handle) {
  const std::int64_t h = handle_argument(handle);
  std::int64_t count = 0;
  auto tokens = self.read([&](const Sequences& core) {
    count = core.view(h).num_tokens;
    auto numbers = new_numbers<Token>(count);
    core.copy_tokens(h, numbers.get());
    return numbers;
  });
  return to_array(std::move(tokens), count);
}

nb::tuple view_groups(Core& self, nb::handle handle) {
  const std::int64_t h = handle_argument(handle);
  const GroupRow row = self.read([&](const Sequences& core) { return core.view_groups(h); });
  nb::list stops;
  for (const std::int64_t stop : row.stops)
    if (stop) stops.append(stop);
  return nb::make_tuple(row.stands, stops);
}

nb::dict stats(Core& self) {
  const Facts facts = self.read([](const Sequences& core) { return facts_of(core); });
  nb::dict d = made(nb::dict());
  for (const auto& [name, value] : facts) d[name] = value;
  return d;
}

nb::tuple recent_hits(Core& self) {
  const auto sums = self.read([](const Sequences& core) { return core.recent_hits.sums(); });
  return nb::make_tuple(sums.requests, sums.query_tokens, sums.hit_tokens);
}

std::vector<Handle> handles(Core& self) {
  return self.read([](const Sequences& core) { return core.handles(); });
}

int num_available(Core& self) {
  return self.read([](const Sequences& core) { return core.pool().available(); });
}

std::size_t memory_usage(Core& self) {
  const std::size_t scratch = self.tokens.capacity() * sizeof(Token) +
                              (self.handles.capacity() + self.parents.capacity()) * sizeof(Handle);
  return scratch + self.read([](const Sequences& core) { return core.memory(); });
}

std::vector<std::string> violations(Core& self) {
  return self.read([](const Sequences& core) { return core.violations(); });
}

nb::object policy_error(Core& self) {
  return self.policies.error();
}

}  // namespace blockmgr
