"""How many tokens does partial reuse save?

Each generator's trace, one request at a time, at block sizes 16, 64 and 256, in a pool that never
evicts and in one of a tenth of the distinct tokens. Columns, all in per cent of the prompt tokens:

none      full blocks only: a replay without ``min_partial_tokens``
children  also the leading tokens of a cached full block with the same prefix: a simulation, because
          the manager always keeps tails as well; without copies, its count must equal that of the
          replay
tails     what the manager does: a replay with ``min_partial_tokens`` of 1
1         a block size of 1, the upper limit at this capacity: from its curve

Not measured: what the copies cost, and requests that overlap.

Run: python -m benchmarks.partial_reuse [--workload chat,agent] [--block-sizes 16,64,256]
"""

from __future__ import annotations

import argparse
from collections import OrderedDict
from dataclasses import replace

import numpy as np

from blockmgr.lab.curve import Curve, hit_rate_curve
from blockmgr.lab.replay import ReplayConfig, held_blocks, replay
from blockmgr.lab.trace import Request, Tokens, Trace
from blockmgr.lab.workloads import generate

WORKLOADS = "chat,agent,tree-of-thought,few-shot"
ONE_AT_A_TIME = ReplayConfig(block_size=1, min_service_ms=0, service_ms_per_token=0)
GOAL = 0.3  # in points, between tails and a block size of 1


class FullChildren:
    """Tail-first LRU over full blocks, one request at a time, optionally with partial reuse."""

    def __init__(self, num_blocks: int, config: ReplayConfig, *, copies: bool) -> None:
        self._num_blocks = num_blocks
        self._config = config
        self._copies = copies
        self._idle: OrderedDict[int, None] = OrderedDict()  # the next to evict comes first
        # Blocks by their parent and their tokens; 0 stands for the empty prefix.
        self._names: dict[tuple[int, bytes], int] = {}
        self._keys: list[tuple[int, bytes]] = [(0, b"")]
        self._children: dict[int, set[bytes]] = {}  # tokens of a block's children in the pool

    def serve(self, request: Request) -> int:
        """Serves a request to its end; returns the tokens found."""
        size, tokens = self._config.block_size, request.tokens()
        limit = (len(tokens) - 1) // size
        shared = [block for block in self._path(tokens)[:limit] if block in self._idle]
        hit = len(shared) * size
        if self._copies:
            rest, last = tokens[hit : len(tokens) - 1], shared[-1] if shared else 0
            hit += max((_alike(rest, c) for c in self._children.get(last, ())), default=0)
        for block in shared:
            del self._idle[block]
        while len(self._idle) + held_blocks(request, self._config) > self._num_blocks:
            parent, key = self._keys[self._idle.popitem(last=False)[0]]
            self._children[parent].discard(key)
        for output in request.outputs or (tokens[:0],):
            for block in reversed(self._path(np.concatenate((tokens, output[:-1])))):
                self._idle[block] = None
                self._idle.move_to_end(block)
                parent, key = self._keys[block]
                self._children.setdefault(parent, set()).add(key)
        return hit

    def _path(self, tokens: Tokens) -> list[int]:
        """The full blocks of a text. Those in the pool come first."""
        size, block, path = self._config.block_size, 0, []
        for start in range(0, len(tokens) // size * size, size):
            key = (block, tokens[start : start + size].tobytes())
            block = self._names.setdefault(key, len(self._keys))
            if block == len(self._keys):
                self._keys.append(key)
            path.append(block)
        return path


def _alike(tokens: Tokens, child: bytes) -> int:
    other = np.frombuffer(child, dtype=np.uint32)[: len(tokens)]
    differs = np.flatnonzero(tokens[: len(other)] != other)
    return int(differs[0]) if len(differs) else len(other)


def row(trace: Trace, block_size: int, tokens: int, whole: Curve) -> list[float]:
    """Hit rates in per cent, in the order of the columns."""
    config = replace(ONE_AT_A_TIME, block_size=block_size)
    # In a short trace, a tenth may be less than the longest request needs.
    longest = max(held_blocks(request, config) for request in trace.requests)
    blocks = max(longest, -(-tokens // block_size))
    asked = whole.query_tokens
    none = replay(trace, blocks, config)
    counted = {}
    for copies in (False, True):
        pool = FullChildren(blocks, config, copies=copies)
        counted[copies] = sum(pool.serve(request) for request in trace.requests)
    if trace.name != "tree-of-thought" and counted[False] != none.hit_tokens:
        raise RuntimeError(f"{counted[False]} hits simulated, {none.hit_tokens} replayed")
    tails = replay(trace, blocks, replace(config, min_partial_tokens=1))
    one = whole.hit_tokens_at(max(tokens, whole.longest_request_blocks))
    return [100 * n / asked for n in (none.hit_tokens, counted[True], tails.hit_tokens, one)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workload", default=WORKLOADS)
    parser.add_argument("--block-sizes", default="16,64,256")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    head = ("none", "children", "tails", "1", "1 - tails")
    print(f"{'workload':<16}{'pool':>6}{'block':>7}" + "".join(f"{name:>10}" for name in head))
    missed = []
    for name in args.workload.split(","):
        trace = generate(name, seed=args.seed)
        whole = hit_rate_curve(trace, ONE_AT_A_TIME)
        distinct = int(whole.capacities[-1])
        for pool, share in (("ample", 2.0), ("10%", 0.1)):
            for size in map(int, args.block_sizes.split(",")):
                # A generous bound: one block for the tail of each sequence.
                extra = size * sum(r.num_samples for r in trace.requests) if share > 1 else 0
                rates = row(trace, size, int(share * distinct) + extra, whole)
                gap = rates[3] - rates[2]
                cells = "".join(f"{value:>10.2f}" for value in (*rates, gap))
                print(f"{name:<16}{pool:>6}{size:>7}{cells}", flush=True)
                if gap > GOAL:
                    missed.append(f"{name} {pool} {size}")
    print(f"more than {GOAL} points below a block size of 1: {', '.join(missed) or 'none'}")


if __name__ == "__main__":
    main()
