"""Reads recordings and logs back, whole or damaged: ``python -m tests.fuzz_recordings``.

A recording of real managers must be refused with the documented error, or give no more hits than
the requests have. A whole log must give the requests of its servers, a damaged one some of them.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from blockmgr.errors import TraceFormatError
from blockmgr.lab.formats import vllm_log
from blockmgr.lab.trace import Trace, read_trace
from tests import server_logs
from tests.recordings import Engine, Writer, hits, true_hits

DAMAGES = ("cut", "dropped", "doubled", "swapped", "late", "shuffled")


def engine(rng: random.Random, *, rank: int | None = None, writer: Writer | None = None) -> Engine:
    """An engine of any kind that has served some requests."""
    made = Engine(
        rng,
        rank=rank,
        num_blocks=rng.choice([400, 4096]),
        block_size=4,
        writer=writer or rng.choice(["maps", "arrays", "sglang"]),
        hashes=rng.choice(["int", "bytes"]),
        hybrid=rng.random() < 0.3,
        epoch=rng.choice([None, 5]),
    )
    made.run(
        rng.randint(2, 15),
        start=rng.choice([0.0, 3.0, 1_763_800_000.25]),
        tenants=rng.choice([("",), ("a", "b")]),
        reset_every=rng.choice([0.0, 0.1]),
    )
    return made


def damaged(rng: random.Random, lines: list[str], damage: str) -> list[str]:
    """The lines with one kind of damage in some places."""
    lines = list(lines)
    if damage == "late":
        return lines[rng.randrange(len(lines)) :]
    if damage == "shuffled":
        rng.shuffle(lines)
        return lines
    # A clearing that is lost with the next event leaves no sign: a recording has no numbers.
    for _ in range(1 if damage == "dropped" else rng.randint(1, 4)):
        at = rng.randrange(len(lines))
        if damage == "cut":
            lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]
        elif damage == "dropped" and len(lines) > 1:
            del lines[at]
        elif damage == "doubled":
            lines.insert(at, lines[at])
        elif damage == "swapped":
            other = min(at + 1, len(lines) - 1)
            lines[at], lines[other] = lines[other], lines[at]
    return lines


def read(lines: list[str], path: Path) -> Trace | None:
    """The trace; None if the file is refused with a place in it."""
    path.write_text("".join(line + "\n" for line in lines))
    try:
        return read_trace(path)
    except TraceFormatError as error:
        if not str(error).startswith(f"{path}:"):
            raise AssertionError(f"no place is named: {error}") from error
        return None


def hits_of(trace: Trace, block_size: int) -> int:
    """Hits of a trace that was read, by the oracle; the last token of an answer is unknown."""
    return hits(
        (
            (request.namespace.hex(), request.tokens().tolist(), output)
            for request in trace.requests
            for output in [request.outputs[0].tolist()[:-1] if request.outputs else []]
        ),
        block_size,
    )


def one(seed: int, path: Path, counts: Counter[str]) -> None:
    """One recording, whole and damaged.

    Raises:
        AssertionError: Its requests or hits are wrong.
    """
    rng = random.Random(seed)
    ranks = rng.choice([[None], [None], [0, 1], [3]])
    engines = [engine(rng, rank=rank) for rank in ranks]
    if ranks == [None] and rng.random() < 0.3:
        engines.append(engine(rng))  # a second engine whose events got into the same file
    most = true_hits([asked for made in engines for asked in made.requests], 4)
    ordered = sorted(
        (time, order, line) for order, made in enumerate(engines) for time, line in made.lines
    )
    lines = [line for _, _, line in ordered]
    if not lines:
        return
    whole = read(lines, path)
    counts["whole" if whole else "whole, refused"] += 1
    if whole is not None and hits_of(whole, 4) > most:
        raise AssertionError(f"seed {seed}: {hits_of(whole, 4)} found of {most}")
    for damage in DAMAGES:
        trace = read(damaged(rng, lines, damage), path)
        counts[damage if trace else f"{damage}, refused"] += 1
        if trace is not None and hits_of(trace, 4) > most:
            raise AssertionError(f"seed {seed}, {damage}: {hits_of(trace, 4)} found of {most}")


def one_log(seed: int, path: Path, counts: Counter[str]) -> None:
    """One log of one or two servers, whole and damaged.

    Raises:
        AssertionError: It has requests that were not there.
    """
    rng = random.Random(seed)
    layout, how = rng.choice(server_logs.LAYOUTS), rng.choice(server_logs.FRAMES)
    lines, requests = [], []
    for name in rng.choice(["a", "a", "ab"]):
        more, asked = server_logs.log_of(rng, layout, rng.randint(1, 8), name)
        lines += more
        requests += asked
    lines.sort(key=lambda one: one[0])
    framed = [server_logs.framed(how, line, second) for second, line in lines]
    there = Counter((one.prompt, one.lora, one.output) for one in requests)
    for damage in (None, *DAMAGES):
        trace = read(damaged(rng, framed, damage) if damage else framed, path)
        counts[f"log, {damage or 'whole'}{'' if trace else ', refused'}"] += 1
        if trace is None:
            if damage is None:
                raise AssertionError(f"seed {seed}: a whole log is refused")
            continue
        told = trace.read.left_out if trace.read is not None else {}
        # Of a damaged log answers may be missing; and adapters, with a word.
        parts = 3 if damage is None else 1 if vllm_log.UNDESCRIBED in told else 2
        found = Counter(one[:parts] for one in facts_of(trace))
        most = Counter(one[:parts] for one in there.elements())
        if found - most or (damage is None and found != most):
            raise AssertionError(f"seed {seed}, {damage}: {found - most} found of {most}")


def facts_of(trace: Trace) -> list[tuple[Any, ...]]:
    """Prompt, adapter and answer of each request."""
    return [
        (
            tuple(request.tokens().tolist()),
            request.namespace.decode().removeprefix("lora ") or None,
            tuple(request.outputs[0].tolist()) if request.outputs else (),
        )
        for request in trace.requests
    ]


def fuzz(seconds: float, seed: int, runs: int) -> Counter[str]:
    """The number of recordings by what became of them; raises on an error."""
    counts: Counter[str] = Counter()
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.jsonl"
        for number in range(seed, seed + runs):
            if time.monotonic() > end:
                break
            one(number, path, counts)
            one_log(number, path, counts)
    return counts


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz_recordings", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--runs", type=int, default=10**9)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    counts = fuzz(args.seconds, args.seed, args.runs)
    for what, count in sorted(counts.items()):
        print(f"{count:8,} {what}")
    print(f"{sum(counts.values()):8,} recordings and logs, 0 violations")
    return 0


if __name__ == "__main__":
    sys.exit(main())
