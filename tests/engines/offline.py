"""``python -m tests.engines.offline MODEL``: a real vLLM with its own manager and ours.

Each arm runs in its own process. Texts must be equal token for token, and ours must not cache fewer
tokens. With ``--workloads hybrid``, some layers of the model do not use full attention.

If the weights have 16 bits, a text depends on where the chunks of its prompt end: of 32 prompts of
500 tokens, vLLM itself answers 24 to 26 alike with another budget of tokens. Where chunks end at
other places, because layers have recurrent states, 60 % of the texts must be equal.

In ``hybrid, thoughts``, for models with recurrent states, the second turn of a conversation leaves
out the answer of the first, as templates leave out thoughts. With ``prompt_end_stop``, each second
turn must find the whole prompt of the first; texts are compared as above.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

WORKLOADS = (
    "shared", "pressure", "samples", "priority", "odd",
    "logprobs", "salts", "long", "turns", "reset",
)  # fmt: skip
HYBRID = ("hybrid", "hybrid, pressure", "hybrid, odd", "hybrid, logprobs")
THOUGHTS = "hybrid, thoughts"
COUNTS = {"shared": 128, "pressure": 192, "samples": 24}  # prompts; the others have 96
COUNTS |= dict.fromkeys([*HYBRID, THOUGHTS], 32)
TURNS = {"turns": 3, "reset": 2, **dict.fromkeys([*HYBRID, THOUGHTS], 2)}
OPTIONS: dict[str, Any] = {
    "odd": {"min_partial_tokens": 4},
    "hybrid, odd": {"min_partial_tokens": 4},
    THOUGHTS: {"prompt_end_stop": 0, "min_partial_tokens": 1},
}
STATEFUL = ("lfm2", "qwen3_next")  # types of models


def tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(3, 1024) for _ in range(count)]


def requests(name: str) -> tuple[list[Any], list[dict[str, Any]], dict[str, Any]]:
    """Prompts, sampling parameters and engine arguments of a workload."""
    rng = random.Random(1)
    engine: dict[str, Any] = {"max_model_len": 2048, "max_num_batched_tokens": 2048}
    size = 250 if name.endswith("odd") else 256
    heads = [tokens(rng, size) for _ in range(8)]
    prompts, params = [], []
    for _ in range(COUNTS.get(name, 96)):
        prompt: Any = {"prompt_token_ids": rng.choice(heads) + tokens(rng, rng.randint(20, 100))}
        said: dict[str, Any] = {"max_tokens": 32}
        if name in ("pressure", "priority", "hybrid, pressure"):
            blocks = {"pressure": 200, "priority": 120}.get(name, 240)
            engine |= {"num_gpu_blocks_override": blocks, "max_num_batched_tokens": 256}
            head = rng.choice(heads)[: rng.randint(100, 256)]
            prompt = {"prompt_token_ids": head + tokens(rng, rng.randint(20, 300))}
            said = {"max_tokens": rng.randint(16, 160)}
        elif name == "samples":
            said |= {"n": 4, "temperature": 1.0}
        elif name.endswith("logprobs"):  # they recompute cached tokens
            said |= {"prompt_logprobs": 1} if rng.random() < 0.3 else {}
            engine |= {"max_num_batched_tokens": 200} if name in HYBRID else {}
        elif name == "salts":
            prompt["cache_salt"] = rng.choice(["a", "b"])
        elif name == "long":
            prompt["prompt_token_ids"] = prompt["prompt_token_ids"] * 5
        prompts.append(prompt)
        params.append(said)
    if name == "priority":
        engine |= {"scheduling_policy": "priority"}
    return prompts, params, engine


def config_of(model: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((Path(model) / "config.json").read_text())
    return config


def run(model: str, name: str, options: Any) -> dict[str, Any]:
    """Runs one arm in this process."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams

    prompts, params, engine = requests(name)
    additional = {} if options is None else {"blockmgr": options}
    llm = LLM(
        model=model,
        enforce_eager=True,
        dtype=config_of(model)["dtype"],
        block_size=32,
        max_num_seqs=64,
        gpu_memory_utilization=0.2,  # share of the machine's memory
        disable_log_stats=False,
        additional_config=additional,
        **engine,
    )
    sampling = [SamplingParams(**{"temperature": 0, "ignore_eos": True, **said}) for said in params]
    named: dict[str, Any] = {"use_tqdm": False}
    if name == "priority":
        named["priority"] = [random.Random(i).randint(0, 3) for i in range(len(prompts))]
    rng = random.Random(2)
    answers = llm.generate(prompts, sampling, **named)
    texts = [[list(output.token_ids) for output in answer.outputs] for answer in answers]
    cached = sum(answer.num_cached_tokens for answer in answers)
    missed = 0  # tokens of the previous prompts that a turn did not find
    for _ in range(TURNS.get(name, 1) - 1):
        lengths = [len(prompt["prompt_token_ids"]) for prompt in prompts]
        if name == "reset":
            llm.reset_prefix_cache()
        else:  # a conversation continues with the answer, unless that was thoughts only
            for prompt, answer in zip(prompts, answers, strict=True):
                said = [] if name == THOUGHTS else list(answer.outputs[0].token_ids)
                prompt["prompt_token_ids"] = prompt["prompt_token_ids"] + said + tokens(rng, 20)
        answers = llm.generate(prompts, sampling, **named)
        for length, answer in zip(lengths, answers, strict=True):
            missed += max(0, length - answer.num_cached_tokens)
        texts += [[list(output.token_ids) for output in answer.outputs] for answer in answers]
        cached += sum(answer.num_cached_tokens for answer in answers)
    manager = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager
    ours = hasattr(manager, "manager")
    if ours:
        manager.manager.check_invariants()
    return {
        "ours": ours,
        "texts": texts,
        "cached": cached,
        "missed": missed,
    }


def in_a_process(model: str, name: str, options: Any) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "answers.json"
        command = [sys.executable, "-m", "tests.engines.offline", model, "--workloads", name]
        command += ["--arm", json.dumps(options), "--out", str(out)]
        environment = {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_LOGGING_LEVEL": "ERROR",
            **os.environ,
        }
        subprocess.run(command, check=True, env=environment)
        answers: dict[str, Any] = json.loads(out.read_text())
        return answers


def compare(model: str, name: str) -> bool:
    """Whether the arms agree on a workload."""
    stock = in_a_process(model, name, None)
    ours = in_a_process(model, name, OPTIONS.get(name, {}))
    same = sum(a == b for a, b in zip(stock["texts"], ours["texts"], strict=True))
    least = 0.6 if config_of(model)["dtype"] == "bfloat16" else 1.0
    good = ours["ours"] and not stock["ours"] and same >= least * len(stock["texts"])
    good = good and (ours["missed"] == 0 if name == THOUGHTS else ours["cached"] >= stock["cached"])
    print(
        f"{name}: {same} of {len(stock['texts'])} texts equal; tokens cached {stock['cached']} "
        f"with vLLM's own, {ours['cached']} with blockmgr; tokens of earlier prompts missed "
        f"{stock['missed']}, {ours['missed']}; {'good' if good else 'NOT GOOD'}",
        flush=True,
    )
    return good


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.engines.offline", description=__doc__)
    parser.add_argument("model", help="folder of a tiny model")
    parser.add_argument(
        "--workloads", nargs="*", default=list(WORKLOADS), help="names, or `hybrid`"
    )
    parser.add_argument("--arm", help="run one arm here, with these options as JSON")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.arm is not None:
        answers = run(args.model, args.workloads[0], json.loads(args.arm))
        args.out.write_text(json.dumps(answers))
        return 0
    names = args.workloads
    if names == ["hybrid"]:
        names = [*HYBRID, *([THOUGHTS] if config_of(args.model)["model_type"] in STATEFUL else [])]
    results = [compare(args.model, name) for name in names]
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main())
