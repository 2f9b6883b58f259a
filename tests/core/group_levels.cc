// What an engine with groups of layers says of blocks that will be used again, or will not.
#include <algorithm>

#include "group_play.h"

namespace blockmgr::testing {

void GroupPlay::say(const SeqPtr& seq) {
  std::vector<Token> asked = seq->tokens;
  if (!texts_.empty() && bytes_.one_in(2))
    asked = texts_[static_cast<std::size_t>(bytes_.below(static_cast<int>(texts_.size())))];
  const Config& config = setup_.core;
  const auto most = static_cast<std::size_t>(config.row_width * config.block_size);
  asked.resize(std::min(asked.size(), most));
  const Prompt prompt{asked.data(), static_cast<std::int64_t>(asked.size()),
                      World::text_of(seq->name), {}, 0};
  const int fails_in = std::exchange(digester_->fails_in, 0);
  const int what = bytes_.below(8);
  if (what < 3) {
    retain(seq);
  } else if (what < 5) {
    retain_prefix(prompt);
  } else if (what < 6) {
    pin(prompt);
  } else if (what < 7 && !pins_.empty()) {
    const auto at = static_cast<std::size_t>(bytes_.below(static_cast<int>(pins_.size())));
    done(kUnpin, [&] { core_.unpin(pins_[at]); });
    pins_.erase(pins_.begin() + static_cast<std::ptrdiff_t>(at));
  } else {
    done(kSetTime, [&] { core_.set_time(core_.time() + bytes_.below(3)); });
  }
  digester_->fails_in = fails_in;
}

// What is kept longer has a boundary at its end, if a forward stops there or has passed it.
void GroupPlay::retain(const SeqPtr& seq) {
  const auto length = static_cast<std::int64_t>(seq->tokens.size());
  const std::int64_t most = std::min(length, num_slots(*seq));
  if (!most) return;
  const std::int64_t stop = bytes_.between(1, static_cast<int>(most));
  const std::int64_t start = bytes_.one_in(2) ? 0 : bytes_.below(static_cast<int>(stop));
  const int level = bytes_.between(kNoLevel, kHigh);
  const double ttl = bytes_.one_in(3) ? 2 : kForever;
  std::int64_t count = 0;
  if (!done(kRetain, [&] { count = core_.retain(seq->handle, start, stop, level, ttl); }))
    fail("retain was refused");
  const std::int64_t size = setup_.core.block_size;
  EXPECT(count == (stop + size - 1) / size - start / size, "retain miscounts its blocks");
}

void GroupPlay::retain_prefix(const Prompt& prompt) {
  const int level = bytes_.between(kNoLevel, kHigh);
  const double ttl = bytes_.one_in(3) ? 2 : kForever;
  std::int64_t count = 0;
  if (!done(kRetainPrefix, [&] { count = core_.retain_prefix(prompt, level, ttl); }))
    fail("retain_prefix was refused");
  std::vector<Token> next(prompt.tokens, prompt.tokens + prompt.num_tokens);
  next.push_back(0);
  for (int name = 0; name < kNumNames; ++name) {
    if (World::text_of(name) != prompt.name) continue;
    EXPECT(count == served_by_scan(next, name, 0), "another prefix is retained than is served");
  }
}

void GroupPlay::pin(const Prompt& prompt) {
  std::int64_t pin = 0;
  if (done(kPin, [&] { pin = core_.pin(prompt); })) pins_.push_back(pin);
}

std::map<NodeId, GroupPlay::Waiting> GroupPlay::idle_boundaries() const {
  std::map<NodeId, Waiting> found;
  const Nodes& nodes = core_.nodes();
  const GroupPlaces& groups = *core_.groups();
  for (NodeId n = 0; n < nodes.count; ++n) {
    if (nodes[n].key_tokens != setup_.core.block_size || Pool::is_part(nodes[n])) continue;
    if (!nodes.idle(n) || !groups.is_boundary(n) || groups.is_passed(n)) continue;
    found[n] = {nodes[n].generation, core_.pool().partition_of(n), core_.level(n)};
  }
  return found;
}

// No whole block's boundary goes as long as an idle one of a lower level is left. One that a prompt
// continues from may end, for its state is taken over.
void GroupPlay::check_order(const std::map<NodeId, Waiting>& before) const {
  if (before.empty()) return;
  const auto after = idle_boundaries();
  for (const auto& [n, gone] : before) {
    const auto now = after.find(n);
    if (now != after.end() && now->second.generation == gone.generation) continue;
    if (core_.nodes()[n].generation == gone.generation) continue;  // used, or passed
    for (const auto& [other, left] : before) {
      const auto still = after.find(other);
      const bool stays = still != after.end() && still->second.generation == left.generation;
      EXPECT(!stays || left.partition != gone.partition || left.level >= gone.level,
             "a boundary of a higher level went first");
    }
  }
}

}  // namespace blockmgr::testing
