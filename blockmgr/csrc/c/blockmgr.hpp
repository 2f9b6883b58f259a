// blockmgr for C++20: the calls of blockmgr.h, with an owner for managers and exceptions for
// refusals.
//
// A header alone, over the C interface: the classes of the core stay inside the library, so that it
// may be built by another compiler than its user, and may change without a new build of its users.
// The contract is that of blockmgr.h. A call without a method here takes what Manager::get()
// returns.
#ifndef BLOCKMGR_HPP
#define BLOCKMGR_HPP

#include <blockmgr.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

namespace blockmgr {
// Apart from the names in the library, which a program with the static one has, too.
inline namespace api {

using Handle = blockmgr_handle;
using Copy = blockmgr_copy;
using Remap = blockmgr_remap;
using Stats = blockmgr_stats;
using SequenceView = blockmgr_sequence;

// A call was refused, and nothing has changed. what(): the text of blockmgr_last_error.
class Error : public std::runtime_error {
 public:
  explicit Error(blockmgr_status status)
      : std::runtime_error(blockmgr_last_error()), status_(status) {}
  blockmgr_status status() const noexcept { return status_; }

 private:
  blockmgr_status status_;
};

// Not enough blocks at the moment, or not enough nodes: free or preempt a sequence, and try again.
class OutOfBlocks : public Error {
 public:
  explicit OutOfBlocks(blockmgr_status status = BLOCKMGR_OUT_OF_BLOCKS) : Error(status) {
    blockmgr_last_shortage(&needed_, &available_, &reserved_);
  }
  std::int64_t needed() const noexcept { return needed_; }
  std::int64_t available() const noexcept { return available_; }
  std::int64_t reserved_by_watermark() const noexcept { return reserved_; }
  bool of_nodes() const noexcept { return status() == BLOCKMGR_OUT_OF_NODES; }

 private:
  std::int64_t needed_ = 0, available_ = 0, reserved_ = 0;
};

inline void check(blockmgr_status status) {
  if (status == BLOCKMGR_OK) return;
  if (status == BLOCKMGR_OUT_OF_BLOCKS || status == BLOCKMGR_OUT_OF_NODES)
    throw OutOfBlocks(status);
  throw Error(status);
}

// The options with their defaults.
struct Options : blockmgr_options {
  Options(std::int64_t blocks, std::int64_t tokens_of_a_block) : blockmgr_options{} {
    check(blockmgr_options_init(this, sizeof(blockmgr_options)));
    num_blocks = blocks;
    block_size = tokens_of_a_block;
  }
};

// Refers to the tokens and to the names, and does not copy them.
struct Prompt : blockmgr_prompt {
  explicit Prompt(std::span<const std::uint32_t> text, std::string_view space = {},
                  std::string_view of_session = {})
      : blockmgr_prompt{} {
    struct_size = sizeof(blockmgr_prompt);
    tokens = text.data();
    num_tokens = static_cast<std::int64_t>(text.size());
    name = space.data();
    name_size = space.size();
    session = of_session.data();
    session_size = of_session.size();
  }
};

struct Match : blockmgr_match_result {
  std::vector<std::int32_t> blocks;
};

struct CopyPlan {
  std::int64_t ticket = 0;
  std::vector<Copy> copies;  // behind them, blocks of rings to fill with zeros
};
inline bool is_zeros(const Copy& copy) { return copy.source == copy.destination; }

// int32[num_rows][row_width], in memory of the manager.
struct Table {
  const std::int32_t* entries = nullptr;
  std::int64_t num_rows = 0, row_width = 0;
  std::span<const std::int32_t> row(Handle handle) const {
    return {entries + (handle & 0xffffffff) * row_width, static_cast<std::size_t>(row_width)};
  }
};

enum class Admission { kNow = BLOCKMGR_NOW, kLater = BLOCKMGR_LATER, kNever = BLOCKMGR_NEVER };
enum class Signal {
  kToolWait = BLOCKMGR_TOOL_WAIT,
  kResumed = BLOCKMGR_RESUMED,
  kDone = BLOCKMGR_DONE
};

class Manager {
 public:
  explicit Manager(const blockmgr_options& options) {
    blockmgr_manager* made = nullptr;
    check(blockmgr_create(&options, &made));
    manager_.reset(made);
  }
  // For the calls of blockmgr.h.
  blockmgr_manager* get() const noexcept { return manager_.get(); }

  Match match(const blockmgr_prompt& prompt) {
    Match found{};
    found.struct_size = sizeof(blockmgr_match_result);
    check(blockmgr_match(get(), &prompt, &found, nullptr, 0));
    found.blocks = filled<std::int32_t>(
        [&](std::int32_t* out, std::int64_t room, std::int64_t* count) {
          const blockmgr_status status = blockmgr_match(get(), &prompt, &found, out, room);
          *count = found.num_blocks;
          return status;
        },
        found.num_blocks);
    return found;
  }
  Admission can_admit(const blockmgr_prompt& prompt) {
    std::int32_t admission = 0;
    check(blockmgr_can_admit(get(), &prompt, &admission));
    return static_cast<Admission>(admission);
  }
  Handle admit(const blockmgr_prompt& prompt) {
    Handle handle = 0;
    check(blockmgr_admit(get(), &prompt, &handle));
    return handle;
  }
  void reserve(Handle handle, std::int64_t slots) { check(blockmgr_reserve(get(), handle, slots)); }
  void append(Handle handle, std::span<const std::uint32_t> tokens) {
    check(blockmgr_append(get(), handle, tokens.data(), static_cast<std::int64_t>(tokens.size())));
  }
  void commit(Handle handle, std::int64_t num_computed_tokens) {
    check(blockmgr_commit(get(), handle, num_computed_tokens));
  }
  // The slot of each new token.
  std::vector<std::int64_t> decode(std::span<const Handle> handles,
                                   std::span<const std::uint32_t> tokens) {
    same_size(handles.size(), tokens.size());
    std::vector<std::int64_t> slots(handles.size());
    check(blockmgr_decode(get(), handles.data(), tokens.data(), size_of(handles), slots.data()));
    return slots;
  }
  std::vector<Handle> fork(Handle handle, std::int64_t n = 1) {
    std::vector<Handle> children(n > 0 ? static_cast<std::size_t>(n) : 0);
    check(blockmgr_fork(get(), handle, n, children.data()));
    return children;
  }
  void reparent(std::span<const Handle> handles, std::span<const std::int64_t> parents) {
    same_size(handles.size(), parents.size());
    check(blockmgr_reparent(get(), handles.data(), parents.data(), size_of(handles)));
  }
  // The computed tokens that are left.
  std::int64_t truncate(Handle handle, std::int64_t num_tokens) {
    std::int64_t left = 0;
    check(blockmgr_truncate(get(), handle, num_tokens, &left));
    return left;
  }
  void free(Handle handle) { check(blockmgr_free(get(), handle, 0)); }
  void preempt(Handle handle) { check(blockmgr_preempt(get(), handle, 0)); }
  void resume(Handle handle, std::int64_t num_slots = 0) {
    check(blockmgr_resume(get(), handle, num_slots, 0));
  }
  void resume_together(std::span<const Handle> handles, std::int64_t num_slots = 0) {
    check(blockmgr_resume_together(get(), handles.data(), size_of(handles), num_slots, 0));
  }

  // Of sessions: the blocks that go first, or are expected; nothing: no such session is known.
  std::optional<std::int64_t> end_session(std::string_view session, std::string_view space = {}) {
    std::int64_t blocks = -1;
    check(blockmgr_end_session(get(), space.data(), space.size(), session.data(), session.size(),
                               &blocks));
    return known(blocks);
  }
  std::optional<std::int64_t> signal(std::string_view session, Signal signal,
                                     std::string_view space = {},
                                     double seconds = std::numeric_limits<double>::infinity()) {
    std::int64_t blocks = -1;
    check(blockmgr_signal(get(), space.data(), space.size(), session.data(), session.size(),
                          static_cast<std::int32_t>(signal), seconds, &blocks));
    return known(blocks);
  }
  // The sequences that continue with K/V from before the call.
  std::int64_t retire(std::string_view space = {}) {
    std::int64_t num_sequences = 0;
    check(blockmgr_retire(get(), space.data(), space.size(), &num_sequences));
    return num_sequences;
  }

  void place_state(Handle handle, std::int64_t slot) {
    check(blockmgr_place_state(get(), handle, slot));
  }

  SequenceView view(Handle handle) const {
    SequenceView view{};
    view.struct_size = sizeof view;
    check(blockmgr_view(get(), handle, &view));
    return view;
  }
  std::vector<std::uint32_t> tokens(Handle handle) const {
    return filled<std::uint32_t>([&](std::uint32_t* out, std::int64_t room, std::int64_t* count) {
      return blockmgr_tokens(get(), handle, out, room, count);
    });
  }
  std::vector<Handle> handles() const {
    return filled<Handle>([&](Handle* out, std::int64_t room, std::int64_t* count) {
      return blockmgr_handles(get(), out, room, count);
    });
  }
  std::int64_t shrink(std::int64_t num_blocks) {
    std::int64_t num_leaving = 0;
    check(blockmgr_shrink(get(), num_blocks, &num_leaving));
    return num_leaving;
  }
  void grow(std::int64_t num_blocks) { check(blockmgr_grow(get(), num_blocks)); }
  std::vector<Handle> leaving() const {
    return filled<Handle>([&](Handle* out, std::int64_t room, std::int64_t* count) {
      return blockmgr_leaving(get(), out, room, count);
    });
  }
  Table table(std::int32_t group = 0) const {
    Table table;
    check(blockmgr_table(get(), group, &table.entries, &table.num_rows, &table.row_width));
    return table;
  }
  std::vector<std::int64_t> slot_mapping(Handle handle, std::int64_t start, std::int64_t stop,
                                         std::int32_t group = 0) const {
    std::vector<std::int64_t> slots(start < stop && stop <= view(handle).num_slots
                                        ? static_cast<std::size_t>(stop - start)
                                        : 0);
    check(blockmgr_slot_mapping(get(), handle, group, start, stop, slots.data()));
    return slots;
  }

  CopyPlan take_copies() {
    CopyPlan plan;
    plan.copies = filled<Copy>([&](Copy* out, std::int64_t room, std::int64_t* count) {
      return blockmgr_take_copies(get(), out, room, count, &plan.ticket);
    });
    return plan;
  }
  void copies_applied(std::int64_t ticket) { check(blockmgr_copies_applied(get(), ticket)); }
  void copies_aborted(std::int64_t ticket) { check(blockmgr_copies_aborted(get(), ticket)); }
  void complete(std::int64_t ticket) { check(blockmgr_complete(get(), ticket)); }
  std::vector<Remap> take_remaps() {
    return filled<Remap>([&](Remap* out, std::int64_t room, std::int64_t* count) {
      return blockmgr_take_remaps(get(), out, room, count);
    });
  }

  Stats stats() const {
    Stats stats{};
    stats.struct_size = sizeof stats;
    check(blockmgr_get_stats(get(), &stats));
    return stats;
  }
  void check_invariants() const { check(blockmgr_check_invariants(get())); }

 private:
  struct Destroy {
    void operator()(blockmgr_manager* manager) const noexcept { blockmgr_destroy(manager); }
  };

  static std::optional<std::int64_t> known(std::int64_t blocks) {
    if (blocks < 0) return {};
    return blocks;
  }
  template <class T>
  static std::int64_t size_of(std::span<T> values) {
    return static_cast<std::int64_t>(values.size());
  }
  static void same_size(std::size_t handles, std::size_t others) {
    if (handles != others) throw std::invalid_argument("as many values are needed as handles");
  }
  // The numbers that a call writes, with as much room as it asks for.
  template <class T, class Call>
  static std::vector<T> filled(const Call& call, std::int64_t count = 0) {
    std::vector<T> values;
    for (;;) {
      values.resize(static_cast<std::size_t>(count));
      T none{};
      const blockmgr_status status = call(count ? values.data() : &none, count, &count);
      if (status == BLOCKMGR_TOO_SMALL) continue;
      check(status);
      values.resize(static_cast<std::size_t>(count));
      return values;
    }
  }

  std::unique_ptr<blockmgr_manager, Destroy> manager_;
};

}  // namespace api
}  // namespace blockmgr

#endif
