"""vLLM's log as a trace: lines with the tokens of requests and of their outputs.

vLLM writes them with ``--enable-log-requests`` (``--enable-log-outputs`` for outputs). Depending on
the version, the tokens are on the line ``Received request``, or on ``Request ... details`` at the
debug level. All other lines are skipped. Times have no year, so a log of more than a year is
refused at the point where its clock goes back.
"""

from __future__ import annotations

import json
import re
from calendar import timegm
from dataclasses import replace
from time import strptime
from typing import TYPE_CHECKING, Final

from blockmgr.errors import TraceFormatError
from blockmgr.lab.formats.record import MAX_TOKEN, shown
from blockmgr.lab.stored import Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from blockmgr.lab.formats.reading import Reading

__all__ = ["is_vllm_log", "vllm_log"]

MARK: Final = re.compile(r"\b(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d\b")
CLOCK: Final = re.compile(r"\b(\d\d-\d\d \d\d:\d\d:\d\d)(?:\.(\d{1,6}))?\b")
ASKED: Final = re.compile(r"(?:Received request|Request) (\S+?)(?: details)?: ")
PROMPT: Final = re.compile(r".*\bprompt_token_ids: (\[[^]]*\]|None)(,|\.?$)")
ADAPTER: Final = re.compile(r".*\blora_request: (LoRARequest\(.*?\)|None)")
ADAPTER_NAME: Final = re.compile(r"lora_name='([^']*)'")
ANSWERED: Final = re.compile(r"Generated response (\S+?)( \(streaming \w+\))?: ")
OUTPUT: Final = re.compile(r".*\boutput_token_ids: (\[[^]]*\]|None), finish_reason: ")
MS_IN_SECOND: Final = 1000
UNANSWERED: Final = 8192
"""Most requests that wait for the line of their output; the oldest continues without it."""


def is_vllm_log(head: str) -> bool:
    """Whether a file with these first bytes is a log of vLLM."""
    return MARK.search(head) is not None


def vllm_log(path: str, lines: Iterable[tuple[int, bytes]], reading: Reading) -> Iterator[Row]:
    """The requests in a log that have tokens.

    Raises:
        TraceFormatError: A request's tokens or its time are missing or broken.
    """
    waiting: dict[str, Row] = {}
    for number, raw in lines:
        text = raw.decode("utf-8", "replace").rstrip("\r\n")
        line = _Line(path, number, text)
        if (asked := ASKED.search(text)) and "prompt_token_ids: " in text:
            waiting[asked[1]] = line.request(asked.end(), reading)
            if len(waiting) > UNANSWERED:
                yield waiting.pop(next(iter(waiting)))
        elif answered := ANSWERED.search(text):
            # The server appends a number to the id of each prompt of a request.
            name = next((n for n in (answered[1], f"{answered[1]}-0") if n in waiting), None)
            if name is not None:
                tokens = line.tokens("output_token_ids", OUTPUT, answered.end())
                before = waiting[name]
                output = [*(before.outputs[0] if before.outputs else ()), *(tokens or ())]
                if output:
                    row = replace(before, outputs=[output], num_output_tokens=len(output))
                    waiting[name] = row
                if "delta" not in (answered[2] or ""):
                    yield waiting.pop(name)
    yield from waiting.values()


class _Line:
    def __init__(self, path: str, number: int, text: str) -> None:
        self._path = path
        self._number = number
        self._text = text

    def request(self, start: int, reading: Reading) -> Row:
        """The request on this line, whose message continues at ``start``."""
        tokens = self.tokens("prompt_token_ids", PROMPT, start)
        if not tokens:
            raise self._error("prompt_token_ids", "no prompt_token_ids", "the tokens of the prompt")
        adapter = ADAPTER.match(self._text, start)
        name = ADAPTER_NAME.search(adapter[1]) if adapter else None
        return Row(
            arrival_ms=self._time_ms(reading),
            order=reading.next_order(),
            prompt=tokens,
            num_tokens=None,
            num_output_tokens=0,
            namespace=f"lora {name[1]}".encode() if name else b"",
        )

    def tokens(self, name: str, pattern: re.Pattern[str], start: int) -> list[int] | None:
        """The last list of this name: earlier text may be part of a prompt."""
        found = pattern.match(self._text, start)
        if found is None:
            expected = f"{name}: and a list of integers, in full (no --max-log-len)"
            raise self._error(name, f"broken {name}", expected)
        if found[1] == "None":
            return None
        try:
            values = json.loads(found[1])
        except json.JSONDecodeError:
            values = [found[1]]
        for value in values:
            if type(value) is not int or not 0 <= value <= MAX_TOKEN:
                expected = f"integers in [0, {MAX_TOKEN}]"
                raise self._error(name, f"{shown(value)} in {name}", expected)
        tokens: list[int] = values
        return tokens

    def _time_ms(self, reading: Reading) -> int:
        clock = CLOCK.search(self._text)
        if clock is None:
            raise self._error("", "no time", "one such as 11-22 15:04:05 before the message")
        try:
            # A leap year, so that 29 February is valid.
            seconds = timegm(strptime(f"2000-{clock[1]}", "%Y-%m-%d %H:%M:%S"))
        except ValueError:
            raise self._error(clock[1], f"time {clock[1]}", "a month, day and time") from None
        fraction = int(f"{clock[2] or '0':0<6}") // 1000
        time_ms = (seconds - timegm((2000, 1, 1, 0, 0, 0))) * MS_IN_SECOND + fraction
        expected = reading.clock.check(time_ms)
        if expected is not None:
            raise self._error(clock[1], f"time {clock[1]} ({time_ms} ms)", expected)
        return time_ms

    def _error(self, name: str, found: str, expected: str) -> TraceFormatError:
        column = max(0, self._text.find(name)) + 1
        return TraceFormatError(self._path, self._number, column, found, expected)
