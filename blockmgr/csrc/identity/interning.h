// Byte strings that take part in a block's identity, kept once and counted.
//
// An id is alive while a sequence or a keyed block refers to it, so the table is as large as what
// is in use, never as large as what was ever seen.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "memory/node.h"

namespace blockmgr {

inline constexpr std::uint32_t kUnknownId = 0xffffffff;

// Id 0 is the empty string and is never counted.
class Interner {
 public:
  Interner();
  // The id of these bytes, or kUnknownId.
  std::uint32_t find(std::string_view bytes) const;
  // The id of these bytes with one reference added; may allocate, then throws and adds nothing.
  std::uint32_t intern(std::string_view bytes);
  void retain(std::uint32_t id) noexcept {
    if (id) ++entries_[id].refs;
  }
  // Whether that was the last reference; the id may then be given to other bytes.
  bool release(std::uint32_t id) noexcept;
  std::string_view bytes(std::uint32_t id) const { return *entries_[id].bytes; }
  std::uint32_t refs(std::uint32_t id) const { return entries_[id].refs; }
  std::size_t size() const { return entries_.size(); }
  std::size_t memory() const {
    return memory_ + entries_.capacity() * sizeof(Entry) +
           unused_.capacity() * sizeof(std::uint32_t);
  }

 private:
  struct Entry {
    const std::string* bytes = nullptr;  // the key in ids_; nullptr: the id is unused
    std::uint32_t refs = 0;
  };
  // Looks up bytes as they are, without a copy.
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view bytes) const {
      return std::hash<std::string_view>()(bytes);
    }
  };
  std::unordered_map<std::string, std::uint32_t, Hash, std::equal_to<>> ids_;
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> unused_;
  std::size_t memory_ = 0;
};

// Extra keys of a sequence by logical block, sorted; few sequences have any.
using ExtrasIds = std::vector<std::pair<std::int32_t, std::uint32_t>>;

// The same as bytes, as a caller has them.
using ExtrasBytes = std::vector<std::pair<std::int32_t, std::string_view>>;

// Their ids without making any: bytes without a holder cannot be part of a cached block.
ExtrasIds known_extras(const Interner& interner, const ExtrasBytes& extras);

// The entry of the first block from this one on that has extra keys, or nullptr.
inline const ExtrasIds::value_type* extras_from(const ExtrasIds* extras, std::int64_t block) {
  if (!extras || extras->empty()) return nullptr;
  auto it = std::lower_bound(extras->begin(), extras->end(), block,
                             [](const auto& entry, std::int64_t b) { return entry.first < b; });
  return it != extras->end() ? &*it : nullptr;
}

inline std::uint32_t extras_at(const ExtrasIds* extras, std::int64_t block) {
  const auto* entry = extras_from(extras, block);
  return entry && entry->first == block ? entry->second : 0;
}

// That block; past all blocks, if none has extra keys.
inline std::int64_t next_extras(const ExtrasIds* extras, std::int64_t block) {
  const auto* entry = extras_from(extras, block);
  return entry ? entry->first : INT64_MAX;
}

// An ExtrasIds that holds a reference to each id.
class ExtrasMap {
 public:
  ~ExtrasMap() {
    // The last one first, so that ids taken in vain go out again in the same order.
    for (auto entry = ids_.rbegin(); entry != ids_.rend(); ++entry)
      interner_->release(entry->second);
  }
  ExtrasMap(Interner& interner, const ExtrasBytes& extras) : ExtrasMap(interner, extras.size()) {
    for (const auto& [block, bytes] : extras) ids_.emplace_back(block, interner.intern(bytes));
  }
  ExtrasMap(const ExtrasMap&) = delete;
  ExtrasMap& operator=(const ExtrasMap&) = delete;
  const ExtrasIds& ids() const { return ids_; }

 private:
  // Complete before the first id is taken, so that the destructor gives back what was.
  ExtrasMap(Interner& interner, std::size_t size) : interner_(&interner) { ids_.reserve(size); }

  Interner* interner_;
  ExtrasIds ids_;
};

}  // namespace blockmgr
