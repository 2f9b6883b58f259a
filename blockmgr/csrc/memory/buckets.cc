#include "memory/buckets.h"

#include <vector>

namespace blockmgr {

// 8.5 bytes a block: 1.6 places each. With 7.5 blocks in a bucket on average, one in twenty-three
// has sent some on to the next when all blocks are cached.
static std::size_t buckets_for(int num_nodes) {
  return static_cast<std::size_t>(num_nodes) * 17 / 128 + 1;
}

// Every page is met here, and not within admissions.
Buckets::Buckets(int num_nodes) : secret_(drawn_secret() | 1), buckets_(buckets_for(num_nodes)) {
  buckets_.prefer_huge_pages();
  for (std::size_t i = 0; i < buckets_.size(); ++i) buckets_[i] = Bucket{};
}

void Buckets::insert(NodeId b, const std::uint8_t* digest) noexcept {
  std::size_t i = home(digest);
  while (!buckets_[i].marked(0)) {
    ++buckets_[i].passed;
    i = next(i);
  }
  Bucket& bucket = buckets_[i];
  const int place = std::countr_zero(bucket.marked(0));
  bucket.marks[place] = mark_of(digest);
  bucket.nodes[place] = b;
}

void Buckets::erase(NodeId b, const std::uint8_t* digest) noexcept {
  const std::uint8_t mark = mark_of(digest);
  for (std::size_t i = home(digest);; i = next(i)) {
    Bucket& bucket = buckets_[i];
    for (unsigned places = bucket.marked(mark); places; places &= places - 1) {
      const int place = std::countr_zero(places);
      if (bucket.nodes[place] != b) continue;
      bucket.marks[place] = 0;
      return;
    }
    --bucket.passed;
  }
}

bool Buckets::adds_up(const Nodes& nodes) const {
  std::vector<std::uint32_t> passed(buckets_.size());
  bool holds = true;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    for (int place = 0; place < kPlaces; ++place) {
      if (!buckets_[i].marks[place]) continue;
      const std::uint8_t* digest = nodes.digest(buckets_[i].nodes[place]);
      holds &= buckets_[i].marks[place] == mark_of(digest);
      for (std::size_t at = home(digest); at != i; at = next(at)) ++passed[at];
    }
  }
  for (std::size_t i = 0; i < buckets_.size(); ++i) holds &= buckets_[i].passed == passed[i];
  return holds;
}

}  // namespace blockmgr
