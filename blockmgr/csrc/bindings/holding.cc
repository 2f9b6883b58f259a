// The Python face of calls by block id.
#include <algorithm>

#include "bindings/core.h"
#include "bindings/idle.h"
#include "sequences/idle_front.h"

namespace blockmgr {
namespace {

// Block ids, read. A block may appear as often as it is held, so a list may have any length; but no
// room is kept for more ids than there are blocks.
class Ids {
 public:
  Ids(Core& self, nb::handle blocks)
      : ids_(blocks, "blocks", 0, self.handles, self.core.nodes().num_blocks) {
    ids_.read();
  }
  const std::int64_t* data() const { return ids_.data(); }
  std::int64_t size() const { return ids_.size(); }

 private:
  IntArray<std::int64_t> ids_;
};

}  // namespace

void acquire_blocks(Core& self, nb::handle blocks) {
  const Ids ids(self, blocks);
  self.core.acquire(ids.data(), ids.size());
}

void release_blocks(Core& self, nb::handle blocks) {
  const Ids ids(self, blocks);
  self.core.release(ids.data(), ids.size());
}

void touch_blocks(Core& self, nb::handle blocks) {
  const Ids ids(self, blocks);
  self.core.touch_blocks(ids.data(), ids.size());
}

std::int64_t forget_blocks(Core& self, nb::handle blocks) {
  const Ids ids(self, blocks);
  return self.core.forget(ids.data(), ids.size());
}

std::int64_t shrink_pool(Core& self, nb::handle num_blocks) {
  return self.core.shrink_pool(int_argument(num_blocks, "num_blocks"));
}

void grow_pool(Core& self, nb::handle num_blocks) {
  self.core.grow_pool(int_argument(num_blocks, "num_blocks"));
}

nb::tuple leaving_blocks(Core& self) {
  const auto leaving = self.read([](const Sequences& core) { return core.leaving(); });
  std::vector<std::int32_t> blocks;
  std::vector<std::int64_t> handles;
  for (const LeavingBlock& each : leaving) {
    blocks.push_back(each.block);
    handles.push_back(each.handle);
  }
  return nb::make_tuple(numbers_of(blocks), numbers_of(handles));
}

std::int64_t retire_namespace(Core& self, nb::handle name) {
  return self.core.retire(bytes_argument(name, "namespace", 0));
}

nb::object contents_of(Core& self, nb::handle blocks) {
  const Ids ids(self, blocks);
  const Array<std::int64_t> result(ids.size());
  self.read([&](const Sequences& core) {
    for (std::int64_t i = 0; i < ids.size(); ++i) {
      core.checked_block(ids.data()[i], i);
      result.numbers[i] = content_of(core, ids.data()[i]);
    }
  });
  return result.array;
}

bool is_cached(Core& self, nb::handle block) {
  const std::int64_t id = int_argument(block, "block");
  return self.read([&](const Sequences& core) { return core.is_cached(id); });
}

std::int64_t ref_count(Core& self, nb::handle block) {
  const std::int64_t id = int_argument(block, "block");
  return self.read([&](const Sequences& core) { return core.ref_count(id); });
}

// The list is made of numbers that were read before it: making it may run code that calls the
// manager.
nb::list block_ids_from(Core& self, nb::handle handle, nb::handle start) {
  const std::int64_t h = handle_argument(handle);
  const std::int64_t first = int_argument(start, "start");
  if (first < 0)
    throw Error(ErrorKind::kValue, "start must be at least 0, got " + std::to_string(first));
  const auto ids = self.read([&](const Sequences& core) { return core.block_ids(h, first); });
  nb::list result = made(nb::list());
  for (const std::int32_t id : ids) result.append(made(nb::object(nb::int_(id))));
  return result;
}

}  // namespace blockmgr
