"""The calls of ``BlockManager`` that set how long blocks are kept."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from blockmgr.blocks import Pin, Priority
from blockmgr.prompt import parts_of

if TYPE_CHECKING:
    from blockmgr import _core
    from blockmgr.prompt import Prompt
    from blockmgr.tokens import Extras, Tokens

__all__ = ["RetentionCalls", "number", "retention"]


class RetentionCalls:
    """Retention, pins and touches: a part of ``BlockManager``."""

    __slots__ = ()

    _core: _core.Core

    def retain(
        self,
        handle: int,
        start: int,
        stop: int,
        *,
        priority: Priority | None,
        ttl: float | None = None,
    ) -> int:
        """Sets how long to keep the blocks of the tokens ``[start, stop)`` of a sequence.

        The retention applies to each block that lies wholly or partly in the range, until the block
        loses its content or is retained again: the last call wins. On blocks that are not cached
        yet, it takes effect when they are. A block is not evicted before the blocks that continue
        it, and when two blocks with equal content are merged, the higher priority wins. A copy made
        for a writer has no retention.

        With several groups of layers, prompts continue only from a boundary. Above ``NORMAL``, the
        end of the range becomes one of ``stops`` if it is not computed yet, and the windows there
        are kept. If there are several such ranges, only the last one has a stop.

        Args:
            handle: A running sequence.
            start: First token position.
            stop: Position after the last one, up to ``min(num_tokens, num_slots)``.
            priority: From ``LOW`` to ``HIGH``; ``NORMAL`` overrules a hint. None removes the
                retention.
            ttl: Seconds, measured by ``set_time``, after which the retention expires; None for
                never.

        Returns:
            The number of blocks in the range.

        Raises:
            UnknownSequenceError: The handle is not live.
            SequenceStateError: The sequence is preempted.
            ValueError: The range, ``priority`` or ``ttl`` out of bounds, or ``retention`` is off.
            TypeError: A value of the wrong type.

        Cost: O(blocks in the range and before it), each O(log blocks) if it is idle.
        """
        level, seconds = retention(priority, ttl)
        return self._core.retain(handle, start, stop, level, seconds)

    def retain_prefix(
        self,
        tokens: Tokens | Prompt,
        *,
        priority: Priority | None,
        ttl: float | None = None,
        namespace: bytes = b"",
        extras: Extras | None = None,
    ) -> int:
        """``retain`` for the full blocks of a prompt that are cached at the moment.

        With several groups of layers, those are the blocks up to the deepest boundary from which a
        prompt can continue.

        Args:
            tokens: The prompt, at least one token.
            priority: As in ``retain``.
            ttl: As in ``retain``.
            namespace: As in ``admit``.
            extras: As in ``admit``.

        Returns:
            The number of leading blocks that are cached; the call has no effect on the others.

        Raises:
            NeverFitsError: The prompt is longer than a block table row.
            ValueError: A value out of its bounds, or ``retention`` is off.
            TypeError: A value of the wrong type.
        """
        level, seconds = retention(priority, ttl)
        tokens, namespace, keys = parts_of(tokens, namespace, extras)
        return self._core.retain_prefix(tokens, namespace, keys, level, seconds)

    def pin(
        self, tokens: Tokens | Prompt, *, namespace: bytes = b"", extras: Extras | None = None
    ) -> int:
        """Pins the cached full blocks of a prompt: they are evicted after all others.

        A pin is the highest priority, not a reference: ``num_available`` counts pinned blocks, and
        running sequences get them if no other block is left, the deepest and least recently used
        first. ``evicted_pinned_blocks`` counts these evictions, and ``pinned`` shows them. A pin
        does not cover blocks that are cached later; pin the prompt again for those.

        Args:
            tokens: The prompt, at least one token.
            namespace: As in ``admit``.
            extras: As in ``admit``.

        Returns:
            The pin, for ``unpin``. Pins may overlap: a block that several pins cover counts once
            against the budget, and stays pinned until the last of them is released.

        Raises:
            PinBudgetError: More blocks, or pins, than ``max_pinned_blocks``; with ``quotas``, than
                the namespace's share of them.
            NeverFitsError: The prompt is longer than a block table row.
            ValueError: A value out of its bounds, or ``retention`` is off.
            TypeError: A value of the wrong type.
        """
        tokens, namespace, keys = parts_of(tokens, namespace, extras)
        return self._core.pin(tokens, namespace, keys)

    def unpin(self, pin: int) -> None:
        """Releases a pin. Its blocks stay cached, as if they had never been pinned.

        Raises:
            UnknownPinError: The pin was released already, or never made.
            ValueError: ``retention`` is off.
        """
        self._core.unpin(pin)

    def pinned(self, pin: int) -> Pin:
        """The number of blocks of a pin, and how many of them are still cached.

        Raises:
            UnknownPinError: The pin was released already, or never made.
            ValueError: ``retention`` is off.
        """
        return Pin(*self._core.view_pin(pin))

    def touch(
        self, tokens: Tokens | Prompt, *, namespace: bytes = b"", extras: Extras | None = None
    ) -> int:
        """Moves a waiting prompt's cached blocks to the end of their priority's eviction order.

        The blocks count as just used, but not as looked up or found, so a policy that only counts
        hits ignores the call. Blocks that wait for a step in flight count as in use until the step
        completes. Works without ``retention``.

        Args:
            tokens: The prompt, at least one token.
            namespace: As in ``admit``.
            extras: As in ``admit``.

        Returns:
            The number of blocks moved, which are the idle ones.

        Raises:
            NeverFitsError: The prompt is longer than a block table row.
            ValueError: A value out of its bounds.
            TypeError: A value of the wrong type.

        Cost: That of ``match``, and O(1) for each idle block found.
        """
        tokens, namespace, keys = parts_of(tokens, namespace, extras)
        return self._core.touch(tokens, namespace, keys)

    @property
    def time(self) -> float:
        """The time set last, in seconds; 0 before the first call of ``set_time``.

        Raises:
            ValueError: ``retention`` is off.
        """
        return self._core.time()

    def set_time(self, seconds: float) -> None:
        """Sets the time for ``ttl``; the manager has no clock.

        Any clock that never goes back works, such as ``time.monotonic`` read once per step. This
        call ends the retention that has expired.

        Args:
            seconds: Finite, and no less than the time set last.

        Raises:
            ValueError: Out of that range, or ``retention`` is off.
            TypeError: Not a number.

        Cost: O(shares), and that of ``retain`` for each block whose retention has expired.
        """
        self._core.set_time(number(seconds, "seconds"))


def number(value: float, name: str) -> float:
    """The value, a number of Python or NumPy, as a float.

    Raises:
        TypeError: Not a number.
        ValueError: Too large an int.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name} must be a number, got {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} must be finite, got an int too large to be a float") from None


def retention(priority: Priority | None, ttl: float | None) -> tuple[int, float]:
    """A priority and its ttl in the core's form: -1 for no priority, infinity for no end.

    Raises:
        TypeError: A value of the wrong type.
        ValueError: A value out of its bounds, or a ttl without a priority.
    """
    if priority is not None and not isinstance(priority, Priority):
        raise TypeError(f"priority must be a Priority or None, got {priority!r}")
    if priority is Priority.PINNED:
        raise ValueError("priority must be at most Priority.HIGH, got Priority.PINNED; see pin")
    if ttl is None:
        return (-1 if priority is None else priority.value), math.inf
    seconds = number(ttl, "ttl")
    if not 0 < seconds < math.inf:
        raise ValueError(f"ttl must be above 0 and finite, got {ttl!r}")
    if priority is None:
        raise ValueError(f"ttl must be None where priority is None, got {ttl!r}")
    return priority.value, seconds
