"""How an adapter changes the core's state and its own together: plan, then ``at_once``.

An exception can come from outside between any two instructions of Python code:
``KeyboardInterrupt``, or one that another thread sets. So a call of an adapter only plans in
Python: it checks, counts and prepares every change, a function of compiled code with its
arguments. ``at_once`` then makes all the changes within one instruction. The core's functions are
``BlockPool.compiled`` and ``BlockManager.compiled``. A ``Loan`` holds the blocks that a plan takes
from a pool beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import starmap
from operator import call
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from blockmgr.blocks import CopyPlan

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from blockmgr import _core
    from blockmgr.pool import BlockPool, Ints

__all__ = ["Change", "CompiledManagerCalls", "CompiledPoolCalls", "Loan", "at_once"]

T = TypeVar("T")

Change: TypeAlias = tuple[Callable[..., object], *tuple[Any, ...]]
"""A change to make: a function of compiled code, and its arguments."""


def at_once(changes: Iterable[Change], result: T) -> T:
    """Makes all changes with no instruction of Python code between them.

    The first change may raise, which leaves everything unchanged. The plan has made sure that the
    changes after it cannot raise.

    Args:
        changes: In order. Each function is one of ``BlockPool.compiled``, or of a built-in
            container: ``(table.append, block)``. Functions written in Python can be interrupted.
        result: The value to return.

    Returns:
        The ``result``.

    Raises:
        TypeError: A change is not a tuple that begins with a function.

    >>> from blockmgr.pool import BlockPool
    >>> pool, table = BlockPool(num_blocks=4, block_size=2), []
    >>> [block] = pool.take(1)
    >>> at_once([(pool.compiled.acquire, [block]), (table.append, block)], "shared")
    'shared'
    """
    # One line, so that no exception can come between the last change and the result.
    return ([*starmap(call, changes)], result)[1]


class CompiledPoolCalls:
    """Calls of one ``BlockPool`` as functions of compiled code, for ``at_once``.

    Each does what the method of its name does and raises what it raises. Arguments are positional
    and all required, unless noted here; they are read when the call is made.
    """

    __slots__ = (
        "acquire",
        "copies_aborted",
        "copies_applied",
        "evict",
        "forget",
        "make_writable",
        "promote",
        "promote_chain",
        "release",
        "reset",
        "take",
        "take_copies",
        "touch",
    )

    acquire: Callable[..., None]
    """``acquire(blocks, found=True)``"""

    copies_aborted: Callable[[int], None]
    """``copies_aborted(ticket)``"""

    copies_applied: Callable[[int], None]
    """``copies_applied(ticket)``"""

    evict: Callable[..., npt.NDArray[np.int32]]
    """``evict(n, namespace=b"")``"""

    forget: Callable[..., npt.NDArray[np.int32]]
    """``forget(n, namespace=b"")``"""

    make_writable: Callable[[int, int], int]
    """``make_writable(block, num_tokens)``"""

    promote: Callable[[int, Ints, int, bytes, bytes], int]
    """``promote(block, tokens, parent, namespace, extras)``: of one block."""

    promote_chain: Callable[
        [Ints, Ints, int, bytes, tuple[tuple[int, bytes], ...] | None], npt.NDArray[np.int32]
    ]
    """``promote_chain(blocks, tokens, parent, namespace, extras)``: ``promote`` of several; extras
    are pairs of a block and its bytes, or None."""

    release: Callable[[Ints], None]
    """``release(blocks)``"""

    reset: Callable[[], None]
    """``reset()``"""

    take: Callable[..., npt.NDArray[np.int32]]
    """``take(n, namespace=b"")``"""

    take_copies: Callable[[], CopyPlan]
    """``take_copies()``"""

    touch: Callable[[Ints], None]
    """``touch(blocks)``"""

    def __init__(self, core: _core.PoolCore) -> None:
        _take_over(self, core)


class CompiledManagerCalls:
    """Calls of one ``BlockManager`` as functions of compiled code; as ``CompiledPoolCalls``."""

    __slots__ = (
        "admit",
        "append",
        "commit",
        "copies_aborted",
        "copies_applied",
        "free",
        "take_copies",
    )

    admit: Callable[..., int]
    """``admit(tokens, namespace, extras, num_slots, read_cache, match=None,
    max_cached_tokens=None, watermark_blocks=None)``; extras are pairs of a block and its bytes, or
    None."""

    append: Callable[[int, Ints], None]
    """``append(handle, tokens)``"""

    commit: Callable[[int, int], None]
    """``commit(handle, num_computed_tokens)``"""

    copies_aborted: Callable[[int], None]
    """``copies_aborted(ticket)``"""

    copies_applied: Callable[[int], None]
    """``copies_applied(ticket)``"""

    free: Callable[..., None]
    """``free(handle, withdraw=False)``"""

    take_copies: Callable[[], CopyPlan]
    """``take_copies()``"""

    def __init__(self, core: _core.Core) -> None:
        _take_over(self, core)


def _take_over(
    calls: CompiledPoolCalls | CompiledManagerCalls, core: _core.PoolCore | _core.Core
) -> None:
    # Compiled code calls a ``partial`` as well. Unlike a bound method of the extension, it raises
    # an ordinary error if there is no memory to make it.
    functions = type(core)
    for name in calls.__slots__:
        setattr(calls, name, partial(getattr(functions, name), core))
    calls.take_copies = partial(functions.take_copies, core, CopyPlan)  # type: ignore[arg-type]


class Loan:
    """Blocks that a call takes from a pool while it plans.

    ``keep`` is the change that passes them to the caller. If the call fails before that,
    ``give_back`` returns them; after ``keep`` it does nothing.

    Args:
        pool: The pool to take blocks from.

    >>> from blockmgr.pool import BlockPool
    >>> pool, table = BlockPool(num_blocks=4, block_size=2), []
    >>> loan = Loan(pool)
    >>> try:
    ...     blocks = loan.take(2).tolist()
    ...     at_once([(table.extend, blocks), loan.keep], None)
    ... except BaseException:
    ...     loan.give_back()
    ...     raise
    >>> len(table), pool.num_used
    (2, 2)
    """

    __slots__ = ("_calls", "_lent")

    def __init__(self, pool: BlockPool) -> None:
        self._calls = pool.compiled
        self._lent: list[Any] = []

    @property
    def keep(self) -> Change:
        """The change that passes the blocks to the caller."""
        return (self._lent.clear,)

    def kept(self, result: T) -> T:
        """Makes that change, if it is the only one of a call, and returns the result."""
        return ([*map(list.clear, (self._lent,))], result)[1]  # as at_once

    def take(self, n: int) -> npt.NDArray[np.int32]:
        """``BlockPool.take``.

        Raises:
            OutOfBlocksError: Fewer than ``n`` are available.
            ValueError: ``n`` below 0.
            TypeError: ``n`` is not an int.
        """
        # Recorded in the same instruction, as in ``acquire``.
        self._lent.extend(map(self._calls.take, (n,)))
        blocks: npt.NDArray[np.int32] = self._lent[-1]
        return blocks

    def acquire(self, blocks: Ints, *, found: bool = True) -> None:
        """``BlockPool.acquire``.

        Raises:
            BlockStateError: A block that is not held and not cached.
            ValueError: A block out of range.
            TypeError: ``found`` is not a bool.
        """
        at_once(((self._calls.acquire, blocks, found), (self._lent.append, blocks)), None)

    def give_back(self) -> None:
        """Releases the lent blocks."""
        while self._lent:
            blocks = list(self._lent[-1])[::-1]
            at_once(((self._calls.release, blocks), (self._lent.pop,)), None)
