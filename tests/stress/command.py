"""What ``python -m tests.stress`` does with its options."""

from __future__ import annotations

import json
import multiprocessing
import signal
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from tests.stress.profiles import OF_THE_MANAGER, PROFILES
from tests.stress.run import Failure, Outcome, Plan, stress, violation_of
from tests.stress.shrink import read_case, shrink, write_case

if TYPE_CHECKING:
    from pathlib import Path

    from tests.stress.draw import Record

__all__ = ["DETECTORS", "Command", "plan_of"]

DETECTORS: Final = "IKD"
REPORT_EVERY: Final = 5.0  # seconds


def plan_of(
    *, seed: int, profile: str, ops: int, config: str, minutes: float, detectors: str
) -> Plan:
    """The plan of these options.

    Raises:
        ValueError: An option is out of its bounds.
    """
    if profile != "all" and profile not in PROFILES:
        raise ValueError(f"--profile must be all or one of {', '.join(PROFILES)}, got {profile}")
    if ops < 1 or minutes < 0:
        raise ValueError("--ops must be at least 1, --minutes at least 0")
    if not detectors or set(detectors) - set(DETECTORS):
        raise ValueError(f"--detectors must be some of I, K and D, got {detectors!r}")
    return Plan(
        ops=ops,
        seed=seed,
        profiles=OF_THE_MANAGER if profile == "all" else (profile,),
        detectors=detectors,
        default=config == "default",
        minutes=minutes,
    )


@dataclass(frozen=True)
class Command:
    """A run of the program, or a repeated failing run."""

    as_json: bool = False

    def run(self, plan: Plan, jobs: int, out: Path) -> int:
        """Runs operations; returns the exit code, and saves a failing run in ``out``."""
        started = time.monotonic()
        try:
            outcome = _run(plan, jobs)
        except Failure as failure:
            self._keep(failure, plan, out)
            return 1
        if self.as_json:
            self._json(_facts(plan, outcome))
        else:
            _print(plan, outcome)
        seconds = time.monotonic() - started
        rate = outcome.ops.total() / max(seconds, 1e-9)
        print(f"{seconds:.1f} s, {rate:,.0f} operations a second", file=sys.stderr)
        return 0

    def replay(self, path: Path, plan: Plan) -> int:
        """Runs the operations of a file; returns the exit code."""
        case = read_case(path)
        found = violation_of(case, plan.manager)
        if self.as_json:
            violation = str(found) if found else None
            self._json({"file": str(path), "ops": len(case.records), "violation": violation})
        else:
            said = repr(found) if found else "no violation"
            print(f"{path}: {len(case.records)} operations, {said}")
        return int(found is not None)

    def _keep(self, failure: Failure, plan: Plan, path: Path) -> None:
        """Reduces the run and writes it."""

        def fails(records: list[Record]) -> bool:
            return violation_of(replace(failure.case, records=records), plan.manager) is not None

        if not self.as_json:
            print(f"violation: {failure}\n  in {failure.case.config}")
        records = failure.case.records
        if fails(records):
            records = shrink(records, fails)
        case = replace(failure.case, records=records)
        write_case(path, case, violation_of(case, plan.manager))
        again = f"python -m tests.stress --replay {path}"
        if self.as_json:
            facts = {"violation": str(failure), "config": str(failure.case.config)}
            counts = {"ops": len(failure.case.records), "ops_needed": len(records)}
            self._json({**facts, **counts, "file": str(path), "command": again})
            return
        print(f"{len(failure.case.records)} operations, {len(records)} of them needed: {path}")
        print(f"run it again with: {again}")

    def _json(self, document: dict[str, Any]) -> None:
        print(json.dumps(document, indent=2, sort_keys=True))


class _Progress:
    """Prints progress to stderr every few seconds."""

    def __init__(self, ops: int) -> None:
        self.ops, self.started, self.last = ops, time.monotonic(), 0.0

    def __call__(self, done: int) -> None:
        seconds = time.monotonic() - self.started
        if seconds - self.last >= REPORT_EVERY:
            self.last = seconds
            rate = done / seconds
            print(f"{done:,} of {self.ops:,} operations, {rate:,.0f} a second", file=sys.stderr)


def _share(plan: Plan) -> Outcome | Failure:
    """The part of one process; returns a failure as a value, to keep all of its fields."""
    try:
        return stress(plan)
    except Failure as failure:
        return failure


def _run(plan: Plan, jobs: int) -> Outcome:
    if jobs == 1:
        return stress(plan, _Progress(plan.ops))
    spread = 2**40  # the seeds of processes never overlap
    plans = [
        replace(plan, seed=plan.seed + job * spread, ops=-(-plan.ops // jobs))
        for job in range(jobs)
    ]
    total = Outcome()
    # Worker processes ignore interrupts: this process ends them.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        pool = multiprocessing.Pool(jobs)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    with pool:
        for part in pool.imap(_share, plans):
            if isinstance(part, Failure):
                raise part
            total.add(part)
    return total


def _print(plan: Plan, outcome: Outcome) -> None:
    print(f"seed {plan.seed}: {outcome.ops.total():,} operations, 0 violations")
    print(f"  {outcome.lock_step:,} of them in lock-step with the model")
    for profile, count in outcome.ops.items():
        print(f"  {profile:13}{count:>12,}")
    print("calls, and what came of them")
    names = sorted({name for name, _ in outcome.calls})
    for name in names:
        parts = sorted((end, n) for (call, end), n in outcome.calls.items() if call == name)
        print(f"  {name:16}" + "  ".join(f"{end} {n:,}" for end, n in parts))
    print(f"digest {outcome.digest}")


def _facts(plan: Plan, outcome: Outcome) -> dict[str, Any]:
    calls: dict[str, dict[str, int]] = {}
    for (name, end), count in outcome.calls.items():
        calls.setdefault(name, {})[end] = count
    return {
        "seed": plan.seed,
        "ops": outcome.ops.total(),
        "violation": None,
        "lock_step_ops": outcome.lock_step,
        "ops_by_profile": dict(outcome.ops),
        "calls": calls,
        "digest": outcome.digest,
    }
