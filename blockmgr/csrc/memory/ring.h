// Rings: circular lists of numbers, linked through an array whose entries have prev and next.
//
// A ring has a sentinel: an entry that stands for no item, before the first one and after the last.
// So an item is linked and taken out without a look at where it stands, and what it is in need not
// be known. `entries` is a pointer or a column: whatever has entries[number].
#pragma once

namespace blockmgr::ring {

// The two stand side by side from here on.
template <class Entries>
void join(Entries&& entries, int before, int after) noexcept {
  entries[before].next = after;
  entries[after].prev = before;
}
// Nothing is in the ring.
template <class Entries>
void clear(Entries&& entries, int sentinel) noexcept {
  join(entries, sentinel, sentinel);
}
// As the last one, if `after` is the sentinel.
template <class Entries>
void insert_before(Entries&& entries, int item, int after) noexcept {
  join(entries, entries[after].prev, item);
  join(entries, item, after);
}
// As the first one, if `before` is the sentinel.
template <class Entries>
void insert_after(Entries&& entries, int item, int before) noexcept {
  join(entries, item, entries[before].next);
  join(entries, before, item);
}
// The entry of the item itself stays as it is.
template <class Entries>
void remove(Entries&& entries, int item) noexcept {
  join(entries, entries[item].prev, entries[item].next);
}
// The item takes the place of another one, whose entry stays as it is.
template <class Entries>
void replace(Entries&& entries, int other, int item) noexcept {
  join(entries, entries[other].prev, item);
  join(entries, item, entries[other].next);
}

}  // namespace blockmgr::ring
