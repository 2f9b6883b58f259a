"""Random operations for as long as you like: ``python -m tests.soak --ops 1000000 --seed 1``.

Each run of some hundred operations draws a configuration and operation weights from a profile,
and plays them through ``World`` with ``check_invariants`` and the KV oracle on; ``--model`` adds
the lock-step comparison. One seed decides everything: a violation prints the command that repeats
the run it happened in.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from blockmgr.config import EVICTION_POLICIES
from blockmgr.errors import InvariantError
from tests.model import ModelManager
from tests.stateful.world import Entry, World
from tests.strategies import constant_digest

OPS_PER_RUN = 400

BALANCED = {
    "admit": 14,
    "next_turn": 4,
    "append": 16,
    "decode": 16,
    "step": 22,
    "begin": 3,
    "finish": 3,
    "abort": 1,
    "complete": 2,
    "commit": 4,
    "reserve": 3,
    "truncate": 3,
    "fork": 6,
    "branch": 3,
    "reparent": 2,
    "free": 10,
    "preempt": 3,
    "resume": 5,
    "take_remaps": 1,
    "nonsense": 1,
}


@dataclass(frozen=True)
class Profile:
    """What kind of engine drives the manager, and in how small a world."""

    blocks: tuple[int, int] = (4, 48)
    sizes: tuple[int, ...] = (1, 2, 3, 4, 8)
    max_seqs: tuple[int, int] = (4, 12)
    prompt: int = 24
    weights: dict[str, float] = field(default_factory=dict)
    namespaces: tuple[bytes, ...] = (b"", b"tenant")
    vocabulary: tuple[int, ...] = (2, 2, 3, 50)
    swarm: float = 0.5  # weights are multiplied by 2 to a power of at most this


PROFILES = {
    "balanced": Profile(),
    "beam": Profile(
        weights={"fork": 20, "branch": 12, "reparent": 20, "append": 30, "decode": 25, "admit": 6}
    ),
    "pressure": Profile(
        blocks=(4, 16), weights={"admit": 25, "preempt": 14, "resume": 14, "step": 14}
    ),
    "tiny": Profile(blocks=(1, 6), sizes=(1, 2, 3), max_seqs=(2, 5), prompt=9),
    "exact": Profile(blocks=(4, 12), sizes=(1, 2, 4), weights={"append": 6, "free": 16}),
    "tenants": Profile(namespaces=(b"", b"a", b"b", b"c"), weights={"admit": 24, "free": 18}),
    "aborts": Profile(
        sizes=(2, 3, 4, 8),
        weights={"begin": 25, "abort": 16, "fork": 25, "append": 40, "step": 8, "admit": 8},
    ),
    # More children of one block than are looked at for a partial match.
    "wide": Profile(blocks=(40, 64), sizes=(1, 2, 3), prompt=6, vocabulary=(40, 80)),
    # The usual block size, which has a comparison of its own.
    "large": Profile(blocks=(65, 160), sizes=(16,), prompt=120, max_seqs=(8, 24)),
    "swarm": Profile(blocks=(2, 64), sizes=(1, 2, 3, 5, 8, 16), swarm=3.0),
}


class Run:
    """One manager, one configuration, one list of weights."""

    def __init__(
        self,
        profile: str,
        seed: int,
        *,
        manager: Callable[..., Any],
        model: Callable[..., Any] | None = None,
        detectors: str = "IK",
        options: dict[str, Any] | None = None,
    ) -> None:
        self.name, self.profile = profile, PROFILES[profile]
        self.rng = rng = random.Random(f"{profile}:{seed}")
        self.config = {**self.draw_config(), **(options or {})}
        weights = {**BALANCED, **self.profile.weights}
        self.ops = list(weights)
        swarm = self.profile.swarm
        self.weights = [weight * 2 ** rng.uniform(-swarm, swarm) for weight in weights.values()]
        self.world = World(
            self.config,
            manager=manager,
            model=model,
            seed=seed,
            check_every=1 if self.config["num_blocks"] <= 64 else 100,
            detectors=detectors,
        )
        self.vocabulary = rng.choice(self.profile.vocabulary)
        self.stems = [self.tokens(self.profile.prompt) for _ in range(4)]

    def draw_config(self) -> dict[str, Any]:
        rng, profile = self.rng, self.profile
        null_block = rng.random() < 0.2
        num_blocks = rng.randint(*profile.blocks) + null_block
        size = rng.choice(profile.sizes)
        return {
            "num_blocks": num_blocks,
            "block_size": size,
            "max_seqs": rng.randint(*profile.max_seqs),
            "max_blocks_per_seq": rng.choice([None, None, None, 8]),
            "prefix_caching": rng.random() < 0.9,
            "digest": rng.choice(["xxh3_128", "xxh3_128", "sha256", constant_digest]),
            "dedup": rng.choice(["remap", "append_only"]),
            "min_partial_tokens": rng.choice([0, 1, 1, min(2, size)]),
            "watermark_blocks": rng.choice([0, 0, 0, 1]),
            "steps_in_flight": rng.choice([0, 0, 0, 1, 2, 3]),
            "early_commit": rng.random() < 0.3,
            "null_block": null_block,
        }

    def tokens(self, longest: int) -> list[int]:
        return [self.rng.randrange(self.vocabulary) for _ in range(self.rng.randint(1, longest))]

    def entry(self) -> Entry | None:
        return self.rng.choice(self.world.entries) if self.world.entries else None

    def one(self) -> None:
        """One operation."""
        op = self.rng.choices(self.ops, self.weights)[0]
        method = getattr(self, op)
        if op in ("admit", "step", "begin", "finish", "abort", "complete", "take_remaps"):
            method()
        elif (entry := self.entry()) is not None:
            method(entry)
        else:
            self.admit()

    def finish_up(self) -> None:
        """Everything is freed, and nothing may be missing afterwards."""
        world = self.world
        world.step()
        for entry in list(world.entries):
            world.free(entry)
        world.step()
        if world.in_flight_limit:
            world.complete(len(world.steps))
        stats = world.manager.stats()
        if stats.available != stats.capacity:
            raise AssertionError(f"blocks leaked: {stats}")

    # ---- operations ---------------------------------------------------------------------

    def admit(self) -> None:
        rng = self.rng
        stem = rng.choice(self.stems)
        tokens = stem[: rng.randint(1, len(stem))] + self.tokens(4)[rng.randint(0, 1) :]
        extras = None if rng.random() < 0.8 else {rng.randint(0, 2): rng.choice([b"x", b"y"])}
        slots = None if rng.random() < 0.7 else rng.randint(1, len(tokens) + 6)
        entry = self.world.admit(tokens, rng.choice(self.profile.namespaces), extras, slots)
        if entry is not None and self.world.early and rng.random() < 0.5:
            self.world.commit(entry, self.world.committable(entry))

    def next_turn(self, entry: Entry) -> None:
        self.world.admit(entry.tokens + self.tokens(6), entry.namespace, entry.extras)

    def append(self, entry: Entry) -> None:
        self.world.append(entry, self.tokens(1 if self.rng.random() < 0.8 else 6))

    def decode(self, _: Entry) -> None:
        entries = [e for e in self.world.entries if e.running and self.rng.random() < 0.8]
        self.rng.shuffle(entries)
        self.world.decode(entries, [self.rng.randrange(self.vocabulary) for _ in entries])

    def step(self) -> None:
        self.world.step(self.rng.choice([-1, -1, -1, 0, 1]), self.rng.choice([0, 0, 0, 1]))

    def begin(self) -> None:
        self.world.begin(applied=self.rng.random() < 0.5)

    def finish(self) -> None:
        waiting = [launched for launched in self.world.steps if not launched.finished]
        if waiting:
            self.world.finish(self.rng.choice(waiting))

    def abort(self) -> None:
        """A launch fails; now and then while a copy of an unfinished copy has been asked for."""
        world, entry = self.world, self.entry()
        if entry is not None and world.open is None and self.rng.random() < 0.5:
            for child in world.fork(entry):
                world.append(child, [0])
                world.begin()
                for grandchild in world.fork(child):
                    world.append(grandchild, [1])
        world.abort()

    def complete(self) -> None:
        if self.world.in_flight_limit:
            self.world.complete(self.rng.randint(1, 2))

    def commit(self, entry: Entry) -> None:
        self.world.commit(entry, self.rng.choice([self.world.committable(entry), 1, 5]))

    def reserve(self, entry: Entry) -> None:
        self.world.reserve(entry, len(entry.tokens) + self.rng.randint(-4, 5))

    def truncate(self, entry: Entry) -> None:
        self.world.truncate(entry, self.rng.randint(0, len(entry.tokens)))

    def fork(self, entry: Entry) -> None:
        self.world.fork(entry, self.rng.choice([1, 1, 2, 3]))

    def branch(self, entry: Entry) -> None:
        """A fork of a fork, all written in one step: copies of copies."""
        for child in self.world.fork(entry):
            family = [entry, child, *self.world.fork(child)]
            self.rng.shuffle(family)
            for member in family:
                self.world.append(member, self.tokens(1))
                self.world.append(member, self.tokens(1))

    def reparent(self, _: Entry) -> None:
        entries = [e for e in self.world.entries if e.running and self.rng.random() < 0.7]
        self.world.reparent(entries, [self.rng.randrange(len(entries)) for _ in entries])

    def free(self, entry: Entry) -> None:
        self.world.free(entry)

    def preempt(self, entry: Entry) -> None:
        self.world.preempt(entry)

    def resume(self, entry: Entry) -> None:
        waiting = [e for e in self.world.entries if not e.running]
        if waiting:
            self.world.resume(self.rng.choice(waiting), self.rng.choice([None, None, 1, 9]))

    def take_remaps(self) -> None:
        self.world.take_remaps()

    def nonsense(self, _: Entry) -> None:
        if self.world.dead:
            name = self.rng.choice(["free", "preempt", "resume", "fork"])
            self.world.on_dead(name, self.rng.randrange(99))


def soak(
    ops: int,
    seed: int,
    profiles: Sequence[str],
    *,
    manager: Callable[..., Any],
    model: Callable[..., Any] | None = None,
    detectors: str = "IK",
    options: dict[str, Any] | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> Counter[str]:
    """Runs the operations and counts them by profile; raises at the first violation."""
    done: Counter[str] = Counter()
    run_seed = seed
    while done.total() < ops:
        for profile in profiles:
            run = None
            for number in range(min(OPS_PER_RUN, ops - done.total())):
                try:
                    if run is None:
                        run = Run(
                            profile,
                            run_seed,
                            manager=manager,
                            model=model,
                            detectors=detectors,
                            options=options,
                        )
                    run.one()
                    done[profile] += 1
                except (AssertionError, InvariantError) as violation:
                    config = run.config if run else None
                    report(f"profile {profile} seed {run_seed} op {number}: {config}")
                    raise Violation(profile, run_seed, number) from violation
            if run is not None:
                try:
                    run.finish_up()
                except AssertionError as violation:
                    report(f"profile {profile} seed {run_seed} at the end: {run.config}")
                    raise Violation(profile, run_seed, -1) from violation
        run_seed += 1
    return done


class Violation(Exception):
    """A detector has struck."""

    def __init__(self, profile: str, seed: int, op: int) -> None:
        self.profile, self.seed, self.op = profile, seed, op
        super().__init__(f"profile {profile}, seed {seed}, operation {op}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--ops", type=int, default=1_000_000, help="operations in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--profile", default="all", help=f"all, or one of {', '.join(PROFILES)}")
    parser.add_argument("--model", action="store_true", help="compare with the model, too")
    parser.add_argument("--digest", choices=["xxh3_128", "sha256", "constant"])
    parser.add_argument("--eviction", choices=EVICTION_POLICIES, default="lru")
    args = parser.parse_args(argv)
    from blockmgr import BlockManager  # the model alone can be soaked without the core

    profiles = list(PROFILES) if args.profile == "all" else [args.profile]
    options = {"eviction": args.eviction}
    if args.digest is not None:
        options["digest"] = args.digest
    if args.digest == "constant":
        options["digest"] = constant_digest
    started = time.perf_counter()
    try:
        done = soak(
            args.ops,
            args.seed,
            profiles,
            manager=BlockManager,
            model=ModelManager if args.model else None,
            detectors="IKD" if args.model else "IK",
            options=options,
            report=lambda line: print(line, file=sys.stderr),
        )
    except Violation as violation:
        print(f"{violation.__cause__!r}", file=sys.stderr)
        again = f"--profile {violation.profile} --seed {violation.seed} --ops {OPS_PER_RUN}"
        print(f"1 violation; repeat with: python -m tests.soak {again}")
        return 1
    seconds = time.perf_counter() - started
    print(f"seed {args.seed}, {done.total():,} operations, 0 violations, {seconds:.0f} s")
    for profile, count in done.items():
        print(f"  {profile:10} {count:>12,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
