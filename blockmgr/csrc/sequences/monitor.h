// One call at a time: the lock that every call of a manager or a pool holds from start to end.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <thread>

#include "memory/errors.h"

namespace blockmgr {

// A mutex that knows its owner, so that a call made from inside another one (a digest function that
// calls back) is refused instead of waiting for itself.
//
// A fork of the process takes along one thread only. What another thread was inside of at that
// moment stays half done forever in the child, so a monitor that was held then is lost there, and
// every call is refused; all others work on.
class Monitor {
 public:
  using Mutex = std::timed_mutex;
  enum class Turn { kMine, kNotYet, kNever };
  // Tries for a while to lock a mutex that another thread holds, and returns whether it did, or
  // whether the holder has ended without leaving. An interpreter that embeds the core puts a
  // function here that lets its other threads run meanwhile: the holder may be one of them, inside
  // a digest function. Where the call may be interrupted, it throws what a signal handler throws.
  using Wait = Turn (*)(Mutex&, bool may_be_interrupted);
  static inline Wait wait = [](Mutex& mutex, bool) {
    mutex.lock();
    return Turn::kMine;
  };

  // what: the kind of thing that is guarded, for the message.
  explicit Monitor(const char* what);
  ~Monitor();
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  void enter() {
    const std::thread::id self = std::this_thread::get_id();
    // Only this thread writes its own id here, so no order is needed to find it.
    if (owner_.load(std::memory_order_relaxed) == self) throw_reentered();
    if (!mutex_.try_lock()) wait_for_turn();
    owner_.store(self, std::memory_order_relaxed);
  }
  // For what has to be done after a call, whatever signals come meanwhile. False: it never can be,
  // or this thread is inside another call.
  bool enter_afterwards() noexcept;
  const char* what() const { return what_; }
  void leave() noexcept {
    owner_.store(std::thread::id(), std::memory_order_relaxed);
    mutex_.unlock();
  }

 private:
  friend struct Monitors;
  [[noreturn]] void throw_reentered() const;
  void wait_for_turn();
  void look_after_fork() noexcept;

  const char* what_;
  Mutex mutex_;
  std::atomic<std::thread::id> owner_{};
  bool lost_ = false;          // in the child of a fork
  Monitor* before_ = nullptr;  // in the list of all there are
  Monitor* after_ = nullptr;
};

// Holds a monitor for a scope.
class Held {
 public:
  struct Afterwards {};
  explicit Held(Monitor& monitor) : monitor_(&monitor) { monitor.enter(); }
  Held(Monitor& monitor, Afterwards) noexcept
      : monitor_(monitor.enter_afterwards() ? &monitor : nullptr) {}
  ~Held() {
    if (monitor_) monitor_->leave();
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  explicit operator bool() const { return monitor_; }

 private:
  Monitor* monitor_;
};

}  // namespace blockmgr
