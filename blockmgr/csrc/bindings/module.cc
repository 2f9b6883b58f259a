// The Python face of the core: arguments in, results out, exceptions translated. Nothing else.
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <type_traits>
#include <utility>

#include "bindings/core.h"
#include "bindings/events.h"
#include "bindings/idle.h"
#include "bindings/partitions.h"

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

// All of a prompt but its tokens, which are read last: converting the rest may run Python code.
Prompt prompt_argument(nb::handle name, nb::handle extras, nb::handle num_slots,
                       nb::handle read_cache = Py_True) {
  std::string_view bytes = bytes_argument(name, "namespace", 0);
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

[[gnu::always_inline]] inline nb::object admit_of(
    Core& self, nb::handle tokens, nb::handle name, nb::handle extras, nb::handle num_slots,
    nb::handle read_cache, nb::handle match, nb::handle max_cached_tokens,
    nb::handle watermark_blocks, nb::handle session, nb::handle num_loaded_tokens) {
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

// Blocks, or None: the session is not known.
nb::object end_session(Core& self, nb::handle name, nb::handle session) {
  const std::string_view bytes = bytes_argument(name, "namespace", 0);
  nb::object blocks = nb::none();
  self.core.end_session(bytes, session_argument(session, 1), announce_to<std::int64_t>(blocks));
  return blocks;
}

nb::object signal(Core& self, nb::handle name, nb::handle session, int signal, double seconds) {
  const std::string_view bytes = bytes_argument(name, "namespace", 0);
  if (signal < 0 || signal > static_cast<int>(Sessions::Signal::kDone))
    throw Error(ErrorKind::kValue, "signal must be in [0, 2], got " + std::to_string(signal));
  if (!(seconds > 0))
    throw Error(ErrorKind::kValue, "seconds must be above 0, got " + std::to_string(seconds));
  nb::object blocks = nb::none();
  self.core.signal(bytes, session_argument(session, 1), static_cast<Sessions::Signal>(signal),
                   seconds, announce_to<std::int64_t>(blocks));
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
  python.num_cached_tokens.fill(record, nb::steal(PyLong_FromLongLong(found.num_cached)));
  python.num_replayed_tokens.fill(record, nb::steal(PyLong_FromLongLong(found.num_replayed)));
  python.num_partial_tokens.fill(record, nb::steal(PyLong_FromLongLong(found.num_partial)));
  python.block_ids.fill(record, ids.array);
  python.num_idle_blocks.fill(record, nb::steal(PyLong_FromLongLong(found.num_idle)));
  python.num_computing_tokens.fill(record, nb::steal(PyLong_FromLongLong(found.num_computing)));
  python.num_shared_tokens.fill(record, nb::steal(PyLong_FromLongLong(found.num_shared)));
  python.stops.fill(record, found.stops != Stops{} ? ascending(found.stops) : nb::borrow(python.nothing));
  return record;
}

nb::tuple explain(Core& self, nb::handle tokens, nb::handle name, nb::handle extras) {
  Prompt prompt = prompt_argument(name, extras, nb::none());
  TokenArray values = token_argument(self, tokens);
  if (values.size() > self.core.fits_anyway())
    self.read([&](const Sequences& core) { core.check_lookup(values.size(), prompt.name); });
  return explained(self.core.explain(with_tokens(prompt, values)));
}

int can_admit(Core& self, nb::handle tokens, nb::handle name, nb::handle extras,
              nb::handle num_slots, nb::handle read_cache, nb::handle match,
              nb::handle max_cached_tokens, nb::handle watermark_blocks,
              nb::handle num_loaded_tokens) {
  Prompt prompt = prompt_argument(name, extras, num_slots, read_cache);
  read_terms(prompt, match, max_cached_tokens, watermark_blocks, num_loaded_tokens);
  TokenArray values = token_argument(self, tokens);
  if (values.size() > self.core.fits_anyway() && !self.read([&](const Sequences& core) {
        return core.can_fit(values.size(), prompt);
      }))
    return static_cast<int>(Admission::kNever);
  return static_cast<int>(self.core.can_admit(with_tokens(prompt, values)));
}

void reserve(Core& self, nb::handle handle, nb::handle num_slots) {
  const std::int64_t h = handle_argument(handle);
  self.core.reserve(h, int_argument(num_slots, "num_slots"));
}

void append(Core& self, nb::handle handle, nb::handle tokens) {
  const std::int64_t h = handle_argument(handle);
  TokenArray values = token_argument(self, tokens);
  if (values.size() > self.core.fits_anyway())
    self.read([&](const Sequences& core) { core.check_append(h, values.size()); });
  values.read();
  self.core.append(h, values.data(), not_empty(values.size(), "tokens"));
}

void commit(Core& self, nb::handle handle, nb::handle num_computed_tokens) {
  const std::int64_t h = handle_argument(handle);
  self.core.commit(h, int_argument(num_computed_tokens, "num_computed_tokens"));
}

void mark_state_moved(Core& self, nb::handle handle) {
  self.core.mark_state_moved(handle_argument(handle));
}

void place_state(Core& self, nb::handle handle, nb::handle slot) {
  const std::int64_t h = handle_argument(handle);
  self.core.place_state(h, int_argument(slot, "slot"));
}

bool cache_state(Core& self, nb::handle handle) {
  return self.core.cache_state(handle_argument(handle));
}

std::int64_t truncate_to(Core& self, nb::handle handle, nb::handle num_tokens) {
  const std::int64_t h = handle_argument(handle);
  return self.core.truncate(h, int_argument(num_tokens, "num_tokens"));
}

void free_sequence(Core& self, nb::handle handle, nb::handle withdraw) {
  const std::int64_t h = handle_argument(handle);
  self.core.free(h, bool_argument(withdraw, "withdraw"));
}

void free_expecting(Core& self, nb::handle handle, bool expect_reuse, nb::handle withdraw) {
  const std::int64_t h = handle_argument(handle);
  self.core.free_expecting(h, expect_reuse, bool_argument(withdraw, "withdraw"));
}

nb::object retain(Core& self, nb::handle handle, nb::handle start, nb::handle stop, int level,
                  double ttl) {
  const std::int64_t h = handle_argument(handle);
  const std::int64_t first = int_argument(start, "start");
  const std::int64_t last = int_argument(stop, "stop");
  check_retention(level, ttl);
  nb::object blocks;
  self.core.retain(h, first, last, level, ttl,
                   announce_to<std::int64_t>(blocks));
  return blocks;
}

nb::object retain_prefix(Core& self, nb::handle tokens, nb::handle name, nb::handle extras,
                         int level, double ttl) {
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

void unpin(Core& self, nb::handle pin) { self.core.unpin(pin_argument(pin)); }

// (num_blocks, num_cached_blocks)
nb::tuple view_pin(Core& self, nb::handle pin) {
  const std::int64_t id = pin_argument(pin);
  const auto facts = self.read([&](const Sequences& core) { return core.view_pin(id); });
  return nb::make_tuple(facts.num_blocks, facts.num_cached);
}

nb::object touch(Core& self, nb::handle tokens, nb::handle name, nb::handle extras) {
  Prompt prompt = prompt_argument(name, extras, nb::none());
  TokenArray values = token_argument(self, tokens);
  nb::object blocks;
  self.core.touch(to_look_up(self, prompt, values), announce_to<std::int64_t>(blocks));
  return blocks;
}

void set_time(Core& self, double seconds) { self.core.set_time(seconds); }

double time_set(Core& self) {
  return self.read([](const Sequences& core) { return core.time(); });
}

void preempt(Core& self, nb::handle handle, nb::handle withdraw) {
  const std::int64_t h = handle_argument(handle);
  self.core.preempt(h, bool_argument(withdraw, "withdraw"));
}

void resume(Core& self, nb::handle handle, nb::handle num_slots, nb::handle read_cache) {
  const std::int64_t h = handle_argument(handle);
  const std::int64_t slots = slots_argument(num_slots);
  self.core.resume(h, slots, bool_argument(read_cache, "read_cache"));
}

std::int64_t reset_prefix_cache(Core& self, nb::handle reset_hit_rate) {
  return self.core.reset_prefix_cache(bool_argument(reset_hit_rate, "reset_hit_rate"));
}

void reset_hit_rate(Core& self) { self.core.reset_hit_rate(); }

std::int64_t num_common_prefix_blocks(Core& self, nb::handle handles) {
  if (handles.is_none()) return self.core.num_common_prefix_blocks();
  HandleArray rows = batch_argument(self, handles, "handles", self.handles);
  rows.read();
  return self.core.num_common_prefix_blocks(rows.data(), rows.size());
}

// The digests are complete before any object is made of them: that may run the garbage collector,
// and with it code that calls the manager.
nb::list block_digests(Core& self, nb::handle tokens, nb::handle name, nb::handle extras) {
  Prompt prompt = prompt_argument(name, extras, nb::none());
  TokenArray values = token_argument(self, tokens);
  const std::int64_t count = self.core.num_digests(with_tokens(prompt, values));
  const auto size = static_cast<std::size_t>(self.core.nodes().digest_size);
  std::vector<std::uint8_t> digests(static_cast<std::size_t>(count) * size);
  self.core.block_digests(prompt, digests.data());
  nb::list result = made(nb::list());
  for (std::size_t at = 0; at < digests.size(); at += size)
    result.append(made(nb::bytes(digests.data() + at, size)));
  return result;
}

void copies_applied(Core& self, nb::handle ticket) {
  self.core.copies_applied(ticket_argument(ticket));
}

void copies_aborted(Core& self, nb::handle ticket) {
  self.core.copies_aborted(ticket_argument(ticket));
}

void complete(Core& self, nb::handle ticket) { self.core.complete(step_argument(ticket)); }

// Each as make(handle, index, old, new). The log forgets them once all are made.
nb::list take_remaps(Core& self, nb::handle make) {
  return hand_over_remaps(self.core, [&](const std::vector<RemapRecord>& records) {
    nb::list result = made(nb::list());
    for (const RemapRecord& r : records)
      result.append(in_python([&] { return make(r.handle, r.index, r.old_block, r.new_block); }));
    return result;
  });
}

nb::object take_copies(Core& self, nb::handle make) { return take_plan(self.core, make); }

nb::object decode(Core& self, nb::handle handles, nb::handle tokens) {
  HandleArray rows = batch_argument(self, handles, "handles", self.handles);
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
  HandleArray rows = batch_argument(self, handles, "handles", self.handles);
  read_handles(self, rows);
  self.core.resume_together(rows.data(), rows.size(), slots, reads);
}

void reparent(Core& self, nb::handle handles, nb::handle parents) {
  HandleArray rows = batch_argument(self, handles, "handles", self.handles);
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

void set_debug(Core& self, nb::handle level) {
  self.core.set_debug(static_cast<int>(int_argument(level, "level")));
}

int debug(Core& self) { return self.core.debug(); }

// The thread that holds the mutex may be waiting for the interpreter, so this thread must release
// it. It looks at signals now and then: a handler may throw, as that of Ctrl-C does.
Monitor::Turn wait_for_call(Monitor::Mutex& mutex, bool may_be_interrupted) {
  constexpr std::chrono::milliseconds kPatience{20};
  PyThreadState* const state = PyEval_SaveThread();
  const bool is_mine = mutex.try_lock_for(kPatience);
  in_python([&] { PyEval_RestoreThread(state); }, [&] { if (is_mine) mutex.unlock(); });
  if (is_mine) return Monitor::Turn::kMine;
  if (may_be_interrupted && in_python([] { return PyErr_CheckSignals(); })) throw nb::python_error();
  // Other threads do not run any more, so the holder stays where it is.
  const nb::object answer = nb::steal(PyObject_CallNoArgs(known().is_finalizing));
  if (!answer.is_valid()) PyErr_Clear();
  return answer.is(Py_True) ? Monitor::Turn::kNever : Monitor::Turn::kNotYet;
}

}  // namespace
}  // namespace blockmgr

using namespace blockmgr;

NB_MODULE(_core, m) {
  Monitor::wait = wait_for_call;
#ifndef BLOCKMGR_TESTING
  // Whatever a user's own references keep alive at the end of the process is no leak of this library.
  nb::set_leak_warnings(false);
#endif
  m.doc() = "The native core of blockmgr. Use blockmgr.BlockManager.";
  know_numpy();
  know_python();
  nb::register_exception_translator(translate_errors);
  bind_shared_memory(m);
  bind_copies(m);
  bind_prompt(m);
  bind_cbor(m);
  bind_fleet(m);
  bind_replays(m);

  // Arguments are any objects, None too: they are converted by functions that name the argument
  // when it is wrong.
  const auto any = [] { return nb::arg().none(); };
  // Numbers that the package itself has made. Nothing is converted: nanobind drops whatever error
  // that raises, an interrupt too.
  const auto exact = [] { return nb::arg().noconvert(); };
  nb::class_<Core>(m, "Core", nb::type_slots(collection_slots<Core>()),
                   "Block ids, tokens and tables; documented as blockmgr.BlockManager.")
      .def("__init__", init_core,
           nb::sig("def __init__(self, options: dict[str, typing.Any], /) -> None"))
      .def("admit", checked<admit>,
           nb::sig("def admit(self, tokens: object, namespace: object, extras: object, "
                   "num_slots: object, read_cache: object, match: object = None, "
                   "max_cached_tokens: object = None, watermark_blocks: object = None, "
                   "session: object = b'', /) -> int"),
           any(), any(), any(), any(), any(), any() = nb::none(), any() = nb::none(),
           any() = nb::none(), any() = nb::bytes("", 0))
      .def("admit_loading", checked<admit_loading>,
           nb::sig("def admit_loading(self, tokens: object, namespace: object, extras: object, "
                   "num_slots: object, read_cache: object, match: object, "
                   "max_cached_tokens: object, watermark_blocks: object, "
                   "session: object, num_loaded_tokens: object, /) -> int"),
           any(), any(), any(), any(), any(), any(), any(), any(), any(), any())
      .def("end_session", checked<end_session>,
           nb::sig("def end_session(self, namespace: object, session: object, /) -> int | None"),
           any(), any())
      .def("signal", checked<signal>,
           nb::sig("def signal(self, namespace: object, session: object, signal: int, "
                   "seconds: float, /) -> int | None"),
           any(), any(), exact(), exact())
      .def("match", match,
           nb::sig("def match(self, tokens: object, namespace: object, extras: object, "
                   "num_slots: object = None, "
                   "max_cached_tokens: object = None, watermark_blocks: object = None, /) -> "
                   "blockmgr.blocks.Match"),
           any(), any(), any(), any() = nb::none(), any() = nb::none(), any() = nb::none())
      .def("explain", explain,
           nb::sig("def explain(self, tokens: object, namespace: object, extras: object, /) -> "
                   "tuple[int, int, int, " BM_ARRAY("uint8") ", " BM_ARRAY("int64") ", " BM_ARRAY(
                       "int64") ", " BM_ARRAY("int64") ", " BM_ARRAY("int64") "]"),
           any(), any(), any())
      .def("can_admit", can_admit,
           nb::sig("def can_admit(self, tokens: object, namespace: object, extras: object, "
                   "num_slots: object, read_cache: object, match: object = None, "
                   "max_cached_tokens: object = None, watermark_blocks: object = None, "
                   "num_loaded_tokens: object = None, /) -> int"),
           any(), any(), any(), any(), any(), any() = nb::none(), any() = nb::none(),
           any() = nb::none(), any() = nb::none())
      .def("reserve", checked<reserve>,
           nb::sig("def reserve(self, handle: object, num_slots: object, /) -> None"), any(), any())
      .def("append", checked<append>,
           nb::sig("def append(self, handle: object, tokens: object, /) -> None"), any(), any())
      .def("commit", checked<commit>,
           nb::sig("def commit(self, handle: object, num_computed_tokens: object, /) -> None"),
           any(), any())
      .def("cache_state", checked<cache_state>,
           nb::sig("def cache_state(self, handle: object, /) -> bool"), any())
      .def("place_state", checked<place_state>,
           nb::sig("def place_state(self, handle: object, slot: object, /) -> None"), any(), any())
      .def("mark_state_moved", checked<mark_state_moved>,
           nb::sig("def mark_state_moved(self, handle: object, /) -> None"), any())
      .def("truncate", checked<truncate_to>,
           nb::sig("def truncate(self, handle: object, num_tokens: object, /) -> int"), any(),
           any())
      .def("fork", checked<fork_sequence>,
           nb::sig("def fork(self, handle: object, n: object, view: object, /) -> "
                   "list[typing.Any]"),
           any(), any(), any())
      .def("reparent", checked<reparent>,
           nb::sig("def reparent(self, handles: object, parents: object, /) -> None"), any(), any())
      .def("free", checked<free_sequence>,
           nb::sig("def free(self, handle: object, withdraw: object = False, /) -> None"), any(),
           any() = false)
      .def("free_expecting", checked<free_expecting>,
           nb::sig("def free_expecting(self, handle: object, expect_reuse: bool, withdraw: object, "
                   "/) -> None"),
           any(), exact(), any())
      .def("acquire", checked<acquire_blocks>,
           nb::sig("def acquire(self, blocks: object, /) -> None"), any())
      .def("release", checked<release_blocks>,
           nb::sig("def release(self, blocks: object, /) -> None"), any())
      .def("touch_blocks", checked<touch_blocks>,
           nb::sig("def touch_blocks(self, blocks: object, /) -> None"), any())
      .def("forget", checked<forget_blocks>, nb::sig("def forget(self, blocks: object, /) -> int"),
           any())
      .def("shrink", checked<shrink_pool>,
           nb::sig("def shrink(self, num_blocks: object, /) -> int"), any())
      .def("grow", checked<grow_pool>, nb::sig("def grow(self, num_blocks: object, /) -> None"),
           any())
      .def("leaving", leaving_blocks,
           nb::sig("def leaving(self) -> " BM_TWO_ARRAYS("int32", "int64")))
      .def("retire", checked<retire_namespace>,
           nb::sig("def retire(self, namespace: object, /) -> int"), any())
      .def("idle_front", idle_front<Core>,
           nb::sig("def idle_front(self, most: object, /) -> tuple[" BM_ARRAY("int32") ", " BM_ARRAY(
               "int64") "]"),
           any())
      .def("prefix_of", prefix_of<Core>,
           nb::sig("def prefix_of(self, block: object, /) -> " BM_PREFIX), any())
      .def("contents_of", contents_of,
           nb::sig("def contents_of(self, blocks: object, /) -> " BM_ARRAY("int64")), any())
      .def("is_cached", is_cached, nb::sig("def is_cached(self, block: object, /) -> bool"), any())
      .def("ref_count", ref_count, nb::sig("def ref_count(self, block: object, /) -> int"), any())
      .def("block_ids_from", block_ids_from,
           nb::sig("def block_ids_from(self, handle: object, start: object, /) -> list[int]"),
           any(), any())
      .def("retain", checked<retain>,
           nb::sig("def retain(self, handle: object, start: object, stop: object, level: int, "
                   "ttl: float, /) -> int"),
           any(), any(), any(), exact(), exact())
      .def("retain_prefix", checked<retain_prefix>,
           nb::sig("def retain_prefix(self, tokens: object, namespace: object, extras: object, "
                   "level: int, ttl: float, /) -> int"),
           any(), any(), any(), exact(), exact())
      .def("pin", checked<pin>,
           nb::sig("def pin(self, tokens: object, namespace: object, extras: object, /) -> int"),
           any(), any(), any())
      .def("retain_named", checked<retain_named>,
           nb::sig("def retain_named(self, digests: bytes, size: int, leading: bool, "
                   "namespace: object, level: int, ttl: float, max_blocks: object, /) -> int"),
           exact(), exact(), exact(), any(), exact(), exact(), any())
      .def("pin_named", checked<pin_named>,
           nb::sig("def pin_named(self, digests: bytes, size: int, leading: bool, "
                   "namespace: object, max_blocks: object, /) -> tuple[int, int, int, int, bytes] | None"),
           exact(), exact(), exact(), any(), any())
      .def("cached_digests", cached_digests,
           nb::sig("def cached_digests(self, handle: object, /) -> list[bytes]"), any())
      .def("session_digests", session_digests,
           nb::sig("def session_digests(self, namespace: object, session: object, /) -> "
                   "list[bytes] | None"),
           any(), any())
      .def("unpin", checked<unpin>, nb::sig("def unpin(self, pin: object, /) -> None"), any())
      .def("view_pin", view_pin, nb::sig("def view_pin(self, pin: object, /) -> tuple[int, int]"),
           any())
      .def("touch", checked<touch>,
           nb::sig("def touch(self, tokens: object, namespace: object, extras: object, /) -> int"),
           any(), any(), any())
      .def("set_time", checked<set_time>, nb::sig("def set_time(self, seconds: float, /) -> None"),
           exact())
      .def("time", time_set)
      .def("preempt", checked<preempt>,
           nb::sig("def preempt(self, handle: object, withdraw: object = False, /) -> None"), any(),
           any() = false)
      .def("resume", checked<resume>,
           nb::sig("def resume(self, handle: object, num_slots: object, read_cache: object, /) "
                   "-> None"),
           any(), any(), any())
      .def("resume_together", checked<resume_together>,
           nb::sig("def resume_together(self, handles: object, num_slots: object, "
                   "read_cache: object, /) -> None"),
           any(), any(), any())
      .def("reset_prefix_cache", checked<reset_prefix_cache>,
           nb::sig("def reset_prefix_cache(self, reset_hit_rate: object, /) -> int"), any())
      .def("reset_hit_rate", checked<reset_hit_rate>)
      .def("recent_hits", recent_hits, nb::sig("def recent_hits(self, /) -> tuple[int, int, int]"))
      .def("num_common_prefix_blocks", num_common_prefix_blocks,
           nb::sig("def num_common_prefix_blocks(self, handles: object, /) -> int"), any())
      .def("block_digests", block_digests,
           nb::sig("def block_digests(self, tokens: object, namespace: object, extras: object, /) "
                   "-> list[bytes]"),
           any(), any(), any())
      .def("decode", checked<decode>,
           nb::sig("def decode(self, handles: object, tokens: object, /) -> " BM_ARRAY("int64")),
           any(), any())
      .def(
          "slot_mapping", slot_mapping,
          nb::sig(
              "def slot_mapping(self, handle: object, start: object, stop: object, /) -> " BM_ARRAY(
                  "int64")),
          any(), any(), any())
      .def("group_slots", group_slots,
           nb::sig("def group_slots(self, handle: object, start: object, stop: object, group: int, "
                   "/) -> " BM_ARRAY("int64")),
           any(), any(), any(), exact())
      .def("take_copies", checked<take_copies>,
           nb::sig("def take_copies(self, make: type[blockmgr.blocks.CopyPlan], /) -> "
                   "blockmgr.blocks.CopyPlan"),
           any())
      .def("copies_applied", checked<copies_applied>,
           nb::sig("def copies_applied(self, ticket: object, /) -> None"), any())
      .def("copies_aborted", checked<copies_aborted>,
           nb::sig("def copies_aborted(self, ticket: object, /) -> None"), any())
      .def("complete", checked<complete>, nb::sig("def complete(self, ticket: object, /) -> None"),
           any())
      .def("take_remaps", checked<take_remaps>,
           nb::sig("def take_remaps(self, make: type[blockmgr.blocks.Remap], /) -> "
                   "list[blockmgr.blocks.Remap]"),
           any())
      .def(
          "take_events", take_events<Core>,
          nb::sig("def take_events(self, make: typing.Callable[..., typing.Any], /) -> typing.Any"))
      .def("resident_events", resident_events<Core>,
           nb::sig("def resident_events(self, make: typing.Callable[..., typing.Any], /) -> "
                   "typing.Any"))
      .def("take_snapshot", take_snapshot<Core>,
           nb::sig(
               "def take_snapshot(self, make: typing.Callable[..., typing.Any], /) -> typing.Any"))
      .def("view", view,
           nb::sig("def view(self, handle: object, /) -> tuple[int, int, int, int, bool, int, int]"), any())
      .def("block_ids", block_ids,
           nb::sig("def block_ids(self, handle: object, /) -> " BM_ARRAY("int32")), any())
      .def("tokens", tokens_of,
           nb::sig("def tokens(self, handle: object, /) -> " BM_ARRAY("uint32")), any())
      .def("set_debug", set_debug, nb::sig("def set_debug(self, level: object, /) -> None"), any())
      .def("debug", debug)
      .def("handles", handles)
      .def("stats", stats, nb::sig("def stats(self, /) -> dict[str, int]"))
      .def("quota_usage", quota_usage<Core>,
           nb::sig("def quota_usage(self, namespace: object, /) -> dict[str, int]"), any())
      .def("num_available", num_available)
      .def("memory_usage", memory_usage)
      .def("violations", violations)
      .def("policy_error", policy_error,
           nb::sig("def policy_error(self, /) -> BaseException | None"))
      .def("blocks", inspect_blocks,
           nb::sig("def blocks(self, /) -> dict[str, numpy.typing.NDArray[typing.Any]]"))
      .def("reuse_counts", reuse_counts<Core>,
           nb::sig("def reuse_counts(self, namespace: object, /) -> "
                   "tuple[int, int, " BM_ARRAY("int64") "] | None"),
           nb::arg().none())
      .def("block_tables", block_tables, nb::sig("def block_tables(self, /) -> " BM_ARRAY("int32")))
      .def("group_tables", group_tables, nb::sig("def group_tables(self, /) -> " BM_ARRAY("int32")))
      .def("view_groups", view_groups,
           nb::sig("def view_groups(self, handle: object, /) -> tuple[bool, list[int]]"), any())
      .def("seq_lens", seq_lens, nb::sig("def seq_lens(self, /) -> " BM_ARRAY("int32")));
  bind_block_pool(m);
}
