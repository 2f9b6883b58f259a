// The table of the prefix index: node ids by digest, in buckets of one cache line.
//
// A bucket has twelve places, each for a node id and a byte of its digest, and counts the nodes
// that passed it because it was full: a search goes on to the next bucket only if there are any.
// So whatever is looked up, entered or taken out concerns one cache line as a rule. Nothing moves
// up when a node is taken out, which would take the digests of the nodes behind it: a cache miss
// each, and branches that no predictor can predict.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "memory/node.h"
#include "memory/secret.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace blockmgr {

class Buckets {
 public:
  // For so many nodes: only those with a block are ever entered, so as many as there are blocks.
  explicit Buckets(int num_nodes);

  void insert(NodeId b, const std::uint8_t* digest) noexcept;
  // Takes out a node that was entered with this digest.
  void erase(NodeId b, const std::uint8_t* digest) noexcept;
  // The first node that may have this digest and is wanted, or kNoNode.
  template <class Wanted>
  NodeId find(const std::uint8_t* digest, Wanted wanted) const {
    const std::size_t start = home(digest);
    std::size_t i = start;
    do {
      const Bucket& bucket = buckets_[i];
      for (unsigned places = bucket.marked(mark_of(digest)); places; places &= places - 1) {
        const NodeId b = bucket.nodes[std::countr_zero(places)];
        if (wanted(b)) return b;
      }
      if (!bucket.passed) break;
      i = next(i);
    } while (i != start);
    return kNoNode;
  }
  void prefetch(const std::uint8_t* digest) const { blockmgr::prefetch(&buckets_[home(digest)]); }
  std::size_t bytes() const { return buckets_.bytes(); }

  // For check_invariants: every node the table holds.
  template <class Visit>
  void each(Visit visit) const {
    for (std::size_t i = 0; i < buckets_.size(); ++i)
      for (int place = 0; place < kPlaces; ++place)
        if (buckets_[i].marks[place]) visit(buckets_[i].nodes[place]);
  }
  // Likewise: whether each node has its mark, and each bucket counts those that passed it.
  bool adds_up(const Nodes& nodes) const;
  // Buckets in a row that a search goes past, at most. Cost: O(buckets).
  std::int64_t longest_run() const {
    return longest_row(buckets_.size(), [&](std::size_t i) { return buckets_[i].passed != 0; });
  }

 private:
  static constexpr int kPlaces = 12;
  struct alignas(64) Bucket {
    std::uint8_t marks[kPlaces];  // 0: the place is empty
    std::uint32_t passed;
    NodeId nodes[kPlaces];

    // The places with this mark, a bit each.
    unsigned marked(std::uint8_t mark) const {
#if defined(__SSE2__)
      const __m128i line = _mm_load_si128(reinterpret_cast<const __m128i*>(this));
      const __m128i equal = _mm_cmpeq_epi8(line, _mm_set1_epi8(static_cast<char>(mark)));
      return static_cast<unsigned>(_mm_movemask_epi8(equal)) & ((1u << kPlaces) - 1);
#else
      unsigned places = 0;
      for (int place = 0; place < kPlaces; ++place)
        places |= static_cast<unsigned>(marks[place] == mark) << place;
      return places;
#endif
    }
  };
  static_assert(sizeof(Bucket) == 64, "one bucket, one cache line");

  // Who chooses a prompt chooses its digests.
  std::size_t home(const std::uint8_t* digest) const {
    return static_cast<std::size_t>((first_eight(digest) * secret_ >> 32) * buckets_.size() >> 32);
  }
  static std::uint8_t mark_of(const std::uint8_t* digest) { return digest[4] ? digest[4] : 1; }
  std::size_t next(std::size_t i) const { return i + 1 == buckets_.size() ? 0 : i + 1; }

  std::uint64_t secret_;
  ZeroedArray<Bucket> buckets_;
};

}  // namespace blockmgr
