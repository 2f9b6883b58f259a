#include "sequences/sequences.h"

#include <new>

namespace blockmgr {

void Sequences::set_debug(int level) {
  Call call(*this);
  pool_.set_debug(level > 0);
  debug_ = level;
}

std::vector<std::string> Sequences::findings() {
  const Held held(monitor_, Held::Afterwards());
  std::vector<std::string> found;
  if (!held) return found;
  if (std::string fault = pool_.take_fault(); !fault.empty()) found.push_back(std::move(fault));
  if (debug_ > 1)
    for (std::string& violation : violations()) found.push_back(std::move(violation));
  return found;
}

void Sequences::check_findings() {
  try {
    if (std::vector<std::string> found = findings(); !found.empty())
      throw BrokenInvariants(std::move(found));
  } catch (const std::bad_alloc&) {
  }
}

std::size_t Sequences::memory() const {
  return Rows::memory() + GroupTables::memory() + Finding::memory() + Admitting::memory() +
         Committing::memory() + Decoding::memory() + Holding::memory();
}

}  // namespace blockmgr
