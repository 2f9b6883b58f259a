#include <algorithm>
#include <functional>

#include "sequences/arguments.h"
#include "sequences/sequences.h"

namespace blockmgr {

std::int64_t Launching::take_copies(std::vector<BlockCopy>& copies) {
  const Held held(rows().monitor());
  const std::int64_t ticket = rows().take_plan(copies);
  if (has_groups()) [[unlikely]]
    launch_groups(copies);
  return ticket;
}

EventColumns Launching::residents() const {
  return resident_events(index(), nodes(), step(),
                         {groups()->num_groups(), [this](int g) { return rows().in_engine(g); },
                          [this](int g, NodeId n) { return groups()->stands_for_digest(g, n); }});
}

// The forward of this step may move the states of all that can go on.
void Launching::launch_groups(std::vector<BlockCopy>& copies) noexcept {
  for (BlockCopy& copy : copies) {
    const int g = groups()->owner(nodes().owner(copy.destination));
    copy.group = rows().in_engine(g);
    copy.num_tokens = rows().tokens_of_block(g, copy.num_tokens);
  }
  if (!rings().empty()) std::ranges::stable_partition(copies, std::not_fn(&BlockCopy::is_zeros));
  moved_.clear();
  if (!num_singles()) return;
  for (const Sequence& s : rows().sequences) {
    if (s.state != Sequence::kRunning) continue;
    if (rows().begins(s) >= std::min(s.num_tokens, rows().num_slots(s))) continue;
    if (s.loads) continue;  // no forward before that is committed
    moved_.push_back(rows().handle_of(rows().row_of(s)));
    rows().group_row(s).sure = rows().group_row(s).farthest;
    move_states(s);
  }
}

void Launching::move_states(const Sequence& s) noexcept {
  GroupRow& row = rows().group_row(s);
  ++row.moves;
  row.farthest = std::max(row.farthest, std::min(s.num_tokens, rows().num_slots(s)));
}

void Launching::copies_applied(std::int64_t ticket) {
  Call call(rows());  // what nothing but a copy used is idle at its end
  rows().apply_plan(ticket);
}

void Launching::copies_aborted(std::int64_t ticket) {
  Call call(rows());
  rows().abort_plan(ticket);
  return_groups();
}

// A forward over tokens that are not known yet overwrites as many old positions of a ring.
void Launching::mark_state_moved(Handle handle, std::int64_t num_slots) {
  const Held held(rows().monitor());
  const Sequence& s = rows().running(handle);
  const std::int64_t most = rows().num_slots(s);
  if (num_slots) check_bounds("num_slots", num_slots, 1, most);
  if (!num_singles()) return;
  move_states(s);
  GroupRow& row = rows().group_row(s);
  row.sure = row.farthest = std::max(row.farthest, num_slots ? num_slots : most);
}

void Launching::return_copies(std::int64_t ticket) noexcept {
  const Held held(rows().monitor(), Held::Afterwards());
  if (held && rows().return_plan(ticket)) return_groups(true);
}

// Nothing was launched. takes_back: nor has the engine seen the plan.
void Launching::return_groups(bool takes_back) noexcept {
  for (const Handle handle : moved_) {
    const Sequence& s = rows().at(handle);
    const bool is_same = rows().handle_of(rows().row_of(s)) == handle;
    if (s.state != Sequence::kRunning || !is_same) continue;
    GroupRow& row = rows().group_row(s);
    row.moves = std::max(0, row.moves - 1);
    if (takes_back) row.farthest = row.sure;
  }
  moved_.clear();
  rows().settle_keeps();
}

}  // namespace blockmgr
