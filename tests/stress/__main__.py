"""``python -m tests.stress``: random operations under three detectors."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.stress.command import DETECTORS, Command, plan_of
from tests.stress.profiles import PROFILES

EXIT_CODES = "exit codes: 0 no violation, 1 a violation, 2 wrong usage"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.stress",
        description="Random operations under invariants, a memory oracle and a model.",
        epilog=EXIT_CODES,
    )
    add = parser.add_argument
    add("--seed", type=int, default=1, help="seed of all random choices (default: 1)")
    add("--profile", default="all", help=f"all, or one of {', '.join(PROFILES)}")
    add("--ops", type=int, default=100_000, help="operations in all (default: 100,000)")
    add("--config", choices=["random", "default"], default="random", help="options of the managers")
    add("--minutes", type=float, default=0.0, help="stop after this long, whatever --ops says")
    add("--jobs", type=int, default=1, help="processes to spread the operations over (default: 1)")
    add("--detectors", default=DETECTORS, help="I invariants, K memory, D model (default: IKD)")
    add("--replay", type=Path, metavar="FILE", help="run the operations of a file instead")
    add("--json", action="store_true", help="print JSON instead of text")
    add("--out", type=Path, default=Path("stress-failure.jsonl"), metavar="FILE",
        help="where a failing run is kept")  # fmt: skip
    return parser


def main(argv: list[str] | None = None) -> int:
    """Runs the command with these arguments; returns its exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.jobs < 1:
        parser.error("--jobs must be at least 1")
    command = Command(as_json=args.json)
    try:
        plan = plan_of(
            seed=args.seed,
            profile=args.profile,
            ops=args.ops,
            config=args.config,
            minutes=args.minutes,
            detectors=args.detectors,
        )
        if args.replay is not None:
            return command.replay(args.replay, plan)
        return command.run(plan, args.jobs, args.out)
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
