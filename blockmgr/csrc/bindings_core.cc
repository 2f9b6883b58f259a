#include "bindings_core.h"

#include <initializer_list>
#include <utility>

namespace blockmgr {

namespace {

// A view that shares the memory and keeps only that alive, not the manager: arrays take no part in
// garbage collection, so a cycle through one that held the manager would never be found.
template <class Shape>
nb::object shared_view(const ZeroedArray<std::int32_t>& array, std::initializer_list<int> shape) {
  auto memory = std::make_unique<std::shared_ptr<void>>(array.memory());
  nb::capsule owner(memory.get(),
                    [](void* p) noexcept { delete static_cast<std::shared_ptr<void>*>(p); });
  memory.release();
  std::vector<std::size_t> sizes(shape.begin(), shape.end());
  return nb::cast(
      nb::ndarray<nb::numpy, std::int32_t, Shape>(array.data(), sizes.size(), sizes.data(), owner));
}

}  // namespace

nb::object block_tables(Core& self) {
  const Config& config = self.core.config();
  return shared_view<nb::ndim<2>>(self.core.tables(), {config.max_seqs, config.row_width});
}

nb::object seq_lens(Core& self) {
  return shared_view<nb::ndim<1>>(self.core.lengths(), {self.core.config().max_seqs});
}

std::unique_ptr<PythonDigest> digest_option(const nb::kwargs& options, int block_size) {
  if (!nb::cast<bool>(options["prefix_caching"])) return nullptr;
  const auto size = static_cast<int>(int_argument(options["digest_size"], "digest_size"));
  const std::size_t token_bytes = static_cast<std::size_t>(block_size) * sizeof(Token);
  return std::make_unique<PythonDigest>(nb::borrow(options["digest"]),
                                        nb::cast<bool>(options["digest_is_trusted"]), size,
                                        static_cast<std::size_t>(size) + token_bytes);
}

void init_core(Core* self, nb::kwargs options) {
  const auto whole = [&](const char* name) {
    return static_cast<int>(int_argument(options[name], name));
  };
  const auto flag = [&](const char* name) { return nb::cast<bool>(options[name]); };
  Config config;
  config.num_blocks = whole("num_blocks");
  config.block_size = whole("block_size");
  config.max_seqs = whole("max_seqs");
  config.row_width = whole("row_width");
  config.prefix_caching = flag("prefix_caching");
  config.remap = flag("remap");
  config.min_partial_tokens = whole("min_partial_tokens");
  config.watermark_blocks = whole("watermark_blocks");
  config.steps_in_flight = whole("steps_in_flight");
  config.early_commit = flag("early_commit");
  config.null_block = flag("null_block");
  config.retention = flag("retention");
  config.max_pinned_blocks = whole("max_pinned_blocks");
  config.eviction = nb::cast<std::string>(options["eviction"]);
  config.ghost_blocks = whole("ghost_blocks");
  new (self)
      Core(config, digest_option(options, config.block_size), nb::borrow(options["python_policy"]));
}

}  // namespace blockmgr
