// A manager under test, the K/V memory, and the engine between them.
//
// Every call on the core goes through here: its outcome is compared with the expected one, a
// refused call must change nothing, and the books are recomputed afterwards. The engine never
// claims that K/V is computed before a forward has written it (or, with early commit, before the
// forward that certainly writes it).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "caller.h"
#include "device.h"
#include "digester.h"
#include "habits.h"
#include "levels.h"
#include "sequences/sequences.h"
#include "trial.h"
#include "witness.h"

namespace blockmgr::testing {

enum Op {
  kAdmit,
  kCanAdmit,
  kMatch,
  kResume,
  kReserve,
  kAppend,
  kCommit,
  kTruncate,
  kFork,
  kReparent,
  kFree,
  kPreempt,
  kDecode,
  kTake,
  kApplied,
  kAborted,
  kComplete,
  kRemaps,
  kRetain,
  kRetainPrefix,
  kPin,
  kUnpin,
  kTouch,
  kSetTime,
  kReset,
  kRetire,
  kAcquire,
  kRelease,
  kTouchBlocks,
  kForget,
  kCacheState,
  kResumeTogether,
  kShrink,
  kGrow,
  kSignal,
  kEndSession,
  kNumOps
};
enum Outcome {
  kDone,
  kOutOfBlocks,
  kOutOfSequences,
  kUnknownSequence,
  kBadValue,
  kNeverFits,
  kWrongState,
  kStepRefused,
  kWrongTicket,
  kReentered,
  kDigestFailed,
  kPinRefused,
  kUnknownPin,
  kBadBlock,
  kStale,
  kNumOutcomes
};
const char* name_of(Op op);
const char* name_of(Outcome outcome);
using Counts = std::array<std::array<std::int64_t, kNumOutcomes>, kNumOps>;

struct Settings {
  Config core;
  TestDigester::Kind digest = TestDigester::kWide;
  int debug = 0;
  bool witness = false;    // wraps the eviction policy
  bool through_c = false;  // calls go through the C interface; without a witness
  bool resizes = false;    // the pool: which block is which matters then
  bool scribbles = false;  // the caller writes nonsense to the tables it is shown
  int check_every = 1;     // calls between recomputations of the books
  int snapshot_every = 1;  // calls between comparisons of what a refused call left
  Trial* trial = nullptr;  // makes every call
  Habits habits;
};

// The numbers of namespaces and of extra keys from which prompts are drawn.
inline constexpr int kNumNames = 4;
inline constexpr int kNumExtras = 5;

// A live sequence, as the engine sees it.
struct Entry {
  Handle handle = 0;
  int name = 0;
  int extras = 0;
  std::vector<Token> tokens;
  std::vector<Prefix> prefixes;
  std::int64_t start = 0;  // first position the next forward has to write
  // State of an engine that does not look it up: where it left off, what it committed ahead of the
  // next forward (0: nothing), and the slots it was given, by position.
  std::int64_t left_off = 0;
  std::int64_t promise = 0;
  std::vector<std::int64_t> handed;
  // With early commits, in the step with this number: the tokens computed before the next forward
  // (settled), and how many of those are already in memory (kept).
  std::int64_t early_step = -1;
  std::int64_t settled = 0;
  std::int64_t kept = 0;
  // From this position on, a copy planned earlier may bring truncated tokens.
  std::int64_t cut = INT64_MAX;
  bool running = true;
  bool alive = true;
  bool outdated = false;              // continues a prefix that the cache has forgotten
  std::int64_t num_findable = 0;      // outdated: leading blocks that may still be cached
  int version = 0;                    // grows when tokens are taken back
  std::vector<std::int64_t> written;  // slot of each position whose K/V is in memory
};
using EntryPtr = std::shared_ptr<Entry>;

// A step that was taken.
struct Launch {
  struct Part {
    EntryPtr entry;
    int version;
    std::size_t work;
  };
  std::int64_t ticket = 0;
  std::vector<BlockCopy> copies;
  std::vector<Work> work;
  std::vector<Part> parts;
  std::vector<Brought> brought;
  std::vector<bool> blocks;  // that the step may read or write
  bool ran = false;
  bool finished = false;
};
using LaunchPtr = std::shared_ptr<Launch>;

// Further arguments of an admission, beside its prompt and slots.
struct Asked {
  bool read_cache = true;
  std::int64_t most_cached = INT64_MAX;
  std::int64_t watermark = -1;
  bool by_match = false;  // takes exactly what match found, or fails
  bool too_much = false;  // claims that match found more than possible
};

// A block held by its id, and its words if they must not change.
struct Hold {
  std::int64_t block;
  std::vector<Prefix> words;
};

class World {
 public:
  explicit World(const Settings& settings, Counts* counts = nullptr);
  static const std::string& text_of(int name);

  EntryPtr admit(std::vector<Token> tokens, int name, int extras, std::int64_t num_slots,
                 const Asked& terms = {});
  void resume(Entry& entry, std::int64_t num_slots, bool read_cache = true);
  // must_fit: it is not refused.
  void resume_together(const std::vector<EntryPtr>& entries, std::int64_t num_slots,
                       bool read_cache, bool must_fit = false);
  // Whether all running sequences, preempted now, would fit where they are.
  bool may_regroup() const;
  void reset(bool reset_hit_rate);
  void retire(int name);
  void reserve(Entry& entry, std::int64_t num_slots);
  void append(Entry& entry, const std::vector<Token>& tokens);
  // Commits what the engine may claim; larger claims only where the core must refuse them.
  void commit(Entry& entry, std::int64_t num_computed);
  void truncate(Entry& entry, std::int64_t num_tokens);
  std::vector<EntryPtr> fork(const EntryPtr& entry, std::int64_t count);
  void reparent(const std::vector<EntryPtr>& entries, const std::vector<std::int64_t>& parents);
  void free(const EntryPtr& entry, bool withdraw = false);
  void end(const EntryPtr& entry, bool expect_reuse);
  void preempt(Entry& entry, bool withdraw = false);
  void decode(const std::vector<EntryPtr>& entries, const std::vector<Token>& tokens);
  void call_dead(Op op, std::size_t which);
  void wrong_ticket(Op op, std::int64_t ticket);
  void take_remaps();
  // Retention. The level kNoLevel withdraws it; prompts consist of whole blocks.
  void retain(const Entry& entry, std::int64_t start, std::int64_t stop, int level, double ttl);
  void retain_prefix(const Entry& entry, int level, double ttl);
  void pin(const Entry& entry);
  void unpin(std::size_t which);
  void unpin_unknown(std::int64_t pin);
  void touch(const Entry& entry);
  // Blocks by their ids.
  std::vector<std::int64_t> some_blocks(std::size_t which, std::size_t count) const;
  void hold(const std::vector<std::int64_t>& ids);
  void let_go(const std::vector<std::int64_t>& ids);
  void let_go_of_all();
  void touch_blocks(const std::vector<std::int64_t>& ids);
  void forget(const std::vector<std::int64_t>& ids);
  void shrink(std::int64_t num_blocks);
  void grow(std::int64_t num_blocks);
  bool is_in_the_way(const Entry& entry) const;  // has a block that is out of use
  std::vector<bool> spoiled_by(const std::vector<std::int64_t>& ids) const;
  void note_forgotten(const std::vector<bool>& wrong);
  std::int64_t first_of(const Entry& entry, const std::vector<bool>& blocks) const;
  const std::vector<Hold>& holds() const { return holds_; }
  void set_time(double seconds);

  // Takes the copy plan and launches the forward of all running sequences but one.
  LaunchPtr begin(std::size_t skip, bool applied);
  void resolve();
  void finish(const LaunchPtr& launch, std::int64_t held_back);
  void complete(std::size_t count);
  void step(std::size_t skip = SIZE_MAX, std::int64_t held_back = 0);
  void abort();
  // Skips this many empty steps.
  void pause(std::int64_t count);
  // From now on the engine processes its sequences, and those of its steps, in this order.
  void reorder(const std::vector<std::size_t>& order);
  // Frees everything, then checks that nothing leaked.
  void finish_up();

  // The digest call with this number, counted from 1, fails; 0: none fails.
  void fail_digest(int in_calls);
  // Makes the digest function call back into the core, which must refuse the call.
  void intrude(bool on);
  // Recomputes the books; throws a Violation if something is wrong.
  void check();
  // Turned off to repeat calls that were checked before.
  void check_calls(bool on);

  std::int64_t committable(const Entry& entry) const;
  std::int64_t num_computed(const Entry& entry) const { return view(entry).num_computed; }
  std::int64_t written_until(const Entry& entry) const;
  const std::vector<EntryPtr>& entries() const { return entries_; }
  const std::vector<LaunchPtr>& steps() const { return steps_; }
  const LaunchPtr& open() const { return open_; }
  int name_of_root(std::uint32_t root) const;
  std::uint32_t root_of_name(int name) const;  // kUnknownId while it is empty
  std::size_t num_dead() const { return dead_.size(); }
  bool resizes() const { return settings_.resizes; }
  const Sequences& core() const { return core_; }
  std::int64_t calls() const { return calls_; }
  bool early() const { return config_.early_commit; }
  const Habits& habits() const { return habits_; }

 private:
  using Outcomes = unsigned;
  static constexpr Outcomes bit(Outcome outcome) { return 1u << outcome; }
  using Call = std::function<void()>;
  Outcome call(Op op, Outcomes due, const Call& run);
  Outcome outcome_of(const Call& run);
  void put_on_trial(Op op, const Call& run);

  const Sequence& view(const Entry& entry) const { return core_.view(entry.handle); }
  std::int64_t slots_of(const Entry& entry) const;
  std::int64_t blocks_for(std::int64_t slots) const;
  // The partition from which sequences of this namespace get blocks, and its capacity.
  int partition_of(int name) const;
  int capacity_of(int name) const;
  std::int64_t watermark_of(int name, std::int64_t most, std::int64_t asked = -1) const;
  std::int64_t available_to(int name) const;
  std::int64_t longest(int name) const;
  std::int64_t longest(const Entry& entry) const { return longest(entry.name); }
  // The next call must not change any other partition.
  void touching(int name) { touched_ |= 1u << partition_of(name); }
  void check_quotas() const;
  // The counts of each partition; deep: also the state of its policy and of its past, as bytes.
  using Share = std::pair<std::array<std::int64_t, 3>, std::string>;
  std::vector<Share> shares(bool deep) const;
  void check_others(const std::vector<Share>& before, unsigned touched, bool deep) const;
  // The number of available blocks that a prompt takes.
  std::int64_t needed_for(const MatchResult& match, std::int64_t slots) const;
  // Tokens beyond the match that a running sequence will commit.
  std::int64_t computing_for(const Prompt& asked, int name, int extras,
                             const MatchResult& match) const;
  MatchResult found_for(const Entry& entry);
  // The nodes of a sequence, and their blocks.
  const NodeId* nodes_of(const Entry& entry) const {
    return core_.table_at(Sequences::row_of(entry.handle));
  }
  std::vector<std::int32_t> blocks_of(const Entry& entry) const {
    return core_.block_ids(entry.handle, 0);
  }
  // The ref count of a block, and whether anything keeps it.
  std::uint32_t num_references(std::int64_t block) const {
    const NodeId n = core_.nodes().owner(block);
    return n < 0 ? 0 : core_.nodes().uses(n).ref_count;
  }
  bool used(std::int64_t block) const {
    const NodeId n = core_.nodes().owner(block);
    return n >= 0 && core_.nodes().used(n);
  }
  // One table names the node, and it is not cached.
  bool is_private(NodeId n) const {
    return core_.nodes().uses(n).ref_count == 1 && !core_.nodes()[n].keyed();
  }
  // The record of the node that has a block; an empty record for a free block.
  const Node& record_of(std::int64_t block) const {
    static const Node free;
    const NodeId n = core_.nodes().owner(block);
    return n < 0 ? free : core_.nodes()[n];
  }
  std::vector<NodeId> owners(const std::vector<std::int32_t>& blocks) const;
  struct Merging {
    NodeId node;
    std::int32_t block;
  };
  std::vector<std::vector<Merging>> merging() const;
  void merged(const std::vector<std::vector<Merging>>& before);
  void note_found(const Entry& entry, const MatchResult& match, std::int64_t hits_before);
  bool copies_for(const Entry& entry, std::map<NodeId, std::uint32_t>& left) const;
  std::int64_t needed_by(const std::vector<EntryPtr>& entries, int partition) const;
  std::vector<Brought> brought_by(const std::vector<BlockCopy>& copies) const;
  std::vector<NodeId> full_prefix(const Entry& entry);
  bool ahead(const Entry& entry) const;
  bool anybody_ahead() const;
  std::int64_t num_held(std::int64_t b) const;
  bool is_known(std::int64_t b) const;
  bool can_withdraw(const Entry& entry) const;
  void note_moved(const std::vector<bool>& was_keyed);
  void check_holds();
  void check_mirror();
  void begin_early(Entry& entry) const;
  std::int64_t settled(const Entry& entry) const;
  std::int64_t kept(const Entry& entry) const;
  void limit_kept(Entry& entry) const;
  void note_admitted(Entry& entry) const;
  void note_cut(Entry& entry) const;
  void note_promised(const Entry& entry, const std::vector<bool>& was_keyed);
  std::vector<bool> keyed() const;
  bool lacks_words(const Entry& entry, std::int64_t logical) const;
  std::int64_t computed_after(const Entry& entry, std::int64_t slots,
                              std::int64_t num_tokens) const;
  std::int64_t first_to_write(const Entry& entry) const;
  void hand(Entry& entry) const;
  std::vector<EntryPtr> to_launch() const;
  Outcomes due_growth(const Entry& entry, std::int64_t slots, std::int64_t num_tokens) const;
  Prompt prompt(const std::vector<Token>& tokens, int name, int extras, std::int64_t slots) const;
  void extend(Entry& entry, const std::vector<Token>& tokens);
  void become_fork(Entry& child, const Entry& parent);
  void settle();
  [[noreturn]] void fail(const std::string& otherwise) const;
  void expect_private(const Entry& entry, std::int64_t from);
  void check_entries();
  void check_shown();
  void scribble() const;
  void check_common_prefix();
  void check_cached();
  void check_computed();
  void check_ghosts();
  Witness* witness_of(int name) const;
  std::int64_t hits_in(int name) const;
  void check_found(const Entry& entry);
  void check_tails();
  int extras_prefix(std::uint32_t id) const;
  void check_fences(Op op);
  void run_until(const LaunchPtr& launch);
  void remove_step(const LaunchPtr& launch);

  Settings settings_;
  const Settings asked_;
  const Config& config_;
  const Habits& habits_;
  TestDigester* digester_;
  std::vector<Witness*> witnesses_;  // one per partition that has blocks
  Caller caller_;
  Sequences& core_;
  Levels levels_;
  Device device_;
  PrefixTrie trie_;
  Counts* counts_;
  std::vector<EntryPtr> entries_;
  std::vector<Handle> dead_;
  std::vector<LaunchPtr> steps_;  // taken and not completed
  std::vector<LaunchPtr> queue_;  // launched and not run
  LaunchPtr open_;                // ticket not resolved
  std::vector<Hold> holds_;
  std::vector<RemapRecord> remaps_;  // expected in the log
  std::vector<int> promised_;        // by block: words at its end that this step's forward writes
  std::int64_t num_applied_ = 0;
  std::int64_t last_ticket_ = 0;
  std::int64_t calls_ = 0;
  std::set<std::string> mirror_;  // digests, fed by events alone
  std::int64_t mirror_checks_ = 0;
  unsigned touched_ = 0;      // partitions the next call may change; 0: any
  std::vector<bool> tables_;  // blocks named by a table after the last call
};

}  // namespace blockmgr::testing
