"""Whole-sequence slots, and a cache of the prefixes that lie in them.

For engines that keep each sequence's K/V in one run of memory, the *slot* of that sequence (in the
rest of the library a slot holds one token). ``SlotAllocator`` hands slots out; a version says how
often each was handed out, so that a reference to content that is gone can be told.
``PrefixCacheManager`` knows which slot begins with which tokens. It can also be used without a
``SlotAllocator``; joined to one, by ``slots``, it answers only what is in the slots at the moment,
and what is pinned stays in its slot. What the original gets wrong is different here:

- eviction cannot loop forever: an insertion for which there is no room raises;
- a pin keeps the whole prefix, and the slot it lies in;
- a slot that is handed out, or written to from the middle, is not found with what it held; and
  what another slot holds as well is still found there;
- slots are handed out least recently freed first, not the lowest number first;
- wrong calls raise and change nothing: freeing twice, occupying what is occupied (which freed it),
  and any slot, prefix or pin that is not there.
"""

from blockmgr.ports.slots.allocator import SlotAllocator
from blockmgr.ports.slots.prefixes import Copies, PrefixCacheManager

__all__ = ["Copies", "PrefixCacheManager", "SlotAllocator"]
