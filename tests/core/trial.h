// Calls on trial: a Trial may make a call several times before it completes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace blockmgr::testing {

// The object of a call, as far as a trial may inspect it.
struct Subject {
  std::function<std::string()> fingerprint;
  std::function<std::vector<std::string>()> violations;
  std::function<std::size_t()> memory;  // the bytes it reports
  std::function<void()> rewind;         // undoes the world's own changes in an attempt
};

class Trial {
 public:
  virtual ~Trial() = default;
  // Makes the call; throws the exception of its last attempt.
  virtual void make(const char* name, const Subject& subject,
                    const std::function<void()>& call) = 0;
};

}  // namespace blockmgr::testing
