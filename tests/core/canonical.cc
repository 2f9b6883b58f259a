#include "canonical.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace blockmgr::testing {

namespace {

// Whether the two token values and the two namespaces are swapped.
struct Swap {
  bool tokens;
  bool names;
};

// Sequences sorted by a description that mentions no other names; ties in any order.
struct Ranked {
  std::uint64_t key;
  std::size_t index;
};
bool by_key(const Ranked& a, const Ranked& b) { return a.key < b.key; }
bool by_both(const Ranked& a, const Ranked& b) {
  return a.key != b.key ? a.key < b.key : a.index < b.index;
}
using Ranking = std::vector<Ranked>;

// One assignment of names: sequences in a given order, token values and namespaces swapped or not,
// blocks in the order in which they are first met.
class Naming {
 public:
  Naming(const World& world, const Names& names, Swap swap, const Ranking& order)
      : world_(world),
        core_(world.core()),
        names_(names),
        swap_(swap),
        order_(order),
        labels_(static_cast<std::size_t>(core_.nodes().num_blocks), -1) {
    out_.reserve(512);
  }

  std::string describe() {
    for (const Ranked& ranked : order_) put_sequence(*world_.entries()[ranked.index]);
    put_list(core_.pool().idle_list());
    if (has_orphans() || world_.resizes())
      core_.pool().free_blocks().each([this](BlockId b) { put_block_name(number(b)); });
    put_copies();
    put_steps();
    for (std::size_t i = 0; i < 2; ++i) put_root(names_[i ^ std::size_t{swap_.names}]);
    // Describing a block may add further blocks to met_, which are then described too.
    for (std::size_t i = 0; i < met_.size(); ++i) put_block(met_[i]);
    put_orphans();
    put_ids();
    put(core_.pool().num_free());
    if (world_.resizes()) {  // the last ones leave first
      put(core_.pool().limit());
      for (const std::int32_t b : met_) put(b);
    }
    return out_;
  }

 private:
  void put(std::int64_t value) { out_ += static_cast<char>(value + 1); }
  void put_token(Token token) { put(token ^ Token{swap_.tokens}); }
  void put_name(int name) { put((name == names_[1]) ^ swap_.names); }

  void put_node_name(NodeId n) { put_block_name(core_.nodes().name(n)); }

  void put_block_name(std::int32_t b) {
    if (b < 0) return put(-1);
    int& label = labels_[static_cast<std::size_t>(b)];
    if (label < 0) {
      label = static_cast<int>(met_.size());
      met_.push_back(b);
    }
    put(label);
  }

  void put_sequence(const Entry& entry) {
    const Sequence& s = core_.view(entry.handle);
    const std::vector<std::int32_t> table = core_.block_ids(entry.handle, 0);
    put(entry.running);
    put_name(entry.name);
    put(s.num_tokens);
    for (const Token token : entry.tokens) put_token(token);
    put(s.num_computed);
    put(s.num_chained);
    put(s.outdated);
    put(s.num_blocks);
    for (const std::int32_t b : table) put_block_name(b);
    put(entry.start);
    put(world_.written_until(entry));
    for (std::size_t at = 0; at < entry.written.size(); ++at)
      put(at / 2 < static_cast<std::size_t>(s.num_blocks) &&
          entry.written[at] == std::int64_t{table[at / 2]} * 2 + static_cast<std::int64_t>(at % 2));
  }

  void put_list(const IdleSegments& list) {
    put(list.size());
    for (NodeId n = list.front(); n != list.end(); n = list.after(n)) put_node_name(n);
  }

  void put_copy(const BlockCopy& copy) {
    put_block_name(copy.source);
    put_block_name(copy.destination);
    put(copy.num_tokens);
  }

  void put_copy(const Copy& copy) {
    put_copy(BlockCopy{core_.nodes().name(copy.source), core_.nodes().name(copy.destination),
                       copy.num_tokens});
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
      for (const BlockCopy& copy : step->copies) put_copy(copy);
      for (const Ranked& ranked : order_) {
        const Launch::Part* part = find_part(*step, world_.entries()[ranked.index]);
        put(part != nullptr);
        if (part) put_part(*step, *part);
      }
    }
  }

  static const Launch::Part* find_part(const Launch& step, const EntryPtr& entry) {
    for (const Launch::Part& part : step.parts)
      if (part.entry == entry) return &part;
    return nullptr;
  }

  void put_part(const Launch& step, const Launch::Part& part) {
    const Work& work = step.work[part.work];
    put(part.entry->alive && part.version == part.entry->version);
    put(work.start);
    put(static_cast<std::int64_t>(work.slots.size()));
    for (const std::int64_t slot : work.slots) {
      put_block_name(static_cast<std::int32_t>(slot / 2));
      put(slot % 2);
    }
  }

  // A step may still write to blocks of freed sequences. Only then does the order of the free
  // blocks matter: it decides which sequence gets those blocks.
  bool has_orphans() const {
    for (const LaunchPtr& step : world_.steps())
      for (const Launch::Part& part : step->parts)
        if (!part.entry->alive) return true;
    return false;
  }

  // The pending writes of steps for freed sequences, sorted.
  void put_orphans() {
    std::vector<std::string> orphans;
    for (const LaunchPtr& step : world_.steps())
      for (const Launch::Part& part : step->parts) {
        if (part.entry->alive) continue;
        const Work& work = step->work[part.work];
        std::string& orphan = orphans.emplace_back(1, static_cast<char>(work.start));
        for (const std::int64_t slot : work.slots) {
          orphan += static_cast<char>(labels_[static_cast<std::size_t>(slot / 2)] + 1);
          orphan += static_cast<char>(slot % 2);
        }
      }
    std::sort(orphans.begin(), orphans.end());
    for (const std::string& orphan : orphans) (out_ += orphan) += '|';
  }

  // The order of ids decides which id is allocated next, and where a match continues without
  // reading a record.
  void put_ids() {
    for (NodeId n = 0; n < core_.nodes().count; ++n) put_node_name(n);
  }

  void put_children(NodeId child) {
    for (; child >= 0; child = core_.nodes()[child].next_sibling) put_node_name(child);
    put(-1);
  }

  // The core forgets a namespace without sequences and blocks, so the rest of the description shows
  // which ones it knows.
  void put_root(int name) {
    const std::uint32_t root = world_.root_of_name(name);
    put_children(root == kUnknownId ? kNoNode : core_.index().first_child(root_node(root)));
  }

  // A free block appears here only if a step still writes to it.
  void put_block(std::int32_t b) {
    const NodeId n = core_.nodes().owner(b);
    if (n < 0) return put(-1);
    const Node& record = core_.nodes()[n];
    put(core_.nodes().uses(n).ref_count);
    put(core_.nodes().uses(n).pins);
    put(record.key_tokens);
    put(record.in_flight);
    for (int i = 0; i < record.key_tokens; ++i) put_token(core_.nodes().tokens(n)[i]);
    if (is_root(record.parent)) {
      put_name(world_.name_of_root(root_index(record.parent)));
    } else {
      put_node_name(record.parent);
    }
    put_children(record.first_child);
    core_.pool().each_twin(n, [this](NodeId twin) { put_node_name(twin); });
    put(-1);
    put(core_.index().goes_on(n));
  }

  const World& world_;
  const Sequences& core_;
  const Names& names_;
  const Swap swap_;
  const Ranking& order_;
  std::vector<int> labels_;
  std::vector<std::int32_t> met_;
  std::string out_;
};

// The key is only for sorting: two different sequences may have the same key.
std::uint64_t key_of(const World& world, const Names& names, Swap swap, const Entry& entry) {
  const Sequence& s = world.core().view(entry.handle);
  std::uint64_t key = 1;
  for (const std::int64_t number :
       {std::int64_t{entry.running}, std::int64_t{(entry.name == names[1]) ^ swap.names},
        s.num_tokens, s.num_computed, std::int64_t{s.num_chained}, std::int64_t{s.num_blocks},
        entry.start})
    key = key << 4 | static_cast<std::uint64_t>(number);
  for (const Token token : entry.tokens) key = key << 1 | (token ^ Token{swap.tokens});
  return key;
}

Ranking rank(const World& world, const Names& names, Swap swap) {
  Ranking order;
  for (std::size_t i = 0; i < world.entries().size(); ++i)
    order.push_back({key_of(world, names, swap, *world.entries()[i]), i});
  std::sort(order.begin(), order.end(), by_both);
  return order;
}

// The next permutation within groups of equal keys, like std::next_permutation.
bool next_among_equals(Ranking& order) {
  while (std::next_permutation(order.begin(), order.end(), by_both))
    if (std::is_sorted(order.begin(), order.end(), by_key)) return true;
  return false;
}

}  // namespace

std::string canonical(const World& world, const Names& names) {
  // The empty name differs from all others: the core does not count its sequences and blocks.
  const bool alike = names[0] && names[1];
  std::vector<std::pair<Swap, Ranking>> ways;
  for (const bool swap_names : {false, true})
    for (const bool swap_tokens : {false, true})
      if (alike || !swap_names)
        ways.emplace_back(Swap{swap_tokens, swap_names},
                          rank(world, names, {swap_tokens, swap_names}));
  // Only the namings with the smallest keys, because keys do not depend on names.
  const auto by_keys = [](const auto& a, const auto& b) {
    return std::lexicographical_compare(a.second.begin(), a.second.end(), b.second.begin(),
                                        b.second.end(), by_key);
  };
  const auto least_way = *std::min_element(ways.begin(), ways.end(), by_keys);
  std::string least;
  for (auto& way : ways) {
    if (by_keys(least_way, way)) continue;
    do {
      std::string named = Naming(world, names, way.first, way.second).describe();
      if (least.empty() || named < least) least = std::move(named);
    } while (next_among_equals(way.second));
  }
  return least;
}

}  // namespace blockmgr::testing
