// Sessions of an engine with groups of layers: what each has, and what has to go first.
//
// Computed from the calls, the tokens, and what is cached: the path of a session is what its last
// sequence left; the rest of it goes first once a prompt that shares half of it has come, or once
// no prompt is expected, up to the first block that something else uses.
#include <algorithm>

#include "group_play.h"

namespace blockmgr::testing {

namespace {

bool is_now(const Nodes& nodes, const std::pair<NodeId, std::uint32_t>& one) {
  return nodes[one.first].generation == one.second && nodes[one.first].keyed();
}

}  // namespace

GroupPlay::Known* GroupPlay::known(int name, const std::string& session) {
  for (Known& one : known_)
    if (one.name == name && one.session == session) return &one;
  return nullptr;
}

GroupPlay::Known* GroupPlay::known_of(Handle handle) {
  for (Known& one : known_)
    if (one.handle == handle) return &one;
  return nullptr;
}

// The nodes of a path, the first one first; none once its last one has gone.
std::vector<NodeId> GroupPlay::path_of(const Known& one) const {
  std::vector<NodeId> path;
  if (one.tip.first < 0 || !is_now(core_.nodes(), one.tip)) return path;
  for (NodeId n = one.tip.first; n >= 0; n = core_.nodes()[n].parent) path.push_back(n);
  std::reverse(path.begin(), path.end());
  return path;
}

// The next turn, or the last one with another end.
std::vector<Token> GroupPlay::turn_of(const Known& last) {
  std::vector<Token> turn;
  std::vector<NodeId> path = path_of(last);
  const auto most = static_cast<int>(path.size());
  path.resize(static_cast<std::size_t>(bytes_.between((most + 1) / 2, most)));
  const Nodes& nodes = core_.nodes();
  for (const NodeId n : path)
    turn.insert(turn.end(), nodes.tokens(n), nodes.tokens(n) + nodes[n].key_tokens);
  for (const Token token : tokens(bytes_.between(1, 9))) turn.push_back(token);
  return turn;
}

// Whether something uses a node, or what continues it, and is not about to go.
bool GroupPlay::is_wanted(NodeId n, bool and_below, const Known* own) const {
  const Nodes& nodes = core_.nodes();
  const GroupPlaces& groups = *core_.groups();
  if (nodes.uses(n).ref_count) return true;
  for (const std::int64_t held : holds_)
    if (nodes.owner(held) == n) return true;
  for (const Known& one : known_)
    if (&one != own && one.tip.first == n && is_now(nodes, one.tip)) return true;
  if (!and_below) return core_.pool().partition(core_.pool().partition_of(n)).retention->is_kept(n);
  if (core_.level(n) > kNormal || (groups.is_boundary(n) && !groups.is_passed(n))) return true;
  for (NodeId c = nodes[n].first_child; c >= 0; c = nodes[c].next_sibling)
    if (is_wanted(c, true, own)) return true;
  return false;
}

// What goes first of a path behind so many of its nodes.
std::set<NodeId> GroupPlay::alone(const std::vector<NodeId>& path, std::size_t shared,
                                  const Known* own) const {
  std::set<NodeId> alone;
  for (std::size_t i = path.size(); i-- > shared; alone.insert(path[i])) {
    bool ends = is_wanted(path[i], false, own);
    for (NodeId c = core_.nodes()[path[i]].first_child; c >= 0; c = core_.nodes()[c].next_sibling)
      ends = ends || (!alone.count(c) && is_wanted(c, true, own));
    if (ends) break;
  }
  return alone;
}

// What a prompt of the session supersedes if it is admitted.
std::set<NodeId> GroupPlay::superseded(const Known& one, const Prompt& asked) const {
  const std::vector<NodeId> path = path_of(one);
  const Nodes& nodes = core_.nodes();
  if (one.handle || !asked.read_cache) return {};
  const std::int64_t size = setup_.core.block_size;
  const std::int64_t end = asked.num_tokens - (setup_.core.stop_margin == 0);
  const ExtrasIds ids = known_extras(core_.index().extras(), asked.extras);
  std::size_t shared = 0;
  const auto is_shared = [&](std::int64_t unit) {
    const NodeId n = path[static_cast<std::size_t>(unit)];
    return (unit + 1) * size <= end && nodes[n].key_tokens == size &&
           nodes[n].extras == extras_at(&ids, unit) &&
           std::equal(nodes.tokens(n), nodes.tokens(n) + size, asked.tokens + unit * size);
  };
  while (shared < path.size() && is_shared(static_cast<std::int64_t>(shared))) ++shared;
  if (2 * shared < path.size()) return {};
  return alone(path, shared, &one);
}

// What the session of a prompt may expect no more once it has come: its path; or, if it is new,
// that of the session of its share that may have to go.
std::set<NodeId> GroupPlay::expected_before(int name, const std::string& session) {
  const Known* one = known(name, session);
  const auto share = core_.partition_of(World::text_of(name));
  for (const Known& other : known_)
    if (!one && core_.partition_of(World::text_of(other.name)) == share) one = &other;
  const std::vector<NodeId> path = one ? path_of(*one) : std::vector<NodeId>();
  return {path.begin(), path.end()};
}

std::set<NodeId> GroupPlay::passed() const {
  std::set<NodeId> passed;
  for (NodeId n = 0; n < core_.nodes().count; ++n)
    if (core_.groups()->is_passed(n)) passed.insert(n);
  return passed;
}

// A prompt of the session came; of all sessions, its is the newest. For a new one, the share may
// drop those with the oldest prompts.
void GroupPlay::note_prompt(int name, const std::string& session, Handle handle) {
  Known next{name, session, handle};
  std::erase_if(known_, [&](const Known& k) { return k.name == name && k.session == session; });
  const auto share = core_.view(handle).partition;
  const auto oldest = std::find_if(known_.begin(), known_.end(), [&](const Known& one) {
    return core_.partition_of(World::text_of(one.name)) == share;
  });
  // check_sessions finds any other that is not known any more.
  if (oldest != known_.end() && !core_session(*oldest)) known_.erase(oldest);
  known_.push_back(next);
}

std::optional<SessionTable::Session> GroupPlay::core_session(const Known& one) const {
  const auto found = core_.Sessions::find("find", World::text_of(one.name), one.session);
  if (!found) return {};
  return found->policy.sessions()->at(found->id);
}

// What it has made findable.
GroupPlay::Stamped GroupPlay::chained(const Seq& seq) const {
  Stamped chained;
  if (!setup_.core.max_sessions || seq.preempted || view(seq).outdated) return chained;
  for (std::int64_t i = 0; i < view(seq).num_chained; ++i) {
    const NodeId n = core_.path_node(view(seq), i);
    chained.emplace_back(n, core_.nodes()[n].generation);
  }
  return chained;
}

// What a sequence has left in the cache is the path of its session, and goes first if that has
// ended. had: what it had made findable.
void GroupPlay::note_left(const Seq& seq, const Stamped& had, bool ends, bool withdraws) {
  std::vector<NodeId> rest;
  for (const auto& one : had)
    if (is_now(core_.nodes(), one)) rest.push_back(one.first);
  // Behind the last boundary, what a copy still reads stays until that is applied.
  const auto goes = [&](NodeId n, NodeId below) {
    for (NodeId c = core_.nodes()[n].first_child; c >= 0; c = core_.nodes()[c].next_sibling)
      if (c != below && stays(c)) return false;
    return !core_.groups()->is_boundary(n) && !core_.nodes().uses(n).ref_count;
  };
  for (NodeId below = kNoNode; !rest.empty() && goes(rest.back(), below); rest.pop_back())
    below = rest.back();
  const std::size_t stays = rest.size();
  if (ended_.count(seq.handle)) check_gone(stamped(alone(rest, 0, nullptr)));
  if (ends) ended_.erase(seq.handle);
  Known* const one = known_of(seq.handle);
  if (!one) return;
  if (ends) one->handle = 0;
  if (seq.preempted) return;
  const auto session = core_session(*one);
  EXPECT(session, "a session is not known any more");
  const Nodes& nodes = core_.nodes();
  const std::int64_t size = setup_.core.block_size;
  one->tip = {session->tip, session->generation};
  if (session->tip >= 0 && !is_now(nodes, one->tip)) one->tip = {kNoNode, 0};
  const std::vector<NodeId> path = path_of(*one);
  for (std::size_t i = 0; i < path.size(); ++i) {
    const auto from = static_cast<std::int64_t>(i) * size;
    std::int64_t count = nodes[path[i]].key_tokens;
    const std::int64_t left = static_cast<std::int64_t>(seq.tokens.size()) - from;
    if (i + 1 == path.size()) count = std::min(count, left);  // it was truncated within its block
    EXPECT(count <= left && std::equal(nodes.tokens(path[i]), nodes.tokens(path[i]) + count,
                                       seq.tokens.begin() + from),
           "the path of a session has tokens that its last sequence did not have");
  }
  // With tables that never change, its end may have passed to a twin. What it takes back was never
  // its own, though others may have it.
  EXPECT(path.size() >= stays || withdraws || !setup_.core.remap,
         "a session lacks blocks that its last sequence left");
  if (one->outlook == Outlook::kNotExpected) check_gone(stamped(alone(path, 0, one)));
}

// Whether a boundary or a use keeps a node, or what continues it.
bool GroupPlay::stays(NodeId n) const {
  const bool is_used = core_.nodes().uses(n).ref_count ||
                       std::any_of(holds_.begin(), holds_.end(), [&](const std::int64_t held) {
                         return core_.nodes().owner(held) == n;
                       });
  if (is_used || core_.groups()->is_boundary(n)) return true;
  for (NodeId c = core_.nodes()[n].first_child; c >= 0; c = core_.nodes()[c].next_sibling)
    if (stays(c)) return true;
  return false;
}

GroupPlay::Stamped GroupPlay::stamped(const std::set<NodeId>& nodes) const {
  Stamped stamped;
  for (const NodeId n : nodes) stamped.emplace_back(n, core_.nodes()[n].generation);
  return stamped;
}

// A prompt came that supersedes so many nodes. It may continue from the tail that is one instead.
void GroupPlay::check_superseded(const Stamped& gone, const std::set<NodeId>& before,
                                 std::int64_t count, bool is_tail) const {
  const auto due = static_cast<std::int64_t>(gone.size());
  EXPECT(count == due || (is_tail && !count), "a prompt supersedes another number of blocks");
  if (count) check_gone(gone);
  for (const NodeId n : passed()) {
    const bool is_due =
        std::any_of(gone.begin(), gone.end(), [&](const auto& one) { return one.first == n; });
    EXPECT(before.count(n) || is_due, "a prompt passes what its session does not have alone");
  }
}

// The path of a preempted sequence is its own again.
void GroupPlay::note_resumed(const Seq& seq) {
  if (Known* const one = known_of(seq.handle)) one->tip = {kNoNode, 0};
}

// In another namespace it has no session.
void GroupPlay::note_moved(const Seq& seq) {
  ended_.erase(seq.handle);
  if (Known* const one = known_of(seq.handle)) one->handle = 0;
}

void GroupPlay::check_gone(const Stamped& gone) const {
  for (const auto& one : gone)
    EXPECT(!is_now(core_.nodes(), one) || !core_.groups()->is_boundary(one.first) ||
               core_.groups()->is_passed(one.first),
           "a block that only an ended session has does not go first");
}

// Exactly these go first since the call; before: those that did before it.
void GroupPlay::check_passed(const std::set<NodeId>& before, const std::set<NodeId>& gone,
                             NodeId back) const {
  std::set<NodeId> due = before;
  for (const NodeId n : gone)
    if (core_.groups()->is_boundary(n)) due.insert(n);
  due.erase(back);
  EXPECT(passed() == due, "other blocks go first than those that only the session has");
}

// Which nodes sessions expect, and which sessions are known.
void GroupPlay::check_sessions() const {
  std::set<NodeId> due;
  for (const Known& one : known_) {
    EXPECT(core_session(one), "a session is not known any more");
    if (one.outlook != Outlook::kExpected || path_of(one).empty()) continue;
    due.insert(one.tip.first);
    EXPECT(core_.level(one.tip.first) >= kExpected, "the path of a session is not expected");
  }
  const Nodes& nodes = core_.nodes();
  for (NodeId n = 0; n < nodes.count; ++n) {
    const RetainingPolicy* levels = core_.pool().partition(core_.pool().partition_of(n)).retention;
    EXPECT(!levels || levels->is_expected_by_sessions(n) == (due.count(n) > 0),
           "a block is expected by another number of sessions");
  }
}

void GroupPlay::expire_sessions() {
  for (Known& one : known_)
    if (one.outlook == Outlook::kExpected && one.until <= core_.time())
      one.outlook = Outlook::kUnknown;
}

void GroupPlay::tell_of_session(const SeqPtr& seq) {
  const std::string session = some_session();
  const auto signal = static_cast<Sessions::Signal>(bytes_.below(3));
  const double seconds = bytes_.one_in(2) ? kForever : bytes_.between(1, 3);
  const bool ends = !bytes_.one_in(2);
  tell(seq->name, session, ends, signal, seconds);
}

void GroupPlay::tell(int number, const std::string& session, bool ends, Sessions::Signal signal,
                     double seconds) {
  const std::string_view name = World::text_of(number);
  Known* const one = known(number, session);
  const std::vector<NodeId> path = one ? path_of(*one) : std::vector<NodeId>();
  const bool waits = !ends && signal != Sessions::Signal::kDone;
  const std::set<NodeId> gone = one && !waits ? alone(path, 0, one) : std::set<NodeId>();
  letting_go_ = gone;
  const std::set<NodeId> before = passed();
  std::int64_t count = -1;
  const bool went = done(ends ? kEndSession : kSignal, [&] {
    count =
        ends ? caller_.end_session(name, session) : caller_.signal(name, session, signal, seconds);
  });
  EXPECT(went && (count >= 0) == (one != nullptr), "another session is known");
  if (!one) return;
  EXPECT(count == static_cast<std::int64_t>(waits ? path.size() : gone.size()),
         "a session has another number of blocks");
  if (ends) {
    if (one->handle) ended_.insert(one->handle);
    std::erase_if(known_, [&](const Known& k) { return &k == one; });
  } else {
    one->outlook = waits ? Outlook::kExpected : Outlook::kNotExpected;
    one->until = core_.time() + seconds;
  }
  check_passed(before, gone, waits && !path.empty() ? path.back() : kNoNode);
}

}  // namespace blockmgr::testing
