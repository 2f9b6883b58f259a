"""The calls that name cached blocks by their digests: a part of ``BlockManager``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blockmgr.arguments import truth
from blockmgr.blocks import DigestPin, retention_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blockmgr.blocks import Priority

__all__ = ["DigestCalls"]


class DigestCalls:
    """Retention for callers who know digests, and neither tokens nor blocks: routers, mirrors."""

    __slots__ = ()

    _core: Any

    # Blocks by their digests.

    def retain_digests(
        self,
        digests: Sequence[bytes],
        *,
        priority: Priority | None,
        ttl: float | None = None,
        namespace: bytes = b"",
        max_blocks: int | None = None,
        leading: bool = False,
    ) -> int:
        """``retain`` for the blocks that have these digests and are cached in this namespace.

        A digest of another namespace's block has no effect. With several groups
        of layers and a priority above ``NORMAL``, the windows and states are kept at the deepest of
        these blocks from which a prompt can continue.

        Args:
            digests: Whole digests, as in ``block_digests`` and in events; or 8 bytes of each.
            priority: As in ``retain``.
            ttl: As in ``retain``.
            namespace: As in ``admit``.
            max_blocks: Retain at most this many of the blocks found, the first ones; None for all.
            leading: Whether 8 bytes are the first ones of a digest, which ``SglangEncoder``
                publishes, or the last ones, which ``Encoder`` publishes.

        Returns:
            The number of blocks that are cached, of which the first ``max_blocks`` are retained.

        Raises:
            ValueError: A value out of its bounds, ``retention`` or ``prefix_caching`` is off.
            TypeError: A value of the wrong type.

        Cost: O(digests and the blocks before them); with the last 8 bytes, O(num_blocks) as well.
        That of ``retain`` for each block.

        >>> from blockmgr import BlockManager, Priority
        >>> manager = BlockManager(num_blocks=8, block_size=2, retention=True)
        >>> handle = manager.admit([1, 2, 3, 4, 5])
        >>> manager.commit(handle, 5)
        >>> digests = manager.block_digests([1, 2, 3, 4])
        >>> manager.retain_digests(digests, priority=Priority.HIGH)
        2
        >>> manager.retain_digests(digests, priority=Priority.LOW, namespace=b"another tenant")
        0
        """
        level, seconds = retention_of(priority, ttl)
        joined, size = _joined(digests)
        found: int = self._core.retain_named(
            joined, size, truth("leading", leading), namespace, level, seconds, max_blocks
        )
        return found

    def pin_digests(
        self,
        digests: Sequence[bytes],
        *,
        namespace: bytes = b"",
        max_blocks: int | None = None,
        leading: bool = False,
    ) -> DigestPin | None:
        """Pins the deepest of these blocks and all that it continues.

        Unlike ``pin``, the call pins as many leading blocks as the budget allows. With several
        groups of layers it pins up to the deepest block from which a prompt can continue.

        Args:
            digests: As in ``retain_digests``; of the blocks of one prompt.
            namespace: As in ``admit``.
            max_blocks: Pin at most this many blocks, the first ones of the prompt; None for no
                limit.
            leading: As in ``retain_digests``.

        Returns:
            The pin, for ``unpin``; None if no prompt could use any of these blocks.

        Raises:
            PinBudgetError: The budget does not allow a single block, or no further pin.
            ValueError: A value out of its bounds, ``retention`` or ``prefix_caching`` is off.
            TypeError: A value of the wrong type.

        Cost: As ``retain_digests``.

        >>> from blockmgr import BlockManager
        >>> manager = BlockManager(num_blocks=8, block_size=2, retention=True, max_pinned_blocks=1)
        >>> handle = manager.admit([1, 2, 3, 4, 5])
        >>> manager.commit(handle, 5)
        >>> pin = manager.pin_digests(manager.block_digests([1, 2, 3, 4]))
        >>> pin.num_blocks, pin.digest == manager.block_digests([1, 2])[0]
        (1, True)
        """
        joined, size = _joined(digests)
        facts = self._core.pin_named(joined, size, truth("leading", leading), namespace, max_blocks)
        return None if facts is None else DigestPin(*facts)

    def cached_digests(self, handle: int) -> list[bytes]:
        """The digests of the blocks of a running sequence that are cached, in order.

        Raises:
            UnknownSequenceError: The handle is not live.
            SequenceStateError: The sequence is preempted.
            TypeError: Not an int.

        Cost: O(blocks).
        """
        digests: list[bytes] = self._core.cached_digests(handle)
        return digests

    def session_digests(self, session: bytes, *, namespace: bytes = b"") -> list[bytes] | None:
        """The digests of the blocks of a session's path, in order.

        Args:
            session: As in ``admit``, not empty.
            namespace: As in ``admit``.

        Returns:
            The digests of the cached blocks of its last sequence, or of those that this sequence
            has left; None if no such session is known.

        Raises:
            ValueError: A value out of its bounds, or ``retention`` is off.
            TypeError: A value of the wrong type.

        Cost: O(blocks).
        """
        digests: list[bytes] | None = self._core.session_digests(namespace, session)
        return digests


def _joined(digests: Sequence[bytes]) -> tuple[bytes, int]:
    """The digests in one, and the number of bytes of each."""
    if not isinstance(digests, list | tuple):
        raise TypeError(f"digests must be a list or tuple of bytes, got {type(digests).__name__}")
    names = list(digests)  # no other thread can change this one
    if not names:
        return b"", 1
    size = len(names[0]) if type(names[0]) is bytes else 0
    for index, name in enumerate(names):
        if type(name) is not bytes:
            raise TypeError(f"digests must be bytes, got {type(name).__name__} at index {index}")
        if len(name) != size or not size:
            raise ValueError(
                f"digests must have equally many bytes, got {len(name)} at index {index}"
            )
    return b"".join(names), size
