"""Plants each bug and counts the calls until it is found: ``python -m tests.mutants``.

A bug of the core is compiled into it, without Python (see ``tests.core``), and the stress program
runs from several seeds, each of which must find the bug. A bug of the Python layer is planted in a
copy of the package, whose tests are run. For a bug of groups of layers, the stress program runs
first; its tests run only if that finds nothing, because they need a build of the extension. A bug
of groups that names tests of its own is left to these. The exit code is 1 if a mutant survives.
``--share 6 --word WORD`` plants one in six of the mutants; the word, in CI the id of the commit,
decides which.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import queue
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from tests.mutants.core import CRASHED, ENDLESS, Workshop
from tests.mutants.extension import ExtensionBuild
from tests.mutants.mutant import Mutant
from tests.mutants.planted import CORE, EXTENSION, GROUPS, PYTHON
from tests.mutants.python import tests_that_find
from tests.mutants.share import drawn_share

# Within this many calls, half of the bugs must be found. Bugs that only engines with one habit
# expose take longer, because each habit is drawn in only part of the runs.
MOST_CALLS = 2_500
Result = tuple[int | None, ...]
BUILT = (*EXTENSION, *GROUPS)


def report(mutant: Mutant, result: Result) -> None:
    """Prints one line; a dash stands for a seed that found nothing."""
    words = {None: "-", CRASHED: "crash", ENDLESS: "endless"}
    counts = "  ".join(words.get(count) or f"{count:,}" for count in result)
    # For a bug of groups, the last result is that of the tests if the stress program found nothing.
    kind = "calls" if mutant in CORE else "calls, tests" if mutant in GROUPS else "tests"
    print(f"{mutant.name:45} {kind} {counts}", flush=True)


def stressed(workshop: Workshop, mutant: Mutant, ops: int, seeds: Iterable[int]) -> Result:
    """Calls until an engine with groups finds it; ``None`` for a seed that finds nothing."""
    calls: list[int | None] = []
    for seed in seeds:
        calls += workshop.calls_until_found(mutant, ops, [seed])
        if calls[-1] is not None:
            break
    return tuple(calls)


def most_calls(found: dict[Mutant, Result], ops: int) -> dict[tuple[str, int], int]:
    """By profile and seed, the calls that the unchanged core must pass without a violation.

    The calls of a run that crashed, did not end or found nothing are unknown, so they count as the
    maximum. The number is at least ``ops``, so that the speed is measured too.
    """
    most: dict[tuple[str, int], int] = {}
    for mutant, result in found.items():
        for seed, count in enumerate(result if mutant in CORE else (), 1):
            calls = count if count and count > 0 else ops * mutant.times
            most[mutant.profile, seed] = max(calls, most.get((mutant.profile, seed), ops))
    return most


def summary(found: dict[Mutant, Result], seconds: float) -> int:
    """Prints what was found after how many calls; returns the exit code.

    The limit on the median applies only if every bug of the core was planted, because a few bugs
    may happen to be rare ones.
    """
    survivors = sorted(
        mutant.name
        for mutant, result in found.items()
        if None in (result[-1:] if mutant in GROUPS else result)
    )
    print(f"{len(found) - len(survivors)} of {len(found)} planted bugs found, {seconds:.0f} s")
    calls = [count for mutant, result in found.items() if mutant in CORE for count in result]
    known = [count for count in calls if count and count > 0]
    median = statistics.median(known) if known else 0
    if known:
        print(f"in the core after {median:,.0f} calls (median), {max(known):,} at most")
    for name in survivors:
        print(f"survived: {name}")
    too_late = median > MOST_CALLS and found.keys() >= set(CORE)
    if too_late:
        print(f"half of the bugs take more than {MOST_CALLS:,} calls")
    return 1 if survivors or too_late else 0


def options() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="mutants to run; all by default")
    half = parser.add_mutually_exclusive_group()
    half.add_argument("--core", action="store_true", help="only those of the core")
    half.add_argument("--python", action="store_true", help="only those of the Python layer")
    half.add_argument(
        "--extension",
        action="store_true",
        help="only those of the bindings, otherwise left out",
    )
    half.add_argument("--groups", action="store_true", help="only those of groups of layers")
    parser.add_argument("--ops", type=int, default=300_000, help="maximum of calls for a bug")
    parser.add_argument("--seeds", type=int, default=3, help="each seed up to this must find it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--cxx", default=os.environ.get("CXX", "g++"))
    parser.add_argument(
        "--share", type=int, default=1, metavar="N", help="one in N of the mutants; all by default"
    )
    parser.add_argument("--word", default="", help="word that selects the share")
    return parser


def wanted_by(args: argparse.Namespace, parser: argparse.ArgumentParser) -> list[Mutant]:
    """The mutants that the arguments name."""
    candidates = (*CORE, *PYTHON)
    parts = (
        (args.core, CORE),
        (args.python, PYTHON),
        (args.extension, EXTENSION),
        (args.groups, GROUPS),
    )
    for chosen, mutants in parts:
        candidates = mutants if chosen else candidates
    if unknown := set(args.names) - {mutant.name for mutant in candidates}:
        parser.error(f"no mutant is called {', '.join(sorted(unknown))}")
    if args.share < 1:
        parser.error(f"--share must be 1 or more, got {args.share}")
    named = [m for m in candidates if not args.names or m.name in args.names]
    return list(drawn_share(named, args.share, args.word))


def main() -> int:
    """Run every mutant, or those named."""
    parser = options()
    args = parser.parse_args()
    wanted = wanted_by(args, parser)
    seeds = range(1, args.seeds + 1)
    started = time.monotonic()
    found: dict[Mutant, Result] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        concurrent.futures.ThreadPoolExecutor(args.jobs) as pool,
    ):
        workshop = Workshop(Path(folder), args.cxx, pool)
        if any(mutant in CORE or mutant in GROUPS for mutant in wanted):
            workshop.prepare()
        builds: queue.SimpleQueue[ExtensionBuild] = queue.SimpleQueue()
        if any(mutant in BUILT for mutant in wanted):
            for job in range(args.jobs):
                builds.put(ExtensionBuild(Path(folder) / f"extension-{job}"))

        def find(mutant: Mutant) -> Result:
            if mutant in CORE:
                return workshop.calls_until_found(mutant, args.ops, seeds)
            if mutant in PYTHON:
                return tests_that_find(mutant)
            calls: Result = ()
            if mutant in GROUPS and mutant.profile != "all":
                calls = stressed(workshop, mutant, args.ops, seeds)
                if calls[-1] is not None:
                    return calls
            build = builds.get()
            try:
                return calls + build.tests_that_find(mutant)
            finally:
                builds.put(build)

        runs = {pool.submit(find, m): m for m in wanted}
        for run in concurrent.futures.as_completed(runs):
            found[runs[run]] = run.result()
            report(runs[run], found[runs[run]])
        if any(mutant in CORE for mutant in found):
            workshop.check_clean(most_calls(found, args.ops))
    return summary(found, time.monotonic() - started)


if __name__ == "__main__":
    sys.exit(main())
