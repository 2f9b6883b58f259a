#include "policies/ghosts.h"

#include <set>

#include "checks/audit.h"

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

void GhostSet::audit(BlockAudit& audit) const {
  std::set<Tag> tags;
  int total = 0;
  for (int l = 0; l < static_cast<int>(lists_.size()); ++l) {
    const List& list = lists_[static_cast<std::size_t>(l)];
    int length = 0;
    std::int32_t before = -1;
    for (std::int32_t i = list.oldest; i >= 0 && length <= capacity(); i = node(i).next) {
      audit.expect(node(i).list == l && node(i).prev == before,
                   "a list of ghosts is not linked right");
      audit.expect(tags.insert(node(i).tag).second, "a ghost is remembered twice");
      audit.expect(buckets_[bucket_of(node(i).tag)] == i + 1, "a ghost cannot be found");
      before = i;
      ++length;
    }
    audit.expect(before == list.newest && length == list.size, "a list of ghosts is miscounted");
    total += length;
  }
  audit.expect(total == num_ghosts_ && total <= capacity(), "there are more ghosts than allowed");
  std::size_t filled = 0;
  for (std::size_t i = 0; i < buckets_.size(); ++i) filled += buckets_[i] != 0;
  audit.expect(filled == static_cast<std::size_t>(total), "the table of ghosts has stale entries");
}

void GhostSet::fingerprint(std::string& out) const {
  for (const List& list : lists_) {
    out += "g ";
    for (std::int32_t i = list.oldest; i >= 0; i = node(i).next) put_numbers(out, node(i).tag);
  }
}

}  // namespace blockmgr
