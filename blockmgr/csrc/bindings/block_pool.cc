// The calls of a pool: arguments in, results out. Nothing else.
#include <algorithm>
#include <utility>

#include "bindings/holder.h"

namespace blockmgr {
namespace {

// Tokens that all blocks hold: more are never looked at, and room for more is not kept.
std::int64_t most_tokens(const PoolCore& self) {
  return static_cast<std::int64_t>(self.core.nodes().num_blocks) * self.core.nodes().block_size;
}

TokenArray token_argument(PoolCore& self, nb::handle tokens) {
  return TokenArray(tokens, "tokens", kTokenLimit, self.tokens, most_tokens(self), self.inside());
}

// All of a chain but its tokens, which are read last: converting the rest may run Python code.
ChainKey key_argument(nb::handle parent, nb::handle name, nb::handle extras) {
  const std::int64_t node = int_argument(parent, "parent");
  const std::string_view space = namespace_argument(name);
  return {nullptr, 0, node, space, extras_argument(extras)};
}

// The same for a block by itself.
ChainKey block_key(nb::handle parent, nb::handle name, nb::handle extras) {
  ChainKey key = key_argument(parent, name, nb::none());
  const std::string_view bytes = bytes_argument(extras, "extras", 0);
  if (!bytes.empty()) key.extras.emplace_back(0, bytes);
  return key;
}

const ChainKey& with_tokens(ChainKey& key, TokenArray& tokens, std::int64_t most = INT64_MAX) {
  tokens.read(most);
  key.tokens = tokens.data();
  key.num_tokens = tokens.size();
  return key;
}

// The result is made before the call: making it can fail, and can run code that calls the pool.
template <auto check, auto method>
nb::object take(PoolCore& self, nb::handle n, nb::handle name) {
  const std::int64_t count = int_argument(n, "n");
  const std::string_view space = namespace_argument(name);
  self.read([&](const BlockPool& core) { std::invoke(check, core, count, space); });
  const Array<std::int32_t> result(count);
  std::invoke(method, self.core, count, space, result.numbers);
  return result.array;
}

void retain(PoolCore& self, nb::handle blocks, Exact<int> level, Exact<double> ttl) {
  check_retention(level, ttl);
  const Ints ids = ids_of(self, blocks);
  self.core.retain(ids.data(), ids.size(), level, ttl);
}

nb::object find(PoolCore& self, nb::handle tokens, nb::handle parent, nb::handle name,
                nb::handle extras) {
  ChainKey key = key_argument(parent, name, extras);
  TokenArray values = token_argument(self, tokens);
  return array_of(self.core.find(with_tokens(key, values, most_tokens(self))));
}

// The blocks found may change while the array is made, which can run code that calls the pool.
nb::object acquire_prefix(PoolCore& self, nb::handle tokens, nb::handle name, nb::handle extras) {
  ChainKey key{nullptr, 0, kNoNode, namespace_argument(name), extras_argument(extras)};
  TokenArray values = token_argument(self, tokens);
  const std::int64_t num_asked = values.size();
  with_tokens(key, values, most_tokens(self));
  for (;;) {
    const auto count = static_cast<std::int64_t>(self.core.find(key).size());
    const Array<std::int32_t> result(count);
    if (self.core.acquire_prefix(key, num_asked, count, result.numbers)) return result.array;
  }
}

// Tokens of a chain are refused unread if they are not those of as many blocks.
nb::object promote(PoolCore& self, nb::handle block, nb::handle tokens, nb::handle parent,
                   nb::handle name, nb::handle extras) {
  const std::int64_t id = int_argument(block, "block");
  ChainKey key = block_key(parent, name, extras);
  TokenArray values = token_argument(self, tokens);
  self.core.check_fill(1, values.size());
  nb::object result;
  std::int32_t out;
  self.core.promote(&id, 1, with_tokens(key, values), &out, announce_to<std::int32_t>(result));
  return result;
}

void promote_end(PoolCore& self, nb::handle block, nb::handle tokens, nb::handle parent,
                 nb::handle name, nb::handle extras) {
  const std::int64_t id = int_argument(block, "block");
  ChainKey key = block_key(parent, name, extras);
  TokenArray values = token_argument(self, tokens);
  self.core.check_end_fill(values.size());
  self.core.promote_end(id, with_tokens(key, values));
}

nb::object promote_chain(PoolCore& self, nb::handle blocks, nb::handle tokens, nb::handle parent,
                         nb::handle name, nb::handle extras) {
  ChainKey key = key_argument(parent, name, extras);
  IntArray<std::int64_t> ids(blocks, "blocks", 0, self.ids, self.core.nodes().num_blocks);
  self.core.check_distinct(ids.size());
  ids.read();
  TokenArray values = token_argument(self, tokens);
  self.core.check_fill(ids.size(), values.size());
  with_tokens(key, values);
  const Array<std::int32_t> result(ids.size());
  self.core.promote(ids.data(), ids.size(), key, result.numbers);
  return result.array;
}

// As many idle blocks, in the order of eviction.
nb::object idle_blocks(PoolCore& self, Exact<int> most) {
  return array_of(self.read([most](const BlockPool& core) {
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

template <auto method, class... Kinds>
constexpr auto call = Called<BlockPool, method, Kinds...>::run;
template <auto method, class... Kinds>
constexpr auto announced = Announced<BlockPool, method, Kinds...>::run;
template <class... Kinds>
auto read(auto what) {
  return reading<BlockPool, Kinds...>(what);
}
template <class T>
auto facts(auto fact) {
  return facts_of_blocks<BlockPool, T>(fact);
}

}  // namespace

void bind_block_pool(nb::module_& m) {
  using Block = Int<"block">;
  using Core = const BlockPool&;
  using Id = std::int64_t;
  bind_holder<BlockPool>(m, "PoolCore",
                         "Blocks without sequences; documented as blockmgr.pool.BlockPool.")
      .def("take", take<&BlockPool::check_take, &BlockPool::take>)
      .def("evict", take<&BlockPool::check_evict, &BlockPool::evict>)
      .def("forget", take<&BlockPool::check_evict, &BlockPool::forget>)
      .def("take_blocks", on_blocks<BlockPool, &BlockPool::take_blocks>)
      .def("acquire", on_blocks<BlockPool, &BlockPool::acquire, Flag<"found">>)
      .def("touch", on_blocks<BlockPool, &BlockPool::touch>)
      .def("forget_blocks", on_blocks<BlockPool, &BlockPool::forget_blocks>)
      .def("acquire_prefix", acquire_prefix)
      .def("find", find)
      .def("promote", promote)
      .def("promote_end", promote_end)
      .def("promote_chain", promote_chain)
      .def("make_writable", announced<&BlockPool::make_writable, Block, Int<"num_tokens">>)
      .def("retain", retain)
      .def("pin", announced<&BlockPool::pin, Block>)
      .def("reset", call<&BlockPool::reset>)
      .def("level", read<Block>([](Core core, Id block) {
             core.cached(block);
             return static_cast<int>(core.level(core.nodes().owner(block)));
           }))
      .def("ref_count", read<Block>([](Core core, Id block) { return core.uses(block).ref_count; }))
      .def("is_cached", read<Block>([](Core core, Id block) { return core.view(block).keyed(); }))
      .def("generation", read<Block>([](Core core, Id block) { return core.generation(block); }))
      .def("waits_for_copy", read<Block>([](Core core, Id block) {
             const Node& record = core.view(block);
             return record.copy_source != kNoNode || record.in_flight != 0;
           }))
      .def("parent", read<Block>([](Core core, Id block) {
             return core.nodes().name(std::max(core.cached(block).parent, kNoNode));
           }))
      .def("tokens", read<Block>([](Core core, Id block) {
             const Array<Token> tokens(core.cached(block).key_tokens);
             std::copy_n(core.nodes().tokens(core.nodes().owner(block)),
                         core.cached(block).key_tokens, tokens.numbers);
             return tokens.array;
           }))
      .def("children", read<Int<"parent">, Space>([](Core core, Id parent, std::string_view space) {
             return array_of(core.children(parent, space));
           }))
      .def("ref_counts", facts<std::int64_t>([](Core core, Id id, Id position) {
             return core.uses(id, position).ref_count;
           }))
      .def("are_cached", facts<bool>([](Core core, Id id, Id position) {
             return core.listed(id, position).keyed();
           }))
      .def("are_idle", facts<bool>([](Core core, Id id, Id position) {
             return core.listed(id, position).keyed() && core.uses(id, position) == Uses();
           }))
      .def("idle_blocks", idle_blocks)
      .def("num_free", read<>([](Core core) { return core.pool().num_free(); }))
      .def("num_idle", read<>([](Core core) { return core.pool().num_idle(); }))
      .def("num_used", read<>([](Core core) { return core.pool().num_used(); }))
      .def("num_cached", read<>([](Core core) { return core.index().num_keyed(); }))
      .def("num_pending_copies", read<>([](Core core) { return core.copies().num_pending(); }));
}

}  // namespace blockmgr
