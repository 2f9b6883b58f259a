// What of a prompt running sequences are computing: blocks that will be findable soon.
#include <algorithm>
#include <bit>

#include "sequences/sequences.h"

namespace blockmgr {

std::int64_t Sequences::num_computing(const Prompt& prompt, const Found& found) {
  if (!digester_ || computing_.first() == BitTree::kNone) return 0;
  const std::uint32_t root = index_.find_root(prompt.name);
  if (root == kUnknownId) return 0;
  const std::int64_t size = config_.block_size;
  const std::int64_t last = std::min(prompt.num_tokens - 1, prompt.most_cached);
  const ExtrasIds extras = known_extras(index_.extras(), prompt.extras);
  const std::int64_t most = count_with_computing(prompt.tokens, last / size, root, extras, found);
  const std::int64_t cached = found.num_full * size + found.num_partial;
  return most > found.num_full ? most * size - cached : 0;
}

// Leading whole blocks of these tokens, limit at most, that are cached or that a running sequence
// has yet to commit. Forgets rows that have nothing left to commit.
std::int64_t Sequences::count_with_computing(const Token* tokens, std::int64_t limit,
                                             std::uint32_t root, const ExtrasIds& extras,
                                             const Found& found) {
  std::int64_t most = found.num_full;
  for (std::uint32_t word = computing_.next_word(0); word != BitTree::kNone;
       word = computing_.next_word(word + 1)) {
    for (std::uint64_t rows = computing_.word(word); rows; rows &= rows - 1) {
      const std::uint32_t row = word << 6 | static_cast<std::uint32_t>(std::countr_zero(rows));
      const Sequence& s = sequences_[row];
      if (!is_computing(s)) {
        computing_.erase(row);
      } else if (s.root == root) {
        most = std::max(most, count_computing(s, tokens, limit, extras, found));
      }
    }
  }
  return most;
}

// The same for one sequence. What it has committed is cached; if that is not the beginning of what
// was found, the sequence computes other blocks.
std::int64_t Sequences::count_computing(const Sequence& s, const Token* tokens, std::int64_t limit,
                                        const ExtrasIds& extras, const Found& found) const {
  const std::int64_t size = config_.block_size;
  std::int64_t i = s.num_chained;
  if (i > found.num_full || (i && chain_node(s, i) != found.full[i - 1])) return 0;
  const NodeId* t = table(s);
  const std::int64_t end = std::min(limit, s.num_tokens / size);
  const Token* const waiting = s.waiting.data() + s.waiting_start;
  for (; i < end; ++i) {
    const Token* own = i < s.num_blocks ? nodes_.tokens(t[i]) : waiting + (i - s.num_blocks) * size;
    if (extras_at(s.extras_ids(), i) != extras_at(&extras, i) ||
        !same_tokens(own, tokens + i * size, static_cast<int>(size)))
      break;
  }
  return i;
}

}  // namespace blockmgr
