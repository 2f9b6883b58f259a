// The Python face of the block pool: arguments in, results out.
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <utility>

#include "bindings/events.h"
#include "bindings/idle.h"
#include "bindings/partitions.h"
#include "bindings/pool_core.h"
#include "memory/errors.h"

namespace blockmgr {
namespace {

using IdArray = IntArray<std::int64_t>;

void init_pool(PoolCore* self, nb::dict options) {
  StoreConfig config;
  read_options(options, config);
  new (self) PoolCore(config, digest_option(options, config.block_size),
                      nb::cast<nb::list>(options["python_policies"]));
}

// Block ids, read. A block may appear as often as it is held, so a list may have any length; but no
// room is kept for more ids than there are blocks.
class Ids {
 public:
  Ids(PoolCore& self, nb::handle blocks)
      : ids_(blocks, "blocks", 0, self.ids, self.core.nodes().num_blocks) {
    ids_.read();
  }
  const std::int64_t* data() const { return ids_.data(); }
  std::int64_t size() const { return ids_.size(); }

 private:
  IdArray ids_;
};

TokenArray token_argument(PoolCore& self, nb::handle tokens) {
  return TokenArray(tokens, "tokens", kTokenLimit, self.tokens, self.most_tokens(), self.inside());
}

// The tokens of so many blocks, refused unread if they are not as many.
void read_tokens(PoolCore& self, std::int64_t num_blocks, TokenArray& tokens, ChainKey& key) {
  self.core.check_fill(num_blocks, tokens.size());
  tokens.read();
  key.tokens = tokens.data();
  key.num_tokens = tokens.size();
}

std::int64_t block_argument(nb::handle block) { return int_argument(block, "block"); }

// Arrays that a call fills are made before it: making one can fail, and can run code that calls the
// pool, which the call itself then sees.

nb::object copied(const std::vector<std::int32_t>& ids) {
  const auto count = static_cast<std::int64_t>(ids.size());
  auto numbers = new_numbers<std::int32_t>(count);
  std::copy(ids.begin(), ids.end(), numbers.get());
  return to_array(std::move(numbers), count);
}

nb::object take(PoolCore& self, nb::handle n, nb::handle name) {
  const std::int64_t count = int_argument(n, "n");
  const std::string_view bytes = bytes_argument(name, "namespace", 0);
  self.read([&](const BlockPool& core) { core.check_take(count, bytes); });
  const Array<std::int32_t> result(count);
  self.core.take(count, bytes, result.numbers);
  return result.array;
}

void take_blocks(PoolCore& self, nb::handle blocks) {
  const Ids ids(self, blocks);
  self.core.take_blocks(ids.data(), ids.size());
}

void acquire(PoolCore& self, nb::handle blocks, nb::handle found) {
  const bool is_found = bool_argument(found, "found");
  const Ids ids(self, blocks);
  self.core.acquire(ids.data(), ids.size(), is_found);
}

void retain(PoolCore& self, nb::handle blocks, int level, double ttl) {
  check_retention(level, ttl);
  const Ids ids(self, blocks);
  self.core.retain(ids.data(), ids.size(), level, ttl);
}

nb::object pin(PoolCore& self, nb::handle block) {
  const std::int64_t id = block_argument(block);
  nb::object number;
  self.core.pin(id, announce_to<std::int64_t>(number));
  return number;
}

void unpin(PoolCore& self, nb::handle pin) { self.core.unpin(pin_argument(pin)); }

// (num_blocks, num_cached_blocks)
nb::tuple view_pin(PoolCore& self, nb::handle pin) {
  const std::int64_t id = pin_argument(pin);
  const auto facts = self.read([&](const BlockPool& core) { return core.view_pin(id); });
  return nb::make_tuple(facts.num_blocks, facts.num_cached);
}

void set_time(PoolCore& self, double seconds) { self.core.set_time(seconds); }

double time(PoolCore& self) {
  return self.read([](const BlockPool& core) { return core.time(); });
}

int level_of(PoolCore& self, nb::handle block) {
  const std::int64_t id = block_argument(block);
  return self.read([&](const BlockPool& core) {
    core.cached(id);
    return static_cast<int>(core.level(core.nodes().owner(id)));
  });
}

nb::object policy_error(PoolCore& self) { return self.policies.error(); }

void release(PoolCore& self, nb::handle blocks) {
  const Ids ids(self, blocks);
  self.core.release(ids.data(), ids.size());
}

void touch(PoolCore& self, nb::handle blocks) {
  const Ids ids(self, blocks);
  self.core.touch(ids.data(), ids.size());
}

// The caller reads the tokens last, after the last conversion that can run Python code.
ChainKey key_argument(nb::handle parent, nb::handle name, nb::handle extras) {
  const std::int64_t node = int_argument(parent, "parent");
  const std::string_view bytes = bytes_argument(name, "namespace", 0);
  return {nullptr, 0, node, bytes, extras_argument(extras)};
}

nb::object find(PoolCore& self, nb::handle tokens, nb::handle parent, nb::handle name,
                nb::handle extras) {
  ChainKey key = key_argument(parent, name, extras);
  TokenArray values = token_argument(self, tokens);
  values.read(self.most_tokens());
  key.tokens = values.data();
  key.num_tokens = values.size();
  return copied(self.core.find(key));
}

// The blocks found may change while the array is made, which can run code that calls the pool.
nb::object acquire_prefix(PoolCore& self, nb::handle tokens, nb::handle name, nb::handle extras) {
  ChainKey key{nullptr, 0, kNoNode, bytes_argument(name, "namespace", 0), extras_argument(extras)};
  TokenArray values = token_argument(self, tokens);
  const std::int64_t num_asked = values.size();
  values.read(self.most_tokens());
  key.tokens = values.data();
  key.num_tokens = values.size();
  for (;;) {
    const Array<std::int32_t> result(static_cast<std::int64_t>(self.core.find(key).size()));
    const std::int64_t count = nb::len(result.array);
    if (self.core.acquire_prefix(key, num_asked, count, result.numbers)) return result.array;
  }
}

// The same for a block by itself.
ChainKey block_key(nb::handle parent, nb::handle name, nb::handle extras) {
  ChainKey key{
      nullptr, 0, int_argument(parent, "parent"), bytes_argument(name, "namespace", 0), {}};
  const std::string_view bytes = bytes_argument(extras, "extras", 0);
  if (!bytes.empty()) key.extras.emplace_back(0, bytes);
  return key;
}

nb::object promote(PoolCore& self, nb::handle block, nb::handle tokens, nb::handle parent,
                   nb::handle name, nb::handle extras) {
  const std::int64_t id = block_argument(block);
  ChainKey key = block_key(parent, name, extras);
  TokenArray values = token_argument(self, tokens);
  read_tokens(self, 1, values, key);
  nb::object result;
  std::int32_t out;
  self.core.promote(&id, 1, key, &out, announce_to<std::int32_t>(result));
  return result;
}

void promote_end(PoolCore& self, nb::handle block, nb::handle tokens, nb::handle parent,
                 nb::handle name, nb::handle extras) {
  const std::int64_t id = block_argument(block);
  ChainKey key = block_key(parent, name, extras);
  TokenArray values = token_argument(self, tokens);
  self.core.check_end_fill(values.size());
  values.read();
  key.tokens = values.data();
  key.num_tokens = values.size();
  self.core.promote_end(id, key);
}

nb::object promote_chain(PoolCore& self, nb::handle blocks, nb::handle tokens, nb::handle parent,
                         nb::handle name, nb::handle extras) {
  ChainKey key = key_argument(parent, name, extras);
  IdArray ids(blocks, "blocks", 0, self.ids, self.core.nodes().num_blocks);
  self.core.check_distinct(ids.size());
  ids.read();
  TokenArray values = token_argument(self, tokens);
  read_tokens(self, ids.size(), values, key);
  const Array<std::int32_t> result(ids.size());
  self.core.promote(ids.data(), ids.size(), key, result.numbers);
  return result.array;
}

nb::object make_writable(PoolCore& self, nb::handle block, nb::handle num_tokens) {
  const std::int64_t id = block_argument(block);
  nb::object result;
  self.core.make_writable(id, int_argument(num_tokens, "num_tokens"), announce_to<std::int32_t>(result));
  return result;
}

nb::object evict(PoolCore& self, nb::handle n, nb::handle name) {
  const std::int64_t count = int_argument(n, "n");
  const std::string_view bytes = bytes_argument(name, "namespace", 0);
  self.read([&](const BlockPool& core) { core.check_evict(count, bytes); });
  const Array<std::int32_t> result(count);
  self.core.evict(count, bytes, result.numbers);
  return result.array;
}

nb::object forget(PoolCore& self, nb::handle n, nb::handle name) {
  const std::int64_t count = int_argument(n, "n");
  const std::string_view bytes = bytes_argument(name, "namespace", 0);
  self.read([&](const BlockPool& core) { core.check_evict(count, bytes); });
  const Array<std::int32_t> result(count);
  self.core.forget(count, bytes, result.numbers);
  return result.array;
}

std::int64_t forget_blocks(PoolCore& self, nb::handle blocks) {
  const Ids ids(self, blocks);
  return self.core.forget_blocks(ids.data(), ids.size());
}

void reset(PoolCore& self) { self.core.reset(); }

nb::object take_copies(PoolCore& self, nb::handle make) { return take_plan(self.core, make); }

void copies_applied(PoolCore& self, nb::handle ticket) {
  self.core.copies_applied(ticket_argument(ticket));
}

void copies_aborted(PoolCore& self, nb::handle ticket) {
  self.core.copies_aborted(ticket_argument(ticket));
}

std::uint32_t ref_count(PoolCore& self, nb::handle block) {
  const std::int64_t id = block_argument(block);
  return self.read([&](const BlockPool& core) { return core.uses(id).ref_count; });
}

bool is_cached(PoolCore& self, nb::handle block) {
  const std::int64_t id = block_argument(block);
  return self.read([&](const BlockPool& core) { return core.view(id).keyed(); });
}

std::uint32_t generation(PoolCore& self, nb::handle block) {
  const std::int64_t id = block_argument(block);
  return self.read([&](const BlockPool& core) { return core.generation(id); });
}

template <class T, class Fact>
nb::object facts(PoolCore& self, nb::handle blocks, Fact fact) {
  const Ids ids(self, blocks);
  const Array<T> result(ids.size());
  self.read([&](const BlockPool& pool) {
    for (std::int64_t i = 0; i < ids.size(); ++i)
      result.numbers[i] = static_cast<T>(fact(pool, ids.data()[i], i));
  });
  return result.array;
}

nb::object ref_counts(PoolCore& self, nb::handle blocks) {
  return facts<std::int64_t>(self, blocks, [](const BlockPool& pool, auto id, auto position) {
    return pool.uses(id, position).ref_count;
  });
}

nb::object are_cached(PoolCore& self, nb::handle blocks) {
  return facts<bool>(self, blocks, [](const BlockPool& pool, auto id, auto position) {
    return pool.listed(id, position).keyed();
  });
}

nb::object are_idle(PoolCore& self, nb::handle blocks) {
  return facts<bool>(self, blocks, [](const BlockPool& pool, auto id, auto position) {
    return pool.listed(id, position).keyed() && pool.uses(id, position) == Uses();
  });
}

nb::object contents_of(PoolCore& self, nb::handle blocks) {
  return facts<std::int64_t>(self, blocks, [](const BlockPool& pool, auto id, auto position) {
    pool.listed(id, position);
    return content_of(pool, id);
  });
}

bool waits_for_copy(PoolCore& self, nb::handle block) {
  const std::int64_t id = block_argument(block);
  return self.read([&](const BlockPool& core) {
    const Node& record = core.view(id);
    return record.copy_source != kNoNode || record.in_flight != 0;
  });
}

std::int32_t parent_of(PoolCore& self, nb::handle block) {
  const std::int64_t id = block_argument(block);
  return self.read(
      [&](const BlockPool& core) {
        return core.nodes().name(std::max(core.cached(id).parent, kNoNode));
      });
}

nb::object children(PoolCore& self, nb::handle parent, nb::handle name) {
  const std::int64_t node = int_argument(parent, "parent");
  const std::string_view bytes = bytes_argument(name, "namespace", 0);
  return copied(self.read([&](const BlockPool& core) { return core.children(node, bytes); }));
}

nb::object tokens_of(PoolCore& self, nb::handle block) {
  const std::int64_t id = block_argument(block);
  std::int64_t count = 0;
  auto tokens = self.read([&](const BlockPool& pool) {
    count = pool.cached(id).key_tokens;
    auto numbers = new_numbers<Token>(count);
    std::copy_n(pool.nodes().tokens(pool.nodes().owner(id)), count, numbers.get());
    return numbers;
  });
  return to_array(std::move(tokens), count);
}

nb::object idle_blocks(PoolCore& self, int most) {
  return copied(self.read([most](const BlockPool& core) {
    std::vector<std::int32_t> ids;
    const auto count = static_cast<std::size_t>(std::clamp<int>(most, 0, core.pool().num_idle()));
    ids.reserve(count);
    for (int i = 0; i < core.pool().num_partitions() && ids.size() < count; ++i) {
      const IdleSegments& list = core.pool().idle_list(i);
      for (NodeId b = list.front(); b != list.end() && ids.size() < count; b = list.after(b))
        ids.push_back(core.nodes().name(b));
    }
    return ids;
  }));
}

int num_free(PoolCore& self) {
  return self.read([](const BlockPool& core) { return core.pool().num_free(); });
}
int num_idle(PoolCore& self) {
  return self.read([](const BlockPool& core) { return core.pool().num_idle(); });
}
int num_available(PoolCore& self) {
  return self.read([](const BlockPool& core) { return core.pool().available(); });
}
int num_used(PoolCore& self) {
  return self.read([](const BlockPool& core) { return core.pool().num_used(); });
}
int num_cached(PoolCore& self) {
  return self.read([](const BlockPool& core) { return core.index().num_keyed(); });
}

int num_pending_copies(PoolCore& self) {
  return self.read([](const BlockPool& core) { return core.copies().num_pending(); });
}

std::size_t memory_usage(PoolCore& self) {
  return self.read([](const BlockPool& core) { return core.memory(); }) +
         self.tokens.capacity() * sizeof(Token) + self.ids.capacity() * sizeof(std::int64_t);
}

std::vector<std::string> violations(PoolCore& self) {
  return self.read([](const BlockPool& core) { return core.violations(); });
}

}  // namespace

#define BM_IDS BM_ARRAY("int32")

void bind_block_pool(nb::module_& m) {
  const auto any = [] { return nb::arg().none(); };
  const auto anybody = [] { return nb::arg().none() = nb::bytes("", 0); };
  nb::class_<PoolCore>(m, "PoolCore", nb::type_slots(collection_slots<PoolCore>()),
                       "Blocks without sequences; documented as blockmgr.pool.BlockPool.")
      .def("__init__", init_pool,
           nb::sig("def __init__(self, options: dict[str, typing.Any], /) -> None"))
      .def("take", take,
           nb::sig("def take(self, n: object, namespace: object = b'', /) -> " BM_IDS), any(),
           anybody())
      .def("take_blocks", take_blocks,
           nb::sig("def take_blocks(self, blocks: object, /) -> None"), any())
      .def("acquire", acquire,
           nb::sig("def acquire(self, blocks: object, found: object = True, /) -> None"), any(),
           any() = nb::bool_(true))
      .def("acquire_prefix", acquire_prefix,
           nb::sig("def acquire_prefix(self, tokens: object, namespace: object, extras: object, "
                   "/) -> " BM_IDS),
           any(), any(), any())
      .def("retain", retain,
           nb::sig("def retain(self, blocks: object, level: int, ttl: float, /) -> None"), any(),
           nb::arg().noconvert(), nb::arg().noconvert())
      .def("pin", pin, nb::sig("def pin(self, block: object, /) -> int"), any())
      .def("unpin", unpin, nb::sig("def unpin(self, pin: object, /) -> None"), any())
      .def("view_pin", view_pin, nb::sig("def view_pin(self, pin: object, /) -> tuple[int, int]"),
           any())
      .def("set_time", set_time, nb::sig("def set_time(self, seconds: float, /) -> None"),
           nb::arg().noconvert())
      .def("time", time)
      .def("level", level_of, nb::sig("def level(self, block: object, /) -> int"), any())
      .def("policy_error", policy_error,
           nb::sig("def policy_error(self, /) -> BaseException | None"))
      .def("quota_usage", quota_usage<PoolCore>,
           nb::sig("def quota_usage(self, namespace: object, /) -> dict[str, int]"), any())
      .def("reuse_counts", reuse_counts<PoolCore>,
           nb::sig("def reuse_counts(self, namespace: object, /) -> "
                   "tuple[int, int, " BM_ARRAY("int64") "] | None"),
           any())
      .def("release", release, nb::sig("def release(self, blocks: object, /) -> None"), any())
      .def("touch", touch, nb::sig("def touch(self, blocks: object, /) -> None"), any())
      .def("find", find,
           nb::sig("def find(self, tokens: object, parent: object, namespace: object, "
                   "extras: object, /) -> " BM_IDS),
           any(), any(), any(), any())
      .def("promote", promote,
           nb::sig("def promote(self, block: object, tokens: object, parent: object, "
                   "namespace: object, extras: object, /) -> int"),
           any(), any(), any(), any(), any())
      .def("promote_end", promote_end,
           nb::sig("def promote_end(self, block: object, tokens: object, parent: object, "
                   "namespace: object, extras: object, /) -> None"),
           any(), any(), any(), any(), any())
      .def("promote_chain", promote_chain,
           nb::sig("def promote_chain(self, blocks: object, tokens: object, parent: object, "
                   "namespace: object, extras: object, /) -> " BM_IDS),
           any(), any(), any(), any(), any())
      .def("make_writable", make_writable,
           nb::sig("def make_writable(self, block: object, num_tokens: object, /) -> int"), any(),
           any())
      .def("evict", evict,
           nb::sig("def evict(self, n: object, namespace: object = b'', /) -> " BM_IDS), any(),
           anybody())
      .def("forget", forget,
           nb::sig("def forget(self, n: object, namespace: object = b'', /) -> " BM_IDS), any(),
           anybody())
      .def("forget_blocks", forget_blocks,
           nb::sig("def forget_blocks(self, blocks: object, /) -> int"), any())
      .def("take_events", take_events<PoolCore>,
           nb::sig("def take_events(self, make: typing.Callable[..., typing.Any], /) -> "
                   "typing.Any"))
      .def("resident_events", resident_events<PoolCore>,
           nb::sig("def resident_events(self, make: typing.Callable[..., typing.Any], /) -> "
                   "typing.Any"))
      .def("take_snapshot", take_snapshot<PoolCore>,
           nb::sig(
               "def take_snapshot(self, make: typing.Callable[..., typing.Any], /) -> typing.Any"))
      .def("reset", reset)
      .def("take_copies", take_copies,
           nb::sig("def take_copies(self, make: type[blockmgr.blocks.CopyPlan], /) -> "
                   "blockmgr.blocks.CopyPlan"),
           any())
      .def("copies_applied", copies_applied,
           nb::sig("def copies_applied(self, ticket: object, /) -> None"), any())
      .def("copies_aborted", copies_aborted,
           nb::sig("def copies_aborted(self, ticket: object, /) -> None"), any())
      .def("ref_count", ref_count, nb::sig("def ref_count(self, block: object, /) -> int"), any())
      .def("is_cached", is_cached, nb::sig("def is_cached(self, block: object, /) -> bool"), any())
      .def("generation", generation, nb::sig("def generation(self, block: object, /) -> int"),
           any())
      .def("ref_counts", ref_counts,
           nb::sig("def ref_counts(self, blocks: object, /) -> " BM_ARRAY("int64")), any())
      .def("are_cached", are_cached,
           nb::sig("def are_cached(self, blocks: object, /) -> " BM_ARRAY("bool_")), any())
      .def("are_idle", are_idle,
           nb::sig("def are_idle(self, blocks: object, /) -> " BM_ARRAY("bool_")), any())
      .def("waits_for_copy", waits_for_copy,
           nb::sig("def waits_for_copy(self, block: object, /) -> bool"), any())
      .def("parent", parent_of, nb::sig("def parent(self, block: object, /) -> int"), any())
      .def("children", children,
           nb::sig("def children(self, parent: object, namespace: object, /) -> " BM_IDS), any(),
           any())
      .def("tokens", tokens_of,
           nb::sig("def tokens(self, block: object, /) -> " BM_ARRAY("uint32")), any())
      .def("idle_blocks", idle_blocks, nb::sig("def idle_blocks(self, most: int, /) -> " BM_IDS),
           nb::arg().noconvert())
      .def("idle_front", idle_front<PoolCore>,
           nb::sig("def idle_front(self, most: object, /) -> tuple[" BM_ARRAY("int32") ", " BM_ARRAY(
               "int64") "]"),
           any())
      .def("prefix_of", prefix_of<PoolCore>,
           nb::sig("def prefix_of(self, block: object, /) -> " BM_PREFIX), any())
      .def("contents_of", contents_of,
           nb::sig("def contents_of(self, blocks: object, /) -> " BM_ARRAY("int64")), any())
      .def("num_free", num_free)
      .def("num_idle", num_idle)
      .def("num_available", num_available)
      .def("num_used", num_used)
      .def("num_cached", num_cached)
      .def("num_pending_copies", num_pending_copies)
      .def("memory_usage", memory_usage)
      .def("violations", violations);
}

}  // namespace blockmgr
