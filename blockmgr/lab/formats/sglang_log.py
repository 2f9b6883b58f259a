"""SGLang's log as a trace: its lines about requests, with the tokens of prompts and outputs.

SGLang writes them with ``--log-requests --log-requests-level 3``, as text or as JSON. A line
``Receive`` has ``input_ids`` if the prompt came as tokens or as chat messages; of other prompts it
has the text alone. All other lines are skipped.

Source: ``srt/utils/request_logger.py`` of SGLang 0.5.23.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from blockmgr.lab.formats.fields import Known
from blockmgr.lab.formats.log_lines import (
    REPEATED,
    STRING,
    UNASKED,
    Asked,
    LoggedRequests,
    LogLine,
    log_lines,
    without_strings,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from blockmgr.lab.formats.reading import Reading
    from blockmgr.lab.stored import Row

__all__ = ["PREFIX", "sglang_log"]

PREFIX: Final = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?(?: [^\]]*)?\] ")
"""What the lines of this log begin with."""

MESSAGE: Final = re.compile(PREFIX.pattern + r'(?:(Receive|Finish): obj=\w+(?=\()|(?=\{"))')
SPLIT: Final = re.compile(r"\[[\d, ]*\]|[\[({]|[\])}]|, ")
ITEM: Final = re.compile(r"'?(\w+)'?(?:=|: )")
EVENTS: Final = {"request.received": "Receive", "request.finished": "Finish"}
IMAGES: Final = ("image_data", "video_data", "audio_data")
FIELDS: Final = {"rid", "input_ids", "session_params", "lora_path", "extra_key", "cache_salt"}
KNOWN: Final = Known(
    f"{' '.join(sorted(FIELDS))} {' '.join(IMAGES)}",
    # What ``input_ids`` were made from.
    "text modalities mm_hashes mm_content_hashes use_audio_in_video video_config lora_id "
    # How to compute, to route, to answer and to log.
    "session_id sampling_params watermark return_logprob logprob_start_len top_logprobs_num "
    "token_ids_logprob return_sampling_mask sampling_logprobs_mode return_text_in_logprobs "
    "return_flat_raw_top_logprobs return_flat_raw_output_top_logprobs "
    "return_flat_raw_top_logprobs_b64 stream log_metrics return_hidden_states "
    "return_routed_experts routed_experts_start_len return_indexer_topk custom_logit_processor "
    "bootstrap_host bootstrap_port bootstrap_room bootstrap_pair_key decode_tp_size "
    "routed_dp_rank data_parallel_rank disagg_prefill_dp_rank routing_key conversation_id "
    "http_worker_ipc background require_reasoning max_thinking_tokens priority no_logs "
    "custom_labels return_bytes return_entropy return_prompt_token_ids external_trace_header "
    "received_time need_wait_for_mm_inputs num_items_assigned is_cross_encoder_request",
)
"""Fields of SGLang's requests."""

HEALTH: Final = "HEALTH_CHECK"
CUT: Final = "..."
WITHOUT: Final = "requests without input_ids"
SESSIONS: Final = "requests that continue a session (session_params)"
HEALTH_CHECKS: Final = "health checks"
WAY_ON: Final = (
    "input_ids in its requests: start SGLang with --log-requests --log-requests-level 3, and ask "
    "for chat completions or send tokens"
)


def sglang_log(path: str, lines: Iterable[tuple[int, bytes]], reading: Reading) -> Iterator[Row]:
    """The requests in a log that have tokens.

    Raises:
        TraceFormatError: A request is broken, or none has tokens.
    """
    log = _Log(path, reading)
    for line in log_lines(path, lines):
        message = MESSAGE.search(line.text)
        if message is None:
            continue
        said = _json(line, message.end()) if message[1] is None else _text(line, message)
        if said is not None:
            yield from log.read(said)
    yield from log.end()


@dataclass(frozen=True, slots=True)
class _Said:
    """What a line says about a request.

    Attributes:
        line: The line, or the time in it.
        kind: ``"Receive"`` or ``"Finish"``.
        request: Fields of the request.
        answer: Fields of the answer.
        is_broken: Whether the end of the line is missing.
    """

    line: LogLine
    kind: str
    request: dict[str, Any]
    answer: dict[str, Any]
    is_broken: bool = False


def _json(line: LogLine, start: int) -> _Said | None:
    """A line in JSON; None if it is about something else."""
    try:
        data = json.loads(line.text[start:])
    except (ValueError, RecursionError):
        is_request = any(f'"{event}"' in line.text for event in EVENTS)
        return _Said(line, "Receive", {}, {}, is_broken=True) if is_request else None
    event = data.get("event") if isinstance(data, dict) else None
    if not isinstance(event, str) or event not in EVENTS:
        return None
    request, answer = data.get("obj"), data.get("out", {})
    if not isinstance(request, dict) or not isinstance(answer, dict):
        return _Said(line, "Receive", {}, {}, is_broken=True)
    timed = LogLine(line.number, str(data.get("timestamp", line.text)), line.framed)
    return _Said(timed, EVENTS[event], request, answer)


def _text(line: LogLine, message: re.Match[str]) -> _Said:
    """A line in text, which looks like Python."""
    text = line.text
    # Prompts may contain anything, so the brackets of a copy without them are counted.
    masked = without_strings(text)
    spans, end = _items(masked, message.end())
    request = _values(text, spans)
    answer: dict[str, Any] = {}
    start = masked.find(", out={", end) if end > 0 else -1
    if start > 0:
        spans, end = _items(masked, start + len(", out="))
        answer = _values(text, spans)
    timed = LogLine(line.number, text[message.start() : message.end()], line.framed)
    return _Said(timed, message[1], request, answer, is_broken=end < 0)


def _items(masked: str, start: int) -> tuple[list[tuple[int, int]], int]:
    """Spans between the commas of the bracket at ``start``; and its end, -1 if it has none."""
    depth, begin = 0, start + 1
    spans = []
    for found in SPLIT.finditer(masked, start):
        piece = found[0]
        if piece == ", ":
            if depth == 1:
                spans.append((begin, found.start()))
                begin = found.end()
        elif piece in ("[", "(", "{"):
            depth += 1
        elif len(piece) == 1:
            depth -= 1
            if depth == 0:
                return [*spans, (begin, found.start())], found.end()
    return spans, -1


def _values(text: str, spans: list[tuple[int, int]]) -> dict[str, Any]:
    """Values by name: read if they are used, else as text."""
    values: dict[str, Any] = {}
    for start, stop in spans:
        item = ITEM.match(text, start, stop)
        if item is None:
            continue
        name, value = item[1], text[item.end() : stop]
        if value != "None":
            is_read = name in FIELDS or name in ("output_ids", "prompt_token_ids")
            values[name] = _value(value) if is_read else value
    return values


def _value(text: str) -> Any:
    if f" {CUT} " in text and text.startswith("["):
        return [CUT]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    if STRING.fullmatch(text):
        return _unquoted(text)
    return [_unquoted(part) for part in STRING.findall(text)] if text.startswith("[") else text


def _unquoted(text: str) -> str:
    """The content of a string; with its quotes if some of it is escaped."""
    return text if "\\" in text else text[1:-1]


class _Log(LoggedRequests[Asked]):
    def read(self, said: _Said) -> Iterator[Row]:
        """Read a line; returns requests that it ends."""
        self.last_line = said.line.number
        if said.is_broken:
            raise self.error(said.line, "", "a broken request", "all of it on one line")
        if said.kind == "Finish":
            yield from self._answer(said)
            return
        rid, ids = said.request.get("rid"), said.request.get("input_ids")
        if said.request.get("session_params"):
            self.left_out[SESSIONS] += 1
        elif not ids:
            is_check = isinstance(rid, str) and rid.startswith(HEALTH)
            self.left_out[HEALTH_CHECKS if is_check else WITHOUT] += 1
        elif isinstance(ids, list) and ids and isinstance(ids[0], list):
            names = rid if isinstance(rid, list) and len(rid) == len(ids) else [None] * len(ids)
            for name, part in zip(names, ids, strict=True):
                yield from self._ask(said, name, part)
        else:
            yield from self._ask(said, rid, ids)

    def _ask(self, said: _Said, rid: Any, ids: Any) -> Iterator[Row]:
        if isinstance(rid, str) and rid.startswith(HEALTH):
            self.left_out[HEALTH_CHECKS] += 1
            return
        name = rid if isinstance(rid, str) else f"line {said.line.number} {len(self.waiting)}"
        if name in self.seen:
            self.left_out[REPEATED] += 1
            return
        tokens = self._tokens(said, "input_ids", ids)
        self._reading.notes.check(said.request, KNOWN)
        arrival_ms = self.time_ms(said.line)
        order = self._reading.next_order()
        asked = Asked(arrival_ms, order, tokens, _namespace(said.request))
        yield from (old.row([]) for old in self.ask(name, asked))

    def _answer(self, said: _Said) -> Iterator[Row]:
        rid = said.request.get("rid")
        asked = self.waiting.pop(rid, None) if isinstance(rid, str) else None
        if asked is not None:
            output = self._tokens(said, "output_ids", said.answer.get("output_ids") or [])
            yield asked.row([output] if output else [])
        elif not isinstance(rid, str) or not (rid in self.seen or rid.startswith(HEALTH)):
            self.left_out[UNASKED] += 1

    def _tokens(self, said: _Said, name: str, values: Any) -> list[int]:
        if isinstance(values, list) and CUT in values:
            found = f"{name} without the tokens in the middle"
            expected = "all tokens: start SGLang with --log-requests-level 3"
            raise self.error(said.line, "", found, expected)
        return self.tokens(said.line, name, values)

    def end(self) -> Iterator[Row]:
        """All requests that still wait, and a report of what was left out."""
        for asked in self.waiting.values():
            yield asked.row([])
        said = [f"{count:,} {what}" for what, count in self.left_out.items()]
        self.tell(", ".join(said) or "a log of SGLang without requests", WAY_ON)
        self._reading.notes.assume("images", "prompts with different ones share nothing")


def _namespace(request: dict[str, Any]) -> bytes:
    """Adapter, salts, and the images of a request, which its tokens do not tell."""
    parts = []
    for name, word in (("lora_path", "lora"), ("extra_key", "key"), ("cache_salt", "salt")):
        if request.get(name):
            parts.append(f"{word} {request[name]}")
    for name in IMAGES:
        if request.get(name):
            seen = json.dumps(request[name], sort_keys=True, default=str)
            parts.append(f"{name} {hashlib.sha256(seen.encode()).hexdigest()[:16]}")
    return " ".join(parts).encode("utf-8", "surrogatepass")
