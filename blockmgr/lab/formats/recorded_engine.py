"""The blocks that an engine of a recording has stored, joined to prompts and requests."""

from __future__ import annotations

import json
from array import array
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from blockmgr.lab.formats.record import MAX_TOKEN, shown
from blockmgr.lab.stored import Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from blockmgr.lab.formats.event_batch import Stored
    from blockmgr.lab.formats.record import Record


__all__ = ["PAUSE_MS", "UNKNOWN", "KeyTokens", "KnownBlock", "Names", "RecordedEngine", "StoredRun"]

UNKNOWN: Final = MAX_TOKEN
"""In place of a token that was not recorded."""

KEPT_NAMES: Final = 2**18
"""Names that are compared."""


@dataclass(slots=True)
class KnownBlock:
    """A stored block.

    Attributes:
        parent: Name of the block before it, or None.
        tokens: Its tokens; those that keys change are numbers of ``KeyTokens``.
        namespace: That of its prompt.
        scope: The part of the namespace that every event of the prompt repeats.
        children: Number of known blocks that continue it.
        removed: Whether the engine has removed it.
    """

    parent: int | str | None
    tokens: array[int]
    namespace: bytes
    scope: bytes
    children: int = 0
    removed: bool = False


class KnownBlocks:
    """Known blocks by name."""

    def __init__(self) -> None:
        self._blocks: dict[int | str, KnownBlock] = {}

    def get(self, name: int | str | None) -> KnownBlock | None:
        """A block, or None if it is unknown."""
        return None if name is None else self._blocks.get(name)

    def store(self, name: int | str, block: KnownBlock) -> bool:
        """Add a block whose parent is known; False, without a change, if it has other content."""
        known = self._blocks.get(name)
        if known is not None:
            known.removed = False
            return (known.parent, known.tokens) == (block.parent, block.tokens)
        self._blocks[name] = block
        parent = self.get(block.parent)
        if parent is not None:
            parent.children += 1
        return True

    def remove(self, name: int | str) -> None:
        """Remove a block; its tokens are needed as long as another block continues it."""
        block = self._blocks.get(name)
        if block is None:
            return
        block.removed = True
        at: int | str | None = name
        while block is not None and block.removed and not block.children:
            assert at is not None
            del self._blocks[at]
            at = block.parent
            block = self.get(at)
            if block is not None:
                block.children -= 1

    def path(self, name: int | str | None) -> list[int]:
        """Tokens from the start of a prompt to the end of a block."""
        parts = []
        while name is not None:
            block = self._blocks[name]
            parts.append(block.tokens)
            name = block.parent
        return [token for part in reversed(parts) for token in part]


class Names:
    """Names of blocks by content, to find keys that a recording does not tell.

    Engines name a block by everything that identifies it. Two names for the same tokens after the
    same parent mean that something else differs, such as a salt or an image.
    """

    def __init__(self) -> None:
        self._first: dict[tuple[int | str | None, bytes, bytes], int | str] = {}

    def are_apart(
        self, parent: int | str | None, namespace: bytes, tokens: bytes, name: int | str
    ) -> bool:
        """Whether the same content had another name first."""
        found = self._first.setdefault((parent, namespace, tokens), name)
        if len(self._first) > KEPT_NAMES:
            del self._first[next(iter(self._first))]
        return found != name


class KeyTokens:
    """Numbers in place of tokens whose content a token id does not tell, such as images.

    A number stands for a token and the key that belongs to it, so prompts part where their images
    differ. Numbers count down from ``UNKNOWN``.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, str], int] = {}
        self._largest = 0

    def of(self, token: int, key: str) -> int:
        """The number for a token with a key."""
        return self._numbers.setdefault((token, key), UNKNOWN - 1 - len(self._numbers))

    def check(self, record: Record, largest: int) -> None:
        """Compare the largest token of an event with the numbers.

        Raises:
            TraceFormatError: A token may be equal to a number.
        """
        self._largest = max(self._largest, largest)
        most = UNKNOWN - 1 - len(self._numbers)
        if self._largest > most:
            found = f"{self._largest} in token_ids"
            expected = f"at most {most}: larger numbers stand for images, keys and unknown tokens"
            raise record.error("token_ids", found, expected)

    def changed(self, record: Record, tokens: list[int], keys: list[list[Any]]) -> list[int]:
        """The tokens of some blocks, with numbers where keys belong to them.

        Args:
            record: Position for errors.
            tokens: Tokens of the blocks, equally many for each.
            keys: Keys of each block; an image is a pair of its name and its first token, relative
                to the block. Other keys, and images from earlier blocks, change the first token.
        """
        changed = [token if token <= MAX_TOKEN else self.of(0, f"wide {token}") for token in tokens]
        size = len(tokens) // max(1, len(keys))
        for index, of_block in enumerate(keys):
            for key in of_block:
                place = _place(key)
                at = index * size + (place if 0 <= place < size else 0)
                changed[at] = self.of(changed[at], json.dumps(key, sort_keys=True))
        self.check(record, max((token for token in tokens if token <= MAX_TOKEN), default=0))
        return changed


def _place(key: Any) -> int:
    """Where the content of a key begins, relative to its block."""
    if isinstance(key, list) and len(key) == 2 and type(key[1]) is int:
        return int(key[1])
    return 0


PAUSE_MS: Final = 2000
"""Longest time between two events of a request: more than a block of 16 slow tokens."""

UNANSWERED: Final = 8192
"""Most requests that wait for the event of their answer; the oldest continues without it."""

COMPARED: Final = 64
"""Most batches of one time that a batch is compared with."""


@dataclass(frozen=True, slots=True)
class StoredRun:
    """Stored blocks of one prompt whose parent is known.

    Attributes:
        stored: The event.
        tokens: Its tokens, with numbers where keys belong to them.
        namespace: That of the prompt.
        scope: The part of the namespace that every event of the prompt repeats.
        now: When the event was published, in milliseconds.
        batch: Number of its batch.
    """

    stored: Stored
    tokens: list[int]
    namespace: bytes
    scope: bytes
    now: int
    batch: int


@dataclass(slots=True)
class _Open:
    """A request that may continue."""

    arrival_ms: int
    latest_ms: int
    batch: int
    order: int
    namespace: bytes
    prompt: list[int]
    output: list[int] = field(default_factory=list)

    def row(self) -> Row:
        # The last token of an answer is never computed. All these were, so there was another one.
        output = [*self.output, UNKNOWN] if self.output else []
        return Row(
            arrival_ms=self.arrival_ms,
            order=self.order,
            prompt=self.prompt,
            num_output_tokens=len(output),
            outputs=[output] if output else [],
            namespace=self.namespace,
        )

    def extend(self, run: StoredRun, *, answered: bool) -> None:
        """Add blocks that continue this request, or that are its answer as a whole."""
        is_chunk = len(run.stored.hashes) > 1 or run.batch == self.batch
        part = self.prompt if is_chunk and not self.output and not answered else self.output
        part += run.tokens
        self.latest_ms, self.batch = run.now, run.batch


class RecordedEngine:
    """One cache, with the requests that may continue, by their last block.

    Attributes:
        latest_ms: Time of its latest batch.
        blocks: Its blocks.
        epoch: When its publisher started; None if unknown.
        kinds: Kinds of its groups of layers, by number.
        group: Number of the group whose blocks are prompts; empty before its first event.
        answers_at_end: Whether it stores an answer when it ends, as SGLang does.
        in_snapshot: Whether a snapshot is not complete.
        stating: Time of the batches that restate blocks; None if the latest do not.
    """

    def __init__(self) -> None:
        self.latest_ms = 0
        self.blocks = KnownBlocks()
        self.epoch: int | None = None
        self.kinds: dict[int | None, str] = {}
        self.group: list[int | None] = []
        self.answers_at_end = False
        self.in_snapshot = False
        self.stating: float | None = None
        self._latest: deque[tuple[float, Any]] = deque(maxlen=COMPARED)
        self._open: dict[int | str, _Open] = {}
        self._unanswered: dict[int | str, _Open] = {}
        self._cut: dict[int | str, int] = {}

    def is_repeated(self, ts: float, batch: Any) -> bool:
        """Whether the same batch was read at the same time; remembers it if not."""
        if self._latest and self._latest[0][0] != ts:
            self._latest.clear()
        if (ts, batch) in self._latest:
            return True
        self._latest.append((ts, batch))
        return False

    def know(self, record: Record, run: StoredRun) -> None:
        """Add the blocks of a run.

        Raises:
            TraceFormatError: The name of a block belongs to another one.
        """
        parent, size = run.stored.parent, run.stored.size
        for number, name in enumerate(run.stored.hashes):
            part = array("I", run.tokens[number * size : (number + 1) * size])
            if not self.blocks.store(name, KnownBlock(parent, part, run.namespace, run.scope)):
                found = f"block {shown(name)} with another prompt than before"
                expected = "the recording of one engine that did not restart"
                raise record.error("block_hashes", found, expected)
            parent = name

    def take(self, record: Record, run: StoredRun, order: int) -> Iterator[Row]:
        """Add a run to the requests, and return those that end with it."""
        parent, tail = run.stored.parent, run.stored.hashes[-1]
        path = self.blocks.path(parent)
        self.know(record, run)
        request = None if parent is None else self._open.pop(parent, None)
        answered = None if parent is None or request else self._unanswered.pop(parent, None)
        request = request or answered
        if request is None:
            whole = path + run.tokens
            request = _Open(run.now, run.now, run.batch, order, run.namespace, whole)
        else:
            request.extend(run, answered=answered is not None)
        same = self._open.pop(tail, None)  # another request with the same blocks
        self._open[tail] = request
        if same is not None:
            yield same.row()

    def continues_cut(self, run: StoredRun) -> bool:
        """Whether a run continues a request that ended with its file; it does from then on."""
        parent = run.stored.parent
        latest = None if parent is None else self._cut.pop(parent, None)
        if latest is None or run.now - latest > PAUSE_MS:
            return False
        self._cut[run.stored.hashes[-1]] = run.now
        return True

    def ended(self, before: int) -> Iterator[Row]:
        """Requests that have not continued since ``before``, the oldest first."""
        while self._open:
            tail, request = next(iter(self._open.items()))
            if request.latest_ms >= before:
                return
            del self._open[tail]
            if self.answers_at_end and not request.output:
                yield from self._wait(tail, request)
            else:
                yield request.row()

    def _wait(self, tail: int | str, request: _Open) -> Iterator[Row]:
        """Keep a request for its answer; returns those that cannot wait any more."""
        same = self._unanswered.pop(tail, None)
        self._unanswered[tail] = request
        if same is not None:
            yield same.row()
        if len(self._unanswered) > UNANSWERED:
            yield self._unanswered.pop(next(iter(self._unanswered))).row()

    def end(self) -> Iterator[Row]:
        """All requests."""
        for requests in (self._unanswered, self._open):
            for request in requests.values():
                yield request.row()
            requests.clear()

    def end_of_file(self) -> Iterator[Row]:
        """All requests; events that continue one in the next file are not requests."""
        self._cut = {tail: request.latest_ms for tail, request in self._open.items()}
        yield from self.end()

    def clear(self) -> Iterator[Row]:
        """Forget all blocks, and with them the requests that could continue."""
        yield from self.end()
        self._cut.clear()
        self.blocks = KnownBlocks()
