// Functions of the core that only tests need: a module of its own, which no wheel has.
//
// It does not check the numbers that tests pass.
#include <cstring>
#include <vector>

#include "bindings/holder.h"
#include "memory/buckets.h"
#include "memory/tag_table.h"

namespace blockmgr {

namespace {

template <class Own>
nb::bytes fingerprint(Holder<Own>& self) {
  const std::string facts = self.read([](const Own& core) { return core.fingerprint(); });
  return nb::bytes(facts.data(), facts.size());
}

// Steps that searches for victims have taken.
std::int64_t victim_steps(Core& self) {
  return self.read([](const Sequences& core) {
    std::int64_t steps = 0;
    for (int i = 0; i < core.pool().num_partitions(); ++i)
      if (const Policy* policy = core.pool().policy(i)) steps += policy->num_steps();
    return steps;
  });
}

// The most places in a row that a search goes past, in a table of buckets and in one of tags that
// hold these digests of 16 bytes each.
nb::tuple longest_runs(const nb::bytes& digests) {
  const auto* const data = reinterpret_cast<const std::uint8_t*>(digests.c_str());
  const std::size_t count = digests.size() / 16;
  std::vector<std::uint64_t> tags(2 * count);
  std::memcpy(tags.data(), data, 16 * count);
  Buckets buckets(static_cast<int>(count));
  TagTable table(count, tags.data(), 16);
  for (std::size_t i = 0; i < count; ++i) {
    buckets.insert(static_cast<NodeId>(i), data + 16 * i);
    table.insert(static_cast<std::int32_t>(i));
  }
  return nb::make_tuple(buckets.longest_run(), table.longest_run());
}

}  // namespace

NB_MODULE(_core_testing, m) {
  m.doc() = "What only tests need of the native core.";
  m.def("fingerprint", fingerprint<Sequences>);
  m.def("fingerprint", fingerprint<BlockPool>);
  m.def("victim_steps", victim_steps);
  m.def("longest_runs", longest_runs);
}

}  // namespace blockmgr
