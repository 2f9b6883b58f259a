"""How an adapter changes the core's books and its own together: plan first, then ``at_once``.

An exception can come from outside between any two instructions of Python code:
``KeyboardInterrupt``, or one that another thread sets. So a call of an adapter only plans in
Python: it checks, counts and prepares every change as a *step*, a function of compiled code with
its arguments. ``at_once`` then makes all the steps within one instruction. Blocks that a plan has
to take from a pool beforehand are a ``Loan``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import starmap
from operator import call
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from blockmgr.pool import BlockPool, Ints

__all__ = ["Loan", "Step", "at_once"]

T = TypeVar("T")

Step: TypeAlias = tuple[Callable[..., object], *tuple[Any, ...]]
"""A change, ready to be made: a function of compiled code, and what to call it with."""


def at_once(steps: Iterable[Step], result: T) -> T:
    """Makes all steps, without an instruction of Python code between them, and gives the result.

    The first step may refuse, which leaves everything as it was. The plan has made sure that those
    after it cannot.
    """
    # One line, so that no exception comes between the last step and the result either.
    return ([*starmap(call, steps)], result)[1]


class Loan:
    """Blocks that a call has taken from a pool while it plans.

    ``keep`` is the step by which they become those of what the call makes. If it does not come to
    that, ``give_back`` returns them; it does nothing after ``keep``.
    """

    __slots__ = ("_core", "_lent")

    def __init__(self, pool: BlockPool) -> None:
        self._core = pool._core
        self._lent: list[Any] = []

    @property
    def keep(self) -> Step:
        """The step by which the blocks stop being lent."""
        return (self._lent.clear,)

    def kept(self, result: T) -> T:
        """Makes that step, the only one of a call, and gives the result."""
        return ([*map(list.clear, (self._lent,))], result)[1]  # as at_once

    def take(self, n: int) -> npt.NDArray[np.int32]:
        """``BlockPool.take``."""
        # Noted down in the same instruction, as in ``acquire``.
        self._lent.extend(map(self._core.take, (n,)))
        blocks: npt.NDArray[np.int32] = self._lent[-1]
        return blocks

    def acquire(self, blocks: Ints, *, found: bool = True) -> None:
        """``BlockPool.acquire``."""
        at_once(((self._core.acquire, blocks, found), (self._lent.append, blocks)), None)

    def give_back(self) -> None:
        """Releases what is lent."""
        while self._lent:
            blocks = list(self._lent[-1])[::-1]
            at_once(((self._core.release, blocks), (self._lent.pop,)), None)
