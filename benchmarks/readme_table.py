"""Writes the numbers of the newest results into README and docs/costs.md.

python -m benchmarks.readme_table          # rewrites the text between the markers of both pages
python -m benchmarks.readme_table --check  # exits with 1 if that would change one of them
"""

import argparse
import sys
from pathlib import Path

from benchmarks.peers.results import Result, newest

ROOT = Path(__file__).parent.parent
README, COSTS = ROOT / "README.md", ROOT / "docs" / "costs.md"
SUMMARY, TABLE = "benchmark-summary", "benchmark-table"

# Operation in the results, its description, and the key of its row in the peers' results.
ROWS = (
    ("warm match, 32k tokens, array", "warm prefix match, a block", "match/usual"),
    ("warm admit, 32k tokens, array", "warm admit, a block", "admit/usual"),
    ("cold admit + commit", "cold admit and commit, a new block", "cold"),
    ("free", "free, a block", "free/usual"),
    ("decode of 1,024", "decode step, 1,024 sequences", "decode/1024"),
    ("fork of 2,048 blocks x 8", "fork of 2,048 blocks, eight children", "fork"),
    (
        "match, 1 M blocks, cache-missing",
        "match in 1 M blocks, cache-missing, a block",
        "match/usual/scattered",
    ),
    ("a block of 16", "memory, a block of 16 tokens", None),
    ("import blockmgr", "`import blockmgr`", None),
)
# Columns: the start and the end of a peer's name.
PEERS = {"vLLM 0.33": ("vLLM 0.33", "xxhash"), "SGLang 0.5.23": ("SGLang 0.5.23", "Rust tree")}


def _ratio(result: Result, key: str | None, begin: str, end: str) -> float | None:
    row = result.row(key) if key else None
    cells = row.document["cells"] if row else []
    fitting = [c for c in cells if c["peer"].startswith(begin) and c["peer"].endswith(end)]
    return row.ratio(fitting[0]) if row and fitting else None


def table() -> str:
    """The table of docs/costs.md and the line under it."""
    budgets, peers = newest("") or {}, Result(newest("peers") or {})
    measured = {row["name"]: row for row in budgets["results"]}
    lines = [
        "| work | measured | budget | " + " | ".join(f"{name} takes" for name in PEERS) + " |",
        "|---|---|---|" + "---|" * len(PEERS),
    ]
    for name, words, key in ROWS:
        row = measured[name]
        cells = [words, _amount(row), f"{row['budget']:,g} {_unit(row)}"]
        for peer in PEERS.values():
            ratio = _ratio(peers, key, *peer)
            cells.append("" if ratio is None else f"{_times(ratio)} x")
        lines.append("| " + " | ".join(cells) + " |")
    about = budgets["machine"]
    lines += [
        "",
        f"Minima of {measured['free']['repetitions']} runs, block size 16,",
        "prompts of 32,768 tokens;",
        f"{about['processors']} cores of an {about['processor']},",
        f"Python {about['versions']['python']}.",
        "What a peer takes is a ratio of minima of one run of both; vLLM with its fastest hash,",
        "SGLang with its Rust tree and its allocator, on the CPU.",
        "[Every row and every peer](benchmarks.md).",
    ]
    return "\n".join(lines)


def summary() -> str:
    """README's sentences: our times for a hit and a decode step, and the peers' times."""
    budgets, peers = newest("") or {}, Result(newest("peers") or {})
    measured = {row["name"]: row for row in budgets["results"]}
    match, decode, scattered = ROWS[0], ROWS[4], ROWS[6]
    taken = {
        (row, peer): _times(ratio)
        for row in (match, decode, scattered)
        for peer, ends in PEERS.items()
        if (ratio := _ratio(peers, row[2], *ends)) is not None
    }
    others = "; ".join(
        f"{peer} takes {taken[match, peer]} and {taken[decode, peer]} times as long"
        for peer in PEERS
    )
    return "\n".join(
        [
            f"A hit takes {_amount(measured[match[0]])} a block, and a decode step of 1,024",
            f"sequences {_amount(measured[decode[0]])}. {others}.",
            "Where a large pool misses the processor's caches, a hit takes vLLM and SGLang",
            f"{' and '.join(taken[scattered, peer] for peer in PEERS)} times as long",
            "([how this was measured](docs/costs.md)).",
        ]
    )


def _unit(row: dict) -> str:
    return row["unit"].removesuffix("/block").replace("bytes", "B")


def _amount(row: dict) -> str:
    return f"{row['minimum']:,.1f} {_unit(row)}"


def _times(ratio: float) -> str:
    return f"{ratio:.{1 if ratio < 10 else 0}f}"


def _rewritten(text: str, name: str, content: str) -> str:
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    head, rest = text.split(begin)
    _, tail = rest.split(end)
    return f"{head}{begin}\n{content}\n{end}{tail}"


def main() -> None:
    """Rewrites both pages, or checks them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.readme_table", description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit with 1 instead of writing")
    arguments = parser.parse_args()
    for page, name, content in ((README, SUMMARY, summary()), (COSTS, TABLE, table())):
        text = page.read_text(encoding="utf-8")
        wanted = _rewritten(text, name, content)
        if arguments.check and wanted != text:
            sys.exit(f"the numbers of {page.name} are not those of benchmarks/results")
        page.write_text(wanted, encoding="utf-8")


if __name__ == "__main__":
    main()
