// One call at a time: the lock that every call of a manager or a pool holds from start to end.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <thread>

#include "errors.h"

namespace blockmgr {

// A mutex that knows its owner, so that a call made from inside another one (a digest function that
// calls back) is refused instead of waiting for itself.
class Monitor {
 public:
  // Locks a mutex that another thread holds. Whoever embeds the core in an interpreter puts a
  // function here that lets the interpreter's other threads run meanwhile: the holder may be one of
  // them, inside a digest function.
  using Wait = void (*)(std::mutex&);
  static inline Wait wait = [](std::mutex& mutex) { mutex.lock(); };

  // what: the kind of thing that is guarded, for the message.
  explicit Monitor(const char* what) : what_(what) {}

  void enter() {
    const std::thread::id self = std::this_thread::get_id();
    // Only this thread writes its own id here, so no order is needed to find it.
    if (owner_.load(std::memory_order_relaxed) == self)
      throw Error(ErrorKind::kReentrancy,
                  std::string("the ") + what_ +
                      " is inside another call of the same thread; a "
                      "digest function or an eviction policy must not call back");
    if (!mutex_.try_lock()) wait(mutex_);
    owner_.store(self, std::memory_order_relaxed);
  }
  void leave() noexcept {
    owner_.store(std::thread::id(), std::memory_order_relaxed);
    mutex_.unlock();
  }

 private:
  const char* what_;
  std::mutex mutex_;
  std::atomic<std::thread::id> owner_{};
};

// Holds a monitor for a scope.
class Held {
 public:
  explicit Held(Monitor& monitor) : monitor_(monitor) { monitor_.enter(); }
  ~Held() { monitor_.leave(); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

 private:
  Monitor& monitor_;
};

}  // namespace blockmgr
