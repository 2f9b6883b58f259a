"""Values that a client may put into a field of a request, and what a port may do with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from blockmgr import BlockMgrError
from tests.fingerprints import fingerprint


class HostileError(Exception):
    """Raised by a value of the client, so it may reach the caller."""


def _raise(*_: object, **__: object) -> Any:
    raise HostileError("a method of the value")


class Raises:
    """Every method that a check may call raises."""

    __eq__ = __bool__ = __len__ = __iter__ = __getitem__ = __contains__ = _raise
    __hash__ = __index__ = __int__ = __float__ = __repr__ = __str__ = __array__ = _raise


class RaisingInt(int):
    __eq__ = __hash__ = __index__ = __le__ = __lt__ = __ge__ = __gt__ = __bool__ = _raise


class RaisingText(str):
    __slots__ = ()
    __eq__ = __hash__ = __bool__ = _raise


class RaisingList(list[int]):
    __iter__ = __len__ = __getitem__ = __eq__ = _raise


class Shrinking(list[int]):
    """It has no item left once somebody has asked for its length."""

    def __len__(self) -> int:
        length = super().__len__()
        self.clear()
        return length


VALUES: dict[str, Callable[[], Any]] = {
    repr(value)[:30]: (lambda value=value: value)  # type: ignore[misc]
    for value in (
        None, True, False, 0, -1, 1, 2**31, 2**32, 2**63, 2**64, 10**400, -(10**400), 1.5, -0.0,
        float("nan"), float("inf"), "", "text", "a\0b", "\ud800", "x" * 5000, b"", b"\0\1", (),
        (1, 2), ((1,),), {"a": 1}, {1: 2}, frozenset((1,)), range(3), int, object, print,
        np.int64(3), np.float64("nan"),
    )
} | {
    "[]": lambda: [],
    "[1]": lambda: [1],
    "nested list": lambda: [[1, 2], [3, 4]],
    "list of None": lambda: [1, None],
    "list of text": lambda: ["1", "2"],
    "list of floats": lambda: [1.0, 2.5],
    "list of bools": lambda: [True, False],
    "list with -1": lambda: [1, -1],
    "list with 2**32": lambda: [1, 2**32],
    "list with 2**64": lambda: [1, 2**64],
    "list with nan": lambda: [1, float("nan")],
    "list of what raises": lambda: [1, Raises()],
    "set": lambda: {1, 2},
    "iterator": lambda: iter([1, 2]),
    "bytearray": lambda: bytearray(b"\1\2"),
    "array": lambda: np.array([1, 2]),
    "array of floats": lambda: np.array([1.0, float("nan")]),
    "array of objects": lambda: np.array([1, None]),
    "array of text": lambda: np.array(["1", "2"]),
    "array of no dimension": lambda: np.array(3),
    "array of two dimensions": lambda: np.array([[1, 2]]),
    "object": object,
    "raises": Raises,
    "raising int": lambda: RaisingInt(1),
    "raising text": lambda: RaisingText("a"),
    "raising list": lambda: RaisingList([1, 2]),
    "shrinking list": lambda: Shrinking([1, 2]),
}  # fmt: skip


@dataclass(frozen=True)
class Life:
    """A call of a port with a field of a request, and what comes before and after it.

    Attributes:
        core: The manager or pool of the port, whose blocks must all be back.
        before: Makes the request; its result goes to the other two.
        call: Gives the value to the port.
        after: Ends the request, whether the call was refused or not.
    """

    core: Any
    before: Callable[[], Any]
    call: Callable[[Any, Any], Any]
    after: Callable[[Any, Any], None]


def holds_nothing_back(life: Life, named: set[str], value: Any) -> None:
    """The port takes the value and gives all blocks back, or refuses it and changes nothing."""
    available = life.core.num_available
    request, result = life.before(), None
    state = fingerprint(life.core)
    try:
        result = life.call(request, value)
    except HostileError:
        assert fingerprint(life.core) == state
    except (TypeError, ValueError, BlockMgrError) as error:
        assert fingerprint(life.core) == state
        if not isinstance(error, BlockMgrError) and not any(name in str(error) for name in named):
            raise AssertionError(f"the error names none of {named}: {error}") from error
    finally:
        life.after(request, result)
    life.core.check_invariants()
    assert life.core.num_available == available


def all_values(make: Callable[[], Life], named: set[str]) -> None:
    """Tries every value, each on a port of its own."""
    wrong = []
    for name, value in VALUES.items():
        try:
            holds_nothing_back(make(), named, value())
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__}: {error}"[:300])
    assert not wrong, "\n".join(wrong)
