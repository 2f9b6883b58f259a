"""A base for objects that cannot be copied, because they own memory, threads or blocks."""

from __future__ import annotations

from typing import ClassVar, NoReturn

__all__ = ["NotCopied"]


class NotCopied:
    """Refuses ``copy.copy``, ``copy.deepcopy`` and ``pickle``, and says what to do instead.

    A shallow copy would own the same blocks as the original; a deep copy would have blocks without
    K/V.
    """

    __slots__ = ()

    _instead: ClassVar[str] = "make another one"
    """What to do instead, for the error."""

    def __copy__(self) -> NoReturn:
        raise self._refusal("copied")

    def __deepcopy__(self, _memo: object) -> NoReturn:
        raise self._refusal("copied")

    def __reduce__(self) -> NoReturn:
        raise self._refusal("pickled")

    def _refusal(self, how: str) -> TypeError:
        return TypeError(f"a {type(self).__name__} cannot be {how}: {self._instead}")
