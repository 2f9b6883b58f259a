#include "policies/session_table.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "policies/retention.h"

namespace blockmgr {

SessionTable::SessionTable(Nodes& nodes, Range range, RetainingPolicy& policy, int most)
    : nodes_(nodes),
      range_(range),
      policy_(policy),
      most_(most),
      // One more than stay: a claim comes before the oldest goes.
      sessions_(static_cast<std::size_t>(most) + 2),
      ends_(range),
      positions_(Range{0, most + 2, most + 2}),
      deadlines_(static_cast<std::size_t>(most) + 1, positions_) {
  ring::clear(sessions_.data(), kNone);
}

SessionTable::Claim::Claim(SessionTable& table, std::uint32_t root, std::string_view name)
    : table_(&table) {
  const Key key(root, name);
  id_ = table.names_.find(key.bytes());
  is_new_ = id_ == kUnknownId;
  if (is_new_) id_ = table.names_.intern(key.bytes());
}

// Callers check that names are not longer.
SessionTable::Key::Key(std::uint32_t root, std::string_view name)
    : size(sizeof root + std::min(name.size(), kMostNameBytes)) {
  std::memcpy(data, &root, sizeof root);
  std::memcpy(data + sizeof root, name.data(), size - sizeof root);
}

SessionTable::Id SessionTable::find(std::uint32_t root, std::string_view name) const {
  const Id id = names_.find(Key(root, name).bytes());
  return id == kUnknownId ? kNone : id;
}

void SessionTable::add(Id id, std::uint32_t root) noexcept {
  Session& s = session(id);
  s = Session();
  s.root = root;
  ring::insert_before(sessions_.data(), static_cast<int>(id), kNone);
  ++size_;
}

void SessionTable::remove(Id id) noexcept {
  Session& s = session(id);
  forget_outlook(id);
  forget_path(id);
  ring::remove(sessions_.data(), static_cast<int>(id));
  s.row = -1;
  --size_;
  names_.release(id);
}

void SessionTable::begin(Id id, std::int32_t row) noexcept {
  Session& s = session(id);
  forget_outlook(id);
  forget_path(id);
  s.row = row;
  ring::remove(sessions_.data(), static_cast<int>(id));
  ring::insert_before(sessions_.data(), static_cast<int>(id), kNone);
}

void SessionTable::end(Id id, NodeId tip, std::int32_t num_blocks) noexcept {
  if (tip < 0) return;
  Session& s = session(id);
  s.tip = tip;
  s.generation = nodes_[tip].generation;
  s.num_blocks = num_blocks;
  Ends& ends = ends_[tip];
  if (ends.generation != s.generation) ends = {s.generation, 0, 0};
  ++ends.num_paths;
  if (s.outlook == Outlook::kExpected) count_expected(s, 1);
}

void SessionTable::set_outlook(Id id, Outlook outlook, double until) noexcept {
  forget_outlook(id);
  Session& s = session(id);
  // A large time can swallow a short one.
  if (outlook == Outlook::kExpected && !(until > policy_.now())) return;
  s.outlook = outlook;
  s.until = until;
  if (has_deadline(s)) deadlines_.insert(static_cast<NodeId>(id), until);
  if (outlook == Outlook::kExpected) count_expected(s, 1);
}

// Nothing is known of the next prompt.
void SessionTable::forget_outlook(Id id) noexcept {
  Session& s = session(id);
  if (has_deadline(s)) deadlines_.remove(static_cast<NodeId>(id));
  const bool was_expected = s.outlook == Outlook::kExpected;
  s.outlook = Outlook::kUnknown;
  if (was_expected) count_expected(s, -1);
}

void SessionTable::forget_path(Id id) noexcept {
  Session& s = session(id);
  if (s.outlook == Outlook::kExpected) count_expected(s, -1);
  if (s.tip >= 0 && ends_[s.tip].generation == s.generation) --ends_[s.tip].num_paths;
  s.tip = kNoNode;
  s.num_blocks = 0;
}

void SessionTable::count_expected(const Session& s, int change) noexcept {
  if (s.tip < 0 || ends_[s.tip].generation != s.generation) return;
  std::uint32_t& count = ends_[s.tip].num_expected;
  count += static_cast<std::uint32_t>(change);
  if (nodes_[s.tip].generation == s.generation) policy_.expect(s.tip, count > 0);
}

void SessionTable::set_time(double now) noexcept {
  while (!deadlines_.empty() && deadlines_.front_key() <= now)
    forget_outlook(static_cast<Id>(deadlines_.front()));
}

std::size_t SessionTable::memory() const {
  return sizeof *this + names_.memory() + sessions_.bytes() + ends_.bytes() + positions_.bytes() +
         deadlines_.memory();
}

}  // namespace blockmgr
