// The calls of a manager: arguments in, results out. Nothing else.
#include "bindings/manager.h"

#include <algorithm>
#include <utility>

namespace blockmgr {
namespace {

using HandleArray = IntArray<std::int64_t>;

TokenArray token_argument(Core& self, nb::handle tokens) {
  return TokenArray(tokens, "tokens", kTokenLimit, self.tokens, self.core.most_matched(),
                    self.inside());
}

// Handles of distinct sequences, or as many of something else. A longer list is refused unread.
HandleArray batch_argument(Core& self, nb::handle values, const char* name,
                           std::vector<std::int64_t>& home) {
  return HandleArray(values, name, 0, home, self.core.config().max_seqs);
}

void read_handles(Core& self, HandleArray& handles) {
  check_batch(handles.size(), self.core.config().max_seqs);
  handles.read();
}

std::int64_t slots_argument(nb::handle num_slots) {
  if (num_slots.is_none()) return 0;
  const std::int64_t slots = int_argument(num_slots, "num_slots");
  check_at_least("num_slots", slots, 1);
  return slots;
}
using Slots = Kind<nb::handle, slots_argument>;

// All of a prompt but its tokens, which are read last: converting the rest may run Python code.
Prompt prompt_argument(nb::handle name, nb::handle extras, nb::handle num_slots,
                       nb::handle read_cache = Py_True) {
  const std::string_view bytes = namespace_argument(name);
  const std::int64_t slots = slots_argument(num_slots);
  const bool reads = bool_argument(read_cache, "read_cache");
  return {nullptr, 0, bytes, extras_argument(extras), slots, reads};
}

Prompt& with_tokens(Prompt& prompt, TokenArray& tokens, std::int64_t most = INT64_MAX) {
  not_empty(tokens.size(), "tokens");
  tokens.read(most);
  prompt.tokens = tokens.data();
  prompt.num_tokens = tokens.size();
  return prompt;
}

// Reads the limits that one call sets for the cache and for the pool. Each is usually None.
void read_terms(Prompt& prompt, nb::handle match, nb::handle max_cached_tokens,
                nb::handle watermark_blocks, nb::handle num_loaded_tokens) {
  const auto number = [](nb::handle value, const char* name) {
    const std::int64_t n = int_argument(value, name);
    check_at_least(name, n, 0);
    return n;
  };
  if (!max_cached_tokens.is_none())
    prompt.most_cached = number(max_cached_tokens, "max_cached_tokens");
  if (!watermark_blocks.is_none())
    prompt.watermark_blocks = number(watermark_blocks, "watermark_blocks");
  if (!num_loaded_tokens.is_none())
    prompt.num_loaded = number(num_loaded_tokens, "num_loaded_tokens");
  if (match.is_none()) return;
  if (!PyObject_TypeCheck(match.ptr(), reinterpret_cast<PyTypeObject*>(known().match))) {
    PyErr_Format(PyExc_TypeError, "match must be a Match or None, got %R", match.ptr());
    throw nb::python_error();
  }
  const nb::object due = nb::getattr(match, "num_cached_tokens");
  take_exactly(prompt, number(due, "match.num_cached_tokens"), !max_cached_tokens.is_none());
}

// A prompt to look up, of which no more is read than the cache can hold.
Prompt& to_look_up(Core& self, Prompt& prompt, TokenArray& tokens) {
  if (tokens.size() > self.core.fits_anyway())
    self.read([&](const Sequences& core) { core.check_lookup(tokens.size(), prompt.name); });
  return with_tokens(prompt, tokens, self.core.most_matched());
}

[[gnu::always_inline]] inline nb::object admit_of(Core& self, nb::handle tokens, nb::handle name,
                                                  nb::handle extras, nb::handle num_slots,
                                                  nb::handle read_cache, nb::handle match,
                                                  nb::handle max_cached_tokens,
                                                  nb::handle watermark_blocks, nb::handle session,
                                                  nb::handle num_loaded_tokens) {
  Prompt prompt = prompt_argument(name, extras, num_slots, read_cache);
  read_terms(prompt, match, max_cached_tokens, watermark_blocks, num_loaded_tokens);
  prompt.session = session_argument(session, 0);
  TokenArray values = token_argument(self, tokens);
  if (values.size() > self.core.fits_anyway())
    self.read([&](const Sequences& core) { core.check_admission(values.size(), prompt); });
  nb::object handle;
  self.core.admit(with_tokens(prompt, values), announce_to<Handle>(handle));
  return handle;
}

nb::object admit(Core& self, nb::handle tokens, nb::handle name, nb::handle extras,
                 nb::handle num_slots, nb::handle read_cache, nb::handle match,
                 nb::handle max_cached_tokens, nb::handle watermark_blocks, nb::handle session) {
  return admit_of(self, tokens, name, extras, num_slots, read_cache, match, max_cached_tokens,
                  watermark_blocks, session, nb::none());
}

// Apart, so that other admissions read one argument less.
nb::object admit_loading(Core& self, nb::handle tokens, nb::handle name, nb::handle extras,
                         nb::handle num_slots, nb::handle read_cache, nb::handle match,
                         nb::handle max_cached_tokens, nb::handle watermark_blocks,
                         nb::handle session, nb::handle num_loaded_tokens) {
  return admit_of(self, tokens, name, extras, num_slots, read_cache, match, max_cached_tokens,
                  watermark_blocks, session, num_loaded_tokens);
}

nb::object signal(Core& self, nb::handle name, nb::handle session, Exact<int> signal,
                  Exact<double> seconds) {
  const std::string_view bytes = namespace_argument(name);
  const Sessions::Signal checked = Sessions::checked_signal(signal, seconds);
  nb::object blocks = nb::none();
  self.core.signal(bytes, session_argument(session, 1), checked, seconds,
                   announce_to<std::int64_t>(blocks));
  return blocks;
}

// Where forwards should end, as a tuple.
[[gnu::noinline]] nb::object ascending(Stops stops) {
  std::ranges::sort(stops);
  const auto first = std::ranges::find_if(stops, [](std::int64_t stop) { return stop > 0; });
  nb::object tuple = made(nb::steal(PyTuple_New(stops.end() - first)));
  for (auto stop = first; stop != stops.end(); ++stop) {
    nb::object number = made(nb::steal(PyLong_FromLongLong(*stop)));
    PyTuple_SetItem(tuple.ptr(), stop - first, number.release().ptr());
  }
  return tuple;
}

// The initialiser of the frozen dataclass takes longer than a match, so its fields are filled
// without it.
nb::object match(Core& self, nb::handle tokens, nb::handle name, nb::handle extras,
                 nb::handle num_slots, nb::handle max_cached_tokens, nb::handle watermark_blocks) {
  Prompt prompt = prompt_argument(name, extras, num_slots);
  read_terms(prompt, nb::none(), max_cached_tokens, watermark_blocks, nb::none());
  TokenArray values = token_argument(self, tokens);
  const std::int64_t size = values.size();
  with_tokens(prompt, values, self.core.most_matched());
  if (!prompt.num_slots) prompt.num_slots = size;  // of all the prompt, though not all is read
  const MatchResult found = self.core.match(prompt);
  const Array<std::int32_t> ids(static_cast<std::int64_t>(found.blocks.size()));
  std::copy(found.blocks.begin(), found.blocks.end(), ids.numbers);
  const Known& python = known();
  const auto record =
      made(nb::steal(PyType_GenericAlloc(reinterpret_cast<PyTypeObject*>(python.match), 0)));
  // In the order of the fields that are known: numbers, block ids and stops.
  const Field* field = python.match_fields.data();
  for (const std::int64_t number : {found.num_cached, found.num_replayed, found.num_partial,
                                    found.num_idle, found.num_computing, found.num_shared})
    field++->fill(record, nb::steal(PyLong_FromLongLong(number)));
  field++->fill(record, ids.array);
  field->fill(record, found.stops != Stops{} ? ascending(found.stops) : nb::borrow(python.nothing));
  return record;
}

// (num_cached, num_partial, diverges_at, reasons, stops, more_blocks, evicted_ago, groups), the
// last five one for each missed block.
nb::tuple explain(Core& self, nb::handle tokens, nb::handle name, nb::handle extras) {
  Prompt prompt = prompt_argument(name, extras, nb::none());
  TokenArray values = token_argument(self, tokens);
  if (values.size() > self.core.fits_anyway())
    self.read([&](const Sequences& core) { core.check_lookup(values.size(), prompt.name); });
  const ExplainResult result = self.core.explain(with_tokens(prompt, values));
  const auto column = [&]<class T>(T, auto field) { return column_of<T>(result.missed, field); };
  return nb::make_tuple(result.num_cached, result.num_partial, result.diverges_at,
                        column(std::uint8_t{}, &MissedBlock::reason),
                        column(std::int64_t{}, &MissedBlock::stop),
                        column(std::int64_t{}, &MissedBlock::more_blocks),
                        column(std::int64_t{}, &MissedBlock::evicted_ago),
                        column(std::int64_t{}, &MissedBlock::group));
}

int can_admit(Core& self, nb::handle tokens, nb::handle name, nb::handle extras,
              nb::handle num_slots, nb::handle read_cache, nb::handle match,
              nb::handle max_cached_tokens, nb::handle watermark_blocks,
              nb::handle num_loaded_tokens) {
  Prompt prompt = prompt_argument(name, extras, num_slots, read_cache);
  read_terms(prompt, match, max_cached_tokens, watermark_blocks, num_loaded_tokens);
  TokenArray values = token_argument(self, tokens);
  if (values.size() > self.core.fits_anyway() &&
      !self.read([&](const Sequences& core) { return core.can_fit(values.size(), prompt); }))
    return static_cast<int>(Admission::kNever);
  return static_cast<int>(self.core.can_admit(with_tokens(prompt, values)));
}

void append(Core& self, nb::handle handle, nb::handle tokens) {
  const std::int64_t h = handle_argument(handle);
  TokenArray values = token_argument(self, tokens);
  if (values.size() > self.core.fits_anyway())
    self.read([&](const Sequences& core) { core.check_append(h, values.size()); });
  values.read();
  self.core.append(h, values.data(), not_empty(values.size(), "tokens"));
}

nb::object retain_prefix(Core& self, nb::handle tokens, nb::handle name, nb::handle extras,
                         Exact<int> level, Exact<double> ttl) {
  Prompt prompt = prompt_argument(name, extras, nb::none());
  TokenArray values = token_argument(self, tokens);
  check_retention(level, ttl);
  self.core.check_retaining("retain_prefix");
  nb::object blocks;
  self.core.retain_prefix(to_look_up(self, prompt, values), level, ttl,
                          announce_to<std::int64_t>(blocks));
  return blocks;
}

nb::object pin(Core& self, nb::handle tokens, nb::handle name, nb::handle extras) {
  Prompt prompt = prompt_argument(name, extras, nb::none());
  TokenArray values = token_argument(self, tokens);
  self.core.check_retaining("pin");
  nb::object number;
  self.core.pin(to_look_up(self, prompt, values), announce_to<std::int64_t>(number));
  return number;
}

nb::object touch(Core& self, nb::handle tokens, nb::handle name, nb::handle extras) {
  Prompt prompt = prompt_argument(name, extras, nb::none());
  TokenArray values = token_argument(self, tokens);
  nb::object blocks;
  self.core.touch(to_look_up(self, prompt, values), announce_to<std::int64_t>(blocks));
  return blocks;
}

void resume(Core& self, nb::handle handle, nb::handle num_slots, nb::handle read_cache) {
  const std::int64_t h = handle_argument(handle);
  const std::int64_t slots = slots_argument(num_slots);
  self.core.resume(h, slots, bool_argument(read_cache, "read_cache"));
}

std::int64_t num_common_prefix_blocks(Core& self, nb::handle handles) {
  if (handles.is_none()) return self.core.num_common_prefix_blocks();
  const Ints rows(handles, "handles", self.ids, self.core.config().max_seqs);
  return self.core.num_common_prefix_blocks(rows.data(), rows.size());
}

nb::list block_digests(Core& self, nb::handle tokens, nb::handle name, nb::handle extras) {
  Prompt prompt = prompt_argument(name, extras, nb::none());
  TokenArray values = token_argument(self, tokens);
  const std::int64_t count = self.core.num_digests(with_tokens(prompt, values));
  const auto size = static_cast<std::size_t>(self.core.nodes().digest_size);
  std::vector<std::uint8_t> digests(static_cast<std::size_t>(count) * size);
  self.core.block_digests(prompt, digests.data());
  return list_of(digests, size);
}

// Each as make(handle, index, old, new). The log forgets them once all are made.
nb::list take_remaps(Core& self, nb::handle make) {
  return hand_over_remaps(self.core, [&](const std::vector<RemapRecord>& records) {
    nb::list result = made(nb::list());
    for (const RemapRecord& r : records)
      result.append(in_python([&] { return make(r.handle, r.index, r.old_block, r.new_block); }));
    return result;
  });
}

nb::object decode(Core& self, nb::handle handles, nb::handle tokens) {
  HandleArray rows = batch_argument(self, handles, "handles", self.ids);
  read_handles(self, rows);
  // Made first: making it can fail, and can run code that calls the manager.
  const Array<std::int64_t> slots(rows.size());
  TokenArray values = token_argument(self, tokens);
  same_number(rows.size(), values.size(), "tokens");
  values.read();
  self.core.decode(rows.data(), values.data(), rows.size(), slots.numbers);
  return slots.array;
}

void resume_together(Core& self, nb::handle handles, nb::handle num_slots, nb::handle read_cache) {
  const std::int64_t slots = slots_argument(num_slots);
  const bool reads = bool_argument(read_cache, "read_cache");
  HandleArray rows = batch_argument(self, handles, "handles", self.ids);
  read_handles(self, rows);
  self.core.resume_together(rows.data(), rows.size(), slots, reads);
}

void reparent(Core& self, nb::handle handles, nb::handle parents) {
  HandleArray rows = batch_argument(self, handles, "handles", self.ids);
  read_handles(self, rows);
  HandleArray from = batch_argument(self, parents, "parents", self.parents);
  same_number(rows.size(), from.size(), "parents");
  from.read();
  self.core.reparent(rows.data(), from.data(), rows.size());
}

// The result is made first, from the handles that the children will get; making it may run
// code that admits or forks, so that they get others after all.
nb::list fork_sequence(Core& self, nb::handle handle, nb::handle n, nb::handle view) {
  const std::int64_t parent = handle_argument(handle);
  const std::int64_t count = int_argument(n, "n");
  // Making one is as cheap as asking first.
  if (count != 1) self.read([&](const Sequences& core) { core.check_fork(parent, count); });
  std::vector<Handle> expected(static_cast<std::size_t>(count));
  std::vector<Handle> children(expected.size());
  for (;;) {
    self.read([&](const Sequences& core) {
      core.next_handles(static_cast<std::int64_t>(expected.size()), expected.data());
    });
    nb::list result = made(nb::list());
    for (const Handle child : expected)
      result.append(view.is_none() ? made(nb::object(nb::int_(child)))
                                   : in_python([&] { return view(child); }));
    if (self.core.fork(parent, count, children.data(), expected.data())) return result;
  }
}

// digests: the names of all blocks in one, each of this size.
BlockNames names_argument(const nb::bytes& digests, int size, bool leading, nb::handle name) {
  const auto length = static_cast<std::int64_t>(digests.size());
  if (size < 1 || length % size)
    throw Error(ErrorKind::kValue, "digests must have " + std::to_string(size) + " bytes each");
  return {reinterpret_cast<const std::uint8_t*>(digests.data()), length / size, size, leading,
          namespace_argument(name)};
}

std::int64_t most_argument(nb::handle max_blocks) {
  if (max_blocks.is_none()) return INT64_MAX;
  const std::int64_t most = int_argument(max_blocks, "max_blocks");
  check_at_least("max_blocks", most, 0);
  return most;
}

nb::object retain_named(Core& self, const nb::bytes& digests, Exact<int> size, Exact<bool> leading,
                        nb::handle name, Exact<int> level, Exact<double> ttl,
                        nb::handle max_blocks) {
  const BlockNames names = names_argument(digests, size, leading, name);
  check_retention(level, ttl);
  const std::int64_t most = most_argument(max_blocks);
  nb::object blocks;
  self.core.retain_named(names, level, ttl, most, announce_to<std::int64_t>(blocks));
  return blocks;
}

// The fields of a DigestPin, or None: no prompt could use any of them.
nb::object pin_named(Core& self, const nb::bytes& digests, Exact<int> size, Exact<bool> leading,
                     nb::handle name, nb::handle max_blocks) {
  const BlockNames names = names_argument(digests, size, leading, name);
  const std::int64_t most = most_argument(max_blocks);
  // The tuple is made before the call: that may run the garbage collector, and with it code that
  // calls the manager. Numbers and bytes may not.
  const nb::object pin = made(nb::steal(PyTuple_New(5)));
  bool is_pinned = false;
  self.core.pin_named(names, most, [&](const Naming::NamedPin& facts) {
    const Nodes& nodes = self.core.nodes();
    PyObject* const items[] = {
        PyLong_FromLongLong(facts.id), PyLong_FromLongLong(facts.num_blocks),
        PyLong_FromLongLong(facts.num_cached), PyLong_FromLongLong(facts.num_found),
        PyBytes_FromStringAndSize(reinterpret_cast<const char*>(nodes.digest(facts.tail)),
                                  nodes.digest_size)};
    for (int i = 0; i < 5; ++i) PyTuple_SetItem(pin.ptr(), i, items[i]);
    if (PyErr_Occurred()) throw nb::python_error();
    is_pinned = true;
  });
  if (!is_pinned) return nb::none();
  return pin;
}

// A call with the checks of the manager's debug level after it, whether it finishes or throws.
template <auto call>
struct Checked;
template <class Result, class... Arguments, Result (*call)(Core&, Arguments...)>
struct Checked<call> {
  static Result run(Core& self, Arguments... arguments) {
    return with_findings(self.core, [&] { return call(self, arguments...); });
  }
};
template <auto call>
constexpr auto checked = Checked<call>::run;

std::int64_t retain(Sequences& core, Handle handle, std::int64_t start, std::int64_t stop,
                    int level, double ttl, const Retaining::Announce& announce) {
  check_retention(level, ttl);
  return core.retain(handle, start, stop, level, ttl, announce);
}

// Memory that an array shares. It keeps only that alive, not the manager: arrays take no part in
// garbage collection, so a cycle through one that held the manager would never be found.
struct SharedMemory {
  static constexpr bool kIsReadOnly = false;
  std::pair<void*, std::size_t> bytes() const { return {data, size}; }
  std::shared_ptr<void> memory;
  void* data;
  std::size_t size;
};

// Made by NumPy itself, as new_array says.
nb::object shared_view(const ZeroedArray<std::int32_t>& array, const nb::tuple& shape) {
  const nb::object memory = nb::cast(SharedMemory{array.memory(), array.data(), array.bytes()});
  return made(
      nb::steal(PyObject_CallFunction(known().ndarray, "OsO", shape.ptr(), "int32", memory.ptr())));
}

// The block tables and sequence lengths as NumPy arrays that share the core's memory.
nb::object block_tables(Core& self) {
  const Config& config = self.core.config();
  return shared_view(self.core.shown_tables,
                     nb::make_tuple(config.max_seqs, self.core.shown_width(config.row_width)));
}

// int32[groups, max_seqs, row_width], of all groups beside that of block_tables.
nb::object group_tables(Core& self) {
  const Config& config = self.core.config();
  return shared_view(self.core.shown_groups,
                     nb::make_tuple(config.groups.size(), config.max_seqs, config.row_width));
}

nb::object seq_lens(Core& self) {
  return shared_view(self.core.shown_lengths, nb::make_tuple(self.core.config().max_seqs));
}

template <auto method, class... Kinds>
constexpr auto call = Called<Sequences, method, Kinds...>::run;
template <auto method, class... Kinds>
constexpr auto announced = Announced<Sequences, method, Kinds...>::run;

}  // namespace

void bind_manager(nb::module_& m) {
  nb::class_<SharedMemory>(m, "SharedMemory", nb::type_slots(buffer_slots<SharedMemory>()),
                           "What the block tables and sequence lengths are views of.");
  nb::class_<Core> type = bind_holder<Sequences>(
      m, "Core", "Block ids, tokens and tables; documented as blockmgr.BlockManager.");
  type.def("admit", checked<admit>)
      .def("admit_loading", checked<admit_loading>)
      .def("match", match)
      .def("explain", explain)
      .def("can_admit", can_admit)
      .def("reserve", call<&Sequences::reserve, Number, Int<"num_slots">>)
      .def("append", checked<append>)
      .def("commit", call<&Sequences::commit, Number, Int<"num_computed_tokens">>)
      .def("truncate", call<&Sequences::truncate, Number, Int<"num_tokens">>)
      .def("decode", checked<decode>)
      .def("fork", checked<fork_sequence>)
      .def("reparent", checked<reparent>)
      .def("free", call<&Sequences::free, Number, Flag<"withdraw">>)
      .def("free_expecting",
           call<&Sequences::free_expecting, Number, Plain<bool>, Flag<"withdraw">>)
      .def("preempt", call<&Sequences::preempt, Number, Flag<"withdraw">>)
      .def("resume", checked<resume>)
      .def("resume_together", checked<resume_together>)
      .def("cache_state", call<&Sequences::cache_state, Number>)
      .def("place_state", call<&Sequences::place_state, Number, Int<"slot">>)
      .def("mark_state_moved", call<&Sequences::mark_state_moved, Number, Slots>)
      .def("complete", call<&Sequences::complete, StepTicket>)
      .def("take_remaps", checked<take_remaps>)
      .def("end_session", announced<&Sequences::end_session, Space, SessionName>)
      .def("signal", checked<signal>)
      .def("acquire", on_blocks<Sequences, &Sequences::acquire>)
      .def("touch_blocks", on_blocks<Sequences, &Sequences::touch_blocks>)
      .def("forget", on_blocks<Sequences, &Sequences::forget>)
      .def("shrink", call<&Sequences::shrink_pool, Int<"num_blocks">>)
      .def("grow", call<&Sequences::grow_pool, Int<"num_blocks">>)
      .def("retire", call<&Sequences::retire, Space>)
      .def("retain",
           announced<retain, Number, Int<"start">, Int<"stop">, Plain<int>, Plain<double>>)
      .def("retain_prefix", checked<retain_prefix>)
      .def("retain_named", checked<retain_named>)
      .def("pin", checked<pin>)
      .def("pin_named", checked<pin_named>)
      .def("touch", checked<touch>)
      .def("reset_prefix_cache", call<&Sequences::reset_prefix_cache, Flag<"reset_hit_rate">>)
      .def("reset_hit_rate", call<&Sequences::reset_hit_rate>)
      .def("num_common_prefix_blocks", num_common_prefix_blocks)
      .def("block_digests", block_digests)
      .def("block_tables", block_tables)
      .def("group_tables", group_tables)
      .def("seq_lens", seq_lens)
      .def("set_debug",
           [](Core& self, nb::handle level) {
             self.core.set_debug(static_cast<int>(int_argument(level, "level")));
           })
      .def("debug", [](Core& self) { return self.core.debug(); });
  add_reads(type);
}

}  // namespace blockmgr
