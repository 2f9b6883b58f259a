"""The rule of all readers: each field of a row is used, known to be harmless, or reported.

A format declares what it knows of its objects as ``Known``. ``blockmgr.lab.formats`` applies it to
each record before the reader gets it, so a field that a reader skips is reported. Assumptions of a
reader, and rows that it leaves out, go to the same ``Notes``. The result is ``AsRead``, which
``read_trace`` returns with the trace; commands print it on stderr and in their JSON output.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["AsRead", "Known", "Notes"]

MOST_NAMES: Final = 64
"""Most names of each kind to keep; rows with others are counted together."""

LONGEST_NAME: Final = 60
OTHERS: Final = "(other names)"
VALUES: Final = ", or "


class Known:
    """What a reader knows of the fields of an object.

    Args:
        used: Names of the fields that the reader uses, separated by spaces.
        harmless: Names of fields that change neither prompts nor outputs nor times.
        within: What is known of the objects in used fields, or in the lists there.
    """

    def __init__(
        self, used: str, harmless: str = "", within: Mapping[str, Known] | None = None
    ) -> None:
        self.within = dict(within or {})
        self.names = frozenset((*used.split(), *harmless.split(), *self.within))

    def with_more(self, used: str, within: Mapping[str, Known] | None = None) -> Known:
        """The same with more fields that are used."""
        names = " ".join(self.names)
        return Known(f"{names} {used}", within={**self.within, **(within or {})})

    def unread(self, value: Any, prefix: str = "") -> Iterator[str]:
        """Names of the fields of ``value`` that are not known, with the path to each object."""
        if isinstance(value, list):
            for item in value:
                if isinstance(item, dict):
                    yield from self.unread(item, prefix)
            return
        if not isinstance(value, dict):
            return
        if not value.keys() <= self.names:
            for name in value:
                # A field without a value says nothing.
                if name not in self.names and value[name] is not None:
                    yield prefix + name
        for name, known in self.within.items():
            if name in value:
                yield from known.unread(value[name], f"{prefix}{name}.")


@dataclass(frozen=True, slots=True)
class AsRead:
    """How a trace was read.

    Attributes:
        format: Name of its format.
        assumed: What the reader took for granted, such as the unit of times, by subject.
        left_out: Numbers of rows, or of parts of them, that are not in the trace, by reason.
        unread: Numbers of rows with a field that the reader neither uses nor knows to be harmless,
            by name of the field; fields of inner objects have the path to them in front.
    """

    format: str
    assumed: Mapping[str, str]
    left_out: Mapping[str, int]
    unread: Mapping[str, int]

    @property
    def as_plain(self) -> dict[str, Any]:
        """All of it for JSON."""
        return {
            "assumed": dict(self.assumed),
            "format": self.format,
            "left_out": dict(self.left_out),
            "unread_fields": dict(self.unread),
        }

    @property
    def lines(self) -> list[str]:
        """All of it in words: what was assumed, left out and not read, one line each."""
        lines = []
        if self.assumed:
            assumed = "; ".join(f"{name}: {text}" for name, text in self.assumed.items())
            lines.append(f"read as {self.format}; {assumed}")
        lines += [f"left out: {_counted(self.left_out)}"] if self.left_out else []
        if self.unread:
            lines.append(f"fields that were not read, with their rows: {_counted(self.unread)}")
        return lines


@dataclass(slots=True)
class Notes:
    """Collects how a trace is read, in bounded memory."""

    assumed: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)
    unread: dict[str, int] = field(default_factory=dict)

    def check(self, value: Any, known: Known) -> None:
        """Count the fields of a row that are not known, each once."""
        for name in dict.fromkeys(known.unread(value)):
            self.not_read(name)

    def not_read(self, name: str) -> None:
        """Count a row with a field that the reader does not use."""
        _count(self.unread, name, 1)

    def leave_out(self, reason: str, count: int = 1) -> None:
        """Count rows, or parts of rows, that do not become part of the trace."""
        _count(self.left_out, reason, count)

    def assume(self, subject: str, text: str) -> None:
        """Record what was taken for granted about a subject; different texts are joined."""
        before = self.assumed.get(subject)
        known = before.split(VALUES) if before is not None else []
        full = len(known) >= MOST_NAMES or (before is None and len(self.assumed) >= MOST_NAMES)
        if text not in known and not full:
            self.assumed[subject] = VALUES.join([*known, text])

    def as_read(self, name: str) -> AsRead:
        """The result for a trace of the format ``name``."""
        return AsRead(name, dict(self.assumed), dict(self.left_out), dict(self.unread))


def _count(counts: dict[str, int], name: str, more: int) -> None:
    if len(name) > LONGEST_NAME:
        name = f"{name[:LONGEST_NAME]}…"
    if name not in counts and len(counts) >= MOST_NAMES:
        name = OTHERS
    counts[name] = counts.get(name, 0) + more


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count:,})" for name, count in counts.items())
