// Work that may run Python code, on a thread that may outlive the interpreter.
#pragma once

#if defined(__GLIBCXX__)
#include <cxxabi.h>

#include <chrono>
#include <thread>
#endif

#include <nanobind/nanobind.h>

#include <utility>

namespace blockmgr {

namespace nb = nanobind;

// Does what may run Python code, and so may give the interpreter's lock away. Before Python 3.14 an
// interpreter that ends takes a daemon thread down where that asks for the lock again: by an unwind
// that C++ can neither stop nor let through a function that must not throw, without the lock that
// destructors of objects need. So the thread stops here for good, as 3.14 itself makes it do.
template <class Work>
decltype(auto) running_python(Work&& work) {
#if defined(__GLIBCXX__)
  try {
    return work();
  } catch (abi::__forced_unwind&) {
    for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
  }
#else
  return work();
#endif
}

// Calls a Python object.
template <class... Arguments>
nb::object call_python(nb::handle function, Arguments&&... arguments) {
  return running_python([&] { return nb::object(function(std::forward<Arguments>(arguments)...)); });
}

// Whether only the thread that ends the interpreter can run Python code any more.
inline bool interpreter_ends() { return !Py_IsInitialized(); }

}  // namespace blockmgr
