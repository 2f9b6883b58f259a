// Events as Python sees them: columns, handed to the class that keeps them.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "identity/event_columns.h"
#include "sequences/handing.h"

namespace blockmgr {

nb::object bytes_of(std::string_view bytes);
// A dict of the bytes by block.
nb::dict extras_of(const std::vector<std::pair<std::int64_t, std::string>>& extras);

// make(digest size, kinds, numbers of blocks, has_parent, groups, parents, digests, tokens, extras,
// namespaces, steps, number lost), with digests as bytes and extras as a dict by stored block.
nb::object made_of_columns(const EventColumns& columns, nb::handle make);

// Events are passed on before they are dropped: making objects can fail, and can run code that
// calls the holder and so adds others.
template <class Holder, class Read>
nb::object pass_on_events(Holder& self, nb::handle make, Read read) {
  return hand_over_events(
      self.core, read, [&](const EventColumns& columns) { return made_of_columns(columns, make); });
}

template <class Holder>
nb::object take_events(Holder& self, nb::handle make) {
  return pass_on_events(self, make, [](const auto& core) { return core.events(); });
}

template <class Holder>
nb::object take_snapshot(Holder& self, nb::handle make) {
  return pass_on_events(self, make, [](const auto& core) { return core.residents(); });
}

// The log keeps its events: a reader that has them already and applies them again ends in the same
// state.
template <class Holder>
nb::object resident_events(Holder& self, nb::handle make) {
  return made_of_columns(self.read([](const auto& core) { return core.residents(); }), make);
}

}  // namespace blockmgr
