"""vLLM's log as a trace: lines with the tokens of requests and of their outputs.

vLLM writes them with ``--enable-log-requests`` (``--enable-log-outputs`` for outputs). Depending on
the version, the tokens are on the line ``Received request``, or on ``Request ... details`` at the
debug level; those of outputs on ``Generated response``, or on its ``details``. All other lines are
skipped. A request is known by its id: lines of several processes may alternate.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from blockmgr.lab.formats.log_lines import (
    REPEATED,
    SHORT,
    UNASKED,
    Asked,
    LoggedRequests,
    log_lines,
    without_strings,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from blockmgr.lab.formats.log_lines import LogLine
    from blockmgr.lab.formats.reading import Reading
    from blockmgr.lab.stored import Row

__all__ = ["MARK", "vllm_log"]

MARK: Final = SHORT
"""What the lines of this log have."""

MESSAGE: Final = re.compile(
    r"(?:^|[\]:|-] ?)(Received request|Request|Generated response) (\S+?)"
    r"( \(streaming \w+\))?( details)?: "
)
"""What a line says, before text that users wrote."""

PROMPT: Final = re.compile(r".*\bprompt_token_ids: (\[[^]]*\]|None)(,|\.?$)")
ADAPTER: Final = re.compile(r".*\blora_request: (LoRARequest\(.*?\)|None)")
ADAPTER_NAME: Final = re.compile(r"lora_name='([^']*)'")
SAMPLES: Final = re.compile(r".*\bparams: SamplingParams\(n=(\d{1,4})\b")
OUTPUT: Final = re.compile(r".*\boutput_token_ids: (\[[^]]*\]|None)(?:, finish_reason: |\.?$)")
MOST_PROMPTS: Final = 4096
"""Most prompts of one request whose answers are told apart."""

WITHOUT: Final = "requests without the tokens of their prompts"
UNDESCRIBED: Final = "adapters of requests whose lines are missing"
WAY_ON: Final = (
    "prompt_token_ids in its requests: start vLLM with --enable-log-requests and "
    "VLLM_LOGGING_LEVEL=DEBUG, without --max-log-len"
)


def vllm_log(path: str, lines: Iterable[tuple[int, bytes]], reading: Reading) -> Iterator[Row]:
    """The requests in a log that have tokens.

    Raises:
        TraceFormatError: A request's tokens or its time are broken, or no request has tokens.
    """
    log = _Log(path, reading)
    for whole in log_lines(path, lines):
        said = MESSAGE.search(whole.text)
        if said is None:
            continue
        line = replace(whole, text=without_strings(whole.text, said.end()))
        if said[1] == "Generated response":
            yield from log.answer(line, said)
        else:
            yield from log.request(line, said)
    yield from log.end()


@dataclass(slots=True)
class _Asked(Asked):
    """A request that waits for its answers."""

    samples: int = 1
    answers: list[list[int]] = field(default_factory=list)
    pieces: list[int] = field(default_factory=list)
    streamed: bool = False
    ended: int = 0
    is_described: bool = False

    def answered(self) -> Row:
        if self.samples > 1 and self.streamed:
            # Pieces do not say of which sample they are.
            return self.row([], -(-len(self.pieces) // self.samples))
        return self.row([*self.answers, *([self.pieces] if self.pieces else [])])


class _Log(LoggedRequests[_Asked]):
    def request(self, line: LogLine, said: re.Match[str]) -> Iterator[Row]:
        """Read a line about a request; returns one that it ends."""
        name, text = said[2], line.text
        self.last_line = line.number
        tokens = None
        if "prompt_token_ids: " in text[said.end() :]:
            if self.seen.get(name) == hash(text):
                self.left_out[REPEATED] += 1
                return
            tokens = self._listed(line, "prompt_token_ids", PROMPT, said.end())
            if tokens:
                yield from self._ask(line, name, tokens)
        elif said[4]:
            expected = "prompt_token_ids: and a list of integers"
            raise self.error(line, "Request", "a broken request", expected)
        if said[1] == "Received request":
            self._describe(line, said)

    def _describe(self, line: LogLine, said: re.Match[str]) -> None:
        """Read what a line says besides tokens."""
        adapter = ADAPTER.match(line.text, said.end())
        if adapter is None:
            raise self.error(line, "lora_request", "a broken request", "lora_request: at its end")
        asked = self.waiting.get(said[2])
        if asked is not None:
            called = ADAPTER_NAME.search(said.string, *adapter.span(1))
            samples = SAMPLES.match(line.text, said.end())
            asked.namespace = f"lora {called[1]}".encode() if called else b""
            asked.samples = max(1, int(samples[1])) if samples else 1
            asked.is_described = True
        elif said[2] not in self.seen:
            self.left_out[WITHOUT] += 1

    def _ask(self, line: LogLine, name: str, tokens: list[int]) -> Iterator[Row]:
        before = self.waiting.pop(name, None)  # another request with this id
        if before is not None:
            yield self._row(before)
        order = self._reading.next_order()
        asked = _Asked(self.time_ms(line), order, tokens)
        yield from map(self._row, self.ask(name, asked, hash(line.text)))

    def answer(self, line: LogLine, said: re.Match[str]) -> Iterator[Row]:
        """Read a line about an answer; returns the request if it was the last one."""
        rest = line.text[said.end() :]
        if ("output_token_ids: " if said[4] else "finish_reason: ") not in rest:
            raise self.error(line, "Generated", "a broken answer", "all of it on one line")
        if "output_token_ids: " not in rest:
            return
        name = self._asked_by(said[2])
        if name is None:
            if said[2] not in self.seen:
                self.left_out[UNASKED] += 1
            return
        asked = self.waiting[name]
        tokens = self._listed(line, "output_token_ids", OUTPUT, said.end()) or []
        if said[3] is None:
            asked.answers.append(tokens)
        elif "delta" in said[3]:
            asked.pieces += tokens
            asked.streamed = True
            return
        elif tokens and asked.samples == 1:
            asked.pieces = tokens
        asked.ended += 1
        if asked.ended >= asked.samples:
            yield self._row(self.waiting.pop(name))

    def _row(self, asked: _Asked) -> Row:
        self.left_out[UNDESCRIBED] += not asked.is_described
        return asked.answered()

    def _asked_by(self, name: str) -> str | None:
        """The waiting request of an answer; the server numbers the prompts of one request."""
        if name in self.waiting:
            return name
        for number in range(MOST_PROMPTS):
            if f"{name}-{number}" in self.waiting:
                return f"{name}-{number}"
            if f"{name}-{number}" not in self.seen:
                break
        return None

    def end(self) -> Iterator[Row]:
        """All requests that still wait, and a report of what was left out."""
        for asked in self.waiting.values():
            yield self._row(asked)
        count = self.left_out[WITHOUT]
        self.tell(f"{count:,} {WITHOUT}" if count else "a log of vLLM without requests", WAY_ON)
        self._reading.notes.assume(
            "images and salts", "not logged: prompts are equal if their tokens are"
        )

    def _listed(
        self, line: LogLine, name: str, pattern: re.Pattern[str], start: int
    ) -> list[int] | None:
        """The list of this name."""
        found = pattern.match(line.text, start)
        if found is None:
            expected = f"{name}: and a list of integers, in full (no --max-log-len)"
            raise self.error(line, name, f"broken {name}", expected)
        if found[1] == "None":
            return None
        try:
            values = json.loads(found[1])
        except (ValueError, RecursionError):
            values = [found[1]]
        return self.tokens(line, name, values, name)
