// Retention calls on a pool, and the expected levels of its blocks.
#include <algorithm>
#include <cmath>
#include <utility>

#include "pool_play.h"

namespace blockmgr::testing {

// Must acquire the blocks that find returns, and count as a request.
void PoolPlay::acquire_prefix() {
  std::vector<Token> tokens(static_cast<std::size_t>(bytes_.below(4 * size_ + 1)));
  for (Token& t : tokens) t = static_cast<Token>(bytes_.below(2));
  const std::string& name = some_name();
  const ChainKey key{tokens.data(), static_cast<std::int64_t>(tokens.size()), -1, name, {}};
  const int fails_in = digester_ ? std::exchange(digester_->fails_in, 0) : 0;
  const std::vector<std::int32_t> due = pool_.find(key);
  if (digester_) digester_->fails_in = fails_in;
  std::vector<std::int32_t> out(due.size() + 1);
  const int own = share_of(name);
  const auto missed = static_cast<std::int64_t>(due.size()) + 1;
  bool done = true;
  if (call(
          "pool acquire_prefix", bit(kDone),
          [&] { done = pool_.acquire_prefix(key, key.num_tokens, missed, out.data()); },
          own) == kDone)
    EXPECT(!done, "acquire_prefix accepted a wrong number of blocks");
  const std::int64_t looked_up =
      pool_.pool().past(own) ? pool_.pool().past(own)->query_tokens() : 0;
  const auto run = [&] {
    done = pool_.acquire_prefix(key, key.num_tokens + 1, static_cast<std::int64_t>(due.size()),
                                out.data());
  };
  if (call("pool acquire_prefix", bit(kDone), run, own) != kDone) return;
  EXPECT(done, "acquire did not take a block that find finds");
  if (pool_.pool().past(own))
    EXPECT(pool_.pool().past(own)->query_tokens() == looked_up + key.num_tokens + 1,
           "a request is not counted as looked up");
  for (std::size_t i = 0; i < due.size(); ++i) {
    EXPECT(out[i] == due[i], "acquire takes another block than find finds");
    ++held_[out[i]];
  }
}

void PoolPlay::retain() {
  const Ids ids = some(3);
  Outcome due = config_.retention ? kDone : kBadValue;
  for (const std::int64_t id : ids) {
    if (due != kDone) break;
    due = !in_range(id) ? kBadValue : known({id}) ? kDone : kWrongBlock;
  }
  const int level = bytes_.between(kNoLevel, kHigh);
  const double ttl = bytes_.one_in(2) ? kForever : bytes_.between(1, 4);
  const auto count = static_cast<std::int64_t>(ids.size());
  const auto run = [&] { pool_.retain(ids.data(), count, level, ttl); };
  if (call("pool retain", bit(due), run) != kDone) return;
  for (const std::int64_t id : ids) {
    said_.erase(id);
    if (level != kNoLevel) said_[id] = {pool_.generation(id), level, time_ + ttl};
  }
}

// Two blocks with equal content become one: the higher retention wins; of two equal ones, the
// longer.
void PoolPlay::merge(std::int64_t own, std::int64_t cached) {
  const auto given = said_.find(own);
  if (given == said_.end()) return;
  const Said said = given->second;
  const auto kept = said_.find(cached);
  const auto worth = [](const Said& s) { return std::pair(s.level, s.until); };
  if (kept == said_.end() || worth(kept->second) < worth(said))
    said_[cached] = {pool_.generation(cached), said.level, said.until};
}

std::vector<NodeId> PoolPlay::chain_of(std::int64_t id) const {
  std::vector<NodeId> chain;
  for (NodeId b = pool_.nodes().owner(id); b >= 0; b = pool_.nodes()[b].parent) chain.push_back(b);
  return chain;
}

std::int64_t PoolPlay::pinned_in(int number) const {
  std::vector<NodeId> pinned;
  for (const auto& [pin, made] : pins_)
    for (const auto& [b, generation] : made.chain)
      if (pool_.nodes()[b].generation == generation && pool_.nodes()[b].keyed() &&
          made.share == number)
        pinned.push_back(b);
  std::sort(pinned.begin(), pinned.end());
  return std::unique(pinned.begin(), pinned.end()) - pinned.begin();
}

void PoolPlay::pin() {
  const std::int64_t id = bytes_.between(static_cast<int>(first_), num_blocks_ - 1);
  const int own = share_of_block(id);
  const bool is_cached = contents_.count(id) == 1;
  const std::vector<NodeId> chain = is_cached ? chain_of(id) : std::vector<NodeId>();
  const int budget = Store::share_of_pins(config_, pool_.pool().partition(own).capacity);
  const auto fresh = std::count_if(chain.begin(), chain.end(),
                                   [&](NodeId b) { return pool_.level(b) != kPinned; });
  const auto pins = std::count_if(pins_.begin(), pins_.end(),
                                  [&](const auto& pin) { return pin.second.share == own; });
  const Outcome due = !config_.retention                                  ? kBadValue
                      : !is_cached                                        ? kWrongBlock
                      : fresh > budget - pinned_in(own) || pins >= budget ? kPinRefused
                                                                          : kDone;
  std::int64_t number = 0;
  if (call("pool pin", bit(due), [&] { number = pool_.pin(id); }, own) != kDone) return;
  EXPECT(pins_.count(number) == 0, "two pins have one number");
  Pinned& pinned = pins_[number];
  pinned.share = own;
  for (const NodeId b : chain) pinned.chain.emplace_back(b, pool_.nodes()[b].generation);
  EXPECT(pool_.view_pin(number).num_blocks == static_cast<std::int32_t>(chain.size()),
         "a pin covers another number of blocks");
}

void PoolPlay::unpin() {
  std::int64_t number = bytes_.below(4) - 1;
  const bool any = !pins_.empty() && bytes_.one_in(2);
  if (any) number = pins_.begin()->first;
  const Outcome due = !config_.retention ? kBadValue : any ? kDone : kUnknownPin;
  if (call("pool unpin", bit(due), [&] { pool_.unpin(number); }) == kDone) pins_.erase(number);
}

void PoolPlay::set_time() {
  const double seconds = time_ + bytes_.between(-1, 3);
  const Outcome due = config_.retention && seconds >= time_ ? kDone : kBadValue;
  if (call("pool set_time", bit(due), [&] { pool_.set_time(seconds); }) != kDone) return;
  time_ = seconds;
  for (auto at = said_.begin(); at != said_.end();)
    at = at->second.until <= time_ ? said_.erase(at) : std::next(at);
}

// A block has the highest level given to it or to a descendant.
void PoolPlay::check_levels() {
  for (auto at = said_.begin(); at != said_.end();)
    at = pool_.generation(at->first) == at->second.generation ? std::next(at) : said_.erase(at);
  std::map<NodeId, int> due;
  const auto raise = [&](NodeId b, int level) {
    for (NodeId up = b; up >= 0; up = pool_.nodes()[up].parent) {
      const auto [at, fresh] = due.try_emplace(up, level);
      if (!fresh) at->second = std::max(at->second, level);
    }
  };
  for (const auto& [id, content] : contents_) {
    const auto said = said_.find(id);
    raise(pool_.nodes().owner(id),
          said == said_.end() ? static_cast<int>(kNormal) : said->second.level);
  }
  for (const auto& [number, pinned] : pins_) {
    std::int32_t num_cached = 0;
    for (const auto& [b, generation] : pinned.chain) {
      if (!pool_.nodes()[b].keyed() || pool_.nodes()[b].generation != generation) continue;
      ++num_cached;
      raise(b, kPinned);
    }
    EXPECT(pool_.view_pin(number).num_cached == num_cached, "a pin miscounts what is cached");
  }
  for (const auto& [id, content] : contents_)
    EXPECT(pool_.level(pool_.nodes().owner(id)) == due[pool_.nodes().owner(id)],
           "a block stands at another level than it was put at");
}

}  // namespace blockmgr::testing
