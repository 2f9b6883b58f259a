"""Recordings of KV events whose true requests and hits are known: made by real managers.

The oracle is independent of the lab: it keeps every prefix of whole blocks of earlier requests in
a set, and counts how much of a prompt is in it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from blockmgr import BlockManager, FullAttention, RecurrentState, SlidingWindow
from blockmgr.events import Encoder, SglangEncoder

Writer = Literal["maps", "arrays", "sglang"]
Key = tuple[str, tuple[int, ...]]


@dataclass
class Asked:
    """A request as an engine had it."""

    time: float
    prompt: list[int]
    output: list[int]
    tenant: str
    rank: int | None
    stored: list[int] = field(default_factory=list)  # blocks up to where an event was published
    found: int = 0


def hits(
    requests: Iterable[tuple[str, Sequence[int], Sequence[int]]],
    block_size: int,
    *,
    with_answers: bool = False,
) -> int:
    """Tokens of requests that an unbounded pool has, in whole blocks.

    It has the last token of a prompt, too, although an engine computes it again.

    Args:
        requests: Tenant, prompt and answer of each.
        block_size: Tokens per block.
        with_answers: Whether the tokens of answers count, too.
    """
    known: set[Key] = set()
    total = 0
    for tenant, prompt, output in requests:
        whole = [*prompt, *output]
        ends = range(block_size, len(whole) + 1, block_size)
        prefixes = [(tenant, tuple(whole[:end])) for end in ends]
        most = len(whole if with_answers else prompt) // block_size
        found = 0
        while found < most and prefixes[found] in known:
            found += 1
        total += found * block_size
        known.update(prefixes)
    return total


class Engine:
    """A small engine that publishes its events after each step."""

    def __init__(
        self,
        rng: random.Random,
        *,
        rank: int | None = None,
        num_blocks: int = 4096,
        block_size: int = 4,
        writer: Writer = "maps",
        hashes: Literal["int", "bytes"] = "int",
        hybrid: bool = False,
        epoch: int | None = None,
    ) -> None:
        groups: list[Any] = [FullAttention(), SlidingWindow(2 * block_size), RecurrentState()]
        rng.shuffle(groups)
        more: dict[str, Any] = {"groups": tuple(groups), "null_block": True} if hybrid else {}
        self.manager = BlockManager(num_blocks, block_size, events=True, **more)
        self.rng, self.block_size, self.rank = rng, block_size, rank
        self.requests: list[Asked] = []
        self.lines: list[tuple[float, str]] = []
        if writer == "sglang":
            full = groups.index(FullAttention()) if hybrid else 0
            self.encoder: Any = SglangEncoder(block_size, rank=rank, group=full)
        else:
            kinds = self.manager.config.groups or (FullAttention(),)
            self.encoder = Encoder(
                block_size, rank=rank, layout=writer, hashes=hashes, groups=kinds, epoch=epoch
            )

    def publish(self, time: float) -> int:
        """Publish what happened; returns the number of stored blocks."""
        events = list(self.manager.take_events())
        for payload in self.encoder.batches(events, time):
            line = msgspec.json.encode(msgspec.msgpack.decode(payload)).decode()
            self.lines.append((time, line))
        return sum(len(event.digests) for event in events if event.kind == 0 and event.group == 0)

    def serve(self, time: float, prompt: list[int], output: list[int], tenant: str = "") -> Asked:
        """Serve one request: prefill in chunks, then one token a step; 10 ms each."""
        asked = Asked(time, prompt, output, tenant, self.rank)
        self.requests.append(asked)
        manager = self.manager
        handle = manager.admit(prompt, namespace=tenant.encode())
        asked.found = int(manager.sequence(handle).num_computed_tokens)
        at = asked.found
        while at < len(prompt):
            at = min(len(prompt), at + self.rng.choice([2, 3, 50]) * self.block_size)
            manager.copies_applied(manager.take_copies().ticket)
            manager.commit(handle, at)
            asked.stored.append(self.publish(time))
            time += 0.01
        for token in output:
            manager.append(handle, [token])
            manager.copies_applied(manager.take_copies().ticket)
            manager.commit(handle, at := at + 1)
            asked.stored.append(self.publish(time))
            time += 0.01
        manager.free(handle)
        self.publish(time)
        return asked

    def run(
        self,
        count: int,
        start: float = 0.0,
        tenants: Sequence[str] = ("",),
        reset_every: float = 0.0,
    ) -> None:
        """Serve conversations that share prefixes, more than two seconds apart."""
        rng, time = self.rng, start
        talks: list[list[int]] = [[]]
        for number in range(count):
            talk = rng.choice(talks)
            cut = talk[: rng.choice([len(talk), len(talk), rng.randrange(len(talk) + 1)])]
            prompt = [*cut, *(rng.randrange(3) for _ in range(rng.randint(1, 40)))]
            output = [rng.randrange(3) + 10 for _ in range(rng.randrange(20))]
            if rng.random() < reset_every:
                self.manager.reset_prefix_cache()
                self.publish(time)
                time += 0.5
            self.serve(time, prompt, output, rng.choice(tenants))
            talks.append([*prompt, *output][: self.block_size * 60])
            time += 5 + number % 3


def true_hits(requests: Iterable[Asked], block_size: int) -> int:
    """The tokens of requests that a pool would have if nothing were evicted.

    Answers count: of a request whose prompt was found whole, the first event is of its answer, and
    looks like that of a prompt.
    """
    ordered = sorted(requests, key=lambda asked: asked.time)
    asked = ((a.tenant, a.prompt, a.output) for a in ordered)
    return hits(asked, block_size, with_answers=True)
