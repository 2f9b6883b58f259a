// Sequences and their block tables: everything an engine asks for, on block ids and tokens.
//
// Every public call first checks and counts, with nothing changed (it may throw, it may hash, it
// may allocate), and then commits without being able to fail.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "sequences/admitting.h"
#include "sequences/committing.h"
#include "sequences/decoding.h"
#include "sequences/ending.h"
#include "sequences/explaining.h"
#include "sequences/forgetting.h"
#include "sequences/forking.h"
#include "sequences/growing.h"
#include "sequences/holding.h"
#include "sequences/launching.h"
#include "sequences/naming.h"
#include "sequences/reading.h"
#include "sequences/resuming.h"
#include "sequences/retaining.h"
#include "sequences/sessions.h"

namespace blockmgr {

// One manager: its rows, and the parts that work on them, each of which uses some of those before
// it.
class Sequences : public Rows,
                  public Slices,
                  public GroupTables,
                  public Keeping,
                  public Finding,
                  public Needs,
                  public Growing,
                  public GroupEnds,
                  public Committing,
                  public Decoding,
                  public Holding,
                  public Sessions,
                  public Admitting,
                  public Forgetting,
                  public Ending,
                  public Forking,
                  public Resuming,
                  public Retaining,
                  public Naming,
                  public Explaining,
                  public Launching,
                  public Reading {
 public:
  // make: makes a policy of the caller's own; empty: the config names one.
  Sequences(const Config& config, std::unique_ptr<Digester> digester,
            const PolicyMaker& make = nullptr)
      : Rows(config, std::move(digester), make) {}

  using Launching::copies_aborted;
  using Launching::copies_applied;
  using Launching::residents;
  using Launching::return_copies;
  using Launching::take_copies;
  using Rows::config;
  using Rows::copies;
  using Rows::groups;
  using Rows::has_groups;
  using Rows::index;
  using Rows::nodes;
  using Rows::pool;

  std::size_t memory() const;

  // How much each call checks, at run time: 0 its arguments; 1 also each step it makes, with freed
  // blocks overwritten; 2 also every invariant, afterwards.
  void set_debug(int level);
  int debug() const { return debug_; }
  // What those checks found wrong after the last call, one sentence each.
  std::vector<std::string> findings();
  // Throws them. The call is done, so a check that runs out of memory must not look like a call
  // that was refused.
  void check_findings();
  // Every broken invariant, one sentence each, recomputed from scratch.
  std::vector<std::string> violations() const;
  // Every fact a caller could ever observe, as bytes; guesses (hints) and scratch left out.
  std::string fingerprint() const;

 private:
  friend class Audit;
  int debug_ = 0;
};

// A call with the checks of the debug level after it, whether it finishes or throws.
template <class Call>
auto with_findings(Sequences& core, const Call& call) {
  if (!core.debug()) return call();
  try {
    if constexpr (std::is_void_v<decltype(call())>) {
      call();
      core.check_findings();
    } else {
      auto result = call();
      core.check_findings();
      return result;
    }
  } catch (const BrokenInvariants&) {
    throw;
  } catch (...) {
    core.check_findings();
    throw;
  }
}

template <class Own, class... Used>
Rows& Part<Own, Used...>::rows() {
  return static_cast<Sequences&>(static_cast<Own&>(*this));
}

template <class Own, class... Used>
const Rows& Part<Own, Used...>::rows() const {
  return static_cast<const Sequences&>(static_cast<const Own&>(*this));
}

template <class Own, class... Used>
template <class Other>
Other& Part<Own, Used...>::other() {
  return static_cast<Sequences&>(static_cast<Own&>(*this));
}

template <class Own, class... Used>
template <class Other>
const Other& Part<Own, Used...>::other() const {
  return static_cast<const Sequences&>(static_cast<const Own&>(*this));
}

}  // namespace blockmgr
