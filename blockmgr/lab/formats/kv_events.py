"""Recorded KV events of vLLM, SGLang or blockmgr as a trace: joins stored blocks to prompts.

A recording has one batch per line, as ``[ts, events, rank]`` or as an object with these names;
``ts`` is in seconds. Events are maps with a ``type``, or lists that begin with it, as from older
versions. Block hashes may be numbers or texts. Each data-parallel rank has a cache and a clock.

Events contain stored blocks, but not requests. A ``BlockStored`` becomes a request whose prompt is
everything from the root to its last block. An event that continues the last block of an earlier one
within two seconds belongs to the same request: several blocks are the next chunk of the prompt, a
single block was filled by decoding. So a prompt that was found completely is not in the trace, and
the counts are lower bounds. SGLang stores an answer when it ends, so the first event that continues
a request after the pause is taken as its answer; its hashes are signed, which tells it apart.

Only blocks on the device count, and of the groups of layers only one whose blocks stand for the
whole prefix, as ``kv_cache_spec_kind`` says. Extra keys belong to their block, so prompts share
everything before their first image.
"""

from __future__ import annotations

from array import array
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from blockmgr.event_columns import WHOLE_PREFIX
from blockmgr.lab.formats.event_batch import (
    BATCH,
    CLEARED,
    RANKS,
    STORED,
    RecordedBatch,
    Stored,
    batch_of,
    event_of,
    hashes_of,
    stored_of,
)
from blockmgr.lab.formats.fields import Known
from blockmgr.lab.formats.record import shown
from blockmgr.lab.formats.recorded_engine import (
    PAUSE_MS,
    KeyTokens,
    Names,
    RecordedEngine,
    StoredRun,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from blockmgr.errors import TraceFormatError
    from blockmgr.lab.formats.reading import Reading
    from blockmgr.lab.formats.record import Record
    from blockmgr.lab.formats.recorded_engine import KnownBlock
    from blockmgr.lab.stored import Row

__all__ = ["kv_events"]

DEVICE: Final = (None, "GPU")
STATE: Final = "kv_events"

BEFORE: Final = "stored blocks after blocks that are not recorded"
STATED: Final = "stored blocks that a snapshot restates"
REPEATED: Final = "repeated batches"
OUTDATED: Final = "batches from before a restart of their publisher"
CUT: Final = "stored blocks that continue the previous file"
OTHER_MEDIA: Final = "events of other memory than the device's"
OTHER_GROUPS: Final = "events of groups that are not of full attention"
MORE_GROUPS: Final = "events of further groups of full attention"
UNTOLD: Final = (
    "blocks with equal tokens and different names",
    "different blocks: something that is not recorded differs",
)

BATCH_FIELDS: Final = Known(
    " ".join((*BATCH, *RANKS)), within={"about": Known("epoch snapshot last groups", "block_size")}
)
EVENT_FIELDS: Final = Known(
    "type block_hashes parent_block_hash token_ids block_size medium lora_id lora_name extra_keys "
    "cache_salt group_idx kv_cache_spec_kind",
    # They change no prompt, or are part of the names of blocks as well.
    "kv_cache_spec_sliding_window locality ownership session_id lookahead_token_ids",
)


def kv_events(records: Iterable[Record], reading: Reading) -> Iterator[Row]:
    """The requests behind the events of one engine, or of several ranks.

    Raises:
        TraceFormatError: An event is malformed or contradicts an earlier one, or no prompt begins
            in the file.
    """
    recording = reading.carried.setdefault(STATE, _Recording(reading))
    assert isinstance(recording, _Recording)
    recording.begin_file()
    record, found = None, False
    for record in records:
        for row in recording.take(record):
            found = True
            yield row
    for engine in recording.engines.values():
        for row in engine.end_of_file():
            found = True
            yield row
    if not found and record is not None:
        raise recording.nothing(record)
    recording.tell()


class _Recording:
    """The engines of a recording, and what was left out of it."""

    def __init__(self, reading: Reading) -> None:
        self.engines: dict[int | None, RecordedEngine] = {}
        self._reading = reading
        self._keys = KeyTokens()
        self._names = Names()
        self._left_out: Counter[str] = Counter()
        self._batches = 0
        self._earlier: set[int | None] = set()

    def begin_file(self) -> None:
        """Let each rank start again if its clock does, as in the file of another engine."""
        self._earlier = set(self.engines)

    def take(self, record: Record) -> Iterator[Row]:
        """The requests that ended with the batch in a record."""
        batch = batch_of(record)
        self._batches += 1
        notes = self._reading.notes
        notes.check(batch.fields, BATCH_FIELDS)
        notes.check([event for event in batch.events if isinstance(event, dict)], EVENT_FIELDS)
        engine = self._engine(record, batch)
        if engine.is_repeated(batch.ts, record.value):
            self._left_out[REPEATED] += 1
            return
        if batch.epoch is not None and engine.epoch is not None and batch.epoch < engine.epoch:
            self._left_out[OUTDATED] += 1
            return
        yield from engine.ended(batch.time_ms - PAUSE_MS)
        yield from _follow_publisher(record, engine, batch)
        for event in batch.events:
            yield from self._event(record, engine, batch, *event_of(record, event))
        engine.in_snapshot = batch.is_snapshot and not batch.is_last

    def _engine(self, record: Record, batch: RecordedBatch) -> RecordedEngine:
        engine = self.engines.setdefault(batch.rank, RecordedEngine())
        if batch.time_ms < engine.latest_ms:
            if batch.rank not in self._earlier:
                expected = f"at least {engine.latest_ms} ms, as before in this rank"
                raise record.wrong("ts", batch.ts, expected)
            engine = self.engines[batch.rank] = RecordedEngine()
        self._earlier.discard(batch.rank)
        engine.latest_ms = batch.time_ms
        return engine

    def _event(
        self,
        record: Record,
        engine: RecordedEngine,
        batch: RecordedBatch,
        kind: str,
        fields: dict[str, Any],
    ) -> Iterator[Row]:
        if fields.get("medium") not in DEVICE:
            self._left_out[OTHER_MEDIA] += 1
        elif kind == CLEARED:
            yield from engine.clear()
        elif kind == STORED:
            if self._is_whole_prefix(record, engine, fields):
                yield from self._store(record, engine, batch, stored_of(record, fields))
        elif fields.get("group_idx") in engine.group:
            for name in hashes_of(record, fields):
                engine.blocks.remove(name)

    def _is_whole_prefix(
        self, record: Record, engine: RecordedEngine, fields: dict[str, Any]
    ) -> bool:
        """Whether a stored event is of the group whose blocks are prompts."""
        group = fields.get("group_idx")
        if group is not None and (type(group) is not int or group < 0):
            raise record.wrong("group_idx", group, "null or an integer from 0")
        kind = fields.get("kv_cache_spec_kind")
        if kind is None:
            kind = engine.kinds.get(group)
        if kind is not None and kind not in WHOLE_PREFIX:
            self._left_out[OTHER_GROUPS] += 1
            return False
        if not engine.group:
            engine.group = [group]
        if group in engine.group:
            return True
        if kind is None:
            found = f"group_idx {shown(group)} without kv_cache_spec_kind"
            expected = "the kind of each group of layers, to find the one of full attention"
            raise record.error("group_idx", found, expected)
        self._left_out[MORE_GROUPS] += 1
        return False

    def _store(
        self, record: Record, engine: RecordedEngine, batch: RecordedBatch, stored: Stored
    ) -> Iterator[Row]:
        if any(isinstance(name, int) and name < 0 for name in stored.hashes):
            engine.answers_at_end = True
        parent = engine.blocks.get(stored.parent)
        if stored.parent is not None and (parent is None or parent.removed):
            self._left_out[BEFORE] += len(stored.hashes)
            return
        scope, namespace, keys = _namespace(record, stored, parent)
        tokens = self._keys.changed(record, stored.tokens, keys)
        self._tell_apart(stored, namespace, tokens)
        run = StoredRun(stored, tokens, namespace, scope, batch.time_ms, self._batches)
        if batch.is_snapshot or engine.stating is not None:
            engine.know(record, run)
            self._left_out[STATED] += len(stored.hashes)
        elif engine.continues_cut(run):
            engine.know(record, run)
            self._left_out[CUT] += len(stored.hashes)
        else:
            yield from engine.take(record, run, self._reading.next_order())

    def _tell_apart(self, stored: Stored, namespace: bytes, tokens: list[int]) -> None:
        """Change the tokens of blocks that differ from others in nothing but their names."""
        parent, size = stored.parent, stored.size
        for number, name in enumerate(stored.hashes):
            at = number * size
            content = array("I", tokens[at : at + size]).tobytes()
            if self._names.are_apart(parent, namespace, content, name):
                tokens[at] = self._keys.of(tokens[at], f"name {name}")
                self._reading.notes.assume(*UNTOLD)
            parent = name

    def nothing(self, record: Record) -> TraceFormatError:
        """The error for a file without a prompt."""
        reasons = [f"{count:,} {what}" for what, count in self._left_out.items()]
        found = "no stored block of a prompt" + (f", but {', '.join(reasons)}" if reasons else "")
        expected = (
            "a BlockStored of full attention on the device that begins a prompt: record from the "
            "start of the engine, or reset its prefix cache first"
        )
        return record.error("events", found, expected)

    def tell(self) -> None:
        """Report what was assumed, and what was left out."""
        notes = self._reading.notes
        notes.assume(
            "requests", "blocks stored within 2 s of one another are of one, if they follow"
        )
        notes.assume("prompts that were found whole", "not recorded: hits are at least these")
        if any(engine.answers_at_end for engine in self.engines.values()):
            notes.assume("answers", "stored when they end, as by SGLang, whose hashes have signs")
        for what, count in self._left_out.items():
            self._reading.notes.leave_out(what, count)
        self._left_out.clear()


def _follow_publisher(
    record: Record, engine: RecordedEngine, batch: RecordedBatch
) -> Iterator[Row]:
    """Apply what blockmgr's publisher adds to a batch: restarts, snapshots, kinds of groups."""
    if batch.epoch is None:
        return
    restarted = engine.epoch is not None and batch.epoch != engine.epoch
    if restarted or (batch.is_snapshot and not engine.in_snapshot):
        yield from engine.clear()
    engine.epoch = batch.epoch
    engine.kinds.update(enumerate(batch.kinds))
    if batch.events:
        kind, fields = event_of(record, batch.events[0])
        # Its first batch, and those after a loss of events, restate everything after a clearing.
        if kind == CLEARED and fields.get("medium") in DEVICE:
            engine.stating = batch.ts
    if engine.stating != batch.ts:
        engine.stating = None


def _namespace(
    record: Record, stored: Stored, parent: KnownBlock | None
) -> tuple[bytes, bytes, list[list[Any]]]:
    """The scope and namespace of a prompt, and the keys of each block that belong to neither.

    The namespace is the adapter, the salt, and the keys of the first block that are not images.
    """
    scope = "" if stored.adapter is None else f"lora {stored.adapter}"
    scope += "" if stored.salt is None else f" salt {stored.salt}"
    keys = [[key for key in keys if key != stored.adapter] for keys in stored.keys]
    encoded = scope.encode("utf-8", "surrogatepass")
    if parent is not None:
        if parent.scope != encoded:
            found = "another adapter or salt than that of the parent block"
            raise record.error("lora_name", found, "the same for all blocks of a prompt")
        return encoded, parent.namespace, keys
    own = [key for key in keys[0] if isinstance(key, str)] if keys else []
    if own:
        keys[0] = [key for key in keys[0] if not isinstance(key, str)]
    namespace = scope + "".join(f" {key!r}" for key in own)
    return encoded, namespace.encode("utf-8", "surrogatepass"), keys
