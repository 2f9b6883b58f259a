"""Whole-sequence slots, and a cache of the prefixes that they hold.

For engines that keep each sequence's K/V in one run of memory, the *slot* of that sequence (in the
rest of the library a slot holds one token). ``SlotAllocator`` hands slots out; the version of a
slot counts how often, so that stale references can be detected. ``PrefixCacheManager`` knows which
slot begins with which tokens. It works without a ``SlotAllocator``; with one (``slots``), it
returns only current content, and pinned prefixes stay in their slots. The port corrects these
faults of the original:

- eviction cannot loop forever: an insertion that does not fit raises;
- a pin keeps the whole prefix and its slot;
- the lost content of a slot that is handed out or overwritten from the middle is not found there;
  if another slot holds it as well, it is found in that one;
- slots are handed out in the order in which they were freed, not by lowest number;
- wrong calls raise and change nothing: freeing twice, occupying an occupied slot (which freed it),
  and any slot, prefix or pin that does not exist.
"""

from blockmgr.ports.slots.allocator import SlotAllocator
from blockmgr.ports.slots.prefixes import Copies, PrefixCacheManager

__all__ = ["Copies", "PrefixCacheManager", "SlotAllocator"]
