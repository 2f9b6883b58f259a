#include "sequences/arguments.h"
#include "sequences/sequences.h"

namespace blockmgr {

Sessions::Signal Sessions::checked_signal(int signal, double seconds) {
  check_bounds("signal", signal, 0, static_cast<int>(Signal::kDone));
  if (!(seconds > 0))
    throw Error(ErrorKind::kValue, "seconds must be above 0, got " + std::to_string(seconds));
  return static_cast<Signal>(signal);
}

SessionTable::Claim Sessions::claim(int partition, std::uint32_t root, std::string_view session) {
  return {rows().retaining("session", partition).named_sessions(), root, session};
}

void Sessions::begin(Sequence& s, SessionTable::Claim& claim, const Found& found) noexcept {
  SessionTable& table = claim.table();
  if (claim.is_new()) {
    if (table.is_full()) remove(table, table.oldest());
    table.add(claim.id(), s.root);
    index().retain_root(s.root);
    claim.keep();
  }
  const NodeId tip = table.tip(claim.id());
  const SessionTable::Session& last = table.at(claim.id());
  // A preempted sequence continues there.
  const bool is_over = tip >= 0 && last.row < 0;
  const std::int64_t count =
      is_over ? count_superseded(policy_of(s.partition), tip, last.num_blocks, found) : 0;
  table.begin(claim.id(), static_cast<std::int32_t>(rows().row_of(s)));
  s.session = claim.id();
  let_go(tip, count);
  rows().counters.superseded_blocks += count;
}

void Sessions::remove(SessionTable& table, SessionTable::Id id) noexcept {
  const std::uint32_t root = table.at(id).root;
  table.remove(id);
  index().release_root(root);
}

// A prompt that shares less than half of the old path does not follow it: it is a request beside
// the conversation, which continues later. On recorded agents, half of what such prompts would
// supersede is used again. It shares what full attention has, wherever it can continue from.
std::int64_t Sessions::count_superseded(const RetainingPolicy& policy, NodeId tip,
                                        std::int64_t num_blocks, const Found& found) const {
  if (found.partial == tip && found.num_partial == nodes()[tip].key_tokens) return 0;
  const std::int64_t least = (num_blocks + 1) / 2;
  NodeId n = tip;
  std::int64_t shared = num_blocks;
  while (shared > found.num_lead || found.full[shared - 1] != n) {
    if (shared == least) return 0;
    n = nodes()[n].parent;
    --shared;
  }
  return count_alone(policy, tip, num_blocks - shared, 1);
}

// Blocks at the end of a path that nothing else uses, most of them at most. own: 1 if the table has
// the path. The source of a planned copy counts as unused, because the copy ends with the step.
std::int64_t Sessions::count_alone(const RetainingPolicy& policy, NodeId tip, std::int64_t most,
                                   std::uint32_t own) const {
  NodeId below = kNoNode;
  NodeId n = tip;
  std::int64_t count = 0;
  for (; count < most; ++count, own = 0, below = n, n = nodes()[n].parent) {
    if (continues_elsewhere(policy, n, below) || has_user(n) ||
        policy.sessions()->num_paths(n) > own || policy.is_kept(n))
      break;
  }
  return count;
}

// Whether there is more below a node than this child of it. What goes first anyway does not count.
bool Sessions::continues_elsewhere(const RetainingPolicy& policy, NodeId n, NodeId child) const {
  if (!has_groups()) return policy.num_children(n) > (child >= 0 && policy.level(child) > kLow);
  for (NodeId c = nodes()[n].first_child; c >= 0; c = nodes()[c].next_sibling)
    if (c != child && !goes_first(policy, c)) return true;
  return false;
}

// Whether it holds for this node or for one below it.
template <typename Holds>
bool Sessions::any_from(NodeId from, const Holds& holds) const {
  for (NodeId n = from;;) {
    if (holds(n)) return true;
    if (nodes()[n].first_child >= 0) {
      n = nodes()[n].first_child;
      continue;
    }
    while (n != from && nodes()[n].next_sibling < 0) n = nodes()[n].parent;
    if (n == from) return false;
    n = nodes()[n].next_sibling;
  }
}

// Whether every boundary from this node down is passed, and nothing uses them.
bool Sessions::goes_first(const RetainingPolicy& policy, NodeId from) const {
  return policy.level(from) <= kNormal && !any_from(from, [&](NodeId n) {
           const bool is_worth_more = groups()->is_boundary(n) && !groups()->is_passed(n);
           return is_worth_more || has_user(n) || policy.sessions()->num_paths(n);
         });
}

bool Sessions::has_user(NodeId n) const {
  return nodes().uses(n).ref_count || use<Holding>().num_holds(n);
}

// The last first, so that a level never rises with depth.
void Sessions::let_go(NodeId tip, std::int64_t count) noexcept {
  if (!count) return;
  RetainingPolicy& policy = policy_of(pool().partition_of(tip));
  for (NodeId n = tip; count; --count, n = nodes()[n].parent) {
    groups()->let_go(n) ? policy.forget_hint(n) : policy.hint(n, false);
  }
}

SessionPath Sessions::path_of(const Sequence& s) const noexcept {
  SessionPath path{s.session};
  if (s.state != Sequence::kRunning || s.outdated) return path;
  const NodeId* t = rows().table(s);
  std::int64_t end = has_groups() ? s.num_blocks : std::min(s.num_chained + 1, s.num_blocks);
  while (end > s.num_chained && !nodes()[t[end - 1]].keyed()) --end;
  if (end > s.num_chained) {
    path.tip = t[end - 1];
    path.num_blocks = static_cast<std::int32_t>(end);
  } else if (s.num_chained) {
    path.tip = rows().chain_node(s, s.num_chained);
    path.num_blocks = s.num_chained;
  }
  // Behind the last boundary, nothing stays.
  for (NodeId below = kNoNode; path.num_blocks; --path.num_blocks) {
    const NodeId n = path.tip;
    if (groups()->continues(n)) break;
    const std::uint32_t own = t[path.num_blocks - 1] == n;
    if (nodes().uses(n).ref_count > own || use<Holding>().num_holds(n)) break;
    const auto stays = [&](NodeId each) { return groups()->is_boundary(each) || has_user(each); };
    NodeId child = nodes()[n].first_child;
    while (child >= 0 && (child == below || !any_from(child, stays)))
      child = nodes()[child].next_sibling;
    if (child >= 0) break;
    below = n;
    path.tip = nodes()[n].parent;
  }
  if (path.tip >= 0) path.generation = nodes()[path.tip].generation;
  return path;
}

// The path goes to the session unless that has ended, or has had another prompt. The last sequence
// of an ended session leaves what goes first. One that was preempted has left its path already.
void Sessions::end(const Sequence& s, const SessionPath& path, bool resumes) noexcept {
  const bool stays =
      path.tip >= 0 && nodes()[path.tip].keyed() && nodes()[path.tip].generation == path.generation;
  RetainingPolicy& policy = policy_of(s.partition);
  if (path.session == SessionTable::kEnded) {
    if (stays) let_go(path.tip, count_alone(policy, path.tip, path.num_blocks, 0));
    return;
  }
  if (!table_of(s)) return;
  SessionTable& table = *policy.sessions();
  if (!resumes) table.release(path.session);
  if (s.state != Sequence::kRunning) return;
  const SessionTable::Outlook outlook = table.at(path.session).outlook;
  if (stays && outlook == SessionTable::Outlook::kNotExpected)
    let_go(path.tip, count_alone(policy, path.tip, path.num_blocks, 0));
  table.end(path.session, stays ? path.tip : kNoNode, path.num_blocks);
  if (stays && outlook == SessionTable::Outlook::kExpected) groups()->clear_passed(path.tip);
}

void Sessions::take_path_back(const Sequence& s) noexcept {
  if (SessionTable* const table = table_of(s)) table->forget_path(s.session);
}

void Sessions::leave_session(const Sequence& s) noexcept {
  if (SessionTable* const table = table_of(s)) table->release(s.session);
}

// Of the session whose last prompt is that of the sequence; nullptr: there is none.
SessionTable* Sessions::table_of(const Sequence& s) const noexcept {
  if (s.session == SessionTable::kEnded) return nullptr;
  SessionTable& table = *policy_of(s.partition).sessions();
  return table.at(s.session).row == rows().row_of(s) ? &table : nullptr;
}

std::optional<Sessions::Known> Sessions::find(const char* call, std::string_view namespace_name,
                                              std::string_view session) const {
  RetainingPolicy& policy = rows().retaining(call, rows().partition_of(namespace_name));
  const std::uint32_t root = index().find_root(namespace_name);
  if (root == kUnknownId || !policy.sessions()) return {};
  const SessionTable::Id id = policy.sessions()->find(root, session);
  if (id == SessionTable::kNone) return {};
  return Known{policy, id};
}

bool Sessions::end_session(std::string_view namespace_name, std::string_view session,
                           const Announce& announce) {
  Call call(rows());
  const std::optional<Known> known = find("end_session", namespace_name, session);
  if (!known) return false;
  SessionTable& table = *known->policy.sessions();
  const SessionTable::Session ended = table.at(known->id);
  const NodeId tip = table.tip(known->id);
  const std::int64_t count = tip < 0 ? 0 : count_alone(known->policy, tip, ended.num_blocks, 1);
  if (announce) announce(count);
  if (ended.row >= 0) {
    Sequence& s = rows().sequences[nth(ended.row)];
    if (s.session == known->id) s.session = SessionTable::kEnded;
  }
  remove(table, known->id);
  let_go(tip, count);
  return true;
}

bool Sessions::signal(std::string_view namespace_name, std::string_view session, Signal signal,
                      double seconds, const Announce& announce) {
  Call call(rows());
  const std::optional<Known> known = find("signal", namespace_name, session);
  if (!known) return false;
  SessionTable& table = *known->policy.sessions();
  const NodeId tip = table.tip(known->id);
  const std::int64_t num_blocks = tip < 0 ? 0 : table.at(known->id).num_blocks;
  if (signal != Signal::kDone) {
    if (announce) announce(num_blocks);
    // What the client has said before holds no more.
    if (table.at(known->id).outlook == SessionTable::Outlook::kNotExpected)
      for (NodeId n = tip; n >= 0; n = nodes()[n].parent) known->policy.forget_hint(n);
    table.set_outlook(known->id, SessionTable::Outlook::kExpected, known->policy.now() + seconds);
    if (tip >= 0) groups()->clear_passed(tip);
    return true;
  }
  const std::int64_t count = tip < 0 ? 0 : count_alone(known->policy, tip, num_blocks, 1);
  if (announce) announce(count);
  table.set_outlook(known->id, SessionTable::Outlook::kNotExpected, 0);
  let_go(tip, count);
  return true;
}

}  // namespace blockmgr
