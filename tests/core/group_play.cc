// The calls that an engine with groups of layers makes between its steps.
#include "group_play.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "play.h"
#include "sequences/arguments.h"

namespace blockmgr::testing {

namespace {

constexpr std::size_t kTexts = 9;

const ExtrasBytes kExtraKeys[] = {{}, {{0, "x"}}, {{1, "x"}}};
int extra_of(int extras, std::int64_t unit) {
  return !kExtraKeys[extras].empty() && kExtraKeys[extras][0].first == unit;
}

}  // namespace

GroupPlay::GroupPlay(Bytes& bytes, Counts* counts, Trial* trial, bool through_c, unsigned features)
    : GroupPlay(bytes, draw(bytes, through_c, features), counts, trial) {
  core_.set_debug(bytes.one_in(4));
}

GroupPlay::GroupPlay(Bytes& bytes, const Setup& setup, Counts* counts, Trial* trial)
    : bytes_(bytes),
      setup_(setup),
      counts_(counts),
      trial_(trial),
      // Not drawn, so that other draws do not change.
      digester_(new TestDigester(setup_.digest, setup_.core.max_seqs % 2)),
      caller_(setup_.core, digester_, setup_.through_c, nullptr, setup_.groups),
      core_(caller_.core()),
      device_(setup_.core.num_blocks, setup_.core.block_size, setup_.groups) {
  for (std::size_t g = 0; g < setup_.groups.size(); ++g)
    shown_.push_back(caller_.table(static_cast<int>(g), further_of(g)));
  if (setup_.core.max_sessions) make_sessions();
}

// The first session of each share makes a table, which stays: not within a call on trial. A share
// may be too small for any prompt.
void GroupPlay::make_sessions() {
  const Token token = 0;
  for (int name = 0; name < kNumNames; ++name) {
    Prompt first{&token, 1, World::text_of(name), {}, 0};
    first.session = "a";
    if (core_.can_admit(first) == Admission::kNever) continue;
    const Handle handle = core_.admit(first);
    note_prompt(name, std::string(first.session), handle);
    core_.free(handle);
    known_.back().handle = 0;
  }
}

// Widths close to the size of a unit, as those of released models are close to that of a page.
void GroupPlay::draw_groups(Bytes& bytes, Setup& setup) {
  static constexpr int kWidths[] = {1, 3, 4, 5, 6, 7, 8, 9, 16};
  const int count = bytes.between(1, 3);
  for (int i = 0; i < count; ++i) {
    const auto kind = static_cast<Group::Kind>(bytes.one_in(12) ? 0 : bytes.between(1, 3));
    const bool wide = kind == Group::kWindow || kind == Group::kChunk;
    setup.groups.push_back({kind, wide ? kWidths[bytes.below(9)] : 0});
  }
  setup.groups.insert(setup.groups.begin() + bytes.between(0, count), Group{});
}

// Windows become such as are computed again, at least one of them, and states rings.
void GroupPlay::draw_uncached(Bytes& bytes, Setup& setup) {
  const auto is_window = [](const Group& group) { return group.kind == Group::kWindow; };
  std::vector<Group>& groups = setup.groups;
  if (std::none_of(groups.begin(), groups.end(), is_window)) groups.push_back({Group::kWindow, 3});
  std::int64_t replay = 0;
  for (Group& group : groups) {
    if (!is_window(group)) continue;
    group.kind = Group::kReplayed;
    group.replay = std::max<std::int64_t>(group.width - 1, 1) + bytes.below(4);
    replay = std::max(replay, group.replay);
  }
  for (Group& group : groups) {
    if (!group.recurrent()) continue;
    group.kind = Group::kRing;
    group.restart = bytes.between(1, static_cast<int>(std::min<std::int64_t>(replay + 1, 8)));
    group.width = group.restart + setup.habits.drafts + bytes.below(5);
  }
  setup.core.prompt_end_stop = -1;
  setup.core.num_blocks += 6;
  setup.core.stop_margin = bytes.below(3) * setup.core.block_size / 2;
}

// At least one group of states, each with a few slots more.
void GroupPlay::draw_slots(Bytes& bytes, Setup& setup) {
  const auto is_state = [](const Group& group) { return group.recurrent(); };
  std::vector<Group>& groups = setup.groups;
  if (std::none_of(groups.begin(), groups.end(), is_state)) groups.push_back({Group::kRecurrent});
  const int extra = bytes.between(1, 3);
  for (Group& group : groups)
    if (is_state(group)) group.extra_blocks = extra;
  setup.core.num_blocks += 6;
  setup.core.stop_margin = bytes.below(3) * setup.core.block_size / 2;
}

// A size for each group, which divides that of a node, and one more feature.
void GroupPlay::draw_sizes(Bytes& bytes, Setup& setup) {
  static constexpr int kNodes[] = {2, 4, 6, 8, 3, 12};
  Config& config = setup.core;
  config.block_size = kNodes[bytes.below(6)];
  const int share = bytes.between(1, 4);
  for (Group& group : setup.groups) {
    if (!has_table(group)) continue;
    int size = bytes.between(1, config.block_size);
    while (config.block_size % size) --size;
    group.num_slices = config.block_size / size;
    config.num_blocks += share * (group.num_slices - 1);
    for (Quota& quota : config.quotas) {
      quota.blocks += group.num_slices - 1;
      config.num_blocks += group.num_slices - 1;
    }
  }
}

// What any run may have beside its own.
void GroupPlay::draw_beside(Bytes& bytes, Setup& setup) {
  const bool replays = setup.features & kUncached;
  const auto is_state = [](const Group& group) { return group.recurrent(); };
  std::vector<Group>& groups = setup.groups;
  if (!replays && bytes.one_in(4)) draw_bare(bytes, setup);
  if (!replays && bytes.one_in(4)) setup.features |= kLoads;
  if (std::any_of(groups.begin(), groups.end(), is_state)) {
    if (!(setup.features & kSlots) && bytes.one_in(4)) {
      setup.features |= kSlots;
      draw_slots(bytes, setup);
    }
    setup.habits.rejects = setup.features & kSlots && bytes.one_in(2);
  }
  if (replays || !bytes.one_in(4)) return;
  setup.features |= kRings;
  Group ring{Group::kRing};
  ring.restart = bytes.between(1, 6);
  ring.width = ring.restart + setup.habits.drafts + bytes.below(5);
  for (const Group& group : groups)
    if (setup.habits.rejects && is_state(group)) ring.width += group.extra_blocks;
  groups.push_back(ring);
  setup.core.num_blocks += 4;
}

// Sometimes nodes are what is short.
void GroupPlay::draw_bare(Bytes& bytes, Setup& setup) {
  Config& config = setup.core;
  setup.features |= kBare;
  std::erase_if(setup.groups, [](const Group& group) { return group.kind == Group::kFull; });
  if (setup.groups.empty()) setup.groups.push_back({Group::kWindow, 3});
  config.num_nodes = bytes.one_in(3) ? bytes.between(8, 16) : 3 * config.num_blocks;
  config.quotas.clear();
  config.retention = false;
  config.max_pinned_blocks = config.event_blocks = 0;
}

GroupPlay::Setup GroupPlay::draw(Bytes& bytes, bool through_c, unsigned features) {
  static constexpr unsigned kBesideSizes[] = {kPlain,    kResizes, kLoads,
                                              kUncached, kSlots,   kUncached | kResizes};
  static constexpr int kNodes[] = {2, 4, 1, 3};
  static constexpr int kBlocks[] = {6, 10, 16, 30};
  static constexpr int kChunks[] = {1, 3, 4, 8, 100};
  Setup setup{};
  Config& config = setup.core;
  draw_groups(bytes, setup);
  const auto num_groups = static_cast<int>(setup.groups.size());
  const bool states = std::any_of(setup.groups.begin(), setup.groups.end(),
                                  [](const Group& group) { return group.recurrent(); });
  Habits& habits = setup.habits;
  habits.overlaps = bytes.below(10) < 3;
  habits.stops = std::array{0, 2, 4, 4}[static_cast<std::size_t>(bytes.below(4))];
  habits.chunk = kChunks[bytes.below(5)];
  habits.aborts = std::array{0, 0, 2, 4}[static_cast<std::size_t>(bytes.below(4))];
  habits.affirms = bytes.one_in(2);
  // A state that has consumed a rejected draft cannot go back.
  habits.drafts = states || !bytes.one_in(3) ? 0 : 2;
  habits.late = bytes.one_in(2);
  habits.plans_ahead = bytes.below(5) < 2;
  config.null_block = true;
  config.block_size = kNodes[bytes.below(4)];
  config.num_blocks = kBlocks[bytes.below(4)] + 3 * num_groups + 1;
  config.row_width = bytes.one_in(4) ? 12 : config.num_blocks;
  if (bytes.below(10) < 3) {
    const int apart = (bytes.one_in(2) ? 4 : 12) + 2 * num_groups;
    config.quotas.push_back({World::text_of(1), apart});
    config.num_blocks += apart;
  }
  config.max_seqs = bytes.between(4, 24);
  config.min_partial_tokens = std::min(bytes.below(3), config.block_size);
  config.watermark_blocks = bytes.one_in(4) ? 2 : 0;
  config.steps_in_flight = habits.overlaps ? 8 : 0;
  config.early_commit = bytes.below(10) < 3;
  config.remap = config.num_blocks % 3 != 0;
  config.max_rollback = habits.drafts;
  config.halfway_stop_tokens = bytes.below(3) * 16;
  config.prompt_end_stop = bytes.below(5) - 1;
  config.event_blocks = config.num_blocks % 2 ? 0 : config.num_blocks % 3 ? 256 : 3;
  config.eviction = kPolicies[bytes.below(static_cast<int>(std::size(kPolicies)))];
  if (bytes.one_in(2)) config.eviction = "lru";
  config.retention = bytes.one_in(3);
  config.max_pinned_blocks = config.retention ? bytes.between(0, 12) : 0;
  setup.digest = static_cast<TestDigester::Kind>(bytes.below(TestDigester::kNumKinds));
  setup.vocabulary = bytes.one_in(3) ? 3 : 2;
  setup.check_every = config.num_blocks <= 24 ? 2 : 6;
  setup.through_c = through_c;
  setup.features = features;
  if (features & kSizes) setup.features |= kBesideSizes[bytes.below(6)];
  if (setup.features & kUncached) draw_uncached(bytes, setup);
  if (setup.features & kSlots) draw_slots(bytes, setup);
  if (setup.features & kSizes) draw_sizes(bytes, setup);
  draw_beside(bytes, setup);
  // Not drawn, so that other draws do not change.
  if (!config.stop_margin && config.num_blocks % 4 == 1) config.stop_margin = config.block_size;
  if (config.retention && bytes.one_in(2)) config.max_sessions = 3;
  const bool has_states = std::any_of(setup.groups.begin(), setup.groups.end(),
                                      [](const Group& group) { return group.recurrent(); });
  if (!(has_states && config.min_partial_tokens)) config.prompt_end_stop = -1;
  set_groups(config, setup.groups);
  return setup;
}

std::string GroupPlay::config() const {
  static const char* const kinds[] = {"full", "window", "chunk", "state", "ring", "again"};
  const Config& c = setup_.core;
  std::string text;
  for (const Group& group : setup_.groups)
    text += std::string(kinds[group.kind]) +
            (group.width ? " " + std::to_string(group.width) : "") +
            (group.num_slices > 1 ? "/" + std::to_string(c.block_size / group.num_slices) : "") +
            (group.is_ring() ? ":" + std::to_string(group.restart) : "") +
            (group.is_replayed() ? "@" + std::to_string(group.replay) : "") +
            (group.extra_blocks ? "*" + std::to_string(group.extra_blocks) : "") + ", ";
  return "groups: " + text + std::to_string(c.num_blocks) + " blocks of " +
         std::to_string(c.block_size) + ", " + c.eviction + ", partial " +
         std::to_string(c.min_partial_tokens) + (c.early_commit ? ", early commits" : "") +
         (c.steps_in_flight ? ", steps in flight" : "") + (c.quotas.empty() ? "" : ", a quota") +
         (setup_.features & kBare ? ", " + std::to_string(c.num_nodes) + " nodes" : "") +
         (setup_.features & kLoads ? ", loads" : "") +
         (setup_.habits.rejects ? ", rejected drafts" : "") +
         (setup_.habits.drafts ? ", drafts" : "") + (c.stop_margin ? ", a margin" : "") +
         (c.retention ? ", retention" : "") + (c.max_sessions ? ", sessions" : "") +
         (c.remap ? "" : ", append-only");
}

void GroupPlay::fail(const std::string& otherwise) const {
  throw Violation("call " + std::to_string(calls_) + ": " + otherwise);
}

// ---- calls --------------------------------------------------------------------------------------

Outcome GroupPlay::outcome_of(const std::function<void()>& run) const {
  try {
    run();
    return kDone;
  } catch (const OutOfBlocks& refusal) {
    EXPECT(refusal.needed > refusal.available - refusal.watermark, "refused although it fits");
    return kOutOfBlocks;
  } catch (const PinBudget& refusal) {
    EXPECT(refusal.needed > refusal.available, "a pin was refused although it fits");
    return kPinRefused;
  } catch (const OutOfSequences& refusal) {
    EXPECT(refusal.needed > refusal.available, "rows were refused although there are enough");
    return kOutOfSequences;
  } catch (const DigestFailed&) {
    EXPECT(!digester_->fails_in, "a digest failed without being told to");
    return kDigestFailed;
  } catch (const Error& error) {
    if (error.kind == ErrorKind::kNeverFits) return kNeverFits;
    if (error.kind == ErrorKind::kStep) return kStepRefused;
    fail(std::string("a valid call was refused: ") + error.what());
  }
}

Outcome GroupPlay::call(Op op, const std::function<void()>& run) {
  ++calls_;
  note_found();
  const bool snapshot = calls_ % setup_.snapshot_every == 0;
  const std::string before = snapshot ? core_.fingerprint() : std::string();
  auto waiting = setup_.core.retention ? idle_boundaries() : std::map<NodeId, Waiting>();
  for (const NodeId n : std::exchange(letting_go_, {})) waiting.erase(n);
  const Outcome outcome = trial_ ? outcome_of([&] { put_on_trial(op, run); }) : outcome_of(run);
  if (op != kFree && op != kPreempt && op != kForget && op != kRetire && op != kShrink)
    check_order(waiting);
  EXPECT(core_.findings().empty(), core_.findings().front());
  if (snapshot && (outcome != kDone || op == kMatch || op == kCanAdmit))
    EXPECT(core_.fingerprint() == before, std::string(name_of(op)) + " ended in \"" +
                                              name_of(outcome) + "\" and changed something");
  if (counts_) ++(*counts_)[op][outcome];
  after_call();
  return outcome;
}

void GroupPlay::put_on_trial(Op op, const std::function<void()>& run) {
  const int fails_in = digester_->fails_in;
  const Subject subject{
      [this] { return core_.fingerprint(); },
      [this] { return core_.violations(); },
      [this] { return core_.memory() + digester_->memory(); },
      [this, fails_in] { digester_->fails_in = fails_in; },
  };
  trial_->make(name_of(op), subject, run);
}

void GroupPlay::after_call() {
  if (calls_ % setup_.check_every == 0) {
    const std::vector<std::string> violations = core_.violations();
    EXPECT(violations.empty(), violations.front());
  }
  if (fences_.empty()) return;
  const std::vector<bool> now = held();
  for (InFlight& step : fences_)
    for (std::size_t b = 0; b < now.size(); ++b)
      if (step.blocks[b] && !now[b]) step.released[b] = true;
}

// A sequence took a block from the cache with the content that a step reads. It keeps that content
// even if the next call forgets it.
void GroupPlay::note_found() {
  if (fences_.empty()) return;
  const std::vector<bool> now = held();
  for (std::size_t b = 0; b < now.size(); ++b)
    if (now[b] && is_in_cache(b))
      for (InFlight& step : fences_) step.released[b] = false;
}

GroupPlay::Tables GroupPlay::tables(const Seq& seq) const {
  const std::int64_t row = Sequences::row_of(seq.handle);
  Tables tables;
  for (std::size_t g = 0; g < setup_.groups.size(); ++g) {
    const Group& group = setup_.groups[g];
    const std::int32_t* const first = shown_[g].first + row * shown_[g].width;
    const std::int64_t size = device_.size_of(g);
    const std::int64_t count =
        has_table(group) ? (num_slots(seq) + size - 1) / size : 1 + group.extra_blocks;
    tables.emplace_back(first, first + count);
  }
  return tables;
}

std::vector<bool> GroupPlay::held() const {
  std::vector<bool> held(static_cast<std::size_t>(setup_.core.num_blocks));
  for (const SeqPtr& seq : seqs_) {
    if (seq->preempted) continue;
    for (const auto& table : tables(*seq))
      for (const std::int32_t b : table) held[static_cast<std::size_t>(b)] = true;
  }
  for (const BlockCopy& copy : flight_)
    held[static_cast<std::size_t>(copy.source)] = held[static_cast<std::size_t>(copy.destination)] =
        true;
  held[0] = false;
  return held;
}

// ---- what it draws ------------------------------------------------------------------------------

std::vector<Token> GroupPlay::tokens(int count) {
  std::vector<Token> drawn(static_cast<std::size_t>(count));
  for (Token& token : drawn) token = static_cast<Token>(bytes_.below(setup_.vocabulary));
  return drawn;
}

// Often the start of an earlier text, followed by other tokens.
std::vector<Token> GroupPlay::text() {
  std::vector<Token> text;
  if (!texts_.empty()) {
    text = texts_[static_cast<std::size_t>(bytes_.below(static_cast<int>(texts_.size())))];
    const int kept = bytes_.one_in(2) ? 30 : bytes_.between(0, 30);
    text.resize(std::min(text.size(), static_cast<std::size_t>(kept)));
  }
  for (const Token token : tokens(bytes_.between(1, 9))) text.push_back(token);
  keep_text(text);
  return text;
}

void GroupPlay::keep_text(const std::vector<Token>& text) {
  texts_.push_back(text);
  if (texts_.size() > kTexts) texts_.pop_front();
}

GroupPlay::SeqPtr GroupPlay::find(Handle handle) const {
  const auto at = std::find_if(seqs_.begin(), seqs_.end(),
                               [&](const SeqPtr& seq) { return seq->handle == handle; });
  return at == seqs_.end() ? nullptr : *at;
}

// Bugs in planning ahead show while copies are in flight.
GroupPlay::SeqPtr GroupPlay::some(bool preempted) {
  std::vector<SeqPtr> chosen;
  for (const SeqPtr& seq : seqs_)
    if (seq->preempted == preempted) chosen.push_back(seq);
  if (!preempted && !flight_.empty() && bytes_.one_in(2)) {
    std::vector<SeqPtr> waiting;
    for (const SeqPtr& seq : chosen) {
      const Tables all = tables(*seq);
      const auto waits = [&](const BlockCopy& copy) {
        return std::any_of(all.begin(), all.end(), [&](const auto& table) {
          return std::count(table.begin(), table.end(), copy.destination);
        });
      };
      if (std::any_of(flight_.begin(), flight_.end(), waits)) waiting.push_back(seq);
    }
    if (!waiting.empty()) chosen = waiting;
  }
  if (chosen.empty()) return nullptr;
  return chosen[static_cast<std::size_t>(bytes_.below(static_cast<int>(chosen.size())))];
}

void GroupPlay::extend(Seq& seq, const std::vector<Token>& tokens) {
  for (const Token token : tokens) {
    Prefix prefix = seq.prefixes.empty() ? trie_.root(seq.name) : seq.prefixes.back();
    const auto position = static_cast<std::int64_t>(seq.prefixes.size());
    if (position % setup_.core.block_size == 0)
      prefix = trie_.after_extras(prefix, extra_of(seq.extras, position / setup_.core.block_size));
    seq.prefixes.push_back(trie_.after_token(prefix, token));
    seq.tokens.push_back(token);
  }
}

// ---- planning -----------------------------------------------------------------------------------

// The number of whole units that every group serves, by scanning each node and part.
std::int64_t GroupPlay::served_by_scan(const std::vector<Token>& tokens, int name,
                                       int extras) const {
  const std::int64_t size = setup_.core.block_size;
  const Nodes& nodes = core_.nodes();
  const GroupPlaces& groups = *core_.groups();
  const std::uint32_t root = core_.index().find_root(World::text_of(name));
  if (root == kUnknownId) return 0;
  const ExtrasIds ids = known_extras(core_.index().extras(), kExtraKeys[extras]);
  std::vector<NodeId> chain;
  for (NodeId node = root_node(root);;) {
    const auto unit = static_cast<std::int64_t>(chain.size());
    if ((unit + 1) * size >= static_cast<std::int64_t>(tokens.size())) break;
    NodeId child = core_.index().first_child(node);
    const auto continues = [&](NodeId n) {
      return nodes[n].key_tokens == size && nodes[n].extras == extras_at(&ids, unit) &&
             std::equal(nodes.tokens(n), nodes.tokens(n) + size, tokens.begin() + unit * size);
    };
    while (child >= 0 && !continues(child)) child = nodes[child].next_sibling;
    if (child < 0) break;
    chain.push_back(node = child);
  }
  const auto serves = [&](std::int64_t length) {
    if (!groups.can_start(length * size)) return false;
    for (int g = 0; g < groups.num_groups(); ++g) {
      if (!groups.group(g).is_cached()) continue;
      if (groups.group(g).recurrent()) {
        const NodeId state = groups.cached(g, chain[static_cast<std::size_t>(length - 1)]);
        if (state < 0 || groups.is_being_kept(state)) return false;
        continue;
      }
      const std::int64_t first = groups.first_unit(g, length * size);
      for (std::int64_t unit = first; unit < length; ++unit)
        if (groups.cached(g, chain[static_cast<std::size_t>(unit)]) < 0) return false;
    }
    return true;
  };
  auto length = static_cast<std::int64_t>(chain.size());
  while (length && !serves(length)) --length;
  return length;
}

// With enough room for any plan, match must find the deepest boundary.
void GroupPlay::check_match(const Seq& like, const MatchResult& match, std::int64_t slots,
                            std::int64_t num_loaded) {
  const Config& config = setup_.core;
  const std::int64_t size = config.block_size;
  std::int64_t num_slices = 0;
  for (const Group& group : setup_.groups) num_slices += group.num_slices;
  const std::int64_t length = std::max(slots, static_cast<std::int64_t>(like.tokens.size()));
  const std::int64_t most = num_slices * (length / size + 2);
  const Pool& pool = core_.pool();
  const int own = core_.quota(World::text_of(like.name)).available();
  if ((pool.is_bare() ? pool.available() : own) - config.watermark_blocks < most) return;
  if (pool.is_bare() && own < length / size + 2) return;
  const std::int64_t served = size * served_by_scan(like.tokens, like.name, like.extras);
  const std::int64_t hit = match.num_cached + match.num_replayed;
  EXPECT(hit >= served, "a boundary that all groups serve is not found");
  EXPECT(config.min_partial_tokens || hit == served || hit < num_loaded,
         "match found too many tokens");
}

void GroupPlay::admit(std::vector<Token> text, int name, int extras) {
  Asked more;
  if (setup_.core.max_sessions && !bytes_.one_in(4)) more.session = some_session();
  const Known* const last = known(name, more.session);
  if (last && bytes_.one_in(2)) text = turn_of(*last);
  const auto length = static_cast<int>(text.size());
  const int slots = bytes_.one_in(3) ? bytes_.between(1, length) : 0;
  const bool loads = setup_.features & kLoads && bytes_.below(3);
  const int num_loaded = loads ? bytes_.between(0, slots ? slots : length) : 0;
  const int what = bytes_.below(24);
  if (0 < what && what < 5) {
    more.terms = static_cast<Terms>(what);
    more.number = bytes_.below(length);
  }
  admit(text, name, extras, slots, num_loaded, more);
}

std::string GroupPlay::some_session() {
  return std::string(1, static_cast<char>('a' + bytes_.below(5)));
}

void GroupPlay::admit(const std::vector<Token>& text, int name, int extras, std::int64_t slots,
                      std::int64_t num_loaded, const Asked& more) {
  const auto length = static_cast<std::int64_t>(text.size());
  auto seq = std::make_shared<Seq>();
  seq->name = name;
  seq->extras = extras;
  extend(*seq, text);
  Prompt asked{seq->tokens.data(), length, World::text_of(name), kExtraKeys[extras], slots};
  asked.num_loaded = num_loaded;
  asked.session = more.session;
  if (more.terms == Terms::kFewCached) asked.most_cached = more.number;
  if (more.terms == Terms::kWatermark) asked.watermark_blocks = more.number % 4;
  MatchResult match;
  Admission promise = Admission::kNever;
  const int fails_in = std::exchange(digester_->fails_in, 0);
  if (!done(kMatch, [&] { match = caller_.match(asked); })) fail("a look-up was refused");
  EXPECT(match.num_cached <= asked.most_cached, "match finds more than it may");
  if (more.terms == Terms::kMatch) asked.most_cached = asked.due_cached = match.num_cached;
  asked.read_cache = more.terms != Terms::kUnread;
  if (!asked.read_cache) match = MatchResult();
  if (!done(kCanAdmit, [&] { promise = caller_.can_admit(asked); })) fail("a look-up was refused");
  digester_->fails_in = fails_in;
  if (promise != Admission::kNever && more.terms == Terms::kNone)
    check_match(*seq, match, slots ? slots : length, num_loaded);
  std::set<NodeId> before;
  Stamped gone;
  bool is_tail = false;
  if (const Known* const last = known(name, more.session)) {
    before = passed();
    letting_go_ = superseded(*last, asked);
    gone = stamped(letting_go_);
    is_tail = gone.size() == 1 && core_.nodes()[gone[0].first].key_tokens < setup_.core.block_size;
  }
  if (!more.session.empty()) letting_go_.merge(expected_before(name, more.session));
  const std::int64_t superseded_before = core_.counters.superseded_blocks;
  const Outcome outcome = call(kAdmit, [&] { seq->handle = caller_.admit(asked); });
  const bool refused = outcome == kOutOfBlocks || outcome == kOutOfSequences;
  EXPECT(outcome == kDigestFailed || (promise == Admission::kNow) == (outcome == kDone),
         "can_admit is wrong about what fits");
  EXPECT(outcome == kDigestFailed || (promise == Admission::kLater) == refused,
         "can_admit is wrong about what may fit later");
  if (outcome != kDone) return;
  const std::int64_t count = core_.counters.superseded_blocks - superseded_before;
  if (known(name, more.session)) check_superseded(gone, before, count, is_tail);
  if (!more.session.empty()) note_prompt(name, more.session, seq->handle);
  EXPECT(computed(*seq) == match.num_cached, "admit uses another prefix than match found");
  const std::int64_t end = std::min(num_loaded, length - 1);  // one token is left to compute
  const std::int64_t loaded = end - core_.groups()->past_start(end);
  seq->loads = loaded > computed(*seq) ? loaded : 0;
  seq->settled_before = computed(*seq);
  remember(*seq);
  seqs_.push_back(seq);
}

void GroupPlay::free(const SeqPtr& seq) {
  const SeqPtr kept = seq;  // seq may refer to an element of seqs_
  if (is_ahead(*kept) && (!flight_.empty() || bytes_.one_in(2))) return;
  leave(kept);
}

void GroupPlay::leave(const SeqPtr& kept) {
  const bool withdraws = is_ahead(*kept);
  const bool says = setup_.core.retention && bytes_.one_in(3);
  const bool expects = says && bytes_.one_in(2);
  const Stamped had = chained(*kept);
  const Outcome outcome = call(kFree, [&] {  // may be made again, so nothing is drawn in it
    if (says) {
      caller_.free_expecting(kept->handle, expects, withdraws);
    } else {
      caller_.free(kept->handle, withdraws);
    }
    seqs_.erase(std::find(seqs_.begin(), seqs_.end(), kept));
  });
  if (outcome != kDone) {
    EXPECT(withdraws && outcome == kStepRefused, "free was refused");
    return;
  }
  note_left(*kept, had, true, withdraws);
  forget(*kept);
}

// If the call replaces a block, launched and uncommitted work in the previous one is lost.
void GroupPlay::note_growth(Seq& seq) {
  settle(seq);
  const Tables before = seq.tables;
  remember(seq);
  for (std::size_t g = 0; g < before.size(); ++g)
    if (!std::equal(before[g].begin(), before[g].end(), seq.tables[g].begin())) forget(seq);
}

bool GroupPlay::append(const SeqPtr& seq, const std::vector<Token>& fresh) {
  const auto count = static_cast<std::int64_t>(fresh.size());
  if (!done(kAppend, [&] { caller_.append(seq->handle, fresh.data(), count); })) return false;
  extend(*seq, fresh);
  note_growth(*seq);
  keep_text(seq->tokens);
  return true;
}

bool GroupPlay::reserve(const SeqPtr& seq) {
  return reserve(seq, bytes_.between(1, static_cast<int>(seq->tokens.size()) + 5));
}

bool GroupPlay::reserve(const SeqPtr& seq, std::int64_t slots) {
  if (!done(kReserve, [&] { caller_.reserve(seq->handle, slots); })) return false;
  note_growth(*seq);
  return true;
}

std::vector<GroupPlay::SeqPtr> GroupPlay::fork(const SeqPtr& seq, int count) {
  Handle children[2];
  if (!done(kFork, [&] { caller_.fork(seq->handle, count, children); })) return {};
  EXPECT(!seq->loads, "a sequence forked while its first tokens were being loaded");
  std::vector<SeqPtr> made;
  for (int i = 0; i < count; ++i) {
    made.push_back(std::make_shared<Seq>(*seq));
    made.back()->handle = children[i];
    remember(*made.back());
    seqs_.push_back(made.back());
  }
  return made;
}

void GroupPlay::reparent() {
  std::vector<SeqPtr> chosen;
  for (const SeqPtr& seq : seqs_)
    if (!seq->preempted && chosen.size() < 4) chosen.push_back(seq);
  if (chosen.empty()) return;
  std::vector<std::int64_t> parents;
  for (std::size_t i = 0; i < chosen.size(); ++i)
    parents.push_back(bytes_.below(static_cast<int>(chosen.size())));
  reparent(chosen, parents);
}

void GroupPlay::reparent(const std::vector<SeqPtr>& chosen,
                         const std::vector<std::int64_t>& parents) {
  std::vector<Handle> handles;
  std::vector<Seq> before;
  for (const SeqPtr& seq : chosen) {
    handles.push_back(seq->handle);
    before.push_back(*seq);
  }
  const auto count = static_cast<std::int64_t>(chosen.size());
  if (!done(kReparent, [&] { caller_.reparent(handles.data(), parents.data(), count); })) return;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    if (parents[i] == static_cast<std::int64_t>(i)) continue;
    forget(*chosen[i]);
    *chosen[i] = before[static_cast<std::size_t>(parents[i])];
    chosen[i]->handle = handles[i];
    remember(*chosen[i]);
    if (chosen[i]->name != before[i].name) note_moved(*chosen[i]);
  }
}

void GroupPlay::truncate(const SeqPtr& seq, std::int64_t length) {
  const std::int64_t had = launched(*seq);
  std::int64_t left = 0;
  if (!done(kTruncate, [&] { left = caller_.truncate(seq->handle, length); })) return;
  EXPECT(!seq->loads, "a sequence was truncated while its first tokens were being loaded");
  EXPECT(left == computed(*seq) && left <= length, "truncate reports a wrong computed length");
  seq->tokens.resize(static_cast<std::size_t>(length));
  seq->prefixes.resize(static_cast<std::size_t>(length));
  settle(*seq);
  remember(*seq);
  if (left < had) forget(*seq);
}

void GroupPlay::preempt(const SeqPtr& seq) {
  forget(*seq);
  const Stamped had = chained(*seq);
  if (!done(kPreempt, [&] { caller_.preempt(seq->handle); })) fail("preempt was refused");
  note_left(*seq, had, false, false);
  seq->preempted = true;
  seq->loads = 0;
}

// Any number of blocks, but those of quotas.
void GroupPlay::resize() {
  const auto limit = static_cast<int>(core_.pool().limit());
  const int least = core_.pool().partition(core_.pool().home(0)).first;
  if (bytes_.one_in(2)) return shrink(bytes_.between(least, limit));
  const int most = setup_.core.num_blocks;
  grow(bytes_.one_in(2) ? most : bytes_.between(limit, most));
}

void GroupPlay::grow(std::int64_t num_blocks) {
  if (!done(kGrow, [&] { caller_.grow(num_blocks); })) fail("the pool did not grow");
}

// Blocks that are in no use leave at once, and nothing reads their memory any more; most of the
// sequences that have others are preempted.
void GroupPlay::shrink(std::int64_t num_blocks) {
  const bool ahead =
      std::any_of(seqs_.begin(), seqs_.end(), [&](const SeqPtr& seq) { return is_ahead(*seq); });
  std::int64_t leaving = 0;
  if (!done(kShrink, [&] { leaving = caller_.shrink(num_blocks); })) {
    EXPECT(ahead, "the pool did not shrink");
    return;
  }
  for (std::int64_t b = num_blocks; b < setup_.core.num_blocks; ++b) {
    const NodeId n = core_.nodes().owner(b);
    EXPECT(n < 0 || core_.nodes().used(n) || core_.nodes()[n].fence,
           "a block in no use has not left");
    EXPECT(n < 0 || !core_.nodes()[n].keyed(), "a block that is to leave can be found");
    leaving -= n >= 0;
    if (n < 0) device_.spoil(static_cast<std::int32_t>(b));
  }
  EXPECT(!leaving, "shrink returns a wrong count");
  for (const SeqPtr& seq : std::vector<SeqPtr>(seqs_)) {
    if (seq->preempted || is_ahead(*seq) || bytes_.one_in(3)) continue;
    const Tables all = tables(*seq);
    const bool is_in_the_way = std::any_of(all.begin(), all.end(), [&](const auto& table) {
      return std::any_of(table.begin(), table.end(),
                         [&](std::int32_t b) { return b >= num_blocks; });
    });
    if (is_in_the_way) preempt(seq);
  }
}

bool GroupPlay::resume(const SeqPtr& seq) {
  if (!done(kResume, [&] { caller_.resume(seq->handle, 0); })) return false;
  seq->preempted = false;
  seq->settled_before = computed(*seq);
  remember(*seq);
  note_resumed(*seq);
  return true;
}

// Some of those that were preempted, in any order.
bool GroupPlay::resume_together(const SeqPtr& seq) {
  static constexpr int kSlots[] = {0, 0, 1, 9};
  std::vector<SeqPtr> chosen;
  std::vector<Handle> handles;
  for (const SeqPtr& other : seqs_)
    if (other->preempted && (other == seq || !bytes_.one_in(4))) chosen.push_back(other);
  if (bytes_.one_in(2)) std::reverse(chosen.begin(), chosen.end());
  for (const SeqPtr& one : chosen) handles.push_back(one->handle);
  const int slots = kSlots[bytes_.below(4)];
  const bool reads = !bytes_.one_in(8);
  const auto count = static_cast<std::int64_t>(handles.size());
  if (!done(kResumeTogether, [&] { caller_.resume_together(handles.data(), count, slots, reads); }))
    return false;
  for (const SeqPtr& one : chosen) {
    const auto length = static_cast<std::int64_t>(one->tokens.size());
    one->preempted = false;
    one->settled_before = computed(*one);
    remember(*one);
    note_resumed(*one);
    EXPECT(computed(*one) < length, "no token is left to compute");
    EXPECT(num_slots(*one) >= (slots ? slots : length), "too few slots");
    EXPECT(reads || !computed(*one), "the cache was read");
  }
  return true;
}

// Preempts those that begin as the sequence does, as forks of it do, and resumes them together.
bool GroupPlay::regroup(const SeqPtr& seq) {
  for (const SeqPtr& other : seqs_)
    if (!other->preempted && other->name == seq->name && other->tokens[0] == seq->tokens[0] &&
        !is_ahead(*other))
      preempt(other);
  return !seq->preempted || resume_together(seq);
}

// Nothing is evicted for a state that is at no stop, and only free blocks are taken.
void GroupPlay::cache_state(const SeqPtr& seq) {
  const std::int64_t evicted = core_.pool().num_evicted();
  bool kept = false;
  if (!done(kCacheState, [&] { kept = caller_.cache_state(seq->handle); })) return;
  remember(*seq);
  EXPECT(!kept || !seq->loads, "a state was cached while its first tokens were being loaded");
  EXPECT(core_.pool().num_evicted() == evicted, "cache_state evicted a block");
  EXPECT(!kept || computed(*seq) % setup_.core.block_size == 0,
         "cache_state cached a state inside a block");
}

GroupPlay::Planned GroupPlay::drawn() {
  const int* weights = flight_.empty() ? kCalls : kAhead;
  int at = bytes_.below(std::accumulate(weights, weights + kNumPlanned, 0));
  int move = 0;
  for (; at >= weights[move]; ++move) at -= weights[move];
  return static_cast<Planned>(move);
}

// Makes one call. If it is refused, a running sequence is freed.
void GroupPlay::plan(Planned move, SeqPtr seq) {
  if (move == kPlanAny) move = drawn();
  if (bytes_.one_in(32)) {
    const int fails_in = bytes_.between(1, 3);
    if (!digester_->never_fails()) digester_->fails_in = fails_in;
  }
  if (!seq && move != kPlanAdmit) seq = some(move == kPlanResume);
  const bool went = (seq || move == kPlanAdmit) && plan_once(move, seq);
  digester_->fails_in = 0;
  if (went || !seq) return;
  if (const SeqPtr other = some(false)) free(other);
}

bool GroupPlay::plan_once(Planned move, const SeqPtr& seq) {
  static constexpr int kCounts[] = {1, 1, 5};
  static constexpr int kNames[] = {0, 0, 2, 1, 1};
  const std::size_t before = seqs_.size();
  switch (move) {
    case kPlanAdmit:
      admit(text(), kNames[bytes_.below(setup_.core.quotas.empty() ? 3 : 5)],
            bytes_.one_in(6) ? bytes_.between(1, 2) : 0);
      return seqs_.size() > before;
    case kPlanAppend:
      return append(seq, kCounts[bytes_.below(3)]);
    case kPlanReserve:
      return reserve(seq);
    case kPlanFork:
      return !fork(seq).empty();
    case kPlanBranch: {  // forks that diverge immediately, like samples of a prompt
      const std::vector<SeqPtr> children = fork(seq);
      for (const SeqPtr& child : children)
        if (!append(child, kCounts[bytes_.below(3)])) return false;
      return !children.empty();
    }
    case kPlanReparent:
      reparent();
      return true;
    case kPlanTruncate:
      truncate(seq, bytes_.between(1, static_cast<int>(seq->tokens.size())));
      return true;
    case kPlanPreempt:
      if (!is_ahead(*seq)) preempt(seq);
      return core_.groups()->replay() || !bytes_.one_in(3) || regroup(seq);
    case kPlanResume:
      return core_.groups()->replay() || bytes_.one_in(2) ? resume(seq) : resume_together(seq);
    case kPlanTurn: {  // the next turn of a conversation follows immediately
      std::vector<Token> next = seq->tokens;
      for (const Token token : tokens(3)) next.push_back(token);
      free(seq);
      admit(std::move(next), seq->name, seq->extras);
      return seqs_.size() == before;
    }
    case kPlanRetain:
      setup_.core.retention&& bytes_.one_in(2) ? say(seq) : handle_blocks(seq);
      return true;
    case kPlanCache:
      cache_state(seq);
      return true;
    default:
      free(seq);
      return true;
  }
}

}  // namespace blockmgr::testing
