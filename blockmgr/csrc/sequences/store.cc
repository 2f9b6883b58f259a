#include "sequences/store.h"

#include <algorithm>
#include <utility>

namespace blockmgr {

std::vector<int> Store::apart(const StoreConfig& config) {
  std::vector<int> blocks;
  if (config.num_nodes) blocks.push_back(config.num_blocks - config.null_block);
  for (const Quota& quota : config.quotas) blocks.push_back(quota.blocks);
  return blocks;
}

Store::Store(const StoreConfig& config, std::unique_ptr<Digester> digester, const char* what,
             const PolicyMaker& make)
    : digester_(std::move(digester)),
      nodes_(
          Pool::num_nodes(config.num_blocks + config.num_nodes, config.null_block, apart(config)),
          config.num_blocks + config.num_nodes, config.block_size,
          digester_ ? digester_->size() : 0,
          Pool::num_lists(config.steps_in_flight, static_cast<int>(apart(config).size()))),
      index_(nodes_, digester_.get()),
      pool_(nodes_, index_, config.null_block ? 1 : 0, config.steps_in_flight, apart(config),
            config.num_nodes),
      copies_(nodes_, pool_),
      unwritten_(nodes_, pool_.unwritten_sentinel()),
      steps_in_flight_(config.steps_in_flight),
      retains_(config.retention),
      has_groups_(!config.groups.empty()),
      monitor_(what) {
  open_steps_.reserve(nth(steps_in_flight_));
  if (!config.remap && digester_) pool_.keep_twins();
  if (config.event_blocks)
    index_.follow(std::make_unique<EventLog>(nodes_, config.event_blocks, config.full_group,
                                             config.retention && config.max_sessions));
  // Pools, logs, ghosts and policies of other kinds know blocks by their digests.
  if (digester_ && digester_->never_fails() && config.eviction == "lru" && !make &&
      !config.ghost_blocks && !config.event_blocks && !config.evicts_on_demand)
    index_.digest_on_demand();
  name_partitions(config);
  observe(config, make);
}

// The namespaces with blocks of their own are the first to be known, and stay so: a look-up by the
// number of the root tells them from all others.
void Store::name_partitions(const StoreConfig& config) {
  if (config.quotas.empty()) return;
  partitions_.resize(1 + config.quotas.size());
  for (std::size_t i = 0; i < config.quotas.size(); ++i)
    partitions_[index_.acquire_root(config.quotas[i].name)] = static_cast<std::uint16_t>(1 + i);
}

int Store::share_of_pins(const StoreConfig& config, int capacity) {
  const std::int64_t all = config.num_blocks - config.null_block;
  return static_cast<int>(std::int64_t{config.max_pinned_blocks} * capacity / all);
}

// Each partition gets all that the config asks for, as if it were a pool of its own: an order, a
// policy's or its own (least recently used first), under retention or not, and a past.
void Store::observe(const StoreConfig& config, const PolicyMaker& make) {
  // Rounded up, so that each partition knows some.
  const auto share = [&](std::int64_t number, int capacity) {
    const std::int64_t all = config.num_blocks - config.null_block;
    return static_cast<int>((number * capacity + all - 1) / all);
  };
  std::int32_t first_pin = 0;
  for (int i = 0; i < pool_.num_partitions(); ++i) {
    const Range range = pool_.partition(i).range;
    if (pool_.nodes_of(i) != i) continue;  // of parts alone
    std::unique_ptr<Policy> policy;
    if (range.count)
      policy =
          make ? make(nodes_, index_, range) : make_policy(config.eviction, nodes_, index_, range);
    RetainingPolicy* retention = nullptr;
    if (config.retention) {
      const int pins = share_of_pins(config, range.num_blocks);
      auto retaining = std::make_unique<RetainingPolicy>(
          nodes_, index_, range, std::move(policy), pins, first_pin,
          share(config.max_sessions, range.num_blocks));
      first_pin += pins;
      retention = retaining.get();
      policy = std::move(retaining);
    }
    std::unique_ptr<ReuseTracker> past;
    if (config.ghost_blocks && digester_ && range.count)
      past = std::make_unique<ReuseTracker>(nodes_, index_, range,
                                            share(config.ghost_blocks, range.num_blocks),
                                            !policy && !config.evicts_on_demand);
    pool_.observe(i, std::move(policy), retention, std::move(past));
  }
}

void Store::throw_out_of_blocks(std::int64_t needed, int partition) const {
  throw OutOfBlocks(needed, available(partition), 0, pool_.is_bare() && !partition);
}

void Store::throw_no_block(std::int64_t id, std::int64_t position) const {
  std::string message = (position < 0 ? "block must be in [" : "blocks must be in [") +
                        std::to_string(pool_.num_reserved()) + ", " +
                        std::to_string(pool_.num_blocks()) + "), got " + std::to_string(id);
  if (position >= 0) message += " at index " + std::to_string(position);
  throw Error(ErrorKind::kValue, message);
}

// One reference to what a copy is pending into goes.
void Store::release_destination(NodeId b) noexcept {
  if (nodes_.uses(b).ref_count == 1) copies_.drop(b);
}

std::int32_t Store::copy_to_fresh(NodeId shared, NodeId fresh, std::int64_t num_known,
                                  std::int64_t num_tokens) noexcept {
  std::copy_n(nodes_.tokens(shared), num_known, nodes_.tokens(fresh));
  const std::int32_t brought = copies_.reach(shared, static_cast<std::int32_t>(num_tokens));
  if (brought > 0) copies_.plan(shared, fresh, brought);
  return brought;
}

std::int64_t Store::find_ghosts(const ReuseTracker& past, const Token* tokens, std::int64_t from,
                                std::int64_t limit, NodeId node, const ExtrasIds* extras,
                                std::int32_t* out) {
  std::uint8_t digest[kMaxDigest];
  const std::uint8_t* before = index_.digest_of(node);
  std::int64_t count = 0;
  for (std::int64_t i = from; i < limit; ++i, ++count, before = digest) {
    index_.digest(before, extras_at(extras, i), tokens + i * nodes_.block_size, digest);
    const std::int32_t ghost = past.find(digest);
    if (ghost < 0) break;
    out[count] = ghost;
  }
  return count;
}

void Store::check_launch() const {
  check_resolved(copies_.in_flight(), last_ticket_);
  if (steps_in_flight_ && open_steps_.size() == nth(steps_in_flight_))
    throw Error(ErrorKind::kStep, std::to_string(open_steps_.size()) +
                                      " steps are in flight, as many as steps_in_flight allows; "
                                      "call complete first");
}

std::int64_t Store::take_copies(std::vector<BlockCopy>& copies) {
  const Held held(monitor_);
  return take_plan(copies);
}

std::int64_t Store::take_plan(std::vector<BlockCopy>& copies) {
  check_launch();
  copies_.reserve();
  copies.resize(nth(copies_.num_pending()));
  auto out = copies.begin();
  for (const Copy& copy : copies_.take())
    if (!pool_.is_bare(copy.destination)) [[likely]]
      *out++ = {nodes_.name(copy.source), nodes_.name(copy.destination), copy.num_tokens};
  copies.erase(out, copies.end());
  ++last_ticket_;
  if (steps_in_flight_) {
    const int fence = open_steps_.empty() ? 1 : open_steps_.back().fence % steps_in_flight_ + 1;
    open_steps_.push_back({last_ticket_, fence});
    pool_.set_fence(fence);
  }
  return last_ticket_;
}

void Store::copies_applied(std::int64_t ticket) {
  const Held held(monitor_);
  apply_plan(ticket);
}

void Store::apply_plan(std::int64_t ticket) {
  check_ticket(copies_.in_flight(), ticket, last_ticket_);
  copies_.applied();
  for (NodeId b = unwritten_.front(); b != unwritten_.end(); b = unwritten_.after(b))
    nodes_[b].unwritten = 0;
  unwritten_.clear();
  ++step_;
  if (EventLog* log = index_.log()) log->set_step(step_);
}

bool Store::drop_events(std::int64_t version) {
  const Held held(monitor_);
  return index_.drop_events(version);
}

void Store::abort_copies(std::int64_t ticket) noexcept {
  copies_.aborted();
  // The step was never launched: what was released under it waits only for the step before.
  if (!open_steps_.empty() && open_steps_.back().ticket == ticket) {
    const int fence = open_steps_.back().fence;
    open_steps_.pop_back();
    const int before = open_steps_.empty() ? 0 : open_steps_.back().fence;
    pool_.set_fence(before);
    pool_.move_fence(fence, before);
  }
}

void Store::copies_aborted(std::int64_t ticket) {
  const Held held(monitor_);
  abort_plan(ticket);
}

void Store::abort_plan(std::int64_t ticket) {
  check_ticket(copies_.in_flight(), ticket, last_ticket_);
  abort_copies(ticket);
}

void Store::return_copies(std::int64_t ticket) noexcept {
  const Held held(monitor_, Held::Afterwards());
  if (held) return_plan(ticket);
}

bool Store::return_plan(std::int64_t ticket) noexcept {
  // Unless another thread has guessed the number, and resolved it.
  if (!copies_.in_flight() || ticket != last_ticket_) return false;
  abort_copies(ticket);
  --last_ticket_;
  return true;
}

void Store::complete(std::int64_t ticket) {
  const Held held(monitor_);
  if (!steps_in_flight_) throw Error(ErrorKind::kStep, "complete needs steps_in_flight above 0");
  if (open_steps_.empty() || ticket < open_steps_.front().ticket || ticket > last_ticket_)
    throw Error(ErrorKind::kStep,
                "ticket " + std::to_string(ticket) +
                    (ticket > last_ticket_ ? " was never taken" : " is complete already"));
  std::size_t done = 0;
  while (done < open_steps_.size() && open_steps_[done].ticket <= ticket)
    pool_.move_fence(open_steps_[done++].fence, 0);
  open_steps_.erase(open_steps_.begin(), open_steps_.begin() + static_cast<std::ptrdiff_t>(done));
  if (open_steps_.empty()) pool_.set_fence(0);
}

std::size_t Store::store_memory() const {
  return nodes_.bytes() + index_.memory() + pool_.memory() + copies_.memory() +
         open_steps_.capacity() * sizeof(OpenStep) + partitions_.capacity() * sizeof partitions_[0];
}

}  // namespace blockmgr
