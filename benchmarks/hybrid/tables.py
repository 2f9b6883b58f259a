"""What moving table entries to cached blocks is worth, with several groups of layers.

    python -m benchmarks.hybrid.tables [--requests N] [--running N] [--pools 10 20 50]

An engine runs several prompts of a trace at once: each step computes chunks of the running
prompts, in turn, of 8,192 tokens in all, and each prompt goes on for some steps of output. Each
cell compares ``dedup="remap"`` with ``dedup="append_only"``: tokens found, most and mean blocks in
use, copies.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from benchmarks.hybrid.prompts import prompts_of, unbounded
from benchmarks.hybrid.shapes import MAX_BATCHED_TOKENS, SHAPES
from blockmgr import BlockManager, NeverFitsError, OutOfBlocksError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.hybrid.prompts import Prompt
    from benchmarks.hybrid.shapes import Shape

Way = Literal["remap", "append_only"]
WAYS: tuple[Way, ...] = ("remap", "append_only")


@dataclass
class Running:
    """A prompt in progress."""

    handle: int
    total: int
    end: int
    outputs: int


@dataclass
class Counts:
    """The results of a run."""

    found: int = 0
    copies: int = 0
    preempted: int = 0
    never: int = 0
    used: list[int] = field(default_factory=list)


class Engine:
    """A manager, and the prompts that it runs at once."""

    def __init__(
        self, shape: Shape, num_pages: int, longest: int, way: Way, most: int, *, waits: bool
    ) -> None:
        self.most, self.waits, self.counts = most, waits, Counts()
        self.running: list[Running] = []
        self.manager = BlockManager(
            num_pages + 1,
            shape.page,
            max_seqs=most + 1,
            max_blocks_per_seq=-(-longest // shape.page) + 2,
            groups=shape.groups,
            min_partial_tokens=16,
            null_block=True,
            dedup=way,
        )

    def run(self, prompts: Sequence[Prompt], outputs: int) -> Counts:
        waiting = deque(prompts)
        while waiting or self.running:
            self._admit(waiting, outputs)
            self._step()
            self.counts.used.append(self.manager.stats().used_blocks)
        return self.counts

    def _admit(self, waiting: deque[Prompt], outputs: int) -> None:
        while waiting and len(self.running) < self.most:
            prompt = waiting[0]
            total = len(prompt)
            match = self.manager.match(prompt)
            if self.waits and match.num_computing_tokens and self.running:
                return
            slots = min(total, match.num_cached_tokens + MAX_BATCHED_TOKENS)
            try:
                handle = self.manager.admit(prompt, num_slots=slots)
            except NeverFitsError:
                self.counts.never += 1
                waiting.popleft()
                continue
            except OutOfBlocksError:
                return
            waiting.popleft()
            end = self.manager.sequence(handle).num_computed_tokens
            self.counts.found += end
            self.running.append(Running(handle, total, end, outputs))

    def _step(self) -> None:
        """One forward: the copies, and what it computes."""
        manager, left, computed = self.manager, MAX_BATCHED_TOKENS, []
        for each in list(self.running):
            if each.end == each.total and each.outputs:
                each.outputs -= 1
                continue
            if each.end == each.total:
                manager.free(each.handle)
                self.running.remove(each)
                continue
            end = min([*manager.stops(each.handle), each.total, each.end + left])
            if end <= each.end:
                continue
            try:
                manager.reserve(each.handle, end)
            except OutOfBlocksError:
                self._give_up(each)
                continue
            left -= end - each.end
            computed.append((each, end))
        plan = manager.take_copies()
        manager.copies_applied(plan.ticket)
        self.counts.copies += len(plan)
        for each, end in computed:
            if each in self.running:
                manager.commit(each.handle, end)
                each.end = end
        manager.take_remaps()

    def _give_up(self, each: Running) -> None:
        """Ends a prompt that has no room, unless it is the only one."""
        if len(self.running) == 1:
            raise RuntimeError("a prompt that fits has no room alone")
        self.counts.preempted += 1
        self.manager.free(each.handle)
        self.running.remove(each)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hybrid.tables", description=__doc__)
    parser.add_argument("trace", nargs="+")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--running", type=int, default=16)
    parser.add_argument("--outputs", type=int, default=8, help="steps after the prompt")
    parser.add_argument("--wait", action="store_true", help="for what others compute already")
    parser.add_argument("--pools", type=int, nargs="+", default=[10, 20, 50], help="in percent")
    options = parser.parse_args(arguments)
    print("| trace | shape | pool | found | most blocks | mean blocks | copies |")
    print("|---|---|---|---|---|---|---|")
    for path in options.trace:
        prompts = prompts_of(path, options.requests)
        longest, tokens = max(map(len, prompts)), sum(map(len, prompts))
        for shape in SHAPES.values():
            pages = unbounded(prompts, shape).pages
            for percent in options.pools:
                pool = max(pages * percent // 100, 2 * shape.pages_for(longest))
                cells = []
                for way in WAYS:
                    engine = Engine(shape, pool, longest, way, options.running, waits=options.wait)
                    counts = engine.run(prompts, options.outputs)
                    cells.append(
                        (
                            f"{100 * counts.found / tokens:.2f} %",
                            f"{max(counts.used):,}",
                            f"{statistics.fmean(counts.used):,.0f}",
                            f"{counts.copies:,}",
                        )
                    )
                pairs = (" / ".join(pair) for pair in zip(*cells, strict=True))
                name = path.rsplit("/", 1)[-1].split(".")[0]
                print(f"| {name} | {shape.name} | {percent} % | {' | '.join(pairs)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
