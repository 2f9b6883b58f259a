#include "identity/interning.h"

#include <utility>

namespace blockmgr {

Interner::Interner() {
  auto [it, inserted] = ids_.emplace(std::string(), 0);
  entries_.push_back({&it->first, 1});
}

std::uint32_t Interner::find(std::string_view bytes) const {
  if (bytes.empty()) return 0;  // nearly always: the default namespace
  auto it = ids_.find(bytes);
  return it == ids_.end() ? kUnknownId : it->second;
}

std::uint32_t Interner::intern(std::string_view bytes) {
  std::uint32_t known = find(bytes);
  if (known != kUnknownId) {
    retain(known);
    return known;
  }
  // Room for the entry and for giving its id back comes first: release must not allocate.
  if (entries_.size() == entries_.capacity()) entries_.reserve(2 * entries_.size() + 8);
  unused_.reserve(entries_.capacity());
  std::uint32_t id = unused_.empty() ? static_cast<std::uint32_t>(entries_.size()) : unused_.back();
  auto [it, inserted] = ids_.emplace(std::string(bytes), id);
  if (unused_.empty()) {
    entries_.emplace_back();
  } else {
    unused_.pop_back();
  }
  entries_[id] = {&it->first, 1};
  memory_ += bytes.size();
  return id;
}

bool Interner::release(std::uint32_t id) noexcept {
  if (!id || --entries_[id].refs) return false;
  memory_ -= entries_[id].bytes->size();
  ids_.erase(ids_.find(*entries_[id].bytes));
  entries_[id].bytes = nullptr;
  unused_.push_back(id);
  return true;
}

ExtrasIds known_extras(const Interner& interner, const ExtrasBytes& extras) {
  ExtrasIds ids;
  ids.reserve(extras.size());
  for (const auto& [block, bytes] : extras) ids.emplace_back(block, interner.find(bytes));
  return ids;
}

}  // namespace blockmgr
