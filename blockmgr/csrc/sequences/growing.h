// More slots and more tokens, and the copies before a write that they need.
#pragma once

#include <cstdint>

#include "sequences/group_tables.h"
#include "sequences/needs.h"

namespace blockmgr {

class Growing : public Part<Growing, GroupTables, Needs> {
 public:
  void check_append(Handle handle, std::int64_t count) const;
  void reserve(Handle handle, std::int64_t num_slots);
  void append(Handle handle, const Token* tokens, std::int64_t count);
  void refuse_unwritten(const Sequence& s, std::int64_t logical, const char* call) const;
  void make_private(Sequence& s, std::int64_t logical, std::int64_t num_valid) noexcept;
  // Takes the nodes and parts that a sequence lacks for so many slots, in blocks behind its own.
  void extend(Sequence& s, std::int64_t slots) noexcept;

 private:
  bool must_copy(const Sequence& s, std::int64_t logical) const;
  GrowthPlan plan_growth(const Sequence& s, std::int64_t slots, std::int64_t num_tokens,
                         const char* call) const;
  void grow(Sequence& s, std::int64_t slots, const GrowthPlan& plan) noexcept;
};

}  // namespace blockmgr
