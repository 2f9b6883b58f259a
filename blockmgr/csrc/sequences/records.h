// What calls on sequences take and return, and what is kept of a sequence: its row.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "sequences/store.h"

namespace blockmgr {

using Handle = std::int64_t;  // generation of the row in the high half, row in the low half

struct Config : StoreConfig {
  int max_seqs = 0;
  int row_width = 0;        // nodes of a sequence at most
  int full_block_size = 0;  // tokens of a block of full attention; 0: those of a node
  bool prefix_caching = true;
  int min_partial_tokens = 0;
  int watermark_blocks = 0;
  bool early_commit = false;
  bool strict_decode = false;            // refuses sequences with more than one token to compute
  int hit_rate_window = 0;               // requests that recent_hits looks back on
  std::int64_t max_rollback = 0;         // computed tokens that truncate may take back: drafts
  std::int64_t halfway_stop_tokens = 0;  // of a prompt that stops halfway, at least; 0: none does
  std::int64_t prompt_end_stop =
      -1;                        // tokens before a prompt's end where it stops; -1: it does not
  std::int64_t stop_margin = 0;  // with states: tokens behind a stop that a prompt must share

  template <class Visit>
  void each_option(Visit visit) {
    StoreConfig::each_option(visit);
    visit("max_sessions", max_sessions);
    visit("max_seqs", max_seqs);
    visit("row_width", row_width);
    visit("full_block_size", full_block_size);
    visit("prefix_caching", prefix_caching);
    visit("min_partial_tokens", min_partial_tokens);
    visit("watermark_blocks", watermark_blocks);
    visit("early_commit", early_commit);
    visit("strict_decode", strict_decode);
    visit("hit_rate_window", hit_rate_window);
    visit("max_rollback_tokens", max_rollback);
    visit("halfway_stop_tokens", halfway_stop_tokens);
    visit("prompt_end_stop", prompt_end_stop);
    visit("stop_margin_tokens", stop_margin);
  }
};

struct Prompt {
  const Token* tokens;
  std::int64_t num_tokens;
  std::string_view name;   // of the namespace
  ExtrasBytes extras;      // by logical block, sorted
  std::int64_t num_slots;  // 0: as many as tokens
  bool read_cache = true;  // false: nothing of it is to be found
  // For this call alone, see Terms.
  std::int64_t most_cached = INT64_MAX;
  std::int64_t due_cached = -1;
  std::int64_t watermark_blocks = -1;  // -1: the config's
  std::string_view session = {};       // empty: none
  // K/V of so many leading tokens comes from elsewhere before the first forward, which begins
  // there.
  std::int64_t num_loaded = 0;
};

enum class Admission { kNow, kLater, kNever };

struct RemapRecord {
  Handle handle;
  std::int32_t index;
  std::int32_t old_block;
  std::int32_t new_block;
};

// Where the forwards of a prompt should end, so that a state is kept there; 0: nowhere.
using Stops = std::array<std::int64_t, 4>;

struct MatchResult {
  std::int64_t num_cached = 0;
  std::int64_t num_replayed = 0;  // tokens after them that are computed again for some groups
  std::int64_t num_partial = 0;
  std::int64_t num_idle = 0;       // blocks that admission takes into use beside the fresh ones
  std::int64_t num_shared = 0;     // leading tokens that full attention has
  std::int64_t num_computing = 0;  // tokens after them that a running sequence has yet to commit
  Stops stops{};
  std::vector<std::int32_t> blocks;
};

// The reason why no prompt finds a block, or the tokens after the last whole one. The order is that
// of blockmgr.MissReason, without the reasons that only a replay knows.
enum class Miss : std::uint8_t {
  kCachingOff,
  kTooLarge,
  kLastToken,
  kPartialBlock,
  kNotCommitted,
  kGroup,
  kEvicted,
  kOtherExtras,
  kOtherNamespace,
  kDiverged,
  kNeverSeen,
  kNotRemembered,
};

struct MissedBlock {
  Miss reason;
  std::int64_t stop;              // position after its last token
  std::int64_t more_blocks = 0;   // evicted: blocks by which the pool is too small
  std::int64_t evicted_ago = -1;  // evicted: blocks handed out since
  int group = -1;                 // of layers that refused, in the order of the engine
};

struct ExplainResult {
  std::int64_t num_cached = 0;
  std::int64_t num_partial = 0;
  std::int64_t diverges_at = -1;
  std::vector<MissedBlock> missed;  // in order, from num_cached to the end of the prompt
};

struct Counters {
  std::int64_t query_tokens = 0;
  std::int64_t hit_tokens = 0;
  std::int64_t partial_hit_tokens = 0;
  std::int64_t resumed_query_tokens = 0;
  std::int64_t resumed_hit_tokens = 0;
  std::int64_t promoted_blocks = 0;
  std::int64_t deduplicated_blocks = 0;
  std::int64_t cached_tails = 0;
  std::int64_t forks = 0;
  std::int64_t preemptions = 0;
  std::int64_t touched_blocks = 0;
  std::int64_t forgotten_blocks = 0;
  std::int64_t superseded_blocks = 0;
  bool has_retired = false;  // some namespace
  std::int64_t peak_used_blocks = 0;
};

// One row. Tokens live in the blocks that have their slots; those without a slot wait here.
//
//   [0, num_computed)            K/V is present
//   [num_computed, num_tokens)   to be written by the next forward, as far as there are slots
//   [0, num_blocks * block_size) room for tokens; and slots, but for the last ones of the last node
//                                if groups have smaller blocks that it lacks
//   [room, num_tokens)           waiting tokens
struct Sequence {
  enum State : std::uint8_t { kUnused, kRunning, kPreempted };

  std::uint32_t generation = 1;
  State state = kUnused;
  bool outdated : 1 = false;    // it runs on K/V that no prompt may find any more: see detach
  bool loads : 1 = false;       // its first tokens are being loaded: see GroupRow
  std::uint16_t partition = 0;  // of the pool: the root's
  std::int32_t num_blocks = 0;
  std::int32_t num_chained = 0;  // leading blocks that are cached, or stand beside a cached twin
  std::int64_t num_tokens = 0;
  std::int64_t num_computed = 0;
  std::int64_t num_cached = 0;
  // With early commit, in the step of this number; in any other step both are num_computed.
  std::int64_t early_step = -1;
  std::int64_t num_settled = 0;  // what this sequence did not commit ahead of the step's forward
  // Of that, what is in memory before the forward, as far as the block in which it goes on.
  std::int64_t num_written = 0;
  std::uint32_t root = 0;
  std::uint32_t session = 0;  // in the table of its partition, if that names this row; see Sessions
  std::uint64_t mark = 0;     // of the last batch that named this row: finds duplicates
  std::shared_ptr<const ExtrasMap> extras;
  std::vector<Token> waiting;
  std::uint32_t waiting_start = 0;  // the length of a sequence fits an int32
  std::int32_t missing_slots = 0;   // of the last node, for which some group has no block

  const ExtrasIds* extras_ids() const { return extras ? &extras->ids() : nullptr; }
  std::int64_t num_waiting() const {
    return static_cast<std::int64_t>(waiting.size() - waiting_start);
  }
};

// With another size, finding a row takes a division.
static_assert(sizeof(Sequence) == 128);

// What was made findable by a copy that is not applied: a block of a sequence, which goes on in
// the copy; or, with tables that never change, the copy.
struct Kept {
  NodeId block;
  NodeId destination;
  std::uint32_t block_generation;
  std::uint32_t destination_generation;
  bool referenced;  // used until the copy is applied, by a reference that nothing else counts
  bool is_state;
};

// What a sequence has in further groups of layers, beside its row.
struct GroupRow {
  // By group: it holds parts of its blocks from this one on; recurrent groups: 0.
  std::vector<std::int32_t> first;
  std::vector<NodeId> states;  // by group, its state or ring while it runs; kNoNode of attention
  // By group of states, its other slots, in order: extra_blocks for each.
  std::vector<NodeId> others;
  int slot = 0;  // of its extra_blocks + 1, the one that its states are in
  // Steps launched since its states were known to be those after num_computed tokens: each of them
  // may have moved the states.
  int moves = 0;
  bool stands() const { return !moves; }
  // By group, while it is admitted: what it copies or takes over of the last node found; kNoNode:
  // nothing. States are taken over at the end of a whole block as well.
  std::vector<NodeId> sources;
  template <class Visit>
  void each_source(const Visit& visit) const {
    for (std::size_t g = 0; g < sources.size(); ++g)
      if (sources[g] >= 0) visit(static_cast<int>(g), sources[g]);
  }
  // Why a forward should end there. The last one is chosen after the admission, by retain.
  enum Stop : std::uint8_t { kLast, kDiverges, kHalfway, kPromptEnd, kRetained };
  std::array<std::int64_t, 5> stops{};
  // What its rings were given: [since, farthest), of which they have the last positions.
  std::int64_t since = 0;
  std::int64_t farthest = 0;
  // As farthest, without the forward of the plan taken last: that plan can be taken back.
  std::int64_t sure = 0;
  std::int64_t num_loaded = 0;  // if it loads: it was admitted without what only these tokens read
  // By uncached window and unit, its blocks, from `first` on.
  std::vector<std::vector<NodeId>> own;
  // Its forwards began at `start` and computed [start, hit) for uncached groups alone: so far, up
  // to `replayed`.
  std::int64_t start = 0;
  std::int64_t hit = 0;
  std::int64_t replayed = 0;
  std::int64_t begun = 0;  // of those, what was not committed early in this step
};

}  // namespace blockmgr
