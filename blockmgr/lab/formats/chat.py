"""Requests as text, which needs a tokenizer: logs of OpenAI's and Anthropic's kind, and ShareGPT.

A log has one request per record, at the top level or in ``body``, ``request`` or ``payload``; an
answer in ``response`` or ``choices``, or as the last message; and a time. The name of the model and
the ``cache_salt`` are the namespace. A prompt of tokens needs no tokenizer.

A record without a time is a conversation: every answer in it is a request with all earlier messages
as its prompt. The pace of conversations is stated, not recorded; see ``times``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from blockmgr.lab.formats.bodies import (
    ANSWER,
    BODIES,
    BODY,
    USAGE,
    Answer,
    Asked,
    answers,
    asked,
)
from blockmgr.lab.formats.fields import Known
from blockmgr.lab.formats.record import MAX_NUMBER, shown
from blockmgr.lab.formats.times import DELAYS, TIMES, TURN_MS, WHOLE, Arrivals, Times, answered_ms
from blockmgr.lab.request import OUTPUT_TOKEN
from blockmgr.lab.stored import Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from blockmgr.lab.formats.bodies import Messages
    from blockmgr.lab.formats.chat_tokens import ChatTokens
    from blockmgr.lab.formats.reading import Reading
    from blockmgr.lab.formats.record import Record

__all__ = ["CONVERSATION", "LOG", "is_request", "openai_log", "sharegpt"]

ROLES: Final = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "bard": "assistant",
    "bing": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "system": "system",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
}
DELTAS: Final = ("delta", "incremental", "append")
LENGTHS: Final = ("output_length", "output_tokens")
MOST_CHARS: Final = 2**28
MOST_UNKNOWN: Final = 2**20
RENDERED: Final = ("tools", "tool_calls", "reasoning_content")

CONVERSATION: Final = Known(
    "system tools", "id", {"conversations": Known("from value", "loss weight")}
)
LOG: Final = BODY.with_more(
    " ".join(("session_id message_mode custom_id method url id", *TIMES, *DELAYS, *LENGTHS)),
    {
        **dict.fromkeys(BODIES, BODY),
        **{name: ANSWER.within[name] for name in ("choices",)},
        "usage": USAGE,
        "response": ANSWER.with_more("request_id", {"body": ANSWER}),
    },
)


def is_request(row: dict[str, Any]) -> bool:
    """Whether a row has a prompt as text, tokens or messages."""
    places = [row, *(row[name] for name in BODIES if isinstance(row.get(name), dict))]
    return any(name in one for one in places for name in ("messages", "prompt", "text_input")) or (
        any("input" in one for one in places[1:]) or {"input", "model"} <= row.keys()
    )


def sharegpt(records: Iterable[Record], reading: Reading) -> Iterator[Row]:
    """ShareGPT: ``conversations`` with ``from`` and ``value``, one request for each answer.

    Answers before the first question are left out, and so are conversations without an answer.
    """
    arrivals = Arrivals(reading.clock, Times("seconds"), reading.notes)
    for record in records:
        row = record.object()
        messages: Messages = []
        if isinstance(row.get("system"), str) and row["system"]:
            messages.append({"role": "system", "content": row["system"]})
        for turn in record.items("conversations"):
            role = ROLES.get(str(turn.get("from"))) if isinstance(turn, dict) else None
            if role is None or not isinstance(turn.get("value"), str):
                expected = f"from one of {', '.join(ROLES)}, and a text as value"
                raise record.error("conversations", f"turn {shown(turn)}", expected)
            if any(one["role"] != "system" for one in messages) or role != "assistant":
                messages.append({"role": role, "content": turn["value"]})
            else:
                reading.notes.leave_out("answers before a question")
        start_ms, _ = arrivals.of(record, ({},))
        prompt = Asked(messages=messages, tools=_listed_tools(record, row.get("tools")))
        yield from _turns(_Texts(record, reading, b"", None), prompt, start_ms)


def openai_log(records: Iterable[Record], reading: Reading) -> Iterator[Row]:
    """Requests in OpenAI's or Anthropic's format, with their answers if there are any."""
    _, records, arrivals = reading.begun(records, "seconds")
    joined = _Joined()
    for record in records:
        row = record.object()
        answer = answers(record, reading)
        body, prompts = asked(record, reading)
        session = row.get("session_id")
        session = session if isinstance(session, str | int) else None
        arrival_ms, timed = arrivals.of(record, (row, answer.body), session)
        texts = _Texts(record, reading, _namespace(body), session)
        last = prompts[0].messages[-1:]
        if not answer.messages and last and last[0]["role"] == "assistant":
            if not timed and session is None:
                yield from _turns(texts, prompts[0], arrival_ms)
                continue
            answer.messages = [prompts[0].messages.pop()]
        joined.join(record, row, session, prompts[0], answer)
        counted = _counted(record, row, answer)
        for number, prompt in enumerate(prompts):
            share = len(answer.messages) // len(prompts)
            said = answer.messages[number * share : (number + 1) * share]
            found = texts.row(prompt, said, arrival_ms, counted if len(prompts) == 1 else (None, 0))
            arrivals.ends(session, arrival_ms + answered_ms(found.num_output_tokens))
            yield found


def _turns(texts: _Texts, prompt: Asked, start_ms: int) -> Iterator[Row]:
    """A request for every answer of a conversation, which is a session."""
    texts.name_session()
    messages = prompt.messages
    for place, message in enumerate(messages):
        if place and message["role"] == "assistant":
            before = Asked(messages=messages[:place], tools=prompt.tools)
            row = texts.row(before, [message], start_ms, (None, 0))
            yield row
            start_ms += answered_ms(row.num_output_tokens) + TURN_MS


class _Joined:
    """Joins rows that have only what is new in their turn of a session."""

    def __init__(self) -> None:
        self._said: dict[Any, tuple[Messages, bool]] = {}
        self._chars = 0

    def join(
        self, record: Record, row: dict[str, Any], session: Any, prompt: Asked, answer: Answer
    ) -> None:
        """Put the messages of earlier turns in front, if the row has a delta.

        Raises:
            TraceFormatError: ``message_mode`` is unknown, a delta has no session, or all sessions
                are too long to keep.
        """
        mode = row.get("message_mode")
        if mode is None or mode in WHOLE:
            return
        if mode not in DELTAS:
            expected = f"one of {', '.join((*WHOLE, *DELTAS))}"
            raise record.wrong("message_mode", mode, expected)
        if session is None or not prompt.messages:
            found = "a delta without session_id and messages"
            raise record.error("message_mode", found, "both, so that turns can be joined")
        before, answered = self._said.get(session, ([], False))
        if answered and prompt.messages[0]["role"] == "assistant":
            before = before[:-1]  # the answer is in the log twice
        self._chars += record.num_chars
        if self._chars > MOST_CHARS:
            found = f"more than {MOST_CHARS} characters of deltas"
            raise record.error("message_mode", found, "rows with whole prompts")
        prompt.messages = [*before, *prompt.messages]
        said = answer.messages[:1]
        self._said[session] = ([*prompt.messages, *said], bool(said))


class _Texts:
    """Makes requests of the texts in a record."""

    def __init__(self, record: Record, reading: Reading, namespace: bytes, session: Any) -> None:
        self._record = record
        self._reading = reading
        self._namespace = namespace
        self._session = reading.session(session)

    def name_session(self) -> None:
        """Gives a conversation without a name a number of its own."""
        self._session = self._session or self._reading.session(("conversation", object()))

    def row(
        self, prompt: Asked, said: Messages, arrival_ms: int, counted: tuple[int | None, int]
    ) -> Row:
        """The request with this prompt.

        Args:
            prompt: What was asked.
            said: The answers.
            arrival_ms: When it came.
            counted: Tokens of the answer that the server counted, and how many of them are hidden.

        Raises:
            TraceFormatError: The tokenizer refuses a text, or the prompt is empty.
        """
        if not prompt.messages and prompt.text is None and prompt.tokens is None:
            found = "no message before the answer"
            raise self._record.error("messages", found, "one at least")
        try:
            tokens = self._prompt(prompt)
            outputs = [self._answer(message) for message in said]
        except _TextError as error:
            found = f"a conversation ({error})"
            raise self._record.error("messages", found, "what it accepts") from None
        if not tokens:
            raise self._record.error("", "an empty prompt", "at least 1 token")
        order = self._reading.next_order()
        outputs, num_output_tokens = self._fitted(outputs, order, *counted)
        return Row(
            arrival_ms=arrival_ms,
            order=order,
            prompt=tokens,
            num_output_tokens=num_output_tokens,
            outputs=outputs,
            namespace=self._namespace,
            session=self._session,
        )

    def _prompt(self, prompt: Asked) -> list[int]:
        if prompt.tokens is not None:
            return prompt.tokens
        chat = _chat(self._reading)
        notes = self._reading.notes
        if prompt.text is not None:
            notes.assume("template", "none for prompts that are one text")
            return _accepted(chat.text, prompt.text)
        if chat.template is None:
            notes.assume("template", "none: the contents of messages, joined by line breaks")
        else:
            there = {name for message in prompt.messages for name in message}
            there |= {"tools"} if prompt.tools else set()
            for name in RENDERED:
                if name in there and name not in chat.template:
                    notes.assume("template", f"the model's, which does not use {name}")
            notes.assume("template", "the model's")
        return _accepted(chat.prompt, prompt.messages, prompt.tools)

    def _answer(self, message: dict[str, Any]) -> list[int]:
        calls = message.get("tool_calls", [])
        if calls or message.get("reasoning_content"):
            self._reading.notes.assume("outputs", "thoughts, text and calls one after another")
        called = "".join(json.dumps(call["function"], ensure_ascii=False) for call in calls)
        text = message.get("reasoning_content", "") + message["content"] + called
        return _accepted(_chat(self._reading).text, text) if text else []

    def _fitted(
        self, outputs: list[list[int]], order: int, counted: int | None, hidden: int
    ) -> tuple[list[list[int]], int]:
        """The outputs and their length, as the server counted it if it did.

        Hidden thoughts come first; other tokens that the text lacks, such as its end, come last.
        """
        longest = max(map(len, outputs), default=0)
        if counted is None:
            return outputs, longest
        if len(outputs) > 1:
            self._reading.notes.assume("output lengths", "of the text where there are several")
            return outputs, longest
        self._reading.notes.assume("output lengths", "as the server counted them")
        if not outputs or counted - longest > MOST_UNKNOWN:
            return [], counted
        unknown = [OUTPUT_TOKEN | order % OUTPUT_TOKEN] * max(0, counted - longest)
        before = min(hidden, len(unknown))
        return [(unknown[:before] + outputs[0] + unknown[before:])[:counted]], counted


class _TextError(ValueError):
    """A tokenizer refuses a text."""


def _accepted(convert: Any, *texts: Any) -> list[int]:
    try:
        tokens: list[int] = convert(*texts)
    except ValueError as error:
        raise _TextError(str(error)) from None
    return tokens


def _chat(reading: Reading) -> ChatTokens:
    if reading.chat is None:
        raise ValueError(
            "tokenizer (--tokenizer) must be a folder with the model's tokenizer: this trace holds "
            "text, and hits are counted in tokens"
        )
    return reading.chat


def _namespace(body: dict[str, Any]) -> bytes:
    names = [body[name] for name in ("model", "cache_salt") if isinstance(body.get(name), str)]
    return " ".join(names).encode(errors="backslashreplace")


def _counted(record: Record, row: dict[str, Any], answer: Answer) -> tuple[int | None, int]:
    """Tokens of the answer by its usage, or by the row if it has no answer."""
    if answer.num_tokens is None and not answer.messages:
        for name in LENGTHS:
            if row.get(name) is not None:
                return record.integer(name, 0, MAX_NUMBER), 0
    thoughts = any(message.get("reasoning_content") for message in answer.messages)
    return answer.num_tokens, 0 if thoughts else answer.num_hidden


def _listed_tools(record: Record, tools: Any) -> Any:
    if isinstance(tools, str):
        try:
            tools = json.loads(tools) if tools.strip() else None
        except (ValueError, RecursionError):
            raise record.wrong("tools", tools, "a list as JSON") from None
    if tools is not None and not isinstance(tools, list):
        raise record.wrong("tools", tools, "a list")
    return tools or None
