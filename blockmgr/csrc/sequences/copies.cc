#include "sequences/copies.h"

#include "memory/errors.h"

namespace blockmgr {

void check_ticket(bool in_flight, std::int64_t ticket, std::int64_t last) {
  if (!in_flight || ticket != last)
    throw Error(ErrorKind::kTicket,
                "ticket " + std::to_string(ticket) +
                    (ticket >= 1 && ticket <= last ? " is resolved already" : " was never taken"));
}

void check_resolved(bool in_flight, std::int64_t last) {
  if (in_flight)
    throw Error(ErrorKind::kStep, "ticket " + std::to_string(last) +
                                      " is not resolved; call copies_applied or copies_aborted");
}

void CopyTracker::plan(NodeId source, NodeId destination, std::int32_t num_tokens) noexcept {
  if (nodes_[source].copy_source == source) [[unlikely]]
    return plan_zeros(destination);
  num_tokens = reach(source, num_tokens);
  const NodeId root = nodes_[source].copy_source == kNoNode ? source : nodes_[source].copy_source;
  pool_.pin(root);
  nodes_[destination].copy_source = root;
  nodes_[destination].copy_tokens = static_cast<std::uint16_t>(num_tokens);
  pending_.push_back(destination);
  num_planned_ += !pool_.is_bare(destination);
}

void CopyTracker::plan_zeros(NodeId block) noexcept {
  drop(block);
  pool_.pin(block);
  nodes_[block].copy_source = block;
  nodes_[block].copy_tokens = static_cast<std::uint16_t>(nodes_.block_size);
  pending_.push_back(block);
}

void CopyTracker::drop(NodeId destination) noexcept {
  Node& record = nodes_[destination];
  if (record.copy_source == kNoNode) return;
  pending_.remove(destination);
  const NodeId root = record.copy_source;
  record.copy_source = kNoNode;
  record.copy_tokens = 0;
  num_cancelled_ += root != destination && !pool_.is_bare(destination);
  pool_.unpin(root);
}

int CopyTracker::num_to_do() const {
  if (!pool_.is_bare()) return num_pending();
  int count = 0;
  each_pending([&](const Copy& copy) { count += !pool_.is_bare(copy.destination); });
  return count;
}

const std::vector<Copy>& CopyTracker::take() noexcept {
  flight_.clear();
  while (!pending_.empty()) {
    const NodeId b = pending_.front();
    pending_.remove(b);
    Node& record = nodes_[b];
    flight_.push_back({record.copy_source, b, record.copy_tokens});
    record.copy_source = kNoNode;
    record.copy_tokens = 0;
    record.in_flight = 1;
    pool_.pin(b);  // the copy will write this block even if its table is gone by then
  }
  open_ = true;
  return flight_;
}

void CopyTracker::applied() noexcept {
  for (const Copy& copy : flight_) {
    nodes_[copy.destination].in_flight = 0;
    pool_.unpin(copy.source);
    pool_.unpin(copy.destination);
  }
  flight_.clear();
  open_ = false;
}

void CopyTracker::aborted() noexcept {
  for (Copy& copy : flight_) {
    Node& record = nodes_[copy.destination];
    record.copy_tokens = static_cast<std::uint16_t>(copy.num_tokens);
    if (record.copy_source == copy.destination) {  // to be zeros by now
      pending_.remove(copy.destination);
      pool_.unpin(copy.destination);
      copy.num_tokens = 0;
    }
    record.copy_source = copy.source;
  }
  // What was recorded since may read a block whose own copy has not happened after all.
  for (NodeId b = pending_.front(); b != pending_.end(); b = pending_.after(b)) {
    Node& record = nodes_[b];
    const NodeId source = record.copy_source;
    if (!nodes_[source].in_flight) continue;
    if (nodes_[source].copy_source == source) {
      record.copy_source = b;
      pool_.pin(b);
      pool_.unpin(source);
      continue;
    }
    const std::int32_t reached = reach(source, record.copy_tokens);
    record.copy_tokens = static_cast<std::uint16_t>(reached);
    record.copy_source = nodes_[source].copy_source;
    pool_.pin(record.copy_source);
    pool_.unpin(source);
  }
  for (std::size_t i = flight_.size(); i-- > 0;) {
    const NodeId destination = flight_[i].destination;
    nodes_[destination].in_flight = 0;
    pending_.push_front(destination);
    if (nodes_.uses(destination).ref_count == 0)
      drop(destination);
    else if (!flight_[i].num_tokens)
      plan_zeros(destination);
    pool_.unpin(destination);
  }
  flight_.clear();
  open_ = false;
}

}  // namespace blockmgr
