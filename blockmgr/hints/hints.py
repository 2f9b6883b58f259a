"""``Hints``: carries out the actions of envelopes on one manager's blocks."""

from __future__ import annotations

import math
import threading
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from blockmgr.arguments import positive, truth, whole
from blockmgr.blocks import Priority
from blockmgr.errors import (
    HintError,
    PinBudgetError,
    SequenceStateError,
    UnknownSequenceError,
)
from blockmgr.hints.payloads import MOST_HASHES, Asked, Rejected, is_part, read_payload
from blockmgr.hints.pins import Pins
from blockmgr.hints.wire import MOST_ACTIONS, KvHintAction, Outcome, Result, decode
from blockmgr.uncopied import NotCopied

if TYPE_CHECKING:
    from collections.abc import Callable

    from blockmgr.manager import BlockManager

__all__ = ["HintCounts", "Hints"]

_VERSION: Final = "1.0"
_MOST_REMEMBERED: Final = 2**13
"""Outcomes kept for messages that come again."""

_MOST_SEARCHES: Final = 4
"""Most actions of an envelope that search all cached blocks."""

_FEWER: Final = "fewer blocks are allowed, or no prompt could use more"
_NO_TIER: Final = "hints move no blocks to or from memory outside the device"
_REFUSALS: Final = (
    Rejected,
    PinBudgetError,
    SequenceStateError,
    UnknownSequenceError,  # another thread has freed it
    ValueError,  # digests of the wrong size
)
_UNSUPPORTED: Final = {"kv.prefetch": _NO_TIER, "kv.share": _NO_TIER}


class HintCounts(NamedTuple):
    """What ``Hints`` has counted since it was made."""

    messages: int
    """Envelopes that were carried out."""
    malformed: int
    """Envelopes that were refused."""
    repeated: int
    """Envelopes that came again and were not carried out again."""
    ignored: int
    """Actions of unknown types or versions."""
    results: dict[str, int]
    """Outcomes by result."""
    pins: int
    """Pins held at the moment."""


class _Work(NamedTuple):
    """One action of a message, to be carried out."""

    message_id: str
    action_id: str
    asked: Asked
    namespace: bytes
    handle: int | None


class _Done(NamedTuple):
    """What an action has applied to."""

    num_blocks: int
    num_found: int
    num_named: int
    clipped: str | None = None


class Hints(NotCopied):
    """Carries out KV hints on the blocks of a manager.

    An action applies to blocks of the given namespace only: digests and sessions of others have no
    effect. It changes how long blocks are kept, never what a running sequence uses, so a wrong hint
    costs hits and no correct answers. Actions of one envelope are independent of each other. Calls
    may come from several threads.

    Args:
        manager: With ``retention=True``; its ``max_pinned_blocks`` bounds all pins.
        max_ttl: Longest time to live in seconds, for actions without one, too; None for no bound.
        max_blocks: Most blocks that one action applies to; None for no bound.
        leading: Whether block hashes that are numbers stand for the first 8 bytes of digests, as in
            the events of ``SglangEncoder``, or for the last ones, as in those of ``Encoder``.

    Raises:
        ValueError: A value out of its bounds, or ``retention`` is off.
        TypeError: A value of the wrong type.

    >>> from blockmgr import BlockManager
    >>> manager = BlockManager(num_blocks=8, block_size=2, retention=True)
    >>> with manager.sequence(manager.admit([1, 2, 3, 4, 5])) as sequence:
    ...     sequence.commit(5)
    >>> hashes = [digest.hex() for digest in manager.block_digests([1, 2, 3, 4])]
    >>> action = {
    ...     "action_id": "keep", "action_type": "kv.retain", "action_version": "1.0",
    ...     "payload": {"block_hashes": hashes, "priority": "high", "ttl": 60.0},
    ... }
    >>> hints = Hints(manager)
    >>> message = {"protocol_version": "0.1", "message_id": "1", "actions": [action]}
    >>> [(outcome.result.value, outcome.num_blocks) for outcome in hints.hint(message)]
    [('accepted', 2)]
    """

    _instead = "make another one for each manager"

    def __init__(
        self,
        manager: BlockManager,
        *,
        max_ttl: float | None = None,
        max_blocks: int | None = None,
        leading: bool = False,
    ) -> None:
        if not manager.config.retention:
            raise ValueError("manager must have retention=True")
        self._manager = manager
        self._max_ttl = math.inf if max_ttl is None else positive("max_ttl", max_ttl)
        self._max_blocks = None if max_blocks is None else whole("max_blocks", max_blocks, 1)
        self._leading = truth("leading", leading)
        self._lock = threading.RLock()
        self._remembered: OrderedDict[tuple[bytes, str, int | None], list[Outcome]] = OrderedDict()
        self._num_remembered = 0
        self._pins = Pins(manager, leading)
        self._deferred: dict[int, list[_Work]] = {}
        self._counts: Counter[str] = Counter()
        self._results: Counter[str] = Counter()
        self._actions: dict[str, Callable[[_Work], _Done]] = {
            "kv.retain": self._retain,
            "kv.pin": self._pin,
            "kv.demote": self._demote,
            "kv.release": self._release,
        }

    def hint(
        self, envelope: object, *, namespace: bytes = b"", handle: int | None = None
    ) -> list[Outcome]:
        """Carries out an envelope.

        Args:
            envelope: As in ``decode``.
            namespace: As in ``admit``: whose blocks the actions may apply to. Take it from what the
                server knows of the client, never from the envelope.
            handle: The live sequence of the request that carries the envelope, which is the target
                of actions that name no other; its namespace must be the given one. None without a
                request.

        Returns:
            The outcome of each known action, in order. The same message in the same namespace and
            for the same sequence is not carried out again: it gets the same outcomes.

        Raises:
            HintError: The envelope is malformed; nothing has changed.
            UnknownSequenceError: The handle is not live.
            ValueError: ``namespace`` out of its bounds.
            TypeError: A value of the wrong type.

        Leaves:
            Actions before one that runs out of memory are carried out.
        """
        if type(namespace) is not bytes:
            raise TypeError(f"namespace must be bytes, got {type(namespace).__name__}")
        self._manager.quota_usage(namespace)  # checks its length
        if handle is not None:
            self._manager.sequence(handle)
        with self._lock:
            try:
                made = decode(envelope)
            except HintError:
                self._counts["malformed"] += 1
                raise
            self._pins.expire()
            key = namespace, made.message_id, handle
            if (known := self._remembered.get(key)) is not None:
                self._counts["repeated"] += 1
                return list(known)
            outcomes, left, searches = [], MOST_HASHES, _MOST_SEARCHES
            for action in made.actions:
                if action.action_version != _VERSION or not self._knows(action.action_type):
                    self._counts["ignored"] += 1
                    continue
                outcome, used, searched = self._carry_out(
                    action, made.message_id, namespace, handle, (left, searches)
                )
                left, searches = left - used, searches - searched
                outcomes.append(outcome)
            self._counts["messages"] += 1
            self._remember(key, outcomes)
            return list(outcomes)

    def finish(self, handle: int) -> list[Outcome]:
        """Carries out what was deferred for a request. Call it before ``free``.

        Args:
            handle: A live sequence.

        Returns:
            The outcome of each deferred action, in order.

        Raises:
            UnknownSequenceError: The handle is not live.
        """
        self._manager.sequence(handle)
        with self._lock:
            self._pins.expire()
            return [self._outcome(self._pin, work) for work in self._deferred.pop(handle, ())]

    def expire(self) -> None:
        """Releases the pins whose time to live has ended, by the time of the manager.

        Call it after ``BlockManager.set_time``. ``hint`` and ``finish`` do the same first.

        Cost: O(log pins) for each pin that ends.
        """
        with self._lock:
            self._pins.expire()

    @property
    def counts(self) -> HintCounts:
        """What has been counted."""
        with self._lock:
            counts = self._counts
            return HintCounts(
                counts["messages"], counts["malformed"], counts["repeated"], counts["ignored"],
                {result.value: self._results[result.value] for result in Result}, len(self._pins),
            )  # fmt: skip

    # One action.

    def _knows(self, action_type: str) -> bool:
        return action_type in self._actions or action_type in _UNSUPPORTED

    def _carry_out(
        self,
        action: KvHintAction,
        message_id: str,
        namespace: bytes,
        handle: int | None,
        left: tuple[int, int],
    ) -> tuple[Outcome, int, bool]:
        """The outcome of an action, how many block hashes it names, and whether it searches."""
        try:
            if action.action_type in _UNSUPPORTED:
                raise Rejected(_UNSUPPORTED[action.action_type])
            asked = read_payload(action.payload, self._leading)
            used = len(asked.names or ())
            if used > left[0]:
                raise Rejected(f"the envelope names more than {MOST_HASHES} block hashes")
            searches = used > 0 and not self._leading and is_part(asked)
            if searches > left[1]:
                raise Rejected(
                    f"more than {_MOST_SEARCHES} actions name blocks by numbers; send whole digests"
                )
            work = _Work(message_id, action.action_id, asked, namespace, handle)
            if asked.names is None and asked.session is None:
                if handle is None:
                    raise Rejected("the action names no target, and no request carries it")
                if action.action_type == "kv.pin":
                    return self._defer(work, handle), used, False
        except Rejected as reason:
            return self._count(Outcome(message_id, action.action_id, Result.REJECTED,
                                       reason=str(reason))), 0, False  # fmt: skip
        return self._outcome(self._actions[action.action_type], work), used, searches

    def _outcome(self, act: Callable[[_Work], _Done], work: _Work) -> Outcome:
        try:
            done = act(work)
        except _REFUSALS as reason:
            return self._count(
                Outcome(work.message_id, work.action_id, Result.REJECTED, reason=str(reason))
            )
        result = Result.ACCEPTED
        if not done.num_found:
            result = Result.MISSING
        elif done.clipped:
            result = Result.CLIPPED
        return self._count(Outcome(
            work.message_id, work.action_id, result, done.num_blocks,
            done.num_named - done.num_found, done.clipped if done.num_found else None,
        ))  # fmt: skip

    def _count(self, outcome: Outcome) -> Outcome:
        self._results[outcome.result.value] += 1
        return outcome

    def _defer(self, work: _Work, handle: int) -> Outcome:
        """Sequences that are gone without ``finish`` are forgotten once there are too many."""
        if len(self._deferred) > self._manager.config.max_seqs:
            live = set(self._manager.handles())
            self._deferred = {h: works for h, works in self._deferred.items() if h in live}
        works = self._deferred.setdefault(handle, [])
        if len(works) >= MOST_ACTIONS:
            raise Rejected(f"{MOST_ACTIONS} actions wait for the end of this request already")
        works.append(work)
        return self._count(Outcome(
            work.message_id, work.action_id, Result.DEFERRED,
            reason="the request pins what is cached at its end",
        ))  # fmt: skip

    # The kinds of actions.

    def _retain(self, work: _Work) -> _Done:
        asked = work.asked.priority
        return self._set_priority(work, Priority.HIGH if asked is None else asked)

    def _demote(self, work: _Work) -> _Done:
        asked = work.asked
        if asked.priority is not None:
            raise Rejected("kv.demote takes no priority")
        if asked.session is None or self._has_bounds(asked):
            return self._set_priority(work, Priority.LOW)
        # What other sessions use stays where it is.
        count = self._manager.signal(asked.session, "done", namespace=work.namespace)
        return _Done(0, 0, 0) if count is None else _Done(count, 1, 1)

    def _set_priority(self, work: _Work, priority: Priority | None) -> _Done:
        ttl, clipped = self._ttl(work) if priority is not None else (None, None)
        most = self._most(work)
        if work.asked.names is None and work.asked.session is None:
            assert work.handle is not None
            start, stop = self._range(work, work.handle)
            named = -(-stop // self._size) - start // self._size
            if most is not None and most < named:
                clipped = _FEWER
                stop = (start // self._size + most) * self._size
            count = self._manager.retain(work.handle, start, stop, priority=priority, ttl=ttl)
            return _Done(count, named, named, clipped)
        names = self._digests(work)
        found = self._manager.retain_digests(
            names, priority=priority, ttl=ttl, namespace=work.namespace,
            max_blocks=most, leading=self._leading,
        )  # fmt: skip
        if most is not None and most < found:
            return _Done(most, found, len(names), _FEWER)
        return _Done(found, found, len(names), clipped)

    def _pin(self, work: _Work) -> _Done:
        if work.asked.priority is not None:
            raise Rejected("kv.pin takes no priority")
        ttl, clipped = self._ttl(work)
        names = self._digests(work)
        most = self._most(work)
        made = self._pins.make(names, work.namespace, most, ttl) if names else None
        if made is None:
            return _Done(0, 0, len(names))
        if made.num_blocks < made.num_cached_blocks:
            clipped = _FEWER
        return _Done(made.num_blocks, made.num_found, len(names), clipped)

    def _release(self, work: _Work) -> _Done:
        """Ends pins of hints, and retention that came from hints or from the engine."""
        ended = sum(self._pins.release(work.namespace, name) for name in self._digests(work))
        asked = work.asked
        if work.handle is not None and asked.names is None and asked.session is None:
            self._deferred.pop(work.handle, None)
        done = self._set_priority(work, None)
        if asked.session is not None and not self._has_bounds(asked):
            gone = self._manager.end_session(asked.session, namespace=work.namespace)
            ended += gone is not None
        return done._replace(num_found=max(done.num_found, ended))

    # Parts of them.

    @staticmethod
    def _has_bounds(asked: Asked) -> bool:
        """Whether an action is about less than all of a session."""
        whole_range = asked.start == 0 and asked.stop is None
        return not whole_range or asked.ttl is not None or asked.max_blocks is not None

    @property
    def _size(self) -> int:
        return self._manager.config.block_size

    def _ttl(self, work: _Work) -> tuple[float | None, str | None]:
        """The time to live that is granted, and why it is shorter than asked."""
        asked = math.inf if work.asked.ttl is None else work.asked.ttl
        if asked <= self._max_ttl:
            return work.asked.ttl, None
        return self._max_ttl, f"ttl must be at most {self._max_ttl} s"

    def _most(self, work: _Work) -> int | None:
        asked = work.asked.max_blocks
        if asked is None or self._max_blocks is None:
            return self._max_blocks if asked is None else asked
        return min(asked, self._max_blocks)

    def _range(self, work: _Work, handle: int) -> tuple[int, int]:
        """The tokens of a request that are meant, as far as it has slots for them."""
        sequence = self._manager.sequence(handle)
        most = min(sequence.num_tokens, sequence.num_slots)
        stop = most if work.asked.stop is None else min(work.asked.stop, most)
        if work.asked.start >= stop:
            raise Rejected(f"token_range must start before the last of {most} tokens with slots")
        return work.asked.start, stop

    def _digests(self, work: _Work) -> list[bytes]:
        if work.asked.names is not None:
            return work.asked.names
        if work.asked.session is not None:
            name = work.asked.session
            path = self._manager.session_digests(name, namespace=work.namespace) or []
            start, stop = work.asked.start, work.asked.stop
        else:
            assert work.handle is not None
            path = self._manager.cached_digests(work.handle)
            start, stop = self._range(work, work.handle)
        return path[start // self._size : None if stop is None else -(-stop // self._size)]

    def _remember(self, key: tuple[bytes, str, int | None], outcomes: list[Outcome]) -> None:
        self._remembered[key] = outcomes
        self._num_remembered += 1 + len(outcomes)
        while self._num_remembered > _MOST_REMEMBERED:
            _, oldest = self._remembered.popitem(last=False)
            self._num_remembered -= 1 + len(oldest)
