// Which blocks became findable and which stopped being so, in order, until a caller takes them.
//
//   num_blocks <= capacity      num_runs <= capacity      num_lost > 0: one of them is reached
//
// A mirror of the cache gets runs: blocks that were stored one after the other, each the
// parent of the next, are one event, and so are blocks that were removed one after the other. All
// memory is there from the start and nothing here fails. What does not fit is counted as lost, and
// so is all that comes after it: a log that is full stays so until it is dropped.
//
// The log knows no namespaces and no keys, only their numbers. The index holds a reference to each
// as long as it stands here. Names of sessions are copied: a session may be dropped before its
// events are taken. There is room for a bounded number of bytes; what does not fit has no name
// here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "memory/node.h"

namespace blockmgr {

enum class EventKind : std::uint8_t { kStored, kRemoved, kCleared };

struct EventRun {
  EventKind kind;
  bool has_parent;     // stored: it continues another block
  std::uint8_t group;  // of layers, as engines count them
  std::uint32_t root;  // stored: number of the namespace
  std::int64_t step;   // steps whose copies had been applied
  std::int64_t first;  // the first of its blocks among all blocks of the log
  std::int64_t num_blocks;
  std::int64_t session_at = 0;  // stored: where the name of its session begins
  std::int32_t session_size = 0;
};

struct EventExtras {
  std::int64_t block;  // among the stored blocks of the log
  std::uint32_t id;
};

class EventLog {
 public:
  // full_group: which group of layers has the nodes' own blocks.
  EventLog(const Nodes& nodes, std::int64_t capacity, int full_group, bool has_sessions);

  // The number of a group in the order of the engine; of kOwnBlock: that of the nodes' own blocks.
  static constexpr int kOwnBlock = -1;
  int number_of(int group) const { return group == kOwnBlock ? full_group_ : group; }
  // A full block became findable: a node's own or, in another group, that of its part. parent:
  // digest of the block before it, nullptr for the first of a prompt. Whether the index has to hold
  // on to the namespace (kNewRun) and to the extra keys.
  enum Recorded { kLost, kExtended, kNewRun };
  Recorded stored(NodeId b, int group, NodeId parent, const std::uint8_t* parent_digest,
                  const std::uint8_t* digest, const Token* tokens, std::uint32_t extras) noexcept;
  void removed(int group, const std::uint8_t* digest) noexcept;
  // cleared(): nothing that was findable is findable any more. overtaken(): events were lost, so
  // those that stand here are dropped before a clearing; nothing is missing after it.
  bool overtaken() const { return num_lost_ > 0 || full_of_runs(); }
  void cleared() noexcept;
  // The key of one node has passed to another: the same block to a reader.
  void moved(NodeId from, NodeId to) noexcept;
  // The namespace of a block without a parent, and that of any other.
  void set_root(NodeId b, std::uint32_t root) { roots_[static_cast<std::size_t>(b)] = root; }
  std::uint32_t root_of(NodeId b) const { return roots_[static_cast<std::size_t>(b)]; }
  void set_step(std::int64_t step) noexcept { step_ = step; }
  // Whose blocks are stored from here on; empty: no session's.
  static constexpr std::size_t kMostNameBytes = 256;
  void set_session(std::string_view name) noexcept { session_.set(name); }
  std::string_view session_of(const EventRun& run) const {
    return {names_.data() + run.session_at, static_cast<std::size_t>(run.session_size)};
  }

  // Forgets what stands here, once a caller has them.
  void drop() noexcept;

  const EventRun* begin() const { return runs_.data(); }
  const EventRun* end() const { return runs_.data() + num_runs_; }
  std::int64_t num_runs() const { return num_runs_; }
  std::int64_t num_blocks() const { return num_blocks_; }
  std::int64_t num_stored() const { return num_stored_; }
  // Blocks and clearings that did not fit. More than 0: only a snapshot says what there is.
  std::int64_t num_lost() const { return num_lost_; }
  // Grows with every change.
  std::int64_t version() const { return version_; }
  const std::uint8_t* digests() const { return digests_.data(); }
  const std::uint8_t* parents() const { return parents_.data(); }  // one a run
  const Token* tokens() const { return tokens_.data(); }           // of stored blocks
  const EventExtras* extras() const { return extras_.data(); }
  std::int64_t num_extras() const { return num_extras_; }
  std::size_t bytes() const;

 private:
  bool full_of_runs() const { return num_runs_ == capacity_; }
  struct Name {
    char bytes[kMostNameBytes];
    std::size_t size = 0;
    void set(std::string_view name) noexcept {
      size = name.size();
      if (size) std::memcpy(bytes, name.data(), size);  // no bytes have no address
    }
    std::string_view view() const { return {bytes, size}; }
  };
  EventRun& last_run() const { return runs_[static_cast<std::size_t>(num_runs_ - 1)]; }
  void name_run(EventRun& run) noexcept;
  bool add_run(EventKind kind, int group) noexcept;
  void add_block(const std::uint8_t* digest) noexcept;

  std::size_t digest_size_;
  std::size_t block_size_;
  std::int64_t capacity_;
  int full_group_;
  ZeroedArray<EventRun> runs_;
  ZeroedArray<std::uint8_t> digests_;
  ZeroedArray<std::uint8_t> parents_;
  ZeroedArray<Token> tokens_;
  ZeroedArray<EventExtras> extras_;
  ZeroedArray<std::uint32_t> roots_;
  ZeroedArray<char> names_;
  std::int64_t num_name_bytes_ = 0;
  Name session_;       // of what is stored now
  Name last_session_;  // of the last run of stored blocks
  std::int64_t num_runs_ = 0;
  std::int64_t num_blocks_ = 0;
  std::int64_t num_stored_ = 0;
  std::int64_t num_extras_ = 0;
  std::int64_t num_lost_ = 0;
  std::int64_t step_ = 0;
  std::int64_t version_ = 0;
  NodeId last_ = kNoNode;  // the last node of a run that its children may extend
};

}  // namespace blockmgr
