"""Every kind of container for numbers, well-behaved or not.

A kind is made from a plain list of ints. A call with it must do one of four things:

- ``SAME``: do what it does with the plain list;
- ``REFUSED``: raise a TypeError, a ValueError or an error of ours, with nothing changed;
- ``RAISED``: pass on the exception that the kind's own method raises, with nothing changed;
- ``OTHER``: succeed with another result than the plain list, because the numbers differ.

A kind that is correct for only some calls has two of them; either result is then allowed.
"""

from __future__ import annotations

import array
import ctypes
import enum
import itertools
from collections import UserList, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np


class Due(enum.Flag):
    """What a call must do with a kind."""

    SAME = enum.auto()
    REFUSED = enum.auto()
    RAISED = enum.auto()
    OTHER = enum.auto()


SAME, REFUSED, RAISED, OTHER = Due.SAME, Due.REFUSED, Due.RAISED, Due.OTHER
EITHER: Final = SAME | REFUSED
Ints = list[int]


class NotApplicable(Exception):
    """This kind cannot hold these numbers."""


class Stop(KeyboardInterrupt):
    """An interrupt that can be distinguished from a real one."""


@dataclass(frozen=True)
class Kind:
    """A way to pass numbers."""

    name: str
    make: Callable[[Ints], Any]
    due: Due


def stop(*_: object) -> Any:
    raise Stop


def fail(*_: object) -> Any:
    raise LookupError("the protocol's own error")


def endless(_: object) -> Iterator[int]:
    """Almost endless: a reader that takes all of it runs out of memory."""
    return itertools.repeat(0, 10**6)


def longer(_: object) -> Iterator[int]:
    return iter([0] * 50_000)


def shorter(_: object) -> Iterator[int]:
    return iter([])


def emptied(self: Any) -> Iterator[int]:
    """Empties the list while it is read."""
    if isinstance(self, list):
        list.clear(self)
    return iter([0])


# Methods that a subclass may override, and how they misbehave.
OVERRIDES: dict[str, dict[str, Callable[..., Any]]] = {
    "__iter__": {
        "longer": longer,
        "shorter": shorter,
        "endless": endless,
        "interrupted": stop,
        "failing": fail,
        "emptying": emptied,
        "no iterator": lambda self: 5,
    },
    "__len__": {
        "0": lambda self: 0,
        "one more": lambda self: len(getattr(self, "numbers", "")) + 1,
        "huge": lambda self: 2**62,
        "negative": lambda self: -1,
        "interrupted": stop,
    },
    "__getitem__": {"other": lambda self, i: 10**6, "interrupted": stop, "failing": fail},
    "__array__": {"other": lambda self, *_: np.zeros(99, np.int64), "interrupted": stop},
    "__index__": {"a number": lambda self: 1, "interrupted": stop},
    "__buffer__": {"other": lambda self, flags: memoryview(b"xyz"), "interrupted": stop},
    "__getattribute__": {"interrupted": stop},
    "__bool__": {"interrupted": stop},
    "__eq__": {"interrupted": stop},
}


def subclasses() -> Iterator[Kind]:
    """Subclasses of list and tuple: their own items count, whatever they override."""
    for base in (list, tuple):
        yield Kind(f"{base.__name__} subclass", type("Plain", (base,), {}), SAME)
        for method, ways in OVERRIDES.items():
            for way, function in ways.items():
                made = type("Odd", (base,), {method: function, "__hash__": None})
                yield Kind(f"{base.__name__} subclass, {method} {way}", made, SAME)


class Sequence:
    """A sequence that is not a list: it has a length and yields its items."""

    def __init__(self, numbers: Ints) -> None:
        self.numbers = list(numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> int:
        return self.numbers[index]


def in_range(numbers: Ints) -> Any:
    result = range(numbers[0], numbers[0] + len(numbers))
    if list(result) != numbers:
        raise NotApplicable
    return result


def sequences() -> Iterator[Kind]:
    """Sequences of other classes: the number of items must match the reported length."""
    yield Kind("sequence", Sequence, SAME)
    yield Kind("deque", deque, SAME)
    yield Kind("UserList", UserList, SAME)
    yield Kind("range", in_range, SAME)
    items = ("__iter__", "__len__", "__getitem__")
    dues = {
        ("__iter__", "interrupted"): RAISED,
        ("__iter__", "failing"): RAISED,
        ("__getitem__", "interrupted"): RAISED,
        ("__getitem__", "failing"): RAISED,
        ("__array__", "interrupted"): RAISED,
        ("__getattribute__", "interrupted"): RAISED,
        ("__array__", "other"): EITHER | OTHER,
        ("__len__", "interrupted"): RAISED,
        # A protocol of Python 3.12.
        ("__buffer__", "other"): EITHER | OTHER,
        ("__buffer__", "interrupted"): SAME | RAISED,
    }
    for method, ways in OVERRIDES.items():
        for way, function in ways.items():
            due = dues.get((method, way), REFUSED if method in items else SAME)
            made = type("Odd", (Sequence,), {method: function, "__hash__": None})
            yield Kind(f"sequence, {method} {way}", made, due)
    no_length = type(
        "Odd", (), {"__getitem__": lambda self, i: fail(), "__init__": Sequence.__init__}
    )
    yield Kind("sequence without a length", no_length, REFUSED)


def typed(code: str) -> Callable[[Ints], Any]:
    return lambda numbers: array.array(code, numbers)


def of_dtype(dtype: Any) -> Callable[[Ints], Any]:
    return lambda numbers: np.array(numbers, dtype)


def read_only(numbers: Ints) -> Any:
    result = np.array(numbers, np.int64)
    result.setflags(write=False)
    return result


def strided(numbers: Ints) -> Any:
    return np.repeat(np.array(numbers, np.int64), 2)[::2]


def released(numbers: Ints) -> Any:
    view = memoryview(array.array("q", numbers))
    view.release()
    return view


def unaligned(numbers: Ints) -> Any:
    data = np.zeros(8 * len(numbers) + 1, np.uint8)
    result = data[1:].view(np.int64)
    result[:] = numbers
    return result


def of_c(kind: Any) -> Callable[[Ints], Any]:
    return lambda numbers: (kind * len(numbers))(*numbers)


def buffers() -> Iterator[Kind]:
    """Arrays, and other objects with a buffer."""
    for code in "qQlLiIhHbB":
        yield Kind(f"array.array {code}", typed(code), SAME)
        yield Kind(f"memoryview {code}", lambda n, code=code: memoryview(typed(code)(n)), SAME)
    for code in "df":
        yield Kind(f"array.array {code}", typed(code), REFUSED)
    for dtype in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"):
        yield Kind(f"numpy {dtype}", of_dtype(dtype), SAME)
    for dtype in (">i8", ">u2", "f8", "c16", "O", "?", "U3", "S3", "M8[s]", "V8"):
        yield Kind(f"numpy {dtype}", lambda n, dtype=dtype: np.array(n).astype(dtype), REFUSED)
    yield Kind("numpy of pairs", lambda n: np.zeros(len(n), "i4,i4"), REFUSED)
    yield Kind("numpy, no bytes", lambda n: np.zeros(len(n), "V0"), REFUSED)
    yield Kind("numpy, two dimensions", lambda n: np.array([n]), REFUSED)
    yield Kind("numpy, no dimension", lambda n: np.array(5), REFUSED)
    yield Kind("numpy, backwards", lambda n: np.array(n[::-1])[::-1], SAME)
    yield Kind("numpy, strided", strided, SAME)
    yield Kind(
        "numpy, a field of records", lambda n: np.array([(0, i) for i in n], "i1,i8")["f1"], SAME
    )
    yield Kind("numpy, a column", lambda n: np.stack([n, n], axis=1)[:, 1], SAME)
    yield Kind("numpy, unaligned", unaligned, SAME)
    yield Kind("numpy, read-only", read_only, SAME)
    yield Kind("numpy subclass", lambda n: np.array(n).view(type("Sub", (np.ndarray,), {})), SAME)
    yield Kind("masked array", np.ma.array, SAME)
    yield Kind("ctypes", of_c(ctypes.c_int64), SAME)
    yield Kind("ctypes, foreign order", of_c(ctypes.c_int32.__ctype_be__), REFUSED)
    yield Kind("ctypes, floats", of_c(ctypes.c_double), REFUSED)
    yield Kind("ctypes, chars", lambda n: (ctypes.c_char * len(n))(), REFUSED)
    yield Kind("memoryview, released", released, REFUSED)
    yield Kind("memoryview, strided", lambda n: memoryview(strided(n)), SAME)
    yield Kind("memoryview, 2-D", lambda n: memoryview(np.array([n])), REFUSED)


class WithArray:
    """An object that NumPy converts to an array."""

    def __init__(self, numbers: Ints) -> None:
        self.numbers = numbers

    def __array__(self, *_: object) -> Any:
        return np.array(self.numbers, np.int64)


def with_array() -> Iterator[Kind]:
    """Objects with ``__array__``, which may return anything."""

    def returning(make: Callable[[Ints], Any]) -> Callable[[Ints], Any]:
        return type("Odd", (WithArray,), {"__array__": lambda self, *_: make(self.numbers)})

    yield Kind("__array__", WithArray, SAME)
    yield Kind("__array__ of uint32", returning(of_dtype("u4")), SAME)
    yield Kind("__array__, a list", returning(list), REFUSED)
    yield Kind("__array__, itself", type("Odd", (WithArray,), {"__array__": lambda s: s}), REFUSED)
    yield Kind("__array__, floats", returning(of_dtype("f8")), REFUSED)
    yield Kind("__array__, objects", returning(of_dtype("O")), REFUSED)
    yield Kind("__array__, None", returning(lambda n: None), REFUSED)
    yield Kind("__array__ interrupted", returning(stop), RAISED)
    yield Kind("__array__ failing", returning(fail), RAISED)
    property_of = type("Odd", (WithArray,), {"__array__": property(stop)})
    yield Kind("__array__, a property interrupted", property_of, RAISED)


class Number:
    """An object with ``__index__``, which may have any side effect."""

    def __init__(self, value: int, act: Callable[[], object] = lambda: None) -> None:
        self.value, self.act = value, act

    def __index__(self) -> int:
        self.act()
        return self.value


class Own(int):
    """An int of another class; its own value counts."""

    def __index__(self) -> int:
        raise Stop

    __int__ = __index__


def acting(act: Callable[[list[Any]], object]) -> Callable[[Ints], Any]:
    """A list whose first number changes the list when it is read."""

    def make(numbers: Ints) -> list[Any]:
        result: list[Any] = list(numbers)
        result[0] = Number(numbers[0], lambda: act(result))
        return result

    return make


def as_tuple(make: Callable[[Ints], Any]) -> Callable[[Ints], Any]:
    return lambda numbers: tuple(make(numbers))


def with_first(first: Callable[[int], object]) -> Callable[[Ints], Any]:
    return lambda numbers: [first(numbers[0]), *numbers[1:]]


def items() -> Iterator[Kind]:
    """Lists of items that are ints, or are not."""
    same = {
        "NumPy's ints": np.int64,
        "a member of an IntEnum": lambda n: enum.IntEnum("E", {"A": n}).A,
        "an int subclass": Own,
        "an __index__": Number,
    }
    for name, first in same.items():
        yield Kind(f"list with {name}", with_first(first), SAME)
        yield Kind(f"tuple with {name}", as_tuple(with_first(first)), SAME)
        yield Kind(f"deque with {name}", lambda n, f=first: deque(with_first(f)(n)), SAME)
    refused = {
        "a bool": bool,
        "a NumPy bool": np.bool_,
        "a float": float,
        "None": lambda n: None,
        "a str": str,
        "a list": lambda n: [n],
        "an array": lambda n: np.array([n, n]),
        "an int of 33 bits": lambda n: -(2**32),
        "an int of 64 bits": lambda n: 2**63,
        "an int of 101 bits": lambda n: 2**100,
        "an int below every int64": lambda n: -(2**63) - 1,
        "an __index__ that is no int": lambda n: type("N", (), {"__index__": lambda self: "1"})(),
    }
    for name, first in refused.items():
        yield Kind(f"list with {name}", with_first(first), REFUSED)
        yield Kind(f"tuple with {name}", as_tuple(with_first(first)), REFUSED)
        yield Kind(f"sequence with {name}", lambda n, f=first: Sequence(with_first(f)(n)), REFUSED)
    acts: dict[str, tuple[Callable[[list[Any]], object], Due]] = {
        "clears the list": (lambda own: own.clear(), REFUSED),
        "adds to the list": (lambda own: own.extend([1] * 9999), REFUSED),
        "deletes its end": (lambda own: own.pop(), REFUSED),
        "exchanges all of it": (lambda own: own.__setitem__(slice(None), [7] * len(own)), SAME),
        "frees its items": (lambda own: (own.__setitem__(0, 0), own.reverse()), SAME),
        "is interrupted": (stop, RAISED),
        "fails": (fail, RAISED),
    }
    for name, (act, due) in acts.items():
        yield Kind(f"list whose number {name}", acting(act), due)
        if due == RAISED:
            yield Kind(f"tuple whose number {name}", as_tuple(acting(act)), due)
            yield Kind(f"deque whose number {name}", lambda n, a=act: deque(acting(a)(n)), due)


def none_at_all() -> Iterator[Kind]:
    """Objects without numbers, or without a length."""
    nothing: dict[str, Callable[[Ints], Any]] = {
        "None": lambda n: None,
        "int": lambda n: n[0],
        "float": float,
        "str": lambda n: "1" * len(n),
        "bytes": lambda n: b"x" * len(n),
        "object": lambda n: object(),
        "set": set,
        "frozenset": frozenset,
        "dict": dict.fromkeys,
        "generator": lambda n: (i for i in n),
        "iterator": iter,
        "map": lambda n: map(int, n),
        "class": lambda n: list,
    }
    for name, make in nothing.items():
        yield Kind(name, make if name != "float" else lambda n: float(n[0]), REFUSED)


CONTAINERS: Final = (
    Kind("list", list, SAME),
    Kind("tuple", tuple, SAME),
    *subclasses(),
    *sequences(),
    *buffers(),
    *with_array(),
    *items(),
    *none_at_all(),
)


def counting(given: Ints) -> Any:
    """A number whose ``__index__`` returns another value each time."""
    count = itertools.count(given[0])
    return type("N", (), {"__index__": lambda self: next(count)})()


def numbers() -> Iterator[Kind]:
    """Kinds of a single number; made from a list of one."""
    yield Kind("int", lambda n: n[0], SAME)
    yield Kind("np.int64", lambda n: np.int64(n[0]), SAME)
    yield Kind("0-d array", lambda n: np.array(n[0]), EITHER)
    yield Kind("IntEnum", lambda n: enum.IntEnum("E", {"A": n[0]}).A, SAME)
    yield Kind("int subclass", lambda n: Own(n[0]), SAME)
    yield Kind("__index__", lambda n: Number(n[0]), SAME)
    yield Kind("__index__ interrupted", lambda n: Number(n[0], stop), RAISED)
    yield Kind("__index__ failing", lambda n: Number(n[0], fail), RAISED)
    yield Kind("__index__ that counts", counting, SAME)
    wrong: dict[str, Callable[[Ints], Any]] = {
        "__index__, no int": lambda n: type("N", (), {"__index__": lambda self: 1.5})(),
        "bool": lambda n: bool(n[0]),
        "np.bool_": lambda n: np.bool_(n[0]),
        "float": lambda n: float(n[0]),
        "np.float64": lambda n: np.float64(n[0]),
        "str": lambda n: str(n[0]),
        "bytes": lambda n: b"1",
        "list": lambda n: n,
        "array": lambda n: np.array([n[0], n[0]]),
        "object": lambda n: object(),
        "None": lambda n: None,
    }
    for name, make in wrong.items():
        yield Kind(name, make, REFUSED)
    for size in (-(2**100), -(2**63) - 1, -(2**63), -(2**62), -(2**31), -7):
        yield Kind(str(size), lambda n, size=size: size, REFUSED)
    for size in (2**31 + 7, 2**32, 2**62, 2**63 - 1, 2**63, 2**64, 2**100):
        yield Kind(str(size), lambda n, size=size: size, EITHER | OTHER)


NUMBERS: Final = tuple(numbers())
