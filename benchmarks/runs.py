"""How long are runs of node ids after churn? Run ``python -m benchmarks.runs TRACE``.

Replays a trace in Mooncake's format through the core, with decoding in between, in pools of several
sizes. The ids of one prompt are consecutive as far as possible, and a match along consecutive ids
is fast. The program counts how many blocks have consecutive ids when they are found, and when a
sequence ends. The first pool never evicts. Blocks have 64 tokens; larger blocks of the trace are
split. ``--laps`` sets how often the trace is served, each time with new content; the last lap
counts. At the end the fully cached prompts are matched, in that pool and in a fresh one of the same
size.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
CORE = HERE.parent / "blockmgr" / "csrc"
BLOCK_SIZE = 64
SHARES = (100, 50, 20, 10, 5)


@dataclass(frozen=True)
class Request:
    """Its arrival time, the number of blocks it decodes, and the blocks of its prompt."""

    time: int
    steps: int
    blocks: list[int]


def requests(trace: Path, block_size: int) -> Iterator[Request]:
    cut = block_size // BLOCK_SIZE
    with gzip.open(trace, "rt") if trace.suffix == ".gz" else trace.open() as lines:
        for line in lines:
            record = json.loads(line)
            blocks = [h * cut + i for h in record["hash_ids"] for i in range(cut)]
            whole = max(1, record["input_length"] // BLOCK_SIZE)
            steps = record["output_length"] // BLOCK_SIZE
            yield Request(int(record["timestamp"]), steps, blocks[:whole])


def build(folder: Path, cxx: str) -> Path:
    """Compiles the core and the replay as one program."""
    program = folder / "runs"
    core = [path for path in CORE.glob("*/*.cc") if path.parent.name != "bindings"]
    command = [cxx, "-O2", "-std=c++20", f"-I{CORE}", str(HERE / "runs.cc"), *map(str, core)]
    subprocess.run([*command, "-pthread", "-o", str(program)], check=True)
    return program


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.runs", description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument(
        "--block-size", type=int, default=512, help="tokens per block of the trace [512]"
    )
    parser.add_argument("--laps", type=int, default=1, help="how often the trace is served [1]")
    parser.add_argument(
        "--pools", type=int, nargs="+", default=SHARES, metavar="PERCENT",
        help="pools, in percent of what one lap fills",
    )  # fmt: skip
    parser.add_argument("--cxx", default="g++")
    args = parser.parse_args()
    if shutil.which(args.cxx) is None:
        parser.error(f"no compiler is called {args.cxx}")
    all_requests = list(requests(args.trace, args.block_size))
    distinct = len({block for request in all_requests for block in request.blocks})
    total = distinct + sum(request.steps for request in all_requests)
    lines = "".join(
        f"{r.time} {r.steps} {len(r.blocks)} {' '.join(map(str, r.blocks))}\n" for r in all_requests
    )
    columns = (
        "pool, %",
        "found",
        "in a row",
        "at the end",
        "evicted",
        "refused",
        "match, ns",
        "fresh, ns",
    )
    table = Table(*columns, box=None, header_style="")
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder), args.cxx)
        for share in args.pools:
            run = subprocess.run(
                [program, str(total * share // 100), str(args.laps)],
                input=lines, capture_output=True, text=True, check=True,
            )  # fmt: skip
            found, row, _, end, evicted, refused, worn, fresh = run.stdout.split()
            counts = f"{int(found):,}", row, end, f"{int(evicted):,}", refused
            table.add_row(str(share), *counts, worn, fresh)
    Console().print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
