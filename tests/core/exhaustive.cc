// Runs every sequence of operations on a small pool, breadth first, up to a depth.
//
// Three blocks of two tokens, two token values, two namespaces, three sequences; or, with groups of
// layers, the boards of group_board.h. States that differ only in names count once. Every operation
// is tried in every state and checked in full: its outcome, that a refused call changed nothing,
// the books, and the memory of everything computed or cached.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "canonical.h"
#include "group_board.h"
#include "group_names.h"
#include "operations.h"
#include "search.h"

namespace {

using namespace blockmgr::testing;

// A manager without groups of layers.
struct OneGroup {
  using Board = World;
  using Operation = blockmgr::testing::Operation;

  std::string wanted = "all";
  Names names = {1, 2};
  Settings settings;

  OneGroup() {
    settings.core.num_blocks = settings.core.row_width = 3;
    settings.core.block_size = 2;
    settings.core.max_seqs = kMostSequences;
    settings.core.min_partial_tokens = 1;
    settings.check_every = INT32_MAX;  // the walker checks the state after an operation
  }
  std::unique_ptr<World> make(Counts* counts) const {
    return std::make_unique<World>(settings, counts);
  }
  std::vector<Operation> operations() const { return make_operations(wanted, names); }
  std::string describe(const World& world) const { return canonical(world, names); }
  static std::size_t num_open(const World& world) { return world.steps().size(); }
};

// A manager with groups of layers.
struct Groups {
  using Board = GroupBoard;
  using Operation = GroupOperation;

  GroupRules rules;

  std::unique_ptr<GroupBoard> make(Counts* counts) const {
    return std::make_unique<GroupBoard>(rules, counts);
  }
  std::vector<Operation> operations() const { return group_operations(rules); }
  std::string describe(const GroupBoard& board) const { return GroupNames(board).describe(); }
  static std::size_t num_open(const GroupBoard& board) { return board.num_open(); }
};

struct Options {
  Extent extent;
  OneGroup one;
  Groups groups;
  bool has_groups = false;
};

void set(Options& options, const std::string& option) {
  const std::string name = option.substr(0, option.find('='));
  const std::string text = name == option ? "" : option.substr(name.size() + 1);
  const std::size_t value = std::strtoull(text.c_str(), nullptr, 10);
  const auto number = static_cast<int>(value);
  if (option == "append_only" && !options.has_groups)
    options.one.settings.core.remap = false;
  else if (option == "unnamed" && !options.has_groups)
    options.one.names = {0, 1};
  else if (name == "partial")
    options.one.settings.core.min_partial_tokens = options.groups.rules.min_partial_tokens = number;
  else if (name == "groups")
    options.groups.rules.groups = groups_of(text);
  else if (name == "blocks" && options.has_groups)
    options.groups.rules.num_blocks = number;
  else if (name == "bare" && options.has_groups)
    options.groups.rules.num_nodes = number;
  else if (name == "full" && options.has_groups)
    options.groups.rules.full_slices = GroupBoard::kUnit / std::max(number, 1);
  else if (option == "early" && options.has_groups)
    options.groups.rules.early_commit = true;
  else if (name == "states")
    options.extent.most_states = value;
  else if (name == "threads")
    options.extent.threads = std::max<std::size_t>(value, 1);
  else if (name == "twins")
    options.extent.twins = value;
  else
    throw std::invalid_argument("no such option: " + option);
}

Options parse(int argc, char** argv) {
  Options options;
  if (argc > 1) options.extent.depth = std::atoi(argv[1]);
  if (argc > 2) options.one.wanted = options.groups.rules.wanted = argv[2];
  options.one.settings.resizes = options.one.wanted.find("resize") != std::string::npos;
  for (int i = 3; i < argc; ++i)
    options.has_groups = options.has_groups || std::string(argv[i]).starts_with("groups=");
  for (int i = 3; i < argc; ++i) set(options, argv[i]);
  return options;
}

}  // namespace

// exhaustive [depth] [all|few|few+FAMILY+...] [append_only] [partial=TOKENS] [unnamed]
//            [states=MOST] [threads=COUNT] [twins=EVERY] [groups=window3+state] [blocks=COUNT]
//            [full=TOKENS] [bare=NODES] [early]
// partial: fewest tokens of a partial match. unnamed: one of the two namespaces is the one without
// a name; the two are then never swapped. twins: see compare_twins. groups: the groups beside full
// attention, each a window, chunk, state or ring: see groups_of; blocks: of all groups; full:
// tokens of a block of full attention beside groups; bare: without full attention, with so many
// nodes; early: with early commits, in managers with groups.
int main(int argc, char** argv) {
  try {
    const Options options = parse(argc, argv);
    options.has_groups ? search(options.groups, options.extent)
                       : search(options.one, options.extent);
  } catch (const std::invalid_argument& wrong) {
    std::fprintf(stderr, "%s\n", wrong.what());
    return 2;
  }
  return 0;
}
