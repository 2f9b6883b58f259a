#include "policies/ghosts.h"

namespace blockmgr {

GhostSet::GhostSet(int num_lists, int capacity)
    : nodes_(static_cast<std::size_t>(capacity)),
      buckets_(2 * static_cast<std::size_t>(capacity) + 1),
      lists_(static_cast<std::size_t>(num_lists)) {
  for (std::int32_t i = capacity; i-- > 0;) {
    node(i) = {0, -1, unused_, kNone};
    unused_ = i;
  }
}

std::size_t GhostSet::bucket_of(Tag tag) const noexcept {
  std::size_t bucket = home(tag);
  while (buckets_[bucket] && node(buckets_[bucket] - 1).tag != tag) bucket = next(bucket);
  return bucket;
}

int GhostSet::find(Tag tag) const noexcept {
  const std::int32_t entry = buckets_[bucket_of(tag)];
  return entry ? node(entry - 1).list : kNone;
}

void GhostSet::remove(std::size_t bucket) noexcept {
  const std::int32_t i = buckets_[bucket] - 1;
  Node& ghost = node(i);
  List& list = lists_[static_cast<std::size_t>(ghost.list)];
  (ghost.prev >= 0 ? node(ghost.prev).next : list.oldest) = ghost.next;
  (ghost.next >= 0 ? node(ghost.next).prev : list.newest) = ghost.prev;
  --list.size;
  --num_ghosts_;
  ghost = {0, -1, unused_, kNone};
  unused_ = i;
  // Whatever was pushed past this bucket moves up, so that no search ends too early.
  std::size_t hole = bucket;
  for (std::size_t at = next(bucket); buckets_[at]; at = next(at)) {
    const std::size_t wanted = home(node(buckets_[at] - 1).tag);
    if (distance(wanted, at) >= distance(hole, at)) {
      buckets_[hole] = buckets_[at];
      hole = at;
    }
  }
  buckets_[hole] = 0;
}

int GhostSet::erase(Tag tag) noexcept {
  const std::size_t bucket = bucket_of(tag);
  if (!buckets_[bucket]) return kNone;
  const int list = node(buckets_[bucket] - 1).list;
  remove(bucket);
  return list;
}

void GhostSet::drop_oldest(int list) noexcept {
  const std::int32_t oldest = lists_[static_cast<std::size_t>(list)].oldest;
  if (oldest >= 0) remove(bucket_of(node(oldest).tag));
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
  buckets_[bucket_of(tag)] = i + 1;
}

}  // namespace blockmgr
