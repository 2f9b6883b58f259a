#include "levels.h"

#include <algorithm>
#include <functional>
#include <iterator>

namespace blockmgr::testing {

Levels::Levels(const Sequences& core)
    : core_(core), said_(static_cast<std::size_t>(core.nodes().count)) {}

bool Levels::is_idle(NodeId b) const { return core_.nodes().idle(b); }

// A pin ends at the last block of its chain that is still cached.
std::vector<bool> Levels::pin_ends() const {
  std::vector<bool> ends(said_.size());
  for (const auto& [id, chain] : pins_) {
    NodeId last = kNoNode;
    for (std::size_t i = 0; i < chain.nodes.size(); ++i) {
      const Node& record = core_.nodes()[chain.nodes[i]];
      if (!record.keyed() || record.generation != chain.generations[i]) break;
      last = chain.nodes[i];
    }
    if (last >= 0) ends[static_cast<std::size_t>(last)] = true;
  }
  return ends;
}

int Levels::own_level(NodeId b, bool pinned) const {
  const Said& said = at(b);
  const bool retained =
      said.retention != kNoLevel && said.generation == core_.nodes()[b].generation;
  return pinned ? kPinned : retained ? said.retention : said.hint;
}

// No parent has a lower level than its children.
std::vector<int> Levels::due(const std::vector<bool>& ends) const {
  std::vector<int> due(said_.size(), kLow);
  for (NodeId b = 0; b < core_.nodes().count; ++b) {
    if (!core_.nodes()[b].keyed()) continue;
    const int own = own_level(b, ends[static_cast<std::size_t>(b)]);
    for (NodeId up = b; up >= 0; up = core_.nodes()[up].parent)
      due[static_cast<std::size_t>(up)] = std::max(due[static_cast<std::size_t>(up)], own);
  }
  return due;
}

// A hash of each full cached block's prefix from the root; 0 for any other block. A retired block
// is another one than a later block with the same tokens.
std::vector<std::size_t> Levels::contents() const {
  const Nodes& nodes = core_.nodes();
  std::vector<std::size_t> contents(said_.size());
  for (NodeId b = 0; b < nodes.count; ++b) {
    if (nodes[b].key_tokens != nodes.block_size) continue;
    std::string path;
    NodeId node = b;
    std::uint32_t epoch = 0;  // of the root
    for (; node >= 0; node = nodes[node].parent) {
      epoch = nodes[node].parent_generation;
      path += std::to_string(nodes[node].extras) + ':';
      for (int i = 0; i < nodes.block_size; ++i)
        path += std::to_string(nodes.tokens(node)[i]) + ' ';
    }
    contents[static_cast<std::size_t>(b)] =
        std::hash<std::string>()(path + std::to_string(node) + '/' + std::to_string(epoch)) | 1;
  }
  return contents;
}

// With append-only tables, a key can pass to another block with the same content. No table then
// names the node that lost the key, nor its block. This differs from eviction, where the sequence
// that took the block names it.
void Levels::follow_moves() {
  const std::vector<std::size_t> now = contents();
  for (NodeId from = 0; from < core_.nodes().count; ++from) {
    if (!at(from).content || core_.nodes()[from].keyed() || core_.nodes().uses(from).ref_count)
      continue;
    const NodeId taker = core_.nodes().owner(at(from).block);
    if (taker >= 0 && core_.nodes().uses(taker).ref_count) continue;
    for (NodeId to = 0; to < core_.nodes().count; ++to)
      if (now[static_cast<std::size_t>(to)] == at(from).content && !at(to).content) move(from, to);
  }
}

void Levels::move(NodeId from, NodeId to) {
  Said& given = at(from);
  Said& own = at(to);
  if (given.generation != given.old_generation) given.retention = kNoLevel;
  const bool has_own =
      own.merging && own.retention != kNoLevel && own.generation == core_.nodes()[to].generation;
  if (!has_own || std::pair(own.retention, own.until) <= std::pair(given.retention, given.until)) {
    own.retention = given.retention;
    own.until = given.until;
  }
  own.generation = core_.nodes()[to].generation;
  own.hint = own.merging ? kNormal : given.hint;  // a merge is the next use of the block
  own.keyed = true;
  given.was_idle = false;  // it was not evicted
  given.moved_to = to;
  for (auto& [id, chain] : pins_)
    for (std::size_t i = 0; i < chain.nodes.size(); ++i)
      if (chain.nodes[i] == from && chain.generations[i] == given.old_generation) {
        chain.nodes[i] = to;
        chain.generations[i] = own.generation;
      }
}

void Levels::before_call() {
  const std::vector<std::size_t> cached =
      core_.config().remap ? std::vector<std::size_t>(said_.size()) : contents();
  const std::vector<bool> ends = pin_ends();
  const std::vector<int> levels = due(ends);
  for (NodeId b = 0; b < core_.nodes().count; ++b) {
    Said& said = at(b);
    said.own = own_level(b, ends[static_cast<std::size_t>(b)]);
    said.level = levels[static_cast<std::size_t>(b)];
    said.was_idle = is_idle(b);
    said.block = core_.nodes().name(b);
    said.was_full = core_.nodes()[b].key_tokens == core_.config().block_size;
    said.old_generation = core_.nodes()[b].generation;
    said.was_retired = core_.nodes()[b].keyed() && core_.index().is_retired(b);
    said.content = cached[static_cast<std::size_t>(b)];
    said.merging = false;
    said.moved_to = b;
  }
}

void Levels::after_call(double now, bool forgets) {
  if (!core_.config().remap) follow_moves();
  const auto shares = static_cast<std::size_t>(core_.pool().num_partitions());
  std::vector<int> highest_gone(shares, kLow);
  std::vector<int> lowest_left(shares, kNumLevels);
  for (NodeId b = 0; b < core_.nodes().count; ++b) {
    Said& said = at(b);
    const Node& record = core_.nodes()[b];
    const bool same = said.old_generation == record.generation;
    const auto share = static_cast<std::size_t>(core_.pool().partition_of(b));
    if (said.was_idle && !same && said.was_full && !said.was_retired)
      highest_gone[share] = std::max(highest_gone[share], said.own);
    if (said.was_idle && same && is_idle(b) && !said.was_retired)
      lowest_left[share] = std::min(lowest_left[share], said.level);
    if (!same || (record.keyed() && !said.keyed)) said.hint = kNormal;
    said.keyed = record.keyed();
    if (said.until <= now) said.retention = kNoLevel;
  }
  higher_went_first_ = false;
  for (std::size_t share = 0; share < shares && !forgets; ++share)
    higher_went_first_ |= highest_gone[share] > lowest_left[share];
}

void Levels::found(const std::vector<NodeId>& blocks) {
  for (const NodeId b : blocks) at(b).hint = kNormal;
}

void Levels::retain(NodeId b, int level, double until) {
  Said& said = at(b);
  said.retention = until > core_.time() ? level : kNoLevel;
  said.until = until;
  said.generation = core_.nodes()[b].generation;
}

// The higher retention wins; of two equal ones, the longer. It is the next use of the block.
void Levels::inherit(NodeId from, NodeId cached) {
  at(cached).hint = kNormal;
  const Said& given = at(from);
  Said& own = at(cached);
  if (given.retention == kNoLevel || given.generation != given.old_generation) return;
  const bool retained =
      own.retention != kNoLevel && own.generation == core_.nodes()[cached].generation;
  if (retained && std::pair(given.retention, given.until) <= std::pair(own.retention, own.until))
    return;
  own.retention = given.retention;
  own.until = given.until;
  own.generation = core_.nodes()[cached].generation;
}

void Levels::pin(std::int64_t id, const std::vector<NodeId>& chain, int partition) {
  Chain& kept = pins_[id];
  kept.partition = partition;
  kept.nodes = chain;
  for (const NodeId b : chain) kept.generations.push_back(core_.nodes()[b].generation);
}

std::int64_t Levels::any_pin(std::size_t which) const {
  if (pins_.empty()) return 1;
  return std::next(pins_.begin(), static_cast<std::ptrdiff_t>(which % pins_.size()))->first;
}

int Levels::num_pins(int partition) const {
  return static_cast<int>(std::count_if(pins_.begin(), pins_.end(), [&](const auto& pin) {
    return pin.second.partition == partition;
  }));
}

std::int64_t Levels::num_pinned(int partition) const {
  const std::vector<int> levels = due(pin_ends());
  std::int64_t count = 0;
  for (NodeId b = 0; b < core_.nodes().count; ++b)
    count +=
        levels[static_cast<std::size_t>(b)] == kPinned && core_.pool().partition_of(b) == partition;
  return count;
}

std::int64_t Levels::num_unpinned(const std::vector<NodeId>& chain) const {
  const std::vector<int> levels = due(pin_ends());
  return std::count_if(chain.begin(), chain.end(),
                       [&](NodeId b) { return levels[static_cast<std::size_t>(b)] != kPinned; });
}

std::string Levels::wrong() const {
  if (higher_went_first_) return "a block was evicted while one of a lower level was idle";
  const std::vector<int> levels = due(pin_ends());
  for (NodeId b = 0; b < core_.nodes().count; ++b)
    if (core_.nodes()[b].keyed() && core_.level(b) != levels[static_cast<std::size_t>(b)])
      return "block " + std::to_string(b) + " is at level " + std::to_string(core_.level(b)) +
             ", expected " + std::to_string(levels[static_cast<std::size_t>(b)]);
  return {};
}

}  // namespace blockmgr::testing
