#include "sequences/resuming.h"

#include <algorithm>

#include "sequences/sequences.h"

namespace blockmgr {

namespace {

const Token* tokens_of(const Member& m) { return m.sequence->waiting.data(); }

const ExtrasIds& extras_of(const Member& m) {
  static const ExtrasIds none;
  return m.sequence->extras ? m.sequence->extras->ids() : none;
}

// The first block for which two members have different extra keys.
std::int64_t first_other_extras(const Member& a, const Member& b) {
  const ExtrasIds& ours = extras_of(a);
  const ExtrasIds& theirs = extras_of(b);
  const auto [one, other] = std::mismatch(ours.begin(), ours.end(), theirs.begin(), theirs.end());
  std::int64_t block = INT64_MAX;
  if (one != ours.end()) block = one->first;
  if (other != theirs.end()) block = std::min<std::int64_t>(block, other->first);
  return block;
}

// Leading tokens that are equal, in blocks with equal extra keys.
std::int64_t num_common(const Member& a, const Member& b, std::int64_t block_size) {
  if (a.sequence->root != b.sequence->root) return 0;
  std::int64_t most = std::min(a.sequence->num_tokens, b.sequence->num_tokens);
  const std::int64_t block = first_other_extras(a, b);
  if (block <= most / block_size) most = block * block_size;
  return std::mismatch(tokens_of(a), tokens_of(a) + most, tokens_of(b)).first - tokens_of(a);
}

bool comes_before(const Member& a, const Member& b, std::int64_t block_size) {
  if (a.sequence->root != b.sequence->root) return a.sequence->root < b.sequence->root;
  const std::int64_t same = num_common(a, b, block_size);
  if (same == a.sequence->num_tokens || same == b.sequence->num_tokens)
    return a.sequence->num_tokens > b.sequence->num_tokens;
  const std::uint32_t ours = extras_at(&extras_of(a), same / block_size);
  const std::uint32_t theirs = extras_at(&extras_of(b), same / block_size);
  return ours != theirs ? ours < theirs : tokens_of(a)[same] < tokens_of(b)[same];
}

}  // namespace

std::vector<Member> Resuming::members_of(const Handle* handles, std::int64_t count,
                                         std::int64_t num_slots) {
  std::vector<Member> members(nth(count));
  for (std::size_t i = 0; i < members.size(); ++i) {
    Sequence& s = rows().live(handles[i]);
    members[i].sequence = &s;
    members[i].slots = use<Needs>().checked_slots(s.num_tokens, num_slots, s.partition, 0);
  }
  const std::int64_t size = config().block_size;
  std::stable_sort(members.begin(), members.end(),
                   [size](const Member& a, const Member& b) { return comes_before(a, b, size); });
  for (std::size_t i = 1; i < members.size(); ++i)
    members[i].common = num_common(members[i - 1], members[i], size);
  return members;
}

void Resuming::find_all(std::vector<Member>& members) {
  for (Member& m : members) {
    const Sequence& s = *m.sequence;
    Reach reach;
    use<Finding>().find(tokens_of(m), s.num_tokens,
                        {root_node(s.root), s.extras_ids(), s.partition, 0, true}, m.most, reach,
                        rows().blocks_for(m.slots));
    m.chain.assign(m.most.full, m.most.full + m.most.num_lead);
    m.most.full = m.chain.data();
    m.num_whole = reach.num_whole;
    m.plan.num_shared = reach.num_shared;
  }
}

// The leading blocks that a member can share with an earlier one, if it begins with so many of its
// tokens: as fork shares them, the last one too, if all tokens of the member in it are the other's.
// Slots behind tokens belong to one sequence.
std::int64_t Resuming::shared_units(const Member& m, const Member& donor,
                                    std::int64_t common) const {
  const std::int64_t size = config().block_size;
  const std::int64_t length = m.sequence->num_tokens;
  std::int64_t units = block_size().whole(common);
  if (common == length && m.slots <= length) units = rows().blocks_for(length);
  if (donor.slots > donor.sequence->num_tokens)
    units = std::min(units, block_size().whole(donor.sequence->num_tokens));
  units = std::min({units, donor.num_blocks, m.num_blocks});
  // Its last node may lack blocks of some group.
  if (units == donor.num_blocks && donor.num_slots < std::min(m.slots, units * size)) --units;
  return units;
}

// Members that compute the same block begin at one place, the earliest of their starts. What one of
// them finds up to there, all of them find.
void Resuming::agree(std::vector<Member>& members) const {
  const auto blocks_of = [&](Member& m) {
    m.num_blocks = std::max(rows().blocks_for(m.slots), m.most.num_full + (m.most.partial >= 0));
    m.num_slots = m.num_blocks * config().block_size;
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t i = 1; i < members.size(); ++i) {
      Member& a = members[i - 1];
      Member& b = members[i];
      blocks_of(a);
      blocks_of(b);
      const std::int64_t shared = shared_units(b, a, b.common) * config().block_size;
      const std::int64_t starts[] = {num_cached(a.most), num_cached(b.most)};
      if (starts[0] == starts[1] || std::min(starts[0], starts[1]) >= shared) continue;
      const Member& first = starts[0] < starts[1] ? a : b;
      Member& other = starts[0] < starts[1] ? b : a;
      const std::int64_t lead = other.most.num_lead;
      other.most = first.most;
      other.most.full = other.chain.data();  // the same so far; behind it, it is its own path
      other.most.num_lead = lead;
      other.num_whole = first.num_whole;
      changed = true;
    }
  }
}

void Resuming::choose_donor(std::vector<Member>& members, std::size_t i) const {
  Member& m = members[i];
  const Found& found = m.plan.found;
  m.donor = -1;
  m.num_shared = 0;
  std::int64_t common = m.common;
  for (std::size_t j = i; j-- > 0 && common > m.num_shared * config().block_size;) {
    if (num_cached(members[j].plan.found) == num_cached(found)) {
      const std::int64_t shared = shared_units(m, members[j], common);
      if (shared > found.num_full && shared > m.num_shared) {
        m.donor = static_cast<std::int64_t>(j);
        m.num_shared = shared;
      }
    }
    common = std::min(common, members[j].common);
  }
}

// Of what one of them could take over, several begin with copies, or with the copies of one.
void Resuming::share_ends(std::vector<Member>& members, Reuse reuse) const {
  std::vector<NodeId> ends;
  for (const Member& m : members)
    if (m.donor < 0) ends.push_back(last_node(m.plan.found));
  std::sort(ends.begin(), ends.end());
  for (Member& m : members) {
    Found& found = m.plan.found;
    if (reuse != Reuse::kAll && use<Finding>().may_take_over(found)) found.take_over = true;
    const auto [first, last] = std::equal_range(ends.begin(), ends.end(), last_node(found));
    if (last - first > 1) found.take_over = false;
  }
}

// The blocks that a member takes beside those of its donor.
Resuming::Taken Resuming::count_joining(Member& m, const Member& donor) const {
  const std::int64_t size = config().block_size;
  const std::int64_t had = m.num_shared == donor.num_blocks ? donor.num_slots : m.num_shared * size;
  m.num_blocks = std::max(m.num_shared, rows().blocks_for(m.slots));
  Taken taken{m.num_blocks - m.num_shared, 0};
  m.num_slots = m.slots > had ? use<Slices>().usable_slots(m.slots) : had;
  for (const int g : attention())
    taken.others += use<Slices>().units_of(g, m.num_slots) - use<Slices>().units_of(g, had);
  taken.others += num_singles();
  return taken;
}

Resuming::Bill Resuming::bill(std::vector<Member>& members) {
  const auto partitions = nth(pool().num_partitions());
  Bill due{std::vector<std::int64_t>(partitions), std::vector<std::int64_t>(partitions)};
  std::int64_t most = 1;
  for (const Member& m : members)
    most += (m.plan.found.num_full + 1) * use<GroupTables>().blocks_of_units(1) + num_singles();
  Tally seen;
  seen.begin(most);
  for (Member& m : members) {
    const int partition = m.sequence->partition;
    const auto take = [&](int from, std::int64_t count) {
      due.needed[nth(from)] += count;
      due.held[nth(from)] += count;
    };
    if (m.donor >= 0) {
      const Taken taken = count_joining(m, members[nth(m.donor)]);
      take(partition, taken.nodes);
      take(pool().home(partition), taken.others);
      continue;
    }
    const Found& found = m.plan.found;
    take(pool().home(partition), m.plan.demand.to_take);
    if (pool().is_bare()) take(partition, m.plan.demand.fresh_nodes);
    const auto uses = [&](NodeId n) {
      if (n < 0 || seen.add(n) > 1) return;
      const std::size_t p = nth(pool().partition_of(n));
      ++due.held[p];
      due.needed[p] += pool().counts_as_available(n);
    };
    std::for_each_n(found.full, found.num_full, uses);
    uses(found.partial);
    use<Needs>().each_part(found, uses);
  }
  return due;
}

// All counting happens here, before any change. The members' plans are those of the last call.
Resuming::Bill Resuming::plan_all(std::vector<Member>& members, Reuse reuse) {
  if (reuse == Reuse::kWhole)
    for (Member& m : members)
      use<Finding>().cut(m.most, std::min(m.num_whole, m.most.num_full),
                         root_node(m.sequence->root));
  if (reuse == Reuse::kNothing) {
    for (Member& m : members) {
      m.most = Found();
      m.most.node = root_node(m.sequence->root);
    }
  }
  if (reuse != Reuse::kAll) agree(members);
  const auto measure = [&](Member& m) {
    m.plan.demand = use<Needs>().demand(m.plan.found, m.slots);
    m.num_blocks = m.plan.demand.num_blocks;
    m.num_slots = m.num_blocks * config().block_size - m.plan.demand.missing_slots;
  };
  for (std::size_t i = 0; i < members.size(); ++i) {
    Member& m = members[i];
    m.plan.found = m.most;
    measure(m);
    choose_donor(members, i);
    if (m.donor >= 0) count_joining(m, members[nth(m.donor)]);
  }
  share_ends(members, reuse);
  for (Member& m : members)
    if (m.donor < 0) measure(m);
  return bill(members);
}

// What grew past the watermark comes back to an empty pool.
std::vector<std::int64_t> Resuming::held_back(std::vector<Member>& members) {
  std::vector<std::int64_t> held(nth(pool().num_partitions()));
  if (!config().watermark_blocks) return held;
  std::vector<Found> kept;
  for (const Member& m : members) kept.push_back(m.most);
  std::vector<std::int64_t> most = plan_all(members, Reuse::kNothing).held;
  for (std::size_t i = 0; i < members.size(); ++i) members[i].most = kept[i];
  for (const Member& m : members) {
    std::int64_t& blocks = most[nth(pool().home(m.sequence->partition))];
    blocks = std::max(blocks, use<Needs>().later_blocks(m.sequence->num_tokens, m.slots));
  }
  for (int p = 0; p < pool().num_partitions(); ++p) {
    if (pool().nodes_of(p) != p) continue;
    const std::size_t home = nth(pool().home(p));
    held[home] = use<Admitting>().held_back_from(p, most[home]);
  }
  return held;
}

void Resuming::resume_together(const Handle* handles, std::int64_t count, std::int64_t num_slots,
                               bool read_cache) {
  Call call(rows());
  if (groups()->replay())
    throw Error(ErrorKind::kValue,
                "handles must be resumed one by one with uncached windows, got " +
                    std::to_string(count) + " together");
  ++rows().batch_mark;
  for (std::int64_t i = 0; i < count; ++i) rows().name_once(use<Admitting>().preempted(handles[i]));
  std::vector<Member> members = members_of(handles, count, num_slots);
  if (read_cache) find_all(members);
  const std::vector<std::int64_t> held = held_back(members);
  bool never = true;
  Error last(ErrorKind::kNeverFits, "");
  OutOfBlocks lacking(0, 0, 0);
  for (const Reuse reuse : {Reuse::kAll, Reuse::kAgreed, Reuse::kWhole, Reuse::kNothing}) {
    const Bill due = plan_all(members, reuse);
    bool fits = true;
    bool may_fit = true;
    const auto is_bare = [&](std::size_t p) { return pool().is_bare() && !p; };
    for (std::size_t p = 0; p < held.size(); ++p) {
      const std::int64_t capacity = pool().partition(static_cast<int>(p)).capacity;
      const std::int64_t available = rows().available(static_cast<int>(p));
      if (due.held[p] > capacity) {
        may_fit = false;
        last = Error(ErrorKind::kNeverFits, "the sequences take " + std::to_string(due.held[p]) +
                                                (is_bare(p) ? " nodes" : " blocks") +
                                                " together, and there are " +
                                                std::to_string(capacity));
      }
      if (!due.needed[p] || due.needed[p] <= available - held[p]) continue;
      fits = false;
      if (!lacking.needed || due.needed[p] < lacking.needed)
        lacking = OutOfBlocks(due.needed[p], available, held[p], is_bare(p));
    }
    if (fits) return settle(members, read_cache);
    never = never && !may_fit;
  }
  if (never) throw last;
  throw lacking;
}

// Before anything is taken into use, which may drop a ghost; each of them once.
void Resuming::resolve_ghosts(const std::vector<Member>& members) {
  std::vector<std::pair<int, std::int32_t>> ghosts;
  std::vector<std::int32_t> room(nth(config().row_width));
  for (const Member& m : members) {
    const Sequence& s = *m.sequence;
    const ReuseTracker* past = pool().past(s.partition);
    if (!past) continue;
    const Found& found = m.plan.found;
    const std::int64_t limit =
        std::min<std::int64_t>((s.num_tokens - 1) / config().block_size, config().row_width);
    const std::int64_t count = rows().find_ghosts(*past, tokens_of(m), found.num_full, limit,
                                                  found.node, s.extras_ids(), room.data());
    for (std::int64_t i = 0; i < count; ++i) ghosts.emplace_back(s.partition, room[nth(i)]);
  }
  std::sort(ghosts.begin(), ghosts.end());
  ghosts.erase(std::unique(ghosts.begin(), ghosts.end()), ghosts.end());
  for (const auto& [partition, ghost] : ghosts) pool().past(partition)->resolve(ghost);
}

void Resuming::settle(std::vector<Member>& members, bool read_cache) {
  if (read_cache) resolve_ghosts(members);
  for (Member& m : members)
    if (m.sequence->session) use<Sessions>().take_path_back(*m.sequence);
  for (Member& m : members)
    if (m.donor < 0) use<Admitting>().begin_resumed(*m.sequence, m.plan);
  for (Member& m : members)
    if (m.donor < 0) use<Admitting>().take_over_resumed(*m.sequence, m.plan);
  for (Member& m : members) {
    if (m.donor < 0) {
      use<Admitting>().end_resumed(*m.sequence, m.plan);
    } else {
      join(m, members[nth(m.donor)]);
    }
  }
  // Only now, because members read the tokens of others.
  for (Member& m : members) use<Admitting>().settle_resumed(*m.sequence, read_cache);
}

// As a fork of the donor that was cut to what both have, and then grew again.
void Resuming::join(const Member& m, const Member& donor) noexcept {
  Sequence& s = *m.sequence;
  const Sequence& from = *donor.sequence;
  const std::int64_t size = config().block_size;
  const std::int32_t* shared = rows().table(from);
  std::copy_n(shared, m.num_shared, rows().table(s));
  for (std::int64_t i = 0; i < m.num_shared; ++i) ++nodes().uses(shared[i]).ref_count;
  s.num_blocks = static_cast<std::int32_t>(m.num_shared);
  s.missing_slots = s.num_blocks == from.num_blocks ? from.missing_slots : 0;
  s.num_chained = from.num_chained;
  s.num_computed = s.num_cached = from.num_computed;
  s.loads = false;
  rows().show(rows().row_of(s), 0, s.num_blocks);
  const auto prompt_end = rows().group_row(s).stops[GroupRow::kPromptEnd];
  use<Forking>().fork_groups(from, s);
  rows().group_row(s).stops[GroupRow::kPromptEnd] = prompt_end;
  use<GroupEnds>().choose_stops(s, m.plan.num_shared);
  s.state = Sequence::kRunning;
  s.waiting_start = static_cast<std::uint32_t>(std::min(m.num_shared * size, s.num_tokens));
  use<Growing>().extend(s, m.slots);
  rows().show_length(s);
  rows().note_computing(s);
}

}  // namespace blockmgr
