"""``Prompt``: a prompt converted and checked once, for several calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, TypeAlias, final

import numpy as np

from blockmgr import _core
from blockmgr.arguments import extras_pairs

if TYPE_CHECKING:
    import numpy.typing as npt

    from blockmgr.tokens import Extras, Tokens

__all__ = ["Keys", "Prompt", "parts_of"]

Keys: TypeAlias = tuple[tuple[int, bytes], ...] | None
"""Extra keys in the core's form."""


@final
class Prompt:
    """The tokens of a prompt, its namespace, extra keys and session, converted and checked once.

    Calls that look a prompt up take it instead of tokens: ``match``, ``can_admit``, ``admit``,
    ``explain``, ``pin`` and others. Each of these calls would convert a list of tokens again, but
    reads the tokens of a ``Prompt`` in place. A ``Prompt`` is immutable, and works with any
    manager.

    Args:
        tokens: As in ``BlockManager.admit``; a list or an array is copied.
        namespace: As in ``BlockManager.admit``.
        extras: As in ``BlockManager.admit``.
        session: As in ``BlockManager.admit``; other calls ignore it.

    Raises:
        ValueError: No tokens, or a value out of its bounds.
        TypeError: A value of the wrong type.

    >>> from blockmgr import BlockManager, Prompt
    >>> manager = BlockManager(num_blocks=8, block_size=4)
    >>> prompt = Prompt([1, 2, 3, 4, 5, 6], namespace=b"tenant")
    >>> manager.can_admit(prompt).name, manager.match(prompt).num_cached_tokens
    ('NOW', 0)
    >>> handle = manager.admit(prompt)
    """

    __slots__ = ("__weakref__", "_data", "_keys", "_namespace", "_session", "_tokens")

    def __init__(
        self,
        tokens: Tokens,
        *,
        namespace: bytes = b"",
        extras: Extras | None = None,
        session: bytes = b"",
    ) -> None:
        self._keys: Keys = None if extras is None else extras_pairs(extras)
        # An array over bytes: no flag makes it writable, and nothing resizes it.
        self._data = _core.prompt_tokens(tokens, namespace, self._keys, session).tobytes()
        self._tokens = np.frombuffer(self._data, np.uint32)
        self._namespace = namespace
        self._session = session

    def __init_subclass__(cls) -> NoReturn:
        raise TypeError("Prompt cannot be subclassed: calls read its fields directly")

    def __len__(self) -> int:
        return len(self._tokens)

    def __copy__(self) -> Prompt:
        return self

    def __deepcopy__(self, _memo: object) -> Prompt:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return _made, (self.tokens, self._namespace, self.extras, self._session)

    def __repr__(self) -> str:
        # Neither tokens nor keys: they may be secrets.
        return f"<Prompt: {len(self)} tokens>"

    @property
    def tokens(self) -> npt.NDArray[np.uint32]:
        """``uint32[n]`` on the host, which cannot be made writable; a new array each time."""
        # The shape and the type of any array can be set, so no caller gets the Prompt's own.
        return np.frombuffer(self._data, np.uint32)

    @property
    def namespace(self) -> bytes:
        """The namespace."""
        return self._namespace

    @property
    def extras(self) -> dict[int, bytes]:
        """Extra keys by logical block; a copy."""
        return dict(self._keys or ())

    @property
    def session(self) -> bytes:
        """The session; empty for none."""
        return self._session

    def _parts(
        self, namespace: bytes, extras: Extras | None
    ) -> tuple[npt.NDArray[np.uint32], bytes, Keys]:
        """The arguments of the core for this prompt and the other arguments of a call.

        Raises:
            ValueError: The call has a namespace or extra keys as well.
        """
        if namespace != b"" or extras is not None:
            raise ValueError("namespace and extras must be left out: the Prompt has its own")
        return self._tokens, self._namespace, self._keys

    def _session_with(self, session: bytes) -> bytes:
        """The session for the core.

        Raises:
            ValueError: The call has a session as well.
        """
        if session != b"":
            raise ValueError("session must be left out: the Prompt has its own")
        return self._session


def _made(tokens: Tokens, namespace: bytes, extras: Extras, session: bytes = b"") -> Prompt:
    return Prompt(tokens, namespace=namespace, extras=extras or None, session=session)


def parts_of(
    tokens: Tokens | Prompt, namespace: bytes, extras: Extras | None
) -> tuple[Tokens, bytes, Keys]:
    """Tokens, namespace and extra keys in the core's form, from the arguments of a call."""
    if type(tokens) is Prompt:
        return tokens._parts(namespace, extras)
    return tokens, namespace, extras_pairs(extras)
