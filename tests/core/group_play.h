// Random engines with different habits on a manager with groups of layers.
//
// Each forward checks what sequences read (group_device.h), a refused call must change nothing,
// can_admit and match must predict admit, and the books are recomputed.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bytes.h"
#include "group_device.h"
#include "trial.h"
#include "world.h"

namespace blockmgr::testing {

class GroupPlay {
 public:
  // What a run has that others do not.
  enum Feature : unsigned {
    kPlain = 0,
    kResizes = 1,   // the pool shrinks and grows
    kLoads = 2,     // the first tokens of some prompts come from elsewhere
    kUncached = 4,  // windows that are computed again before a hit, and rings
    kSlots = 8,     // states that a forward leaves in another slot of their sequence
    kSizes = 16,    // groups whose blocks are smaller than nodes, and maybe one of the others
    // Any run may also have some of these.
    kBare = 32,   // no group has full attention
    kRings = 64,  // rings beside windows and states that are found
  };
  // Draws a configuration, groups and habits from the stream.
  explicit GroupPlay(Bytes& bytes, Counts* counts = nullptr, Trial* trial = nullptr,
                     bool through_c = false, unsigned features = kPlain);
  // Makes some calls and a step; false when the stream is at its end.
  bool move();
  // Frees everything, then checks that nothing leaked.
  void finish_up();
  std::int64_t calls() const { return calls_; }
  const Sequences& core() const { return core_; }
  std::string config() const;

 protected:
  enum Planned {
    kPlanAny = -1,
    kPlanAdmit,
    kPlanAppend,
    kPlanReserve,
    kPlanFork,
    kPlanBranch,
    kPlanReparent,
    kPlanTruncate,
    kPlanPreempt,
    kPlanResume,
    kPlanTurn,
    kPlanFree,
    kPlanRetain,
    kPlanCache,
    kNumPlanned
  };
  // How often each call is drawn, normally and while copies are in flight. The latter favours calls
  // that copy blocks whose content has not arrived yet.
  static constexpr int kCalls[kNumPlanned] = {6, 8, 3, 2, 2, 1, 2, 1, 2, 2, 3, 3, 1};
  static constexpr int kAhead[kNumPlanned] = {6, 8, 3, 2, 12, 1, 4, 1, 2, 2, 2, 2, 1};

  struct Habits {
    bool overlaps;     // launches a step before it commits the previous one
    int stops;         // in how many of four cases a forward ends at a stop
    int chunk;         // the most tokens of a forward
    int aborts;        // in how many of eight cases a step is not launched
    bool affirms;      // also commits sequences left out of the step, unchanged
    int drafts;        // most tokens that it truncates after a commit
    bool late;         // reports copies as applied and the step as complete only after the commits
    bool plans_ahead;  // keeps planning while a step is closed and not launched
    bool rejects;      // leaves states after several tokens, the last of which may be rejected
  };
  struct Setup {
    Config core;
    std::vector<Group> groups;  // all, in the order of the engine
    Habits habits;
    TestDigester::Kind digest;
    int vocabulary;
    int check_every;
    bool through_c = false;  // calls go through the C interface
    unsigned features = kPlain;
    int snapshot_every = 4;  // calls between comparisons of what a refused call left
  };
  // A live sequence, as the engine sees it.
  struct Seq {
    Handle handle;
    int name;
    int extras;
    std::vector<Token> tokens;
    std::vector<Prefix> prefixes;
    std::int64_t settled_before = 0;  // with early commits: computed before this step
    bool preempted = false;
    std::int64_t loads = 0;  // so many leading tokens are being loaded
    // What the last call on it left. The engine does not look it up again: no other call changes
    // it.
    std::vector<std::vector<std::int32_t>> tables;  // by group, in the order of the engine
    std::int64_t computed = 0;
  };
  using SeqPtr = std::shared_ptr<Seq>;
  // What a closed step computes of one sequence.
  struct Part {
    Handle handle;
    std::int64_t stop;
    std::vector<std::size_t> slots;  // in which it leaves the states after its last tokens
  };
  using Step = std::vector<Part>;
  // A closed plan, and the work of its forward.
  struct Closed {
    std::int64_t ticket = 0;
    std::vector<BlockCopy> copies;
    std::vector<GroupWork> work;
    Step parts;
  };
  // The blocks that a closed step may read and write, and which of them were released since and
  // not taken again with their content.
  struct InFlight {
    std::vector<bool> blocks;
    std::vector<bool> released;
  };
  // An idle boundary that is not merely passed, before a call.
  struct Waiting {
    std::uint32_t generation;
    int partition;
    Level level;
    bool is_own_level;  // not that of a cached child
    std::string digest;
  };
  using Tables = std::vector<std::vector<std::int32_t>>;
  using Stamped = std::vector<std::pair<NodeId, std::uint32_t>>;  // nodes with their generations
  using Outlook = SessionTable::Outlook;
  // A session, and the sequence of its last prompt while that lives.
  struct Known {
    int name = 0;
    std::string session;
    Handle handle = 0;
    std::pair<NodeId, std::uint32_t> tip = {kNoNode, 0};  // the last node of its path
    Outlook outlook = Outlook::kUnknown;
    double until = 0;
  };

  GroupPlay(Bytes& bytes, const Setup& setup, Counts* counts, Trial* trial);
  static Setup draw(Bytes& bytes, bool through_c, unsigned features);
  static void draw_groups(Bytes& bytes, Setup& setup);
  static void draw_uncached(Bytes& bytes, Setup& setup);
  static void draw_slots(Bytes& bytes, Setup& setup);
  static void draw_sizes(Bytes& bytes, Setup& setup);
  void make_sessions();
  static void draw_beside(Bytes& bytes, Setup& setup);
  static void draw_bare(Bytes& bytes, Setup& setup);
  Outcome call(Op op, const std::function<void()>& run);
  Outcome outcome_of(const std::function<void()>& run) const;
  void put_on_trial(Op op, const std::function<void()>& run);
  bool done(Op op, const std::function<void()>& run) { return call(op, run) == kDone; }
  [[noreturn]] void fail(const std::string& otherwise) const;
  void after_call();
  void note_found();

  // Planning.
  Planned drawn();
  void plan(Planned move, SeqPtr seq = nullptr);
  bool plan_once(Planned move, const SeqPtr& seq);
  void admit(std::vector<Token> text, int name, int extras);
  // What a prompt asks for itself.
  enum class Terms { kNone, kUnread, kFewCached, kWatermark, kMatch };
  struct Asked {
    Terms terms = Terms::kNone;
    std::int64_t number = 0;
    std::string session;
  };
  void admit(const std::vector<Token>& text, int name, int extras, std::int64_t slots,
             std::int64_t num_loaded, const Asked& more);
  void free(const SeqPtr& seq);
  void leave(const SeqPtr& seq);  // whether or not it is ahead
  void truncate(const SeqPtr& seq, std::int64_t length);
  bool append(const SeqPtr& seq, int count) { return append(seq, tokens(count)); }
  bool append(const SeqPtr& seq, const std::vector<Token>& fresh);
  bool reserve(const SeqPtr& seq);
  bool reserve(const SeqPtr& seq, std::int64_t slots);
  std::vector<SeqPtr> fork(const SeqPtr& seq) { return fork(seq, bytes_.between(1, 2)); }
  std::vector<SeqPtr> fork(const SeqPtr& seq, int count);
  void reparent();
  void reparent(const std::vector<SeqPtr>& chosen, const std::vector<std::int64_t>& parents);
  void preempt(const SeqPtr& seq);
  void resize();
  void shrink(std::int64_t num_blocks);
  void grow(std::int64_t num_blocks);
  bool resume(const SeqPtr& seq);
  bool resume_together(const SeqPtr& seq);
  bool regroup(const SeqPtr& seq);
  void cache_state(const SeqPtr& seq);
  void extend(Seq& seq, const std::vector<Token>& tokens);
  void note_growth(Seq& seq);
  std::vector<Token> text();
  std::vector<Token> tokens(int count);
  void keep_text(const std::vector<Token>& text);
  std::string some_session();
  SeqPtr some(bool preempted);
  SeqPtr find(Handle handle) const;
  void check_match(const Seq& like, const MatchResult& match, std::int64_t slots,
                   std::int64_t num_loaded);
  std::int64_t served_by_scan(const std::vector<Token>& tokens, int name, int extras) const;

  // Retention calls: group_levels.cc.
  void say(const SeqPtr& seq);
  Prompt some_prompt(const SeqPtr& seq);
  void handle_blocks(const SeqPtr& seq);
  void forget_block(std::int64_t block);
  void retire(int name);
  void release_holds();
  void retain(const SeqPtr& seq);
  void retain_prefix(const Prompt& prompt);
  void pin(const Prompt& prompt);

  // Sessions: group_sessions.cc.
  void tell_of_session(const SeqPtr& seq);
  void tell(int number, const std::string& session, bool ends,
            Sessions::Signal signal = Sessions::Signal::kDone, double seconds = 0);
  std::vector<Token> turn_of(const Known& last);
  Known* known(int name, const std::string& session);
  Known* known_of(Handle handle);
  std::vector<NodeId> path_of(const Known& one) const;
  bool stays(NodeId n) const;
  bool is_wanted(NodeId n, bool and_below, const Known* own) const;
  std::set<NodeId> alone(const std::vector<NodeId>& path, std::size_t shared,
                         const Known* own) const;
  std::set<NodeId> superseded(const Known& one, const Prompt& asked) const;
  std::set<NodeId> expected_before(int name, const std::string& session);
  std::set<NodeId> passed() const;
  Stamped stamped(const std::set<NodeId>& nodes) const;
  Stamped chained(const Seq& seq) const;
  void note_prompt(int name, const std::string& session, Handle handle);
  void check_superseded(const Stamped& gone, const std::set<NodeId>& before, std::int64_t count,
                        bool is_tail) const;
  void note_left(const Seq& seq, const Stamped& had, bool ends, bool withdraws);
  void note_resumed(const Seq& seq);
  void note_moved(const Seq& seq);
  std::optional<SessionTable::Session> core_session(const Known& one) const;
  void check_gone(const Stamped& gone) const;
  void check_passed(const std::set<NodeId>& before, const std::set<NodeId>& gone,
                    NodeId back) const;
  void check_sessions() const;
  void expire_sessions();

  std::map<NodeId, Waiting> idle_boundaries() const;
  void check_order(const std::map<NodeId, Waiting>& before) const;
  bool is_findable(const std::string& digest) const;

  // Steps.
  void step();
  void add_work(Closed& closed, const SeqPtr& seq, std::int64_t start, std::int64_t stop);
  void land(const SeqPtr& seq, bool promises);
  void land_some();
  void close(Closed& closed);
  void abort(const Closed& closed);
  void launch(Closed& closed);
  void apply(const Closed& closed);
  void promise();
  void complete();
  void commit(const Step& launched);
  void commit(Handle handle, std::int64_t computed);
  std::vector<Handle> decode(const Step& step);
  std::vector<Handle> decode(const std::vector<Handle>& batch, const std::vector<Token>& fresh);
  void take_back(const SeqPtr& seq);
  std::int64_t stop_of(const Seq& seq, std::int64_t start);
  std::int64_t launched(const Seq& seq) const;
  const Part* last_launched(const Seq& seq) const;
  std::size_t slot_of(const Seq& seq) const;
  std::vector<std::size_t> next_slots(std::size_t slot, std::int64_t num_tokens);
  Step verified(const Step& step);
  bool is_due_later(Handle handle) const;
  void place(const Step& step);
  void forget(const Seq& seq);

  const Sequence& view(const Seq& seq) const { return core_.view(seq.handle); }
  // Where its next forward begins.
  std::int64_t computed(const Seq& seq) const { return core_.computed(view(seq)); }
  std::int64_t settled(const Seq& seq) const {
    return setup_.core.early_commit ? std::min(seq.settled_before, computed(seq)) : computed(seq);
  }
  bool is_ahead(const Seq& seq) const { return !seq.preempted && computed(seq) > settled(seq); }
  void settle(Seq& seq) const { seq.settled_before = std::min(seq.settled_before, computed(seq)); }
  std::int64_t num_slots(const Seq& seq) const {
    return std::int64_t{view(seq).num_blocks} * setup_.core.block_size - view(seq).missing_slots;
  }
  Tables tables(const Seq& seq) const;
  std::vector<bool> held() const;
  bool is_in_cache(std::size_t block) const;
  void close_fence(const std::vector<BlockCopy>& copies, const std::vector<GroupWork>& work);
  void check_fences(const std::vector<BlockCopy>& copies, const std::vector<GroupWork>& work) const;
  void remember(Seq& seq) const;  // after a call on it
  void check_tables(const Seq& seq) const;

  // Checks between calls.
  void check_memory();
  void check_mirror();
  void check_findable(NodeId n, Prefix before, std::int64_t unit);
  void check_computed(const Seq& seq) const;
  void check_ring(const Seq& seq, std::size_t at, std::int64_t length) const;
  int slices_of(std::size_t group) const;
  int further_of(std::size_t group) const;
  bool is_whole(std::size_t at, NodeId n) const;
  std::int32_t source_of(std::int32_t block, std::int64_t token) const;

  Bytes& bytes_;
  Setup setup_;
  Counts* counts_;
  Trial* trial_;
  TestDigester* digester_;
  Caller caller_;
  Sequences& core_;
  GroupDevice device_;
  std::vector<Caller::Table> shown_;  // by group
  PrefixTrie trie_;
  std::vector<SeqPtr> seqs_;
  std::deque<Step> uncommitted_;
  std::deque<InFlight> fences_;
  std::deque<std::int64_t> tickets_;  // of steps that are not complete
  std::vector<BlockCopy> flight_;     // of a closed step that is not launched
  std::deque<std::vector<Token>> texts_;
  std::int64_t calls_ = 0;
  std::vector<std::int64_t> pins_;
  std::vector<std::int64_t> holds_;               // block ids, one entry per hold
  std::vector<Token> asked_;                      // tokens of the prompt in a call
  std::set<std::pair<int, std::string>> mirror_;  // groups and digests, fed by events alone
  std::vector<Known> known_;                      // sessions, the one with the oldest prompt first
  std::set<Handle> ended_;                        // sequences whose session has ended
  std::set<NodeId> letting_go_;                   // what the call makes go first
};

}  // namespace blockmgr::testing
