"""blockmgr's own traces: a header, then one record per request with all its tokens."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from blockmgr.lab.formats.fields import Known
from blockmgr.lab.formats.record import MAX_NUMBER
from blockmgr.lab.stored import Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from blockmgr.lab.formats.reading import Reading
    from blockmgr.lab.formats.record import Record

__all__ = ["FORMAT", "KNOWN", "VERSION", "own"]

FORMAT: Final = "blockmgr-trace"
VERSION: Final = 1
KNOWN: Final = Known(
    "format version arrival_ms tokens num_output_tokens outputs namespace session tool_ms"
)


def own(records: Iterable[Record], reading: Reading) -> Iterator[Row]:
    """The format of ``write_trace``, which keeps outputs and namespaces."""
    for number, record in enumerate(records):
        if number == 0:
            _check_header(record)
            continue
        yield _row(record, reading)


def _check_header(record: Record) -> None:
    name = record.get("format")
    if name != FORMAT:
        raise record.wrong("format", name, json.dumps(FORMAT))
    version = record.integer("version", 0, MAX_NUMBER)
    if version != VERSION:
        raise record.error("version", f"version {version}", f"version {VERSION}")


def _row(record: Record, reading: Reading) -> Row:
    arrival_ms = record.integer("arrival_ms", 0, MAX_NUMBER)
    if (late := reading.clock.check(arrival_ms)) is not None:
        raise record.wrong("arrival_ms", arrival_ms, late)
    tokens = record.tokens("tokens", record.items("tokens"))
    if not tokens:
        raise record.error("tokens", "an empty prompt", "at least 1 token")
    num_output_tokens = record.integer("num_output_tokens", 0, MAX_NUMBER)
    outputs = [record.tokens("outputs", sample) for sample in record.items("outputs")]
    if outputs and max(map(len, outputs)) != num_output_tokens:
        raise record.error(
            "num_output_tokens",
            f"num_output_tokens {num_output_tokens}",
            f"{max(map(len, outputs))}, the length of the longest output",
        )
    return Row(
        arrival_ms=arrival_ms,
        order=reading.next_order(),
        prompt=tokens,
        num_output_tokens=num_output_tokens,
        outputs=outputs,
        namespace=_namespace(record),
        session=record.integer("session", 0, MAX_NUMBER) if "session" in record.value else 0,
        tool_ms=record.integer("tool_ms", 0, MAX_NUMBER) if "tool_ms" in record.value else None,
    )


def _namespace(record: Record) -> bytes:
    value: Any = record.get("namespace")
    try:
        return bytes.fromhex(value)
    except (TypeError, ValueError):
        # A namespace may be a secret, even a mistyped one: show only its kind.
        kind = f"a string of {len(value)} characters" if isinstance(value, str) else "no string"
        raise record.error(
            "namespace", f"a namespace that is {kind}", "a string of hexadecimal bytes"
        ) from None
