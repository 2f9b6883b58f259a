"""Writes docs/benchmarks.md from the newest results.

python -m benchmarks.peers.page          # rewrites the page
python -m benchmarks.peers.page --check  # exits with 1 if that would change it
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.peers import facts
from benchmarks.peers.results import RESULTS, Result, RowResult, newest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"

NONE = "\u2013"

HEAD = """\
# Benchmarks

The host time of KV-cache management, for blockmgr and for other systems. All systems run in one
process and one run, and take turns at the same work through one small interface.

<!-- Written by `python -m benchmarks.peers.page` from benchmarks/results. Do not edit. -->
"""

HOW = """\
## How to read the tables

A ratio is the time of a system over the time of blockmgr: above 1 the system is slower. Times are
minima, in nanoseconds for a block of 16 tokens, a step or a call; on a shared machine, longer
times are mostly noise. Each run is checked: tokens found, blocks taken, blocks free again. The
timed part is the call that an engine on that system would make, and one Python call around it.
Each system gets prompts in the form that it reads fastest, made outside the timed part. blockmgr
gets arrays; its line *from lists* shows the extra time for a list of ints, and is not part of
the summary. Garbage collection is off while a call is timed.

*Alone* is SGLang's tree without its allocator, which is only a part of an admission. *As it is*
is a port of the algorithm with the data structures that its source describes; *tuned* is the same
algorithm with the best data structures we know. The repository has no code of these projects.
"""

NOT_SHOWN = """\
## What the numbers do not show

- **Whole engines.** There is no model, no tensor and no GPU work. The gain of a step depends on its
  share of host time.
- **SGLang on a GPU.** Its allocator works on tensors, here on the CPU, which costs its short calls
  some hundred microseconds. On a GPU it would launch kernels instead. Its Python layers between
  scheduler and tree are left out, in its favour.
- **Identity.** vLLM trusts its hashes; blockmgr and the trees compare tokens. blockmgr proves a
  hit block by block.
- **A prompt as one node.** A radix tree keeps a prompt from which no other prompt diverges as one
  node of any length, with one comparison and one lock. That is its best case, and the one timed
  here, except in the trace, where prompts diverge.
- **Threads.** One thread calls, and torch has one.
- **Hit rates.** Systems evict in different orders; `blockmgr replay` compares orders at equal
  work.
- **Other machines.** All numbers come from one machine, named above. Ratios depend on the size of
  its caches.
"""


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def _times(value: float | None) -> str:
    if value is None:
        return NONE
    return f"{value:,.0f}" if value >= 100 else f"{value:,.{1 if value >= 10 else 2}f}"


def _table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    head = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    return "\n".join([*head, *("| " + " | ".join(line) + " |" for line in lines)]) + "\n"


def _about(result: Result) -> str:
    document, machine = result.document, result.document["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    lines = [
        f"- **Machine**: {machine['processors']} cores of an {machine['processor']}, "
        f"{machine['system']}; load average {machine['load_average']:.1f} at the end",
        f"- **Versions**: {versions}",
        f"- **Systems**: {'; '.join(document['peers'])}",
        *(f"- **Left out**: {out['peer']}, {out['reason']}" for out in document["left_out"]),
        f"- **Command**: `benchmarks/peers/run FOLDER{_options(document['command'])}`, "
        f"{document['seconds']} seconds; then `python -m benchmarks.peers.page`",
    ]
    return "\n".join(lines) + "\n"


def _options(command: str) -> str:
    return command.removeprefix("python -m benchmarks.peers")


def _fastest(rows: Iterable[RowResult]) -> str:
    lines = []
    for row in rows:
        if "min_ns" not in row.ours:
            lines.append((row.name, row.unit, row.ours["reason"], "", "", ""))
            continue
        ours = _number(row.ours["min_ns"])
        if not row.timed_peers:
            lines.append((row.name, row.unit, ours, "no other system can", "", ""))
            continue
        best = row.timed_peers[0]
        ratios = (_times(row.ratio(best)), _times(row.ratio(best, "median_ns")))
        lines.append((row.name, row.unit, ours, best["peer"], *ratios))
    headings = ("work", "for a", "blockmgr, ns", "fastest other system", "ratio", "of medians")
    return _table(headings, lines)


def _short(peer: str) -> str:
    return re.sub(r"^blockmgr [\d.]+, ", "", peer).replace("'s algorithm", "")


def _all_ratios(result: Result) -> str:
    peers = result.document["peers"][1:]
    lines = [
        (row.name, *(_times(row.ratio(row.cells[peer])) for peer in peers))
        for row in result.compared
    ]
    return _table(("work", *map(_short, peers)), lines)


def _cannot(result: Result) -> str:
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in [*result.compared, *result.part("growth")]:
        for cell in row.document["cells"]:
            if "reason" in cell:
                place = reasons.setdefault((cell["peer"], cell["reason"]), [])
                if row.name not in place:
                    place.append(row.name)
    lines = [(_short(peer), reason, "; ".join(names)) for (peer, reason), names in reasons.items()]
    return _table(("system", "why not", "work"), lines)


def _growth(result: Result) -> str:
    parts = []
    for operation, by_size in result.growth().items():
        unit = next(iter(by_size.values())).unit
        headings = (f"{operation}, ns for a {unit}", *(f"{size:,} blocks" for size in by_size))
        lines = []
        for peer in result.document["peers"]:
            cells = [row.cells[peer].get("min_ns") for row in by_size.values()]
            if any(cells):
                lines.append((_short(peer), *(_number(cell) if cell else NONE for cell in cells)))
        parts.append(_table(headings, lines))
    return "\n".join(parts)


def _replay(result: Result) -> str:
    parts = []
    for row in result.part("replay"):
        lines = []
        for cell in row.document["cells"]:
            if "min_ns" in cell:
                microseconds = _number(cell["min_ns"] / 1000)
                rate = f"{cell['hit_rate']:.1%}"
                lines.append((_short(cell["peer"]), microseconds, _times(row.ratio(cell)), rate))
        pool = f"in {row.document['blocks']:,} blocks"
        headings = (f"{row.name}, {pool}", "µs a request", "ratio", "tokens found, sampled")
        parts.append(_table(headings, lines))
    return "\n".join(parts)


def _summary(result: Result) -> str:
    return _table(("comparison", "measured"), facts.comparisons(result))


def _budgets(result: Result) -> str:
    return _table(("work", "measured", "budget"), facts.budgets(result))


def _gaps(result: Result) -> str:
    lines = list(facts.gaps(result))
    if not lines:
        return "Every other row is at least twice as fast as the fastest system that can do it.\n"
    return _table(("work", "fastest other system", "ratio", "why"), lines)


def _step(document: dict[str, Any] | None) -> list[str]:
    """The results of ``benchmarks.step``, if it was run."""
    if document is None:
        return []
    lines = [
        (str(side["side"]), _number(side["median_us"]), _number(side["minimum_us"]))
        for side in document["results"]
    ]
    text = f"A batch of 1,024 with arrivals, ends, forks and copies; `{document['command']}`.\n"
    return ["## A step, end to end\n", text, _table(("side", "median, µs", "minimum, µs"), lines)]


def _memory(document: dict[str, Any] | None) -> list[str]:
    """The results of ``benchmarks.startup``, if it was run."""
    if document is None:
        return []
    lines = [
        (w["what"], f"{w['bytes']:,.1f}", NONE if w["budget"] is None else f"{w['budget']:,}")
        for w in document["weights"]
    ]
    text = "Start-up and what makes up a block: [memory](design/memory.md).\n"
    return ["## Memory\n", text, _table(("what", "bytes", "budget"), lines)]


def _engine(document: dict[str, Any] | None) -> list[str]:
    """The results of ``benchmarks.engines`` with a trace, if it was run."""
    if document is None:
        return []
    rows = document["rows"]
    columns = list(next(iter(rows.values())))
    lines = [(name, *(_number(row[column]) for column in columns)) for name, row in rows.items()]
    given = document["arguments"]
    text = (
        f"The first {given['requests']:,} requests of {document['trace']} in the scheduler of vLLM "
        f"{document['vllm']}, with blockmgr {document['machine']['versions']['blockmgr']}, "
        f"{given['seqs']} at once, blocks of 16, {given['blocks']:,} of them, "
        f"answers of at most {given['tokens']} tokens; no model runs. CPU time, medians of "
        f"{given['rounds']} rounds; `{document['command']}`.\n"
    )
    return ["## In vLLM's scheduler\n", text, _table(("manager", *columns), lines)]


def page(folder: Path = RESULTS) -> str:
    """The whole page."""
    document = newest("peers", folder)
    if document is None:
        raise FileNotFoundError(f"no *-peers.json in {folder}")
    result = Result(document)
    parts = [
        HEAD,
        _about(result),
        "## Summary\n",
        _summary(result),
        _budgets(result),
        "### Rows with a ratio below 2\n",
        _gaps(result),
        "## Every row, against the fastest system that can do it\n",
        _fastest(result.compared),
        HOW,
        "## Every row, every system\n\nRatios of minima; \u2013 where a system was not timed.\n",
        _all_ratios(result),
        "## Recorded traces\n\nAll admissions and ends, with the look-ups in them. Sixteen "
        "requests run at once; the pool holds a tenth of the distinct blocks, or what they need.\n",
        _replay(result),
        "## Growth\n\nPools full of cached prompts of 4,096 tokens.\n",
        _growth(result),
        *_engine(newest("engines", folder)),
        *_step(newest("step", folder)),
        *_memory(newest("memory", folder)),
        "## What a system was not timed at\n",
        _cannot(result),
        NOT_SHOWN,
    ]
    return "\n".join(parts)


def main() -> None:
    """Rewrites the page, or checks it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.page", description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit with 1 instead of writing")
    arguments = parser.parse_args()
    wanted = page()
    if arguments.check:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != wanted:
            sys.exit("docs/benchmarks.md is not that of benchmarks/results; run it without --check")
        return
    PAGE.write_text(wanted, encoding="utf-8")


if __name__ == "__main__":
    main()
