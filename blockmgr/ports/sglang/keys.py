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
MAX_TOKEN = 2**63 - 1
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

    Raises:
        TypeError: Tokens that are not ints of 64 bits, or a name that is not a str.
    """
    # SGLang appends to the array later, and a view would prevent that.
    wide = _wide(key.raw_token_ids())
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


def _wide(token_ids: Any) -> npt.NDArray[np.int64]:
    """A copy of token ids of 64 bits."""
    given = np.array(token_ids)
    is_right = given.ndim == 1 and (given.dtype.kind in "iu" or not given.size)
    if not is_right or (given.dtype.kind == "u" and given.size and given.max() > MAX_TOKEN):
        raise TypeError(f"token_ids must be ints of 64 bits, got {type(token_ids).__name__}")
    return given.astype(np.int64, copy=False)


def _encoded(name: str, value: object) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str or None, got {type(value).__name__}")
    # JSON can hold half of a surrogate pair, which UTF-8 has no bytes for.
    return value.encode(errors="surrogatepass")


def _runs(high: npt.NDArray[np.int64]) -> bytes:
    """The start and the number of each run of equal numbers, up to the last placeholder."""
    starts = np.flatnonzero(np.diff(high, prepend=high[0] + 1))
    return np.stack([starts, high[starts]], axis=1).astype("<i8").tobytes()


def namespace_of(extra_key: str | None, cache_salt: str | None) -> bytes:
    """The namespace of a request.

    If a name is too long for a namespace, its SHA-256 digest replaces it.

    Raises:
        TypeError: A name is neither a str nor None.
    """
    named = {}
    if extra_key is not None:
        named["extra"] = _encoded("extra_key", extra_key)
    if cache_salt is not None and (salt := _encoded("cache_salt", cache_salt)):
        named["salt"] = salt
    if not named:
        return b""
    whole = namespace_key(**named)
    if len(whole) <= MAX_KEY:
        return whole
    return namespace_key(digest=sha256(whole).digest())
