"""What does it save to wait for tokens that another request computes?

Run ``python -m benchmarks.waiting``. It simulates a scheduler with chunked prefill, without a
model: a step takes a fixed time plus a time for each token. Decodes come first, then the chunks of
running prompts, then new requests as far as the budget allows. Each sample is a separate request,
as from clients that do not use ``n``. A scheduler that waits skips a request while
``Match.num_computing_tokens`` is above 0, and tries again in the next step. All four schedulers get
the same requests at the same times, with room for all blocks.

The times are those of the stated model, not of any device.
"""

from __future__ import annotations

import argparse
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from blockmgr import BlockManager
from blockmgr.lab.request import Tokens
from blockmgr.lab.trace import read_trace
from blockmgr.lab.workloads import generate

STEP_S = 0.01
BUDGET = 8192  # tokens of a step
BLOCK_SIZE = 16
MOST = 1024  # requests at a time
POOL = 1 << 18
DEFAULT = ["agent", "tree-of-thought", "tree-of-thought,problem_tokens=16384"]
SCHEDULERS = {
    "as they come": (False, False),
    "early commit": (True, False),
    "waiting": (False, True),
    "early commit, waiting": (True, True),
}


@dataclass(eq=False)
class Job:
    """A request with one output."""

    arrival: float
    prompt: Tokens
    output: Tokens
    handle: int = -1
    target: int = 0  # prompt tokens computed at the end of the step
    done: int = 0  # tokens of the output


class Simulation:
    """A scheduler that commits before or after the forward, and waits or does not wait.

    Attributes:
        computed: Prompt tokens computed.
        waited: Seconds of each request to its first token.
    """

    def __init__(self, jobs: Sequence[Job], chunk: int, *, early: bool, waits: bool) -> None:
        self.manager = BlockManager(POOL, BLOCK_SIZE, max_seqs=MOST, early_commit=early)
        self.computed = 0
        self.waited: list[float] = []
        self._chunk, self._early, self._waits = chunk, early, waits
        self._coming = deque(Job(job.arrival, job.prompt, job.output) for job in jobs)
        self._queue: list[Job] = []
        self._prefilling: list[Job] = []
        self._decoding: list[Job] = []

    def run(self, tokens_per_s: float) -> None:
        """Runs all jobs to their end."""
        now = 0.0
        while self._coming or self._queue or self._prefilling or self._decoding:
            while self._coming and self._coming[0].arrival <= now:
                self._queue.append(self._coming.popleft())
            num_tokens = self._plan()
            if not num_tokens:
                now = self._coming[0].arrival
                continue
            now += STEP_S + num_tokens / tokens_per_s
            self.manager.copies_applied(self.manager.take_copies().ticket)
            self._finish(now)

    def _plan(self) -> int:
        """The tokens that a step computes."""
        if self._decoding:
            tokens = [int(job.output[job.done]) for job in self._decoding]
            self.manager.decode([job.handle for job in self._decoding], tokens)
        num_tokens = len(self._decoding)
        for job in [*self._prefilling, *self._queue]:
            if num_tokens == BUDGET or (job.handle < 0 and not self._admit(job)):
                continue
            start = self.manager.sequence(job.handle).num_computed_tokens
            job.target = min(len(job.prompt), start + min(self._chunk, BUDGET - num_tokens))
            self.manager.reserve(job.handle, job.target)
            num_tokens += job.target - start
            self.computed += job.target - start
            if self._early:
                self.manager.commit(job.handle, job.target)
        return num_tokens

    def _admit(self, job: Job) -> bool:
        if len(self._prefilling) + len(self._decoding) == MOST:
            return False
        if self._waits and self.manager.match(job.prompt).num_computing_tokens:
            return False
        job.handle = self.manager.admit(job.prompt, num_slots=1)
        self._queue.remove(job)
        self._prefilling.append(job)
        return True

    def _finish(self, now: float) -> None:
        for job in self._decoding:
            job.done += 1
            if job.done == len(job.output):
                self.manager.free(job.handle)
        self._decoding = [job for job in self._decoding if job.done < len(job.output)]
        for job in self._prefilling[:]:
            self.manager.commit(job.handle, job.target)
            if job.target == len(job.prompt):
                self.waited.append(now - job.arrival)
                self._prefilling.remove(job)
                self._decoding.append(job)


def requests(name: str, limit: int, seed: int) -> list[Job]:
    """The jobs of a workload (``NAME,parameter=value``) or of a trace on disk."""
    name, *changes = name.split(",")
    values = {key: int(value) for key, value in (change.split("=") for change in changes)}
    trace = read_trace(name) if Path(name).exists() else generate(name, seed, **values)
    jobs = []
    for request in trace.requests[:limit]:
        outputs = request.outputs or (np.full(max(1, request.num_output_tokens), 1, np.uint32),)
        prompt = request.tokens()
        jobs += [Job(request.arrival_ms / 1000, prompt, output) for output in outputs]
    return jobs


def main() -> None:
    """Runs all schedulers on each workload."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", default=DEFAULT)
    parser.add_argument("--tokens-per-s", type=float, default=20_000)
    parser.add_argument(
        "--chunk", type=int, default=BUDGET, help="maximum of prompt tokens in a step"
    )
    parser.add_argument("--limit", type=int, default=1000, help="requests of each workload")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for name in options.workloads:
        jobs = requests(name, options.limit, options.seed)
        total = sum(len(job.prompt) for job in jobs)
        table = Table(title=f"{Path(name).stem}: {len(jobs):,} requests, {total:,} prompt tokens")
        for column in ("scheduler", "computed", "mean wait (s)", "median", "95 of 100"):
            table.add_column(column, justify="left" if column == "scheduler" else "right")
        for scheduler, (early, waits) in SCHEDULERS.items():
            simulation = Simulation(jobs, options.chunk, early=early, waits=waits)
            simulation.run(options.tokens_per_s)
            waited = sorted(simulation.waited)
            mean, median = statistics.mean(waited), statistics.median(waited)
            seconds = (mean, median, waited[int(len(waited) * 0.95)])
            table.add_row(scheduler, f"{simulation.computed:,}", *(f"{s:.3f}" for s in seconds))
        Console(width=100).print(table)


if __name__ == "__main__":
    main()
