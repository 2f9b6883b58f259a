#include "identity/event_columns.h"

#include <algorithm>

namespace blockmgr {

EventColumns pending_events(const PrefixIndex& index, const Nodes& nodes) {
  EventColumns columns;
  columns.digest_size = nodes.digest_size;
  const EventLog* const log = index.log();
  if (!log) return columns;
  const auto digest_size = static_cast<std::ptrdiff_t>(nodes.digest_size);
  columns.version = log->version();
  columns.num_lost = log->num_lost();
  columns.runs.assign(log->begin(), log->end());
  columns.digests.assign(log->digests(), log->digests() + log->num_blocks() * digest_size);
  columns.parents.assign(log->parents(), log->parents() + log->num_runs() * digest_size);
  columns.tokens.assign(log->tokens(), log->tokens() + log->num_stored() * nodes.block_size);
  columns.names.reserve(columns.runs.size());
  for (std::size_t i = 0; i < columns.runs.size(); ++i) {
    const EventRun& run = columns.runs[i];
    columns.names.emplace_back(run.kind == EventKind::kStored ? index.root_name(run.root)
                                                              : std::string_view());
    if (run.session_size) columns.sessions.resize(columns.runs.size());
    // Clears the digest that an earlier run left there.
    if (!run.has_parent)
      std::fill_n(columns.parents.begin() + static_cast<std::ptrdiff_t>(i) * digest_size,
                  digest_size, std::uint8_t{0});
  }
  for (std::size_t i = 0; i < columns.sessions.size(); ++i)
    columns.sessions[i] = log->session_of(columns.runs[i]);
  columns.extras.reserve(static_cast<std::size_t>(log->num_extras()));
  for (std::int64_t i = 0; i < log->num_extras(); ++i)
    columns.extras.emplace_back(log->extras()[i].block, index.extras().bytes(log->extras()[i].id));
  return columns;
}

namespace {

// Chains of cached full blocks, one run each, from a list of first blocks still to be visited.
class Residents {
 public:
  Residents(const PrefixIndex& index, const Nodes& nodes, std::int64_t step, const PartsTold& parts)
      : index_(index), nodes_(nodes), step_(step), parts_(parts) {
    columns_.digest_size = nodes.digest_size;
    if (const EventLog* log = index.log()) columns_.version = log->version();
    add_run(EventKind::kCleared, EventLog::kOwnBlock, 0, nullptr);
  }
  EventColumns collect() {
    for (std::uint32_t root = 0; root < index_.num_roots(); ++root) {
      add_children(root_node(root));
      while (!first_.empty()) {
        const NodeId b = first_.back();
        first_.pop_back();
        add_chain(b, root);
      }
    }
    return std::move(columns_);
  }

 private:
  void add_run(EventKind kind, int group, std::uint32_t root, const std::uint8_t* parent) {
    const EventLog* const log = index_.log();
    const bool is_stored = kind == EventKind::kStored;
    const auto number = static_cast<std::uint8_t>(log && is_stored ? log->number_of(group) : 0);
    columns_.runs.push_back({kind, parent != nullptr, number, root, step_, num_blocks_, 0});
    columns_.names.emplace_back(is_stored ? index_.root_name(root) : std::string_view());
    const auto digest_size = static_cast<std::size_t>(nodes_.digest_size);
    columns_.parents.resize(columns_.parents.size() + digest_size);
    if (parent) std::copy_n(parent, digest_size, columns_.parents.end() - nodes_.digest_size);
  }
  // The first of the full children; the others begin chains of their own.
  NodeId add_children(NodeId node) {
    NodeId next = kNoNode;
    for (NodeId b = index_.first_child(node); b >= 0; b = nodes_[b].next_sibling) {
      if (nodes_[b].key_tokens != nodes_.block_size) continue;
      if (next == kNoNode && node >= 0) {
        next = b;
      } else {
        first_.push_back(b);
      }
    }
    return next;
  }
  void add_chain(NodeId first, std::uint32_t root) {
    chain_.clear();
    for (NodeId b = first; b != kNoNode; b = add_children(b)) chain_.push_back(b);
    add_told(EventLog::kOwnBlock, root, [&](NodeId b) { return index_.stands_for_digest(b); });
    for (int i = 0; i < parts_.num_parts; ++i)
      add_told(parts_.group_of(i), root, [&](NodeId b) { return parts_.is_told(i, b); });
  }
  // The runs of the chain of which events tell.
  template <class IsTold>
  void add_told(int group, std::uint32_t root, IsTold is_told) {
    bool continues = false;
    for (const NodeId b : chain_) {
      if (!is_told(b)) {
        continues = false;
        continue;
      }
      const NodeId parent = nodes_[b].parent;
      if (!continues)
        add_run(EventKind::kStored, group, root, parent >= 0 ? nodes_.digest(parent) : nullptr);
      continues = true;
      add_block(b);
    }
  }
  void add_block(NodeId b) {
    const std::uint8_t* digest = nodes_.digest(b);
    const Token* tokens = nodes_.tokens(b);
    columns_.digests.insert(columns_.digests.end(), digest, digest + nodes_.digest_size);
    columns_.tokens.insert(columns_.tokens.end(), tokens, tokens + nodes_.block_size);
    if (nodes_[b].extras)
      columns_.extras.emplace_back(num_blocks_, index_.extras().bytes(nodes_[b].extras));
    ++num_blocks_;
    ++columns_.runs.back().num_blocks;
  }

  const PrefixIndex& index_;
  const Nodes& nodes_;
  std::int64_t step_;
  const PartsTold& parts_;
  std::int64_t num_blocks_ = 0;
  std::vector<NodeId> first_;
  std::vector<NodeId> chain_;
  EventColumns columns_;
};

}  // namespace

EventColumns resident_events(const PrefixIndex& index, const Nodes& nodes, std::int64_t step,
                             const PartsTold& parts) {
  index.add_digests();
  return Residents(index, nodes, step, parts).collect();
}

}  // namespace blockmgr
