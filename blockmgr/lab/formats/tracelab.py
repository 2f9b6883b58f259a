"""TraceLab's traces of coding agents: lengths, prefix splits and times of rounds, without tokens.

A row is a round of a session: a prompt and its answer. Its ids are made up from the lengths:

* A prompt that is longer than the one before it in its session, for the same model, repeats that
  one whole. A shorter one was edited or compacted: it repeats ``prefix_tokens`` of the one before,
  which are the tokens that the provider read from its cache.
* The first prompt of a session shares its ``prefix_tokens`` with the first prompts of all sessions
  of the same user, provider and model: instructions and tools.
* Everything else is in no other prompt.

Sessions follow each other in a file, so its times go back, and rows are put in order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from blockmgr.lab.formats.fields import Known
from blockmgr.lab.formats.reading import IdSize
from blockmgr.lab.formats.record import MAX_NUMBER, shown
from blockmgr.lab.formats.times import Times
from blockmgr.lab.stored import Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from blockmgr.lab.formats.reading import Reading
    from blockmgr.lab.formats.record import Record

__all__ = ["MARK", "ROUND", "rounds"]

MARK: Final = {"input_tokens_total", "prefix_tokens"}
TOKENS_PER_ID: Final = 64
"""Unless the caller says another number."""

MOST_TOKENS: Final = 2**22
"""Longest prompt: a row of a few bytes must not stand for any number of ids."""

INPUTS: Final = ("user_message", "tool_result")
LATENCIES: Final = ("tool_internal_latency_ms", "tool_wall_latency_ms")
"""Milliseconds that a tool takes: what its runner says is better than what the log shows."""

ROUND: Final = Known(
    "provider session_id round_index model user input_tokens_total prefix_tokens output_tokens",
    "project round_id turn_id newly_append_tokens claude_uncached_input_tokens "
    "claude_cache_creation_input_tokens claude_cache_read_input_tokens reasoning_output_tokens "
    "current_input_event_count current_user_message_count current_tool_result_count "
    "current_user_message_chars current_tool_result_chars current_input_chars "
    "first_input_event_type store trace_key home cwd session_file",
    {
        "timing_events": Known(
            "event_type timestamp",
            "source content_chars tool_call_id tool_name tool_index result_chars is_error",
        ),
        "tools": Known(
            " ".join(LATENCIES),
            "tool_index tool_name tool_call_id emitted_at input input_chars result_chars "
            "is_error result_at",
        ),
    },
)
PROMPTS: Final = (
    "made up from lengths: a prompt repeats the one before it in its session, or prefix_tokens of "
    "it if it is not longer; first prompts of a user and model share their prefix_tokens"
)
_Run = tuple[int, int]  # first id, and number of ids


@dataclass(slots=True)
class _Path:
    """The last prompt of a session for one model, in runs of ids."""

    runs: list[_Run]
    num_tokens: int


@dataclass(slots=True)
class _Paths:
    """What the prompts so far have in common with prompts to come."""

    size: int
    next_id: int = 0
    shared: dict[Any, int] = field(default_factory=dict)
    last: dict[Any, _Path] = field(default_factory=dict)
    indices: dict[Any, int] = field(default_factory=dict)

    def take(self, count: int) -> int:
        """The first of as many ids that no prompt has had."""
        self.next_id += count
        return self.next_id - count

    def ids(self, session: Any, whose: Any, num_tokens: int, prefix: int) -> npt.NDArray[np.uint64]:
        """The ids of the next prompt of a session.

        Args:
            session: Names the session and the model.
            whose: Names the sessions whose first prompts have a common prefix.
            num_tokens: Tokens of the prompt.
            prefix: Tokens of it that the provider had cached.
        """
        before = self.last.get(session)
        if before is None:
            if whose not in self.shared:
                self.shared[whose] = self.take(MOST_TOKENS // self.size)
            runs = _first([(self.shared[whose], MOST_TOKENS // self.size)], prefix // self.size)
        else:
            repeated = before.num_tokens if num_tokens > before.num_tokens else prefix
            runs = _first(before.runs, min(repeated, before.num_tokens) // self.size)
        new = -(-num_tokens // self.size) - sum(count for _, count in runs)
        if new:
            runs.append((self.take(new), new))
        self.last[session] = _Path(runs, num_tokens)
        return np.concatenate([np.arange(a, a + n, dtype=np.uint64) for a, n in runs])


def _first(runs: list[_Run], count: int) -> list[_Run]:
    """The runs of the first ``count`` ids."""
    found = []
    for start, length in runs:
        if count <= 0:
            break
        found.append((start, min(length, count)))
        count -= length
    return found


def rounds(records: Iterable[Record], reading: Reading) -> Iterator[Row]:
    """The rounds of TraceLab's normalized JSONL, public or private.

    Source: uw-syfi/TraceLab, ``artifacts/utils/DB_SCHEMA.md`` and its example sessions.
    """
    if reading.id_size is None:
        reading.id_size = IdSize(TOKENS_PER_ID, reading.tokens_per_id)
        reading.times = Times("seconds")
        reading.carried["tracelab"] = _Paths(reading.id_size.size())
    paths: _Paths = reading.carried["tracelab"]
    reading.notes.assume("prompts", PROMPTS)
    for record in records:
        row = _row(record, reading, paths)
        if row is not None:
            yield row


def _row(record: Record, reading: Reading, paths: _Paths) -> Row | None:
    num_tokens = _count(record, "input_tokens_total", MOST_TOKENS)
    prefix = _count(record, "prefix_tokens", num_tokens)
    num_output_tokens = _count(record, "output_tokens", MAX_NUMBER)
    arrival_ms = _arrival_ms(record, reading)
    tool_ms = _tool_ms(record)
    provider, model, user = (_name(record, name) for name in ("provider", "model", "user"))
    session = provider, _name(record, "session_id", needed=True)
    if not _is_next(record, paths, session):
        reading.notes.leave_out("rounds that come again")
        return None
    if not num_tokens or arrival_ms is None:
        reading.notes.leave_out("rounds without a prompt" if not num_tokens else
                                "rounds without times")  # fmt: skip
        return None
    return Row(
        arrival_ms=arrival_ms,
        order=reading.next_order(),
        prompt=paths.ids((session, model), (provider, model, user), num_tokens, prefix),
        num_tokens=num_tokens,
        num_output_tokens=num_output_tokens,
        namespace=f"{provider} {model}".encode(errors="backslashreplace"),
        session=reading.session(session),
        tool_ms=tool_ms,
    )


def _is_next(record: Record, paths: _Paths, session: Any) -> bool:
    """Whether a round is later than all of its session so far; copied sessions repeat rounds."""
    if record.value.get("round_index") is None:
        return True
    index = record.integer("round_index", 0, MAX_NUMBER)
    if index <= paths.indices.get(session, -1):
        return False
    paths.indices[session] = index
    return True


def _count(record: Record, name: str, most: int) -> int:
    """A number of tokens; 0 if it is null."""
    return 0 if record.get(name) is None else record.integer(name, 0, most)


def _name(record: Record, name: str, *, needed: bool = False) -> str:
    value = record.value.get(name)
    if value is None and not needed:
        return ""
    if not isinstance(value, str):
        raise record.wrong(name, value, "a string")
    return value


def _objects(record: Record, name: str) -> list[dict[str, Any]]:
    """The objects in a list that a round may lack."""
    values = [] if record.value.get(name) is None else record.items(name)
    for value in values:
        if not isinstance(value, dict):
            raise record.error(name, f"{shown(value)} in {name}", "objects")
    return values


def _arrival_ms(record: Record, reading: Reading) -> int | None:
    """The time of the last input before the first output, or of the first event."""
    assert reading.times is not None
    found = None
    for event in _objects(record, "timing_events"):
        if event.get("timestamp") is None:
            continue
        is_input = event.get("event_type") in INPUTS
        if found is None or is_input:
            found = event["timestamp"]
        if not is_input:
            break
    if found is None:
        return None
    return reading.times.ms(record, "timestamp", found, reading.notes)


def _tool_ms(record: Record) -> int | None:
    """The time of the slowest tool that the answer calls; None if no time is known."""
    found: list[int] = []
    for tool in _objects(record, "tools"):
        latency: float = -1
        for name in reversed(LATENCIES):
            if type(tool.get(name)) in (int, float):
                latency = tool[name]
        if 0 <= latency <= MAX_NUMBER:
            found.append(int(latency))
    return max(found, default=None)
