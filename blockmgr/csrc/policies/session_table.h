// The sessions of one partition: where the path of each ends, and whether its next prompt is
// expected.
//
// A session is a client's name for prompts that follow one another. Its *path* is what its last
// sequence left in the cache. Only the last node of a path is kept, so a session takes the same
// memory whatever its length; a path that has lost its last node is forgotten. For each node the
// table knows how many paths end there, and how many of those belong to sessions that wait.
//
// The table has a fixed size: a new session takes the place of the one whose last prompt is the
// oldest.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "identity/interning.h"
#include "memory/heap.h"
#include "memory/ring.h"

namespace blockmgr {

class BlockAudit;
class RetainingPolicy;

class SessionTable {
 public:
  using Id = std::uint32_t;
  static constexpr std::size_t kMostNameBytes = 256;
  static constexpr Id kNone = 0;
  static constexpr Id kEnded = UINT32_MAX;  // of a sequence whose session has ended

  // The client's last statement about the next prompt.
  enum class Outlook : std::uint8_t { kUnknown, kExpected, kNotExpected };

  struct Session {
    double until = 0;              // end of the outlook kExpected
    NodeId tip = kNoNode;          // the last node of its path
    std::uint32_t generation = 0;  // of the tip
    std::int32_t num_blocks = 0;   // of the path
    std::int32_t row = -1;         // of the sequence of its last prompt, while that lives
    std::uint32_t root = 0;
    std::int32_t prev = 0;  // the last prompt of the one before it is older
    std::int32_t next = 0;
    Outlook outlook = Outlook::kUnknown;
  };

  // most: sessions that the table holds.
  SessionTable(Nodes& nodes, Range range, RetainingPolicy& policy, int most);

  // A session for an admission that can still fail: one that is new goes again unless it is kept.
  class Claim {
   public:
    Claim(SessionTable& table, std::uint32_t root, std::string_view name);
    ~Claim() {
      if (is_new_) table_->names_.release(id_);
    }
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;
    SessionTable& table() const { return *table_; }
    Id id() const { return id_; }
    bool is_new() const { return is_new_; }
    void keep() noexcept { is_new_ = false; }

   private:
    SessionTable* table_;
    Id id_;
    bool is_new_ = false;
  };

  // kNone: it is not in the table.
  Id find(std::uint32_t root, std::string_view name) const;
  const Session& at(Id id) const { return sessions_[id]; }
  std::string_view name(Id id) const { return names_.bytes(id).substr(sizeof(std::uint32_t)); }
  int size() const { return size_; }
  bool is_full() const { return size_ == most_; }
  Id oldest() const { return static_cast<Id>(sessions_[kNone].next); }

  // A new session of a claim; there must be room.
  void add(Id id, std::uint32_t root) noexcept;
  void remove(Id id) noexcept;
  // Its last prompt is the one of this row, and of all sessions the last. Its path is no more the
  // session's, and nothing is known of the next prompt.
  void begin(Id id, std::int32_t row) noexcept;
  // The sequence of its last prompt has left this path; kNoNode: none.
  void end(Id id, NodeId tip, std::int32_t num_blocks) noexcept;
  // That sequence has ended, or has left the session.
  void release(Id id) noexcept { session(id).row = -1; }
  // Its path is that of a sequence again.
  void forget_path(Id id) noexcept;
  void set_outlook(Id id, Outlook outlook, double until) noexcept;
  // The last node of its path; kNoNode: there is none, or it has gone.
  NodeId tip(Id id) const {
    const Session& s = at(id);
    return s.tip >= 0 && nodes_[s.tip].generation == s.generation ? s.tip : kNoNode;
  }
  // Paths of sessions that end at this node.
  std::uint32_t num_paths(NodeId n) const {
    return ends_[n].generation == nodes_[n].generation ? ends_[n].num_paths : 0;
  }
  void set_time(double now) noexcept;

  std::size_t memory() const;
  void audit(BlockAudit& audit) const;
  void fingerprint(std::string& out) const;
  template <class Visit>
  void each(Visit visit) const {
    for (std::int32_t i = sessions_[kNone].next; i; i = sessions_[static_cast<Id>(i)].next)
      visit(static_cast<Id>(i), at(static_cast<Id>(i)));
  }

 private:
  // The sessions whose paths end at a node of this generation.
  struct Ends {
    std::uint32_t generation;
    std::uint32_t num_paths;
    std::uint32_t num_expected;
  };
  Session& session(Id id) const { return sessions_[id]; }
  bool has_deadline(const Session& s) const {
    return s.outlook == Outlook::kExpected && s.until < std::numeric_limits<double>::infinity();
  }
  // The name of a session with its root: the same name in another namespace is another session.
  struct Key {
    Key(std::uint32_t root, std::string_view name);
    std::string_view bytes() const { return {data, size}; }
    char data[sizeof(std::uint32_t) + kMostNameBytes];
    std::size_t size;
  };
  void forget_outlook(Id id) noexcept;
  void count_expected(const Session& s, int change) noexcept;

  Nodes& nodes_;
  Range range_;
  RetainingPolicy& policy_;
  int most_;
  int size_ = 0;
  Interner names_;                 // of their keys
  ZeroedArray<Session> sessions_;  // by number of the name; 0: the sentinel of their ring
  Column<Ends> ends_;
  Column<std::int32_t> positions_;
  BlockHeap<double> deadlines_;  // of sessions
};

}  // namespace blockmgr
