#include "policies/ghosts.h"

namespace blockmgr {

GhostSet::GhostSet(int num_lists, int capacity)
    : nodes_(static_cast<std::size_t>(capacity)),
      table_(nodes_.size(), &nodes_.data()->tag, sizeof(Node)),
      lists_(static_cast<std::size_t>(num_lists)) {
  for (std::int32_t i = capacity; i-- > 0;) {
    node(i) = {0, -1, unused_, kNone};
    unused_ = i;
  }
}

int GhostSet::find(Tag tag) const noexcept {
  const std::int32_t i = table_.find(tag);
  return i < 0 ? kNone : node(i).list;
}

void GhostSet::remove(std::int32_t i) noexcept {
  table_.erase(i);
  Node& ghost = node(i);
  List& list = lists_[static_cast<std::size_t>(ghost.list)];
  (ghost.prev >= 0 ? node(ghost.prev).next : list.oldest) = ghost.next;
  (ghost.next >= 0 ? node(ghost.next).prev : list.newest) = ghost.prev;
  --list.size;
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
  const std::int32_t oldest = lists_[static_cast<std::size_t>(list)].oldest;
  if (oldest >= 0) remove(oldest);
}

void GhostSet::push(int list, Tag tag) noexcept {
  if (!nodes_.size()) return;
  erase(tag);
  if (unused_ < 0) {
    int from = list;
    for (int other = 0; other < static_cast<int>(lists_.size()) && !size(list); ++other)
      if (size(other) > size(from)) from = other;
    drop_oldest(from);
  }
  const std::int32_t i = unused_;
  Node& ghost = node(i);
  unused_ = ghost.next;
  List& home_list = lists_[static_cast<std::size_t>(list)];
  ghost = {tag, home_list.newest, -1, list};
  (home_list.newest >= 0 ? node(home_list.newest).next : home_list.oldest) = i;
  home_list.newest = i;
  ++home_list.size;
  ++num_ghosts_;
  table_.insert(i);
}

}  // namespace blockmgr
