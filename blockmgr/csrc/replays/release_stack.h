// Idle blocks in order of release, and how large a pool must have been to keep them.
//
// above(r) is the number of blocks of release r and all later ones. Whenever blocks are taken while
// `used` others are in use, a pool keeps the last block of r only if it has used + above(r) blocks.
// distance(r) is the largest of these numbers since r.
//
// Releases come in chunks of about the square root of their number. A change to all releases below
// one is a loop within its chunk and one number for each other chunk, added to what a chunk holds
// when it is next looked into.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace blockmgr {

class ReleaseStack {
 public:
  explicit ReleaseStack(std::int64_t most_releases);

  // A release of so many blocks: its number, counted from 0.
  std::int64_t push(std::int64_t blocks);
  // Takes blocks out of a release, because they are in use again.
  void remove(std::int64_t release, std::int64_t blocks) { add(place(release), -blocks); }
  // Blocks were taken, so many are in use.
  void record(std::int64_t used);
  // Blocks that a pool must have had to keep the last block of the release; far below 0 if no block
  // was taken since.
  std::int64_t distance(std::int64_t release) const;

 private:
  static constexpr std::int64_t kNever = -(std::int64_t{1} << 60);
  struct Entry {
    std::int64_t above = 0;
    std::int64_t largest = kNever;
  };
  // Not yet in the chunk: what was added, and the largest of used + added in between.
  struct Chunk {
    std::int64_t added = 0;
    std::int64_t recorded = kNever;
  };
  static std::size_t place(std::int64_t release) { return static_cast<std::size_t>(release); }
  void add(std::size_t release, std::int64_t blocks);
  void settle(std::size_t chunk);

  std::size_t size_;  // releases of a chunk
  std::vector<Entry> entries_;
  std::vector<Chunk> chunks_;
};

}  // namespace blockmgr
