"""``Prompt``: a prompt converted and checked once, for several calls, which can grow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, final

import numpy as np

from blockmgr import _core
from blockmgr.arguments import extras_pairs
from blockmgr.errors import ReentrancyError

if TYPE_CHECKING:
    import numpy.typing as npt

    from blockmgr.tokens import Extras, Tokens

__all__ = ["Keys", "Prompt", "parts_of"]

Keys: TypeAlias = tuple[tuple[int, bytes], ...] | None
"""Extra keys in the core's form."""

_State: TypeAlias = "tuple[_core.PromptTokens, npt.NDArray[np.uint32], Keys]"
"""The memory of the tokens, an array of those that the prompt has, and its extra keys: one value,
so that all of them change at once."""


@final
class Prompt:
    """The tokens of a prompt, its namespace, extra keys and session, converted and checked once.

    Calls that look a prompt up take it instead of tokens: ``match``, ``can_admit``, ``admit``,
    ``explain``, ``pin`` and others. Each of these calls would convert a list of tokens again, but
    reads the tokens of a ``Prompt`` in place. A ``Prompt`` works with any manager. Only ``extend``
    changes it: tokens can be added at the end, so the next turn of a session converts what is new.

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
    >>> ids = [1, 2, 3, 4, 5, 6, 7, 8]  # the list of an engine, which has grown
    >>> prompt.extend(ids[len(prompt):])
    >>> len(prompt)
    8
    """

    __slots__ = ("__weakref__", "_namespace", "_session", "_state")

    def __init__(
        self,
        tokens: Tokens,
        *,
        namespace: bytes = b"",
        extras: Extras | None = None,
        session: bytes = b"",
    ) -> None:
        keys = None if extras is None else extras_pairs(extras)
        memory, size = _core.prompt_tokens(tokens, namespace, keys, session)
        self._state: _State = memory, _array(memory, size), keys
        self._namespace = namespace
        self._session = session

    def __init_subclass__(cls) -> NoReturn:
        raise TypeError("Prompt cannot be subclassed: calls read its fields directly")

    def __len__(self) -> int:
        return len(self._state[1])

    def __copy__(self) -> Prompt:
        # Shares the memory of the tokens, until one of the two is extended.
        other = object.__new__(Prompt)
        other._state, other._namespace = self._state, self._namespace
        other._session = self._session
        return other

    def __deepcopy__(self, _memo: object) -> Prompt:
        return self.__copy__()

    def __reduce__(self) -> tuple[object, ...]:
        return _made, (self.tokens, self._namespace, self.extras, self._session)

    def __repr__(self) -> str:
        # Neither tokens nor keys: they may be secrets.
        return f"<Prompt: {len(self)} tokens>"

    @property
    def tokens(self) -> npt.NDArray[np.uint32]:
        """``uint32[n]`` on the host, which cannot be made writable; a new array each time."""
        # The shape and the type of any array can be set, so no caller gets the Prompt's own.
        memory, tokens, _ = self._state
        return _array(memory, len(tokens))

    @property
    def namespace(self) -> bytes:
        """The namespace."""
        return self._namespace

    @property
    def extras(self) -> dict[int, bytes]:
        """Extra keys by logical block; a copy."""
        return dict(self._state[2] or ())

    @property
    def session(self) -> bytes:
        """The session; empty for none."""
        return self._session

    def extend(self, tokens: Tokens, *, extras: Extras | None = None) -> None:
        """Adds tokens at the end; sequences that were admitted with this prompt do not change.

        An engine that keeps a list of tokens extends a prompt by the part that is new,
        ``ids[len(prompt):]``, and passes the prompt to the next call.

        Args:
            tokens: The new tokens, as in ``BlockManager.admit``; there may be none.
            extras: Extra keys to add, by logical block of the whole prompt. A key replaces the one
                that the block has.

        Raises:
            ValueError: A value out of its bounds.
            TypeError: A value of the wrong type.
            ReentrancyError: The prompt was extended by other code meanwhile: by another thread, or
                by code that runs while ``tokens`` or ``extras`` are read.

        Cost: O(new tokens): all tokens are copied only when the prompt has grown by a quarter, or
        when a copy of it has grown.
        """
        before = self._state
        memory, own, keys = before
        if extras is not None:
            keys = extras_pairs(dict(keys or ()) | dict(extras_pairs(extras) or ()))
        memory, size = _core.extended_tokens(memory, len(own), tokens, keys)
        after = memory, _array(memory, size), keys
        # No thread takes over between these two lines, because nothing is called there.
        if self._state is not before:
            raise ReentrancyError("the prompt was extended while extend read its arguments")
        self._state = after

    def _parts(
        self, namespace: bytes, extras: Extras | None
    ) -> tuple[npt.NDArray[np.uint32], bytes, Keys]:
        """The arguments of the core for this prompt and the other arguments of a call.

        Raises:
            ValueError: The call has a namespace or extra keys as well.
        """
        if namespace != b"" or extras is not None:
            raise ValueError("namespace and extras must be left out: the Prompt has its own")
        _, tokens, keys = self._state
        return tokens, self._namespace, keys

    def _session_with(self, session: bytes) -> bytes:
        """The session for the core.

        Raises:
            ValueError: The call has a session as well.
        """
        if session != b"":
            raise ValueError("session must be left out: the Prompt has its own")
        return self._session


def _array(memory: Any, size: int) -> npt.NDArray[np.uint32]:
    """The first ``size`` tokens; no flag makes it writable, because its base is not."""
    return np.frombuffer(memory, np.uint32, size)


def _made(tokens: Tokens, namespace: bytes, extras: Extras, session: bytes = b"") -> Prompt:
    return Prompt(tokens, namespace=namespace, extras=extras or None, session=session)


def parts_of(
    tokens: Tokens | Prompt, namespace: bytes, extras: Extras | None
) -> tuple[Tokens, bytes, Keys]:
    """Tokens, namespace and extra keys in the core's form, from the arguments of a call."""
    if type(tokens) is Prompt:
        return tokens._parts(namespace, extras)
    return tokens, namespace, extras_pairs(extras)
