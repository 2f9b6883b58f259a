// The manager behind a blockmgr_manager, and its calls: an exception becomes a number for callers
// in C, and a text of the thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "c/blockmgr.h"
#include "sequences/arguments.h"
#include "sequences/sequences.h"

struct blockmgr_manager {
  blockmgr_manager(const blockmgr::Config& config, std::unique_ptr<blockmgr::Digester> digester)
      : core(config, std::move(digester)) {}

  blockmgr::Sequences core;
};

namespace blockmgr::c {

// More room is needed for results.
struct TooSmall {
  std::int64_t room, needed;
};

// The digest function of the caller returned this.
struct DigestFailed {
  int answer;
};

// The status of the exception that is being handled.
blockmgr_status report() noexcept;

template <class Call>
blockmgr_status guarded(const Call& call) noexcept {
  try {
    call();
    return BLOCKMGR_OK;
  } catch (...) {
    return report();
  }
}

template <class T>
T& not_null(T* pointer, const char* name) {
  if (!pointer) throw Error(ErrorKind::kValue, std::string(name) + " must not be NULL");
  return *pointer;
}

// So many elements, of which there may be none.
template <class T>
T* elements(T* pointer, const char* name, std::int64_t count, const char* number) {
  check_at_least(number, count, 0);
  return count ? &not_null(pointer, name) : pointer;
}

// A call that may change something.
template <class Call>
blockmgr_status change(blockmgr_manager* manager, const Call& call) noexcept {
  return guarded([&] {
    Sequences& core = not_null(manager, "manager").core;
    with_findings(core, [&] { call(core); });
  });
}

// A call that reads, with no other half-way through.
template <class Call>
blockmgr_status read(blockmgr_manager* manager, const Call& call) noexcept {
  return guarded([&] {
    const Sequences& core = not_null(manager, "manager").core;
    const Held held(core.monitor());
    call(core);
  });
}

// Room for results in memory of the caller. Tells the number that is needed, and throws if there is
// less.
inline void check_room(std::int64_t room, std::int64_t needed, std::int64_t& told) {
  if (room >= needed) return;
  told = needed;
  throw TooSmall{room, needed};
}

}  // namespace blockmgr::c
