#include "policies/ghosts.h"

namespace blockmgr {

GhostSet::GhostSet(int num_lists, int capacity)
    : capacity_(capacity),
      nodes_(static_cast<std::size_t>(capacity + num_lists)),
      table_(static_cast<std::size_t>(capacity), &nodes_.data()->tag, sizeof(Node)),
      sizes_(static_cast<std::size_t>(num_lists)) {
  for (int l = 0; l < num_lists; ++l) ring::clear(nodes_.data(), end(l));
  for (std::int32_t i = capacity; i-- > 0;) {
    node(i) = {0, -1, unused_, kNone};
    unused_ = i;
  }
}

void GhostSet::remove(std::int32_t i) noexcept {
  table_.erase(i);
  Node& ghost = node(i);
  ring::remove(nodes_.data(), i);
  --sizes_[static_cast<std::size_t>(ghost.list)];
  --num_ghosts_;
  ghost = {0, -1, unused_, kNone};
  unused_ = i;
}

int GhostSet::erase(Tag tag) noexcept {
  const std::int32_t i = table_.find(tag);
  if (i < 0) return kNone;
  const int list = node(i).list;
  remove(i);
  return list;
}

void GhostSet::drop_oldest(int list) noexcept {
  if (size(list)) remove(node(end(list)).next);
}

void GhostSet::push(int list, Tag tag) noexcept {
  if (!capacity_) return;
  erase(tag);
  if (unused_ < 0) {
    int from = list;
    for (int other = 0; other < num_lists() && !size(list); ++other)
      if (size(other) > size(from)) from = other;
    drop_oldest(from);
  }
  const std::int32_t i = unused_;
  Node& ghost = node(i);
  unused_ = ghost.next;
  ghost.tag = tag;
  ghost.list = list;
  ring::insert_before(nodes_.data(), i, end(list));
  ++sizes_[static_cast<std::size_t>(list)];
  ++num_ghosts_;
  table_.insert(i);
}

}  // namespace blockmgr
