"""Conversations as text: OpenAI-style logs, and ShareGPT. They need a tokenizer.

A log has one request per record: ``messages``, at the top level or in ``body`` or ``request``; an
answer in ``response`` or ``choices``, or as the last message; and a time in ``timestamp``,
``created_at`` or ``created`` of the record or its answer, in seconds, in milliseconds if the
number is large, or as an ISO date. The name of the model is the namespace.

A record without a time is a conversation: every answer in it is a request with all earlier messages
as its prompt. Conversations then begin ``CONVERSATION_MS`` apart, and a turn arrives ``TURN_MS``
after the previous answer, at the pace of a replay. These times are a model, not a recording.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from blockmgr.lab.formats.fields import Known
from blockmgr.lab.formats.record import shown
from blockmgr.lab.stored import Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from blockmgr.lab.formats.chat_tokens import ChatTokens
    from blockmgr.lab.formats.reading import Reading
    from blockmgr.lab.formats.record import Record

__all__ = ["CONVERSATION", "CONVERSATION_MS", "LOG", "TURN_MS", "openai_log", "sharegpt"]

CONVERSATION_MS: Final = 1000
TURN_MS: Final = 10_000
MS_PER_OUTPUT_TOKEN: Final = 30
TIMES: Final = ("timestamp", "created_at", "created")
LARGEST_SECONDS: Final = 10**11  # larger numbers are milliseconds
MS_IN_SECOND: Final = 1000
ROLES: Final = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "bard": "assistant",
    "bing": "assistant",
    "model": "assistant",
    "system": "system",
    "tool": "tool",
    "function": "tool",
}

CONVERSATION: Final = Known("conversations", "id", {"conversations": Known("from value")})
MESSAGE: Final = Known("role content", "", {"content": Known("text", "type")})
ANSWER: Final = Known("choices created created_at timestamp", "id object model")
BODY: Final = Known("messages model tools", "", {"messages": MESSAGE})
LOG: Final = BODY.with_more(
    "custom_id timestamp created created_at choices",
    {"body": BODY, "request": BODY, "response": ANSWER.with_more("status_code", {"body": ANSWER})},
)

Messages = list[dict[str, Any]]


def sharegpt(records: Iterable[Record], reading: Reading) -> Iterator[Row]:
    """ShareGPT: ``conversations`` with ``from`` and ``value``, one request for each answer.

    Answers before the first question are left out, and so are conversations without an answer.
    """
    for number, record in enumerate(records):
        messages: Messages = []
        for turn in record.items("conversations"):
            role = ROLES.get(str(turn.get("from"))) if isinstance(turn, dict) else None
            if role is None or not isinstance(turn.get("value"), str):
                expected = f"from one of {', '.join(ROLES)}, and a text as value"
                raise record.error("conversations", f"turn {shown(turn)}", expected)
            if messages or role != "assistant":
                messages.append({"role": role, "content": turn["value"]})
        yield from _turns(record, reading, messages, number * CONVERSATION_MS, b"")


def openai_log(records: Iterable[Record], reading: Reading) -> Iterator[Row]:
    """Requests in OpenAI's format, with their answers if there are any."""
    timed: bool | None = None
    for number, record in enumerate(records):
        body = _body(record)
        answers = _answers(record)
        time_ms = _time_ms(record, reading)
        if timed is None:
            timed = time_ms is not None
        if timed != (time_ms is not None):
            found = "a time" if time_ms is not None else "no time"
            raise record.error("", found, "a time in every record, or in none")
        messages = _messages(record, body)
        model = body.get("model")
        namespace = model.encode() if isinstance(model, str) else b""
        arrival_ms = number * CONVERSATION_MS if time_ms is None else time_ms
        if not answers and messages[-1]["role"] == "assistant":
            if time_ms is None:
                yield from _turns(record, reading, messages, arrival_ms, namespace)
                continue
            answers = [messages.pop()["content"]]
        if not messages:
            raise record.error("messages", "no message before the answer", "one at least")
        tools = body.get("tools")
        yield _row(
            record,
            reading,
            messages,
            answers,
            arrival_ms=arrival_ms,
            namespace=namespace,
            tools=tools,
        )


def _turns(
    record: Record, reading: Reading, messages: Messages, start_ms: int, namespace: bytes
) -> Iterator[Row]:
    """A request for every answer of a conversation."""
    for place, message in enumerate(messages):
        if place and message["role"] == "assistant":
            answers = [message["content"]]
            asked = messages[:place]
            row = _row(record, reading, asked, answers, arrival_ms=start_ms, namespace=namespace)
            yield row
            start_ms += MS_PER_OUTPUT_TOKEN * row.num_output_tokens + TURN_MS


def _row(
    record: Record,
    reading: Reading,
    messages: Messages,
    answers: list[str],
    *,
    arrival_ms: int,
    namespace: bytes,
    tools: Any = None,
) -> Row:
    chat = _chat(reading)
    try:
        prompt = chat.prompt(messages, tools)
    except ValueError as error:
        raise record.error("messages", f"a conversation ({error})", "what it accepts") from None
    if not prompt:
        raise record.error("", "an empty prompt", "at least 1 token")
    outputs = [chat.text(answer) for answer in answers]
    return Row(
        arrival_ms=arrival_ms,
        order=reading.next_order(),
        prompt=prompt,
        num_tokens=None,
        num_output_tokens=max(map(len, outputs), default=0),
        outputs=outputs,
        namespace=namespace,
    )


def _chat(reading: Reading) -> ChatTokens:
    if reading.chat is None:
        raise ValueError(
            "tokenizer (--tokenizer) must be a folder with the model's tokenizer: this trace holds "
            "text, and hits are counted in tokens"
        )
    return reading.chat


def _body(record: Record) -> dict[str, Any]:
    """The part of a record with the messages."""
    value = record.object()
    for name in ("body", "request"):
        if isinstance(value.get(name), dict) and "messages" in value[name]:
            return dict(value[name])
    record.items("messages")
    return value


def _messages(record: Record, body: dict[str, Any]) -> Messages:
    messages = body["messages"]
    if not isinstance(messages, list) or not messages:
        raise record.error("messages", f"messages {shown(messages)}", "a list, not empty")
    found = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise record.error("messages", f"message {shown(message)}", "an object with a role")
        found.append({**message, "content": _text(record, message.get("content"))})
    return found


def _text(record: Record, content: Any) -> str:
    """The text of a message: a text, several text parts, or nothing besides tool calls."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise record.error("content", f"content {shown(content)}", "text")
    return "".join(map(str, texts))


def _answer(record: Record) -> Any:
    """The answer in a record, without wrappers of some logs; None if there is none."""
    value = record.object()
    answer = value.get("response", value if "choices" in value else None)
    if isinstance(answer, dict) and isinstance(answer.get("body"), dict):
        return answer["body"]
    return answer


def _answers(record: Record) -> list[str]:
    answer = _answer(record)
    if answer is None:
        return []
    if isinstance(answer, str):
        return [answer]
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list):
        raise record.error("response", f"response {shown(answer)}", "a text, or choices")
    texts = []
    for choice in choices:
        message = choice.get("message") if isinstance(choice, dict) else None
        if not isinstance(message, dict):
            raise record.error("choices", f"choice {shown(choice)}", "one with a message")
        texts.append(_text(record, message.get("content")))
    return texts


def _time_ms(record: Record, reading: Reading) -> int | None:
    answer = _answer(record)
    for value in (record.object(), answer if isinstance(answer, dict) else {}):
        for name in TIMES:
            if value.get(name) is not None:
                time_ms = _parsed_ms(value[name])
                if time_ms is None:
                    expected = "seconds, milliseconds or an ISO date"
                    raise record.error(name, f"{name} {shown(value[name])}", expected)
                if (late := reading.clock.check(time_ms)) is not None:
                    raise record.error(name, f"{name} {shown(value[name])}", late)
                return time_ms
    return None


def _parsed_ms(value: Any) -> int | None:
    if isinstance(value, str):
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            return None
        aware = time if time.tzinfo else time.replace(tzinfo=UTC)
        value = aware.timestamp()
    if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
        return None
    milliseconds = value if value >= LARGEST_SECONDS else value * MS_IN_SECOND
    return math.floor(round(float(milliseconds), 3))
