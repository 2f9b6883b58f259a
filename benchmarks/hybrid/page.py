"""Writes docs/hybrid-hit-rates.md from the newest result of ``python -m benchmarks.hybrid``.

python -m benchmarks.hybrid.page          # rewrites the page
python -m benchmarks.hybrid.page --check  # exits with 1 if that would change it
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.hybrid.shapes import SHAPES
from benchmarks.peers.results import newest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PAGE = Path(__file__).parents[2] / "docs" / "hybrid-hit-rates.md"
NONE = "\u2013"

HEAD = """\
# Hit rates of hybrid models

Token hit rates of blockmgr and of vLLM in pools of as many bytes, for models that mix full
attention with windows or with a recurrent state.

<!-- Written by `python -m benchmarks.hybrid.page` from benchmarks/results. Do not edit. -->
"""

HOW = """\
## How to read the tables

A pool of 100 % holds the bytes of a manager that never evicts and keeps each prompt to its last 64
tokens. Each cell has the hit rate of blockmgr, the best one of vLLM's settings, and their ratio.
vLLM has one order of eviction, that of LRU. A dash means that the pool is too small for the largest
prompt, or was not measured. Both managers run one request at a time, in chunks of 8,192 tokens.
Outputs are left out, because the traces do not have their tokens. Prompts are cut to whole ids of
the trace. All runs of one version of vLLM decide alike, so its rates may be those of a run beside
an earlier version of blockmgr.

A prompt that a manager cannot run in so few pages counts as one that finds nothing: with windows,
vLLM refuses some of the agents' longest prompts at 10 and 20 %.

*Outside* is the share of cached pages that no prompt can find which goes on where a forward
stopped. With windows, a pool also keeps those of places that prompts only passed, as long as there
is room; a prompt that diverges there finds them, but they count as outside here. *Unfilled* is the
share of the cached bytes behind the last token of a page of attention. Both are taken at the end of
a run; of several pools the table has the largest value.
"""


def _percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.1f}"


def _table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    head = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    return "\n".join([*head, *("| " + " | ".join(line) + " |" for line in lines)]) + "\n"


def best(rates: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The result with the highest hit rate; ``None`` if there is none."""
    return max(rates, key=lambda rate: float(rate["hit_rate"]), default=None)


def _cell(cell: dict[str, Any], order: str) -> str:
    ours = best([rate for rate in cell["ours"] if rate["setting"] == order])
    theirs = best(cell["vllm"])
    if ours is None:
        return NONE
    if theirs is None:
        return _percent(ours["hit_rate"])
    pair = f"{_percent(ours['hit_rate'])} / {_percent(theirs['hit_rate'])}"
    if not theirs["hit_rate"]:
        return pair
    return f"{pair} ({ours['hit_rate'] / theirs['hit_rate']:.2f})"


def _largest(cells: Iterable[dict[str, Any]], side: str, key: str) -> str:
    values = [rate[key] for cell in cells for rate in cell[side] if rate[key] is not None]
    return _percent(max(values, default=None))


def _rows(cells: Sequence[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for cell in cells:
        rows.setdefault((cell["shape"], cell["trace"]), []).append(cell)
    return rows


def _rates(result: dict[str, Any], order: str) -> str:
    """Hit rates by capacity, with one order of eviction."""
    percents = sorted({cell["percent"] for cell in result["cells"]})
    lines = []
    for (shape, trace), cells in _rows(result["cells"]).items():
        by_percent = {cell["percent"]: _cell(cell, order) for cell in cells}
        pools = [by_percent.get(percent, NONE) for percent in percents]
        lines.append([f"{shape}, {trace}", *pools, _percent(cells[0]["unbounded"])])
    return _table(["shape, trace", *(f"{p} %" for p in percents), "never evicting"], lines)


def page(result: dict[str, Any]) -> str:
    """The whole page."""
    rows = _rows(result["cells"])
    orders = dict.fromkeys(rate["setting"] for cell in result["cells"] for rate in cell["ours"])
    bytes_ = [
        [f"{shape}, {trace}", *(_largest(cells, *column) for column in (
            ("ours", "outside"), ("vllm", "outside"), ("ours", "unfilled")
        ))]
        for (shape, trace), cells in rows.items()
    ]  # fmt: skip
    names = list(result["worlds"][0]["found"]) if result["worlds"] else []
    settings = sorted({name for world in result["worlds"] for name in world["found"]} - set(names))
    worlds = [
        [
            f"#{world['report']}: {world['told']}",
            *(
                f"{found['prompts']} of {world['prompts'] - 1}, {found['tokens']:,}"
                if (found := world["found"].get(name))
                else NONE
                for name in (*names, *settings)
            ),
        ]
        for world in result["worlds"]
    ]
    about = result["machine"]
    shapes = "\n".join(f"- **{shape.name}**: {shape.layers}" for shape in SHAPES.values())
    return "\n".join(
        (
            HEAD,
            f"- **Systems**: blockmgr {about['versions'].get('blockmgr')}, {result['peer']}\n"
            f"- **Command**: `benchmarks/hybrid/run FOLDER TRACE ...`, the first "
            f"{result['requests']:,} requests of each trace\n{shapes}\n",
            "## Hit rates in %, blockmgr / vLLM (ratio)\n",
            *(f'With `eviction="{order}"`:\n\n{_rates(result, order)}' for order in orders),
            "## Bytes that no prompt can use, in %\n",
            _table(["shape, trace", "outside, ours", "outside, vLLM", "unfilled, ours"], bytes_),
            "## Small worlds of reports to vLLM\n",
            "Prompts that find something, of all after the first, and the tokens that they find.\n",
            _table(["report", *names, *settings], worlds),
            HOW,
        )
    )


def main() -> int:
    """Rewrites the page, or says whether that would change it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    result = newest("hybrid")
    if result is None:
        print("no result of python -m benchmarks.hybrid in benchmarks/results")
        return 1
    text = page(result)
    if arguments.check:
        return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
