// The operations of short histories.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "canonical.h"
#include "world.h"

namespace blockmgr::testing {

struct Operation {
  std::string name;
  std::function<void(World&)> run;  // does nothing where it does not apply
};

inline constexpr int kMostSequences = 3;

// wanted is "few", "all", or few and further families: "few+preempt+decode". Renaming sequences,
// token values or namespaces maps the set of operations onto itself, so states that differ only in
// these names can be treated as one.
std::vector<Operation> make_operations(const std::string& wanted, const Names& names);

}  // namespace blockmgr::testing
