#include "sequences/sequences.h"

#include <algorithm>
#include <atomic>

namespace blockmgr {

namespace {

// The remap log is a convenience for engines that keep tables of their own; one that never reads
// it must not make it grow.
std::size_t remap_limit(const Config& config) {
  return static_cast<std::size_t>(std::clamp(config.num_blocks / 32, 256, 16384));
}

// Rows of every manager in the process start at another generation, so that a handle given to
// the wrong manager is unknown there instead of naming one of its own sequences.
std::uint32_t next_first_generation() {
  static std::atomic<std::uint32_t> managers{0};
  constexpr std::uint32_t kGoldenRatio = 0x9e3779b1;  // spreads consecutive numbers far apart
  return ((managers.fetch_add(1) * kGoldenRatio) & 0x7fffffff) | 1;
}

}  // namespace

Sequences::Sequences(const Config& config, std::unique_ptr<Digester> digester,
                     const PolicyMaker& make)
    : Store(config, std::move(digester), "manager", make),
      config_(config),
      size_(config.block_size),
      sequences_(static_cast<std::size_t>(config.max_seqs)),
      tables_(static_cast<std::size_t>(config.max_seqs) *
              static_cast<std::size_t>(config.row_width)),
      shown_tables_(tables_.size()),
      shown_lengths_(static_cast<std::size_t>(config.max_seqs)),
      found_room_(static_cast<std::size_t>(config.row_width)),
      ghosts_room_(config.ghost_blocks ? found_room_.size() : 0),
      computing_(sequences_.size()),
      max_remaps_(remap_limit(config)),
      shown_groups_(config.groups.size() * tables_.size()),
      first_generation_(next_first_generation()),
      recent_hits_(config.hit_rate_window) {
  for (Sequence& s : sequences_) s.generation = first_generation_;
  unused_rows_.reserve(sequences_.size());
  for (std::int32_t i = config.max_seqs; i-- > 0;) unused_rows_.push_back(i);
  if (config.remap) remaps_.reserve(max_remaps_);
  decode_room_.needed_by.resize(config.quotas.empty() ? 0 : 1 + config.quotas.size());
  if (!config.groups.empty()) {
    const std::size_t count = config.groups.size();
    for (const Group& group : config.groups) num_states_ += group.recurrent();
    groups_ = std::make_unique<GroupPlaces>(nodes_, index_, pool_, config.groups,
                                            pool_.num_partitions());
    pool_.set_groups(groups_.get());
    group_rows_.resize(sequences_.size());
    for (GroupRow& row : group_rows_) {
      row.first.resize(count);
      row.states.resize(count, kNoNode);
    }
    sources_room_.resize(count);
    since_room_.resize(count);
    parts_room_.resize(static_cast<std::size_t>(config_.row_width));
    moved_.reserve(sequences_.size());
  }
  measure();
}

void Sequences::measure() {
  std::int64_t least = config_.row_width;
  std::int64_t most = 0;
  for (int i = 0; i < pool_.num_partitions(); ++i) {
    const std::int64_t blocks = longest(i);
    std::int64_t left = pool_.partition(i).capacity - watermark(i);
    if (groups_) left = (left - num_states_) / grouped_need(1);
    least = std::min(least, std::min(blocks, left));
    most = std::max(most, blocks);
  }
  fits_anyway_ = std::max<std::int64_t>(least, 0) * config_.block_size;
  most_tokens_ = most * config_.block_size;
}

std::int64_t Sequences::watermark(int partition, std::int64_t asked) const {
  const std::int64_t all =
      asked < 0 ? config_.watermark_blocks : std::min<std::int64_t>(asked, pool_.capacity());
  return partitions_.empty() ? all : all * pool_.partition(partition).capacity / pool_.capacity();
}

const Sequence& Sequences::live(Handle handle) const {
  const std::int64_t index = row_of(handle);
  if (handle < 0 || index >= config_.max_seqs) throw UnknownSequence(handle);
  const Sequence& s = sequences_[static_cast<std::size_t>(index)];
  if (s.state == Sequence::kUnused || s.generation != static_cast<std::uint64_t>(handle) >> 32)
    throw UnknownSequence(handle);
  return s;
}

Sequence& Sequences::live(Handle handle) {
  return const_cast<Sequence&>(static_cast<const Sequences*>(this)->live(handle));
}

Sequence& Sequences::running(Handle handle) {
  return const_cast<Sequence&>(static_cast<const Sequences*>(this)->running(handle));
}

const Sequence& Sequences::running(Handle handle) const {
  const Sequence& s = live(handle);
  if (s.state == Sequence::kPreempted)
    throw Error(ErrorKind::kSequenceState,
                "sequence " + std::to_string(handle) + " is preempted; resume it first");
  return s;
}

Handle Sequences::handle_of(std::int64_t row) const {
  return static_cast<Handle>(sequences_[static_cast<std::size_t>(row)].generation) << 32 | row;
}

const Sequence& Sequences::view(Handle handle) const { return live(handle); }

std::vector<Handle> Sequences::handles() const {
  std::vector<Handle> result;
  for (std::int64_t i = 0; i < config_.max_seqs; ++i)
    if (sequences_[static_cast<std::size_t>(i)].state != Sequence::kUnused)
      result.push_back(handle_of(i));
  return result;
}

void Sequences::throw_ahead(const Sequence& s, const char* call) const {
  throw Error(ErrorKind::kStep, std::string("cannot ") + call + " sequence " +
                                    std::to_string(handle_of(row_of(s))) +
                                    ": it was committed ahead of this step's forward; take and "
                                    "apply the step's copies first");
}

// What is counted as computed changes only downwards here: the sequence loses tokens, or is to
// compute them again.
void Sequences::limit_computed(Sequence& s, std::int64_t most) noexcept {
  s.num_computed = std::min(s.num_computed, most);
  s.num_settled = std::min(s.num_settled, most);
  s.num_written = std::min(s.num_written, most);
}

// Before a write into this block that would copy it. A prompt may have found what others committed
// in this step: it is there for the forward, and not for the copies before it. The writer would
// have to compute it again without being told so. What the sequence committed itself it takes back,
// unless the forward that writes it may be under way.
void Sequences::refuse_unwritten(const Sequence& s, std::int64_t logical, const char* call) const {
  const std::int64_t start = logical * config_.block_size;
  const std::int64_t kept = copies_.in_flight() ? s.num_computed : settled(s);
  if (kept <= std::max(written(s), start)) return;
  throw Error(ErrorKind::kStep,
              std::string("cannot ") + call + " sequence " + std::to_string(handle_of(row_of(s))) +
                  ": positions " + std::to_string(std::max(written(s), start)) + " to " +
                  std::to_string(kept - 1) +
                  " of the block to copy are written by this step's forward; take and apply the "
                  "step's copies first");
}

void Sequences::throw_open_ticket(const char* call) const {
  throw Error(ErrorKind::kStep, std::string("cannot ") + call +
                                    " with early_commit while ticket " +
                                    std::to_string(last_ticket_) + " is not resolved");
}

void Sequences::show_length(const Sequence& s) noexcept {
  shown_lengths_[static_cast<std::size_t>(row_of(s))] =
      s.state == Sequence::kRunning ? static_cast<std::int32_t>(s.num_tokens) : 0;
}

// Tail first: a prefix is only useful from its start, so its end should be evicted before it.
void Sequences::release_blocks(Sequence& s, std::int64_t keep) noexcept {
  if (groups_) [[unlikely]]
    drop_parts(s, keep);
  release_nodes(s, keep);
}

// With copies pending. None is into a block that is found by its content, or whose twin is; but a
// short table is not worth a run.
void Sequences::release_written(const Sequence& s, std::int64_t keep) noexcept {
  constexpr std::int64_t kShort = 16;
  const std::int32_t* t = table(s);
  std::int64_t end = s.num_blocks;
  const bool runs = end - keep > kShort;
  const std::int64_t stop = runs ? std::max<std::int64_t>(keep, s.num_chained) : keep;
  while (end > stop) drop_reference(t[--end]);
  if (runs) pool_.release_table(t + keep, end - keep);
}

void Sequences::release_nodes(Sequence& s, std::int64_t keep) noexcept {
  const std::int32_t* t = table(s);
  const std::int64_t count = s.num_blocks - keep;
  if (count <= 0) return;
  if (copies_.num_pending()) {
    release_written(s, keep);
  } else {
    pool_.release_table(t + keep, count);
  }
  std::fill_n(shown_at(row_of(s)) + keep, count, 0);
  s.num_blocks = static_cast<std::int32_t>(keep);
}

void Sequences::free(Handle handle, bool withdraws) {
  Call call(*this);
  Sequence& s = live(handle);
  check_leaving(s, withdraws, "free");
  if (withdraws) withdraw(s);
  groups_ ? leave_groups(s, false) : cache_tail(s);
  end(s);
}

void Sequences::end(Sequence& s) noexcept {
  release_blocks(s, 0);
  index_.release_root(s.root);
  const std::uint32_t generation = (s.generation + 1) & 0x7fffffff;
  const std::uint64_t mark = s.mark;
  s = Sequence();
  s.generation = generation ? generation : 1;
  s.mark = mark;
  show_length(s);
  unused_rows_.push_back(static_cast<std::int32_t>(row_of(s)));
}

void Sequences::preempt(Handle handle, bool withdraws) {
  Call call(*this);
  Sequence& s = running(handle);
  check_leaving(s, withdraws, "preempt");
  std::vector<Token> tokens(static_cast<std::size_t>(s.num_tokens));
  copy_tokens(handle, tokens.data());

  if (withdraws) withdraw(s);
  groups_ ? leave_groups(s, true) : cache_tail(s);
  release_blocks(s, 0);
  s.waiting.swap(tokens);
  s.waiting_start = 0;
  s.state = Sequence::kPreempted;
  s.outdated = false;  // it will compute all of it again
  s.num_chained = 0;
  s.num_computed = s.num_cached = 0;
  s.early_step = -1;
  show_length(s);
  ++counters_.preemptions;
}

std::int64_t Sequences::truncate(Handle handle, std::int64_t num_tokens) {
  Call call(*this);
  Sequence& s = running(handle);
  if (num_tokens < 1 || num_tokens > s.num_tokens)
    throw Error(ErrorKind::kValue, "num_tokens must be in [1, " + std::to_string(s.num_tokens) +
                                       "], got " + std::to_string(num_tokens));
  if (num_tokens < s.num_computed) refuse_ahead(s, "truncate");
  if (groups_) [[unlikely]] {
    truncate_grouped(s, num_tokens);
    return s.num_computed;
  }
  const std::int64_t slots = num_slots(s);
  if (num_tokens <= slots) {
    std::vector<Token>().swap(s.waiting);
    s.waiting_start = 0;
  } else {
    s.waiting.resize(s.waiting_start + static_cast<std::size_t>(num_tokens - slots));
  }
  release_blocks(s, blocks_for(num_tokens));
  s.num_tokens = num_tokens;
  limit_computed(s, num_tokens);
  s.num_cached = std::min(s.num_cached, num_tokens);
  s.num_chained =
      std::min(s.num_chained, static_cast<std::int32_t>(num_tokens / config_.block_size));
  show_length(s);
  return s.num_computed;
}

void Sequences::check_slots(Handle handle, std::int64_t start, std::int64_t stop) const {
  const Sequence& s = live(handle);
  const std::int64_t slots = num_slots(s);
  if (start < 0 || stop < start || stop > slots)
    throw Error(ErrorKind::kValue,
                "start and stop must satisfy 0 <= start <= stop <= " + std::to_string(slots) +
                    " (slots), got " + std::to_string(start) + " and " + std::to_string(stop));
}

void Sequences::slot_mapping(Handle handle, std::int64_t start, std::int64_t stop,
                             std::int64_t* slots) const {
  const Sequence& s = live(handle);
  const std::int64_t size = config_.block_size;
  const std::int32_t* t = table(s);
  for (std::int64_t position = start; position < stop;) {
    const std::int64_t end = std::min(stop, (position / size + 1) * size);
    std::int64_t slot = nodes_.name(t[position / size]) * size + position % size;
    for (; position < end; ++position) *slots++ = slot++;
  }
}

void Sequences::check_group_slots(Handle handle, int g, std::int64_t start,
                                  std::int64_t stop) const {
  check_slots(handle, start, stop);
  if (!groups_ || g < 0 || g >= groups_->num_groups() || groups_->group(g).recurrent())
    throw Error(ErrorKind::kValue,
                "group must be one of attention, got " + std::to_string(g) + " of the core");
  const std::int64_t first =
      group_row(live(handle)).first[static_cast<std::size_t>(g)] * std::int64_t{config_.block_size};
  if (start < first && start < stop)
    throw Error(ErrorKind::kValue, "start must be at least " + std::to_string(first) +
                                       ", where the window of the group begins, got " +
                                       std::to_string(start));
}

void Sequences::group_slots(Handle handle, int g, std::int64_t start, std::int64_t stop,
                            std::int64_t* slots) const {
  const std::int64_t size = config_.block_size;
  const std::int32_t* t = shown_group_at(g, row_of(handle));
  for (std::int64_t position = start; position < stop; ++position)
    *slots++ = t[position / size] * size + position % size;
}

std::vector<std::int32_t> Sequences::block_ids(Handle handle, std::int64_t start) const {
  const Sequence& s = live(handle);
  const std::int64_t first = std::min<std::int64_t>(start, s.num_blocks);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(s.num_blocks - first));
  nodes_.name_all(table(s) + first, s.num_blocks - first, ids.data());
  return ids;
}

void Sequences::copy_tokens(Handle handle, Token* out) const {
  const Sequence& s = live(handle);
  const std::int32_t* t = table(s);
  std::int64_t left = std::min(s.num_tokens, num_slots(s));
  for (const std::int32_t* b = t; left > 0; ++b) {
    const std::int64_t count = std::min<std::int64_t>(left, config_.block_size);
    out = std::copy_n(nodes_.tokens(*b), count, out);
    left -= count;
  }
  std::copy(s.waiting.begin() + static_cast<std::ptrdiff_t>(s.waiting_start), s.waiting.end(), out);
}

void Sequences::set_debug(int level) {
  Call call(*this);
  pool_.set_debug(level > 0);
  debug_ = level;
}

std::vector<std::string> Sequences::findings() {
  const Held held(monitor_, Held::Afterwards());
  std::vector<std::string> found;
  if (!held) return found;
  if (std::string fault = pool_.take_fault(); !fault.empty()) found.push_back(std::move(fault));
  if (debug_ > 1)
    for (std::string& violation : violations()) found.push_back(std::move(violation));
  return found;
}

std::size_t Sequences::memory() const {
  std::size_t total = store_memory() + 2 * tables_.bytes() + shown_lengths_.bytes();
  if (holds_) total += holds_->bytes();
  if (groups_) total += groups_->memory() + shown_groups_.bytes();
  total += found_room_.bytes() + ghosts_room_.bytes() + sequences_.capacity() * sizeof(Sequence);
  total += decode_room_.promotions.memory() + decode_room_.sharers.memory();
  total += decode_room_.needed_by.capacity() * sizeof(std::int64_t);
  total += decode_room_.rewritten.capacity() * sizeof(NodeId);
  total += remaps_.capacity() * sizeof(RemapRecord);
  total += recent_hits_.bytes();
  total += unused_rows_.capacity() * sizeof(std::int32_t) + computing_.bytes();
  for (const Sequence& s : sequences_) total += s.waiting.capacity() * sizeof(Token);
  return total;
}

}  // namespace blockmgr
