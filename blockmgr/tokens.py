"""What a prompt is given as: its tokens, and the extra keys of its blocks."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as IntSequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Extras", "Tokens", "extras_pairs"]


class _SupportsArray(Protocol):
    def __array__(self) -> npt.NDArray[Any]: ...


Tokens: TypeAlias = IntSequence[int] | npt.NDArray[np.integer[Any]] | _SupportsArray
"""Token ids: a list (fastest), tuple or range of ints, or a one-dimensional contiguous array of
integers: NumPy, ``array.array``, anything with the buffer protocol or ``__array__``. Each is in
``[0, 2**32)``. An array is read in place and must not change during the call."""

Extras: TypeAlias = Mapping[int, bytes]
"""Extra keys by logical block: bytes, 1 to 1024 long, that change the K/V of that block."""


def extras_pairs(extras: Extras | None) -> list[tuple[int, bytes]] | None:
    """The extra keys as pairs of block and bytes, which the core checks.

    Raises:
        TypeError: No mapping.
    """
    if extras is None:
        return None
    if not isinstance(extras, Mapping):
        raise TypeError(f"extras must map block indices to bytes, got {type(extras).__name__}")
    return [(block, extras[block]) for block in extras]
