#include "sequences/rows.h"

#include <algorithm>
#include <atomic>

namespace blockmgr {

namespace {

// Rows of every manager in the process start at another generation, so that a handle given to
// the wrong manager is unknown there instead of naming one of its own sequences.
std::uint32_t next_first_generation() {
  static std::atomic<std::uint32_t> managers{0};
  constexpr std::uint32_t kGoldenRatio = 0x9e3779b1;  // spreads consecutive numbers far apart
  return ((managers.fetch_add(1) * kGoldenRatio) & 0x7fffffff) | 1;
}

// Whole nodes, unless the config says which slice of one a group has.
Config with_slices(Config config) {
  for (std::size_t g = 0; g < config.groups.size(); ++g) {
    Group& group = config.groups[g];
    if (group.end) continue;
    group.end = config.block_size;
    group.number = static_cast<int>(g) + (static_cast<int>(g) >= config.full_group);
  }
  return config;
}

int slices_of_full(const Config& config) {
  return config.full_block_size ? config.block_size / config.full_block_size : 1;
}

// Apart, so that what every call looks up needs no stack.
[[noreturn, gnu::cold, gnu::noinline]] void refuse_unknown(Handle handle) {
  throw UnknownSequence(handle);
}

[[noreturn, gnu::cold, gnu::noinline]] void refuse_preempted(Handle handle) {
  throw Error(ErrorKind::kSequenceState,
              "sequence " + std::to_string(handle) + " is preempted; resume it first");
}

}  // namespace

Rows::Rows(const Config& config, std::unique_ptr<Digester> digester, const PolicyMaker& make)
    : Store(config, std::move(digester), "manager", make),
      sequences(nth(config.max_seqs)),
      shown_tables(nth(config.max_seqs) * nth(config.row_width) * nth(slices_of_full(config))),
      shown_lengths(nth(config.max_seqs)),
      shown_groups(config.groups.size() * nth(config.max_seqs) * nth(config.row_width)),
      computing(sequences.size()),
      recent_hits(config.hit_rate_window),
      first_generation(next_first_generation()),
      config_(with_slices(config)),
      size_(config.block_size),
      full_slices_(nth(slices_of_full(config))),
      tables_(shown_tables.size() / full_slices_),
      groups_(std::make_unique<GroupPlaces>(nodes_, index_, pool_, config_.groups,
                                            pool_.num_partitions(), config_.stop_margin)),
      group_rows_(sequences.size()) {
  for (Sequence& s : sequences) s.generation = first_generation;
  unused_rows.reserve(sequences.size());
  for (std::int32_t i = config.max_seqs; i-- > 0;) unused_rows.push_back(i);
  for (std::size_t g = 0; g < config.groups.size(); ++g) {
    const Group& group = config.groups[g];
    (group.recurrent()     ? recurrent
     : group.is_ring()     ? rings
     : group.is_replayed() ? replayed
                           : attention)
        .push_back(static_cast<int>(g));
  }
  growing = attention;
  growing.insert(growing.end(), replayed.begin(), replayed.end());
  pool_.set_groups(*groups_);
  for (GroupRow& row : group_rows_) {
    row.first.resize(config.groups.size());
    row.states.resize(config.groups.size(), kNoNode);
    row.sources.resize(config.groups.size(), kNoNode);
    row.own.resize(config.groups.size());
    for (const int g : replayed) row.own[nth(g)].resize(nth(config.row_width), kNoNode);
    for (const int g : recurrent)
      row.others.resize(row.others.size() + nth(config.groups[nth(g)].extra_blocks), kNoNode);
  }
}

std::size_t Rows::memory() const {
  std::size_t total = store_memory() + shown_tables.bytes() + tables_.bytes();
  total += shown_lengths.bytes() + shown_groups.bytes() + computing.bytes() + recent_hits.bytes();
  total += groups_->memory();
  for (const GroupRow& row : group_rows_)
    for (const std::vector<NodeId>& own : row.own) total += own.capacity() * sizeof(NodeId);
  total += sequences.capacity() * sizeof(Sequence);
  total += unused_rows.capacity() * sizeof(std::int32_t) + keeps.capacity() * sizeof(Kept);
  for (const Sequence& s : sequences) total += s.waiting.capacity() * sizeof(Token);
  return total;
}

std::int64_t Rows::share_of_watermark(int partition, std::int64_t asked) const {
  const std::int64_t all =
      asked < 0 ? config_.watermark_blocks : std::min<std::int64_t>(asked, pool_.capacity());
  return partitions_.empty() ? all : all * pool_.partition(partition).capacity / pool_.capacity();
}

const Sequence& Rows::live(Handle handle) const {
  const std::int64_t index = row_of(handle);
  if (handle < 0 || index >= config_.max_seqs) refuse_unknown(handle);
  const Sequence& s = sequences[nth(index)];
  if (s.state == Sequence::kUnused || s.generation != static_cast<std::uint64_t>(handle) >> 32)
    refuse_unknown(handle);
  return s;
}

Sequence& Rows::live(Handle handle) {
  return const_cast<Sequence&>(static_cast<const Rows*>(this)->live(handle));
}

Sequence& Rows::running(Handle handle) {
  return const_cast<Sequence&>(static_cast<const Rows*>(this)->running(handle));
}

const Sequence& Rows::running(Handle handle) const {
  const Sequence& s = live(handle);
  if (s.state == Sequence::kPreempted) refuse_preempted(handle);
  return s;
}

Handle Rows::handle_of(std::int64_t row) const {
  return static_cast<Handle>(sequences[nth(row)].generation) << 32 | row;
}

const Sequence& Rows::view(Handle handle) const { return live(handle); }

std::vector<Handle> Rows::handles() const {
  std::vector<Handle> result;
  for (std::int64_t i = 0; i < config_.max_seqs; ++i)
    if (sequences[nth(i)].state != Sequence::kUnused) result.push_back(handle_of(i));
  return result;
}

void Rows::refuse(const Sequence& s, const char* call, std::string_view why) const {
  throw Error(ErrorKind::kStep, std::string("cannot ") + call + " sequence " +
                                    std::to_string(handle_of(row_of(s))) + ": " + std::string(why));
}

void Rows::throw_named_twice(const Sequence& s) const {
  throw Error(ErrorKind::kValue,
              "handles must be distinct, got " + std::to_string(handle_of(row_of(s))) + " twice");
}

// What is counted as computed changes only downwards here: the sequence loses tokens, or is to
// compute them again.
void Rows::limit_computed(Sequence& s, std::int64_t most) noexcept {
  s.num_computed = std::min(s.num_computed, most);
  s.num_settled = std::min(s.num_settled, most);
  s.num_written = std::min(s.num_written, most);
}

void Rows::throw_open_ticket(const char* call) const {
  throw Error(ErrorKind::kStep, std::string("cannot ") + call + " with early_commit while ticket " +
                                    std::to_string(last_ticket_) + " is not resolved");
}

void Rows::show_length(const Sequence& s) noexcept {
  shown_lengths[nth(row_of(s))] =
      s.state == Sequence::kRunning ? static_cast<std::int32_t>(s.num_tokens) : 0;
}

void Rows::copy_tokens(Handle handle, Token* out) const {
  const Sequence& s = live(handle);
  const std::int32_t* t = table(s);
  std::int64_t left = std::min(s.num_tokens, token_room(s));
  for (const std::int32_t* b = t; left > 0; ++b) {
    const std::int64_t count = std::min<std::int64_t>(left, config_.block_size);
    out = std::copy_n(nodes_.tokens(*b), count, out);
    left -= count;
  }
  std::copy(s.waiting.begin() + static_cast<std::ptrdiff_t>(s.waiting_start), s.waiting.end(), out);
}

void Rows::store_tokens(Sequence& s, std::int64_t from, const Token* tokens,
                        std::int64_t count) noexcept {
  const BlockSize size = size_;
  const std::int64_t first = size.whole(from);
  const std::int32_t* t = table(s) + first;
  std::int64_t offset = from - first * size;
  while (count > 0) {
    // The tokens of neighbours lie side by side.
    const std::int64_t blocks = size.whole(offset + count + size - 1);
    const std::int64_t run = count_neighbours(t, blocks);
    const std::int64_t n = std::min(count, run * size - offset);
    std::copy_n(tokens, n, nodes_.tokens(*t) + offset);
    t += run;
    tokens += n;
    count -= n;
    offset = 0;
  }
}

// The node that stands for everything before this logical block.
NodeId Rows::chain_node(const Sequence& s, std::int64_t logical) const {
  if (logical == 0) return root_node(s.root);
  const NodeId b = table(s)[logical - 1];
  return nodes_[b].keyed() ? b : nodes_[b].parent;
}

// The forward of this step fills the block if its sequence was committed early.
void Rows::note_unwritten(const Sequence& s, std::int64_t logical, NodeId b) noexcept {
  const std::int64_t size = config_.block_size;
  const std::int64_t filled = std::clamp<std::int64_t>(written(s) - logical * size, 0, size);
  if (filled == size) return;
  nodes_[b].unwritten = static_cast<std::uint16_t>(size - filled);
  unwritten_.push_back(b);
}

static_assert(SessionTable::kMostNameBytes <= EventLog::kMostNameBytes);

std::string_view Rows::session_name(const Sequence& s) const noexcept {
  const RetainingPolicy* policy = pool_.partition(s.partition).retention;
  const SessionTable* table = policy ? policy->sessions() : nullptr;
  if (!table || s.session == SessionTable::kNone || s.session == SessionTable::kEnded) return {};
  return table->at(s.session).row == row_of(s) ? table->name(s.session) : std::string_view();
}

}  // namespace blockmgr
