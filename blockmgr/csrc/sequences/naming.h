// Cached blocks named by their digests, as routers and receivers of events name them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "sequences/finding.h"
#include "sequences/sessions.h"

namespace blockmgr {

// Names of blocks in one namespace: whole digests, or 8 bytes of each.
struct BlockNames {
  const std::uint8_t* bytes;
  std::int64_t count;
  int size;               // bytes a name: those of a digest, or 8
  bool leading;           // 8 bytes: the first of the digest; else the last
  std::string_view name;  // the namespace
};

class Naming : public Part<Naming, Finding, Sessions> {
 public:
  struct NamedPin {
    std::int64_t id = 0;
    std::int64_t num_blocks = 0;  // from the first block of the prompt on
    NodeId tail = kNoNode;        // the deepest of them
    std::int64_t num_cached = 0;  // up to the deepest block found
    std::int64_t num_found = 0;   // of the blocks that were named
  };

  // Retains the first of these blocks that are cached, so many at most. A level of kNoLevel
  // withdraws; ttl is in seconds. How many are cached, announced as admit's.
  std::int64_t retain_named(const BlockNames& names, int level, double ttl, std::int64_t most,
                            const std::function<void(std::int64_t)>& announce = {});
  // Pins the deepest of these blocks and what it continues: the leading blocks of its prompt, as
  // many as the budget and this bound allow. No pin is made, and none announced, where none of them
  // is cached.
  NamedPin pin_named(const BlockNames& names, std::int64_t most,
                     const std::function<void(const NamedPin&)>& announce = {});
  // The digests of the blocks of a running sequence that are cached, the first of the prompt first.
  std::vector<std::uint8_t> cached_digests(Handle handle) const;
  // Likewise of the path of a session: of its last sequence, or of what that left. None: no such
  // session is known.
  std::optional<std::vector<std::uint8_t>> session_digests(std::string_view namespace_name,
                                                           std::string_view session) const;

 private:
  // Blocks before a node in its prompt, itself included, by node; kForeign: of another namespace.
  // Hostile names must not have the same path walked again and again.
  using Depths = std::unordered_map<NodeId, std::int32_t>;

  void check_names(const BlockNames& names, const char* call) const;
  std::vector<NodeId> find_named(const BlockNames& names, Depths& depths) const;
  std::int32_t depth_of(NodeId b, NodeId root, Depths& depths) const;
  std::vector<std::uint8_t> digests_to(NodeId tip) const;
  std::vector<std::uint8_t> digests_of(const Sequence& s) const;
  std::int64_t served_to(NodeId tail, std::int64_t depth);
};

}  // namespace blockmgr
