// A trace whose prompts are lists of ids, each of which stands for the same tokens wherever it is.
//
// Paths of prompts form a forest of segments, one tree a namespace. A segment is the blocks of one
// id behind one prefix. Each block of a segment has a name, and so has each block of an output,
// which no prompt shares: equal names are equal prefixes.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "identity/digest.h"

namespace blockmgr {

struct IdRequest {
  std::int64_t arrival_ms;
  std::int64_t service_ms;
  std::int64_t num_tokens;
  std::int64_t num_output_tokens;  // tokens of an output that blocks are held for
  std::int64_t num_cached;  // leading blocks of the prompt that are cached when it is admitted
  std::int64_t space;       // number of its namespace
};

// The forest cut into runs, see blockmgr.lab.runs. Runs of a path have growing numbers.
struct IdRuns {
  std::vector<std::int64_t> parent;  // -1: none
  std::vector<std::int64_t> length;
  std::vector<std::int64_t> end;
};

class IdTrace {
 public:
  // words: how many words of 31 bits an id takes as tokens, see blockmgr.lab.request. The ids of
  // all prompts one after another.
  IdTrace(int block_size, int tokens_per_id, int words, std::vector<std::string> spaces,
          std::vector<IdRequest> requests, const std::vector<std::uint64_t>& ids);

  std::int64_t block_size() const { return block_size_; }
  const std::vector<IdRequest>& requests() const { return requests_; }
  const std::string& space(const IdRequest& request) const {
    return spaces_[static_cast<std::size_t>(request.space)];
  }
  std::int64_t num_names() const { return num_names_; }

  // Cuts the forest behind so many leading blocks of each request's prompt, and again where its
  // cached blocks end. The runs that end there go into out, two a request; -1: no blocks.
  IdRuns runs(const std::vector<std::int64_t>& limits, std::vector<std::int64_t>& out) const;

  // The rest is for requests whose cached blocks are the full ones of their prompts.
  // Blocks of a request from the first of its prompt to the last of its output.
  std::int64_t num_blocks(const IdRequest& request) const {
    return blocks_for(request.num_tokens + request.num_output_tokens);
  }
  std::int64_t blocks_for(std::int64_t tokens) const {
    return (tokens + block_size_ - 1) / block_size_;
  }
  // Their names, so many.
  void names(std::size_t request, Token* out) const;
  // The digest that a manager with blocks of block_size() tokens computes of each name, where it
  // ever caches it: one after another.
  std::vector<std::uint8_t> digests(Digester& digester) const;

 private:
  struct Segment {
    std::int32_t parent;  // -1: a root, which has no blocks
    std::int32_t num_blocks = 0;
    std::uint64_t id;  // of a root: its namespace
    std::int64_t first_name = 0;
    std::int32_t last_child = -1;
    bool forks = false;  // it has two children or more
  };
  std::int64_t num_segments(const IdRequest& request) const {
    return (request.num_cached + segment_blocks_ - 1) / segment_blocks_;
  }
  const std::int32_t* path(std::size_t request) const { return paths_.data() + starts_[request]; }
  // Segment and number of its blocks with which so many leading blocks of a request end.
  using Cut = std::pair<std::int32_t, std::int64_t>;
  Cut cut(std::size_t request, std::int64_t blocks) const;
  void store_tokens(std::uint64_t id, std::int64_t from, std::int64_t count, Token* out) const;

  std::int64_t block_size_;
  std::int64_t tokens_per_id_;
  std::int64_t segment_blocks_;
  int words_;
  std::vector<std::string> spaces_;
  std::vector<IdRequest> requests_;
  std::vector<Segment> segments_;
  std::vector<std::int32_t> paths_;      // of all requests, without roots
  std::vector<std::size_t> starts_;      // of each request's path, and the end
  std::vector<std::uint64_t> last_ids_;  // of each prompt
  std::vector<std::int64_t> first_own_;  // names of each request's own blocks
  std::int64_t num_names_ = 0;
};

}  // namespace blockmgr
