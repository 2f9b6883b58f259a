"""The pins that hints have made, by the digest at which each ends, with their times to live."""

from __future__ import annotations

import heapq
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from blockmgr.errors import PinBudgetError, UnknownPinError

if TYPE_CHECKING:
    from blockmgr.blocks import DigestPin
    from blockmgr.manager import BlockManager

__all__ = ["Pins"]

_FEW: Final = 64
_PART: Final = 8  # bytes of a digest by which a pin is found: a hint may name no more


class Pins:
    """Pins of one manager.

    Args:
        manager: With ``retention=True``.
        leading: Whether names of 8 bytes are the first or the last ones of digests.
    """

    def __init__(self, manager: BlockManager, leading: bool) -> None:
        self._manager = manager
        self._leading = leading
        self._pins: dict[tuple[bytes, bytes], int] = {}
        self._deadlines: list[tuple[float, int, tuple[bytes, bytes]]] = []

    def __len__(self) -> int:
        return len(self._pins)

    def make(
        self, names: list[bytes], namespace: bytes, most: int | None, ttl: float | None
    ) -> DigestPin | None:
        """Pins blocks, in place of an earlier pin that ends at the same block.

        Args:
            names: As in ``BlockManager.pin_digests``.
            namespace: Likewise.
            most: Most blocks; None for no bound.
            ttl: Seconds; None for no end.

        Returns:
            The pin, or None if no prompt could use any of the blocks.

        Raises:
            PinBudgetError: The budget allows no block, or no further pin.
            ValueError: Digests of the wrong size.
        """
        pin = partial(
            self._manager.pin_digests, names,
            namespace=namespace, max_blocks=most, leading=self._leading,
        )  # fmt: skip
        try:
            made = pin()
        except PinBudgetError:
            self._drop_empty()
            made = pin()
        if made is None:
            return None
        key = namespace, self._part(made.digest)
        self.release(*key)
        self._pins[key] = made.pin
        if ttl is not None:
            heapq.heappush(self._deadlines, (self._manager.time + ttl, made.pin, key))
            self._drop_outdated()
        return made

    def release(self, namespace: bytes, name: bytes) -> bool:
        """Ends the pin that ends at this block; False if there is none."""
        pin = self._pins.pop((namespace, self._part(name)), None)
        if pin is None:
            return False
        with suppress(UnknownPinError):  # the engine has ended it
            self._manager.unpin(pin)
        return True

    def expire(self) -> None:
        """Ends the pins whose time to live has ended."""
        now = self._manager.time
        while self._deadlines and self._deadlines[0][0] <= now:
            _, pin, key = heapq.heappop(self._deadlines)
            if self._pins.get(key) == pin:
                self.release(*key)

    def _part(self, digest: bytes) -> bytes:
        return digest[:_PART] if self._leading else digest[-_PART:]

    def _drop_empty(self) -> None:
        """A reset of the cache leaves pins without blocks, and each counts against the budget."""
        for key, pin in list(self._pins.items()):
            try:
                empty = not self._manager.pinned(pin).num_cached_blocks
            except UnknownPinError:
                empty = True
            if empty:
                self.release(*key)

    def _drop_outdated(self) -> None:
        """Deadlines must not add up where the same blocks are pinned again and again."""
        if len(self._deadlines) <= 2 * len(self._pins) + _FEW:
            return
        kept = [entry for entry in self._deadlines if self._pins.get(entry[2]) == entry[1]]
        heapq.heapify(kept)
        self._deadlines = kept
