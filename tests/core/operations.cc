#include "operations.h"

#include <algorithm>
#include <map>
#include <stdexcept>

namespace blockmgr::testing {

namespace {

using Order = std::vector<std::size_t>;
using Operations = std::vector<Operation>;

const Order kInOrder = {0, 1, 2};

template <class Numbers>
std::string shown(const Numbers& numbers) {
  std::string out;
  for (const auto number : numbers) out += std::to_string(number);
  return out;
}

// A prompt of each wanted shape, in both namespaces.
template <class Wanted>
void add_admissions(Operations& all, const Names& names, Wanted wanted) {
  for (std::size_t length = 1; length <= 3; ++length)
    for (unsigned bits = 0; bits < 1u << length; ++bits) {
      std::vector<Token> tokens;
      for (std::size_t i = 0; i < length; ++i) tokens.push_back(bits >> i & 1);
      if (!wanted(tokens)) continue;
      for (const int name : names)
        all.push_back({"admit " + shown(tokens) + " in " + std::to_string(name),
                       [=](World& world) { world.admit(tokens, name, 0, 0); }});
    }
}

// Prompts of one token, and of three that start with two equal ones; appends produce the others.
bool is_basic(const std::vector<Token>& tokens) {
  return tokens.size() == 1 || (tokens.size() == 3 && tokens[0] == tokens[1]);
}

// One operation for each possible sequence.
template <class Run>
void add_for_each(Operations& all, const std::string& name, Run run) {
  for (std::size_t i = 0; i < kMostSequences; ++i)
    all.push_back({name + " " + std::to_string(i), [=](World& world) {
                     if (i < world.entries().size()) run(world, EntryPtr(world.entries()[i]));
                   }});
}

// One operation for each order in which the engine can process the sequences: the first one's block
// is the one that the others then share. Fewer sequences have fewer orders.
template <class Run>
void add_for_each_order(Operations& all, const std::string& name, Run run) {
  Order order = kInOrder;
  do {
    std::size_t fewest = kMostSequences;
    while (fewest && order[fewest - 1] == fewest - 1) --fewest;
    all.push_back(
        {name + (order == kInOrder ? "" : " in the order " + shown(order)), [=](World& world) {
           const std::size_t count = world.entries().size();
           if (count < fewest) return;
           Order shorter = order;
           shorter.resize(count);
           run(world, shorter);
         }});
  } while (std::next_permutation(order.begin(), order.end()));
}

void add_few(Operations& all, const Names& names) {
  add_admissions(all, names, is_basic);
  for (const Token token : {Token{0}, Token{1}})
    add_for_each(all, "append " + std::to_string(token) + " to",
                 [=](World& world, const EntryPtr& entry) { world.append(*entry, {token}); });
  add_for_each(all, "fork", [](World& world, const EntryPtr& entry) { world.fork(entry, 1); });
  add_for_each(all, "free", [](World& world, const EntryPtr& entry) { world.free(entry); });
  add_for_each_order(all, "step", [](World& world, const Order& order) {
    world.reorder(order);
    world.step();
  });
  all.push_back({"begin", [](World& world) {
                   if (world.steps().empty()) world.begin(SIZE_MAX, false);
                 }});
  add_for_each_order(all, "finish", [](World& world, const Order& order) {
    if (world.steps().empty()) return;
    world.reorder(order);
    world.finish(world.steps().front(), 0);
  });
  all.push_back({"abort", [](World& world) {
                   if (world.open()) world.abort();
                 }});
}

void add_prompts(Operations& all, const Names& names) {
  add_admissions(all, names, [](const auto& tokens) { return !is_basic(tokens); });
}

void add_truncations(Operations& all, const Names&) {
  add_for_each(all, "truncate", [](World& world, const EntryPtr& entry) {
    world.truncate(*entry, static_cast<std::int64_t>(entry->tokens.size()) - 1);
  });
  add_for_each(all, "truncate to one token",
               [](World& world, const EntryPtr& entry) { world.truncate(*entry, 1); });
}

void add_preemptions(Operations& all, const Names&) {
  add_for_each(all, "preempt", [](World& world, const EntryPtr& e) { world.preempt(*e); });
  add_for_each(all, "resume", [](World& world, const EntryPtr& e) { world.resume(*e, 0); });
}

// All running sequences, and all preempted ones: where nothing else has blocks, they fit again.
void add_together(Operations& all, const Names&) {
  const auto chosen = [](World& world, const Order& order, bool running) {
    std::vector<EntryPtr> found;
    for (const std::size_t index : order)
      if (world.entries()[index]->running == running) found.push_back(world.entries()[index]);
    return found;
  };
  add_for_each_order(all, "regroup", [=](World& world, const Order& order) {
    const bool must_fit = world.may_regroup();
    std::vector<EntryPtr> family = chosen(world, order, true);
    for (const EntryPtr& entry : family) world.preempt(*entry, true);
    std::erase_if(family, [](const EntryPtr& entry) { return entry->running; });
    if (!family.empty()) world.resume_together(family, 0, true, must_fit);
  });
  add_for_each_order(all, "resume together", [=](World& world, const Order& order) {
    const std::vector<EntryPtr> waiting = chosen(world, order, false);
    if (!waiting.empty()) world.resume_together(waiting, 0, true);
  });
}

void add_look_aheads(Operations& all, const Names&) {
  add_for_each(all, "look ahead of", [](World& world, const EntryPtr& entry) {
    world.reserve(*entry, static_cast<std::int64_t>(entry->tokens.size()) + 2);
  });
}

void add_decodes(Operations& all, const Names&) {
  for (const Token token : {Token{0}, Token{1}})
    add_for_each_order(all, "decode " + std::to_string(token),
                       [=](World& world, const Order& order) {
                         std::vector<EntryPtr> running;
                         for (const std::size_t index : order)
                           if (world.entries()[index]->running)
                             running.push_back(world.entries()[index]);
                         world.decode(running, std::vector<Token>(running.size(), token));
                       });
}

// Parents of this many sequences, encoded as the digits of a number in that base.
std::vector<std::int64_t> parents_of(std::size_t way, std::size_t count) {
  std::vector<std::int64_t> parents;
  for (std::size_t i = 0; i < count; ++i, way /= count)
    parents.push_back(static_cast<std::int64_t>(way % count));
  return parents;
}

// Sequences that keep their tokens come last.
bool changing_first(const std::vector<std::int64_t>& parents) {
  std::vector<bool> stays;
  for (std::size_t i = 0; i < parents.size(); ++i)
    stays.push_back(parents[i] == static_cast<std::int64_t>(i));
  return !stays[0] && std::is_sorted(stays.begin(), stays.end());
}

// For any two sequences, and for three in any order: every assignment of parents.
void add_reparents(Operations& all, const Names&) {
  for (const std::size_t count : {std::size_t{2}, std::size_t{3}})
    for (std::size_t way = 0; way < (count == 2 ? 4 : 27); ++way) {
      const std::vector<std::int64_t> parents = parents_of(way, count);
      if (!changing_first(parents)) continue;
      Order order = kInOrder;
      do {
        Order named = order;
        named.resize(count);
        const std::size_t highest = *std::max_element(named.begin(), named.end());
        all.push_back({"reparent " + shown(named) + " to " + shown(parents), [=](World& world) {
                         if (world.entries().size() <= highest) return;
                         std::vector<EntryPtr> entries;
                         for (const std::size_t i : named) entries.push_back(world.entries()[i]);
                         world.reparent(entries, parents);
                       }});
      } while (std::next_permutation(order.begin(), order.end()));
    }
}

void add_part_steps(Operations& all, const Names&) {
  add_for_each_order(all, "step, one token held back", [](World& world, const Order& order) {
    world.reorder(order);
    world.step(SIZE_MAX, 1);
  });
  all.push_back({"copies applied", [](World& world) { world.resolve(); }});
}

void add_resets(Operations& all, const Names&) {
  all.push_back({"reset", [](World& world) { world.reset(true); }});
}

void add_retirements(Operations& all, const Names& names) {
  for (const int name : names)
    all.push_back({"retire " + std::to_string(name), [=](World& world) { world.retire(name); }});
}

// Admissions that do not read the cache.
void add_unread(Operations& all, const Names& names) {
  for (const Token second : {Token{0}, Token{1}})
    for (const int name : names)
      all.push_back(
          {"admit 00" + std::to_string(second) + " unread in " + std::to_string(name),
           [=](World& world) { world.admit({0, 0, second}, name, 0, 0, {.read_cache = false}); }});
}

void add_resizes(Operations& all, const Names&) {
  for (const int size : {2, 1, 0})
    all.push_back({"shrink to " + std::to_string(size), [=](World& world) { world.shrink(size); }});
  for (const int size : {1, 3})
    all.push_back({"grow to " + std::to_string(size), [=](World& world) { world.grow(size); }});
}

// Not part of "all": they interact with few other operations and would multiply the states.
const std::map<std::string, void (*)(Operations&, const Names&)> kMoreFamilies = {
    {"reset", add_resets},
    {"resize", add_resizes},
    {"retire", add_retirements},
    {"together", add_together},
    {"unread", add_unread}};

const std::map<std::string, void (*)(Operations&, const Names&)> kFamilies = {
    {"prompts", add_prompts},       {"truncate", add_truncations}, {"preempt", add_preemptions},
    {"lookahead", add_look_aheads}, {"decode", add_decodes},       {"reparent", add_reparents},
    {"parts", add_part_steps}};

}  // namespace

std::vector<Operation> make_operations(const std::string& wanted, const Names& names) {
  Operations all;
  add_few(all, names);
  if (wanted == "all") {
    for (const auto& [family, add] : kFamilies) add(all, names);
    return all;
  }
  for (std::size_t at = 0; at < wanted.size();) {
    const std::size_t end = std::min(wanted.find('+', at), wanted.size());
    const std::string family = wanted.substr(at, end - at);
    if (family != "few") {
      const auto& families = kMoreFamilies.count(family) ? kMoreFamilies : kFamilies;
      if (!families.count(family)) throw std::invalid_argument("no operations: " + family);
      families.at(family)(all, names);
    }
    at = end + 1;
  }
  return all;
}

}  // namespace blockmgr::testing
