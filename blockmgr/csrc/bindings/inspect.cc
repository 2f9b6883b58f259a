// State for people and tools to look at, as NumPy arrays.
#include "bindings/core.h"
#include "sequences/inspect.h"

namespace blockmgr {

// The facts are complete before any array is made: that may run the garbage collector, and with it
// code that calls the manager.
nb::dict inspect_blocks(Core& self) {
  const std::vector<BlockFacts> facts =
      self.read([](const Sequences& core) { return inspect(core); });
  const auto count = static_cast<std::int64_t>(facts.size());
  nb::dict columns = made(nb::dict());
  const auto add = [&]<class T>(const char* name, T BlockFacts::* field) {
    auto numbers = new_numbers<T>(count);
    for (std::size_t i = 0; i < facts.size(); ++i) numbers[i] = facts[i].*field;
    columns[name] = to_array(std::move(numbers), count);
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

nb::tuple explained(const ExplainResult& result) {
  const auto count = static_cast<std::int64_t>(result.missed.size());
  const auto column = [&]<class T, class Field>(T, Field MissedBlock::* field) {
    auto numbers = new_numbers<T>(count);
    for (std::size_t i = 0; i < result.missed.size(); ++i)
      numbers[i] = static_cast<T>(result.missed[i].*field);
    return to_array(std::move(numbers), count);
  };
  return nb::make_tuple(result.num_cached, result.num_partial, result.diverges_at,
                        column(std::uint8_t{}, &MissedBlock::reason),
                        column(std::int64_t{}, &MissedBlock::stop),
                        column(std::int64_t{}, &MissedBlock::more_blocks),
                        column(std::int64_t{}, &MissedBlock::evicted_ago),
                        column(std::int64_t{}, &MissedBlock::group));
}

}  // namespace blockmgr
