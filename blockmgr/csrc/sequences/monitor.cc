#include "sequences/monitor.h"

#include <new>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#define BLOCKMGR_FORKS 1
#endif

namespace blockmgr {

// All monitors there are, for the child of a fork to look at. Kept for good: a fork may come later
// than the last destructor.
struct Monitors {
  std::mutex mutex;
  Monitor* first = nullptr;

  static Monitors& all() {
    alignas(Monitors) static unsigned char memory[sizeof(Monitors)];
    static Monitors& monitors = *new (memory) Monitors;
    return monitors;
  }

  Monitors() {
#ifdef BLOCKMGR_FORKS
    pthread_atfork([] { all().mutex.lock(); }, [] { all().mutex.unlock(); },
                   [] {
                     for (Monitor* m = all().first; m; m = m->after_) m->look_after_fork();
                     all().mutex.unlock();
                   });
#endif
  }
};

Monitor::Monitor(const char* what) : what_(what) {
  Monitors& all = Monitors::all();
  const std::lock_guard<std::mutex> lock(all.mutex);
  after_ = all.first;
  if (after_) after_->before_ = this;
  all.first = this;
}

Monitor::~Monitor() {
  Monitors& all = Monitors::all();
  const std::lock_guard<std::mutex> lock(all.mutex);
  (before_ ? before_->after_ : all.first) = after_;
  if (after_) after_->before_ = before_;
}

// In the child, where no other thread runs. The thread that forked may itself be inside a call,
// which goes on here as it does in the parent.
void Monitor::look_after_fork() noexcept {
  if (owner_.load(std::memory_order_relaxed) == std::this_thread::get_id()) return;
  if (mutex_.try_lock()) {
    mutex_.unlock();
    return;
  }
  lost_ = true;
  // A new thread may be given the id that the holder had.
  owner_.store(std::thread::id(), std::memory_order_relaxed);
}

void Monitor::throw_reentered() const {
  throw Error(ErrorKind::kReentrancy, std::string("the ") + what_ +
                                          " is inside another call of the same thread; a digest "
                                          "function or an eviction policy must not call back");
}

void Monitor::wait_for_turn() {
  Turn turn = Turn::kNotYet;
  do {
    if (lost_)
      throw Error(ErrorKind::kFork, std::string("the ") + what_ +
                                        " was inside a call of another thread when this process "
                                        "was forked, and cannot be used here; fork between calls");
    if (turn == Turn::kNever)
      throw Error(ErrorKind::kReentrancy,
                  std::string("the ") + what_ +
                      " is inside a call of a thread that ended with the interpreter");
    turn = wait(mutex_, true);
  } while (turn != Turn::kMine);
}

bool Monitor::enter_afterwards() noexcept {
  const std::thread::id self = std::this_thread::get_id();
  // The call was refused because this thread is inside another one, which has an end of its own.
  if (owner_.load(std::memory_order_relaxed) == self) return false;
  if (!mutex_.try_lock()) {
    Turn turn = Turn::kNotYet;
    do {
      if (lost_ || turn == Turn::kNever) return false;
      turn = wait(mutex_, false);
    } while (turn != Turn::kMine);
  }
  owner_.store(self, std::memory_order_relaxed);
  return true;
}

}  // namespace blockmgr
