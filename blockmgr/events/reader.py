"""How a subscriber handles messages and gaps. No sockets here."""

from __future__ import annotations

import enum
import inspect
import logging
import time
from collections import Counter
from typing import TYPE_CHECKING, Final, Protocol

from blockmgr.arguments import positive, text
from blockmgr.events.codec import AnyBatch
from blockmgr.events.codec import decode as decode_all
from blockmgr.events.publisher import SNAPSHOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Answers = list[tuple[int, AnyBatch]]

__all__ = ["IncompleteAnswerError", "Reader", "Sink", "Stream", "Verdict"]

_MOST_RANKS: Final = 64
"""Most ranks of one publisher, each of which takes some memory and requests of its own."""

_LOG = logging.getLogger(__name__)


class IncompleteAnswerError(Exception):
    """An answer to a request has begun and lacks its end."""


class Sink(Protocol):
    """The receiver of the events."""

    def reset(self, worker: str, rank: int | None = None) -> None:
        """Forgets everything about a worker, because it may be wrong.

        Args:
            worker: Its name.
            rank: The only data-parallel rank to forget; None for all of the worker. A sink without
                this parameter cannot keep ranks apart, so a reader gives it those of one rank only.
        """

    def apply(self, worker: str, batch: AnyBatch) -> None:
        """Applies a batch: the events of its rank since the previous batch of that rank."""


class Verdict(enum.Enum):
    """What to do with a batch."""

    APPLY = "apply"
    """It is the next batch."""

    DUPLICATE = "duplicate"
    """It was applied already."""

    GAP = "gap"
    """Earlier batches are missing."""

    RESTARTED = "restarted"
    """The publisher has restarted: the known state is wrong."""

    OUTDATED = "outdated"
    """It comes from a publisher before the current one."""


class Stream:
    """The batch numbers of one publisher: the last one read, and the publisher's epoch.

    An epoch distinguishes a restart from a gap. Publishers without an epoch (vLLM's) restart at 0,
    and the connection keeps batches in order, so a number that goes back to 0 means a restart.
    """

    def __init__(self) -> None:
        self.epoch: int | None = None
        self.next: int | None = None  # None: no batch read yet

    def judge(self, epoch: int | None, number: int) -> Verdict:
        """The verdict on a batch; changes nothing."""
        if self.epoch is not None and epoch is not None and epoch != self.epoch:
            return Verdict.RESTARTED if epoch > self.epoch else Verdict.OUTDATED
        if self.next is None:
            return Verdict.GAP if number else Verdict.APPLY
        if number == self.next:
            return Verdict.APPLY
        if number > self.next:
            return Verdict.GAP
        if epoch is None and number == 0:
            return Verdict.RESTARTED
        return Verdict.DUPLICATE

    def advance(self, epoch: int | None, number: int) -> None:
        """Records that a batch, or a snapshot up to it, was applied."""
        if epoch is not None:
            self.epoch = epoch
        self.next = number + 1

    def restart(self) -> None:
        """Starts again with another publisher."""
        self.epoch = self.next = None


class _Position:
    """What was read of one rank."""

    __slots__ = ("asked_at", "heard_at", "is_doubted", "is_stale", "rank", "stream")

    def __init__(self, rank: int | None, now: float) -> None:
        self.rank = rank
        self.stream = Stream()
        self.asked_at = float("-inf")
        self.heard_at = now
        self.is_stale = True  # no batch is applied until the sink is up to date
        self.is_doubted = False  # a check after a silence was not answered

    @property
    def is_current(self) -> bool:
        return not (self.is_stale or self.is_doubted)


class Reader:
    """Hands the batches of one publisher to a sink, in order and each once.

    Several data-parallel ranks may share the connection. Each batch names its rank, and each rank
    numbers its own batches: a gap or a restart of one rank does not concern the others.

    Args:
        worker: Name of the worker, for the sink.
        sink: Receiver of the events.
        ask: Sends a request, and returns numbers and payloads, or None if no answer came; it raises
            ``IncompleteAnswerError`` if only a part came. None without a replay endpoint.
        topic: First frame of the messages.
        retry_s: Least time between two attempts to fill a gap.
        check_s: Longest silence before the reader asks the publisher whether something was lost.
        decode: Decodes a payload; None for the sink's ``decode_batch``, or else
            ``blockmgr.events.decode``.
        clock: Monotonic time in seconds.
    """

    def __init__(
        self,
        worker: str,
        sink: Sink,
        ask: Callable[[bytes], Iterable[tuple[int, bytes]] | None] | None,
        *,
        topic: bytes = b"",
        retry_s: float = 1.0,
        check_s: float = 5.0,
        decode: Callable[[bytes], AnyBatch] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.worker = text("worker", worker)
        for call in ("reset", "apply"):
            if not callable(getattr(sink, call, None)):
                raise TypeError(f"sink must have {call}, got {type(sink).__name__}")
        self.counts: Counter[str] = Counter()
        self.retry_s = positive("retry_s", retry_s)
        self._sink = sink
        self._most_ranks = _MOST_RANKS if _takes_ranks(sink) else 1
        self._ask = ask
        self._topic = topic
        self._check_s = positive("check_s", check_s)
        if decode is None:
            decode = getattr(sink, "decode_batch", decode_all)
        self._decode: Callable[[bytes], AnyBatch] = decode
        self._clock = clock
        self._logged: set[str] = set()
        self._connected = True  # unless told otherwise
        # Until a batch names a rank, the only position is that of no rank.
        self._positions: dict[int | None, _Position] = {None: _Position(None, clock())}

    @property
    def ranks(self) -> list[int | None]:
        """The ranks whose batches were read; None is for batches that name no rank."""
        return list(self._positions)

    @property
    def is_current(self) -> bool:
        """Whether the sink has applied all known batches."""
        # Another thread may ask, so the positions are listed first.
        return all(position.is_current for position in list(self._positions.values()))

    @property
    def wants_answers(self) -> bool:
        """Whether batches are missing and there is a replay endpoint."""
        return self._ask is not None and not self.is_current

    def lose(self) -> None:
        """Handles the loss of the connection: the state of the worker is unknown."""
        self.counts["lost"] += 1
        self._connected = False
        self._forget_all(max(position.asked_at for position in self._positions.values()))

    def heed_connection(self) -> None:
        """Handles a new connection: earlier batches will not arrive."""
        self._connected = True
        for position in self._positions.values():
            position.is_stale = True
            position.asked_at = float("-inf")

    def start_again(self) -> None:
        """Forgets the worker's state and asks again: after an error of the sink."""
        self._forget_all(float("-inf"))

    def receive(self, frames: list[bytes]) -> None:
        """Handles one message: topic, number, payload."""
        if len(frames) != 3 or len(frames[1]) != 8 or frames[0] != self._topic:
            self._refuse(f"a message of {len(frames)} frames")
            return
        number = int.from_bytes(frames[1], "big", signed=True)
        if number < 0:
            self._refuse(f"a message with the number {number}")
            return
        batch = self._batch(frames[2])
        if batch is None:
            return
        if not self._connected:  # from a lost connection, and perhaps a dead worker
            self.counts["late"] += 1
            return
        position = self._position_of(batch)
        if position is not None:
            position.heard_at = self._clock()
            self._heed(position, number, batch)

    def _heed(self, position: _Position, number: int, batch: AnyBatch) -> None:
        epoch = batch.about.epoch if batch.about else None
        verdict = position.stream.judge(epoch, number)
        if verdict is Verdict.RESTARTED:
            self.counts[verdict.value] += 1
            self._forget(position)
            verdict = position.stream.judge(epoch, number)
        if verdict is Verdict.APPLY and (not position.is_stale or self._ask is None):
            self._take(position, epoch, number, batch)
            position.is_stale = False
            return
        if verdict is Verdict.APPLY:
            verdict = Verdict.GAP
        self.counts[verdict.value] += 1
        if verdict is not Verdict.GAP:
            return
        position.is_stale = True
        if self._ask is None:
            # There is no replay: later batches are right, but the known state may be wrong.
            self._forget(position)
            self._take(position, epoch, number, batch)
            position.is_stale = False

    def catch_up(self) -> None:
        """Asks for missing batches if it is time to. Call it after handling received messages."""
        if self._ask is None:
            return
        now = self._clock()
        due = [each for each in self._positions.values() if self._is_due(each, now)]
        for position in due:
            position.asked_at = now
        for done, position in enumerate(due):
            if self._positions.get(position.rank) is not position:
                continue
            if not self._recover(position):
                for each in due[done:]:  # the same publisher answers for all ranks
                    self._doubt(each)
                return

    def _is_due(self, position: _Position, now: float) -> bool:
        """Whether it is time to ask about a rank: it was silent, or something is missing."""
        is_silent = now - max(position.heard_at, position.asked_at) >= self._check_s
        return is_silent or (not position.is_current and now - position.asked_at >= self.retry_s)

    def _doubt(self, position: _Position) -> None:
        """Handles the lack of an answer about a rank.

        A busy publisher answers late. So what is known stays until a second request is not
        answered either, unless a message shows that a batch is missing.
        """
        if position.is_stale or position.is_doubted:
            self._forget(position)
        else:
            position.is_doubted = True

    def _batch(self, payload: bytes) -> AnyBatch | None:
        try:
            return self._decode(payload)
        except ValueError as error:
            self._refuse(f"a message, {error}")
            return None

    def _refuse(self, what: str, key: str = "foreign") -> None:
        self.counts[key] += 1
        if key not in self._logged:
            self._logged.add(key)
            _LOG.warning("%s: ignored %s; others like it are only counted", self.worker, what)

    def _position_of(self, batch: AnyBatch) -> _Position | None:
        """The position of the batch's rank; None if there are too many ranks."""
        rank = batch.data_parallel_rank
        position = self._positions.get(rank)
        if position is not None:
            return position
        if list(self._positions) == [None]:
            position = self._positions.pop(None)
            position.rank = rank
        elif rank is None and len(self._positions) == 1:
            return next(iter(self._positions.values()))
        elif len(self._positions) >= self._most_ranks:
            what = f"a batch of rank {rank}: ranks {self.ranks} are known, and at most"
            self._refuse(f"{what} {self._most_ranks} can be kept apart", "other_rank")
            return None
        else:
            position = _Position(rank, self._clock())
        self._positions[rank] = position
        return position

    def _forget(self, position: _Position) -> None:
        if len(self._positions) == 1:
            self._sink.reset(self.worker)
        else:
            self._sink.reset(self.worker, position.rank)
        position.stream.restart()
        position.is_stale = True
        position.is_doubted = False

    def _forget_all(self, asked_at: float) -> None:
        """Forgets the worker with its ranks: those of the next connection may be others."""
        self._sink.reset(self.worker)
        position = _Position(None, self._clock())
        position.asked_at = asked_at
        self._positions = {None: position}

    def _take(self, position: _Position, epoch: int | None, number: int, batch: AnyBatch) -> None:
        self._sink.apply(self.worker, batch)
        position.stream.advance(epoch, number)
        position.is_doubted = False
        self.counts["apply"] += 1

    # What is missing.

    def _recover(self, position: _Position) -> bool:
        """Asks for a replay from the next number, or else for a snapshot.

        Returns:
            Whether the publisher answered.
        """
        wanted = position.stream.next
        if wanted is not None:
            answers = self._answers(position, wanted.to_bytes(8, "big"), "replays")
            if answers is None:
                return False
            own = self._by_position(position, answers)[position]
            if self._take_all(position, own):
                position.is_stale = position.is_doubted = False
                return True
            position.is_stale = True
        return self._recover_from_nothing(position)

    def _recover_from_nothing(self, position: _Position) -> bool:
        parts = self._answers(position, SNAPSHOT, "snapshots")
        if parts is None:
            return False
        self._forget(position)
        for each, own in self._by_position(position, parts).items():
            self._take_snapshot(each, own)
        if not position.is_stale:
            return True
        # The publisher has no snapshots. All batches it can replay are the best available.
        answers = self._answers(position, bytes(8), "replays")
        if answers is None:
            return False
        for each, own in self._by_position(position, answers).items():
            if own:
                each.stream.next = own[0][0]
            each.is_stale = not self._take_all(each, own)
        return True

    def _take_snapshot(self, position: _Position, parts: Answers) -> None:
        """Applies the snapshot of a rank if these batches are all of one."""
        about = [batch.about for _, batch in parts if batch.about and batch.about.snapshot]
        if not about or len(about) != len(parts) or not about[-1].last:
            return
        for _, batch in parts:
            self._sink.apply(self.worker, batch)
        position.stream.advance(about[-1].epoch, parts[-1][0])
        position.is_stale = False

    def _by_position(self, asking: _Position, answers: Answers) -> dict[_Position, Answers]:
        """The batches of the rank that asks, and of ranks that nothing is known of."""
        others = set(self._positions.values()) - {asking}
        parts: dict[_Position, Answers] = {asking: []}
        for number, batch in answers:
            position = self._position_of(batch)
            if position is not None and position not in others:
                parts.setdefault(position, []).append((number, batch))
        return parts

    def _take_all(self, position: _Position, answers: Answers) -> bool:
        """Applies consecutive batches up to a gap; returns whether all were applied."""
        for number, batch in answers:
            epoch = batch.about.epoch if batch.about else None
            if position.stream.judge(epoch, number) is not Verdict.APPLY:
                return False
            self._take(position, epoch, number, batch)
        return True

    def _answers(self, position: _Position, request: bytes, what: str) -> Answers | None:
        """The batches of the whole answer; if one is missing of it, the position is stale."""
        assert self._ask is not None
        self.counts[what] += 1
        try:
            answered = self._ask(request)
        except IncompleteAnswerError:
            position.is_stale = True
            answered = None
        if answered is None:
            self.counts["unanswered"] += 1
            return None
        answers = []
        least = -1 if request == SNAPSHOT else 0  # a snapshot may come before the first batch
        for number, payload in answered:
            if number < least:
                self._refuse(f"an answer with the number {number}")
            batch = self._batch(payload) if number >= least else None
            if batch is None:
                position.is_stale = True
                return None
            answers.append((number, batch))
        return answers


def _takes_ranks(sink: Sink) -> bool:
    """Whether a sink can forget one rank."""
    try:
        inspect.signature(sink.reset).bind("", 0)
    except (TypeError, ValueError):
        return False
    return True
