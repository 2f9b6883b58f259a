// A sample of the blocks a pool is asked for, remembered far longer than the pool keeps them: what
// the adaptive policy learns from, and the small world in which it competes with LRU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "memory/ring.h"
#include "memory/tag_table.h"
#include "policies/aged_lists.h"
#include "policies/reuse_model.h"

namespace blockmgr {

class BlockAudit;

// A block is in the sample or not by a hash of its digest, so it is there each time it comes, and
// one in n blocks stands for n. Entries outlive the block, as many as there is room for, the least
// recently used going first. Among them two directories of 1/n of the pool's capacity are kept, in
// which nothing is stored: what LRU would hold, and what the learned order would. Look-ups that
// either could have served are counted, whichever order the pool itself follows.
//
// Source: Waldspurger et al., "Efficient MRC Construction with SHARDS", USENIX FAST 2015.
class ReuseSample {
 public:
  // For a pool of so many blocks.
  ReuseSample(int capacity, std::int64_t unit);

  bool takes(std::uint64_t tag) const { return mix(tag) <= limit_; }
  // The sampled block was looked up, and found or computed again.
  void use(std::uint64_t tag, std::int64_t now) noexcept;
  // Its last use ended; cell: what can be seen of it.
  void end_use(std::uint64_t tag, int cell, std::int64_t now, const Spans& spans) noexcept;

  // The pool was full and held so many blocks that are asked for. What else it holds, such as the
  // blocks of further groups of layers, leaves the directories less room.
  void set_held(int num_blocks) noexcept;

  // A span began: moves what is filed by span.
  void begin_span(const Spans::Merge& merge) noexcept { lists_.merge(merge); }
  void fit(std::int64_t now) noexcept;
  ReuseModel& model() { return model_; }
  const ReuseModel& model() const { return model_; }
  AgedLists& lists() { return lists_; }

  // Blocks of a request are found or missed together, so what a request makes of the difference
  // between the two is one observation. followed: the pool evicts in the learned order.
  void end_request(bool followed) noexcept;
  // Look-ups that the learned order served beyond those of LRU; and the standard deviation of that,
  // as the requests differ.
  double lead() const { return learned_hits_ - lru_hits_; }
  double deviation() const;
  // Of sampled blocks, and weighing less the older they are, as the lead.
  double look_ups() const { return look_ups_; }
  // The lead while the learned order was followed, and all look-ups, each weighing the same.
  double won() const { return won_; }
  double all_look_ups() const { return all_look_ups_; }
  // Lets what was counted so far weigh less beside what is to come.
  void fade(double keep) {
    lru_hits_ *= keep;
    learned_hits_ *= keep;
    variance_ *= keep;
    look_ups_ *= keep;
  }

  std::size_t memory() const;
  void audit(BlockAudit& audit) const;
  void fingerprint(std::string& out) const;

 private:
  struct Entry {
    std::uint64_t tag = 0;
    std::int64_t since = 0;   // when its last use ended
    std::int32_t prev = -1;  // in order of last use, the oldest first
    std::int32_t next = -1;
    std::uint16_t cell = 0;
    std::uint8_t level = 0;
    bool idle : 1 = false;
    bool in_lru : 1 = false;
    bool in_learned : 1 = false;
  };
  // Digests that are no good hashes are spread (Fibonacci hashing).
  static std::uint64_t mix(std::uint64_t tag) { return tag * 0x9e3779b97f4a7c15u; }
  Entry& entry(int i) { return entries_[static_cast<std::size_t>(i)]; }
  const Entry& entry(int i) const { return entries_[static_cast<std::size_t>(i)]; }
  int find(std::uint64_t tag) const { return table_.find(tag); }
  int add(std::uint64_t tag, std::int64_t now) noexcept;
  void forget(int i, std::int64_t now) noexcept;
  // The sentinel of the order of last use.
  int end() const { return static_cast<int>(entries_.size()) - 1; }
  void unlink(int i) noexcept;
  void make_newest(int i) noexcept;
  void leave_learned(int i) noexcept;
  void shorten_lru() noexcept;

  double share_;  // of the blocks, those in the sample
  std::uint64_t limit_;
  int directory_;  // entries that each directory holds
  ReuseModel model_;
  std::vector<Entry> entries_;  // then the sentinel
  TagTable table_;
  AgedLists lists_;  // idle entries in the learned directory
  int num_entries_ = 0;
  int lru_last_;  // least recently used entry in the LRU directory, or end()
  int num_lru_ = 0, num_learned_ = 0;
  double look_ups_ = 0, lru_hits_ = 0, learned_hits_ = 0;
  double variance_ = 0;  // of the lead
  double won_ = 0, all_look_ups_ = 0;
  std::int64_t difference_ = 0;  // the lead of the present request
};

}  // namespace blockmgr
