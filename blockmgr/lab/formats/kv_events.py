"""vLLM's KV events as a trace: joins stored blocks to prompts.

A recording has one batch per line, as ``[ts, events, rank]`` or as an object with these names;
``ts`` is in seconds. Events are maps with a ``type``, or lists that begin with it, as from older
versions. Block hashes may be numbers or texts.

Events contain stored blocks, but not requests. A ``BlockStored`` becomes a request whose prompt is
everything from the root to its last block. An event that continues the last block of an earlier one
within ``PAUSE_MS`` belongs to the same request: several blocks are the next chunk of the prompt, a
single block was filled by decoding. So a prompt that was found completely is not in the trace, and
the counts are lower bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from blockmgr.lab.formats.fields import Known
from blockmgr.lab.formats.record import MAX_NUMBER, shown
from blockmgr.lab.stored import Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from blockmgr.lab.formats.reading import Reading
    from blockmgr.lab.formats.record import Record

__all__ = ["kv_events"]

PAUSE_MS: Final = 2000
"""Longest time between two events of a request: more than a block of 16 slow tokens."""

MS_IN_SECOND: Final = 1000
FIELDS: Final = {
    "BlockStored": (
        *("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"),
        *("lora_name", "extra_keys", "group_idx"),
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}
BATCH: Final = Known("ts events data_parallel_rank")
EVENT: Final = Known(" ".join(("type", *FIELDS["BlockStored"])))
DEVICE: Final = (None, "GPU")
FULL_ATTENTION: Final = (None, 0)


@dataclass(slots=True)
class _Block:
    """A stored block: its parent, tokens and namespace."""

    parent: Any
    tokens: list[int]
    namespace: bytes
    children: int = 0
    removed: bool = False


@dataclass(slots=True)
class _Open:
    """A request that may continue."""

    arrival_ms: int
    latest_ms: int
    order: int
    namespace: bytes
    prompt: list[int]
    output: list[int] = field(default_factory=list)

    def row(self) -> Row:
        return Row(
            arrival_ms=self.arrival_ms,
            order=self.order,
            prompt=self.prompt,
            num_tokens=None,
            num_output_tokens=len(self.output),
            outputs=[self.output] if self.output else [],
            namespace=self.namespace,
        )


class _Engine:
    """The stored blocks of one engine."""

    def __init__(self) -> None:
        self.blocks: dict[Any, _Block] = {}
        self.open: dict[Any, _Open] = {}  # by last block

    def store(self, block: Any, stored: _Block) -> None:
        """Add a block whose parent is known."""
        known = self.blocks.get(block)
        if known is not None:
            known.removed = False
            return
        self.blocks[block] = stored
        if stored.parent is not None:
            self.blocks[stored.parent].children += 1

    def remove(self, block: Any) -> None:
        """Remove a block; its tokens are needed as long as another block continues it."""
        if block in self.blocks:
            self.blocks[block].removed = True
        while block is not None and (found := self.blocks.get(block)) is not None:
            if found.children or not found.removed:
                return
            del self.blocks[block]
            block = found.parent
            if block is not None:
                self.blocks[block].children -= 1

    def path(self, block: Any) -> list[int]:
        """Tokens from a root to the end of ``block``."""
        parts = []
        while block is not None:
            parts.append(self.blocks[block].tokens)
            block = self.blocks[block].parent
        return [token for part in reversed(parts) for token in part]


def kv_events(records: Iterable[Record], reading: Reading) -> Iterator[Row]:
    """The requests behind the events of one engine, or of several ranks."""
    engines: dict[Any, _Engine] = {}
    for record in records:
        now, events, rank = _batch(record, reading)
        reading.notes.check(record.value if isinstance(record.value, dict) else {}, BATCH)
        reading.notes.check([event for event in events if isinstance(event, dict)], EVENT)
        engine = engines.setdefault(rank, _Engine())
        yield from _ended(engine, now - PAUSE_MS)
        for event in events:
            kind, fields = _event(record, event)
            if fields.get("medium") not in DEVICE or fields.get("group_idx") not in FULL_ATTENTION:
                continue
            if kind == "BlockStored":
                _store(record, reading, engine, now, fields)
            elif kind == "BlockRemoved":
                for block in _hashes(record, fields):
                    engine.remove(block)
            else:
                yield from _ended(engine, MAX_NUMBER)
                engine.blocks.clear()
    for engine in engines.values():
        yield from _ended(engine, MAX_NUMBER)


def _ended(engine: _Engine, before: int) -> Iterator[Row]:
    """Requests that have not continued since then, the oldest first."""
    while engine.open:
        block, request = next(iter(engine.open.items()))
        if request.latest_ms >= before:
            return
        del engine.open[block]
        yield request.row()


def _batch(record: Record, reading: Reading) -> tuple[int, list[Any], Any]:
    value = record.value
    if isinstance(value, list) and len(value) in (2, 3):
        value = dict(zip(("ts", "events", "data_parallel_rank"), value, strict=False))
    if not isinstance(value, dict):
        raise record.error("", shown(record.value), "a batch of events: [ts, events, rank]")
    named = record.renamed(value)
    now = reading.clock.at(named, "ts", named.milliseconds("ts", MS_IN_SECOND))
    return now, named.items("events"), value.get("data_parallel_rank")


def _event(record: Record, event: Any) -> tuple[str, dict[str, Any]]:
    kind: Any = None
    if isinstance(event, dict):
        kind, fields = event.get("type"), event
    elif isinstance(event, list) and event:
        kind = event[0]
        names = FIELDS.get(kind, ()) if isinstance(kind, str) else ()
        fields = dict(zip(names, event[1:], strict=False))
    if not isinstance(kind, str) or kind not in FIELDS:
        raise record.error("type", f"event {shown(event)}", f"one of {', '.join(FIELDS)}")
    return kind, fields


def _hashes(record: Record, fields: dict[str, Any]) -> list[Any]:
    hashes = fields.get("block_hashes")
    if not isinstance(hashes, list) or not all(type(one) in (int, str) for one in hashes):
        found = f"block_hashes {shown(hashes)}"
        raise record.error("block_hashes", found, "a list of integers or strings")
    return hashes


def _store(
    record: Record, reading: Reading, engine: _Engine, now: int, fields: dict[str, Any]
) -> None:
    hashes = _hashes(record, fields)
    tokens = record.tokens("token_ids", fields.get("token_ids"))
    size = fields.get("block_size")
    if type(size) is not int or size < 1:
        raise record.error("block_size", f"block_size {shown(size)}", "an integer above 0")
    if not hashes or len(tokens) != len(hashes) * size:
        found = f"{len(tokens)} token_ids for {len(hashes)} blocks of {size}"
        raise record.error("token_ids", found, f"{len(hashes) * size}, and at least 1 block")
    parent = fields.get("parent_block_hash")
    if parent is not None and (type(parent) not in (int, str) or parent not in engine.blocks):
        found = f"parent_block_hash {shown(parent)}"
        expected = "null, or a block that was stored before: recordings begin with their engine"
        raise record.error("parent_block_hash", found, expected)
    namespace = _namespace(fields, None if parent is None else engine.blocks[parent].namespace)
    request = engine.open.pop(parent, None) if parent is not None else None
    if request is not None and namespace == request.namespace:
        request.latest_ms = now
        if len(hashes) > 1 and not request.output:
            request.prompt += tokens
        else:
            request.output += tokens
    else:
        if request is not None:
            engine.open[parent] = request
        whole = (engine.path(parent) if parent is not None else []) + tokens
        request = _Open(now, now, reading.next_order(), namespace, whole)
    for number, block in enumerate(hashes):
        part = tokens[number * size : (number + 1) * size]
        engine.store(block, _Block(parent, part, namespace))
        parent = block
    engine.open[parent] = request


def _namespace(fields: dict[str, Any], before: bytes | None) -> bytes:
    """The namespace of the blocks: the adapter, then all extra keys from the first block on."""
    if before is None:
        adapter = fields.get("lora_name") or fields.get("lora_id")
        before = b"" if adapter is None else f"lora {adapter}".encode()
    extra = fields.get("extra_keys")
    keys = [key for key in extra if key] if isinstance(extra, list) else []
    return before + b"".join(f" {key!r}".encode() for key in keys)
