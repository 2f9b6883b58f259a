"""Converts SGLang's keys to tokens, extra keys and a namespace for a ``BlockPool``.

SGLang's token ids are 64 bits wide. Ids of text fit into 32 bits; a placeholder of an image, a
video or a sound is a hash of its content and does not. The low half of such an id stays among the
tokens, and the high half goes into the extra key of its page, so no bits are lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from blockmgr.digest import namespace_key

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Prompt", "namespace_of", "prompt_of"]

MAX_KEY = 1024  # bytes
HIGH_BITS = 32


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """Whole pages of a prompt.

    Attributes:
        tokens: ``uint32[num_pages * page_size]``.
        extras: Extra keys by page, or None.
        namespace: The namespace.
    """

    tokens: npt.NDArray[np.uint32]
    extras: dict[int, bytes] | None
    namespace: bytes

    def after(self, num_pages: int, page_size: int) -> Prompt:
        """The pages from this one on."""
        extras = self.extras and {
            page - num_pages: key for page, key in self.extras.items() if page >= num_pages
        }
        return Prompt(self.tokens[num_pages * page_size :], extras or None, self.namespace)


def prompt_of(key: Any, page_size: int) -> Prompt:
    """The whole pages of a ``RadixKey``.

    The list ends before a page with so many adjacent placeholders that its extra key would be too
    long: such a page is not cached.
    """
    # SGLang appends to the array later, and a view would prevent that.
    wide = np.array(key.raw_token_ids(), dtype=np.int64)
    wide = wide[: len(wide) // page_size * page_size]
    high = wide >> HIGH_BITS
    namespace = namespace_of(key.extra_key, key.cache_salt)
    if not high.any():
        return Prompt(wide.astype(np.uint32), None, namespace)
    extras = {}
    pages = high.reshape(-1, page_size)
    for page in np.flatnonzero(pages.any(axis=1)).tolist():
        extra = _runs(pages[page])
        if len(extra) > MAX_KEY:
            wide = wide[: page * page_size]
            break
        extras[page] = extra
    return Prompt((wide & 0xFFFFFFFF).astype(np.uint32), extras or None, namespace)


def _runs(high: npt.NDArray[np.int64]) -> bytes:
    """The start and the number of each run of equal numbers, up to the last placeholder."""
    starts = np.flatnonzero(np.diff(high, prepend=high[0] + 1))
    return np.stack([starts, high[starts]], axis=1).astype("<i8").tobytes()


def namespace_of(extra_key: str | None, cache_salt: str | None) -> bytes:
    """The namespace of a request.

    If a name is too long for a namespace, its SHA-256 digest replaces it.
    """
    parts = {"extra": extra_key, "salt": cache_salt or None}
    named = {name: value.encode() for name, value in parts.items() if value is not None}
    if not named:
        return b""
    whole = namespace_key(**named)
    if len(whole) <= MAX_KEY:
        return whole
    return namespace_key(digest=sha256(whole).digest())
