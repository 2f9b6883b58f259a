// The plans of calls: a call makes one with nothing changed, and then carries it out.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/tally.h"
#include "sequences/records.h"

namespace blockmgr {

// What deduplication changed since the last drop; or, once the log was left to overflow, every
// entry of every running sequence, with no old block.
struct Remaps {
  std::vector<RemapRecord> records;
  std::int64_t version;  // of the log
};

// The part of a prompt that is cached. The lists lie in memory of the manager's, until the next
// look-up.
struct Found {
  const NodeId* full = nullptr;  // leading blocks found, and those behind them up to num_lead
  std::int64_t num_full = 0;
  std::int64_t num_lead = 0;    // leading blocks that full attention has
  std::int64_t num_unused = 0;  // of those, blocks that count as available now
  NodeId node = kNoNode;        // the last of them, or the root
  bool strayed = false;         // hints led elsewhere at some of them
  NodeId partial = kNoNode;     // child that continues with num_partial of the next tokens
  std::int32_t num_partial = 0;
  bool take_over = false;
  std::int64_t num_loaded = 0;           // see Prompt
  const std::int32_t* ghosts = nullptr;  // evicted blocks that continue the full ones
  std::int64_t num_ghosts = 0;
};

struct Demand {
  std::int64_t num_blocks = 0;     // blocks the sequence will hold
  std::int64_t missing_slots = 0;  // of the last one: see Sequence
  std::int64_t num_held = 0;       // in all groups
  std::int64_t to_take = 0;
  std::int64_t unused_hits = 0;  // available blocks it will use by finding them
  // Where nodes' own blocks are bare, they are counted here: those it takes, and unused ones found.
  std::int64_t fresh_nodes = 0;
  std::int64_t unused_nodes = 0;
  std::int64_t num_nodes() const { return fresh_nodes + unused_nodes; }
  std::int64_t needed() const { return to_take + unused_hits; }
  // The watermark holds back blocks; what takes none is free to go.
  bool fits(std::int64_t available, std::int64_t watermark) const {
    return needed() == 0 || needed() <= available - watermark;
  }
};

// Each plan is computed with nothing changed, and then carried out as it is.
struct AdmissionPlan {
  Found found;
  Demand demand;
  bool fits = false;
  bool never = false;           // it does not fit behind what is found, whatever is released
  std::int64_t num_shared = 0;  // leading tokens that full attention has
};

// How far a look-up got, beside the most that every group serves.
struct Reach {
  std::int64_t num_whole = 0;   // leading blocks that every group serves as a whole
  std::int64_t num_lead = 0;    // leading blocks that full attention has
  std::int64_t num_shared = 0;  // leading tokens that full attention has
};

// Who asks for blocks, and where what it asks for may be found.
struct Applicant {
  NodeId root;  // kNoNode: nothing was ever cached in its namespace
  const ExtrasIds* extras;
  int partition;
  std::int64_t held_back;                // blocks of the partition it may not take
  bool read_cache;                       // false: nothing is looked up
  std::int64_t most_cached = INT64_MAX;  // tokens taken from the cache, at most
  std::int64_t due_cached = -1;          // exactly so many, or none at all; -1: any number
  std::int64_t num_loaded = 0;           // see Prompt

  // One token is always left to compute: of one more than may be taken, so many are found.
  std::int64_t looked_up(std::int64_t count) const {
    return most_cached < count ? most_cached + 1 : count;
  }
};

struct GrowthPlan {
  std::int64_t num_fresh;  // nodes to take
  std::int64_t written;    // the node that is about to be written; -1: none that it has
};

struct Promotion {
  Sequence* sequence;
  std::int64_t row;
  std::int64_t until;         // blocks [num_chained, until)
  std::size_t digest_offset;  // of the first one, in digests
  std::int64_t digested;      // on demand: the one logical block whose digest is there; -1: none
};

struct PromotionPlan {
  std::vector<Promotion> promotions;
  std::vector<std::uint8_t> digests;
  std::vector<NodeId> dropped;  // parts that the batch is counted on to make available
  Tally taken;                  // cached blocks that it takes into use: see num_lost
  std::int64_t lost_nodes = 0;  // of what is lost, bare nodes
  bool counts_taken = false;
  void clear() {
    promotions.clear();
    digests.clear();
    counts_taken = false;
    lost_nodes = 0;
  }
  // With several groups, before blocks are taken. most: cached blocks that it may take into use.
  void count_taken(std::int64_t most) {
    if (!most) return;
    taken.begin(most);
    counts_taken = true;
  }
  std::size_t memory() const {
    return digests.capacity() + promotions.capacity() * sizeof(Promotion) +
           dropped.capacity() * sizeof(NodeId) + taken.memory();
  }
};

struct DecodePlan {
  std::vector<std::int64_t> needed_by;  // blocks by partition
  std::vector<NodeId> rewritten;        // written in place, and twins until then
  Tally sharers;                        // of the batch that write into a shared block
  PromotionPlan promotions;             // of what the forward before has computed
  // Whether decode gives back what windows have passed before it takes blocks. What steps in flight
  // may read is not there to be taken, so it is given back at the end.
  bool drops_first = false;
};

}  // namespace blockmgr
