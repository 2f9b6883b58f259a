// Sessions: prompts that follow one another, as clients name them. The next prompt of a session
// makes what only its last one used useless; a client can say whether there will be one.
//
// What nothing else uses of a path goes first: its nodes get the lowest level, or, with further
// groups of layers, its boundaries are passed. Nothing else means: no table, hold, retained level
// or path of another session, and nothing that continues elsewhere.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "policies/session_table.h"
#include "sequences/finding.h"
#include "sequences/group_tables.h"
#include "sequences/holding.h"

namespace blockmgr {

// What a sequence leaves in the cache.
struct SessionPath {
  SessionTable::Id session = SessionTable::kNone;
  NodeId tip = kNoNode;
  std::uint32_t generation = 0;  // of the tip
  std::int32_t num_blocks = 0;
};

class Sessions : public Part<Sessions, Holding> {
 public:
  enum class Signal { kToolWait, kResumed, kDone };
  // Of a caller: a signal by its number, and the seconds that come with it.
  static Signal checked_signal(int signal, double seconds);
  // Answers are in blocks, announced as admit's, or none: the session is not known.
  using Announce = std::function<void(std::int64_t)>;

  // Its path is not wanted any more. Of a running sequence, that is what it leaves.
  bool end_session(std::string_view namespace_name, std::string_view session,
                   const Announce& announce = {});
  // What a client knows of its next prompt. seconds: until it is expected; kForever: unknown.
  bool signal(std::string_view namespace_name, std::string_view session, Signal signal,
              double seconds, const Announce& announce = {});

  // For admission: the session of a prompt, in the share of its namespace. May throw.
  SessionTable::Claim claim(int partition, std::uint32_t root, std::string_view session);
  // Before anything is taken for the sequence, which has a row and finds these nodes.
  void begin(Sequence& s, SessionTable::Claim& session, const Found& found) noexcept;
  // Before a sequence that ends or is preempted releases its blocks, and afterwards.
  [[gnu::noinline]] SessionPath path_of(const Sequence& s) const noexcept;
  void end(const Sequence& s, const SessionPath& path, bool resumes) noexcept;
  // A preempted sequence takes its path back, before anything is taken for it.
  [[gnu::noinline]] void take_path_back(const Sequence& s) noexcept;
  // A sequence that has a session leaves it without a path.
  void leave_session(const Sequence& s) noexcept;

  struct Known {
    RetainingPolicy& policy;
    SessionTable::Id id;
  };
  std::optional<Known> find(const char* call, std::string_view namespace_name,
                            std::string_view session) const;

 private:
  std::int64_t count_superseded(const RetainingPolicy& policy, NodeId tip, std::int64_t num_blocks,
                                const Found& found) const;
  std::int64_t count_alone(const RetainingPolicy& policy, NodeId tip, std::int64_t most,
                           std::uint32_t own) const;
  bool continues_elsewhere(const RetainingPolicy& policy, NodeId n, NodeId child) const;
  bool goes_first(const RetainingPolicy& policy, NodeId from) const;
  template <typename Holds>
  bool any_from(NodeId from, const Holds& holds) const;
  bool has_user(NodeId n) const;
  void let_go(NodeId tip, std::int64_t count) noexcept;
  void remove(SessionTable& table, SessionTable::Id id) noexcept;
  SessionTable* table_of(const Sequence& s) const noexcept;
  RetainingPolicy& policy_of(int partition) const { return *pool().partition(partition).retention; }
};

}  // namespace blockmgr
