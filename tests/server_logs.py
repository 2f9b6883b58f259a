"""Lines of servers' logs as their servers and containers write them."""

from __future__ import annotations

import json
import random
from typing import Any, NamedTuple


def vllm(second: int, said: str, level: str = "INFO", process: str = "APIServer pid=7") -> str:
    return f"({process}) {level} 11-22 15:00:{second:02} [request_logger.py:9] {said}"


def details(name: str, tokens: list[int] | None, prompt: str = "Hi") -> str:
    said = f"Request {name} details: prompt: {prompt!r}, prompt_token_ids: {tokens}"
    return f"{said}, prompt_embeds shape: None."


def received(name: str, lora: str | None = None, samples: int = 1) -> str:
    adapter = f"LoRARequest(lora_name='{lora}', lora_int_id=1)" if lora else None
    return (
        f"Received request {name}: params: SamplingParams(n={samples}, stop=['x)']), "
        f"lora_request: {adapter}."
    )


def generated(name: str, tokens: list[int] | None, how: str = "", output: str = "x") -> str:
    said = f"Generated response {name}{how}: output: {output!r}, output_token_ids: {tokens}"
    return f"{said}, finish_reason: stop"


def framed(how: str, line: str, number: int) -> str:
    stamp = f"2026-11-22T15:00:{number:02}.123456789Z"
    if how == "docker":
        return json.dumps({"log": line + "\n", "stream": "stderr", "time": stamp})
    if how == "journald, JSON":
        return json.dumps({"MESSAGE": line, "__REALTIME_TIMESTAMP": f"17637912{number:02}000000"})
    if how == "journald, bytes":
        return json.dumps({"MESSAGE": list(line.encode()), "_PID": "1"})
    if how == "coloured":
        coloured = line.replace("INFO", "\x1b[32mINFO\x1b[0m").replace(
            "DEBUG", "\x1b[37mDEBUG\x1b[0m"
        )
        return coloured.replace("[logger", "\x1b[90m[logger").replace(".py:", ".py:\x1b[0m")
    return {
        "plain": line,
        "docker compose": f"vllm-1  | {line}",
        "docker logs -t": f"{stamp} {line}",
        "kubernetes": f"{stamp} stdout F {line}",
        "kubectl --prefix": f"[pod/vllm-0/server] {line}",
        "journald": f"Nov 22 15:00:{number:02} host vllm[7]: {line}",
        "journald, short-iso": f"2026-11-22T15:00:{number:02}+0100 host vllm[7]: {line}",
        "rsyslog": f"Nov 22 15:00:{number:02} host vllm[7]: #033[32m{line}#033[0m",
        "loki": json.dumps({"line": line, "ts": stamp}),
        "fluent": json.dumps({"message": line, "kubernetes": {"pod_name": "vllm-0"}}),
        "windows": line + "\r",
    }[how]


FRAMES = [
    *("plain", "docker", "journald, JSON", "journald, bytes", "coloured", "docker compose"),
    *("docker logs -t", "kubernetes", "kubectl --prefix", "journald", "journald, short-iso"),
    *("rsyslog", "loki", "fluent", "windows"),
]


def sglang(second: int, said: str) -> str:
    return f"[2026-11-22 15:00:{second:02}] {said}"


def asked(rid: Any, ids: Any, **more: Any) -> str:
    fields = {"rid": rid, "session_id": None, "text": "it's, (input_ids=[1]) \"", "input_ids": ids}
    fields |= {"sampling_params": {"temperature": 0.7, "stop": ["]"]}, "stream": False, **more}
    return f"GenerateReqInput({', '.join(f'{name}={value!r}' for name, value in fields.items())})"


def answered(ids: list[int]) -> str:
    out = {"text": "', 'output_ids': [9]", "output_ids": ids, "meta_info": {"prompt_tokens": 3}}
    return f", out={out!r}"


def as_json(line: str) -> str:
    """The same line in the format of ``--log-requests-format json``."""
    stamp, _, said = line.partition("] ")
    kind, _, _ = said.partition(": obj=")
    if kind not in ("Receive", "Finish"):
        return line
    names = {"GenerateReqInput": dict, "None": None}
    _, _, call = said.partition(": obj=")
    call, _, out = call.partition(", out=")
    data: dict[str, Any] = {
        "timestamp": stamp[1:].replace(" ", "T") + ".000000",
        "event": "request.received" if kind == "Receive" else "request.finished",
        "obj": eval(call, names),
    }
    if out:
        data["out"] = eval(out)
    return f"{stamp}] {json.dumps(data)}"


LAYOUTS = ("old", "details", "newest", "sglang", "sglang, JSON")
"""How versions of vLLM tell tokens, and the two formats of SGLang."""

TRAP = (
    '] Received request z: \x27prompt_token_ids: [7, 7], lora_request: None., input_ids=[7, 7], "'
)


class Logged(NamedTuple):
    """A request as its server had it."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    lora: str | None


def log_of(
    rng: random.Random, layout: str, count: int, name: str
) -> tuple[list[tuple[int, str]], list[Logged]]:
    """The lines of a server with their seconds, and its requests."""
    lines: list[tuple[int, str]] = [(0, first_line(layout))]
    requests = []
    for number in range(count):
        prompt = tuple(rng.randrange(3) for _ in range(rng.randint(1, 12)))
        output = tuple(rng.randrange(9) for _ in range(rng.randint(1, 5)))
        made = Logged(prompt, output, rng.choice([None, None, "poet"]))
        requests.append(made)
        second = rng.randrange(50)
        rid = f"{name}{number}"
        answer = second + rng.randint(0, 9)
        asked_lines, answered_lines = said_of(rng, layout, rid, made, (second, answer))
        lines += [(second, line) for line in asked_lines]
        lines += [(answer, line) for line in answered_lines]
    return sorted(lines, key=lambda one: one[0]), requests


def first_line(layout: str) -> str:
    if layout.startswith("sglang"):
        return "[2026-11-22 14:59:59] server_args=ServerArgs(model_path='m')"
    return "INFO 11-22 14:59:59 [api_server.py:1912] vLLM API server version 0.33.0"


def said_of(
    rng: random.Random, layout: str, rid: str, made: Logged, times: tuple[int, int]
) -> tuple[list[str], list[str]]:
    """The lines about a request, and those about its answer."""
    second, answer = times
    prompt, output = list(made.prompt), list(made.output)
    if layout.startswith("sglang"):
        call = asked(rid, prompt, lora_path=made.lora, text=rng.choice([None, TRAP]))
        begin, end = sglang(second, f"Receive: obj={call}"), f"Finish: obj={call}"
        lines = [begin, sglang(answer, end + answered(output))]
        lines = [as_json(line) for line in lines] if layout.endswith("JSON") else lines
        return lines[:1], lines[1:]
    text = rng.choice(["Hi", TRAP])
    if layout == "old":
        adapter = f"LoRARequest(lora_name='{made.lora}')" if made.lora else None
        said = f"Received request {rid}: prompt: {text!r}, params: SamplingParams(n=1), "
        said += f"prompt_token_ids: {prompt}, prompt_embeds shape: None, lora_request: {adapter}."
        return [vllm(second, said)], [vllm(answer, generated(rid, output, output=text))]
    begin = vllm(second, details(rid, prompt, text), "DEBUG")
    if layout == "details":
        ends = [vllm(answer, generated(rid, output, output=text))]
    else:
        tokens = f"Generated response {rid} details: output_token_ids: {output}"
        told = f"Generated response {rid}: output: {text!r}, finish_reason: stop"
        ends = [vllm(answer, tokens, "DEBUG"), vllm(answer, told)]
    return [begin, vllm(second, received(rid, made.lora))], ends
