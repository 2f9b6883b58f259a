"""``python -m benchmarks.engines MODEL``: the cost of KV cache management in vLLM.

Four managers serve the same requests in one process and take turns step by step. Times are CPU time
of the thread; no model runs. Each prompt has a shared head and its own tail; or, with ``--trace``,
the prompts are recorded ones, each of which begins when an earlier one ends. Then the manager that
does nothing is left out, because it does not know what is cached. Only the configuration of the
folder MODEL is read (``python -m tests.engines.tiny_model FOLDER`` makes one).

Run it with an interpreter that has vLLM and blockmgr: ``tests/engines/run FOLDER`` makes one. With
``--trace``, it writes a result, which ``python -m benchmarks.peers.page`` puts on its page.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import vllm
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from benchmarks.engines.arms import ARMS, NOTHING, make_scheduler, start_of_a_pool
from benchmarks.measure import RESULTS, machine, write_result
from blockmgr.lab.trace import read_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Prompts = Callable[[], Iterator[tuple[list[int], int]]]
    """Makes again the tokens of each prompt, and the most tokens of its answer."""

BLOCK_SIZE = 16
VOCABULARY = 1000
clock = time.thread_time


@dataclass
class Costs:
    """Seconds of one arm in one round."""

    schedule: list[float] = field(default_factory=list)
    update: list[float] = field(default_factory=list)
    is_decode: list[bool] = field(default_factory=list)
    requests: float = 0.0
    adding: float = 0.0
    cached: int = 0

    def row(self) -> dict[str, float]:
        decode = [i for i, is_one in enumerate(self.is_decode) if is_one]
        return {
            "schedule, a decode step (us)": statistics.median(self.schedule[i] for i in decode)
            * 1e6,
            "update, a decode step (us)": statistics.median(self.update[i] for i in decode) * 1e6,
            "longest schedule (ms)": max(self.schedule) * 1e3,
            "making the requests (ms)": self.requests * 1e3,
            "total (ms)": (sum(self.schedule) + sum(self.update) + self.requests + self.adding)
            * 1e3,
            "tokens cached": self.cached,
            "steps": len(self.schedule),
        }


class Arm:
    """A scheduler that runs the requests it is given, step by step."""

    def __init__(self, name: str, args: argparse.Namespace) -> None:
        self.scheduler, self.hashes = make_scheduler(
            name, args.model, num_blocks=args.blocks, block_size=BLOCK_SIZE, max_seqs=args.seqs
        )
        self.scheduler.kv_cache_manager.head = args.head
        self.costs = Costs()
        self.seqs = args.seqs
        self.rng = random.Random(7)
        self.left: Iterator[tuple[int, tuple[list[int], int]]] = iter(())

    def begin(self, prompts: Prompts, hasher: Any) -> None:
        """Begins as many requests as run at once; ``step`` adds the others as these end."""
        self.left, self.hasher = enumerate(prompts()), hasher
        self._add_next(self.seqs)

    def _add_next(self, count: int) -> None:
        for number, (prompt, most) in islice(self.left, count):
            self.add(str(number), prompt, most, self.hasher)

    def add(self, name: str, prompt: list[int], most_tokens: int, hasher: Any) -> None:
        sampling = SamplingParams(temperature=0, max_tokens=most_tokens, ignore_eos=True)
        begun = clock()
        request = Request(
            name, prompt, sampling, None, block_hasher=hasher if self.hashes else None
        )
        made = clock()
        self.scheduler.add_request(request)
        self.costs.requests += made - begun
        self.costs.adding += clock() - made

    def step(self) -> bool:
        """Runs a step; returns whether there is another one."""
        scheduler, costs = self.scheduler, self.costs
        begun = clock()
        output = scheduler.schedule()
        costs.schedule.append(clock() - begun)
        names = list(output.num_scheduled_tokens)
        tokens = [
            [] if scheduler.requests[name].is_prefill_chunk else [self.rng.randrange(VOCABULARY)]
            for name in names
        ]
        index = {name: i for i, name in enumerate(names)}
        result = ModelRunnerOutput(names, index, sampled_token_ids=tokens)
        costs.cached += sum(new.num_computed_tokens for new in output.scheduled_new_reqs)
        costs.is_decode.append(not output.scheduled_new_reqs and len(names) == self.seqs)
        begun = clock()
        scheduler.update_from_output(output, result)
        costs.update.append(clock() - begun)
        self._add_next(self.seqs - len(scheduler.requests))
        more: bool = scheduler.has_unfinished_requests()
        return more


def one_head(args: argparse.Namespace, number: int) -> tuple[Prompts, Prompts]:
    """A request that computes a head, and those that find it."""
    rng = random.Random(number)
    head = [rng.randrange(VOCABULARY) for _ in range(args.head)]
    prompts = [
        head + [rng.randrange(VOCABULARY) for _ in range(rng.randint(20, 100))]
        for _ in range(args.seqs)
    ]
    first = [*head, VOCABULARY]
    return lambda: iter([(first, 1)]), lambda: ((prompt, args.tokens) for prompt in prompts)


def recorded(args: argparse.Namespace) -> tuple[Prompts, Prompts]:
    """Nothing before the requests of a trace."""
    requests = read_trace(args.trace).requests[: args.requests]

    def prompts() -> Iterator[tuple[list[int], int]]:
        for request in requests:
            most = max(1, min(request.num_output_tokens or 1, args.tokens))
            yield request.tokens().tolist(), most

    return lambda: iter(()), prompts


def one_round(
    args: argparse.Namespace, hasher: Any, workload: tuple[Prompts, Prompts]
) -> dict[str, Costs]:
    before, prompts = workload
    names = [name for name in ARMS if args.trace is None or name != NOTHING]
    arms = {name: Arm(name, args) for name in names}
    for arm in arms.values():
        arm.begin(before, hasher)
        while arm.scheduler.has_unfinished_requests():
            arm.step()
        arm.costs = Costs()
        arm.begin(prompts, hasher)
    gc.collect()
    gc.freeze()
    live, step = list(arms), 0
    while live:
        turn = live if step % 2 == 0 else live[::-1]
        live = [name for name in turn if arms[name].step()]
        live.sort(key=list(arms).index)
        step += 1
    gc.unfreeze()
    return {name: arm.costs for name, arm in arms.items()}


def table(rows: dict[str, dict[str, float]]) -> str:
    columns = list(next(iter(rows.values())))
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name, row in rows.items():
        cells = (f"{row[c]:,.1f}" if row[c] < 100 else f"{row[c]:,.0f}" for c in columns)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines", description=__doc__)
    parser.add_argument("model", type=Path, help="folder with a model's configuration")
    parser.add_argument("--seqs", type=int, default=256)
    parser.add_argument("--head", type=int, default=8192, help="tokens that all prompts share")
    parser.add_argument("--tokens", type=int, default=128, help="most tokens of an answer")
    parser.add_argument("--trace", type=Path, help="recorded prompts, in the place of one head")
    parser.add_argument("--requests", type=int, default=300, help="prompts of the trace")
    parser.add_argument("--blocks", type=int, default=200_000)
    parser.add_argument(
        "--pool", type=int, default=500_000, help="blocks of the pool whose start is timed"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON result")
    args = parser.parse_args()
    function = get_hash_fn_by_name("sha256")
    init_none_hash(function)
    hasher = get_request_block_hasher(BLOCK_SIZE, function)
    starts = {}  # first: later it could reuse memory that the rounds freed
    for name in ("vLLM", "blockmgr"):
        taken = [start_of_a_pool(name, args.pool, BLOCK_SIZE) for _ in range(3)]
        starts[name] = {
            "seconds": statistics.median(seconds for seconds, _ in taken),
            "MiB": statistics.median(size for _, size in taken) / 2**20,
        }
    trace = None if args.trace is None else recorded(args)
    rounds = [
        one_round(args, hasher, trace or one_head(args, number)) for number in range(args.rounds)
    ]
    rows: dict[str, dict[str, float]] = {}
    for name in rounds[0]:
        each = [costs[name].row() for costs in rounds]
        rows[name] = {column: statistics.median(row[column] for row in each) for column in each[0]}
    stock, ours = rows["vLLM"], rows["blockmgr"]
    about = machine()
    print(f"vLLM {vllm.__version__}, {about['processor']}, medians of {args.rounds} rounds\n")
    print(table(rows))
    for column in list(stock)[:-2]:
        print(f"{column}: blockmgr takes {ours[column] / stock[column]:.2f} of vLLM's")
    for name, start in starts.items():
        print(f"{name}: a pool of {args.pool:,} blocks starts in {start['seconds']:.3f} s and "
              f"takes {start['MiB']:.0f} MiB")  # fmt: skip
    if args.trace is not None:
        figures = {
            "vllm": vllm.__version__,
            "trace": args.trace.name.partition(".")[0],
            "arguments": {k: v for k, v in vars(args).items() if isinstance(v, int)},
            "rows": rows,
        }
        write_result(args.results, "engines", "benchmarks.engines", about, figures)


if __name__ == "__main__":
    main()
