// The operations that short histories are made of.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "canonical.h"
#include "world.h"

namespace blockmgr::testing {

struct Operation {
  std::string name;
  std::function<void(World&)> run;  // does nothing where there is nothing to do it to
};

inline constexpr int kMostSequences = 3;

// "few", "all", or few and families of others: "few+preempt+decode". For any names of sequences,
// token values and namespaces the operations are the same set: so nothing is lost when states that
// differ only in these are taken for one.
std::vector<Operation> make_operations(const std::string& wanted, const Names& names);

}  // namespace blockmgr::testing
