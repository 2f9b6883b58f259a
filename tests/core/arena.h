// Memory that can be restored to an earlier state, together with the objects in it.
//
// Only one program includes this file, because it replaces every allocation of the program. While a
// thread allocates in its arena, all its allocations lie between two addresses. So a copy of those
// bytes is a snapshot, and restoring the bytes also restores pointers into the arena.
#pragma once

#include <sys/mman.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

namespace blockmgr::testing {

class Arena {
 public:
  explicit Arena(std::size_t size) : size_(size) {
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    head_ = new (memory) Head{sizeof(Head), {}};
  }
  ~Arena() { munmap(head_, size_); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // While a Scope exists, the thread allocates in the arena.
  class Scope {
   public:
    explicit Scope(Arena& arena) { allocating = of_thread = &arena; }
    ~Scope() { allocating = nullptr; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
  };
  static inline thread_local Arena* allocating = nullptr;
  static inline thread_local Arena* of_thread = nullptr;  // the last one that the thread used

  using Snapshot = std::vector<char>;
  void save(Snapshot& snapshot) const {
    const char* begin = reinterpret_cast<const char*>(head_);
    snapshot.assign(begin, begin + head_->top);
  }
  void restore(const Snapshot& snapshot) { std::memcpy(head_, snapshot.data(), snapshot.size()); }

  void* take(std::size_t size) {
    const std::size_t units = (size + kUnit - 1) / kUnit + 1;
    if (units < kLists && head_->unused[units]) {
      Piece* piece = head_->unused[units];
      head_->unused[units] = piece->next;
      return piece;
    }
    if (head_->top + units * kUnit > size_) throw std::bad_alloc();
    char* start = reinterpret_cast<char*>(head_) + head_->top;
    head_->top += units * kUnit;
    std::memcpy(start, &units, sizeof units);
    return start + kUnit;
  }
  bool holds(const void* memory) const {
    const auto begin = reinterpret_cast<std::uintptr_t>(head_);
    const auto at = reinterpret_cast<std::uintptr_t>(memory);
    return begin <= at && at < begin + size_;
  }
  void give_back(void* memory) {
    std::size_t units;
    std::memcpy(&units, static_cast<char*>(memory) - kUnit, sizeof units);
    if (units < kLists) head_->unused[units] = new (memory) Piece{head_->unused[units]};
  }

 private:
  static constexpr std::size_t kUnit = alignof(std::max_align_t);  // also holds the size in front
  static constexpr std::size_t kLists = 128;
  struct Piece {
    Piece* next;
  };
  struct alignas(kUnit) Head {
    std::size_t top;                    // bytes in use, including this header
    std::array<Piece*, kLists> unused;  // freed pieces, by number of units
  };
  std::size_t size_;
  Head* head_;
};

}  // namespace blockmgr::testing

[[gnu::noinline]] void* operator new(std::size_t size) {
  if (blockmgr::testing::Arena* arena = blockmgr::testing::Arena::allocating)
    return arena->take(size);
  if (void* memory = std::malloc(size ? size : 1)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  blockmgr::testing::Arena* arena = blockmgr::testing::Arena::of_thread;
  if (memory && arena && arena->holds(memory)) return arena->give_back(memory);
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept { operator delete(memory); }

// The linker redirects calls of calloc here (see __main__.py). The core frees such memory only in
// its destructor, which never runs for a core in an arena.
extern "C" void* __real_calloc(std::size_t count, std::size_t size);
extern "C" void* __wrap_calloc(std::size_t count, std::size_t size) {
  blockmgr::testing::Arena* arena = blockmgr::testing::Arena::allocating;
  return arena ? std::memset(arena->take(count * size), 0, count * size)
               : __real_calloc(count, size);
}
