// Arrays of zeroed memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace blockmgr {

// Zeroed memory, aligned to cache lines. Pages that are never touched stay unmapped, which is
// what makes a wide block table array affordable.
template <class T>
class ZeroedArray {
 public:
  explicit ZeroedArray(std::size_t size) : size_(size) {
    if (size > (SIZE_MAX - kAlignment) / sizeof(T)) throw std::bad_alloc();
    memory_.reset(std::calloc(size * sizeof(T) + kAlignment, 1), std::free);
    if (!memory_) throw std::bad_alloc();
    auto address = reinterpret_cast<std::uintptr_t>(memory_.get());
    data_ = reinterpret_cast<T*>((address + kAlignment - 1) / kAlignment * kAlignment);
  }
  T* data() const { return data_; }
  T& operator[](std::size_t i) const { return data_[i]; }
  std::size_t size() const { return size_; }
  std::size_t bytes() const { return size_ * sizeof(T); }
  // For views that may outlive this array.
  const std::shared_ptr<void>& memory() const { return memory_; }

  // Asks for huge pages before the first touch: a walk through many records then misses fewer
  // translations. Only for arrays that are touched whole, or from their beginning: one byte takes
  // a whole page. A system that gives none is no error.
  void prefer_huge_pages() const noexcept {
#if defined(MADV_HUGEPAGE)
    constexpr std::uintptr_t kHugePage = std::uintptr_t{1} << 21;
    const auto address = reinterpret_cast<std::uintptr_t>(data_);
    const std::uintptr_t first = (address + kHugePage - 1) / kHugePage * kHugePage;
    const std::uintptr_t end = (address + bytes()) / kHugePage * kHugePage;
    if (first < end) madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
#endif
  }

 private:
  static constexpr std::size_t kAlignment = 64;
  std::size_t size_;
  std::shared_ptr<void> memory_;
  T* data_;
};

}  // namespace blockmgr
