// Taking back what a sequence committed ahead of a forward, because it leaves before that forward.
#include <algorithm>

#include "sequences/sequences.h"

namespace blockmgr {

// Before a sequence releases its blocks. The forward will not write them, so no prompt may find
// them afterwards. Another sequence that has found one already relies on it: then the call is
// refused.
void Sequences::check_withdrawal(const Sequence& s, const char* call) const {
  if (!committed_ahead(s)) return;
  refuse_open_ticket(call);
  const auto check = [&](NodeId n) {
    if (nodes_[n].unwritten && nodes_.uses(n).ref_count > 1)
      throw Error(ErrorKind::kStep, std::string("cannot ") + call + " sequence " +
                                        std::to_string(handle_of(row_of(s))) + ": block " +
                                        std::to_string(nodes_.name(n)) +
                                        ", which this step's forward writes for it, is shared");
  };
  const std::int32_t* t = table(s);
  for (std::int64_t i = settled(s) / config_.block_size; i < s.num_chained; ++i) {
    check(t[i]);
    each_part(s, i, [&](int, NodeId part) { check(part); });
  }
}

void Sequences::forget_unwritten(NodeId n) noexcept {
  unwritten_.remove(n);
  nodes_[n].unwritten = 0;
}

// The last first, so that each goes after what continues it. A block may have come to its key, and to
// children, by a twin without a table: those go with it.
void Sequences::withdraw(Sequence& s) noexcept {
  if (!committed_ahead(s)) return;
  const std::int64_t kept = settled(s) / config_.block_size;
  const std::int32_t* t = table(s);
  for (std::int64_t i = s.num_chained; i-- > kept;) {
    const Node& record = nodes_[t[i]];
    each_part(s, i, [&](int g, NodeId part) {
      if (!nodes_[part].unwritten) return;
      forget_unwritten(part);
      if (!record.unwritten) groups_->lose_part(g, t[i]);
    });
    if (!record.unwritten) continue;
    forget_unwritten(t[i]);
    // To a twin, which the same forward writes for another, the key passes with the release.
    if (!record.keyed()) {
      pool_.drop_twin(t[i]);
    } else if (pool_.first_twin(t[i]) < 0) {
      forget_chain(t[i]);
    }
  }
  s.num_chained = static_cast<std::int32_t>(std::min<std::int64_t>(s.num_chained, kept));
  limit_computed(s, settled(s));
}

}  // namespace blockmgr
