"""The types in which callers pass tokens, block ids, and the extra keys of a prompt's blocks."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as IntSequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from blockmgr.arguments import extras_pairs

__all__ = ["Extras", "Ints", "Tokens", "extras_pairs"]


class _SupportsArray(Protocol):
    def __array__(self) -> npt.NDArray[Any]: ...


Ints: TypeAlias = IntSequence[int] | npt.NDArray[np.integer[Any]] | _SupportsArray
"""Block ids or tokens: a list, a tuple, or a one-dimensional array of integers. For tokens an array
of ``uint32`` is fastest. Subclasses of ``list`` or ``tuple`` are read as plain lists or tuples."""

Tokens: TypeAlias = Ints
"""Token ids, each in ``[0, 2**32)``: a list, tuple or range of ints, or a one-dimensional
array of integers: NumPy (a slice or a column too), ``array.array``, anything with the buffer
protocol or ``__array__``. ``bytes`` and ``bytearray`` are refused, because they hold text. A
contiguous array of ``uint32`` (or of ``int32``) is fastest: it is read in place, and must not
change during the call. Every call converts a list number by number. Subclasses of ``list`` or
``tuple`` are read as plain lists or tuples, whatever methods they override."""

Extras: TypeAlias = Mapping[int, bytes]
"""Extra keys by logical block: bytes, 1 to 1024 long, that change the K/V of that block."""
