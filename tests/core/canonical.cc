#include "canonical.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

namespace blockmgr::testing {

namespace {

// One way of naming things: sequences in a given order, token values swapped or not, blocks and
// prefixes in the order in which they are first met.
class Naming {
 public:
  Naming(const World& world, std::vector<std::size_t> order, Token swap)
      : world_(world),
        core_(world.core()),
        order_(std::move(order)),
        swap_(swap),
        labels_(static_cast<std::size_t>(core_.blocks().count), -1) {}

  std::string describe() {
    for (const std::size_t index : order_) put_sequence(*world_.entries()[index]);
    put_list(core_.pool().idle_list());
    put_copies();
    put_steps();
    for (int name = 0; name < 2; ++name) put_root(name);
    // Whatever is met while a block is described is described in its turn.
    for (std::size_t i = 0; i < met_.size(); ++i) put_block(met_[i]);
    put(core_.pool().num_free());
    return out_;
  }

 private:
  void put(std::int64_t value) { out_ += static_cast<char>(value + 1); }
  void put_token(Token token) { put(token ^ swap_); }

  void put_block_name(BlockId b) {
    if (b < 0) return put(-1);
    int& label = labels_[static_cast<std::size_t>(b)];
    if (label < 0) {
      label = static_cast<int>(met_.size());
      met_.push_back(b);
    }
    put(label);
  }

  void put_prefix(Prefix prefix) {
    put(prefixes_.try_emplace(prefix, static_cast<int>(prefixes_.size())).first->second);
  }

  void put_sequence(const Entry& entry) {
    const Sequence& s = core_.view(entry.handle);
    const std::int32_t* table = core_.table_at(Sequences::row_of(entry.handle));
    put(entry.running);
    put(entry.name);
    put(s.num_tokens);
    for (const Token token : entry.tokens) put_token(token);
    for (const Prefix prefix : entry.prefixes) put_prefix(prefix);
    put(s.num_computed);
    put(s.num_chained);
    put(s.num_blocks);
    for (int i = 0; i < s.num_blocks; ++i) put_block_name(table[i]);
    put(entry.start);
    put(world_.written_until(entry));
    for (std::size_t at = 0; at < entry.written.size(); ++at)
      put(at / 2 < static_cast<std::size_t>(s.num_blocks) &&
          entry.written[at] == table[at / 2] * 2 + static_cast<std::int64_t>(at % 2));
  }

  void put_list(const BlockList& list) {
    put(list.size());
    for (BlockId b = list.front(); b != list.end(); b = list.after(b)) put_block_name(b);
  }

  void put_copy(const Copy& copy) {
    put_block_name(copy.source);
    put_block_name(copy.destination);
    put(copy.num_tokens);
  }

  void put_copies() {
    put(core_.copies().num_pending());
    core_.copies().each_pending([&](const Copy& copy) { put_copy(copy); });
    put(core_.copies().in_flight());
    for (const Copy& copy : core_.copies().flight()) put_copy(copy);
  }

  void put_steps() {
    for (const LaunchPtr& step : world_.steps()) {
      put(step->ran);
      put(step->finished);
      put(step == world_.open());
      for (const Copy& copy : step->copies) put_copy(copy);
      // Parts by the names of their sequences; those of sequences that are gone at the end.
      for (const std::size_t index : order_)
        for (const Launch::Part& part : step->parts)
          if (part.entry == world_.entries()[index]) put_part(*step, part);
      for (const Launch::Part& part : step->parts)
        if (!part.entry->alive) put_part(*step, part);
    }
  }

  void put_part(const Launch& step, const Launch::Part& part) {
    const Work& work = step.work[part.work];
    put(part.entry->alive && part.version == part.entry->version);
    put(work.start);
    put(static_cast<std::int64_t>(work.slots.size()));
    for (const std::int64_t slot : work.slots) {
      put_block_name(static_cast<BlockId>(slot / 2));
      put(slot % 2);
    }
    for (const Prefix prefix : work.prefixes) put_prefix(prefix);
  }

  void put_children(BlockId child) {
    for (; child >= 0; child = core_.blocks()[child].next_sibling) put_block_name(child);
    put(-1);
  }

  void put_root(int name) {
    const std::uint32_t root = core_.index().find_root(name ? "a" : "");
    put(root != kUnknownId);
    if (root != kUnknownId) put_children(core_.index().first_child(root_node(root)));
  }

  void put_block(BlockId b) {
    const Block& block = core_.blocks()[b];
    put(block.ref_count);
    put(block.pins);
    put(block.key_tokens);
    put(block.in_flight);
    for (int i = 0; i < block.key_tokens; ++i) put_token(core_.blocks().tokens(b)[i]);
    if (is_root(block.parent)) {
      put(world_.name_of_root(root_index(block.parent)));
    } else {
      put_block_name(block.parent);
    }
    put_children(block.first_child);
  }

  const World& world_;
  const Sequences& core_;
  std::vector<std::size_t> order_;
  Token swap_;
  std::vector<int> labels_;
  std::vector<BlockId> met_;
  std::unordered_map<Prefix, int> prefixes_;
  std::string out_;
};

// What can be said of a sequence without naming anything else: most orders differ in it.
std::string alone(const World& world, const Entry& entry, Token swap) {
  const Sequence& s = world.core().view(entry.handle);
  std::string out = {static_cast<char>(entry.running), static_cast<char>(entry.name),
                     static_cast<char>(s.num_computed), static_cast<char>(s.num_blocks)};
  for (const Token token : entry.tokens) out += static_cast<char>(token ^ swap);
  return out;
}

}  // namespace

std::string canonical(const World& world) {
  const std::size_t count = world.entries().size();
  std::string least;
  for (const Token swap : {Token{0}, Token{1}}) {
    std::vector<std::string> keys;
    for (const EntryPtr& entry : world.entries()) keys.push_back(alone(world, *entry, swap));
    std::vector<std::size_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    do {
      const auto before = [&](std::size_t a, std::size_t b) { return keys[a] < keys[b]; };
      if (!std::is_sorted(order.begin(), order.end(), before)) continue;
      std::string named = Naming(world, order, swap).describe();
      if (least.empty() || named < least) least = std::move(named);
    } while (std::next_permutation(order.begin(), order.end()));
  }
  return least;
}

}  // namespace blockmgr::testing
