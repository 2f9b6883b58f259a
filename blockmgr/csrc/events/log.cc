#include "events/log.h"

namespace blockmgr {

namespace {

// Room for names of sessions, in bytes for each block of the log.
constexpr std::int64_t kNameBytes = 32;

}  // namespace

EventLog::EventLog(const Nodes& nodes, std::int64_t capacity, int full_group, bool has_sessions)
    : digest_size_(static_cast<std::size_t>(nodes.digest_size)),
      block_size_(static_cast<std::size_t>(nodes.block_size)),
      capacity_(capacity),
      full_group_(full_group),
      runs_(static_cast<std::size_t>(capacity)),
      digests_(static_cast<std::size_t>(capacity) * digest_size_),
      parents_(static_cast<std::size_t>(capacity) * digest_size_),
      tokens_(static_cast<std::size_t>(capacity) * block_size_),
      extras_(static_cast<std::size_t>(capacity)),
      roots_(static_cast<std::size_t>(nodes.count)),
      names_(has_sessions ? static_cast<std::size_t>(capacity * kNameBytes) : 0) {}

bool EventLog::add_run(EventKind kind, int group) noexcept {
  ++version_;
  // Nothing follows a loss: a reader then needs a snapshot, and events must have no gaps.
  if (num_lost_ || full_of_runs() || num_blocks_ == capacity_) return false;
  runs_[static_cast<std::size_t>(num_runs_++)] = {
      kind, false, static_cast<std::uint8_t>(group), 0, step_, num_blocks_, 0};
  return true;
}

void EventLog::add_block(const std::uint8_t* digest) noexcept {
  std::memcpy(&digests_[static_cast<std::size_t>(num_blocks_) * digest_size_], digest,
              digest_size_);
  ++num_blocks_;
  ++last_run().num_blocks;
}

EventLog::Recorded EventLog::stored(NodeId b, int group, NodeId parent,
                                    const std::uint8_t* parent_digest, const std::uint8_t* digest,
                                    const Token* tokens, std::uint32_t extras) noexcept {
  group = number_of(group);
  const bool extends = last_ != kNoNode && last_ == parent && num_blocks_ < capacity_ &&
                       last_run().step == step_ && last_run().group == group &&
                       session_.view() == last_session_.view();
  if (extends) {
    ++version_;
  } else {
    last_ = kNoNode;
    if (!add_run(EventKind::kStored, group)) {
      ++num_lost_;
      return kLost;
    }
    EventRun& run = last_run();
    run.root = root_of(b);
    run.has_parent = parent_digest != nullptr;
    name_run(run);
    if (parent_digest)
      std::memcpy(&parents_[static_cast<std::size_t>(num_runs_ - 1) * digest_size_], parent_digest,
                  digest_size_);
  }
  add_block(digest);
  std::memcpy(&tokens_[static_cast<std::size_t>(num_stored_) * block_size_], tokens,
              block_size_ * sizeof(Token));
  if (extras) extras_[static_cast<std::size_t>(num_extras_++)] = {num_stored_, extras};
  ++num_stored_;
  last_ = b;
  return extends ? kExtended : kNewRun;
}

void EventLog::name_run(EventRun& run) noexcept {
  last_session_ = session_;
  if (!session_.size) return;
  const auto size = static_cast<std::int32_t>(session_.size);
  const auto room = static_cast<std::int64_t>(names_.bytes());
  if (num_name_bytes_ + size > room) return;
  std::memcpy(names_.data() + num_name_bytes_, session_.bytes, session_.size);
  run.session_at = num_name_bytes_;
  run.session_size = size;
  num_name_bytes_ += size;
}

void EventLog::removed(int group, const std::uint8_t* digest) noexcept {
  group = number_of(group);
  last_ = kNoNode;
  if (num_runs_ && !num_lost_ && num_blocks_ < capacity_) {
    const EventRun& run = last_run();
    if (run.kind == EventKind::kRemoved && run.step == step_ && run.group == group) {
      ++version_;
      add_block(digest);
      return;
    }
  }
  if (add_run(EventKind::kRemoved, group)) {
    add_block(digest);
  } else {
    ++num_lost_;
  }
}

void EventLog::cleared() noexcept {
  last_ = kNoNode;
  if (!add_run(EventKind::kCleared, 0)) ++num_lost_;
}

void EventLog::moved(NodeId from, NodeId to) noexcept {
  set_root(to, root_of(from));
  if (last_ == from) last_ = to;
}

void EventLog::drop() noexcept {
  ++version_;
  num_runs_ = num_blocks_ = num_stored_ = num_extras_ = num_lost_ = num_name_bytes_ = 0;
  last_ = kNoNode;
}

std::size_t EventLog::bytes() const {
  return runs_.bytes() + digests_.bytes() + parents_.bytes() + tokens_.bytes() + extras_.bytes() +
         roots_.bytes() + names_.bytes();
}

}  // namespace blockmgr
