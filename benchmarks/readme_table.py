"""Which numbers does the README show? Those of the newest results, written by this script.

python -m benchmarks.readme_table          # rewrites the table between README's markers
python -m benchmarks.readme_table --check  # exits with 1 if that would change it
"""

import argparse
import json
import re
import sys
from pathlib import Path

from benchmarks.budgets import RESULTS
from benchmarks.peers.results import Result, newest

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- benchmark-table:begin -->", "<!-- benchmark-table:end -->"

# Operation in the results, words for it, and the key of its row among the peers' results.
ROWS = (
    ("warm match, 32k tokens, array", "warm prefix match, a block", "match/usual"),
    ("warm admit, 32k tokens, array", "warm admit, a block", "admit/usual"),
    ("cold admit + commit", "cold admit, a new block, digest included", "cold"),
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
# Columns: how the name of a peer begins and ends.
PEERS = {"vLLM 0.33": ("vLLM 0.33", "xxhash"), "SGLang 0.5.23": ("SGLang 0.5.23", "Rust tree")}


def _budgets() -> dict:
    """The newest of ``benchmarks.budgets``, named by machine and version alone."""
    paths = [p for p in RESULTS.glob("*.json") if re.fullmatch(r".*-\d+(\.\d+)+", p.stem)]
    return json.loads(max(paths, key=lambda p: p.name).read_text(encoding="utf-8"))


def _ratio(result: Result, key: str | None, begin: str, end: str) -> float | None:
    row = result.row(key) if key else None
    cells = row.document["cells"] if row else []
    fitting = [c for c in cells if c["peer"].startswith(begin) and c["peer"].endswith(end)]
    return row.ratio(fitting[0]) if row and fitting else None


def table() -> str:
    """The README's table and the line under it."""
    budgets, peers = _budgets(), Result(newest("peers") or {})
    measured = {row["name"]: row for row in budgets["results"]}
    lines = [
        "| work | measured | budget | " + " | ".join(f"{name} takes" for name in PEERS) + " |",
        "|---|---|---|" + "---|" * len(PEERS),
    ]
    for name, words, key in ROWS:
        row = measured[name]
        unit = row["unit"].removesuffix("/block").replace("bytes", "B")
        cells = [words, f"{row['minimum']:,.1f} {unit}", f"{row['budget']:,.0f} {unit}"]
        for peer in PEERS.values():
            ratio = _ratio(peers, key, *peer)
            cells.append("" if ratio is None else f"{ratio:.{1 if ratio < 10 else 0}f} x")
        lines.append("| " + " | ".join(cells) + " |")
    about = budgets["machine"]
    lines += [
        "",
        f"Minima of {measured['free']['repetitions']} runs, block size 16,",
        "prompts of 32,768 tokens;",
        f"{about['processors']} cores of an {about['processor']},",
        f"Python {about['versions']['python']}.",
        "What a peer takes is a ratio of minima of the same run; vLLM with its fastest hash,",
        "SGLang with its Rust tree and its allocator, on the CPU.",
        "[Every row and every peer](docs/benchmarks.md).",
    ]
    return "\n".join(lines)


def main() -> None:
    """Rewrites the table, or checks it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.readme_table", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing")
    arguments = parser.parse_args()
    text = README.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    wanted = f"{head}{BEGIN}\n{table()}\n{END}{tail}"
    if arguments.check and wanted != text:
        sys.exit("README's numbers are not those of benchmarks/results; run it without --check")
    README.write_text(wanted, encoding="utf-8")


if __name__ == "__main__":
    main()
