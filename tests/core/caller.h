// A manager whose calls are made on the core itself, or through the C interface.
//
// Answers of the C interface become what the core would have returned or thrown, so that an engine
// does not see the difference. On the way, each result that takes room is first asked for with too
// little of it, which must change nothing; but not where several threads make calls.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "c/status.h"
#include "digester.h"
#include "sequences/sequences.h"

namespace blockmgr::testing {

class Caller {
 public:
  // groups: all, in the order of the engine; through C only. digester: nullptr without a prefix
  // cache.
  Caller(const Config& config, TestDigester* digester, bool through_c,
         const PolicyMaker& make = nullptr, const std::vector<Group>& groups = {},
         bool is_alone = true);
  ~Caller();
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  Sequences& core() { return *core_; }

  // More handles than there are rows: refused before anything of them is read.
  bool refuses_batch(std::int64_t count) const { return c_ && count > core_->config().max_seqs; }
  MatchResult match(const Prompt& prompt);
  Admission can_admit(const Prompt& prompt);
  Handle admit(const Prompt& prompt);
  void resume(Handle handle, std::int64_t num_slots, bool read_cache = true);
  void resume_together(const Handle* handles, std::int64_t count, std::int64_t num_slots,
                       bool read_cache);
  void reserve(Handle handle, std::int64_t num_slots);
  void append(Handle handle, const Token* tokens, std::int64_t count);
  void place_state(Handle handle, std::int64_t slot);
  void commit(Handle handle, std::int64_t num_computed);
  void decode(const Handle* handles, const Token* tokens, std::int64_t count, std::int64_t* slots);
  std::int64_t truncate(Handle handle, std::int64_t num_tokens);
  void fork(Handle handle, std::int64_t count, Handle* children);
  void reparent(const Handle* handles, const std::int64_t* parents, std::int64_t count);
  void free(Handle handle, bool withdraw = false);
  void free_expecting(Handle handle, bool expect_reuse, bool withdraw = false);
  void preempt(Handle handle, bool withdraw = false);
  bool cache_state(Handle handle);
  std::int64_t take_copies(std::vector<BlockCopy>& copies);
  void copies_applied(std::int64_t ticket);
  void copies_aborted(std::int64_t ticket);
  void complete(std::int64_t ticket);
  std::vector<RemapRecord> take_remaps();
  std::int64_t retain(Handle handle, std::int64_t start, std::int64_t stop, int level, double ttl);
  std::int64_t retain_prefix(const Prompt& prompt, int level, double ttl);
  std::int64_t pin(const Prompt& prompt);
  void unpin(std::int64_t pin);
  std::int64_t touch(const Prompt& prompt);
  // Blocks; -1: no such session is known.
  std::int64_t end_session(std::string_view name, std::string_view session);
  std::int64_t signal(std::string_view name, std::string_view session, Sessions::Signal signal,
                      double seconds);
  std::int64_t retire(std::string_view name);
  void set_time(double seconds);
  std::int64_t reset_prefix_cache(bool reset_hit_rate);
  void acquire(const std::int64_t* ids, std::int64_t count);
  void release(const std::int64_t* ids, std::int64_t count);
  void touch_blocks(const std::int64_t* ids, std::int64_t count);
  std::int64_t forget(const std::int64_t* ids, std::int64_t count);
  std::int64_t shrink(std::int64_t num_blocks);
  void grow(std::int64_t num_blocks);
  void slot_mapping(Handle handle, std::int64_t start, std::int64_t stop,
                    std::int64_t* slots) const;
  // The same of a group of the engine, which is such a one of the core.
  void group_slots(Handle handle, int group, int further, std::int64_t start, std::int64_t stop,
                   std::int64_t* slots) const;
  // What callers see of it in the first row; and how far the rows are apart.
  struct Table {
    const std::int32_t* first;
    std::int64_t width;
  };
  Table table(int group, int further) const;
  EventColumns take_events() { return take_columns(false); }
  EventColumns take_snapshot() { return take_columns(true); }

  // Through C: what it tells of sequences, tables and counts is what the core has. Throws a
  // Violation otherwise.
  void check_reads() const;

 private:
  [[noreturn]] static void fail(const std::string& otherwise);
  EventColumns take_columns(bool snapshot);

  std::unique_ptr<TestDigester> digester_;  // through C; else the core's
  std::unique_ptr<Sequences> own_;
  blockmgr_manager* c_ = nullptr;
  bool is_alone_;
  Sequences* core_;
};

}  // namespace blockmgr::testing
