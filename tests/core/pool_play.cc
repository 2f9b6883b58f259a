#include "pool_play.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "play.h"

namespace blockmgr::testing {

namespace {

const std::string kPoolNames[] = {"", "a", "tenant"};
const std::string kPoolExtras[] = {"x", "y"};

TestDigester* make_pool_digester(Bytes& bytes) {
  if (bytes.one_in(10)) return nullptr;
  return new TestDigester(static_cast<TestDigester::Kind>(bytes.below(TestDigester::kNumKinds)));
}

StoreConfig draw_config(Bytes& bytes) {
  StoreConfig config;
  config.null_block = bytes.one_in(5);
  const int capacity = bytes.between(1, 12);
  config.num_blocks = capacity + config.null_block;
  config.block_size = bytes.between(1, 4);
  if (bytes.one_in(3)) return config;  // the settings of most pools
  config.eviction = kPolicies[bytes.below(static_cast<int>(std::size(kPolicies)))];
  config.retention = bytes.one_in(2);
  if (config.retention) config.max_pinned_blocks = bytes.below(capacity + 1);
  if (bytes.one_in(2)) config.ghost_blocks = bytes.between(1, 2 * capacity);
  int left = capacity;
  for (const std::string& name : kPoolNames) {
    if (!left || bytes.one_in(2)) continue;
    const int blocks = bytes.between(1, left);
    config.quotas.push_back({name, blocks});
    left -= blocks;
  }
  return config;
}

}  // namespace

PoolPlay::PoolPlay(Bytes& bytes, Trial* trial)
    : bytes_(bytes),
      trial_(trial),
      config_(draw_config(bytes)),
      num_blocks_(config_.num_blocks),
      size_(config_.block_size),
      first_(config_.null_block),
      digester_(make_pool_digester(bytes)),
      pool_(config_, std::unique_ptr<Digester>(digester_)) {}

std::string PoolPlay::share(int number) const {
  const Pool::Partition& own = pool_.pool().partition(number);
  std::string known = std::to_string(own.free.size()) + " " + std::to_string(own.idle.size()) +
                      " " + std::to_string(own.num_evicted) + " ";
  if (own.policy) own.policy->fingerprint(known);
  if (own.past) own.past->fingerprint(known);
  return known;
}

int PoolPlay::share_of(const std::string& name) const {
  for (std::size_t i = 0; i < config_.quotas.size(); ++i)
    if (config_.quotas[i].name == name) return static_cast<int>(i) + 1;
  return 0;
}

const std::string& PoolPlay::some_name() { return kPoolNames[bytes_.below(3)]; }

void PoolPlay::fail(const std::string& otherwise) const {
  throw Violation("pool call " + std::to_string(calls_) + ": " + otherwise);
}

PoolPlay::Outcome PoolPlay::call(const char* name, unsigned due, const std::function<void()>& run,
                                 int touched) {
  ++calls_;
  std::vector<std::string> shares;
  for (int i = 0; touched >= 0 && i < pool_.pool().num_partitions(); ++i)
    shares.push_back(share(i));
  const std::string before = pool_.fingerprint();
  if (digester_ && digester_->fails_in) due |= bit(kFailed);
  Outcome outcome = kDone;
  try {
    trial_ ? put_on_trial(name, run) : run();
  } catch (const OutOfBlocks& refusal) {
    EXPECT(refusal.needed > refusal.available, "refused although there are enough");
    outcome = kOutOfBlocks;
  } catch (const WrongBlockState&) {
    outcome = kWrongBlock;
  } catch (const DigestFailed&) {
    outcome = kFailed;
  } catch (const PinBudget&) {
    outcome = kPinRefused;
  } catch (const UnknownPin&) {
    outcome = kUnknownPin;
  } catch (const Error& error) {
    outcome = error.kind == ErrorKind::kValue  ? kBadValue
              : error.kind == ErrorKind::kStep ? kStepRefused
                                               : kWrongTicket;
  }
  EXPECT(due & bit(outcome), "outcome " + std::to_string(outcome) + " was not expected");
  if (outcome != kDone) EXPECT(pool_.fingerprint() == before, "a refused call changed something");
  for (std::size_t i = 0; i < shares.size(); ++i)
    EXPECT(static_cast<int>(i) == touched || share(static_cast<int>(i)) == shares[i],
           "a call changed another share");
  return outcome;
}

void PoolPlay::put_on_trial(const char* name, const std::function<void()>& run) {
  const int fails_in = digester_ ? digester_->fails_in : 0;
  const Subject subject{
      [this] { return pool_.fingerprint(); },
      [this] { return pool_.violations(); },
      [this] { return pool_.memory() + (digester_ ? digester_->memory() : 0); },
      [this, fails_in] {
        if (digester_) digester_->fails_in = fails_in;
      },
  };
  trial_->make(name, subject, run);
}

std::uint32_t PoolPlay::held(std::int64_t id) const {
  const auto at = held_.find(id);
  return at == held_.end() ? 0 : at->second;
}

bool PoolPlay::known(const Ids& ids) const {
  return std::all_of(ids.begin(), ids.end(),
                     [&](std::int64_t id) { return held(id) || contents_.count(id); });
}

// Up to that many ids, occasionally one that names no block.
PoolPlay::Ids PoolPlay::some(int most) {
  Ids ids(static_cast<std::size_t>(bytes_.between(0, most)));
  for (std::int64_t& id : ids)
    id = bytes_.between(bytes_.one_in(32) ? -1 : static_cast<int>(first_),
                        num_blocks_ - !bytes_.one_in(32));
  return ids;
}

int PoolPlay::share_of_block(std::int64_t id) const {
  int number = 0;
  while (!pool_.pool().partition(number).holds(BlockId{static_cast<std::int32_t>(id)})) ++number;
  return number;
}

// Forgets the contents of blocks that were evicted or forgotten.
void PoolPlay::forget_lost() {
  for (auto at = contents_.begin(); at != contents_.end();)
    at = keyed(at->first) ? std::next(at) : contents_.erase(at);
}

void PoolPlay::check() {
  const std::vector<std::string> violations = pool_.violations();
  EXPECT(violations.empty(), violations.empty() ? "" : violations.front());
  for (std::int64_t b = first_; b < num_blocks_; ++b) {
    EXPECT(pool_.uses(b).ref_count == held(b), "a block has a wrong number of holders");
    EXPECT(keyed(b) == (contents_.count(b) == 1), "a block was cached or lost without a call");
    if (keyed(b))
      EXPECT(share_of_block(b) == share_of(contents_[b].substr(0, contents_[b].find('|'))),
             "a block is cached under a namespace of another share");
  }
  check_levels();
}

bool PoolPlay::move() {
  if (bytes_.done()) return false;
  switch (bytes_.below(22)) {
    case 0:
    case 1:
      take();
      break;
    case 2:
      acquire();
      break;
    case 3:
    case 4:
    case 5:
      release();
      break;
    case 6:
      touch();
      break;
    case 7:
    case 8:
    case 9:
      promote();
      break;
    case 10:
      find();
      break;
    case 11:
      make_writable();
      break;
    case 12:
      evict(bytes_.one_in(2));
      break;
    case 13:
      if (bytes_.one_in(4))
        reset();
      else if (bytes_.one_in(2))
        take_blocks();
      else
        forget_blocks();
      break;
    case 14:
      copies();
      break;
    case 15:
    case 16:
      acquire_prefix();
      break;
    case 17:
      retain();
      break;
    case 18:
      pin();
      break;
    case 19:
      unpin();
      break;
    case 20:
      set_time();
      break;
    default:
      if (digester_) digester_->fails_in = bytes_.below(4);
      break;
  }
  check();
  return true;
}

void PoolPlay::take() {
  const int count = bytes_.between(-1, 4);
  std::vector<std::int32_t> out(static_cast<std::size_t>(std::max(count, 0)));
  const std::string& name = some_name();
  const int own = share_of(name);
  const Outcome due = count < 0                                         ? kBadValue
                      : count > pool_.pool().partition(own).available() ? kOutOfBlocks
                                                                        : kDone;
  const auto run = [&] { pool_.take(count, name, out.data()); };
  if (call("pool take", bit(due), run, own) != kDone) return;
  forget_lost();
  for (const std::int32_t b : out) {
    EXPECT(held_.count(b) == 0, "a block in use was allocated");
    EXPECT(share_of_block(b) == own, "a block of another share was allocated");
    held_[b] = 1;
  }
}

void PoolPlay::take_blocks() {
  const Ids ids = some(3);
  Outcome due = kDone;
  for (std::size_t i = 0; i < ids.size() && due == kDone; ++i) {
    if (!in_range(ids[i]))
      due = kBadValue;
    else if (keyed(ids[i]) || pool_.uses(ids[i]) != Uses())
      due = kWrongBlock;
    else if (std::count(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(i), ids[i]))
      due = kBadValue;
  }
  const auto run = [&] { pool_.take_blocks(ids.data(), static_cast<std::int64_t>(ids.size())); };
  if (call("pool take_blocks", bit(due), run) != kDone) return;
  for (const std::int64_t id : ids) held_[id] = 1;
}

void PoolPlay::acquire() {
  const Ids ids = some(3);
  Outcome due = kDone;
  for (const std::int64_t id : ids) {
    if (due != kDone) break;
    due = !in_range(id) ? kBadValue : known({id}) ? kDone : kWrongBlock;
  }
  const auto count = static_cast<std::int64_t>(ids.size());
  const bool found = bytes_.one_in(2);
  if (call("pool acquire", bit(due), [&] { pool_.acquire(ids.data(), count, found); }) == kDone)
    for (const std::int64_t id : ids) ++held_[id];
}

void PoolPlay::release() {
  const Ids ids = some(4);
  std::map<std::int64_t, std::uint32_t> left = held_;
  Outcome due = kDone;
  for (const std::int64_t id : ids) {
    due = !in_range(id) ? kBadValue : left.count(id) && left[id] ? kDone : kWrongBlock;
    if (due != kDone) break;
    --left[id];
  }
  const auto count = static_cast<std::int64_t>(ids.size());
  if (call("pool release", bit(due), [&] { pool_.release(ids.data(), count); }) != kDone) return;
  held_.clear();
  for (const auto& [id, references] : left)
    if (references) held_[id] = references;
}

void PoolPlay::touch() {
  const Ids ids = some(3);
  Outcome due = kDone;
  for (const std::int64_t id : ids) {
    if (due != kDone) break;
    due = !in_range(id) ? kBadValue : known({id}) ? kDone : kWrongBlock;
  }
  const auto count = static_cast<std::int64_t>(ids.size());
  call("pool touch", bit(due), [&] { pool_.touch(ids.data(), count); });
}

PoolPlay::Content PoolPlay::extended(const Content& before, const std::string& extras,
                                     const Token* tokens) const {
  Content content = before + "|" + extras + ":";
  for (int i = 0; i < size_; ++i) content += std::to_string(tokens[i]) + ",";
  return content;
}

void PoolPlay::promote() {
  const Ids ids = some(3);
  std::vector<Token> tokens(ids.size() * static_cast<std::size_t>(size_));
  for (Token& t : tokens) t = static_cast<Token>(bytes_.below(2));
  ChainKey key{tokens.data(), static_cast<std::int64_t>(tokens.size()), -1, "", {}};
  std::string before = kPoolNames[0];
  if (!contents_.empty() && bytes_.one_in(2)) {
    auto at = contents_.begin();
    std::advance(at, bytes_.below(static_cast<int>(contents_.size())));
    key.parent = at->first;
    before = at->second;
  } else {
    before = kPoolNames[bytes_.below(3)];
    key.name = before;
  }
  if (!ids.empty() && bytes_.one_in(4))
    key.extras = {{bytes_.below(static_cast<int>(ids.size())), kPoolExtras[bytes_.below(2)]}};
  const std::string name = before;
  if (key.parent < 0) key.name = name;
  const auto count = static_cast<std::int64_t>(ids.size());
  std::vector<std::int32_t> out(ids.size());
  // Whether the call is valid depends on what is already cached; its result does not.
  const unsigned due = bit(kDone) | bit(kBadValue) | bit(kWrongBlock);
  const int own = key.parent < 0 ? share_of(name) : share_of_block(key.parent);
  const auto run = [&] { pool_.promote(ids.data(), count, key, out.data()); };
  if (call("pool promote", due, run, own) != kDone) return;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (digester_) {
      const bool marked =
          !key.extras.empty() && key.extras[0].first == static_cast<std::int32_t>(i);
      const std::string extras = marked ? std::string(key.extras[0].second) : "";
      before = extended(before, extras, tokens.data() + i * static_cast<std::size_t>(size_));
      const auto known = contents_.find(out[i]);
      EXPECT(known == contents_.end() || known->second == before,
             "a block was merged with different content");
      contents_[out[i]] = before;
    }
    EXPECT(share_of_block(out[i]) == own, "a block of another share was promoted");
    if (out[i] == ids[i]) continue;
    merge(ids[i], out[i]);
    ++held_[out[i]];
    if (!--held_[ids[i]]) held_.erase(ids[i]);
  }
  forget_lost();
}

void PoolPlay::find() {
  std::vector<Token> tokens(static_cast<std::size_t>(bytes_.below(4 * size_ + 1)));
  for (Token& t : tokens) t = static_cast<Token>(bytes_.below(2));
  const std::string name = kPoolNames[bytes_.below(3)];
  const ChainKey key{tokens.data(), static_cast<std::int64_t>(tokens.size()), -1, name, {}};
  std::vector<std::int32_t> found;
  if (call("pool find", bit(kDone), [&] { found = pool_.find(key); }) != kDone) return;
  Content content = name;
  const std::size_t most = tokens.size() / static_cast<std::size_t>(size_);
  for (std::size_t i = 0; i < most; ++i) {
    content = extended(content, "", tokens.data() + i * static_cast<std::size_t>(size_));
    const auto holder = std::find_if(contents_.begin(), contents_.end(),
                                     [&](const auto& entry) { return entry.second == content; });
    EXPECT((i < found.size()) == (holder != contents_.end()), "find finds a wrong set of blocks");
    if (holder == contents_.end()) return;
    EXPECT(found[i] == holder->first, "the found block has different content");
  }
}

void PoolPlay::make_writable() {
  const std::int64_t id = bytes_.between(static_cast<int>(first_), num_blocks_ - 1);
  const int num_tokens = bytes_.between(-1, size_ + 1);
  std::int32_t writable = -1;
  const bool moves = held(id) > 1 || keyed(id);
  const int own = share_of_block(id);
  const bool none = pool_.pool().partition(own).available() == 0;
  const Outcome due = !held(id)                              ? kWrongBlock
                      : num_tokens < 0 || num_tokens > size_ ? kBadValue
                      : moves && none                        ? kOutOfBlocks
                                                             : kDone;
  const auto run = [&] { writable = pool_.make_writable(id, num_tokens); };
  if (call("pool make_writable", bit(due), run, own) != kDone) return;
  forget_lost();
  EXPECT((writable == id) == !moves, "a block to write into is shared or findable");
  if (!moves) return;
  EXPECT(held_.count(writable) == 0, "a block in use was allocated");
  EXPECT(share_of_block(writable) == own, "a block of another share was allocated");
  held_[writable] = 1;
  if (!--held_[id]) held_.erase(id);
}

void PoolPlay::evict(bool forget) {
  const int count = bytes_.between(-1, 3);
  std::vector<std::int32_t> out(static_cast<std::size_t>(std::max(count, 0)));
  const std::string& name = some_name();
  const int own = share_of(name);
  const Outcome due = count < 0                                         ? kBadValue
                      : count > pool_.pool().partition(own).idle.size() ? kOutOfBlocks
                                                                        : kDone;
  const auto run = [&] {
    forget ? pool_.forget(count, name, out.data()) : pool_.evict(count, name, out.data());
  };
  if (call("pool evict", bit(due), run, own) != kDone) return;
  for (const std::int32_t b : out) {
    EXPECT(contents_.count(b) == 1 && held_.count(b) == 0, "a block that is not idle was evicted");
    if (!forget) held_[b] = 1;
  }
  forget_lost();
}

void PoolPlay::forget_blocks() {
  const Ids ids = some(3);
  Outcome due = kDone;
  for (const std::int64_t id : ids)
    if (due == kDone && !(in_range(id) && contents_.count(id)))
      due = in_range(id) ? kWrongBlock : kBadValue;
  std::int64_t count = 0;
  const auto run = [&] {
    count = pool_.forget_blocks(ids.data(), static_cast<std::int64_t>(ids.size()));
  };
  if (call("pool forget_blocks", bit(due), run) != kDone) return;
  std::set<Content> gone;
  for (const std::int64_t id : ids) gone.insert(contents_[id]);
  for (auto at = contents_.begin(); at != contents_.end();) {
    const bool continues = std::any_of(gone.begin(), gone.end(), [&](const Content& content) {
      return at->second.compare(0, content.size(), content) == 0;
    });
    EXPECT(keyed(at->first) != continues, "the wrong blocks were forgotten");
    at = continues ? contents_.erase(at) : std::next(at);
    count -= continues;
  }
  EXPECT(!count, "a wrong number of forgotten blocks");
}

void PoolPlay::reset() {
  const Outcome due = pool_.pool().num_used() ? kWrongBlock : kDone;
  if (call("pool reset", bit(due), [&] { pool_.reset(); }) == kDone) {
    forget_lost();
    EXPECT(contents_.empty() && pool_.pool().num_free() == pool_.pool().capacity(),
           "a block is cached after a reset");
  }
}

void PoolPlay::copies() {
  std::vector<BlockCopy> plan;
  if (!open_) {
    if (call("pool copies", bit(kDone), [&] { ticket_ = pool_.take_copies(plan); }) == kDone)
      open_ = true;
    for (const BlockCopy& copy : plan)
      for (const BlockCopy& other : plan)
        EXPECT(copy.source != other.destination, "the order of the copy plan matters");
    return;
  }
  if (bytes_.one_in(8)) {
    call("pool copies", bit(kStepRefused), [&] { pool_.take_copies(plan); });
    call("pool copies", bit(kWrongTicket), [&] { pool_.copies_applied(ticket_ + 1); });
    return;
  }
  const bool applied = bytes_.one_in(2);
  call("pool copies", bit(kDone),
       [&] { applied ? pool_.copies_applied(ticket_) : pool_.copies_aborted(ticket_); });
  open_ = false;
}

}  // namespace blockmgr::testing
