// Lists of block copies: whether one may be launched in any order, and the order that makes an
// arbitrary one right.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

namespace blockmgr {

// A list that must not be launched. pair: the copy at fault.
struct CopyFault : std::exception {
  CopyFault(std::int64_t pair, std::string problem) : pair(pair), problem(std::move(problem)) {}
  const char* what() const noexcept override { return problem.c_str(); }
  std::int64_t pair;
  std::string problem;
};

// Checks lists against one pool (or from one pool to another), and packs them for a launch:
//
//   row      0              1 ...                 count
//   int32  [ count, 0, 0 ][ source, destination, num_tokens ] ...
//
// A list is kept after its check, so that a long one can be packed piece by piece. marks_[b] is the
// number of the last check that saw block b as a destination: nothing is cleared between checks,
// and no check allocates once a list as long has been seen.
class CopyChecker {
 public:
  // one_pool: sources and destinations name the same blocks, so that they have to be disjoint.
  CopyChecker(std::int32_t num_sources, std::int32_t num_destinations, std::int32_t block_size,
              bool one_pool);

  // num_tokens: nullptr for whole blocks. Throws CopyFault; the list kept before is gone then.
  void check(const std::int64_t* sources, const std::int64_t* destinations,
             const std::int64_t* num_tokens, std::int64_t size);
  // Blocks to fill with zeros, in any order and any number of times: source -1.
  void check_blocks(const std::int64_t* blocks, std::int64_t size);

  std::int64_t size() const { return static_cast<std::int64_t>(rows_.size()); }
  // As many pairs as fit into the rows after the first, from pair `start` on; how many that are.
  std::int64_t pack(std::int64_t start, std::int32_t* out, std::int64_t num_rows) const;

 private:
  struct Row {
    std::int32_t source, destination, num_tokens;
  };

  void begin(std::int64_t size);
  std::int64_t writer_of(std::int32_t block) const;

  std::int32_t num_sources_;
  std::int32_t num_destinations_;
  std::int32_t block_size_;
  bool one_pool_;
  std::uint32_t check_ = 0;
  std::vector<std::uint32_t> marks_;
  std::vector<Row> rows_;
};

// Moves in groups. Groups touch different blocks wherever one of them writes, so they may run at
// the same time; the moves of one group run in order. kRegister stands for a register as wide as
// whatever is moved: a cycle is one block saved there, the others moved up, and the saved one
// written last.
//
//   b <- a, c <- b      (b, c), (a, b)                  readers of b before the write of b
//   a <-> b             (a, reg), (b, a), (reg, b)
inline constexpr std::int32_t kRegister = -1;

struct Move {
  std::int32_t source, destination;
};

struct MoveGroups {
  std::vector<std::int32_t> starts;  // of each group in moves, and one past the last
  std::vector<Move> moves;
};

// What the copies come to, each block written at most once. sequential: as if they were done one
// after the other; otherwise as if everything was read before anything is written, and a block
// that is written twice throws CopyFault. O(size) whatever num_blocks is.
MoveGroups order_copies(const std::int64_t* sources, const std::int64_t* destinations,
                        std::int64_t size, std::int64_t num_blocks, bool sequential);

}  // namespace blockmgr
