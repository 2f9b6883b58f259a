"""Traces of ids: those of Mooncake and of Qwen-Bailian."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from blockmgr.lab.formats.fields import Known
from blockmgr.lab.formats.reading import IdSize
from blockmgr.lab.formats.record import MAX_NUMBER
from blockmgr.lab.request import TOKENS_PER_HASH_ID
from blockmgr.lab.stored import Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from blockmgr.lab.formats.reading import Reading
    from blockmgr.lab.formats.record import Record

__all__ = ["BAILIAN_ROW", "MOONCAKE_ROW", "bailian", "mooncake"]

BAILIAN_TOKENS_PER_ID: Final = 16
MS_IN_SECOND: Final = 1000
MOONCAKE_ROW: Final = Known("timestamp input_length output_length hash_ids")
BAILIAN_ROW: Final = Known(
    "timestamp input_length output_length hash_ids", "chat_id parent_chat_id turn type"
)
CHECKED_IDS: Final = 2**19
"""Most distinct ids whose predecessors are checked: more take too much memory."""


def mooncake(records: Iterable[Record], reading: Reading) -> Iterator[Row]:
    """Mooncake: ``timestamp`` in milliseconds, and ids that also stand for their prefix.

    Source: Qin et al., "Mooncake", FAST 2025, and the traces released with it.
    """
    parents: dict[int, tuple[int | None, int]] = {}
    for record in records:
        row = _row(record, reading, TOKENS_PER_HASH_ID, 1)
        _check_prefixes(record, parents)
        yield row


def bailian(records: Iterable[Record], reading: Reading) -> Iterator[Row]:
    """Qwen-Bailian: ``timestamp`` in seconds, and ids of 16 tokens.

    Source: the traces of alibaba-edu/qwen-bailian-usagetraces-anon.
    """
    for record in records:
        yield _row(record, reading, BAILIAN_TOKENS_PER_ID, MS_IN_SECOND)


def _row(record: Record, reading: Reading, usual: int, scale: int) -> Row:
    if reading.id_size is None:
        reading.id_size = IdSize(usual, reading.tokens_per_id)
    arrival_ms = reading.clock.at(record, "timestamp", record.milliseconds("timestamp", scale))
    num_tokens = record.integer("input_length", 1, MAX_NUMBER)
    num_output_tokens = record.integer("output_length", 0, MAX_NUMBER)
    ids = reading.ids.encoded(record, "hash_ids", record.items("hash_ids"))
    reading.id_size.see(record, len(ids), num_tokens)
    return Row(
        arrival_ms=arrival_ms,
        order=reading.next_order(),
        prompt=ids,
        num_tokens=num_tokens,
        num_output_tokens=num_output_tokens,
    )


def _check_prefixes(record: Record, parents: dict[Any, tuple[Any, int]]) -> None:
    """Refuse an id that followed a different id before: it would mean two different blocks."""
    before = None
    for current in record.value["hash_ids"]:
        if len(parents) < CHECKED_IDS:
            known, line = parents.setdefault(current, (before, record.line))
        else:
            known, line = parents.get(current, (before, 0))
        if known != before:
            found = f"id {current} {_place(before)} in hash_ids"
            expected = f"it {_place(known)}, as in line {line}: an id stands for its prefix too"
            raise record.error("hash_ids", found, expected)
        before = current


def _place(before: Any) -> str:
    return "first" if before is None else f"after id {before}"
