// Why a prompt is found no further than it is.
#pragma once

#include <cstdint>

#include "sequences/finding.h"
#include "sequences/needs.h"

namespace blockmgr {

class Explaining : public Part<Explaining, Finding, Needs> {
 public:
  // What match finds, and why no more, block by block. Changes nothing.
  ExplainResult explain(const Prompt& prompt);

 private:
  int refusing_group(const NodeId* chain, std::int64_t length) const;
  std::int64_t longest_child_prefix(const Token* tokens, std::uint32_t extras, NodeId node) const;
};

}  // namespace blockmgr
