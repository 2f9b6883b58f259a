// Retention calls of an engine with groups of layers: retain, pin, touch and forget.
#include <algorithm>

#include "group_play.h"

namespace blockmgr::testing {

Prompt GroupPlay::some_prompt(const SeqPtr& seq) {
  asked_ = seq->tokens;
  if (!texts_.empty() && bytes_.one_in(2))
    asked_ = texts_[static_cast<std::size_t>(bytes_.below(static_cast<int>(texts_.size())))];
  const Config& config = setup_.core;
  const auto most = static_cast<std::size_t>(config.row_width * config.block_size);
  asked_.resize(std::min(asked_.size(), most));
  return {
      asked_.data(), static_cast<std::int64_t>(asked_.size()), World::text_of(seq->name), {}, 0};
}

// Calls by block id, and touches.
void GroupPlay::handle_blocks(const SeqPtr& seq) {
  const int fails_in = std::exchange(digester_->fails_in, 0);
  const Nodes& nodes = core_.nodes();
  const std::int64_t block = bytes_.between(1, setup_.core.num_blocks - 1);
  const NodeId n = nodes.owner(block);
  const bool known = n >= 0 && (nodes.uses(n).ref_count || nodes[n].keyed());
  const int what = bytes_.below(8);
  if (what < 2) {
    const Prompt prompt = some_prompt(seq);
    done(kTouch, [&] { caller_.touch(prompt); });
  } else if (what < 4 && known) {
    if (!done(kAcquire, [&] { caller_.acquire(&block, 1); })) fail("acquire was refused");
    holds_.push_back(block);
  } else if (what < 5 && known) {
    done(kTouchBlocks, [&] { caller_.touch_blocks(&block, 1); });
  } else if (what < 7 && !holds_.empty()) {
    const auto at = static_cast<std::size_t>(bytes_.below(static_cast<int>(holds_.size())));
    const std::int64_t held = holds_[at];
    EXPECT(nodes.owner(held) >= 0, "a held block is free");
    done(kRelease, [&] { caller_.release(&held, 1); });
    holds_.erase(holds_.begin() + static_cast<std::ptrdiff_t>(at));
  } else if (known) {
    forget_block(block);
  } else if (what == 7 && calls_ % 2) {  // not drawn, so that other draws do not change
    retire(seq->name);
  } else if (what == 7) {
    done(kReset, [&] { caller_.reset_prefix_cache(false); });
  }
  digester_->fails_in = fails_in;
}

// After forget, no prompt finds the block or its descendants; its holders cache nothing more.
void GroupPlay::forget_block(std::int64_t block) {
  std::vector<SeqPtr> holders;
  for (const SeqPtr& seq : seqs_) {
    if (seq->preempted) continue;
    for (const auto& table : tables(*seq))
      if (std::count(table.begin(), table.end(), block)) {
        holders.push_back(seq);
        break;
      }
  }
  const Nodes& nodes = core_.nodes();
  std::vector<std::pair<NodeId, std::uint32_t>> below;  // the block and its descendants
  const NodeId owner = nodes.owner(block);
  if (nodes[owner].keyed())
    below.emplace_back(Pool::is_part(nodes[owner]) ? core_.groups()->node_of(owner) : owner, 0);
  for (std::size_t i = 0; i < below.size(); ++i) {
    below[i].second = nodes[below[i].first].generation;
    for (NodeId b = nodes[below[i].first].first_child; b >= 0; b = nodes[b].next_sibling)
      below.emplace_back(b, 0);
  }
  if (!done(kForget, [&] { caller_.forget(&block, 1); })) return;
  const NodeId n = nodes.owner(block);
  EXPECT(n < 0 || !nodes[n].keyed(), "a forgotten block can be found");
  for (const auto& [node, generation] : below)
    EXPECT(nodes[node].generation != generation, "a block after a forgotten one can be found");
  for (const SeqPtr& seq : holders)
    EXPECT(view(*seq).outdated, "a sequence caches blocks after a forgotten one");
}

// No prompt finds what was cached in the namespace, and its sequences cache nothing more.
void GroupPlay::retire(int name) {
  const std::string_view text = World::text_of(name);
  if (!done(kRetire, [&] { caller_.retire(text); })) return;
  const std::uint32_t root = core_.index().find_root(text);
  EXPECT(root == kUnknownId || core_.index().first_child(root_node(root)) < 0,
         "a retired block can be found");
  for (const SeqPtr& seq : seqs_)
    EXPECT(seq->preempted || seq->name != name || view(*seq).outdated,
           "a sequence caches blocks in a namespace that was retired around it");
}

void GroupPlay::release_holds() {
  for (const std::int64_t held : holds_) done(kRelease, [&] { caller_.release(&held, 1); });
  holds_.clear();
}

void GroupPlay::say(const SeqPtr& seq) {
  const Prompt prompt = some_prompt(seq);
  const int fails_in = std::exchange(digester_->fails_in, 0);
  const int what = bytes_.below(8);
  if (setup_.core.max_sessions && bytes_.one_in(3)) {
    tell_of_session(seq);
  } else if (what < 3) {
    retain(seq);
  } else if (what < 5) {
    retain_prefix(prompt);
  } else if (what < 6) {
    pin(prompt);
  } else if (what < 7 && !pins_.empty()) {
    const auto at = static_cast<std::size_t>(bytes_.below(static_cast<int>(pins_.size())));
    done(kUnpin, [&] { caller_.unpin(pins_[at]); });
    pins_.erase(pins_.begin() + static_cast<std::ptrdiff_t>(at));
  } else {
    const double now = core_.time() + bytes_.below(3);
    done(kSetTime, [&] { caller_.set_time(now); });
    expire_sessions();
  }
  digester_->fails_in = fails_in;
}

// The end of a retained range becomes a boundary, if a forward stops there or has passed it.
void GroupPlay::retain(const SeqPtr& seq) {
  const auto length = static_cast<std::int64_t>(seq->tokens.size());
  const std::int64_t most = std::min(length, num_slots(*seq));
  if (!most) return;
  const std::int64_t stop = bytes_.between(1, static_cast<int>(most));
  const std::int64_t start = bytes_.one_in(2) ? 0 : bytes_.below(static_cast<int>(stop));
  const int level = bytes_.between(kNoLevel, kHigh);
  const double ttl = bytes_.one_in(3) ? 2 : kForever;
  std::int64_t count = 0;
  if (!done(kRetain, [&] { count = caller_.retain(seq->handle, start, stop, level, ttl); }))
    fail("retain was refused");
  const std::int64_t size = setup_.core.block_size;
  EXPECT(count == (stop + size - 1) / size - start / size, "retain miscounts its blocks");
}

void GroupPlay::retain_prefix(const Prompt& prompt) {
  const int level = bytes_.between(kNoLevel, kHigh);
  const double ttl = bytes_.one_in(3) ? 2 : kForever;
  std::int64_t count = 0;
  if (!done(kRetainPrefix, [&] { count = caller_.retain_prefix(prompt, level, ttl); }))
    fail("retain_prefix was refused");
  std::vector<Token> next(prompt.tokens, prompt.tokens + prompt.num_tokens);
  next.push_back(0);
  for (int name = 0; name < kNumNames; ++name) {
    if (World::text_of(name) != prompt.name) continue;
    EXPECT(count == served_by_scan(next, name, 0), "the retained prefix is not the served one");
  }
}

void GroupPlay::pin(const Prompt& prompt) {
  std::int64_t pin = 0;
  if (done(kPin, [&] { pin = caller_.pin(prompt); })) pins_.push_back(pin);
}

std::map<NodeId, GroupPlay::Waiting> GroupPlay::idle_boundaries() const {
  std::map<NodeId, Waiting> found;
  const Nodes& nodes = core_.nodes();
  const GroupPlaces& groups = *core_.groups();
  for (NodeId n = 0; n < nodes.count; ++n) {
    if (nodes[n].key_tokens != setup_.core.block_size || Pool::is_part(nodes[n])) continue;
    if (!nodes.idle(n) || !groups.is_boundary(n) || groups.is_passed(n)) continue;
    const Level level = core_.level(n);
    bool is_own_level = true;
    for (NodeId b = nodes[n].first_child; b >= 0; b = nodes[b].next_sibling)
      is_own_level = is_own_level && core_.level(b) < level;
    const std::uint8_t* digest = core_.index().digest_of(n);
    found[n] = {nodes[n].generation, core_.pool().partition_of(n), level, is_own_level,
                std::string(digest, digest + nodes.digest_size)};
  }
  return found;
}

bool GroupPlay::is_findable(const std::string& digest) const {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(digest.data());
  return core_.index().with_digest(bytes, [](NodeId) { return true; }) >= 0;
}

// No boundary at the end of a full block is evicted while an idle one of a lower level is left. A
// boundary from which a prompt continues may disappear, because the prompt takes over its state. A
// boundary with the level of a child is evicted with that child, which may not count here: a tail,
// a node between two boundaries, or a passed one.
void GroupPlay::check_order(const std::map<NodeId, Waiting>& before) const {
  if (before.empty()) return;
  const auto after = idle_boundaries();
  for (const auto& [n, gone] : before) {
    const auto now = after.find(n);
    if (now != after.end() && now->second.generation == gone.generation) continue;
    if (core_.nodes()[n].generation == gone.generation) continue;  // used, or passed
    if (is_findable(gone.digest)) continue;                        // its key passed to a twin
    if (!gone.is_own_level) continue;
    for (const auto& [other, left] : before) {
      const auto still = after.find(other);
      const bool stays = still != after.end() && still->second.generation == left.generation;
      EXPECT(!stays || left.partition != gone.partition || left.level >= gone.level,
             "a boundary of a higher level was evicted first");
    }
  }
}

}  // namespace blockmgr::testing
