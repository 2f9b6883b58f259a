#include "sequences/copy_order.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace blockmgr {

namespace {

std::string outside(const char* what, const std::string& bound, std::int64_t value) {
  return std::string(what) + " must be in " + bound + ", got " + std::to_string(value);
}

void check_id(std::int64_t pair, const char* what, std::int64_t value, std::int64_t limit) {
  if (value < 0 || value >= limit)
    throw CopyFault(pair, outside(what, "[0, " + std::to_string(limit) + ")", value));
}

std::string also_written_by(const char* what, std::int64_t block, std::int64_t pair) {
  return std::string(what) + " " + std::to_string(block) + " is the destination of pair " +
         std::to_string(pair);
}

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

}  // namespace

CopyChecker::CopyChecker(std::int32_t num_sources, std::int32_t num_destinations,
                         std::int32_t block_size, bool one_pool)
    : num_sources_(num_sources),
      num_destinations_(num_destinations),
      block_size_(block_size),
      one_pool_(one_pool),
      marks_(at(num_destinations)) {}

void CopyChecker::begin(std::int64_t size) {
  rows_.clear();
  rows_.reserve(at(size));
  if (++check_ == 0) {  // after 2^32 checks the numbers start again
    std::fill(marks_.begin(), marks_.end(), 0);
    check_ = 1;
  }
}

std::int64_t CopyChecker::writer_of(std::int32_t block) const {
  const auto row = std::find_if(rows_.begin(), rows_.end(),
                                [=](const Row& r) { return r.destination == block; });
  return row - rows_.begin();
}

void CopyChecker::check(const std::int64_t* sources, const std::int64_t* destinations,
                        const std::int64_t* num_tokens, std::int64_t size) {
  begin(size);
  try {
    for (std::int64_t i = 0; i < size; ++i) {
      const std::int64_t tokens = num_tokens ? num_tokens[i] : block_size_;
      check_id(i, "source", sources[i], num_sources_);
      check_id(i, "destination", destinations[i], num_destinations_);
      if (tokens < 1 || tokens > block_size_)
        throw CopyFault(i,
                        outside("num_tokens", "[1, " + std::to_string(block_size_) + "]", tokens));
      const Row row{static_cast<std::int32_t>(sources[i]),
                    static_cast<std::int32_t>(destinations[i]), static_cast<std::int32_t>(tokens)};
      std::uint32_t& mark = marks_[at(row.destination)];
      if (mark == check_)
        throw CopyFault(
            i,
            also_written_by("destination", row.destination, writer_of(row.destination)) + " too");
      mark = check_;
      rows_.push_back(row);
    }
    for (std::size_t i = 0; one_pool_ && i < rows_.size(); ++i) {
      const std::int32_t source = rows_[i].source;
      if (marks_[at(source)] == check_)
        throw CopyFault(static_cast<std::int64_t>(i),
                        also_written_by("source", source, writer_of(source)));
    }
  } catch (...) {
    rows_.clear();
    throw;
  }
}

void CopyChecker::check_blocks(const std::int64_t* blocks, std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) check_id(i, "block", blocks[i], num_destinations_);
  begin(size);
  for (std::int64_t i = 0; i < size; ++i)
    rows_.push_back({-1, static_cast<std::int32_t>(blocks[i]), block_size_});
}

std::int64_t CopyChecker::pack(std::int64_t start, std::int32_t* out, std::int64_t num_rows) const {
  const std::int64_t count = std::clamp<std::int64_t>(size() - start, 0, num_rows - 1);
  *out++ = static_cast<std::int32_t>(count);
  *out++ = 0;
  *out++ = 0;
  for (std::int64_t i = start; i < start + count; ++i) {
    const Row& row = rows_[at(i)];
    *out++ = row.source;
    *out++ = row.destination;
    *out++ = row.num_tokens;
  }
  return count;
}

namespace {

// The blocks of a list, numbered in the order in which they first appear: vertex 0, 1, ...
class Vertices {
 public:
  explicit Vertices(std::int64_t size) {
    numbers_.reserve(at(2 * size));
    blocks.reserve(at(2 * size));
  }
  std::int32_t number(std::int64_t block) {
    const auto [place, added] =
        numbers_.try_emplace(block, static_cast<std::int32_t>(blocks.size()));
    if (added) blocks.push_back(static_cast<std::int32_t>(block));
    return place->second;
  }
  std::vector<std::int32_t> blocks;

 private:
  std::unordered_map<std::int64_t, std::int32_t> numbers_;
};

constexpr std::int32_t kNone = -1;

// root[x]: whose content vertex x ends with. Only vertices with root[x] != x are written.
std::vector<std::int32_t> collapse(const std::int64_t* sources, const std::int64_t* destinations,
                                   std::int64_t size, std::int64_t num_blocks, bool sequential,
                                   Vertices& vertices) {
  std::vector<std::int32_t> root;
  std::vector<std::int32_t> writer;  // last pair that wrote the vertex
  root.reserve(at(2 * size));
  writer.reserve(at(2 * size));
  const auto vertex = [&](std::int64_t block) {
    const std::int32_t x = vertices.number(block);
    if (at(x) == root.size()) {
      root.push_back(x);
      writer.push_back(kNone);
    }
    return at(x);
  };
  for (std::int64_t i = 0; i < size; ++i) {
    check_id(i, "source", sources[i], num_blocks);
    check_id(i, "destination", destinations[i], num_blocks);
    const std::size_t source = vertex(sources[i]);
    const std::size_t destination = vertex(destinations[i]);
    if (!sequential && writer[destination] != kNone)
      throw CopyFault(
          i, also_written_by("destination", destinations[i], writer[destination]) + " too");
    writer[destination] = static_cast<std::int32_t>(i);
    root[destination] = sequential ? root[source] : static_cast<std::int32_t>(source);
  }
  return root;
}

}  // namespace

MoveGroups order_copies(const std::int64_t* sources, const std::int64_t* destinations,
                        std::int64_t size, std::int64_t num_blocks, bool sequential) {
  Vertices vertices(size);
  const std::vector<std::int32_t> root =
      collapse(sources, destinations, size, num_blocks, sequential, vertices);
  const auto count = static_cast<std::int32_t>(root.size());
  const auto written = [&](std::int32_t x) { return root[at(x)] != x; };

  // Vertices without further readers first; the rest are cycles, each read by the next.
  std::vector<std::int32_t> readers(at(count));
  for (std::int32_t x = 0; x < count; ++x)
    if (written(x)) ++readers[at(root[at(x)])];
  std::vector<std::int32_t> order;
  order.reserve(at(count));
  for (std::int32_t x = 0; x < count; ++x)
    if (written(x) && !readers[at(x)]) order.push_back(x);
  for (std::size_t next = 0; next < order.size(); ++next) {
    const std::int32_t source = root[at(order[next])];
    if (written(source) && --readers[at(source)] == 0) order.push_back(source);
  }

  // A vertex goes into the group of its source if that is written, because the source has to wait;
  // else it starts a group. Sources come after their readers, so the loop runs backwards.
  std::vector<std::int32_t> group(at(count), kNone);
  std::vector<std::int32_t> length;  // moves of each group
  std::vector<std::int32_t> cycles;  // one vertex of each
  for (std::int32_t x = 0; x < count; ++x) {
    if (!written(x) || !readers[at(x)] || group[at(x)] != kNone) continue;
    cycles.push_back(x);
    length.push_back(2);  // into the register, and out of it
    const auto number = static_cast<std::int32_t>(length.size() - 1);
    for (std::int32_t y = x; group[at(y)] == kNone; y = root[at(y)]) group[at(y)] = number;
    for (std::int32_t y = root[at(x)]; y != x; y = root[at(y)]) ++length.back();
  }
  for (auto x = order.rbegin(); x != order.rend(); ++x) {
    const std::int32_t source = root[at(*x)];
    if (!written(source)) {
      group[at(*x)] = static_cast<std::int32_t>(length.size());
      length.push_back(1);
    } else {
      group[at(*x)] = group[at(source)];
      ++length[at(group[at(*x)])];
    }
  }

  MoveGroups result;
  result.starts.resize(length.size() + 1);
  for (std::size_t g = 0; g < length.size(); ++g)
    result.starts[g + 1] = result.starts[g] + length[g];
  result.moves.resize(at(result.starts.back()));
  std::vector<std::int32_t> next(result.starts.begin(), result.starts.end() - 1);
  const auto add = [&](std::int32_t g, std::int32_t source, std::int32_t destination) {
    const auto block = [&](std::int32_t x) { return x < 0 ? kRegister : vertices.blocks[at(x)]; };
    result.moves[at(next[at(g)]++)] = {block(source), block(destination)};
  };
  for (const std::int32_t x : order) add(group[at(x)], root[at(x)], x);
  for (const std::int32_t x : cycles) {
    const std::int32_t g = group[at(x)];
    add(g, x, kRegister);
    std::int32_t y = x;
    for (; root[at(y)] != x; y = root[at(y)]) add(g, root[at(y)], y);
    add(g, kRegister, y);
  }
  return result;
}

}  // namespace blockmgr
