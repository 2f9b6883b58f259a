"""What do hybrid models find in the cache, compared with vLLM in a pool of equal size?

Replays the prompts of traces, one request at a time, through ``BlockManager(groups=...)`` and
through vLLM's ``KVCacheManager``, with each of its settings. Both run prompts in chunks of 8,192
tokens; ours stops where ``stops`` says, theirs where its scheduler ends a chunk. Outputs are left
out, because the traces do not contain them. Start it with ``benchmarks/hybrid/run FOLDER``, which
makes the environment that vLLM needs. Without vLLM only our side runs. vLLM decides alike in each
run, so ``--peer-from`` takes its rates from an earlier result, of the same prompts and pools.

Run: python -m benchmarks.hybrid TRACE ... [--requests 2000] [--shapes ...] [--percents 2 5 10]
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.hybrid import worlds
from benchmarks.hybrid.prompts import prompts_of
from benchmarks.hybrid.rates import PERCENTS, cells
from benchmarks.hybrid.shapes import SHAPES
from benchmarks.measure import machine, machine_name, repeat_command
from blockmgr.config import EVICTION_POLICIES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.hybrid.audit import Side
    from benchmarks.hybrid.shapes import Shape

RESULTS = Path(__file__).parent.with_name("results")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hybrid", description=__doc__)
    parser.add_argument("traces", nargs="*", type=Path, metavar="TRACE")
    parser.add_argument("--requests", type=int, default=2000, help="first requests of each trace")
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--percents", nargs="+", type=int, default=list(PERCENTS))
    parser.add_argument("--evictions", nargs="+", default=["lru"], choices=EVICTION_POLICIES)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON result")
    parser.add_argument("--peer-from", type=Path, help="earlier result that has vLLM's rates")
    parser.add_argument("--print", action="store_true", help="do not write a result")
    return parser.parse_args()


def _no_others(shape: Shape, pages: int) -> Iterator[tuple[Side, str, int]]:
    del shape, pages
    return iter(())


def _vllm() -> tuple[Any, str]:
    """A factory of vLLM's managers, and vLLM's version or the reason why it is left out."""
    try:
        from benchmarks.hybrid.vllm_side import VERSION, Vllm, settings_of
    except ImportError as error:
        return _no_others, f"vLLM left out, cannot be imported: {error}"

    hashes: dict[tuple[int, bytes], list[bytes]] = {}

    def make(shape: Shape, pages: int) -> Iterator[tuple[Side, str, int]]:
        for setting in settings_of(shape):
            yield Vllm(shape, pages, setting, hashes), str(setting), setting.unit or shape.page

    return make, f"vLLM {VERSION}"


class _Earlier:
    """vLLM's part of an earlier result."""

    def __init__(self, path: Path) -> None:
        self.result = json.loads(path.read_text(encoding="utf-8"))
        number = self.result["machine"]["versions"]["blockmgr"]
        self.peer = f"{self.result['peer']} with the rates of its run beside blockmgr {number}"

    def complete(self, cell: dict[str, Any]) -> None:
        """Adds vLLM's rates to a cell of the same prompts in a pool of as many pages."""
        same = ("trace", "shape", "percent", "pages", "unbounded", "shared")
        for earlier in self.result["cells"]:
            if all(earlier[name] == cell[name] for name in same):
                cell["vllm"] = earlier["vllm"]
                return
        raise SystemExit(f"the earlier result has no cell like {[cell[name] for name in same]}")

    def complete_world(self, row: dict[str, Any]) -> None:
        """Likewise for a small world."""
        [earlier] = [each for each in self.result["worlds"] if each["told"] == row["told"]]
        row["found"] = earlier["found"] | row["found"]


def _show(cell: dict[str, Any]) -> None:
    head = f"{cell['trace']}, {cell['shape']}, {cell['percent']} % ({cell['pages']:,} pages)"
    rates = [(side, rate) for side in ("ours", "vllm") for rate in cell[side]]
    shown = [
        f"{side} {rate['setting']} {100 * rate['hit_rate']:.2f}"
        + (f" ({rate['refused']} refused)" if rate["refused"] else "")
        + f" [outside {100 * rate['outside']:.1f}"
        + (f", unfilled {100 * rate['unfilled']:.1f}]" if rate["unfilled"] is not None else "]")
        for side, rate in rates
    ]
    print(f"{head}: {'; '.join(shown) or 'too small for the largest prompt'}", flush=True)


def _save(result: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Writes the results so far, after each cell: a run takes an hour."""
    about = result["machine"]
    number = about["versions"].get("blockmgr", "unknown")
    path = arguments.results / f"{machine_name(about)}-{number}-hybrid.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Replays every cell, prints the rates and writes the result."""
    arguments = _arguments()
    warnings.simplefilter("ignore")  # of vLLM's imports
    logging.disable(logging.WARNING)
    arguments.results.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    earlier = _Earlier(arguments.peer_from) if arguments.peer_from else None
    theirs, peer = (_no_others, earlier.peer) if earlier else _vllm()
    print(peer, flush=True)
    result: dict[str, Any] = {
        "command": repeat_command("benchmarks.hybrid"),
        "machine": machine(),
        "peer": peer,
        "requests": arguments.requests,
        "cells": [],
        "worlds": [],
    }
    for world in worlds.WORLDS:
        row = worlds.compare(world, with_vllm=theirs is not _no_others)
        if earlier:
            earlier.complete_world(row)
        result["worlds"].append(row)
        print(worlds.shown(row), flush=True)
    for path in arguments.traces:
        prompts = prompts_of(path, arguments.requests)
        for name in arguments.shapes:
            found = cells(
                path.name,
                prompts,
                SHAPES[name],
                theirs,
                evictions=arguments.evictions,
                percents=arguments.percents,
            )
            for cell in found:
                if earlier:
                    earlier.complete(cell)
                result["cells"].append(cell)
                _show(cell)
                if not arguments.print:
                    _save(result | {"seconds": round(time.perf_counter() - started)}, arguments)


if __name__ == "__main__":
    sys.exit(main())
