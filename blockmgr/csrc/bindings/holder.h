// A manager or a pool as a Python object: how it is made and collected, how its calls are made, and
// the calls that both have.
#pragma once

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/digest.h"
#include "bindings/policy.h"
#include "sequences/block_pool.h"
#include "sequences/handing.h"
#include "sequences/idle_front.h"
#include "sequences/sequences.h"

namespace blockmgr {

// The options that blockmgr.config has checked, but for the digest and policies written in Python.
template <class Options>
Options options_of(const nb::dict& given);
extern template StoreConfig options_of(const nb::dict& given);
extern template Config options_of(const nb::dict& given);

// The core, and buffers that the conversions of its calls reuse.
template <class Own>
struct Holder {
  using Options = std::conditional_t<std::is_same_v<Own, Sequences>, Config, StoreConfig>;

  // given: a dict, because nanobind does not check that it had the memory to make one of keywords.
  explicit Holder(const nb::dict& given) : Holder(given, options_of<Options>(given)) {}
  Holder(const nb::dict& given, const Options& options)
      : Holder(options, digest_option(given, options.block_size),
               nb::cast<nb::list>(given["python_policies"])) {}
  Holder(const Options& options, DigestOption option, const nb::list& python_policies)
      : digest(option.python),
        core(options, std::move(option.digester), policies.maker(python_policies)) {}

  // Calls a function that reads the core, with no call half-way through. It makes no Python object
  // but arrays: others may run the garbage collector, and with it code that calls the holder.
  template <class Read>
  auto read(Read read) const {
    const Held held(core.monitor());
    return read(core);
  }

  // Fixed at construction.
  Inside inside() const {
    return digest || !policies.all.empty() ? Inside::kPython : Inside::kNative;
  }

  // For the garbage collector: a digest function or a policy may refer to the object that calls it.
  static int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    if (!nb::inst_ready(self)) return 0;
    const Holder* own = nb::inst_ptr<Holder>(self);
    if (own->digest) Py_VISIT(own->digest->function().ptr());
    for (const PythonPolicy* policy : own->policies.all) {
      Py_VISIT(policy->policy().ptr());
      Py_VISIT(policy->held_error().ptr());
    }
    return 0;
  }
  static int clear(PyObject* self) {
    Holder* own = nb::inst_ptr<Holder>(self);
    if (own->digest) own->digest->clear_function();
    for (PythonPolicy* policy : own->policies.all) policy->clear();
    return 0;
  }
  static inline PyType_Slot slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                                       {Py_tp_clear, reinterpret_cast<void*>(clear)},
                                       {0, nullptr}};

  PythonDigest* digest;     // the core's, if it calls Python
  PythonPolicies policies;  // the core's
  Own core;
  std::vector<Token> tokens;
  std::vector<std::int64_t> ids;  // handles or blocks
  std::vector<std::int64_t> parents;
};

// Kinds of arguments: how each is given, and read. All but the first few are named in messages.
template <class Given_, auto kRead>
struct Kind {
  using Given = Given_;
  static auto read(const Given& given) { return kRead(given); }
};
template <class T>
struct Plain {
  using Given = Exact<T>;
  static T read(Given given) { return given; }
};
template <std::size_t kSize>
struct Name {
  consteval Name(const char (&name)[kSize]) { std::copy_n(name, kSize, text); }  // NOLINT
  char text[kSize];
};
template <Name name>
struct Int {
  using Given = nb::handle;
  static std::int64_t read(Given given) { return int_argument(given, name.text); }
};
template <Name name>
struct Flag {
  using Given = nb::handle;
  static bool read(Given given) { return bool_argument(given, name.text); }
};
inline std::string_view namespace_argument(nb::handle name) {
  return bytes_argument(name, "namespace", 0);
}
inline std::string_view named_session(nb::handle name) { return session_argument(name, 1); }
using Number = Kind<nb::handle, handle_argument>;  // of a sequence
using PinNumber = Kind<nb::handle, pin_argument>;
using Ticket = Kind<nb::handle, ticket_argument>;
using StepTicket = Kind<nb::handle, step_argument>;
using Space = Kind<nb::handle, namespace_argument>;
using SessionName = Kind<nb::handle, named_session>;

// Arguments are read from the first to the last.
template <class... Kinds>
auto read_arguments(const typename Kinds::Given&... given) {
  return std::tuple<decltype(Kinds::read(given))...>{Kinds::read(given)...};
}

// A pool has no debug level.
template <class Call>
auto with_findings(BlockPool&, const Call& call) {
  return call();
}

// A method of the core as a function for Python, with the checks of the manager's debug level after
// it, whether it finishes or throws.
template <class Own, auto method, class... Kinds>
struct Called {
  using Result = decltype(std::invoke(method, std::declval<Own&>(),
                                      Kinds::read(std::declval<typename Kinds::Given>())...));
  static Result run(Holder<Own>& self, typename Kinds::Given... given) {
    return with_findings(self.core, [&] {
      return std::apply(
          [&](const auto&... values) { return std::invoke(method, self.core, values...); },
          read_arguments<Kinds...>(given...));
    });
  }
};
// Likewise, and returns the number that the core announces before it commits; None: there was none.
template <class Own, auto method, class... Kinds>
struct Announced {
  static nb::object run(Holder<Own>& self, typename Kinds::Given... given) {
    return with_findings(self.core, [&] {
      nb::object number = nb::none();
      std::apply(
          [&](const auto&... values) {
            std::invoke(method, self.core, values..., announce_to<std::int64_t>(number));
          },
          read_arguments<Kinds...>(given...));
      return number;
    });
  }
};

// A function that reads the core: read(core, arguments). Makes a function for Python of it.
template <class Own, class... Kinds, class Read>
auto reading(Read) {
  return [](Holder<Own>& self, typename Kinds::Given... given) {
    const auto values = read_arguments<Kinds...>(given...);
    return self.read([&](const Own& core) {
      return std::apply([&](const auto&... each) { return Read()(core, each...); }, values);
    });
  };
}

// Block ids, read. A block may appear as often as it is held, so a list may have any length; but no
// room is kept for more ids than there are blocks.
template <class Own>
Ints ids_of(Holder<Own>& self, nb::handle blocks) {
  return {blocks, "blocks", self.ids, self.core.nodes().num_blocks};
}

// A call of the core on blocks: method(ids, count, other arguments), which are read first.
template <class Own, auto method, class... Kinds>
auto on_blocks(Holder<Own>& self, nb::handle blocks, typename Kinds::Given... given) {
  return with_findings(self.core, [&] {
    const auto values = read_arguments<Kinds...>(given...);
    const Ints ids = ids_of(self, blocks);
    return std::apply(
        [&](const auto&... each) {
          return std::invoke(method, self.core, ids.data(), ids.size(), each...);
        },
        values);
  });
}

// A fact of each of these blocks: fact(core, id, position).
template <class Own, class T, class Fact>
auto facts_of_blocks(Fact) {
  return [](Holder<Own>& self, nb::handle blocks) -> nb::object {
    const Ints ids = ids_of(self, blocks);
    const Array<T> result(ids.size());
    self.read([&](const Own& core) {
      for (std::int64_t i = 0; i < ids.size(); ++i)
        result.numbers[i] = static_cast<T>(Fact()(core, ids.data()[i], i));
    });
    return result.array;
  };
}

// Takes the copies of a core: make(ticket, sources, destinations, numbers of tokens), and with
// groups the group of each copy and blocks to fill with zeros. What cannot be passed on has not
// been taken.
template <class Own>
nb::object take_copies(Holder<Own>& self, nb::handle make) {
  return with_findings(self.core, [&] {
    std::vector<BlockCopy> copies;
    const std::int64_t ticket = self.core.take_copies(copies);
    try {
      const auto end = std::ranges::find_if(copies, &BlockCopy::is_zeros);
      const std::vector<BlockCopy> zeros(end, copies.end());
      copies.erase(end, copies.end());
      const auto column = [&](auto field) { return column_of<std::int32_t>(copies, field); };
      return in_python([&]() -> nb::object {
        if (self.core.has_groups())
          return make(ticket, column(&BlockCopy::source), column(&BlockCopy::destination),
                      column(&BlockCopy::num_tokens), column(&BlockCopy::group),
                      column_of<std::int32_t>(zeros, &BlockCopy::destination));
        return make(ticket, column(&BlockCopy::source), column(&BlockCopy::destination),
                    column(&BlockCopy::num_tokens));
      });
    } catch (...) {
      self.core.return_copies(ticket);
      throw;
    }
  });
}

// make(digest size, kinds, numbers of blocks, has_parent, groups, parents, digests, tokens, extras,
// namespaces, sessions, steps, number lost), with digests as bytes and extras as a dict by stored
// block.
nb::object made_of_columns(const EventColumns& columns, nb::handle make);
// A dict of the bytes by block.
nb::dict extras_of(const std::vector<std::pair<std::int64_t, std::string>>& extras);

// Events are passed on before they are dropped: making objects can fail, and can run code that
// calls the holder and so adds others.
template <class Own, auto read>
nb::object take_events(Holder<Own>& self, nb::handle make) {
  return hand_over_events(
      self.core, [](const Own& core) { return std::invoke(read, core); },
      [&](const EventColumns& columns) { return made_of_columns(columns, make); });
}

// The log keeps its events: a reader that has them already and applies them again ends in the same
// state.
template <class Own>
nb::object resident_events(Holder<Own>& self, nb::handle make) {
  return made_of_columns(self.read([](const Own& core) { return core.residents(); }), make);
}

// (block ids, a number of the content of each)
template <class Own>
nb::tuple idle_front_of(Holder<Own>& self, nb::handle most) {
  const std::int64_t count = int_argument(most, "most");
  check_at_least("most", count, 0);
  const IdleFront front = self.read([&](const Own& core) { return idle_front(core, count); });
  return nb::make_tuple(array_of(front.blocks), array_of(front.contents));
}

// The fields of blocks.CachedPrefix: (block ids, a number of the content of each, tokens,
// namespace, extras by position, the level and the end of the retention of each, whether it is
// whole, (block ids, contents, groups, first tokens) of its parts)
template <class Own>
nb::tuple cached_prefix(Holder<Own>& self, nb::handle block) {
  const std::int64_t id = int_argument(block, "block");
  const CachedPrefix prefix = self.read([&](const Own& core) { return prefix_of(core, id); });
  nb::list until = made(nb::list());
  for (const double end : prefix.until) until.append(nb::float_(end));
  const CachedPrefix::Parts& own = prefix.parts;
  const nb::tuple parts = made(nb::make_tuple(array_of(own.blocks), array_of(own.contents),
                                              array_of(own.groups), array_of(own.starts)));
  return nb::make_tuple(array_of(prefix.blocks), array_of(prefix.contents), array_of(prefix.tokens),
                        bytes_of(prefix.name), extras_of(prefix.extras), array_of(prefix.levels),
                        until, prefix.is_whole, parts);
}

// The blocks of the partition of a namespace, by what they are in.
template <class Own>
nb::dict quota_usage(Holder<Own>& self, nb::handle name) {
  const std::string_view bytes = namespace_argument(name);
  using Fact = std::pair<const char*, std::int64_t>;
  const auto facts = self.read([&](const Own& core) {
    const Pool::Partition& own = core.quota(bytes);
    const int limit = own.capacity - own.num_withheld;
    return std::to_array<Fact>({{"limit", limit},
                                {"free_blocks", own.free.size()},
                                {"idle_blocks", own.idle.size() + own.num_kept},
                                {"fenced_blocks", own.num_fenced},
                                {"used_blocks", limit - own.available() - own.num_fenced},
                                {"evicted_blocks", own.num_evicted}});
  });
  nb::dict d = made(nb::dict());
  for (const auto& [fact, value] : facts) d[fact] = value;
  return d;
}

// hit_rate_curve: (capacity, query_tokens, blocks found by number of blocks) of the partition of a
// namespace, or None if nothing is followed there.
template <class Own>
nb::object reuse_counts(Holder<Own>& self, nb::handle name) {
  const std::string_view bytes = namespace_argument(name);
  int capacity = 0;
  std::int64_t query_tokens = 0;
  nb::object counts;
  self.read([&](const Own& core) {
    const Pool::Partition& own = core.quota(bytes);
    const ReuseTracker* past = own.past.get();
    if (!past) return;
    capacity = own.capacity;
    query_tokens = past->query_tokens();
    const Array<std::int64_t> numbers(static_cast<std::int64_t>(past->histogram().size()));
    std::copy_n(past->histogram().data(), past->histogram().size(), numbers.numbers);
    counts = numbers.array;
  });
  if (!counts.is_valid()) return nb::none();
  return nb::make_tuple(capacity, query_tokens, counts);
}

template <class Own>
std::size_t memory_usage(Holder<Own>& self) {
  return self.read([](const Own& core) { return core.memory(); }) +
         self.tokens.capacity() * sizeof(Token) +
         (self.ids.capacity() + self.parents.capacity()) * sizeof(std::int64_t);
}

// Adds the class with the calls that managers and pools have.
template <class Own>
nb::class_<Holder<Own>> bind_holder(nb::module_& m, const char* name, const char* doc) {
  const auto view_pin = [](const Own& core, std::int64_t pin) {
    const auto facts = core.view_pin(pin);
    return std::tuple(facts.num_blocks, facts.num_cached);
  };
  const auto content = [](const Own& core, std::int64_t id, std::int64_t position) {
    if constexpr (std::is_same_v<Own, Sequences>) {
      core.checked_block(id, position);
    } else {
      core.listed(id, position);
    }
    return content_of(core, id);
  };
  return nb::class_<Holder<Own>>(m, name, nb::type_slots(Holder<Own>::slots), doc)
      .def(nb::init<const nb::dict&>())
      .def("release", on_blocks<Own, &Own::release>)
      .def("contents_of", facts_of_blocks<Own, std::int64_t>(content))
      .def("unpin", Called<Own, &Store::unpin, PinNumber>::run)
      .def("view_pin", reading<Own, PinNumber>(view_pin))
      .def("set_time", Called<Own, &Store::set_time, Plain<double>>::run)
      .def("time", reading<Own>([](const Own& core) { return core.time(); }))
      .def("take_copies", take_copies<Own>)
      .def("copies_applied", Called<Own, &Own::copies_applied, Ticket>::run)
      .def("copies_aborted", Called<Own, &Own::copies_aborted, Ticket>::run)
      .def("take_events", take_events<Own, &Own::events>)
      .def("take_snapshot", take_events<Own, &Own::residents>)
      .def("resident_events", resident_events<Own>)
      .def("idle_front", idle_front_of<Own>)
      .def("prefix_of", cached_prefix<Own>)
      .def("quota_usage", quota_usage<Own>)
      .def("reuse_counts", reuse_counts<Own>)
      .def("num_available", reading<Own>([](const Own& core) { return core.pool().available(); }))
      .def("memory_usage", memory_usage<Own>)
      .def("violations", reading<Own>([](const Own& core) { return core.violations(); }))
      // The first error of an eviction policy written in Python, or None.
      .def("policy_error", [](const Holder<Own>& self) { return self.policies.error(); });
}

using Core = Holder<Sequences>;
using PoolCore = Holder<BlockPool>;

}  // namespace blockmgr
