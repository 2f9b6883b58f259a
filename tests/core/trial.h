// Calls under trial: code here may make a call several times before it goes through.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace blockmgr::testing {

// What a call is made on, as far as a trial may look at it.
struct Subject {
  std::function<std::string()> fingerprint;
  std::function<std::vector<std::string>()> violations;
  std::function<std::size_t()> memory;  // bytes that it says it holds
  std::function<void()> rewind;         // what the world changes itself in an attempt, undone
};

class Trial {
 public:
  virtual ~Trial() = default;
  // Makes the call; throws what its last attempt throws.
  virtual void make(const char* name, const Subject& subject,
                    const std::function<void()>& call) = 0;
};

}  // namespace blockmgr::testing
