#include "play.h"

#include <algorithm>
#include <cmath>

namespace blockmgr::testing {

namespace {

constexpr int kBalanced[kNumMoves] = {14, 4, 16, 16, 22, 3, 3, 1, 2, 4, 3, 3, 6, 3, 2, 10, 3, 5,
                                      1,  1, 1,  1,  8,  4, 3, 4, 4, 8, 0, 0, 1, 2, 4, 1,  1, 0};

}  // namespace

const std::vector<Profile>& profiles() {
  static const std::vector<Profile> all = {
      {"balanced", 4, 48, {1, 2, 3, 4, 8}, 4, 12, 24, {2, 2, 3, 50}, 2, 0, {}},
      {"beam_storm",
       4,
       48,
       {1, 2, 3, 4, 8},
       4,
       12,
       24,
       {2, 2, 3},
       1,
       0,
       {{kMoveFork, 20},
        {kMoveBranch, 12},
        {kMoveReparent, 20},
        {kMoveAppend, 30},
        {kMoveDecode, 25},
        {kMoveAdmit, 6}}},
      {"admission",
       4,
       16,
       {1, 2, 3, 4, 8},
       4,
       12,
       24,
       {2, 2, 3, 50},
       2,
       0,
       {{kMoveAdmit, 25}, {kMovePreempt, 14}, {kMoveResume, 14}, {kMoveStep, 14}}},
      {"tiny_pool", 1, 6, {1, 2, 3}, 2, 5, 9, {2}, 2, 1, {}},
      {"exact_fit", 4, 12, {1, 2, 4}, 4, 12, 24, {2, 3}, 1, 0, {{kMoveAppend, 6}, {kMoveFree, 16}}},
      {"multi_tenant",
       4,
       48,
       {1, 2, 3, 4, 8},
       4,
       12,
       24,
       {2, 2, 3},
       4,
       0,
       {{kMoveAdmit, 24}, {kMoveFree, 18}}},
      {"aborts",
       4,
       48,
       {2, 3, 4, 8},
       4,
       12,
       24,
       {2, 2, 3},
       2,
       0,
       {{kMoveBegin, 25},
        {kMoveAbort, 16},
        {kMoveFork, 25},
        {kMoveAppend, 40},
        {kMoveStep, 8},
        {kMoveAdmit, 8}}},
      {"levels",
       4,
       12,
       {1, 2, 3},
       4,
       8,
       12,
       {2, 2, 3},
       1,
       0,
       {{kMoveRetain, 30},
        {kMovePin, 14},
        {kMoveUnpin, 6},
        {kMoveTime, 14},
        {kMoveTouch, 10},
        {kMoveEnd, 24},
        {kMoveAdmit, 24}}},
      // A block has more children than a partial match examines.
      {"wide", 40, 64, {1, 2, 3}, 4, 12, 6, {40, 80}, 2, 0, {}},
      // The usual block size, for which the core has a separate comparison.
      {"large", 65, 160, {16}, 8, 24, 120, {2, 3, 50}, 2, 0, {}},
      {"swarm", 2, 64, {1, 2, 3, 5, 8, 16}, 2, 16, 24, {2, 2, 3, 50}, 4, 3, {}},
      // A few recurring prompts, in pools that are almost too small for them.
      {"returning",
       3,
       12,
       {1, 2, 3},
       2,
       4,
       9,
       {2, 2, 3},
       1,
       0,
       {{kMoveAdmit, 40},
        {kMoveStep, 30},
        {kMoveFree, 30},
        {kMoveTouch, 16},
        {kMoveRetain, 20},
        {kMoveTime, 6},
        {kMoveEnd, 14},
        {kMoveTwins, 20},
        {kMoveRegrow, 30},
        {kMoveNextTurn, 8},
        {kMoveAppend, 8},
        {kMoveDecode, 8},
        {kMoveFork, 4},
        {kMoveBranch, 2},
        {kMoveReparent, 2}},
       true},
      // Long tables of small blocks, which most managers match, allocate and free as runs.
      {"long_tables",
       24,
       64,
       {1, 2, 3},
       4,
       10,
       48,
       {2, 2, 3},
       1,
       0,
       {{kMoveAdmit, 24},
        {kMoveStep, 24},
        {kMoveFree, 24},
        {kMoveNextTurn, 8},
        {kMovePreempt, 6},
        {kMoveResume, 6}},
       false,
       true},
  };
  return all;
}

const Profile& families() {
  static const Profile one = {"families",
                              3,
                              24,
                              {1, 2, 3, 4, 8},
                              4,
                              12,
                              24,
                              {2, 2, 3},
                              2,
                              0,
                              {{kMoveFork, 16},
                               {kMoveBranch, 10},
                               {kMoveReparent, 6},
                               {kMoveAppend, 24},
                               {kMoveDecode, 20},
                               {kMovePreempt, 8},
                               {kMoveTogether, 20}}};
  return one;
}

const Profile& resizes() {
  static const Profile one = {"resize",
                              1,
                              24,
                              {1, 2, 3, 4, 8},
                              4,
                              12,
                              24,
                              {2, 2, 3},
                              2,
                              0,
                              {{kMoveResize, 12}, {kMovePreempt, 6}, {kMoveResume, 12}}};
  return one;
}

Play::Play(Bytes& bytes, int profile, Counts* counts, Trial* trial, bool through_c)
    : bytes_(bytes),
      profile_(profile == -2 ? resizes()
               : profile < 0 ? families()
                             : profiles()[static_cast<std::size_t>(profile)]),
      settings_(draw(bytes, profile_, trial, through_c)),
      world_(settings_, counts),
      vocabulary_(profile_.vocabulary[static_cast<std::size_t>(
          bytes.below(static_cast<int>(profile_.vocabulary.size())))]) {
  for (int i = 0; i < 4; ++i) stems_.push_back(tokens(profile_.prompt));
  weigh();
}

Settings Play::draw(Bytes& bytes, const Profile& profile, Trial* trial, bool through_c) {
  Settings settings;
  settings.trial = trial;
  settings.through_c = through_c;
  Config& config = settings.core;
  config.null_block = bytes.one_in(5);
  const int capacity = bytes.between(profile.min_blocks, profile.max_blocks);
  config.num_blocks = capacity + config.null_block;
  config.block_size =
      profile.sizes[static_cast<std::size_t>(bytes.below(static_cast<int>(profile.sizes.size())))];
  config.max_seqs = bytes.between(profile.min_seqs, profile.max_seqs);
  config.row_width = bytes.one_in(4) ? 8 : capacity;
  config.prefix_caching = !bytes.one_in(10);
  config.remap = bytes.one_in(2);
  config.min_partial_tokens = std::min(bytes.below(3), config.block_size);
  config.watermark_blocks = bytes.one_in(4) ? 1 : 0;
  config.steps_in_flight = bytes.one_in(2) ? bytes.below(4) : 0;
  config.early_commit = bytes.one_in(3);
  settings.digest = static_cast<TestDigester::Kind>(bytes.below(TestDigester::kNumKinds));
  if (profile.wide) settings.digest = TestDigester::kWide;
  config.eviction = kPolicies[bytes.below(static_cast<int>(std::size(kPolicies)))];
  settings.debug = bytes.one_in(4);
  settings.check_every = capacity <= 16 ? 1 : capacity <= 64 ? 4 : 16;
  settings.snapshot_every = capacity <= 16 ? 4 : 8;
  draw_levels(bytes, profile, capacity, settings);
  config.hit_rate_window = bytes.below(4);
  settings.scribbles = bytes.one_in(4);
  // Not drawn, so that other draws do not change. Some managers have a log that is always too
  // small.
  config.event_blocks = config.num_blocks % 2 ? 0 : config.num_blocks % 3 ? 256 : 3;
  settings.habits = draw_habits(bytes);
  // The settings of most managers, which take fast paths: no policy needs notifications of single
  // blocks.
  if (bytes.one_in(4) || profile.plain) {
    config.eviction = "lru";
    config.retention = false;
    config.max_pinned_blocks = config.ghost_blocks = config.steps_in_flight = 0;
    config.quotas.clear();
    settings.debug = 0;
  }
  return settings;
}

Habits Play::draw_habits(Bytes& bytes) {
  Habits habits;
  habits.writes = static_cast<Writes>(bytes.below(static_cast<int>(Writes::kNumWrites)));
  habits.by_row = bytes.one_in(2);
  habits.refills = bytes.one_in(3);
  habits.eager = bytes.one_in(2);
  // Occasionally starts so late that a counter of 16 or 32 bits wraps around within the run.
  const int before = bytes.between(0, 24);
  if (bytes.one_in(4)) habits.first_step = (1ll << (bytes.one_in(2) ? 16 : 32)) - before;
  return habits;
}

// Draws the quotas, and the settings that apply to each partition.
void Play::draw_levels(Bytes& bytes, const Profile& profile, int capacity, Settings& settings) {
  Config& config = settings.core;
  if (profile.namespaces > 1 && capacity > 2 && bytes.one_in(2)) {
    int left = capacity;
    const int first = bytes.below(profile.namespaces);
    const int count = bytes.between(1, std::min(2, profile.namespaces));
    for (int i = 0; i < count && left; ++i) {
      const int blocks = bytes.between(1, std::min(left, 1 + capacity / 2));
      config.quotas.push_back({World::text_of((first + i) % profile.namespaces), blocks});
      left -= blocks;
    }
  }
  config.retention = bytes.one_in(2);
  if (config.retention) config.max_pinned_blocks = bytes.below(std::min(capacity, 12) + 1);
  if (bytes.one_in(3)) config.ghost_blocks = bytes.between(1, 2 * capacity);
  settings.witness = bytes.one_in(2);
}

void Play::weigh() {
  double weights[kNumMoves];
  std::copy(std::begin(kBalanced), std::end(kBalanced), weights);
  for (const auto& [move, weight] : profile_.weights) weights[move] = weight;
  if (!settings_.core.retention)
    for (const Move move : {kMoveRetain, kMovePin, kMoveUnpin, kMoveTime, kMoveEnd})
      weights[move] = 0;
  double total = 0;
  for (double& weight : weights) {
    if (profile_.swarm && &weight < weights + kMoveTogether)
      weight *= std::exp2(bytes_.between(-profile_.swarm, profile_.swarm));
    total += weight;
  }
  double sum = 0;
  int at = 0;
  for (int move = 0; move < kNumMoves; ++move) {
    sum += weights[move];
    for (; at < std::lround(sum / total * 256) && at < 256; ++at)
      table_[at] = static_cast<std::uint8_t>(move);
  }
  for (; at < 256; ++at) table_[at] = kMoveStep;
}

std::string Play::config() const {
  const Config& c = settings_.core;
  return std::string("profile ") + profile_.name + ", num_blocks " + std::to_string(c.num_blocks) +
         ", block_size " + std::to_string(c.block_size) + ", max_seqs " +
         std::to_string(c.max_seqs) + ", row_width " + std::to_string(c.row_width) +
         ", prefix_caching " + std::to_string(c.prefix_caching) + ", remap " +
         std::to_string(c.remap) + ", min_partial_tokens " + std::to_string(c.min_partial_tokens) +
         ", watermark_blocks " + std::to_string(c.watermark_blocks) + ", steps_in_flight " +
         std::to_string(c.steps_in_flight) + ", early_commit " + std::to_string(c.early_commit) +
         ", null_block " + std::to_string(c.null_block) + ", digest " +
         std::to_string(settings_.digest) + ", eviction " + c.eviction + ", debug " +
         std::to_string(settings_.debug) + ", retention " + std::to_string(c.retention) +
         ", max_pinned_blocks " + std::to_string(c.max_pinned_blocks) + ", ghost_blocks " +
         std::to_string(c.ghost_blocks) + ", quotas " + std::to_string(c.quotas.size()) +
         ", witness " + std::to_string(settings_.witness) + ", writes " +
         std::to_string(static_cast<int>(settings_.habits.writes)) + ", by_row " +
         std::to_string(settings_.habits.by_row) + ", refills " +
         std::to_string(settings_.habits.refills) + ", eager " +
         std::to_string(settings_.habits.eager) + ", first_step " +
         std::to_string(settings_.habits.first_step);
}

EntryPtr Play::any_entry() {
  const auto& entries = world_.entries();
  if (entries.empty()) return nullptr;
  return entries[static_cast<std::size_t>(bytes_.below(static_cast<int>(entries.size())))];
}

std::vector<Token> Play::tokens(int longest) {
  std::vector<Token> result(static_cast<std::size_t>(bytes_.between(1, longest)));
  for (Token& t : result) t = token();
  return result;
}

bool Play::move() {
  if (bytes_.done()) return false;
  move_once();
  if (settings_.habits.eager && world_.early() && !world_.open()) commit_ahead();
  return true;
}

// Commits what this step's forward will write, except for some sequences at random.
void Play::commit_ahead() {
  const std::vector<EntryPtr> entries = world_.entries();
  for (const EntryPtr& entry : entries)
    if (entry->running && world_.committable(*entry) > world_.num_computed(*entry) &&
        !bytes_.one_in(4))
      world_.commit(*entry, world_.committable(*entry));
}

void Play::move_once() {
  const auto move = static_cast<Move>(table_[bytes_.next()]);
  switch (move) {
    case kMoveAdmit:
      return admit();
    case kMoveStep:
      world_.step(bytes_.one_in(3) ? static_cast<std::size_t>(bytes_.below(2)) : SIZE_MAX,
                  bytes_.one_in(4));
      if (bytes_.one_in(128)) pause();
      return;
    case kMoveBegin:
      world_.begin(SIZE_MAX, bytes_.one_in(2));
      if (world_.early() && bytes_.one_in(3)) retreat();
      return;
    case kMoveFinish:
      return finish();
    case kMoveAbort:
      return abort();
    case kMoveComplete:
      if (settings_.core.steps_in_flight)
        world_.complete(static_cast<std::size_t>(bytes_.between(1, 2)));
      return;
    case kMoveRemaps:
      return world_.take_remaps();
    case kMoveNonsense:
      return nonsense();
    case kMoveReset:
      if (bytes_.one_in(2)) return world_.retire(bytes_.below(profile_.namespaces));
      return world_.reset(bytes_.one_in(2));
    case kMoveHold: {
      std::vector<std::int64_t> ids = some_blocks();
      if (bytes_.one_in(4)) ids.push_back(ids.front());
      return world_.hold(ids);
    }
    case kMoveLetGo:
      return let_go();
    case kMoveTouchBlocks:
      return world_.touch_blocks(some_blocks());
    case kMoveForget:
      return world_.forget(some_blocks());
    case kMoveDecode:
      return decode();
    case kMoveReparent:
      return reparent();
    case kMoveResume:
      return resume();
    case kMoveResize:
      return resize();
    case kMoveTogether:
      return bytes_.one_in(2) ? regroup() : resume_together();
    case kMoveUnpin:
      if (settings_.core.retention) world_.unpin(bytes_.next());
      return;
    case kMoveTime: {
      // Occasionally a jump so large that a short retention expires as soon as it is set.
      static constexpr double kSteps[] = {0, 1, 1, 1, 2, 3, -1, 0x1p60};
      if (settings_.core.retention)
        world_.set_time(world_.core().time() + kSteps[bytes_.below(bytes_.one_in(16) ? 8 : 7)]);
      return;
    }
    default:
      break;
  }
  if (const EntryPtr entry = any_entry()) {
    with_entry(move, entry);
  } else {
    admit();
  }
}

void Play::with_entry(Move move, const EntryPtr& entry) {
  const auto length = static_cast<std::int64_t>(entry->tokens.size());
  switch (move) {
    case kMoveNextTurn:
      return next_turn(entry);
    case kMoveAppend:
      return world_.append(*entry, tokens(bytes_.one_in(5) ? 6 : 1));
    case kMoveCommit: {
      const int choice = bytes_.below(3);
      return world_.commit(*entry, choice == 0 ? world_.committable(*entry) : choice == 1 ? 1 : 5);
    }
    case kMoveReserve:
      return world_.reserve(*entry, length + bytes_.between(-4, 5));
    case kMoveTruncate:
      return world_.truncate(*entry, bytes_.below(static_cast<int>(length) + 2));
    case kMoveFork:
      world_.fork(entry, bytes_.below(4));
      return;
    case kMoveBranch:
      return branch(entry);
    case kMoveFree:
      if (bytes_.one_in(4)) overtake(entry);
      world_.free(entry, bytes_.one_in(3));
      if (settings_.habits.refills && !entry->alive) admit();
      return;
    case kMovePreempt:
      return world_.preempt(*entry, bytes_.one_in(3));
    case kMoveRetain:
      if (settings_.core.retention) retain(entry);
      return;
    case kMovePin:
      if (settings_.core.retention) world_.pin(*entry);
      return;
    case kMoveTouch:
      return world_.touch(*entry);
    case kMoveTwins:
      return twins(entry);
    case kMoveRegrow:
      return regrow(entry);
    case kMoveEnd:
      if (settings_.core.retention) world_.end(entry, bytes_.one_in(2));
      if (settings_.habits.refills && !entry->alive) admit();
      return;
    case kMoveFailing:
      world_.fail_digest(bytes_.between(1, 4));
      next_turn(entry);
      world_.step();
      return world_.fail_digest(0);
    case kMoveIntruding:
      world_.intrude(true);
      world_.step();
      return world_.intrude(false);
    default:
      return;
  }
}

void Play::admit() {
  const auto& stem = stems_[static_cast<std::size_t>(bytes_.below(4))];
  std::vector<Token> prompt(stem.begin(),
                            stem.begin() + bytes_.between(1, static_cast<int>(stem.size())));
  if (bytes_.one_in(2))
    for (const Token t : tokens(4)) prompt.push_back(t);
  const int name = bytes_.below(profile_.namespaces);
  const int extras = bytes_.one_in(5) ? bytes_.below(kNumExtras) : 0;
  const auto length = static_cast<int>(prompt.size());
  const std::int64_t slots = bytes_.one_in(3) ? bytes_.between(1, length + 6) : 0;
  const EntryPtr entry = world_.admit(std::move(prompt), name, extras, slots, draw_terms(length));
  if (entry && world_.early() && bytes_.one_in(2))
    world_.commit(*entry, world_.committable(*entry));
}

Asked Play::draw_terms(int length) {
  Asked terms;
  terms.read_cache = !bytes_.one_in(12);
  terms.by_match = bytes_.one_in(4);
  terms.too_much = terms.by_match && bytes_.one_in(8);
  if (bytes_.one_in(8)) terms.most_cached = bytes_.below(length + 1);
  if (bytes_.one_in(8)) terms.watermark = bytes_.below(4);
  return terms;
}

std::vector<std::int64_t> Play::some_blocks() {
  const std::size_t which = bytes_.next();
  return world_.some_blocks(which, static_cast<std::size_t>(bytes_.between(1, 3)));
}

// Releases some holds, occasionally more than there are.
void Play::let_go() {
  if (world_.holds().empty() && !bytes_.one_in(4)) return;
  std::vector<std::int64_t> ids = some_blocks();
  if (!world_.holds().empty() && !bytes_.one_in(8)) {
    ids.clear();
    const int count = bytes_.between(1, static_cast<int>(world_.holds().size()));
    for (const Hold& held : world_.holds())
      if (static_cast<int>(ids.size()) < count) ids.push_back(held.block);
    if (bytes_.one_in(2)) std::reverse(ids.begin(), ids.end());
  }
  world_.let_go(ids);
}

void Play::next_turn(const EntryPtr& entry) {
  std::vector<Token> prompt = entry->tokens;
  if (prompt.size() > 4096) return;
  for (const Token t : tokens(6)) prompt.push_back(t);
  const EntryPtr next = world_.admit(std::move(prompt), entry->name, entry->extras, 0);
  if (!next || !bytes_.one_in(4)) return;
  // An edited prompt: truncated into the cached prefix and continued with other tokens.
  const auto length = static_cast<int>(next->tokens.size());
  world_.truncate(*next, bytes_.between(std::max(1, length - 12), length));
  // With early commits, the cached prefix may not be written yet.
  if (bytes_.one_in(3)) return world_.decode({next}, {token()});
  world_.append(*next, tokens(2));
}

void Play::decode() {
  std::vector<EntryPtr> chosen;
  std::vector<Token> fresh;
  for (const EntryPtr& entry : world_.entries()) {
    const std::uint8_t byte = bytes_.next();
    if (byte % 5 == 0 || (!entry->running && byte % 16 != 1)) continue;
    chosen.push_back(entry);
    if (byte & 64) std::swap(chosen.front(), chosen.back());
    fresh.push_back(token());
  }
  if (!chosen.empty() && bytes_.one_in(64)) {
    chosen.push_back(chosen.front());
    fresh.push_back(0);
  }
  world_.decode(chosen, fresh);
}

void Play::finish() {
  std::vector<LaunchPtr> waiting;
  for (const LaunchPtr& launch : world_.steps())
    if (!launch->finished) waiting.push_back(launch);
  if (!waiting.empty())
    world_.finish(waiting[static_cast<std::size_t>(bytes_.below(static_cast<int>(waiting.size())))],
                  0);
}

// A launch fails, sometimes while a copy of a block with a pending copy is planned.
void Play::abort() {
  const EntryPtr entry = any_entry();
  if (entry && !world_.open() && bytes_.one_in(2)) {
    for (const EntryPtr& child : world_.fork(entry, 1)) {
      world_.append(*child, {0});
      world_.begin(SIZE_MAX, false);
      for (const EntryPtr& grandchild : world_.fork(child, 1)) world_.append(*grandchild, {1});
    }
  }
  world_.abort();
}

// Skips so many steps that step numbers have the same low bits as earlier ones.
void Play::pause() {
  const int bits = bytes_.one_in(2) ? 16 : 32;
  world_.pause((1ll << bits) - bytes_.below(4));
}

// A sequence and its fork decode one after the other in a step. The fork is truncated a little,
// perhaps into a block that the sequence has just promoted.
void Play::stagger(const EntryPtr& entry) {
  world_.step();
  if (bytes_.one_in(4)) pause();
  for (const EntryPtr& child : world_.fork(entry, 1)) {
    if (!bytes_.one_in(3)) world_.decode({entry}, {token()});
    const auto length = static_cast<int>(child->tokens.size());
    const int cut = bytes_.between(0, std::min(length - 1, 3));
    if (cut) world_.truncate(*child, length - cut);
    world_.decode({child}, {token()});
    world_.step();
  }
}

// While the forward runs, some of its tokens are truncated and replaced by others.
void Play::retreat() {
  const EntryPtr entry = any_entry();
  if (!entry || !entry->running) return;
  const auto length = static_cast<int>(entry->tokens.size());
  world_.truncate(*entry, bytes_.between(std::max(1, length - 3), length));
  if (bytes_.one_in(2)) world_.append(*entry, {token()});
}

// Another prompt diverges from this one within a block, so that a copy of its first tokens is
// pending.
void Play::overtake(const EntryPtr& entry) {
  const auto length = static_cast<int>(entry->tokens.size());
  if (length < 2) return;
  const int same = bytes_.between(1, length - 1);
  std::vector<Token> prompt(entry->tokens.begin(), entry->tokens.begin() + same);
  for (const Token t : tokens(3)) prompt.push_back(t);
  world_.admit(std::move(prompt), entry->name, entry->extras, 0);
}

// A fork of a fork, all written in one step: copies of copies.
void Play::branch(const EntryPtr& entry) {
  if (bytes_.one_in(3)) return stagger(entry);
  // With early commits, the sources of the copies may not be written before the step's forward.
  const bool commits = world_.early() && bytes_.one_in(2);
  if (commits) world_.append(*entry, {token()});
  for (const EntryPtr& child : world_.fork(entry, 1)) {
    std::vector<EntryPtr> family = {entry, child};
    for (const EntryPtr& grandchild : world_.fork(child, 1)) family.push_back(grandchild);
    std::rotate(family.begin(), family.begin() + bytes_.below(static_cast<int>(family.size())),
                family.end());
    for (const EntryPtr& member : family) {
      if (commits) world_.commit(*member, world_.committable(*member));
      world_.append(*member, {token()});
      world_.append(*member, {token()});
    }
  }
}

void Play::reparent() {
  std::vector<EntryPtr> chosen;
  for (const EntryPtr& entry : world_.entries()) {
    const std::uint8_t byte = bytes_.next();
    if (byte % 10 < 7 && (entry->running || byte >= 250)) chosen.push_back(entry);
  }
  if (chosen.empty()) return;
  if (bytes_.one_in(64)) chosen.push_back(chosen.front());
  std::vector<std::int64_t> parents;
  const auto count = static_cast<int>(chosen.size());
  for (int i = 0; i < count; ++i) parents.push_back(bytes_.below(count));
  if (bytes_.one_in(64)) parents.back() = count;
  world_.reparent(chosen, parents);
}

void Play::resume() {
  std::vector<EntryPtr> waiting;
  for (const EntryPtr& entry : world_.entries())
    if (!entry->running || bytes_.one_in(32)) waiting.push_back(entry);
  if (waiting.empty()) return;
  const EntryPtr& entry =
      waiting[static_cast<std::size_t>(bytes_.below(static_cast<int>(waiting.size())))];
  static constexpr int kSlots[] = {0, 0, 1, 9};
  const int slots = kSlots[bytes_.below(4)];
  world_.resume(*entry, slots, !bytes_.one_in(8));
}

void Play::resume_together() {
  std::vector<EntryPtr> chosen;
  for (const EntryPtr& entry : world_.entries())
    if ((!entry->running && !bytes_.one_in(4)) || bytes_.one_in(64)) chosen.push_back(entry);
  if (!chosen.empty() && bytes_.one_in(64)) chosen.push_back(chosen.front());
  static constexpr int kSlots[] = {0, 0, 1, 9};
  const int slots = kSlots[bytes_.below(4)];
  world_.resume_together(chosen, slots, !bytes_.one_in(8));
}

// Mostly the sequences that are in the way are preempted.
void Play::resize() {
  const Pool& pool = world_.core().pool();
  const int most = world_.core().config().num_blocks;
  const int limit = pool.limit();
  if (bytes_.one_in(3))
    return world_.grow(bytes_.one_in(2) ? most : limit - 1 + bytes_.below(most - limit + 3));
  world_.shrink(pool.partition(0).first - 1 + bytes_.below(limit - pool.partition(0).first + 3));
  if (bytes_.one_in(3)) return;
  for (const EntryPtr& entry : std::vector<EntryPtr>(world_.entries()))
    if (world_.is_in_the_way(*entry)) world_.preempt(*entry, true);
}

// All sequences are preempted: with full attention alone, they fit where they were.
void Play::regroup() {
  if (!bytes_.one_in(4)) {
    world_.step();
    world_.complete(world_.steps().size());
  }
  const bool must_fit = world_.may_regroup();
  std::vector<EntryPtr> family;
  for (const EntryPtr& entry : std::vector<EntryPtr>(world_.entries())) {
    if (!entry->running) continue;
    world_.preempt(*entry, true);
    if (entry->running) return;
    family.push_back(entry);
  }
  world_.resume_together(family, 0, true, must_fit);
}

void Play::retain(const EntryPtr& entry) {
  static constexpr int kLevels[] = {kNoLevel, kLow, kNormal, kExpected, kHigh, kHigh};
  static constexpr double kTimes[] = {kForever, kForever, 1, 2, 3};
  const int level = kLevels[bytes_.below(6)];
  const double ttl = kTimes[bytes_.below(5)];
  if (bytes_.one_in(3)) return world_.retain_prefix(*entry, level, ttl);
  const auto length = static_cast<int>(entry->tokens.size());
  const int start = bytes_.below(length) * bytes_.below(2);
  world_.retain(*entry, start, bytes_.between(start, length + bytes_.one_in(8)), level, ttl);
}

// Two sequences compute the same tokens at the same time and get different hints.
void Play::twins(const EntryPtr& entry) {
  std::vector<Token> prompt = entry->tokens;
  if (prompt.size() > 4096) return;
  for (const Token t : tokens(4)) prompt.push_back(t);
  EntryPtr twin;
  std::vector<EntryPtr> both;
  for (int i = 0; i < 2; ++i) {
    twin = world_.admit(prompt, entry->name, entry->extras, 0);
    if (!twin) return;
    both.push_back(twin);
    // Written and not committed: the other sequence commits first, ahead of the forward.
    if (world_.early() && !i && bytes_.one_in(3)) {
      world_.step();
      continue;
    }
    if (settings_.core.retention && !bytes_.one_in(4)) retain(twin);
    if (world_.early()) world_.commit(*twin, world_.committable(*twin));
  }
  if (world_.early() && bytes_.one_in(2)) world_.decode({both[0]}, {token()});
  const auto length = static_cast<int>(prompt.size());
  if (world_.early() && bytes_.one_in(2)) {
    world_.truncate(*both[0], bytes_.between(std::max(1, length - 3), length));
    world_.append(*both[0], {token()});
  }
  world_.step();
  if (bytes_.one_in(3)) {
    for (const EntryPtr& each : both)
      if (each->tokens.size() > 1)
        world_.truncate(*each, static_cast<int>(each->tokens.size()) - 1);
    return world_.decode(both, {token(), token()});
  }
  if (bytes_.one_in(2)) return;
  world_.truncate(*twin, bytes_.between(std::max(1, length - 3), length));
  if (bytes_.one_in(2)) world_.append(*twin, {token()});
}

// Gives a block in the middle a lower level than its neighbours.
void Play::demean(const EntryPtr& entry) {
  if (!settings_.core.retention || !entry->running || bytes_.one_in(2)) return;
  const int start = bytes_.below(static_cast<int>(entry->tokens.size()));
  world_.retain(*entry, start, start + 1, kLow, kForever);
}

// An uncached prompt takes up to the whole pool.
void Play::crowd() {
  const Config& config = settings_.core;
  const EntryPtr entry = world_.admit(tokens(config.num_blocks * config.block_size), 0, 0, 0);
  if (entry && !bytes_.one_in(4)) world_.free(entry);
}

// A conversation continues for a turn and ends within a block; other prompts share its prefix
// nearly to the end. The previous conversation may return.
void Play::regrow(const EntryPtr& entry) {
  EntryPtr kept = entry;
  world_.step();
  demean(kept);
  std::vector<Token> turn = kept->tokens;
  for (const Token t : tokens(4)) turn.push_back(t);
  world_.free(kept);
  if (const EntryPtr next =
          bytes_.one_in(3) ? nullptr : world_.admit(turn, kept->name, kept->extras, 0)) {
    kept = next;
    world_.step();
    demean(kept);
    world_.free(kept);
  }
  if (!bytes_.one_in(4)) crowd();
  if (regrown_ && bytes_.one_in(2)) world_.touch(*regrown_);
  regrown_ = kept;
  for (int i = bytes_.below(4); i > 0; --i) {
    const auto length = static_cast<int>(kept->tokens.size());
    const int stop = bytes_.between(std::max(1, length - 2), length);
    std::vector<Token> prompt(kept->tokens.begin(), kept->tokens.begin() + stop);
    if (!bytes_.one_in(3))
      for (const Token t : tokens(2)) prompt.push_back(t);
    world_.admit(std::move(prompt), kept->name, kept->extras, 0);
  }
}

void Play::nonsense() {
  static constexpr Op kCalls[] = {kAppend, kCommit, kReserve, kTruncate,
                                  kFork,   kFree,   kPreempt, kResume};
  static constexpr Op kTickets[] = {kApplied, kAborted, kComplete};
  if (world_.num_dead() && bytes_.one_in(2)) {
    const Op op = kCalls[bytes_.below(8)];
    world_.call_dead(op, static_cast<std::size_t>(bytes_.below(64)));
  } else {
    const Op op = kTickets[bytes_.below(3)];
    world_.wrong_ticket(op, bytes_.between(-1, 3));
  }
}

}  // namespace blockmgr::testing
