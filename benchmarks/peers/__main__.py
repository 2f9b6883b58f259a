"""How does blockmgr compare with the systems people would otherwise use?

All systems do the same work through one interface, in this process, in turns. Start it with
``benchmarks/peers/run FOLDER``, which makes the environment that they need. It writes a JSON
result, from which ``python -m benchmarks.peers.page`` makes docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
import warnings
from functools import partial
from pathlib import Path

from rich.console import Console

from benchmarks.measure import machine, machine_name, repeat_command
from benchmarks.peers import registry, runner
from benchmarks.peers.rows import FULL, TINY
from benchmarks.peers.turns import Effort

RESULTS = Path(__file__).parent.with_name("results")
TRACE_HINT = "traces known by hash ids, such as Mooncake's (FAST'25 release)"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each system")
    parser.add_argument("--burst", type=int, default=20, help="maximum of timed runs in a turn")
    parser.add_argument("--seconds", type=float, default=0.05, help="time limit of a turn")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds to build a pool")
    parser.add_argument("--traces", type=Path, nargs="+", default=[], help=TRACE_HINT)
    parser.add_argument("--requests", type=int, default=1000, help="replayed at block size 16")
    parser.add_argument("--peers", nargs="+", default=list(registry.PEERS), metavar="NAME")
    parser.add_argument("--parts", nargs="+", default=list(runner.PARTS), choices=runner.PARTS)
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, to check that it runs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON result")
    return parser.parse_args()


def main() -> None:
    """Times everything, prints a table, writes the result."""
    arguments = _arguments()
    warnings.simplefilter("ignore")  # of the peers' imports
    logging.disable(logging.WARNING)
    say = partial(Console(stderr=True).print, markup=False, highlight=False, soft_wrap=True)
    started = time.perf_counter()
    peers, left_out = [], []
    for name, peer in registry.load(arguments.peers):
        if isinstance(peer, ImportError):
            left_out.append({"peer": name, "reason": f"cannot be imported: {peer}"})
        else:
            peers.append(peer)
    one_thread()
    _heap = warm_heap()
    effort = Effort(arguments.rounds, arguments.burst, arguments.seconds)
    run = runner.Run(peers, TINY if arguments.tiny else FULL, effort, say)
    about = machine()
    document = {
        "command": repeat_command("benchmarks.peers"),
        "machine": about,
        "peers": [peer.name for peer in peers],
        "left_out": left_out,
        "rows": run.rows() if "rows" in arguments.parts else [],
        "scattered": run.scattered() if "scattered" in arguments.parts else [],
        "growth": run.growth(arguments.limit) if "growth" in arguments.parts else [],
        "replay": [
            row
            for trace in (arguments.traces if "replay" in arguments.parts else ())
            for row in run.replay(trace, arguments.requests)
        ],
    }
    document["seconds"] = round(time.perf_counter() - started)
    arguments.results.mkdir(parents=True, exist_ok=True)
    name = f"{machine_name(about)}-{about['versions']['blockmgr']}-peers.json"
    path = arguments.results / name
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    say(f"written to {path} after {document['seconds']} s")


def one_thread() -> None:
    """Limits torch, if a peer imported it, to one thread: turns would otherwise share cores."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def warm_heap(num_bytes: int = 256 << 20) -> list[bytes]:
    """Makes the interpreter keep memory for small objects, as a long-running server does.

    Otherwise a system that creates an object for each block would pay for fresh pages of the
    operating system in every run. The caller must keep the result alive: it holds a few objects in
    each arena.
    """
    size = 480  # the largest objects that do not use malloc
    return [bytes(size) for _ in range(num_bytes // size)][:: (1 << 18) // size]


if __name__ == "__main__":
    main()
