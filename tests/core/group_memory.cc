// Checks the memory between the calls of an engine with groups of layers, whether it is read or
// not.
#include <algorithm>

#include "group_play.h"

namespace blockmgr::testing {

// Checks everything that a prompt may find and everything that a sequence counts as computed.
void GroupPlay::check_memory() {
  const PrefixIndex& index = core_.index();
  for (int name = 0; name < kNumNames; ++name) {
    const std::uint32_t root = index.find_root(World::text_of(name));
    if (root == kUnknownId) continue;
    for (NodeId n = index.first_child(root_node(root)); n >= 0; n = core_.nodes()[n].next_sibling)
      check_findable(n, trie_.root(name), 0);
  }
  for (const SeqPtr& seq : seqs_)
    if (!seq->preempted) check_computed(*seq);
  if (setup_.core.event_blocks) check_mirror();
  caller_.check_reads();
}

// Compares a mirror fed by events alone with what can be found, group by group.
void GroupPlay::check_mirror() {
  const Nodes& nodes = core_.nodes();
  const auto size = static_cast<std::size_t>(nodes.digest_size);
  const auto apply = [&](const EventColumns& events) {
    for (const EventRun& run : events.runs) {
      if (run.kind == EventKind::kCleared) mirror_.clear();
      for (std::int64_t i = run.first; i < run.first + run.num_blocks; ++i) {
        const std::uint8_t* digest = events.digests.data() + static_cast<std::size_t>(i) * size;
        const std::pair<int, std::string> key(run.group, std::string(digest, digest + size));
        const bool changed =
            run.kind == EventKind::kStored ? mirror_.insert(key).second : mirror_.erase(key) == 1;
        EXPECT(changed, "an event repeats what a mirror has");
      }
    }
  };
  const EventColumns events = caller_.take_events();
  apply(events);
  if (events.num_lost) apply(caller_.take_snapshot());
  std::set<std::pair<int, std::string>> findable;
  for (NodeId n = 0; n < nodes.count; ++n) {
    if (nodes[n].key_tokens != setup_.core.block_size || Pool::is_part(nodes[n])) continue;
    const std::uint8_t* digest = nodes.digest(n);
    for (std::size_t at = 0; at < setup_.groups.size(); ++at) {
      if (!setup_.groups[at].is_cached()) continue;
      if (is_whole(at, n))
        findable.emplace(static_cast<int>(at), std::string(digest, digest + size));
    }
  }
  EXPECT(mirror_ == findable, "a mirror fed by events differs from what can be found");
}

// Whether a full node has all blocks of a group that the query right behind it reads.
bool GroupPlay::is_whole(std::size_t at, NodeId n) const {
  const int slices = slices_of(at);
  const GroupPlaces& groups = *core_.groups();
  const std::int64_t size = setup_.core.block_size;
  const std::int64_t end = groups.length(n);
  const std::int64_t read = setup_.groups[at].first_read(end) - (end - size);
  for (int slice = slices; slices >= 0 && slice < slices + setup_.groups[at].num_slices; ++slice) {
    if (groups.group(slice).end <= std::min(read, size - 1)) continue;
    const NodeId place = groups.cached(slice, n);
    if (place < 0 || groups.is_being_kept(place)) return false;
  }
  return true;
}

// The memory of a node, of its parts and of all its descendants must match its place in the tree of
// prefixes. With early commits, a forward may still have to write the last tokens.
void GroupPlay::check_findable(NodeId n, Prefix before, std::int64_t unit) {
  const Nodes& nodes = core_.nodes();
  const GroupPlaces& groups = *core_.groups();
  std::vector<Prefix> prefixes;
  Prefix prefix = trie_.after_extras(before, nodes[n].extras ? 1 : 0);
  for (int i = 0; i < nodes[n].key_tokens; ++i)
    prefixes.push_back(prefix = trie_.after_token(prefix, nodes.tokens(n)[i]));
  const auto check = [&](int number, NodeId place, std::int64_t begin, std::int64_t end) {
    // What waits for its copy is read through the copy's source, or, if a state, not at all.
    if (place < 0 || nodes[place].copy_source != kNoNode || nodes[place].in_flight) return;
    const auto at = static_cast<std::size_t>(number);
    const std::int32_t block = nodes.name(place);
    if (setup_.groups[at].recurrent()) {
      EXPECT(device_.holds_state(at, block, prefix), "a state after " +
                                                         std::to_string(groups.length(n)) +
                                                         " tokens can be found and is wrong");
      return;
    }
    const std::size_t missing = std::min<std::size_t>(nodes[place].unwritten, prefixes.size());
    const auto there = static_cast<std::int64_t>(prefixes.size() - missing);
    for (std::int64_t word = begin; word < std::min(there, end); ++word)
      EXPECT(device_.holds(at, block, static_cast<std::size_t>(word - begin),
                           prefixes[static_cast<std::size_t>(word)]),
             "unit " + std::to_string(unit) + " of group " + std::to_string(at) +
                 " can be found and has wrong K/V at word " + std::to_string(word));
  };
  const int full = setup_.core.full_group;
  if (!core_.pool().is_bare()) check(full, n, 0, device_.size_of(static_cast<std::size_t>(full)));
  for (int g = 0; g < groups.num_groups(); ++g) {
    const Group& group = groups.group(g);
    if (group.is_cached()) check(group.number, groups.cached(g, n), group.begin, group.end);
  }
  for (NodeId child = nodes[n].first_child; child >= 0; child = nodes[child].next_sibling)
    check_findable(child, prefix, unit + 1);
}

// Everything computed that the next forward reads must be in memory, or a pending copy brings it.
void GroupPlay::check_computed(const Seq& seq) const {
  const std::int64_t length = settled(seq);
  if (!length) return;
  const Tables all = tables(seq);
  const GroupRow row = core_.view_groups(seq.handle);
  for (std::size_t at = 0; at < setup_.groups.size(); ++at) {
    const Group& group = setup_.groups[at];
    if (seq.loads && !group.is_attention()) continue;
    if (group.recurrent()) {
      const std::int32_t block = source_of(all[at][nth(row.slot)], 0);
      EXPECT(!row.stands() ||
                 device_.holds_state(at, block, seq.prefixes[static_cast<std::size_t>(length - 1)]),
             "a state has another position than its sequence");
      continue;
    }
    if (group.is_ring()) {
      check_ring(seq, at, length);
      continue;
    }
    const std::int64_t size = device_.size_of(at);
    const std::int64_t end = group.is_cached() ? std::max(length, row.hit) : length;
    const std::int64_t query = std::max(end, seq.loads);  // nothing before it is read by another
    const std::int64_t least = group.is_cached() ? 0 : row.start;
    for (std::int64_t i = std::max(group.first_read(query), least); i < end; ++i) {
      const auto word = static_cast<std::size_t>(i % size);
      const std::int32_t own = all[at][static_cast<std::size_t>(i / size)];
      EXPECT(device_.holds(at, source_of(own, i % setup_.core.block_size), word,
                           seq.prefixes[static_cast<std::size_t>(i)]),
             "position " + std::to_string(i) + " counts as computed, but is not in memory");
    }
  }
}

// A ring has what the next query reads, as long as no forward has gone on farther than its width.
void GroupPlay::check_ring(const Seq& seq, std::size_t at, std::int64_t length) const {
  const Group& ring = setup_.groups[at];
  const GroupRow row = core_.view_groups(seq.handle);
  const std::int32_t block = source_of(tables(seq)[at][0], 0);
  const std::int64_t least = length < row.hit ? row.since : 0;  // while it is computed again
  for (std::int64_t i =
           std::max({length - length % ring.restart, row.farthest - ring.width, least});
       i < length; ++i)
    EXPECT(device_.holds(at, block, static_cast<std::size_t>(i % ring.width),
                         seq.prefixes[static_cast<std::size_t>(i)]),
           "position " + std::to_string(i) + " is not in a ring");
}

// The core's number for the first slice of a group of the engine; -1: the nodes' own blocks.
int GroupPlay::slices_of(std::size_t group) const {
  const auto number = static_cast<int>(group);
  if (number == setup_.core.full_group && !core_.pool().is_bare()) return -1;
  const auto of_group = [&](const Group& slice) { return slice.number == number; };
  const std::vector<Group>& all = setup_.core.groups;
  return static_cast<int>(std::find_if(all.begin(), all.end(), of_group) - all.begin());
}

// The same; -1: the group of the block tables.
int GroupPlay::further_of(std::size_t group) const {
  return static_cast<int>(group) == setup_.core.full_group ? -1 : slices_of(group);
}

// The block that holds a token of a node now, if a copy into its block is pending. The source of a
// planned copy may itself be the destination of a copy in flight.
std::int32_t GroupPlay::source_of(std::int32_t block, std::int64_t token) const {
  std::int32_t source = block;
  const auto look = [&](const Copy& copy) {
    if (core_.nodes().name(copy.destination) != source || token >= copy.num_tokens) return false;
    source = core_.nodes().name(copy.source);
    return true;
  };
  bool found = false;
  core_.copies().each_pending([&](const Copy& copy) { found = found || look(copy); });
  const std::vector<Copy>& flight = core_.copies().flight();
  if (core_.copies().in_flight()) std::any_of(flight.begin(), flight.end(), look);
  return source;
}

}  // namespace blockmgr::testing
