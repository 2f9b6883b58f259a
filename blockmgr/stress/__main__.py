"""The command: ``python -m blockmgr.stress --seed 1 --profile all --ops 1000000``."""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from blockmgr.stress.profiles import PROFILES
from blockmgr.stress.run import Failure, Outcome, Plan, stress, violation_of
from blockmgr.stress.shrink import read_case, shrink, write_case

if TYPE_CHECKING:
    from blockmgr.stress.draw import Record

EXIT_CODES = "exit codes: 0 no violation, 1 a violation, 2 wrong usage"
REPORT_EVERY = 5.0  # seconds


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m blockmgr.stress",
        description="Random operations under invariants, a memory oracle and a model.",
        epilog=EXIT_CODES,
    )
    add = parser.add_argument
    add("--seed", type=int, default=1, help="decides everything (default: 1)")
    add("--profile", default="all", help=f"all, or one of {', '.join(PROFILES)}")
    add("--ops", type=int, default=100_000, help="operations in all (default: 100,000)")
    add("--config", choices=["random", "default"], default="random", help="options of the managers")
    add("--minutes", type=float, default=0.0, help="stop after this long, whatever --ops says")
    add("--jobs", type=int, default=1, help="processes to spread the operations over (default: 1)")
    add("--detectors", default="IKD", help="I invariants, K memory, D model (default: IKD)")
    add("--replay", type=Path, metavar="FILE", help="run the operations of a file instead")
    add("--out", type=Path, default=Path("stress-failure.jsonl"), metavar="FILE",
        help="where a failing run is kept")  # fmt: skip
    return parser


def _checked_plan(parser: argparse.ArgumentParser, args: argparse.Namespace) -> Plan:
    if args.profile != "all" and args.profile not in PROFILES:
        parser.error(f"--profile must be all or one of {', '.join(PROFILES)}, got {args.profile}")
    if args.ops < 1 or args.jobs < 1 or args.minutes < 0:
        parser.error("--ops and --jobs must be at least 1, --minutes at least 0")
    if not args.detectors or set(args.detectors) - set("IKD"):
        parser.error(f"--detectors must be some of I, K and D, got {args.detectors!r}")
    return Plan(
        ops=args.ops,
        seed=args.seed,
        profiles=tuple(PROFILES) if args.profile == "all" else (args.profile,),
        detectors=args.detectors,
        default=args.config == "default",
        minutes=args.minutes,
    )


class _Progress:
    """A line on stderr every few seconds; nothing of it is data."""

    def __init__(self, ops: int) -> None:
        self.ops, self.started, self.last = ops, time.monotonic(), 0.0

    def __call__(self, done: int) -> None:
        seconds = time.monotonic() - self.started
        if seconds - self.last >= REPORT_EVERY:
            self.last = seconds
            rate = done / seconds
            print(f"{done:,} of {self.ops:,} operations, {rate:,.0f} a second", file=sys.stderr)


def _share(plan: Plan) -> Outcome | Failure:
    """One process's part; a failure comes back as a value, for it has more than a message."""
    try:
        return stress(plan)
    except Failure as failure:
        return failure


def _run(plan: Plan, jobs: int) -> Outcome:
    if jobs == 1:
        return stress(plan, _Progress(plan.ops))
    spread = 2**40  # seeds of one process never reach those of the next
    plans = [
        replace(plan, seed=plan.seed + job * spread, ops=-(-plan.ops // jobs))
        for job in range(jobs)
    ]
    total = Outcome()
    with ProcessPoolExecutor(jobs) as pool:
        for part in pool.map(_share, plans):
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


def _keep(failure: Failure, plan: Plan, path: Path) -> None:
    """Cuts the run down and writes it."""

    def fails(records: list[Record]) -> bool:
        return violation_of(replace(failure.case, records=records), plan.manager) is not None

    print(f"violation: {failure}\n  in {failure.case.config}")
    records = failure.case.records
    if fails(records):
        records = shrink(records, fails)
    case = replace(failure.case, records=records)
    write_case(path, case, violation_of(case, plan.manager))
    print(f"{len(failure.case.records)} operations, {len(records)} of them needed: {path}")
    print(f"run it again with: python -m blockmgr.stress --replay {path}")


def _replay(path: Path, plan: Plan) -> int:
    case = read_case(path)
    found = violation_of(case, plan.manager)
    print(f"{path}: {len(case.records)} operations, {repr(found) if found else 'no violation'}")
    return int(found is not None)


def main(argv: list[str] | None = None) -> int:
    """Runs the command with these arguments; returns its exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    plan = _checked_plan(parser, args)
    started = time.monotonic()
    try:
        if args.replay is not None:
            return _replay(args.replay, plan)
        outcome = _run(plan, args.jobs)
    except Failure as failure:
        _keep(failure, plan, args.out)
        return 1
    except (OSError, ValueError) as error:
        parser.error(str(error))
    _print(plan, outcome)
    seconds = time.monotonic() - started
    rate = outcome.ops.total() / max(seconds, 1e-9)
    print(f"{seconds:.1f} s, {rate:,.0f} operations a second", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
