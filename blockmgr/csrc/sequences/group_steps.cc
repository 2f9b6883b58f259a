// With further groups of layers: commits, and what is known of states between steps.
#include <algorithm>

#include "sequences/sequences.h"

namespace blockmgr {

// Blocks in all groups for so many of full attention.
std::int64_t Sequences::grouped_need(std::int64_t blocks) const {
  return blocks * (1 + groups_->num_groups() - num_states_);
}

void Sequences::refuse_moved(const Sequence& s, const char* call) const {
  if (!num_states_ || group_row(s).stands) return;
  throw Error(ErrorKind::kStep, std::string("cannot ") + call + " sequence " +
                                    std::to_string(handle_of(row_of(s))) +
                                    ": a forward may have moved its state since the last commit; "
                                    "commit where it stopped first");
}

// Gives back what no query to come reads.
void Sequences::drop_windows(Sequence& s) noexcept {
  const std::int64_t from = std::max<std::int64_t>(0, settled(s) - config_.max_rollback);
  for (int g = 0; g < groups_->num_groups(); ++g) {
    if (groups_->group(g).recurrent()) continue;
    std::int32_t& first = group_row(s).first[nth(g)];
    const std::int64_t read = groups_->group(g).first_read(from);
    if ((first + 1) * std::int64_t{config_.block_size} > read) continue;
    const auto until = static_cast<std::int32_t>(read / config_.block_size);
    drop_part_run(s, g, first, std::min(until, s.num_blocks));
    first = until;
  }
}

void Sequences::commit_groups(Sequence& s) noexcept {
  note_state(s);
  if (settled(s) == s.num_computed && num_states_) keep_state(s);
  drop_windows(s);
}

// Whether a commit of what is computed tells where the states stand.
bool Sequences::tells_state(const Sequence& s) const {
  return open_steps_.empty() || group_row(s).moves <= 1;
}

void Sequences::note_state(Sequence& s) noexcept {
  if (settled(s) != s.num_computed || !tells_state(s)) return;
  group_row(s).stands = true;
  group_row(s).moves = 0;
}

// Before decode, which commits first: as refuse_moved.
void Sequences::refuse_unknown_state(const Sequence& s, const char* call) const {
  if (!tells_state(s)) refuse_moved(s, call);
}

// Apart from its caller, which seldom needs it.
[[gnu::noinline]] static void add_to(std::vector<NodeId>& parts, NodeId m) { parts.push_back(m); }

// Parts that decode gives back before it takes any, as far as that is certain. Appends them. While
// steps are in flight there are none.
std::int64_t Sequences::num_dropped(const Sequence& s, std::vector<NodeId>& parts) const {
  std::int64_t dropped = 0;
  const NodeId* t = table(s);
  const std::int64_t from = std::max<std::int64_t>(0, s.num_tokens - config_.max_rollback);
  for (int g = 0; g < groups_->num_groups(); ++g) {
    if (groups_->group(g).recurrent()) continue;
    const std::int64_t read = std::min(groups_->group(g).first_read(from), num_slots(s));
    for (std::int64_t unit = group_row(s).first[nth(g)];
         (unit + 1) * config_.block_size <= read; ++unit) {
      const NodeId m = groups_->part(g, t[unit]);
      if (nodes_.uses(m) != Uses{1, 0}) continue;
      add_to(parts, m);
      ++dropped;
    }
  }
  return dropped;
}

// The blocks of all groups that a batch needs if it takes this many of full attention. Corrects the
// counts by partition as well, and reserves memory for the states that decode may keep.
std::int64_t Sequences::plan_parts(const Handle* handles, std::int64_t count, std::int64_t blocks,
                                   DecodePlan& plan) {
  keeps_.reserve(keeps_.size() + static_cast<std::size_t>(count * num_states_));
  std::int64_t needed = grouped_need(blocks);
  for (std::int64_t& each : plan.needed_by) each = grouped_need(each);
  plan.promotions.dropped.clear();
  if (!drops_before_taking()) return needed;
  std::int64_t committed = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const Sequence& s = sequences_[static_cast<std::size_t>(row_of(handles[i]))];
    const std::int64_t dropped = num_dropped(s, plan.promotions.dropped);
    needed -= dropped;
    if (!plan.needed_by.empty()) plan.needed_by[s.partition] -= dropped;
    committed += std::max<std::int64_t>(size_.whole(s.num_tokens) - s.num_chained, 0);
  }
  plan.promotions.count_taken(grouped_need(committed));
  return needed;
}

// All tokens of these but those that decode appends are computed: what becomes findable, and what
// is given back.
void Sequences::commit_decoded(const Handle* handles, std::int64_t count,
                               const PromotionPlan& plan) noexcept {
  promote_all(plan);
  for (std::int64_t i = 0; i < count; ++i) {
    Sequence& s = sequences_[static_cast<std::size_t>(row_of(handles[i]))];
    note_state(s);
    drop_windows(s);
  }
}

// States at a stop, with what decode left over. Not within a block: the caller knows the slots.
void Sequences::keep_decoded(const Handle* handles, std::int64_t count) noexcept {
  for (std::int64_t i = 0; num_states_ && i < count; ++i) {
    Sequence& s = sequences_[static_cast<std::size_t>(row_of(handles[i]))];
    if (s.num_computed % config_.block_size == 0) keep_state(s);
  }
}

std::int64_t Sequences::take_copies(std::vector<BlockCopy>& copies) {
  const Held held(monitor_);
  const std::int64_t ticket = take_plan(copies);
  if (groups_) [[unlikely]]
    launch_groups(copies);
  return ticket;
}

void Sequences::settle_events() {
  const Held held(monitor_);
  if (!groups_) return;
  settle_keeps();
  for (const KeptState& k : keeps_) groups_->tell_kept(k.state);
  settle_keeps();
}

EventColumns Sequences::residents() const {
  if (!groups_) return Store::residents();
  return resident_events(index_, nodes_, step_, {groups_->num_groups(), [this](int g, NodeId n) {
                                                   return groups_->stands_for_digest(g, n);
                                                 }});
}

// The forward of this step may move the states of all that can go on.
void Sequences::launch_groups(std::vector<BlockCopy>& copies) noexcept {
  for (BlockCopy& copy : copies) copy.group = group_number(nodes_.owner(copy.destination));
  moved_.clear();
  if (!num_states_) return;
  for (const Sequence& s : sequences_) {
    if (s.state != Sequence::kRunning) continue;
    if (settled(s) >= std::min(s.num_tokens, num_slots(s))) continue;
    moved_.push_back(handle_of(row_of(s)));
    group_row(s).stands = false;
    ++group_row(s).moves;
  }
}

void Sequences::copies_aborted(std::int64_t ticket) {
  const Held held(monitor_);
  abort_plan(ticket);
  if (groups_) return_groups();
}

void Sequences::return_copies(std::int64_t ticket) noexcept {
  const Held held(monitor_, Held::Afterwards());
  if (held && return_plan(ticket) && groups_) return_groups();
}

// Nothing was launched.
void Sequences::return_groups() noexcept {
  for (const Handle handle : moved_) {
    const Sequence& s = sequences_[static_cast<std::size_t>(row_of(handle))];
    if (s.state != Sequence::kRunning || handle_of(row_of(s)) != handle) continue;
    GroupRow& row = group_row(s);
    row.moves = std::max(0, row.moves - 1);
    row.stands = row.moves == 0;
  }
  moved_.clear();
}

}  // namespace blockmgr
