"""Eviction policies written in Python: for research, without changes to the core.

The manager tells a policy what happens to cached blocks, and asks it for victims. ::

    on_cached ──► (used) ──► on_idle ──► on_used ──► ... ──► on_idle ──► on_uncached

A block is in use when it becomes cached, is idle whenever its last use ends, and can be a victim
only while it is idle. A block becomes idle after its cached children. A sequence uses a block again
before its children; ``touch``, ``retain``, and a ``BlockPool`` that acquires the end of a chain
begin with the deepest block. A touched block becomes used and then idle again; a block above
``Priority.NORMAL`` counts as used while it has that priority.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

__all__ = ["EvictionPolicy", "PolicyFactory", "policies_of"]


class EvictionPolicy(Protocol):
    """The calls that a manager makes. A block id names other content after ``on_uncached``.

    The methods run inside a call of the manager, which finishes even if they fail: ``check_policy``
    and ``check_invariants`` raise a ``PolicyError`` later for an exception or a victim that cannot
    be evicted. After such a failure the policy gets no more calls, and the manager evicts the least
    recently used block first. A policy must not call its manager, which raises ``ReentrancyError``.

    With ``dedup="append_only"`` a policy needs one more method, ``on_moved(block, to)``: the key of
    the used ``block``, and the blocks that continue it, have passed to ``to``, a used block that
    was not cached. The policy must move what it knows about ``block`` to ``to``.

    Every call costs about as much as a Python function call, and each prompt makes one for each of
    its blocks: fast enough for replays, too slow for serving.

    >>> class FirstIn:
    ...     def __init__(self, num_blocks):
    ...         self.order, self.idle, self.children, self.parent = {}, set(), {}, {}
    ...     def on_cached(self, block, parent, digest):
    ...         self.order[block], self.parent[block] = None, parent
    ...         self.children[parent] = self.children.get(parent, 0) + 1
    ...     def on_hit(self, block): pass
    ...     def on_idle(self, block): self.idle.add(block)
    ...     def on_used(self, block): self.idle.discard(block)
    ...     def on_uncached(self, block, evicted):
    ...         self.idle.discard(block)
    ...         self.children[self.parent.pop(block)] -= 1
    ...         del self.order[block]
    ...     def victim(self):
    ...         return next(b for b in self.order
    ...                     if b in self.idle and not self.children.get(b))
    >>> from blockmgr import BlockManager
    >>> manager = BlockManager(num_blocks=3, block_size=2, eviction=FirstIn)
    >>> for prompt in ([1, 2], [3, 4], [1, 2, 9], [5, 6], [7, 8]):
    ...     handle = manager.admit(prompt)
    ...     manager.commit(handle, len(prompt))
    ...     manager.free(handle)
    >>> manager.match([1, 2, 9]).num_cached_tokens, manager.match([3, 4, 9]).num_cached_tokens
    (0, 2)
    """

    def on_cached(self, block: int, parent: int, digest: bytes) -> None:
        """The used block became findable.

        Args:
            block: Its id.
            parent: The cached block it continues, or -1 if it is the first of a prompt.
            digest: Digest of its prefix, the same whenever it is cached; empty for a cached tail.
        """

    def on_hit(self, block: int) -> None:
        """A prompt was admitted and found this block, idle or used."""

    def on_idle(self, block: int) -> None:
        """The last use of the block ended. Its cached children are idle already."""

    def on_used(self, block: int) -> None:
        """The idle block is used again."""

    def on_uncached(self, block: int, evicted: bool) -> None:
        """The block is no longer cached: it was evicted, forgotten or taken over."""

    def victim(self) -> int:
        """Chooses the idle block without cached children to evict next; there is at least one."""


PolicyFactory = Callable[[int], EvictionPolicy]
"""Makes the policy of one pool from its ``capacity`` in blocks; typically a class.

With ``quotas`` it is called for each share with blocks, the common share first. The policy of a
share is notified only of the blocks of that share.
"""

_METHODS = ("on_cached", "on_hit", "on_idle", "on_used", "on_uncached", "victim")


def policies_of(
    eviction: str | PolicyFactory, shares: Iterable[int], *, keys_move: bool = False
) -> list[EvictionPolicy]:
    """The policies that a factory makes, one for each share with blocks; none for a name.

    Args:
        eviction: A name, or a factory.
        shares: Blocks of each share, in order.
        keys_move: Whether the policies need ``on_moved``.

    Raises:
        TypeError: A policy lacks a method of ``EvictionPolicy``.
    """
    if isinstance(eviction, str):
        return []
    methods = (*_METHODS, "on_moved") if keys_move else _METHODS
    policies = []
    for capacity in shares:
        if not capacity:
            continue
        policy = eviction(capacity)
        missing = [name for name in methods if not callable(getattr(policy, name, None))]
        if missing:
            raise TypeError(
                "eviction must make an object with the methods of EvictionPolicy, got one of type "
                f"{type(policy).__name__} without {', '.join(missing)}"
            )
        policies.append(policy)
    return policies
