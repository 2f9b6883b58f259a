// What the parts of a manager have in common: each makes one kind of call on the same rows.
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "sequences/plans.h"
#include "sequences/rows.h"

namespace blockmgr {

class Sequences;

// A part of a manager. Own: its class. Used: the parts that it calls; Sequences lists all parts,
// those that are used before those that use them.
//
// A part is a base of Sequences, and so are the rows: one is found from the other by a constant
// offset. With a reference to the rows in each part, calls ran up to 8 % more instructions.
template <class Own, class... Used>
class Part {
 protected:
  Rows& rows();
  const Rows& rows() const;
  template <class Other>
  Other& use() {
    static_assert((std::is_same_v<Other, Used> || ...), "a part names the parts that it uses");
    return other<Other>();
  }
  template <class Other>
  const Other& use() const {
    static_assert((std::is_same_v<Other, Used> || ...), "a part names the parts that it uses");
    return other<Other>();
  }

  const Config& config() const { return rows().config(); }
  const BlockSize& block_size() const { return rows().block_size(); }
  Nodes& nodes() { return rows().nodes_; }
  const Nodes& nodes() const { return rows().nodes_; }
  PrefixIndex& index() { return rows().index_; }
  const PrefixIndex& index() const { return rows().index_; }
  Pool& pool() { return rows().pool_; }
  const Pool& pool() const { return rows().pool_; }
  CopyTracker& copies() { return rows().copies_; }
  const CopyTracker& copies() const { return rows().copies_; }
  NodeList& unwritten() { return rows().unwritten_; }
  const NodeList& unwritten() const { return rows().unwritten_; }
  std::int64_t step() const { return rows().step_; }
  const std::vector<Store::OpenStep>& open_steps() const { return rows().open_steps_; }
  const std::vector<std::uint16_t>& partitions() const { return rows().partitions_; }
  // nullptr: nothing is ever cached.
  const Digester* digester() const { return rows().digester_.get(); }
  // Further groups of layers. There may be none: then loops over them run zero times.
  GroupPlaces* groups() const { return rows().groups_.get(); }
  // Asked where full attention alone does something else, and where a call takes so few
  // instructions that even empty loops would show.
  bool has_groups() const { return rows().has_groups(); }
  // Groups of attention, and groups of states, of which each sequence has one.
  const std::vector<int>& attention() const { return rows().attention; }
  const std::vector<int>& recurrent() const { return rows().recurrent; }
  int num_states() const { return static_cast<int>(recurrent().size()); }
  const std::vector<int>& rings() const { return rows().rings; }
  // Windows that prompts do not find, whose blocks belong to one sequence each.
  const std::vector<int>& replayed() const { return rows().replayed; }
  // Groups whose tables grow with the slots.
  const std::vector<int>& growing() const { return rows().growing; }
  // Slots of a sequence in each group of states beside the one that its state is in.
  int extra_blocks() const {
    return num_states() ? groups()->group(recurrent().front()).extra_blocks : 0;
  }
  // Blocks that a sequence has from its admission to its end, whatever its length.
  std::int64_t num_singles() const {
    return num_states() * (1 + std::int64_t{extra_blocks()}) +
           static_cast<std::int64_t>(rings().size());
  }
  // Blocks that so many nodes have of their own.
  std::int64_t own_blocks(std::int64_t num_nodes) const {
    return config().num_nodes ? 0 : num_nodes;
  }
  bool can_start(std::int64_t length) const { return groups()->can_start(length); }
  std::int64_t num_cached(const Found& found) const {
    return found.num_full * config().block_size + found.num_partial;
  }
  // Where the first forward begins behind a hit of so many tokens: before it where windows are
  // replayed.
  std::int64_t start_of(std::int64_t hit) const {
    return replayed().empty() ? hit : groups()->start_of(hit);
  }
  // The limits that a caller sets for num_cached, as hits, which include what is computed again.
  std::int64_t most_hit(const Prompt& prompt) const {
    if (replayed().empty()) [[likely]]
      return prompt.most_cached;
    const std::int64_t replay = groups()->replay();
    return prompt.most_cached > INT64_MAX - replay ? INT64_MAX : prompt.most_cached + replay;
  }
  std::int64_t due_hit(const Prompt& prompt) const {
    if (replayed().empty()) [[likely]]
      return prompt.due_cached;
    return prompt.due_cached > 0 ? prompt.due_cached + groups()->replay() : prompt.due_cached;
  }
  // Where the first query that reads cached blocks is, or what is loaded ends.
  std::int64_t first_query(const Found& found) const {
    return std::max(num_cached(found), found.num_loaded);
  }
  // Whether a sequence continues with the states that are found.
  bool resumes(const Found& found) const {
    return last_node(found) >= 0 && found.num_loaded <= num_cached(found);
  }
  // Whether it leaves the states that are found, because those behind them are loaded.
  bool leaves_states(const Found& found) const { return num_states() && !resumes(found); }
  // The last node of what is found; kNoNode: nothing is.
  static NodeId last_node(const Found& found) {
    return found.partial >= 0 ? found.partial : found.num_full ? found.node : kNoNode;
  }

 private:
  template <class Other>
  Other& other();
  template <class Other>
  const Other& other() const;
};

}  // namespace blockmgr
