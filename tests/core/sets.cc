#include "sets.h"

#include <algorithm>
#include <deque>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "device.h"
#include "identity/node_ids.h"
#include "memory/bit_tree.h"
#include "places/idle_segments.h"

namespace blockmgr::testing {

namespace {

void expect(bool holds, const char* otherwise) {
  if (!holds) throw Violation(otherwise);
}

// Members come and go in ranges, so that whole words fill up and become empty on every level.
void check_bits(std::uint32_t bound, std::mt19937_64& rng) {
  BitTree tree(bound);
  std::set<std::uint32_t> due;
  if (rng() % 2) {
    tree.fill(bound);
    for (std::uint32_t i = 0; i < bound; ++i) due.insert(due.end(), i);
  }
  for (int turn = 0; turn < 40; ++turn) {
    const auto from = static_cast<std::uint32_t>(rng() % bound);
    const auto length = static_cast<std::uint32_t>(rng() % (rng() % 4 ? 90 : bound) + 1);
    const bool adds = rng() % 3 == 0;
    for (std::uint32_t i = from; i < std::min(from + length, bound); ++i) {
      adds ? tree.insert(i) : tree.erase(i);
      if (adds) {
        due.insert(i);
      } else {
        due.erase(i);
      }
    }
    expect(tree.first() == (due.empty() ? BitTree::kNone : *due.begin()), "wrong first member");
    expect(tree.last() == (due.empty() ? BitTree::kNone : *due.rbegin()), "wrong last member");
    for (int i = 0; i < 20; ++i) {
      const auto some = static_cast<std::uint32_t>(rng() % bound);
      expect(tree.contains(some) == (due.count(some) == 1), "an extra or missing member");
      const auto next = due.lower_bound(some & ~63u);
      expect(tree.next_word(some >> 6) == (next == due.end() ? BitTree::kNone : *next >> 6),
             "wrong word with members");
    }
  }
}

// Sequences that grow and end, in a range that is nearly used up most of the time.
void check_ids(Range range, std::mt19937_64& rng) {
  NodeIds ids(range);
  std::vector<std::vector<NodeId>> runs;
  std::set<NodeId> used;
  const auto most = static_cast<std::size_t>(range.count);
  for (int turn = 0; turn < 400; ++turn) {
    const std::size_t left = most - used.size();
    if (left == 0 || (!runs.empty() && rng() % 4 == 0)) {
      std::vector<NodeId> gone = std::move(runs[rng() % runs.size()]);
      for (auto run = runs.begin(); run != runs.end();)
        run = run->empty() ? runs.erase(run) : run + 1;
      for (const NodeId n : gone) {
        ids.give(n);
        used.erase(n);
        expect(ids.is_free(n), "a returned id is not free");
      }
    } else {
      const bool goes_on = !runs.empty() && rng() % 2;
      if (!goes_on) runs.emplace_back();
      std::vector<NodeId>& run = goes_on ? runs[rng() % runs.size()] : runs.back();
      const std::size_t count = std::min<std::size_t>(left, rng() % 150 + 1);
      NodeId before = run.empty() ? kNoNode : run.back();
      const auto take = [&](std::int64_t, NodeId n) {
        expect(range.holds(n) && used.insert(n).second, "an id was allocated twice or is invalid");
        const bool next = before >= 0 && range.holds(before + 1) &&
                          (used.count(before + 1) == 0 || before + 1 == n);
        expect(!next || n == before + 1, "a run ends although the next id is free");
        run.push_back(before = n);
      };
      if (rng() % 2) {
        ids.take_run(before, static_cast<std::int64_t>(count), take);
      } else {
        for (std::size_t i = 0; i < count; ++i) take(0, ids.take(before));
      }
    }
    expect(ids.adds_up(), "the words of free ids are miscounted");
  }
  for (const NodeId n : range) expect(ids.is_free(n) == (used.count(n) == 0), "an id is lost");
}

// Compares segments with a list of single nodes. A node that is not idle may be linked in another
// list, so its links are arbitrary.
void check_idle(Range range, std::mt19937_64& rng) {
  Nodes nodes(range.last_end() + 2, 1, 1, 1, 1);
  IdleSegments idle(nodes, range, nodes.count);
  std::vector<NodeId> due;  // in eviction order
  const auto is_idle = [&](NodeId n) { return std::find(due.begin(), due.end(), n) != due.end(); };
  const auto some = [&](std::uint64_t bound) { return static_cast<int>(rng() % bound); };
  for (int turn = 0; turn < 3000; ++turn) {
    const NodeId first = range.first + some(static_cast<std::uint64_t>(range.count));
    const int most = 1 + some(some(2) ? 3 : 150);
    const bool adds = some(3) == 0 || (turn / 100) % 2;
    if (!adds && some(2)) {
      const int count = std::min<int>(most, idle.size());
      idle.remove_front(count);
      due.erase(due.begin(), due.begin() + count);
    } else if (is_idle(first) != adds) {
      NodeId last = first;
      while (last - first + 1 < most && range.holds(last + 1) && is_idle(last + 1) != adds) ++last;
      for (NodeId n = first; !adds && n <= last; ++n)
        due.erase(std::find(due.begin(), due.end(), n));
      for (NodeId n = last; adds && n >= first; --n) due.push_back(n);
      adds ? idle.push_back(first, last) : idle.remove(first, last);
    }
    for (const NodeId n : range) {
      if (is_idle(n)) continue;
      Links& links = nodes.links[static_cast<std::size_t>(n)];
      links.prev = some(4) ? some(static_cast<std::uint64_t>(nodes.count + 1)) : kNoNode;
      links.next = some(4) ? some(static_cast<std::uint64_t>(nodes.count + 1)) : kNoNode;
    }
    std::vector<NodeId> order;
    for (NodeId n = idle.front(); n != idle.end() && order.size() <= due.size(); n = idle.after(n))
      order.push_back(n);
    expect(order == due, "idle nodes are in the wrong order");
    expect(idle.adds_up() && idle.size() == static_cast<int>(due.size()) &&
               idle.empty() == due.empty(),
           "idle nodes are miscounted");
  }
}

// Checks the length of runs of ids in a full pool, where every allocated id was freed by an
// eviction: prompts of similar length come and go, sequences grow in turn, and the sequences that
// ended first are evicted first.
void check_wear(std::mt19937_64& rng) {
  constexpr int kBlocks = 4000;
  NodeIds ids({0, NodeIds::count_for(kBlocks), kBlocks});
  std::deque<NodeId> idle;
  std::vector<std::vector<NodeId>> running;
  int used = 0;
  std::int64_t blocks = 0, runs = 0;
  const auto grow = [&](std::vector<NodeId>& table, int count) {
    for (; used + count > kBlocks; --used) {
      ids.give(idle.front());
      idle.pop_front();
    }
    used += count;
    const NodeId before = table.empty() ? kNoNode : table.back();
    ids.take_run(before, count, [&](std::int64_t, NodeId n) { table.push_back(n); });
  };
  for (int turn = 0; turn < 600; ++turn) {
    running.emplace_back();
    grow(running.back(), 20 + static_cast<int>(rng() % 40));
    for (std::vector<NodeId>& table : running) grow(table, 1);
    if (running.size() < 20) continue;
    const std::vector<NodeId> ended = std::move(running[rng() % running.size()]);
    std::erase_if(running, [](const auto& table) { return table.empty(); });
    idle.insert(idle.end(), ended.rbegin(), ended.rend());
    if (turn < 300) continue;
    blocks += static_cast<std::int64_t>(ended.size());
    for (std::size_t i = 0; i < ended.size(); ++i) runs += i == 0 || ended[i] != ended[i - 1] + 1;
  }
  // The ratio is about six. It is one if each run starts at the first free id, or without spare
  // ids.
  expect(blocks > 3 * runs, "runs of ids are short in a full pool");
}

}  // namespace

void check_sets(std::uint64_t seed) {
  std::mt19937_64 rng(seed);
  for (const std::uint32_t bound : {1u, 63u, 64u, 65u, 4096u, 4097u, 20000u})
    check_bits(bound, rng);
  for (const int count : {1, 5, 64, 65, 640, 5000}) check_ids({3, count, count}, rng);
  for (const int count : {1, 5, 64, 130, 300}) check_idle({3, count, count}, rng);
  check_wear(rng);
}

}  // namespace blockmgr::testing
