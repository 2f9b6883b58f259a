#include "replays/release_stack.h"

#include <algorithm>
#include <cmath>

namespace blockmgr {

ReleaseStack::ReleaseStack(std::int64_t most_releases)
    : size_(static_cast<std::size_t>(
                std::sqrt(static_cast<double>(std::max<std::int64_t>(1, most_releases)))) +
            1) {}

std::int64_t ReleaseStack::push(std::int64_t blocks) {
  if (entries_.size() % size_ == 0) chunks_.emplace_back();
  settle(chunks_.size() - 1);
  entries_.emplace_back();
  add(entries_.size() - 1, blocks);
  return static_cast<std::int64_t>(entries_.size()) - 1;
}

void ReleaseStack::record(std::int64_t used) {
  for (Chunk& chunk : chunks_) chunk.recorded = std::max(chunk.recorded, chunk.added + used);
}

std::int64_t ReleaseStack::distance(std::int64_t release) const {
  const Entry& entry = entries_[place(release)];
  return std::max(entry.largest, entry.above + chunks_[place(release) / size_].recorded);
}

void ReleaseStack::add(std::size_t release, std::int64_t blocks) {
  const std::size_t chunk = release / size_;
  settle(chunk);
  for (std::size_t i = chunk * size_; i <= release; ++i) entries_[i].above += blocks;
  for (std::size_t i = 0; i < chunk; ++i) chunks_[i].added += blocks;
}

// Brings a chunk up to date.
void ReleaseStack::settle(std::size_t chunk) {
  Chunk& pending = chunks_[chunk];
  const std::size_t end = std::min(entries_.size(), (chunk + 1) * size_);
  for (std::size_t i = chunk * size_; i < end; ++i) {
    Entry& entry = entries_[i];
    entry.largest = std::max(entry.largest, entry.above + pending.recorded);
    entry.above += pending.added;
  }
  pending = {};
}

}  // namespace blockmgr
