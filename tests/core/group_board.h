// A small manager with groups of layers, and the operations of its short histories.
//
// Units of two tokens, two token values, one namespace, two sequences of up to eight tokens. No
// step is in flight; a sequence is committed after a forward or, with early commits, before it. The
// checks are those of the random engines.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "group_play.h"

namespace blockmgr::testing {

struct GroupRules {
  std::string wanted = "all";  // families of operations
  std::vector<Group> groups;   // beside one of full attention
  int full_slices = 1;         // blocks of full attention in a unit
  int num_blocks = 0;          // of all groups; 0: enough for one sequence plus two
  int num_nodes = 0;           // without full attention; 0: with it
  int min_partial_tokens = 1;
  bool early_commit = false;
};

// Parses "window3/1+state+ring4:2+again3@4": the kinds by name, each with its width, the tokens of
// its blocks if they are fewer than those of a unit, where a ring restarts, how many tokens before
// a hit are computed again for a window that is not cached; "state*2" has two slots more.
std::vector<Group> groups_of(const std::string& text);

// A board draws nothing, so every byte that the engine draws is zero.
struct NoBytes {
  Bytes none{nullptr, 0};
};

class GroupBoard : private NoBytes, private GroupPlay {
 public:
  static constexpr int kMostSequences = 2;
  static constexpr int kUnit = 2;
  static constexpr int kMostUnits = 4;

  GroupBoard(const GroupRules& rules, Counts* counts);

  std::size_t num_seqs() const { return seqs_.size(); }
  // Whether a plan is closed but neither launched nor aborted.
  std::size_t num_open() const { return closed_.has_value(); }
  // Checks the books and the memory.
  void check();
  void check_calls(bool on);
  // After each operation, repeated ones too: a block that is out of use stays so, and its memory is
  // gone.
  void lose_what_left();

  void admit(const std::vector<Token>& text, std::int64_t slots = 0, std::int64_t num_loaded = 0);
  // What is loaded arrives and is committed; promises: with what the step computes behind it.
  void land(std::size_t i, bool promises);
  // Admits the tokens of a sequence and one more; if ends, frees the sequence first.
  void admit_after(std::size_t i, Token token, bool ends);
  void append(std::size_t i, Token token);
  void reserve(std::size_t i);
  void fork(std::size_t i);
  void free(std::size_t i);
  void truncate(std::size_t i, std::int64_t count);  // removes that many tokens, never the first
  // With early commits, promises what the next step computes of a sequence; where nothing is left
  // to compute, confirms what the last one did.
  void promise(std::size_t i, bool stops);
  void withdraw(std::size_t i);  // frees a sequence with what it has promised
  void preempt(std::size_t i);
  void resume(std::size_t i);
  void reparent(const std::vector<std::int64_t>& parents);
  void decode(Token token);
  void retire();
  // To a part of all blocks, in quarters. No plan may be closed.
  void shrink(int quarters);
  void grow(int quarters);
  // A whole step, of all sequences or of one. stops: forwards end at the stops of the admission.
  void step(bool stops, int only = -1);
  void begin();
  void finish(bool applies_last = false);
  void abort();

 private:
  friend class GroupNames;
  static Setup setup_of(const GroupRules& rules);
  SeqPtr at(std::size_t i, bool preempted) const;
  std::int64_t end_of(const Seq& seq, bool stops) const;
  void fill(Closed& closed, bool stops, int only);
  std::int64_t blocks_of(int quarters) const {
    return 1 + (setup_.core.num_blocks - 1) * quarters / 4;
  }

  std::optional<Closed> closed_;
  std::vector<bool> left_;  // the blocks that are out of use, each since it was in no use
};

struct GroupOperation {
  std::string name;
  std::function<void(GroupBoard&)> run;  // does nothing where it does not apply
};

// wanted is "few", "all", or few and families: "few+fork+parts".
std::vector<GroupOperation> group_operations(const GroupRules& rules);

}  // namespace blockmgr::testing
