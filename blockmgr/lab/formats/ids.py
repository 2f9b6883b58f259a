"""Traces of ids: Mooncake's and its relatives, Qwen-Bailian, LMCache's and kv-cache-tester's.

An id stands for the tokens of a block, and in all formats but Qwen-Bailian for its prefix too. The
number of tokens is the ``block_size`` of the rows, the one that the caller gives, or the one that
fits the lengths of prompts. Some programs write ids for whole blocks alone, so the last block of a
prompt has none: such a block gets an id of its own, which no other prompt has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from blockmgr.lab.formats.fields import Known
from blockmgr.lab.formats.reading import IdSize
from blockmgr.lab.formats.record import MAX_NUMBER, shown
from blockmgr.lab.formats.times import CONVERSATION_MS, DELAYS, TIMES, WHOLE, answered_ms
from blockmgr.lab.request import TOKENS_PER_HASH_ID
from blockmgr.lab.stored import Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from blockmgr.lab.formats.reading import Reading
    from blockmgr.lab.formats.record import Record

__all__ = [
    "BAILIAN_ROW",
    "LOOKUP",
    "MOONCAKE_ROW",
    "SESSION",
    "bailian",
    "lookup_hashes",
    "mooncake",
    "sessions",
]

BAILIAN_TOKENS_PER_ID: Final = 16
MS_IN_SECOND: Final = 1000
CHECKED_IDS: Final = 2**19
"""Most distinct ids whose predecessors are checked: more take too much memory."""

CHECKED_SESSIONS: Final = 2**17


@dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    """Names of the fields of a row; the first is used in messages.

    Attributes:
        unit: Unit of times from the start of the trace.
        usual: Tokens of an id, unless the rows or the caller say another number.
        whole: Whether only whole blocks have ids; None if the first rows show it.
        prefixes: Whether an id stands for its prefix too.
    """

    unit: str = "milliseconds"
    usual: int | None = TOKENS_PER_HASH_ID
    ids: str = "hash_ids"
    length: tuple[str, ...] = ("input_length", "input_tokens")
    output: tuple[str, ...] = ("output_length", "output_tokens")
    size: str = "block_size"
    namespace: str = ""
    whole: bool | None = None
    prefixes: bool = True


MOONCAKE: Final = _Names()
BAILIAN: Final = _Names(unit="seconds", usual=BAILIAN_TOKENS_PER_ID, prefixes=False)
LMCACHE: Final = _Names(
    unit="seconds",
    usual=None,
    ids="chunk_hashes",
    length=("seq_len",),
    output=(),
    size="chunk_size",
    namespace="model_name",
    whole=True,
    prefixes=False,
)
TESTER: Final = _Names(unit="seconds", usual=None, length=("in",), output=("out",))

MOONCAKE_ROW: Final = Known(
    " ".join(
        (
            *("hash_ids", "block_size", "session_id", "message_mode", *TIMES, *DELAYS),
            *(*MOONCAKE.length, *MOONCAKE.output),
        )
    ),
    "request_id",
)
BAILIAN_ROW: Final = MOONCAKE_ROW.with_more("chat_id parent_chat_id turn type")
LOOKUP: Final = Known(
    " ".join(("chunk_hashes seq_len chunk_size model_name", *TIMES)), "request_id dtypes shapes"
)
TESTER_REQUEST: Final = Known(
    "t in out hash_ids model stop think_time", "type input_types output_types api_time ttft"
)
SESSION: Final = Known(
    "id block_size hash_id_scope",
    "models tool_tokens system_tokens totals",
    {
        "requests": TESTER_REQUEST.with_more(
            "agent_id subagent_type duration_ms total_tokens tool_use_count status models "
            "tool_tokens system_tokens",
            {"requests": TESTER_REQUEST},
        )
    },
)


def mooncake(records: Iterable[Record], reading: Reading) -> Iterator[Row]:
    """Mooncake: ids that also stand for their prefix; times in milliseconds.

    Source: Qin et al., "Mooncake", FAST 2025, and the traces released with it. Dynamo and aiperf
    write the same with other names, sessions and delays; kvcache-simulator with ``block_size``.
    """
    yield from _rows(records, reading, MOONCAKE)


def bailian(records: Iterable[Record], reading: Reading) -> Iterator[Row]:
    """Qwen-Bailian: ``timestamp`` in seconds, and ids of 16 tokens.

    Source: the traces of alibaba-edu/qwen-bailian-usagetraces-anon.
    """
    yield from _rows(records, reading, BAILIAN)


def lookup_hashes(records: Iterable[Record], reading: Reading) -> Iterator[Row]:
    """LMCache's log of looked-up hashes: one for each whole chunk of a prompt.

    Source: LMCache's ``LookupHashLoggingSubscriber`` (pull request 2928).
    """
    reading.notes.assume("outputs", "none: the log has no lengths of answers")
    yield from _rows(records, reading, LMCACHE)


def sessions(records: Iterable[Record], reading: Reading) -> Iterator[Row]:
    """kv-cache-tester: one session per record, with ids of its own.

    Source: callanjfox/kv-cache-tester, and the reader for its files in aiperf 0.13.
    """
    for record in records:
        session = record.object()
        if session.get("hash_id_scope", "local") != "local":
            scope = shown(session["hash_id_scope"])
            raise record.error("hash_id_scope", f"hash_id_scope {scope}", '"local"')
        start_ms = reading.sessions * CONVERSATION_MS
        reading.sessions += 1
        clock = f"t in seconds from the start of a session; sessions begin {CONVERSATION_MS} ms"
        reading.notes.assume("clock", f"{clock} apart")
        requests = list(_requests(record, session))
        size = _declared(record, session, "block_size")
        reader = _Ids(reading, TESTER, [(len(r["hash_ids"]), r["in"], size) for r, _ in requests])
        for request, following in requests:
            named = record.renamed({**request, "block_size": size})
            name = f"{session.get('id')} {request.get('model')}"
            arrival_ms = start_ms + named.milliseconds("t", MS_IN_SECOND)
            encoded = name.encode(errors="backslashreplace")
            row = reader.row(named, arrival_ms, encoded, reading.sessions)
            yield replace(row, tool_ms=_tool_ms(record, request, following))


def _requests(
    record: Record, session: dict[str, Any]
) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
    """The requests of a session, each with the one that follows; those of its agents included."""
    own: list[dict[str, Any]] = []
    of_agents: list[list[dict[str, Any]]] = []
    for request in record.renamed(session).items("requests"):
        inner = request.get("requests") if isinstance(request, dict) else None
        if isinstance(inner, list):
            of_agents.append([_request(record, one) for one in inner])
        else:
            own.append(_request(record, request))
    for requests in (own, *of_agents):
        yield from zip(requests, [*requests[1:], None], strict=True)


def _tool_ms(
    record: Record, request: dict[str, Any], following: dict[str, Any] | None
) -> int | None:
    """The pause of a client after an answer that calls a tool; None after others."""
    if request.get("stop") != "tool_use" or following is None:
        return None
    if following.get("think_time") is None:
        return None
    return record.renamed(following).milliseconds("think_time", MS_IN_SECOND)


def _request(record: Record, request: Any) -> dict[str, Any]:
    if not isinstance(request, dict):
        raise record.error("requests", f"request {shown(request)}", "an object")
    named = record.renamed(request)
    named.integer("in", 1, MAX_NUMBER)
    named.items("hash_ids")
    return request


def _rows(records: Iterable[Record], reading: Reading, names: _Names) -> Iterator[Row]:
    first, records, arrivals = reading.begun(records, names.unit)
    reader = _Ids(reading, names, [_lengths(row, names) for row in first])
    for record in records:
        row = record.object()
        session = reader.session(record, row)
        arrival_ms, _ = arrivals.of(record, (row,), session)
        namespace = row.get(names.namespace)
        found = reader.row(
            record,
            arrival_ms,
            str(namespace).encode(errors="backslashreplace") if namespace else b"",
            _conversation(reading, row) if session is None else session,
        )
        arrivals.ends(session, arrival_ms + answered_ms(found.num_output_tokens))
        yield found


def _conversation(reading: Reading, row: dict[str, Any]) -> Any:
    """What names the session of a row without ``session_id``: the first chat of a conversation."""
    chat, parent = row.get("chat_id"), row.get("parent_chat_id")
    if not isinstance(chat, str | int):
        return None
    first: dict[Any, Any] = reading.carried.setdefault("chats", {})
    found = first.get(parent, chat) if isinstance(parent, str | int) else chat
    first[chat] = found
    return "chat", found


def _lengths(row: dict[str, Any], names: _Names) -> tuple[int, Any, Any]:
    """The number of ids of a row, its tokens, and the tokens of a block."""
    ids = row.get(names.ids)
    length = next((row[name] for name in names.length if name in row), None)
    return len(ids) if isinstance(ids, list) else 0, length, row.get(names.size)


class _Ids:
    """Reads the ids of the rows of a file.

    Args:
        reading: State of the reading.
        names: Names of the fields.
        first: Number of ids, tokens and block size of the first rows, unchecked.
    """

    def __init__(
        self, reading: Reading, names: _Names, first: Iterable[tuple[int, Any, Any]]
    ) -> None:
        self._reading = reading
        self._names = names
        self._parents: dict[Any, tuple[Any, int]] = {}
        self._first_ids: dict[Any, Any] = {}
        self._repeated = False
        if reading.id_size is None:
            reading.id_size = IdSize(names.usual, reading.tokens_per_id, names=names.ids)
            reading.id_size.whole = bool(names.whole) or self._are_whole(first)
        if reading.id_size.whole:
            reading.notes.assume(
                "ids", "of whole blocks alone: the last, incomplete block of a prompt is not shared"
            )

    def _are_whole(self, first: Iterable[tuple[int, Any, Any]]) -> bool:
        """Whether the first row that ends within a block has no id for that block."""
        for count, length, declared in first:
            size = self._reading.tokens_per_id or declared
            if type(size) is int and size > 0 and type(length) is int and length % size:
                return count == length // size
        return False

    def row(self, record: Record, arrival_ms: int, namespace: bytes, session: Any) -> Row:
        """The request of a record, in the session of this name; None for none.

        Raises:
            TraceFormatError: A field is missing or wrong.
        """
        names, reading = self._names, self._reading
        assert reading.id_size is not None
        num_tokens = record.integer(_name_of(record, names.length), 1, MAX_NUMBER)
        name = _name_of(record, names.output)
        num_output_tokens = 0
        if name in record.value and record.value[name] is not None:
            num_output_tokens = record.integer(name, 0, MAX_NUMBER)
        elif names.output:
            reading.notes.assume("outputs", f"0 tokens where a row has no {name}")
        if names.ids not in record.value:
            found = f"no {names.ids}: a prompt of which only the length is known"
            expected = "the ids of its blocks, because hits depend on common prefixes"
            raise record.error("", found, expected)
        ids = record.items(names.ids)
        size = _declared(record, record.value, names.size)
        if size is not None:
            reading.id_size.declare(record, names.size, size)
        order = reading.next_order()
        unnamed = reading.id_size.see(record, len(ids), num_tokens)
        if reading.id_size.whole:
            encoded = reading.ids.encoded_whole(record, names.ids, ids, order if unnamed else None)
        else:
            encoded = reading.ids.encoded(record, names.ids, ids)
        if names.prefixes:
            _check_prefixes(record, names.ids, self._parents)
        return Row(
            arrival_ms=arrival_ms,
            order=order,
            prompt=encoded,
            num_tokens=num_tokens,
            num_output_tokens=num_output_tokens,
            namespace=namespace,
            session=reading.session(session),
        )

    def session(self, record: Record, row: dict[str, Any]) -> Any:
        """The session of a row, whose ids have to be those of a whole prompt.

        Raises:
            TraceFormatError: The row has only what is new in its turn: the block in which the turn
                before it ended has no id, so the turns cannot be joined.
        """
        mode, session = row.get("message_mode"), row.get("session_id")
        if mode is not None and mode not in WHOLE:
            expected = f"rows with whole prompts ({', '.join(WHOLE)})"
            raise record.wrong("message_mode", mode, expected)
        if not isinstance(session, str | int):
            return None
        ids = row.get(self._names.ids)
        first = ids[0] if isinstance(ids, list) and ids else None
        if not isinstance(first, int | str):
            return session
        if session not in self._first_ids:
            if len(self._first_ids) < CHECKED_SESSIONS:
                self._first_ids[session] = first
        elif self._first_ids[session] == first:
            self._repeated = True
        elif not self._repeated and mode is None:
            found = f"a turn of session_id {shown(session)} that shares no id with the one before"
            expected = "whole prompts in each row; leave out session_id if they are whole"
            raise record.error("session_id", found, expected)
        return session


def _name_of(record: Record, names: tuple[str, ...]) -> str:
    """The name that this record uses.

    Raises:
        TraceFormatError: It uses two, with different values.
    """
    found = [name for name in names if record.object().get(name) is not None]
    for other in found[1:]:
        if record.value[other] != record.value[found[0]]:
            values = f"{found[0]} {shown(record.value[found[0]])} and {other} "
            raise record.error(other, values + shown(record.value[other]), "the same number twice")
    return found[0] if found else (names[0] if names else "")


def _declared(record: Record, row: dict[str, Any], name: str) -> int | None:
    if row.get(name) is None:
        return None
    return record.renamed(row).integer(name, 1, MAX_NUMBER)


def _check_prefixes(record: Record, name: str, parents: dict[Any, tuple[Any, int]]) -> None:
    """Refuse an id that followed a different id before: it would mean two different blocks."""
    before = None
    for current in record.value[name]:
        if len(parents) < CHECKED_IDS:
            known, line = parents.setdefault(current, (before, record.line))
        else:
            known, line = parents.get(current, (before, 0))
        if known != before:
            found = f"id {current} {_place(before)} in {name}"
            expected = f"it {_place(known)}, as in line {line}: an id stands for its prefix too"
            raise record.error(name, found, expected)
        before = current


def _place(before: Any) -> str:
    return "first" if before is None else f"after id {before}"
