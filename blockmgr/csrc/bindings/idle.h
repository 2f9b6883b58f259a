// What a manager or a pool evicts next, for Python.
#pragma once

#include <algorithm>
#include <utility>

#include "bindings/events.h"
#include "sequences/idle_front.h"

namespace blockmgr {

template <class T>
nb::object numbers_of(const std::vector<T>& values) {
  const auto count = static_cast<std::int64_t>(values.size());
  auto numbers = new_numbers<T>(count);
  std::copy(values.begin(), values.end(), numbers.get());
  return to_array(std::move(numbers), count);
}

// (block ids, a number of the content of each)
template <class Holder>
nb::tuple idle_front(Holder& self, nb::handle most) {
  const std::int64_t count = int_argument(most, "most");
  check_at_least("most", count, 0);
  const IdleFront front = self.read([&](const auto& core) { return idle_front(core, count); });
  return nb::make_tuple(numbers_of(front.blocks), numbers_of(front.contents));
}

// (block ids, a number of the content of each, tokens, namespace, extras by position, the level and
// the end of the retention of each, whether it is whole, (block ids, contents, groups, first tokens)
// of its parts)
template <class Holder>
nb::tuple prefix_of(Holder& self, nb::handle block) {
  const std::int64_t id = int_argument(block, "block");
  const CachedPrefix prefix = self.read([&](const auto& core) { return prefix_of(core, id); });
  nb::list until = made(nb::list());
  for (const double end : prefix.until) until.append(nb::float_(end));
  const CachedPrefix::Parts& own = prefix.parts;
  const nb::tuple parts =
      made(nb::make_tuple(numbers_of(own.blocks), numbers_of(own.contents), numbers_of(own.groups),
                          numbers_of(own.starts)));
  return nb::make_tuple(numbers_of(prefix.blocks), numbers_of(prefix.contents),
                        numbers_of(prefix.tokens), bytes_of(prefix.name),
                        extras_of(prefix.extras), numbers_of(prefix.levels), until,
                        prefix.is_whole, parts);
}

}  // namespace blockmgr
