#include "replays/id_trace.h"

#include <algorithm>
#include <limits>

#include "memory/errors.h"
#include "memory/node.h"
#include "memory/tag_table.h"

namespace blockmgr {

namespace {

constexpr int kWordBits = 31;
constexpr Token kOutputToken = Token{1} << kWordBits;

// Numbers from 0 on for distinct keys, as many as there is room for.
class Numbered {
 public:
  explicit Numbered(std::size_t most) : tags_(most), table_(most, tags_.data(), sizeof(tags_[0])) {}
  // The number of a key, which it gets if it has none.
  std::int32_t of(std::uint64_t key) {
    const std::uint64_t tag = spread(key);
    const std::int32_t known = table_.find(tag);
    if (known >= 0) return known;
    tags_[count_] = tag;
    table_.insert(static_cast<std::int32_t>(count_));
    return static_cast<std::int32_t>(count_++);
  }

 private:
  // Every bit of the key in every bit of its tag, and different tags for different keys: two
  // multiplications by odd numbers between shifts (the finalizer of MurmurHash3). Keys at equal
  // distances could fall into few places of the table otherwise.
  static std::uint64_t spread(std::uint64_t key) {
    key = (key ^ key >> 33) * 0xff51afd7ed558ccdu;
    key = (key ^ key >> 33) * 0xc4ceb9fe1a85ec53u;
    return key ^ key >> 33;
  }

  ZeroedArray<std::uint64_t> tags_;
  TagTable table_;
  std::size_t count_ = 0;
};

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorKind::kValue, what); }

}  // namespace

IdTrace::IdTrace(int block_size, int tokens_per_id, int words, std::vector<std::string> spaces,
                 std::vector<IdRequest> requests, const std::vector<std::uint64_t>& ids)
    : block_size_(block_size),
      tokens_per_id_(tokens_per_id),
      words_(words),
      spaces_(std::move(spaces)),
      requests_(std::move(requests)) {
  if (block_size < 1 || tokens_per_id < block_size || tokens_per_id % block_size)
    refuse("block_size must divide the tokens of an id");
  if (words < 1) refuse("words must be at least 1");
  segment_blocks_ = tokens_per_id_ / block_size_;
  if (ids.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()) / 4)
    refuse("the trace has too many ids");
  Numbered known_ids(ids.size());
  Numbered known(ids.size());  // segments by parent and number of their id, roots left out
  std::vector<std::int32_t> segment_of;
  std::vector<std::int32_t> roots(spaces_.size(), -1);
  starts_.reserve(requests_.size() + 1);
  last_ids_.reserve(requests_.size());
  paths_.reserve(ids.size());
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max() / 4;
  std::size_t next = 0;
  for (const IdRequest& request : requests_) {
    if (request.num_tokens < 1 || request.num_tokens > kMost || request.num_output_tokens < 0 ||
        request.num_output_tokens > kMost || request.num_cached < 0 ||
        request.num_cached > blocks_for(request.num_tokens) || request.space < 0 ||
        request.space >= static_cast<std::int64_t>(spaces_.size()))
      refuse("a request is out of range");
    const auto count =
        static_cast<std::size_t>((request.num_tokens + tokens_per_id_ - 1) / tokens_per_id_);
    if (count > ids.size() - next) refuse("there are fewer ids than the prompts hold");
    starts_.push_back(paths_.size());
    std::int32_t& root = roots[static_cast<std::size_t>(request.space)];
    if (root < 0) {
      root = static_cast<std::int32_t>(segments_.size());
      segments_.push_back({.parent = -1, .id = static_cast<std::uint64_t>(request.space)});
    }
    std::int32_t at = root;
    const std::int64_t path = num_segments(request);
    for (std::int64_t i = 0; i < path; ++i) {
      const std::uint64_t id = ids[next + static_cast<std::size_t>(i)];
      // Most prompts go on as the one before them did.
      std::int32_t child = segments_[static_cast<std::size_t>(at)].last_child;
      if (child < 0 || segments_[static_cast<std::size_t>(child)].id != id) {
        const auto key =
            static_cast<std::uint64_t>(at) << 32 | static_cast<std::uint32_t>(known_ids.of(id));
        const auto number = static_cast<std::size_t>(known.of(key));
        if (number == segment_of.size()) {
          segment_of.push_back(static_cast<std::int32_t>(segments_.size()));
          segments_[static_cast<std::size_t>(at)].forks |=
              segments_[static_cast<std::size_t>(at)].last_child >= 0;
          segments_.push_back({.parent = at, .id = id});
        }
        child = segment_of[number];
        segments_[static_cast<std::size_t>(at)].last_child = child;
      }
      Segment& segment = segments_[static_cast<std::size_t>(child)];
      const std::int64_t reached =
          std::min(segment_blocks_, request.num_cached - i * segment_blocks_);
      segment.num_blocks = std::max(segment.num_blocks, static_cast<std::int32_t>(reached));
      paths_.push_back(child);
      at = child;
    }
    next += count;
    last_ids_.push_back(ids[next - 1]);
  }
  if (next != ids.size()) refuse("there are more ids than the prompts hold");
  starts_.push_back(paths_.size());
  for (Segment& segment : segments_) {
    segment.first_name = num_names_;
    num_names_ += segment.num_blocks;
  }
  first_own_.reserve(requests_.size());
  for (const IdRequest& request : requests_) {
    first_own_.push_back(num_names_);
    num_names_ += num_blocks(request) - request.num_cached;
  }
}

IdTrace::Cut IdTrace::cut(std::size_t request, std::int64_t blocks) const {
  if (!blocks) return {-1, 0};
  const std::int64_t before = (blocks - 1) / segment_blocks_;
  return {path(request)[before], blocks - before * segment_blocks_};
}

IdRuns IdTrace::runs(const std::vector<std::int64_t>& limits,
                     std::vector<std::int64_t>& out) const {
  if (limits.size() != requests_.size()) refuse("there must be a limit for each request");
  std::vector<Cut> asked;
  asked.reserve(2 * requests_.size());
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (limits[i] < 0 || limits[i] > requests_[i].num_cached) refuse("a limit is out of range");
    asked.push_back(cut(i, limits[i]));
    asked.push_back(cut(i, requests_[i].num_cached));
  }
  std::vector<Cut> cuts = asked;
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  IdRuns runs;
  std::vector<std::int64_t> ends(cuts.size(), -1);  // the run that ends at each cut
  std::vector<std::int64_t> last(segments_.size(), -1);
  std::vector<std::uint8_t> ends_whole(segments_.size(), 0);  // cut behind its last block
  std::size_t next = 0;
  while (next < cuts.size() && cuts[next].first < 0) ++next;
  for (std::size_t s = 0; s < segments_.size(); ++s) {
    const Segment& segment = segments_[s];
    if (!segment.num_blocks) continue;
    const auto parent = static_cast<std::size_t>(segment.parent);
    std::int64_t run = last[parent];
    bool goes_on = run >= 0 && !segments_[parent].forks && !ends_whole[parent];
    std::int64_t done = 0;
    const auto end_at = [&](std::int64_t place) {
      if (!goes_on) {
        runs.parent.push_back(run);
        runs.length.push_back(0);
        runs.end.push_back(run >= 0 ? runs.end[static_cast<std::size_t>(run)] : 0);
        run = static_cast<std::int64_t>(runs.parent.size()) - 1;
      }
      runs.length[static_cast<std::size_t>(run)] += place - done;
      runs.end[static_cast<std::size_t>(run)] += place - done;
      done = place;
      goes_on = false;
    };
    for (; next < cuts.size() && cuts[next].first == static_cast<std::int32_t>(s); ++next) {
      end_at(cuts[next].second);
      ends[next] = run;
    }
    ends_whole[s] = done == segment_blocks_;
    if (done < segment.num_blocks) end_at(segment.num_blocks);
    last[s] = run;
  }
  out.reserve(asked.size());
  for (const Cut& each : asked)
    out.push_back(ends[static_cast<std::size_t>(std::lower_bound(cuts.begin(), cuts.end(), each) -
                                                cuts.begin())]);
  return runs;
}

void IdTrace::names(std::size_t request, Token* out) const {
  const IdRequest& r = requests_[request];
  const std::int32_t* at = path(request);
  for (std::int64_t left = r.num_cached; left > 0; left -= segment_blocks_) {
    auto name = static_cast<Token>(segments_[static_cast<std::size_t>(*at++)].first_name);
    for (std::int64_t i = std::min(left, segment_blocks_); i-- > 0;) *out++ = name++;
  }
  auto name = static_cast<Token>(first_own_[request]);
  for (std::int64_t i = num_blocks(r) - r.num_cached; i-- > 0;) *out++ = name++;
}

// Tokens of an id from a position on: its words again and again.
void IdTrace::store_tokens(std::uint64_t id, std::int64_t from, std::int64_t count,
                           Token* out) const {
  if (words_ == 1) {
    std::fill_n(out, count, static_cast<Token>(id));
    return;
  }
  for (std::int64_t i = from; i < from + count; ++i) {
    const auto shift = static_cast<int>(i % words_) * kWordBits;
    *out++ = shift < 64 ? static_cast<Token>(id >> shift & (kOutputToken - 1)) : 0;
  }
}

std::vector<std::uint8_t> IdTrace::digests(Digester& digester) const {
  const auto size = static_cast<std::size_t>(digester.size());
  std::vector<std::uint8_t> table(static_cast<std::size_t>(num_names_) * size);
  const auto at = [&](std::int64_t name) {
    return table.data() + static_cast<std::size_t>(name) * size;
  };
  std::vector<std::uint8_t> roots(spaces_.size() * size);
  const auto root = [&](std::uint64_t space) {
    return roots.data() + static_cast<std::size_t>(space) * size;
  };
  for (std::size_t i = 0; i < spaces_.size(); ++i) digester.digest_root(spaces_[i], root(i));
  std::vector<Token> tokens(static_cast<std::size_t>(block_size_));
  const auto block = static_cast<int>(block_size_);
  for (const Segment& segment : segments_) {
    if (segment.parent < 0) continue;
    const Segment& parent = segments_[static_cast<std::size_t>(segment.parent)];
    const std::uint8_t* before =
        parent.parent < 0 ? root(parent.id) : at(parent.first_name + parent.num_blocks - 1);
    for (std::int64_t i = 0; i < segment.num_blocks; ++i) {
      if (words_ > 1 || !i) store_tokens(segment.id, i * block_size_, block_size_, tokens.data());
      std::uint8_t* own = at(segment.first_name + i);
      digest_block_with(digester, digester.size(), before, {}, tokens.data(), block, own);
      before = own;
    }
  }
  for (std::size_t r = 0; r < requests_.size(); ++r) {
    const IdRequest& request = requests_[r];
    const std::int64_t all = request.num_tokens + request.num_output_tokens;
    const Cut end = cut(r, request.num_cached);
    const std::uint8_t* before =
        request.num_cached
            ? at(segments_[static_cast<std::size_t>(end.first)].first_name + end.second - 1)
            : root(static_cast<std::uint64_t>(request.space));
    const Token output = kOutputToken + static_cast<Token>((r + 1) % kOutputToken);
    // The last token of an output is never computed.
    for (std::int64_t i = request.num_cached; i < (all - 1) / block_size_; ++i) {
      const std::int64_t prompt =
          std::clamp<std::int64_t>(request.num_tokens - i * block_size_, 0, block_size_);
      if (prompt)
        store_tokens(last_ids_[r], i * block_size_ % tokens_per_id_, prompt, tokens.data());
      std::fill(tokens.begin() + prompt, tokens.end(), output);
      std::uint8_t* own = at(first_own_[r] + i - request.num_cached);
      digest_block_with(digester, digester.size(), before, {}, tokens.data(), block, own);
      before = own;
    }
  }
  return table;
}

}  // namespace blockmgr
