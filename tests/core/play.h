// Maps bytes to operations: the same interpreter serves random streams, a fuzzer and replays.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bytes.h"
#include "world.h"

namespace blockmgr::testing {

enum Move {
  kMoveAdmit,
  kMoveNextTurn,
  kMoveAppend,
  kMoveDecode,
  kMoveStep,
  kMoveBegin,
  kMoveFinish,
  kMoveAbort,
  kMoveComplete,
  kMoveCommit,
  kMoveReserve,
  kMoveTruncate,
  kMoveFork,
  kMoveBranch,
  kMoveReparent,
  kMoveFree,
  kMovePreempt,
  kMoveResume,
  kMoveRemaps,
  kMoveNonsense,
  kMoveFailing,
  kMoveIntruding,
  kMoveRetain,
  kMovePin,
  kMoveUnpin,
  kMoveTouch,
  kMoveTime,
  kMoveEnd,
  kMoveTwins,
  kMoveRegrow,
  kMoveReset,
  kMoveHold,
  kMoveLetGo,
  kMoveTouchBlocks,
  kMoveForget,
  kMoveTogether,  // this and what comes after it takes no byte when weights are drawn
  kMoveResize,
  kNumMoves
};

// The build lists all policies; each is drawn equally often.
#ifndef BLOCKMGR_POLICIES
#define BLOCKMGR_POLICIES "lru"
#endif
inline constexpr const char* kPolicies[] = {BLOCKMGR_POLICIES};

// The kind of engine that drives the manager, and the size of its world.
struct Profile {
  const char* name;
  int min_blocks, max_blocks;
  std::vector<int> sizes;
  int min_seqs, max_seqs;
  int prompt;  // longest prompt, in tokens
  std::vector<int> vocabulary;
  int namespaces;
  int swarm;  // weights are multiplied by 2 to a power of at most this
  std::vector<std::pair<Move, int>> weights;  // that differ from the balanced ones
  bool wide = false;   // no two digests collide, so that ghosts, which are known by digest, work
  bool plain = false;  // always the settings of most managers
};
const std::vector<Profile>& profiles();
// One that is not among them, so that the numbers of the others stay: forks that are preempted and
// resumed together.
const Profile& families();
// Likewise: the pool shrinks and grows.
const Profile& resizes();

class Play {
 public:
  // Draws a configuration and weights from the stream. profile: its number; -1 for families(), -2
  // for resizes().
  Play(Bytes& bytes, int profile, Counts* counts = nullptr, Trial* trial = nullptr,
       bool through_c = false);
  // One move; false when the stream is at its end.
  bool move();
  void finish_up() { world_.finish_up(); }
  std::int64_t calls() const { return world_.calls(); }
  const World& world() const { return world_; }
  std::string config() const;

 private:
  static Settings draw(Bytes& bytes, const Profile& profile, Trial* trial, bool through_c);
  static void draw_levels(Bytes& bytes, const Profile& profile, int capacity, Settings& settings);
  static Habits draw_habits(Bytes& bytes);
  void weigh();
  EntryPtr any_entry();
  std::vector<Token> tokens(int longest);
  Token token() { return static_cast<Token>(bytes_.below(vocabulary_)); }
  void admit();
  void next_turn(const EntryPtr& entry);
  Asked draw_terms(int length);
  std::vector<std::int64_t> some_blocks();
  void let_go();
  void decode();
  void finish();
  void abort();
  void branch(const EntryPtr& entry);
  void retreat();
  void overtake(const EntryPtr& entry);
  void stagger(const EntryPtr& entry);
  void pause();
  void reparent();
  void resume();
  void resume_together();
  void resize();
  void regroup();
  void nonsense();
  void retain(const EntryPtr& entry);
  void twins(const EntryPtr& entry);
  void demean(const EntryPtr& entry);
  void crowd();
  void regrow(const EntryPtr& entry);
  void with_entry(Move move, const EntryPtr& entry);
  void move_once();
  void commit_ahead();

  Bytes& bytes_;
  const Profile& profile_;
  Settings settings_;
  World world_;
  int vocabulary_;
  std::vector<std::vector<Token>> stems_;
  EntryPtr regrown_;         // the last one
  std::uint8_t table_[256];  // maps a byte to a move, in proportion to its weight
};

}  // namespace blockmgr::testing
