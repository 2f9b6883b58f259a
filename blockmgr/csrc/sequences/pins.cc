// Retention as any holder of blocks has it: levels, pins and time, by partition.
#include <cmath>

#include "sequences/store.h"

namespace blockmgr {

void Store::check_retaining(const char* call) const {
  if (!retains_)
    throw Error(ErrorKind::kValue,
                std::string(call) + " needs a " + monitor_.what() + " with retention=True");
}

RetainingPolicy& Store::retaining(const char* call, int partition) const {
  check_retaining(call);
  return *pool_.partition(partition).retention;
}

// Pins are numbered through all partitions, in their order.
RetainingPolicy& Store::pinning(const char* call, std::int64_t pin) const {
  check_retaining(call);
  int own = 0;
  for (int end = pool_.num_partitions(); end - own > 1;) {
    const int middle = own + (end - own) / 2;
    (pool_.partition(middle).retention->begins_after(pin) ? end : own) = middle;
  }
  RetainingPolicy& policy = *pool_.partition(own).retention;
  if (!policy.find_pin(pin)) throw UnknownPin(pin);
  return policy;
}

std::int64_t Store::pin_chain(RetainingPolicy& policy, NodeId tail, std::int64_t num_blocks,
                              const std::function<void(std::int64_t)>& announce) {
  const std::int64_t needed = policy.count_unpinned(tail);
  const std::int64_t available = policy.max_pinned() - policy.num_cached(kPinned);
  if (needed > available) throw PinBudget(needed, available, policy.max_pinned());
  if (!policy.can_pin()) throw PinBudget(1, 0, policy.max_pinned());
  if (announce) announce(policy.next_pin());
  return policy.pin(tail, num_blocks);
}

void Store::unpin(std::int64_t pin) {
  const Held held(monitor_);
  pinning("unpin", pin).unpin(pin);
}

RetainingPolicy::Pin Store::view_pin(std::int64_t pin) const {
  return *pinning("pinned", pin).find_pin(pin);
}

double Store::time() const {
  check_retaining("time");
  return time_;
}

void Store::set_time(double seconds) {
  const Held held(monitor_);
  check_retaining("set_time");
  if (!std::isfinite(seconds) || seconds < time_)
    throw Error(ErrorKind::kValue, "seconds must be finite and at least " + std::to_string(time_) +
                                       ", the time set last, got " + std::to_string(seconds));
  time_ = seconds;
  for (int i = 0; i < pool_.num_partitions(); ++i) pool_.partition(i).retention->set_time(seconds);
}

}  // namespace blockmgr
