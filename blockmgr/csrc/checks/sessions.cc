// Whether the table of sessions adds up, and what it knows.
#include <bit>
#include <map>

#include "checks/audit.h"
#include "policies/retention.h"
#include "policies/session_table.h"

namespace blockmgr {

void SessionTable::audit(BlockAudit& audit) const {
  std::map<NodeId, std::pair<std::uint32_t, std::uint32_t>> due;  // paths, of sessions that wait
  int count = 0;
  std::size_t with_deadline = 0;
  std::int32_t before = kNone;
  each([&](Id id, const Session& s) {
    const std::string who = "session " + std::to_string(id);
    audit.expect(s.prev == before, who + " is out of the ring");
    before = static_cast<std::int32_t>(id);
    ++count;
    audit.expect(names_.refs(id) == 1, who + " has no name");
    ++audit.root_refs(s.root);
    with_deadline += has_deadline(s);
    audit.expect(!has_deadline(s) || s.until > policy_.now(), who + " waits beyond its time");
    const NodeId end = tip(id);
    if (end < 0) return;
    audit.expect(range_.holds(end) && audit.valid(end) && nodes_[end].keyed(),
                 who + " has a path that is not cached");
    std::int32_t depth = 0;
    for (NodeId n = end; n >= 0 && depth <= range_.count; n = nodes_[n].parent) ++depth;
    audit.expect(depth == s.num_blocks, who + " has a path of another length");
    ++due[end].first;
    due[end].second += s.outlook == Outlook::kExpected;
  });
  audit.expect(count == size_ && size_ <= most_, "the number of sessions is wrong");
  audit.expect(with_deadline == deadlines_.size(), "a session that waits has no deadline");
  for (const NodeId n : range_) {
    const bool current = ends_[n].generation == nodes_[n].generation;
    const auto found = due.find(n);
    const auto counts = found == due.end() ? std::pair{0u, 0u} : found->second;
    audit.expect((current ? ends_[n].num_paths : 0) == counts.first &&
                     (current ? ends_[n].num_expected : 0) == counts.second,
                 BlockAudit::name(n) + " miscounts the paths that end there");
    audit.expect(policy_.is_expected_by_sessions(n) == (counts.second > 0),
                 BlockAudit::name(n) + " is expected by no session, or should be");
  }
}

void SessionTable::fingerprint(std::string& out) const {
  each([&](Id id, const Session& s) {
    out.append(names_.bytes(id));
    put_numbers(out, id, tip(id), tip(id) < 0 ? 0 : s.num_blocks, s.row, s.root, s.outlook,
                has_deadline(s) ? std::bit_cast<std::int64_t>(s.until) : 0);
  });
}

}  // namespace blockmgr
