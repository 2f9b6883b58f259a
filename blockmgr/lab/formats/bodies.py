"""Bodies of requests and of answers: chat completions, completions, responses, Anthropic messages.

All become messages as chat templates take them: a role, a text, thoughts as ``reasoning_content``
and calls as ``tool_calls``. A system prompt and tools beside the messages belong to the prompt.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from blockmgr.lab.formats.fields import Known
from blockmgr.lab.formats.record import MAX_NUMBER, shown

if TYPE_CHECKING:
    from blockmgr.lab.formats.reading import Reading
    from blockmgr.lab.formats.record import Record

__all__ = ["ANSWER", "BODIES", "BODY", "USAGE", "Answer", "Asked", "Messages", "answers", "asked"]

Messages = list[dict[str, Any]]

BODIES: Final = ("body", "request", "payload")
"""Fields of a row that may hold the body of a request."""

TEXTS: Final = ("prompt", "text_input")
PROMPTS: Final = ("messages", *TEXTS, "input")
TEXT_PARTS: Final = (
    *("text", "input_text", "output_text", "summary_text", "reasoning_text", "refusal"),
)
THOUGHTS: Final = ("reasoning_content", "reasoning", "thinking")

PART: Final = Known(
    "type text refusal thinking id name input tool_use_id content summary",
    "cache_control signature annotations citations is_error logprobs",
)
CALL: Final = Known("function type id", "index", {"function": Known("name arguments")})
MESSAGE: Final = Known(
    "role type name arguments call_id output tool_call_id summary refusal " + " ".join(THOUGHTS),
    "id status annotations audio function_call",
    {"content": PART, "tool_calls": CALL},
)
TOKENS: Final = Known("completion_tokens output_tokens", "total_tokens prompt_tokens input_tokens")
USAGE: Final = TOKENS.with_more(
    "prompt_tokens_details input_tokens_details cache_creation_input_tokens cache_creation "
    "cache_read_input_tokens service_tier server_tool_use inference_geo",
    {
        "completion_tokens_details": Known(
            "reasoning_tokens", "audio_tokens accepted_prediction_tokens rejected_prediction_tokens"
        ),
        "output_tokens_details": Known("reasoning_tokens"),
    },
)
SAMPLING: Final = (
    "temperature top_p top_k min_p max_tokens max_completion_tokens max_output_tokens stream "
    "stream_options stop stop_sequences stop_token_ids n seed user metadata presence_penalty "
    "frequency_penalty repetition_penalty logit_bias logprobs top_logprobs parallel_tool_calls "
    "tool_choice response_format store service_tier ignore_eos min_tokens best_of echo priority "
    "prompt_cache_key prompt_cache_retention safety_identifier include truncation betas"
)
BODY: Final = Known(
    f"model cache_salt tools system instructions {' '.join(TEXTS)}",
    SAMPLING,
    {"messages": MESSAGE, "input": MESSAGE},
)
CHOICE: Final = Known("text", "index finish_reason stop_reason logprobs", {"message": MESSAGE})
ANSWER: Final = Known(
    "role error created created_at timestamp",
    "id object type model status status_code system_fingerprint service_tier stop_reason "
    "stop_sequence prompt_logprobs kv_transfer_params request_id completed_at incomplete_details "
    "instructions max_output_tokens parallel_tool_calls previous_response_id temperature top_p "
    "tool_choice tools truncation metadata reasoning text store user background",
    {"choices": CHOICE, "usage": USAGE, "output": MESSAGE, "content": PART},
)


@dataclass(slots=True, kw_only=True)
class Asked:
    """A prompt: messages, a text or tokens."""

    messages: Messages = field(default_factory=list)
    text: str | None = None
    tokens: list[int] | None = None
    tools: Any = None


@dataclass(slots=True, kw_only=True)
class Answer:
    """What a record knows of the answers to its prompt.

    Attributes:
        body: The object that holds them.
        messages: One message for each answer.
        num_tokens: Length of the answer that was counted by the server; None if unknown.
        num_hidden: Tokens of it that are thoughts whose text is not in the record.
    """

    body: dict[str, Any] = field(default_factory=dict)
    messages: Messages = field(default_factory=list)
    num_tokens: int | None = None
    num_hidden: int = 0


def asked(record: Record, reading: Reading) -> tuple[dict[str, Any], list[Asked]]:
    """The body of the request in a record, and its prompts.

    Raises:
        TraceFormatError: It has none, or one that is not text.
    """
    row = record.object()
    bodies = [row, *(row[name] for name in BODIES if isinstance(row.get(name), dict))]
    found = ((one, [name for name in PROMPTS if one.get(name) is not None]) for one in bodies)
    body, names = next((each for each in found if each[1]), (row, []))
    if not names:
        expected = f"a prompt in {', '.join(PROMPTS)}"
        raise record.error("", "no prompt", expected)
    used, *others = names
    for other in others:
        reading.notes.not_read(other)
    if used in TEXTS:
        for name in ("system", "instructions", "tools"):
            if body.get(name) is not None or row.get(name) is not None:
                reading.notes.not_read(f"{name} beside {used}")
        return body, _prompts(record, used, body[used])
    listed = body[used]
    if used == "input" and isinstance(listed, str):
        listed = [{"role": "user", "content": listed}]
    if not isinstance(listed, list) or not listed:
        raise record.wrong(used, listed, "a list, not empty")
    messages = _system(record, row, body)
    for item in listed:
        messages += normal(record, reading, used, item)
    tools = body["tools"] if body.get("tools") is not None else row.get("tools")
    return body, [Asked(messages=messages, tools=_tools(record, tools))]


def answers(record: Record, reading: Reading) -> Answer:
    """The answers in a record.

    Raises:
        TraceFormatError: They are neither texts nor messages.
    """
    row = record.object()
    body = row.get("response", row if "choices" in row else None)
    if isinstance(body, dict) and isinstance(body.get("body"), dict):
        body = body["body"]
    counts = body.get("usage") if isinstance(body, dict) else None
    found = _answer_messages(record, reading, body)
    num_tokens, num_hidden = _usage(record, row.get("usage") if counts is None else counts)
    return Answer(
        body=body if isinstance(body, dict) and body is not row else {},
        messages=found,
        num_tokens=num_tokens,
        num_hidden=num_hidden,
    )


def _answer_messages(record: Record, reading: Reading, body: Any) -> Messages:
    if body is None:
        return []
    if isinstance(body, str):
        return [{"role": "assistant", "content": body}]
    if not isinstance(body, dict):
        raise record.wrong("response", body, "a text, or choices")
    if isinstance(body.get("choices"), list):
        return [_choice(record, reading, choice) for choice in body["choices"]]
    for name in ("output", "content"):
        parts = body.get(name)
        if isinstance(parts, list | str):
            as_items = name == "output" and isinstance(parts, list)
            items = parts if as_items else [{"role": "assistant", "content": parts}]
            said = [one for item in items for one in normal(record, reading, name, item)]
            return [_joined(said)] if said else []
    if body.get("error") is not None:
        reading.notes.leave_out("answers that are errors")
        return []
    raise record.wrong("response", body, "a text, or choices")


def _choice(record: Record, reading: Reading, choice: Any) -> dict[str, Any]:
    if isinstance(choice, dict):
        if isinstance(choice.get("message"), dict):
            return _joined(
                normal(record, reading, "choices", {"role": "assistant", **choice["message"]})
            )
        if isinstance(choice.get("text"), str):
            return {"role": "assistant", "content": choice["text"]}
    raise record.error("choices", f"choice {shown(choice)}", "one with a message or a text")


def _joined(messages: Messages) -> dict[str, Any]:
    """Several messages of one answer as one."""
    whole: dict[str, Any] = {"role": "assistant", "content": ""}
    for message in messages:
        whole["content"] += message["content"]
        for name, empty in (("reasoning_content", ""), ("tool_calls", [])):
            if message.get(name):
                whole[name] = whole.get(name, empty) + message[name]
    return whole


def _usage(record: Record, usage: Any) -> tuple[int | None, int]:
    """Tokens of the answers, and how many of them are thoughts, as the server counted them."""
    if not isinstance(usage, dict):
        return None, 0
    counted = record.renamed(usage)
    for name in ("completion_tokens", "output_tokens"):
        if usage.get(name) is not None:
            num_tokens = counted.integer(name, 0, MAX_NUMBER)
            details = usage.get(f"{name}_details")
            hidden = details.get("reasoning_tokens") if isinstance(details, dict) else None
            if hidden is None:
                return num_tokens, 0
            inner = record.renamed({"reasoning_tokens": hidden})
            return num_tokens, min(num_tokens, inner.integer("reasoning_tokens", 0, MAX_NUMBER))
    return None, 0


def _prompts(record: Record, name: str, value: Any) -> list[Asked]:
    """The prompts of a body of completions: a text, tokens, or a list of either."""
    if isinstance(value, str):
        return [Asked(text=value)]
    if isinstance(value, list) and value:
        if all(isinstance(one, str) for one in value):
            return [Asked(text=one) for one in value]
        if all(isinstance(one, list) for one in value):
            return [Asked(tokens=record.tokens(name, one)) for one in value]
        return [Asked(tokens=record.tokens(name, value))]
    raise record.wrong(name, value, "a text, or tokens")


def _system(record: Record, row: dict[str, Any], body: dict[str, Any]) -> Messages:
    """The system prompt beside the messages."""
    for place in (body, row):
        for name in ("system", "instructions"):
            if place.get(name) is not None:
                content = text_of(record, name, place[name])
                return [{"role": "system", "content": content}]
    return []


def _tools(record: Record, tools: Any) -> Any:
    """Tools as chat templates take them."""
    if tools is None:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise record.wrong("tools", tools, "a list of objects")
    found = []
    for tool in tools:
        if isinstance(tool.get("function"), dict):
            found.append(tool)
            continue
        about = {key: tool[key] for key in ("name", "description") if key in tool}
        schema = tool.get("parameters", tool.get("input_schema"))
        if schema is not None:
            about["parameters"] = schema
        found.append({"type": "function", "function": about or tool})
    return found


def _function_call(record: Record, item: dict[str, Any]) -> dict[str, Any]:
    call = {"name": item.get("name"), "arguments": item.get("arguments")}
    return _said("assistant", "", calls=[_call(record, {"function": call})])


def _function_call_output(record: Record, item: dict[str, Any]) -> dict[str, Any]:
    return {"role": "tool", "content": text_of(record, "output", item.get("output"))}


def _reasoning(record: Record, item: dict[str, Any]) -> dict[str, Any]:
    parts = item.get("content") or item.get("summary")
    return _said("assistant", "", thoughts=text_of(record, "summary", parts))


RESPONSE_ITEMS: Final = {
    "function_call": _function_call,
    "function_call_output": _function_call_output,
    "reasoning": _reasoning,
}
"""Items of a response that are no messages, by type."""


def normal(record: Record, reading: Reading, field_name: str, item: Any) -> Messages:
    """A message, or an item of a response, as messages for a chat template.

    Raises:
        TraceFormatError: It is neither, or its content is not text.
    """
    if not isinstance(item, dict):
        raise record.error(field_name, f"message {shown(item)}", "an object with a role")
    if (read := RESPONSE_ITEMS.get(str(item.get("type")))) is not None:
        return [read(record, item)]
    role = item.get("role")
    if not isinstance(role, str):
        raise record.error(field_name, f"message {shown(item)}", "an object with a role")
    content = item.get("content")
    parts = content if isinstance(content, list) else [content]
    thoughts = next((item[name] for name in THOUGHTS if isinstance(item.get(name), str)), "")
    calls = item.get("tool_calls") or []
    if not isinstance(calls, list):
        raise record.wrong("tool_calls", calls, "a list")
    said = _said(role, "", thoughts=thoughts, calls=[_call(record, call) for call in calls])
    for name in ("name", "tool_call_id"):
        if isinstance(item.get(name), str):
            said[name] = item[name]
    results: Messages = []
    for part in parts:
        _add_part(record, reading, said, results, part)
    if isinstance(item.get("refusal"), str):
        said["content"] += item["refusal"]
    return results if results and not said["content"] else [*results, said]


def _add_part(
    record: Record, reading: Reading, said: dict[str, Any], results: Messages, part: Any
) -> None:
    """Add one part of the content of a message to it, or the result of a call to ``results``."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "thinking" and isinstance(part.get("thinking"), str):
        said["reasoning_content"] = said.get("reasoning_content", "") + part["thinking"]
    elif kind == "redacted_thinking":
        reading.notes.not_read("content.redacted_thinking")
    elif kind == "tool_use":
        call = {"name": part.get("name"), "arguments": part.get("input")}
        said["tool_calls"] = [*said.get("tool_calls", []), _call(record, {"function": call})]
    elif kind == "tool_result":
        results.append({"role": "tool", "content": text_of(record, "content", part.get("content"))})
    else:
        said["content"] += text_of(record, "content", part)


def _said(role: str, content: str, *, thoughts: str = "", calls: Any = None) -> dict[str, Any]:
    message: dict[str, Any] = {"role": role, "content": content}
    if thoughts:
        message["reasoning_content"] = thoughts
    if calls:
        message["tool_calls"] = calls
    return message


def _call(record: Record, call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise record.error("tool_calls", f"call {shown(call)}", "a function with a name")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        # Templates take the arguments as an object, as engines give them.
        try:
            parsed = json.loads(arguments)
        except (ValueError, RecursionError):
            parsed = None
        arguments = parsed if isinstance(parsed, dict) else arguments
    return {"type": "function", "function": {"name": function["name"], "arguments": arguments}}


def text_of(record: Record, name: str, content: Any) -> str:
    """The text of a content: a text, text parts, or nothing.

    Raises:
        TraceFormatError: A part is not text, such as an image.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts = []
    for part in content if isinstance(content, list) else [content]:
        text = part
        if isinstance(part, dict) and part.get("type", "text") in TEXT_PARTS:
            text = part.get("text", part.get("refusal"))
        if not isinstance(text, str):
            raise record.wrong(name, content, "text")
        texts.append(text)
    return "".join(texts)
