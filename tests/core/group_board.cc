#include "group_board.h"

#include <algorithm>
#include <map>
#include <stdexcept>

namespace blockmgr::testing {

std::vector<Group> groups_of(const std::string& text) {
  static const std::map<std::string, Group::Kind> kinds = {
      {"full", Group::kFull},       {"window", Group::kWindow}, {"chunk", Group::kChunk},
      {"state", Group::kRecurrent}, {"ring", Group::kRing},     {"again", Group::kReplayed}};
  std::vector<Group> groups;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('+', at), text.size());
    const std::string one = text.substr(at, end - at);
    const std::size_t digits = std::min(one.find_first_of("0123456789*"), one.size());
    const auto kind = kinds.find(one.substr(0, digits));
    const std::int64_t width = std::atoi(one.c_str() + digits);
    const bool wide =
        kind != kinds.end() && kind->second != Group::kFull && kind->second != Group::kRecurrent;
    if (kind == kinds.end() || (width > 0) != wide)
      throw std::invalid_argument("no such group: " + one);
    Group group{kind->second, width};
    const auto number_after = [&](char mark) {
      const std::size_t mark_at = one.find(mark);
      return mark_at < one.size() ? std::max(1, std::atoi(one.c_str() + mark_at + 1)) : 0;
    };
    if (const int size = number_after('/')) group.num_slices = GroupBoard::kUnit / size;
    if (const int restart = number_after(':')) group.restart = restart;
    group.extra_blocks = number_after('*');
    if (group.is_replayed()) group.replay = std::max<std::int64_t>(number_after('@'), width);
    groups.push_back(group);
    at = end + 1;
  }
  return groups;
}

// ---- the board ----------------------------------------------------------------------------------

GroupPlay::Setup GroupBoard::setup_of(const GroupRules& rules) {
  Setup setup{};
  setup.groups = rules.groups;
  Config& config = setup.core;
  config.num_nodes = rules.num_nodes;
  int blocks = 0;
  if (!rules.num_nodes) {
    setup.groups.insert(setup.groups.begin(), Group{})->num_slices = rules.full_slices;
    blocks = 4 * rules.full_slices;
  }
  for (const Group& group : rules.groups) blocks += 2 * group.num_slices + group.extra_blocks;
  config.null_block = true;
  config.block_size = kUnit;
  set_groups(config, setup.groups);
  config.num_blocks = 1 + (rules.num_blocks ? rules.num_blocks : blocks);
  config.row_width = kMostUnits;
  config.max_seqs = kMostSequences;
  config.min_partial_tokens = rules.min_partial_tokens;
  config.early_commit = rules.early_commit;
  setup.digest = TestDigester::kWide;
  setup.vocabulary = 2;
  setup.habits.chunk = kUnit * kMostUnits;
  setup.check_every = INT32_MAX;  // the walker checks the state after an operation
  setup.snapshot_every = 1;
  if (rules.wanted.find("resize") != std::string::npos) setup.features = kResizes;
  return setup;
}

GroupBoard::GroupBoard(const GroupRules& rules, Counts* counts)
    : GroupPlay(none, setup_of(rules), counts, nullptr),
      left_(static_cast<std::size_t>(setup_.core.num_blocks)) {}

void GroupBoard::check() {
  const std::vector<std::string> violations = core_.violations();
  EXPECT(violations.empty(), violations.front());
  // What is promised is in memory after the forward.
  const auto ahead = [&](const SeqPtr& seq) { return is_ahead(*seq); };
  if (std::none_of(seqs_.begin(), seqs_.end(), ahead)) check_memory();
  for (const SeqPtr& seq : seqs_)
    if (!seq->preempted) check_tables(*seq);
}

void GroupBoard::check_calls(bool on) { setup_.snapshot_every = on ? 1 : INT32_MAX; }

GroupPlay::SeqPtr GroupBoard::at(std::size_t i, bool preempted) const {
  return i < seqs_.size() && seqs_[i]->preempted == preempted ? seqs_[i] : nullptr;
}

void GroupBoard::admit(const std::vector<Token>& text, std::int64_t slots,
                       std::int64_t num_loaded) {
  GroupPlay::admit(text, 0, 0, slots, num_loaded, {});
}

void GroupBoard::land(std::size_t i, bool promises) {
  const SeqPtr seq = at(i, false);
  if (seq && seq->loads && !closed_) GroupPlay::land(seq, promises);
}

void GroupBoard::admit_after(std::size_t i, Token token, bool ends) {
  const SeqPtr seq = at(i, false);
  if (!seq || seq->tokens.size() >= kUnit * kMostUnits) return;
  std::vector<Token> text = seq->tokens;
  text.push_back(token);
  if (ends) GroupPlay::free(seq);
  admit(text);
}

void GroupBoard::append(std::size_t i, Token token) {
  if (const SeqPtr seq = at(i, false)) GroupPlay::append(seq, std::vector<Token>{token});
}

void GroupBoard::reserve(std::size_t i) {
  const SeqPtr seq = at(i, false);
  if (seq) GroupPlay::reserve(seq, static_cast<std::int64_t>(seq->tokens.size()) + kUnit);
}

void GroupBoard::fork(std::size_t i) {
  if (const SeqPtr seq = at(i, false)) GroupPlay::fork(seq, 1);
}

void GroupBoard::free(std::size_t i) {
  if (i < seqs_.size()) GroupPlay::free(seqs_[i]);
}

void GroupBoard::truncate(std::size_t i, std::int64_t count) {
  const SeqPtr seq = at(i, false);
  const auto length = seq ? static_cast<std::int64_t>(seq->tokens.size()) : 0;
  if (length > count) GroupPlay::truncate(seq, length - count);
}

void GroupBoard::promise(std::size_t i, bool stops) {
  const SeqPtr seq = at(i, false);
  if (seq && !seq->loads && !closed_) GroupPlay::commit(seq->handle, end_of(*seq, stops));
}

void GroupBoard::withdraw(std::size_t i) {
  const SeqPtr seq = at(i, false);
  if (seq && is_ahead(*seq) && !closed_) leave(seq);
}

void GroupBoard::preempt(std::size_t i) {
  const SeqPtr seq = at(i, false);
  if (seq && !is_ahead(*seq)) GroupPlay::preempt(seq);
}

void GroupBoard::resume(std::size_t i) {
  if (const SeqPtr seq = at(i, true)) GroupPlay::resume(seq);
}

void GroupBoard::reparent(const std::vector<std::int64_t>& parents) {
  if (seqs_.size() < parents.size() || !at(0, false) || !at(1, false)) return;
  GroupPlay::reparent(seqs_, parents);
}

std::int64_t GroupBoard::end_of(const Seq& seq, bool stops) const {
  std::int64_t end = std::min(static_cast<std::int64_t>(seq.tokens.size()), num_slots(seq));
  if (!stops) return end;
  for (const std::int64_t stop : core_.view_groups(seq.handle).stops)
    if (computed(seq) < stop) end = std::min(end, stop);
  return end;
}

void GroupBoard::fill(Closed& closed, bool stops, int only) {
  for (std::size_t i = 0; i < seqs_.size(); ++i) {
    const SeqPtr seq = at(i, false);
    if (!seq || seq->loads || (only >= 0 && static_cast<int>(i) != only)) continue;
    const bool early = setup_.core.early_commit;
    const std::int64_t end = early ? computed(*seq) : end_of(*seq, stops);
    if (end > settled(*seq)) add_work(closed, seq, settled(*seq), end);
  }
  close(closed);
}

void GroupBoard::step(bool stops, int only) {
  if (closed_ || only >= static_cast<int>(seqs_.size())) return;
  if (only >= 0 && setup_.core.early_commit) return;  // its forward writes all that is promised
  closed_.emplace();
  fill(*closed_, stops, only);
  finish();
}

void GroupBoard::begin() {
  if (closed_) return;
  closed_.emplace();
  fill(*closed_, true, -1);
}

// applies_last: whether the copies are applied after the commits instead of before them.
void GroupBoard::finish(bool applies_last) {
  if (!closed_ || (applies_last && setup_.core.early_commit)) return;  // see launch
  setup_.habits.late = applies_last;
  launch(*closed_);
  const Step due = uncommitted_.front();
  uncommitted_.pop_front();
  commit(due);
  if (applies_last) apply(*closed_);
  closed_.reset();
  setup_.habits.late = false;
}

// A whole step whose commit decodes: every sequence computed to its end gets this token.
void GroupBoard::decode(Token token) {
  if (closed_) return;
  Closed closed;
  fill(closed, false, -1);
  launch(closed);
  Step due = uncommitted_.front();
  uncommitted_.pop_front();
  place(due);
  std::vector<Handle> batch;
  for (const Part& part : due)
    if (part.stop == static_cast<std::int64_t>(find(part.handle)->tokens.size()))
      batch.push_back(part.handle);
  if (!batch.empty()) batch = GroupPlay::decode(batch, std::vector<Token>(batch.size(), token));
  std::erase_if(
      due, [&](const Part& part) { return std::count(batch.begin(), batch.end(), part.handle); });
  commit(due);
}

void GroupBoard::retire() { GroupPlay::retire(0); }

void GroupBoard::shrink(int quarters) {
  if (!closed_ && blocks_of(quarters) < core_.pool().limit())
    GroupPlay::shrink(blocks_of(quarters));
}

void GroupBoard::grow(int quarters) {
  if (closed_ || blocks_of(quarters) <= core_.pool().limit()) return;
  GroupPlay::grow(blocks_of(quarters));
  for (std::int64_t b = 0; b < core_.pool().limit(); ++b)
    left_[static_cast<std::size_t>(b)] = false;
}

void GroupBoard::lose_what_left() {
  std::int64_t leaving = 0;
  for (std::int32_t b = core_.pool().limit(); b < setup_.core.num_blocks; ++b) {
    const bool owned = core_.nodes().owner(b) >= 0;
    EXPECT(!(owned && left_[static_cast<std::size_t>(b)]),
           "block " + std::to_string(b) + " is out of use and was handed out");
    left_[static_cast<std::size_t>(b)] = !owned;
    leaving += owned;
    if (!owned && !closed_) device_.spoil(b);
  }
  EXPECT(leaving == core_.pool().num_leaving(), "another number of blocks is leaving");
}

void GroupBoard::abort() {
  if (!closed_) return;
  GroupPlay::abort(*closed_);
  closed_.reset();
}

// ---- operations ---------------------------------------------------------------------------------

// A separate namespace, because operations.cc uses the same names.
namespace boards {
namespace {

using Operations = std::vector<GroupOperation>;
using Number = std::size_t;

template <class Run>
void add_for_each(Operations& all, const std::string& name, Run run) {
  for (Number i = 0; i < GroupBoard::kMostSequences; ++i)
    all.push_back({name + " " + std::to_string(i), [=](GroupBoard& board) { run(board, i); }});
}

template <class Run>
void add_for_each_token(Operations& all, const std::string& name, Run run) {
  for (const Token token : {Token{0}, Token{1}})
    add_for_each(all, name + " with " + std::to_string(token),
                 [=](GroupBoard& board, Number i) { run(board, i, token); });
}

// Prompts that diverge within a unit and at the end of one; a prompt that starts with few slots.
void add_few(Operations& all, bool early) {
  const auto add_prompt = [&](const std::vector<Token>& text, std::int64_t slots) {
    std::string name = "admit ";
    for (const Token token : text) name += std::to_string(token);
    if (slots) name += " with slots " + std::to_string(slots);
    all.push_back({name, [=](GroupBoard& board) { board.admit(text, slots); }});
  };
  add_prompt({0}, 0);
  add_prompt({0, 0, 0, 0, 0, 0}, 0);
  add_prompt({0, 0, 0, 0, 0, 1}, 0);
  add_prompt({0, 0, 0, 0, 0, 0}, 3);
  add_for_each_token(all, "append", [](auto& b, Number i, Token t) { b.append(i, t); });
  add_for_each(all, "free", [](auto& b, Number i) { b.free(i); });
  all.push_back({"step", [](auto& b) { b.step(false); }});
  if (!early) return all.push_back({"step to the stops", [](auto& b) { b.step(true); }});
  add_for_each(all, "promise", [](auto& b, Number i) { b.promise(i, false); });
  add_for_each(all, "promise to the stop of", [](auto& b, Number i) { b.promise(i, true); });
  add_for_each(all, "withdraw", [](auto& b, Number i) { b.withdraw(i); });
}

void add_turns(Operations& all) {
  add_for_each_token(all, "turn", [](auto& b, Number i, Token t) { b.admit_after(i, t, true); });
  add_for_each_token(all, "echo", [](auto& b, Number i, Token t) { b.admit_after(i, t, false); });
}
void add_forks(Operations& all) {
  add_for_each(all, "fork", [](auto& b, Number i) { b.fork(i); });
}
void add_truncations(Operations& all) {
  for (const int count : {1, 3})
    add_for_each(all, "truncate by " + std::to_string(count),
                 [=](auto& b, Number i) { b.truncate(i, count); });
}
void add_preemptions(Operations& all) {
  add_for_each(all, "preempt", [](auto& b, Number i) { b.preempt(i); });
  add_for_each(all, "resume", [](auto& b, Number i) { b.resume(i); });
}
void add_look_aheads(Operations& all) {
  add_for_each(all, "look ahead of", [](auto& b, Number i) { b.reserve(i); });
}
void add_decodes(Operations& all) {
  for (const Token token : {Token{0}, Token{1}})
    all.push_back({"decode " + std::to_string(token), [=](auto& b) { b.decode(token); }});
}
void add_reparents(Operations& all) {
  for (const auto& [first, second] : {std::pair{0, 0}, {1, 1}, {1, 0}})
    all.push_back({"reparent to " + std::to_string(first) + std::to_string(second),
                   [=](auto& b) { b.reparent({first, second}); }});
}
void add_resizes(Operations& all) {
  for (const int quarters : {3, 2, 0})
    all.push_back({"shrink to " + std::to_string(quarters) + " quarters",
                   [=](auto& b) { b.shrink(quarters); }});
  for (const int quarters : {2, 4})
    all.push_back(
        {"grow to " + std::to_string(quarters) + " quarters", [=](auto& b) { b.grow(quarters); }});
}
void add_retirements(Operations& all) {
  all.push_back({"retire", [](auto& b) { b.retire(); }});
}
// Loads that end within a unit and at the end of one, of prompts that others have in part.
void add_loads(Operations& all) {
  for (const std::int64_t num_loaded : {3, 4})
    for (const Token last : {Token{0}, Token{1}})
      all.push_back({"load " + std::to_string(num_loaded) + " of 00000" + std::to_string(last),
                     [=](auto& b) { b.admit({0, 0, 0, 0, 0, last}, 0, num_loaded); }});
  add_for_each(all, "land", [](auto& b, Number i) { b.land(i, false); });
  add_for_each(all, "land and promise", [](auto& b, Number i) { b.land(i, true); });
}
// Steps of one sequence, which leave the other unchanged; plans that stay closed for a while.
void add_parts(Operations& all) {
  add_for_each(all, "step of", [](auto& b, Number i) { b.step(false, static_cast<int>(i)); });
  all.push_back({"begin", [](auto& b) { b.begin(); }});
  all.push_back({"finish", [](auto& b) { b.finish(); }});
  all.push_back({"finish, applied last", [](auto& b) { b.finish(true); }});
  all.push_back({"abort", [](auto& b) { b.abort(); }});
}

const std::map<std::string, void (*)(Operations&)> kFamilies = {
    {"turns", add_turns},           {"fork", add_forks},
    {"truncate", add_truncations},  {"preempt", add_preemptions},
    {"lookahead", add_look_aheads}, {"decode", add_decodes},
    {"reparent", add_reparents},    {"parts", add_parts}};

// Not part of "all", as with one group.
const std::map<std::string, void (*)(Operations&)> kMoreFamilies = {
    {"resize", add_resizes}, {"retire", add_retirements}, {"loads", add_loads}};

}  // namespace

Operations all_of(const GroupRules& rules) {
  Operations all;
  add_few(all, rules.early_commit);
  if (rules.wanted == "all") {
    for (const auto& [family, add] : kFamilies) add(all);
    return all;
  }
  for (std::size_t at = 0; at < rules.wanted.size();) {
    const std::size_t end = std::min(rules.wanted.find('+', at), rules.wanted.size());
    const std::string family = rules.wanted.substr(at, end - at);
    if (family != "few") {
      const auto& families = kMoreFamilies.count(family) ? kMoreFamilies : kFamilies;
      if (!families.count(family)) throw std::invalid_argument("no operations: " + family);
      families.at(family)(all);
    }
    at = end + 1;
  }
  return all;
}

}  // namespace boards

std::vector<GroupOperation> group_operations(const GroupRules& rules) {
  return boards::all_of(rules);
}

}  // namespace blockmgr::testing
