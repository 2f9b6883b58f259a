// The C interface: what it tells of sequences, tables, events and counts.
#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <vector>

#include "c/structs.h"
#include "memory/errors.h"
#include "sequences/facts.h"
#include "sequences/handing.h"

using namespace blockmgr::c;
using blockmgr::Sequences;

struct blockmgr_events {
  blockmgr::EventColumns columns;
  std::vector<blockmgr_event> events;
  std::vector<blockmgr_event_extra> extras;
};

namespace {

// The number of a group's first slice in the core; -1: that of the nodes' own blocks.
int further_group(const Sequences& core, std::int32_t group) {
  const blockmgr::Config& config = core.config();
  int last = config.full_group;
  for (const blockmgr::Group& slice : config.groups) last = std::max(last, slice.number);
  blockmgr::check_bounds("group", group, 0, last);
  if (group == config.full_group) return -1;
  int further = 0;
  while (config.groups[static_cast<std::size_t>(further)].number != group) ++further;
  return further;
}

// The same of a group whose blocks hold the K/V of tokens.
int attention_group(const Sequences& core, std::int32_t group) {
  const int further = further_group(core, group);
  if (further >= 0 || core.pool().is_bare()) {
    const blockmgr::Group& kind =
        core.config().groups[static_cast<std::size_t>(std::max(further, 0))];
    if (kind.recurrent() || kind.is_ring())
      throw blockmgr::Error(blockmgr::ErrorKind::kValue,
                            "group must be one of attention, got " + std::to_string(group) +
                                ", which has " + (kind.is_ring() ? "rings" : "states"));
  }
  return further;
}

// Takes the columns and points into them.
std::unique_ptr<blockmgr_events> listed(blockmgr::EventColumns& taken, int block_size) {
  auto made = std::make_unique<blockmgr_events>();
  made->columns = std::move(taken);
  const blockmgr::EventColumns& columns = made->columns;
  const auto size = static_cast<std::size_t>(columns.digest_size);
  const blockmgr::Token* tokens = columns.tokens.data();
  for (std::size_t i = 0; i < columns.runs.size(); ++i) {
    const blockmgr::EventRun& run = columns.runs[i];
    blockmgr_event event{};
    event.kind = static_cast<std::int32_t>(run.kind);
    event.group = run.group;
    event.step = run.step;
    event.first_block = run.first;
    event.num_blocks = run.num_blocks;
    if (run.kind == blockmgr::EventKind::kStored) {
      if (run.has_parent) event.parent = columns.parents.data() + i * size;
      event.tokens = tokens;
      event.name = columns.names[i].data();
      event.name_size = columns.names[i].size();
      if (run.session_size) event.session = columns.sessions[i].data();
      event.session_size = static_cast<std::size_t>(run.session_size);
      tokens += run.num_blocks * block_size;
    }
    made->events.push_back(event);
  }
  for (const auto& [block, bytes] : columns.extras)
    made->extras.push_back({block, bytes.data(), bytes.size()});
  return made;
}

template <class Read>
blockmgr_status take_events(blockmgr_manager* manager, blockmgr_events** events, Read read) {
  return change(manager, [&](Sequences& core) {
    not_null(events, "events");
    *events = blockmgr::hand_over_events(core, read, [&](blockmgr::EventColumns& columns) {
                return listed(columns, core.config().block_size);
              }).release();
  });
}

}  // namespace

blockmgr_status blockmgr_view(blockmgr_manager* manager, blockmgr_handle handle,
                              blockmgr_sequence* sequence) {
  return read(manager, [&](const Sequences& core) {
    const std::size_t size = checked_size(sequence, "sequence", kFirstSequence);
    const blockmgr::Sequence& s = core.view(handle);
    const blockmgr::GroupRow row = core.view_groups(handle);
    blockmgr_sequence out{};
    out.num_tokens = s.num_tokens;
    out.num_computed_tokens = core.computed(s);
    out.num_replayed_tokens = core.num_replayed(s);
    out.num_cached_tokens = s.num_cached - out.num_replayed_tokens;
    out.num_blocks = core.num_full_blocks(s);
    out.num_slots = core.num_slots(s);
    out.is_preempted = s.state == blockmgr::Sequence::kPreempted;
    out.state_stands = row.stands();
    out.num_stops = ascending(row.stops, core.computed(s), out.stops);
    write_struct(sequence, size, out);
  });
}

blockmgr_status blockmgr_tokens(blockmgr_manager* manager, blockmgr_handle handle, uint32_t* tokens,
                                int64_t room, int64_t* num_tokens) {
  return read(manager, [&](const Sequences& core) {
    not_null(num_tokens, "num_tokens");
    elements(tokens, "tokens", room, "room");
    const std::int64_t count = core.view(handle).num_tokens;
    check_room(room, count, *num_tokens);
    core.copy_tokens(handle, tokens);
    *num_tokens = count;
  });
}

blockmgr_status blockmgr_handles(blockmgr_manager* manager, blockmgr_handle* handles, int64_t room,
                                 int64_t* num_handles) {
  return read(manager, [&](const Sequences& core) {
    not_null(num_handles, "num_handles");
    put_all(core.handles(), elements(handles, "handles", room, "room"), room, *num_handles);
  });
}

blockmgr_status blockmgr_leaving(blockmgr_manager* manager, blockmgr_handle* handles, int64_t room,
                                 int64_t* num_handles) {
  return read(manager, [&](const Sequences& core) {
    not_null(num_handles, "num_handles");
    std::set<blockmgr::Handle> all;
    for (const blockmgr::LeavingBlock& each : core.leaving())
      if (each.handle >= 0) all.insert(each.handle);
    put_all(std::vector(all.begin(), all.end()), elements(handles, "handles", room, "room"), room,
            *num_handles);
  });
}

blockmgr_status blockmgr_table(blockmgr_manager* manager, int32_t group, const int32_t** table,
                               int64_t* num_rows, int64_t* row_width) {
  return read(manager, [&](const Sequences& core) {
    not_null(table, "table");
    not_null(num_rows, "num_rows");
    not_null(row_width, "row_width");
    const int further = further_group(core, group);
    *table = further < 0 ? core.shown_tables.data() : &core.shown_group_at(further, 0)[0];
    *num_rows = core.config().max_seqs;
    *row_width = core.shown_width(core.config().row_width);
    if (further >= 0)
      *row_width = std::int64_t{core.config().row_width} *
                   core.config().groups[static_cast<std::size_t>(further)].num_slices;
  });
}

blockmgr_status blockmgr_seq_lens(blockmgr_manager* manager, const int32_t** lengths,
                                  int64_t* num_rows) {
  return read(manager, [&](const Sequences& core) {
    not_null(lengths, "lengths");
    not_null(num_rows, "num_rows");
    *lengths = core.shown_lengths.data();
    *num_rows = core.config().max_seqs;
  });
}

blockmgr_status blockmgr_slot_mapping(blockmgr_manager* manager, blockmgr_handle handle,
                                      int32_t group, int64_t start, int64_t stop, int64_t* slots) {
  return read(manager, [&](const Sequences& core) {
    const int further = attention_group(core, group);
    if (further < 0) {
      core.check_table_slots(handle, start, stop);
      core.slot_mapping(handle, start, stop, elements(slots, "slots", stop - start, "stop"));
    } else {
      core.check_group_slots(handle, further, start, stop);
      core.group_slots(handle, further, start, stop,
                       elements(slots, "slots", stop - start, "stop"));
    }
  });
}

blockmgr_status blockmgr_take_events(blockmgr_manager* manager, blockmgr_events** events) {
  return take_events(manager, events, [](const Sequences& core) { return core.events(); });
}

blockmgr_status blockmgr_take_snapshot(blockmgr_manager* manager, blockmgr_events** events) {
  return take_events(manager, events, [](const Sequences& core) { return core.residents(); });
}

blockmgr_status blockmgr_events_list(const blockmgr_events* events, blockmgr_event_list* list) {
  return guarded([&] {
    const blockmgr_events& from = not_null(events, "events");
    const std::size_t size = checked_size(list, "list", kFirstEvents);
    blockmgr_event_list out{};
    out.num_lost = from.columns.num_lost;
    out.digest_size = from.columns.digest_size;
    out.num_events = static_cast<std::int64_t>(from.events.size());
    out.events = from.events.data();
    for (const blockmgr_event& event : from.events) out.num_digests += event.num_blocks;
    out.digests = from.columns.digests.data();
    out.num_extras = static_cast<std::int64_t>(from.extras.size());
    out.extras = from.extras.data();
    write_struct(list, size, out);
  });
}

void blockmgr_events_destroy(blockmgr_events* events) { delete events; }

blockmgr_status blockmgr_get_stats(blockmgr_manager* manager, blockmgr_stats* stats) {
  return read(manager, [&](const Sequences& core) {
    const std::size_t size = checked_size(stats, "stats", kFirstStats);
    blockmgr_stats out{};
    static_assert(sizeof out == offsetof(blockmgr_stats, capacity) + blockmgr::kNumFacts * 8);
    std::size_t at = offsetof(blockmgr_stats, capacity);
    for (const auto& [name, value] : facts_of(core)) {
      std::memcpy(reinterpret_cast<char*>(&out) + at, &value, sizeof value);
      at += sizeof value;
    }
    write_struct(stats, size, out);
  });
}

blockmgr_status blockmgr_memory_usage(blockmgr_manager* manager, size_t* bytes) {
  return read(manager, [&](const Sequences& core) { not_null(bytes, "bytes") = core.memory(); });
}

blockmgr_status blockmgr_check_invariants(blockmgr_manager* manager) {
  return read(manager, [&](const Sequences& core) {
    if (std::vector<std::string> found = core.violations(); !found.empty())
      throw blockmgr::BrokenInvariants(std::move(found));
  });
}
