"""Draws mutants at random and runs tests on each: ``python -m tests.mutants.drawn``.

A line of the code is drawn, then an operator that can change it, then a change. Of the mutants that
compile to different code, the tests must kill 95 in 100. Each survivor needs a verdict in
``survivors.toml``: it is equivalent, with the reason, or it is missed so far. The exit code is 1 if
the rate is lower, if a survivor has no verdict, or if a verdict is refuted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path
from types import MappingProxyType

from tests.mutants.drawn.halves import HALVES, Hunt, all_sites
from tests.mutants.drawn.harness import LONG
from tests.mutants.drawn.site import Site, drawn
from tests.mutants.drawn.verdicts import (
    SURVIVED,
    Balance,
    Result,
    Verdict,
    balance,
    read,
    stale,
)

COUNTS = {"core": 280, "bindings": 40, "python": 100}
QUICK = 12  # mutants
QUICK_RATE = 0.5  # share that the core's own programs must find without tests in Python


def known(report: Path | None) -> dict[str, Result]:
    """Results of an interrupted run."""
    if report is None or not report.exists():
        return {}
    results = (Result(**json.loads(line)) for line in report.read_text().splitlines())
    return {result.name: result for result in results}


def believed(
    half: str, sites: Iterable[Site], verdicts: Mapping[str, Verdict]
) -> dict[str, Result]:
    """Results of known survivors, which are not tested: each would need every test."""
    return {
        site.name: Result(site.name, half, site.operator, site.line, SURVIVED, "by its verdict")
        for site in sites
        if site.name in verdicts
    }


def results(
    hunt: Hunt,
    half: str,
    sites: Iterator[Site],
    count: int,
    *,
    report: Path | None = None,
    before: Mapping[str, Result] = MappingProxyType({}),
) -> Iterator[Result]:
    """Results in the order drawn, until enough count; writes each to the report immediately."""
    counted = 0
    for site in sites:
        if counted == count:
            return
        result = before.get(site.name) or hunt.result(site, half)
        if report is not None and site.name not in before:
            with report.open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")
        counted += result.counts
        print(f"{result.state:9}{result.seconds:6.1f} s  {result.name}", flush=True)
        if result.by:
            print(f"{'':18}by {result.by}", flush=True)
        yield result


def summary(half: str, of_half: Balance) -> None:
    """One line for each kind of mutants."""
    states = ", ".join(f"{count} {state}" for state, count in sorted(of_half.states.items()))
    print(
        f"{half}: {sum(of_half.states.values())} drawn, {states}, {len(of_half.equivalent)} of "
        f"these equivalent; {of_half.killed} of {of_half.counted} killed, {of_half.rate:.1%}"
    )


def exit_code(all_of_them: Balance, least: float) -> int:
    """Prints what is wrong; returns the exit code."""
    wrongs = {
        "survived, and has no verdict": all_of_them.unjudged,
        "survived, and no test finds it so far": all_of_them.missed,
        "was killed, though a verdict says it survives": all_of_them.misjudged,
    }
    for words, names in wrongs.items():
        for name in names:
            print(f"{words}: {name}")
    if all_of_them.rate < least:
        print(f"fewer than {least:.0%} are killed")
    return int(
        all_of_them.rate < least or bool(all_of_them.unjudged) or bool(all_of_them.misjudged)
    )


def quick(args: argparse.Namespace, folder: Path) -> int:
    """Tests a few mutants of the core with its own programs alone."""
    hunt = Hunt(folder, args.cxx, args.jobs, LONG[:-1])  # without the longest run
    sites = (site for site in drawn(all_sites("core"), args.seed) if site.file.endswith(".cc"))
    of_core = balance(results(hunt, "harness", sites, QUICK), read())
    summary("core", of_core)
    if of_core.rate < QUICK_RATE:
        print(f"fewer than {QUICK_RATE:.0%} are killed")
    return int(of_core.rate < QUICK_RATE)


def main() -> int:
    """Draws and tests mutants, and compares the results with the verdicts."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.drawn", description=__doc__)
    for half in HALVES:
        parser.add_argument(
            f"--{half}", type=int, help="mutants to test; a kind that is not given then has 0"
        )
    parser.add_argument("--seed", type=int, default=1, help="seed of the random order")
    parser.add_argument(
        "--files", default="*", help="pattern of the files to draw from, such as '*/group*'"
    )
    parser.add_argument(
        "--least", type=float, default=0.95, help="share of mutants that must be killed"
    )
    parser.add_argument(
        "--report", type=Path, help="JSON lines; an interrupted run continues there"
    )
    parser.add_argument(
        "--believe",
        action="store_true",
        help="do not test mutants with a verdict: count them as survivors",
    )
    parser.add_argument(
        "--quick", action="store_true", help="only a dozen of the core, without Python"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="parallel compilers")
    parser.add_argument("--cxx", default=os.environ.get("CXX", "g++"))
    args = parser.parse_args()
    given = {half: getattr(args, half) for half in HALVES}
    counts = {half: n or 0 for half, n in given.items()} if any(given.values()) else COUNTS
    verdicts = read()
    with tempfile.TemporaryDirectory() as name:
        if args.quick:
            return quick(args, Path(name))
        hunt = Hunt(Path(name), args.cxx, args.jobs)
        found: dict[str, list[Result]] = {}
        names: set[str] = set()
        for half in HALVES:
            sites = all_sites(half)
            names.update(site.name for site in sites)
            order = drawn((s for s in sites if fnmatch(s.file, args.files)), args.seed)
            before = known(args.report)
            if args.believe:
                before = believed(half, sites, verdicts) | before
            found[half] = list(
                results(hunt, half, order, counts[half], report=args.report, before=before)
            )
    print()
    for half, of_half in found.items():
        summary(half, balance(of_half, verdicts))
    everything = balance((result for half in found.values() for result in half), verdicts)
    summary("all", everything)
    for one in stale(verdicts, names):
        print(f"the code no longer has: {one}")
    return exit_code(everything, args.least)


if __name__ == "__main__":
    sys.exit(main())
