// The module: what it has, and how its threads wait for each other.
#include <chrono>

#include "bindings/bindings.h"
#include "sequences/monitor.h"

namespace blockmgr {
namespace {

// The thread that holds the mutex may be waiting for the interpreter, so this thread must release
// it. It looks at signals now and then: a handler may throw, as that of Ctrl-C does.
Monitor::Turn wait_for_call(Monitor::Mutex& mutex, bool may_be_interrupted) {
  constexpr std::chrono::milliseconds kPatience{20};
  PyThreadState* const state = PyEval_SaveThread();
  const bool is_mine = mutex.try_lock_for(kPatience);
  in_python([&] { PyEval_RestoreThread(state); },
            [&] {
              if (is_mine) mutex.unlock();
            });
  if (is_mine) return Monitor::Turn::kMine;
  if (may_be_interrupted && in_python([] { return PyErr_CheckSignals(); }))
    throw nb::python_error();
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
  // Whatever a user's own references keep alive at the end of the process is no leak of this
  // library.
  nb::set_leak_warnings(false);
#endif
  m.doc() = "The native core of blockmgr. Use blockmgr.BlockManager.";
  know_numpy();
  know_python();
  nb::register_exception_translator(translate_errors);
  bind_manager(m);
  bind_block_pool(m);
  bind_copies(m);
  bind_prompt(m);
  bind_cbor(m);
  bind_fleet(m);
  bind_replays(m);
}
