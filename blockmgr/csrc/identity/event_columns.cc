#include "identity/event_columns.h"

#include <algorithm>

namespace blockmgr {

EventColumns pending_events(const PrefixIndex& index, const Blocks& blocks) {
  EventColumns columns;
  columns.digest_size = blocks.digest_size;
  const EventLog* const log = index.log();
  if (!log) return columns;
  const auto digest_size = static_cast<std::ptrdiff_t>(blocks.digest_size);
  columns.version = log->version();
  columns.num_lost = log->num_lost();
  columns.runs.assign(log->begin(), log->end());
  columns.digests.assign(log->digests(), log->digests() + log->num_blocks() * digest_size);
  columns.parents.assign(log->parents(), log->parents() + log->num_runs() * digest_size);
  columns.tokens.assign(log->tokens(), log->tokens() + log->num_stored() * blocks.block_size);
  columns.names.reserve(columns.runs.size());
  for (std::size_t i = 0; i < columns.runs.size(); ++i) {
    const EventRun& run = columns.runs[i];
    columns.names.emplace_back(run.kind == EventKind::kStored ? index.root_name(run.root)
                                                              : std::string_view());
    // What an earlier run left there.
    if (!run.has_parent)
      std::fill_n(columns.parents.begin() + static_cast<std::ptrdiff_t>(i) * digest_size,
                  digest_size, std::uint8_t{0});
  }
  columns.extras.reserve(static_cast<std::size_t>(log->num_extras()));
  for (std::int64_t i = 0; i < log->num_extras(); ++i)
    columns.extras.emplace_back(log->extras()[i].block, index.extras().bytes(log->extras()[i].id));
  return columns;
}

namespace {

// Chains of cached full blocks, one run each, from a list of first blocks still to be visited.
class Residents {
 public:
  Residents(const PrefixIndex& index, const Blocks& blocks, std::int64_t step)
      : index_(index), blocks_(blocks), step_(step) {
    columns_.digest_size = blocks.digest_size;
    if (const EventLog* log = index.log()) columns_.version = log->version();
    add_run(EventKind::kCleared, 0, nullptr);
  }
  EventColumns collect() {
    for (std::uint32_t root = 0; root < index_.num_roots(); ++root) {
      add_children(root_node(root));
      while (!first_.empty()) {
        const BlockId b = first_.back();
        first_.pop_back();
        add_chain(b, root);
      }
    }
    return std::move(columns_);
  }

 private:
  void add_run(EventKind kind, std::uint32_t root, const std::uint8_t* parent) {
    columns_.runs.push_back({kind, parent != nullptr, root, step_, num_blocks_, 0});
    columns_.names.emplace_back(kind == EventKind::kStored ? index_.root_name(root)
                                                           : std::string_view());
    const auto digest_size = static_cast<std::size_t>(blocks_.digest_size);
    columns_.parents.resize(columns_.parents.size() + digest_size);
    if (parent) std::copy_n(parent, digest_size, columns_.parents.end() - blocks_.digest_size);
  }
  // The first of the full children; the others begin chains of their own.
  BlockId add_children(NodeId node) {
    BlockId next = kNoBlock;
    for (BlockId b = index_.first_child(node); b >= 0; b = blocks_[b].next_sibling) {
      if (blocks_[b].key_tokens != blocks_.block_size) continue;
      if (next == kNoBlock && node >= 0) {
        next = b;
      } else {
        first_.push_back(b);
      }
    }
    return next;
  }
  void add_chain(BlockId first, std::uint32_t root) {
    bool continues = false;
    for (BlockId b = first; b != kNoBlock; b = add_children(b)) {
      if (!index_.stands_for_digest(b)) {
        continues = false;
        continue;
      }
      const NodeId parent = blocks_[b].parent;
      if (!continues)
        add_run(EventKind::kStored, root, parent >= 0 ? blocks_.digest(parent) : nullptr);
      continues = true;
      const std::uint8_t* digest = blocks_.digest(b);
      const Token* tokens = blocks_.tokens(b);
      columns_.digests.insert(columns_.digests.end(), digest, digest + blocks_.digest_size);
      columns_.tokens.insert(columns_.tokens.end(), tokens, tokens + blocks_.block_size);
      if (blocks_[b].extras)
        columns_.extras.emplace_back(num_blocks_, index_.extras().bytes(blocks_[b].extras));
      ++num_blocks_;
      ++columns_.runs.back().num_blocks;
    }
  }

  const PrefixIndex& index_;
  const Blocks& blocks_;
  std::int64_t step_;
  std::int64_t num_blocks_ = 0;
  std::vector<BlockId> first_;
  EventColumns columns_;
};

}  // namespace

EventColumns resident_events(const PrefixIndex& index, const Blocks& blocks, std::int64_t step) {
  return Residents(index, blocks, step).collect();
}

}  // namespace blockmgr
