"""Runs: some hundred recorded operations on one manager, repeated many times."""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from blockmgr.errors import InvariantError
from blockmgr.manager import BlockManager
from tests.specification.boundaries import ModelBoundaries
from tests.specification.sessions import ModelSessions
from tests.stress.draw import Draw, Record
from tests.stress.habits import Habits, draw_chunking, draw_habits
from tests.stress.layouts import LayoutWorld
from tests.stress.perform import finish_up, perform
from tests.stress.profiles import (
    DIGESTS,
    OF_THE_MANAGER,
    PROFILES,
    draw_config,
    groups_named,
)
from tests.stress.shrink import Case
from tests.stress.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Failure", "Outcome", "Plan", "stress", "violation_of"]

OPS_PER_RUN = 400
MOST_MODELLED_BLOCKS = 256  # the model scans everything in each call

VIOLATIONS = (AssertionError, InvariantError)


@dataclass(frozen=True)
class Plan:
    """The plan of a stress run.

    Attributes:
        ops: Operations in all.
        seed: Decides everything.
        profiles: Names of profiles, one run of each in turn.
        detectors: ``I`` for invariants, ``K`` for the memory, ``D`` for the model; ``mixed`` adds
            ``E`` for the events of groups.
        default: With the options that ``BlockManager`` has by default.
        minutes: Stop after this long; 0 for never.
        manager: The class under test.
        options: Overrides of the drawn configuration; ``habits`` is that of the engine.
        layout: With profile ``groups``, the groups of each run; none: drawn for each.
    """

    ops: int
    seed: int = 0
    profiles: Sequence[str] = OF_THE_MANAGER
    detectors: str = "IKD"
    default: bool = False
    minutes: float = 0.0
    manager: Callable[..., Any] = BlockManager
    options: dict[str, Any] = field(default_factory=dict)
    layout: Sequence[str] = ()


@dataclass
class Outcome:
    """Counts: operations by profile, and calls by name and result."""

    ops: Counter[str] = field(default_factory=Counter)
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    lock_step: int = 0
    digest: str = ""

    def add(self, other: Outcome) -> None:
        """Adds the counts of another process."""
        self.ops += other.ops
        self.calls += other.calls
        self.lock_step += other.lock_step
        self.digest = hashlib.sha256(f"{self.digest} {other.digest}".encode()).hexdigest()


class Failure(Exception):
    """A detector found a violation.

    Attributes:
        profile: Name of the profile that the run was drawn from.
        case: The run so far; its last operation failed.
        cause: The detector's message.
    """

    def __init__(self, profile: str, case: Case, cause: str) -> None:
        self.profile, self.case, self.cause = profile, case, cause
        super().__init__(profile, case, cause)  # all fields, so that a process can return it

    def __str__(self) -> str:
        return f"profile {self.profile}, seed {self.case.seed}: {self.cause}"


class Counted(World):
    """Counts the results of all calls, and the tokens that prompts find."""

    counts: Counter[tuple[str, str]]

    def attempt(self, target: Any, name: str, args: Any, kw: Any) -> Any:  # type: ignore[override]
        """Calls the manager or the model; returns the result or the error."""
        answer, error = super().attempt(target, name, args, kw)
        if target is self.manager:
            self.counts[name, "done" if error is None else type(error).__name__] += 1
        return answer, error


class CountedLayout(Counted, LayoutWorld):
    """The same with groups."""


def build_world(
    config: dict[str, Any], seed: int, detectors: str, manager: Callable[..., Any]
) -> Counted:
    """A world for a configuration with a digest by name and the engine's habits."""
    # The specification of several groups moves entries of tables, and has blocks of one size.
    layout = config.get("layout", ())
    specified = config.get("dedup", "remap") == "remap" and "block_size" not in " ".join(layout)
    specified = specified or not layout
    modelled = config["num_blocks"] <= MOST_MODELLED_BLOCKS and specified
    quotas = {name.encode(): blocks for name, blocks in config.get("quotas", {}).items()}
    habits = Habits(**config.get("habits", {}))
    if manager is not BlockManager:
        layout = [name.split(" block_size")[0] for name in layout]
    config = {name: value for name, value in config.items() if name not in {"habits", "layout"}}
    if layout:
        config["groups"] = groups_named(layout)
    if not modelled:
        detectors = detectors.replace("D", "")
    kind = CountedLayout if layout else Counted
    world = kind(
        {**config, "digest": DIGESTS[config["digest"]], "quotas": quotas},
        manager=manager,
        model=ModelBoundaries if layout else ModelSessions,
        seed=seed,
        check_every=1 if config["num_blocks"] <= 64 else 100 if modelled else 1000,
        detectors=detectors,
        habits=habits,
    )
    world.counts = Counter()
    return world


class Run:
    """One manager, one configuration, one list of operations."""

    def __init__(self, plan: Plan, profile: str, seed: int) -> None:
        rng = random.Random(f"{profile}:{seed}")
        kind, detectors = PROFILES[profile], plan.detectors
        if (kind.bare and not kind.samples) or (kind.resized and kind.layouts) or kind.mixed:
            detectors = detectors.replace("D", "")
        self.profile, self.seed, self.detectors = profile, seed, detectors
        self.config = draw_config(rng, PROFILES[profile], default=plan.default, layout=plan.layout)
        drawn = draw_chunking(rng) if "layout" in self.config else draw_habits(rng)
        if kind.mixed:
            self.detectors += "E"
            drawn["samples_ahead"] = rng.random() < 0.4
        self.config |= plan.options
        self.config["habits"] = drawn | plan.options.get("habits", {})
        self.draw = Draw(rng, profile)
        self.records: list[Record] = []
        self.compared = 0
        self.world = build_world(self.config, seed, self.detectors, plan.manager)

    def one(self) -> None:
        """One operation."""
        record = self.draw.one()
        self.records.append(record)
        perform(self.world, record)
        self.compared += self.world.model is not None

    def case(self) -> Case:
        """The run so far, in a form that can be saved."""
        return Case(self.config, self.seed, self.detectors, self.records)

    def state(self) -> bytes:
        """The visible state of the manager, which must be the same in every repetition."""
        manager = self.world.manager
        ids = [manager.sequence(entry.handle).block_ids.tolist() for entry in self.world.entries]
        return repr((asdict(manager.stats()), ids)).encode()


def violation_of(
    case: Case, manager: Callable[..., Any] = BlockManager
) -> AssertionError | InvariantError | None:
    """The message of a detector when a run is repeated; None if there is no violation."""
    try:
        world = build_world(case.config, case.seed, case.detectors, manager)
        for record in case.records:
            perform(world, record)
        finish_up(world)
    except VIOLATIONS as violation:
        return violation
    return None


def stress(plan: Plan, report: Callable[[int], None] = lambda done: None) -> Outcome:
    """Runs a plan.

    Args:
        plan: The plan to run.
        report: Called with the number of operations so far, after each run.

    Returns:
        Counts, and a digest of every operation and of the final state of each run.

    Raises:
        Failure: A detector found a violation.
    """
    outcome, run_seed = Outcome(), plan.seed
    sha = hashlib.sha256()
    end = time.monotonic() + plan.minutes * 60 if plan.minutes else float("inf")
    while outcome.ops.total() < plan.ops and time.monotonic() < end:
        profile = plan.profiles[run_seed % len(plan.profiles)]
        run = Run(plan, profile, run_seed)
        try:
            for _ in range(min(OPS_PER_RUN, plan.ops - outcome.ops.total())):
                run.one()
                outcome.ops[profile] += 1
            state = run.state()
            finish_up(run.world)
        except VIOLATIONS as violation:
            raise Failure(profile, run.case(), repr(violation)) from violation
        sha.update(json.dumps([run.config, run.records], sort_keys=True).encode() + state)
        sha.update(repr(sorted(run.world.counts.items())).encode())
        outcome.calls += run.world.counts
        outcome.lock_step += run.compared
        run_seed += 1
        report(outcome.ops.total())
    outcome.digest = sha.hexdigest()
    return outcome
