"""Bodies of requests and answers: what belongs to the prompt, and what counts as output."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockmgr.errors import TraceFormatError
from blockmgr.lab.trace import Trace, read_trace
from tests.lab.byte_tokenizer import saved
from tests.lab.conftest import WriteLines

TIME = {"timestamp": 1_764_000_000}
USER = {"role": "user", "content": "hello"}


@pytest.fixture
def read(write_lines: WriteLines, tokenizer: Path) -> Callable[..., Trace]:
    def from_rows(*rows: Any, folder: Path | None = tokenizer) -> Trace:
        return read_trace(write_lines(*map(json.dumps, rows)), tokenizer=folder)

    return from_rows


@pytest.fixture
def text(tokenizer: Path) -> Callable[[Any], str]:
    from transformers import AutoTokenizer

    known = AutoTokenizer.from_pretrained(str(tokenizer))
    return lambda tokens: str(known.decode([int(token) for token in tokens]))


TOOL = {"name": "find", "description": "d", "input_schema": {"type": "object"}}


@pytest.mark.parametrize("system", ["be brief", [{"type": "text", "text": "be brief"}]])
@pytest.mark.parametrize("place", ["body", "row"])
def test_a_system_prompt_and_tools_beside_the_messages_belong_to_the_prompt(
    read: Any, text: Any, system: Any, place: str
) -> None:
    beside = {"system": system, "tools": [TOOL]}
    body = {"model": "m", "messages": [USER], **(beside if place == "body" else {})}
    row = {**TIME, "request": body, **(beside if place == "row" else {})}
    [request] = read(row).requests
    said = text(request.tokens())
    assert said.endswith("<system>be brief<user>hello<assistant>")
    assert '"name": "find"' in said
    assert '"parameters": {"type": "object"}' in said


def test_messages_of_anthropic_become_calls_results_and_thoughts(read: Any, text: Any) -> None:
    use = {"type": "tool_use", "id": "1", "name": "find", "input": {"q": "x"}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "r"}]}
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}, use]},
        {"role": "user", "content": [result, {"type": "text", "text": "b"}]},
    ]
    answer = {
        **{"type": "message", "role": "assistant", "usage": {"input_tokens": 9}},
        "content": [{"type": "thinking", "thinking": "so "}, {"type": "text", "text": "c"}, use],
    }
    [request] = read({**TIME, "body": {"messages": messages}, "response": answer}).requests
    asked = text(request.tokens())
    assert asked == "<user>a<assistant><think>t<call>find:x<tool>r<user>b<assistant>"
    call = '{"name": "find", "arguments": {"q": "x"}}'
    assert text(request.outputs[0]) == f"so c{call}"


def test_thoughts_and_calls_of_an_answer_are_output(read: Any, text: Any) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"q": 1}'}}
    message = {"role": "assistant", "content": None, "reasoning_content": "hm"}
    choice = {"index": 0, "message": {**message, "tool_calls": [call]}, "finish_reason": "stop"}
    trace = read({**TIME, "messages": [USER], "response": {"choices": [choice]}})
    said = 'hm{"name": "f", "arguments": {"q": 1}}'
    assert text(trace.requests[0].outputs[0]) == said
    assert trace.read.assumed["outputs"] == "thoughts, text and calls one after another"
    assert trace.read.unread == {}


@pytest.mark.parametrize(
    ("usage", "length", "places"),
    [
        ({"completion_tokens": 8}, 8, slice(0, 5)),
        ({"completion_tokens": 3}, 3, slice(0, 3)),
        (
            {"completion_tokens": 8, "completion_tokens_details": {"reasoning_tokens": 2}},
            8,
            slice(2, 7),
        ),
        ({"output_tokens": 7}, 7, slice(0, 5)),
    ],
)
def test_the_length_of_an_output_is_what_the_server_counted(
    read: Any, text: Any, usage: dict[str, Any], length: int, places: slice
) -> None:
    response = {"choices": [{"message": {"content": "hello"}}], "usage": usage}
    trace = read(*[{**TIME, "messages": [USER], "response": response}] * 2)
    first, second = trace.requests
    assert first.num_output_tokens == length == len(first.outputs[0])
    assert text(first.outputs[0][places]) == "hello"[: places.stop - places.start]
    if length > 5:  # tokens that nobody knows are equal to no others
        assert first.outputs[0].tolist() != second.outputs[0].tolist()
    assert trace.read.assumed["output lengths"] == "as the server counted them"


def test_without_the_text_of_an_answer_its_length_is_known_from_the_usage(read: Any) -> None:
    [one, two] = read(
        {**TIME, "messages": [USER], "usage": {"completion_tokens": 40}},
        {**TIME, "messages": [USER], "output_length": 50},
    ).requests
    assert (one.num_output_tokens, one.outputs) == (40, ())
    assert (two.num_output_tokens, two.outputs) == (50, ())


def test_bodies_of_responses_are_read_with_instructions_and_items(read: Any, text: Any) -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "t"}]},
        {"type": "function_call", "name": "f", "arguments": '{"q": "x"}', "call_id": "1"},
        {"type": "function_call_output", "call_id": "1", "output": "r"},
    ]
    body = {"model": "m", "instructions": "i", "input": items}
    part = {"type": "output_text", "text": "done", "annotations": []}
    output = [{"type": "message", "role": "assistant", "content": [part], "id": "2"}]
    answer = {"object": "response", "output": output, "usage": {"output_tokens": 4}}
    one, two = read(
        {**TIME, "body": body, "response": {"status_code": 200, "body": answer}},
        {**TIME, "body": {"model": "m", "input": "short"}},
    ).requests
    asked = text(one.tokens())
    assert asked == "<system>i<user>a<assistant><think>t<assistant><call>f:x<tool>r<assistant>"
    assert text(one.outputs[0]) == "done"
    assert text(two.tokens()) == "<user>short<assistant>"


def test_completions_have_a_text_several_texts_or_tokens(read: Any, text: Any) -> None:
    answers = {"choices": [{"text": "x"}, {"text": "y"}]}
    trace = read(
        {**TIME, "prompt": "once", "model": "m"},
        {**TIME, "body": {"prompt": ["a", "b"]}, "response": answers},
        {**TIME, "text_input": "twice", "output_length": 4},
        {**TIME, "payload": {"prompt": "thrice", "max_tokens": 3}},
    )
    said = [text(request.tokens()) for request in trace.requests]
    assert said == ["once", "a", "b", "twice", "thrice"]
    assert [text(request.outputs[0]) for request in trace.requests[1:3]] == ["x", "y"]
    tokens = read({**TIME, "prompt": [5, 6, 7]}, {**TIME, "prompt": [[5], [6]]}, folder=None)
    assert [r.tokens().tolist() for r in tokens.requests] == [[5, 6, 7], [5], [6]]


def test_turns_that_hold_only_what_is_new_are_joined(read: Any, text: Any) -> None:
    def turn(said: str, answer: str | None, **more: Any) -> dict[str, Any]:
        response = {} if answer is None else {"response": answer}
        messages = [{"role": "user", "content": said}]
        return {
            "session_id": "s",
            "message_mode": "delta",
            "messages": messages,
            **response,
            **more,
        }

    trace = read(turn("a", "b"), turn("c", None), turn("d", None, delay=70))
    said = [text(request.tokens()) for request in trace.requests]
    assert said[0] == "<user>a<assistant>"
    assert said[1] == "<user>a<assistant>b<user>c<assistant>"
    assert said[2] == "<user>a<assistant>b<user>c<user>d<assistant>"
    assert [r.arrival_ms for r in trace.requests] == [0, 30 + 10_000, 30 + 10_000 + 70]
    again = turn("c", None)
    again["messages"].insert(0, {"role": "assistant", "content": "b"})
    assert text(read(turn("a", "b"), again).requests[1].tokens()) == said[1]
    with pytest.raises(TraceFormatError, match='message_mode "odd", expected one of full'):
        read({**turn("a", None), "message_mode": "odd"})
    with pytest.raises(TraceFormatError, match="a delta without session_id"):
        read({**turn("a", None), "session_id": None})


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (None, "none: the contents of messages, joined by line breaks"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "the model's, which does not use"),
    ],
)
def test_what_the_template_does_is_said(
    read: Any, tmp_path: Path, template: str | None, said: str
) -> None:
    row = {**TIME, "messages": [USER], "tools": [TOOL]}
    trace = read(row, folder=saved(tmp_path / "other", template))
    assert trace.read.assumed["template"].startswith(said)


def test_fields_that_change_a_prompt_and_are_not_used_are_named(read: Any) -> None:
    body = {"messages": [{**USER, "mood": 1}], "chat_template_kwargs": {"a": 1}, "temperature": 1}
    answer = {"choices": [{"message": {"content": "x", "odd": 1}, "strange": 2}]}
    trace = read({**TIME, "body": body, "response": answer, "tenant": 3})
    assert trace.read.unread == {
        "tenant": 1,
        "body.chat_template_kwargs": 1,
        "body.messages.mood": 1,
        "response.choices.strange": 1,
        "response.choices.message.odd": 1,
    }


def test_a_cache_salt_keeps_prompts_apart(read: Any) -> None:
    rows = [{**TIME, "model": "m", "cache_salt": salt, "messages": [USER]} for salt in ("a", "b")]
    assert [r.namespace for r in read(*rows).requests] == [b"m a", b"m b"]


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "content"),
        ({"messages": [{"role": "user", "content": [{"type": [], "text": "a"}]}]}, "content"),
        ({"messages": [USER], "tools": 5}, "tools 5"),
        ({"messages": [{"role": "assistant", "tool_calls": [5]}]}, "call 5"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "a conversation ("),
        ({"messages": [USER], "usage": {"completion_tokens": -1}}, "completion_tokens -1"),
        ({"prompt": [1, "a"]}, '"a" in prompt'),
        ({"prompt": {}}, "prompt {}"),
        ({"body": {"input": 5, "model": "m"}}, "input 5"),
    ],
)
def test_a_body_that_cannot_be_read_is_named(read: Any, row: dict[str, Any], found: str) -> None:
    with pytest.raises(TraceFormatError) as caught:
        read({**TIME, **row})
    assert caught.value.found.startswith(found)


def test_a_template_that_fails_refuses_the_row(read: Any, tmp_path: Path) -> None:
    folder = saved(tmp_path / "odd", "{{ messages[0].content + 5 }}{{ messages[9].content }}")
    with pytest.raises(TraceFormatError, match="the chat template refuses it"):
        read({**TIME, "messages": [USER]}, folder=folder)


def test_sharegpt_with_a_system_prompt_and_tools_beside_is_read(
    tmp_path: Path, tokenizer: Path, text: Any
) -> None:
    turns = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
    talk = {"id": 1, "system": "s", "tools": "[]", "conversations": turns, "odd": 1}
    path = tmp_path / "talks.json"
    path.write_text(json.dumps([talk, {**talk, "tools": json.dumps([TOOL])}], indent=2))
    trace = read_trace(path, tokenizer=tokenizer)
    assert text(trace.requests[0].tokens()) == "<system>s<user>a<assistant>"
    assert text(trace.requests[1].tokens()).startswith("<tools>")
    assert trace.read is not None
    assert trace.read.unread == {"odd": 2}
