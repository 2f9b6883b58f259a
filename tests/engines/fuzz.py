"""``python -m tests.engines.fuzz MODEL``: vLLM's scheduler on blockmgr, K/V contents modelled.

Exit code 1 if a request reads K/V that is not its own, or if, with all options of blockmgr off, a
schedule differs from that of vLLM's own manager. For this comparison, vLLM's manager is changed to
forget what blockmgr forgets (``one_copy``); the output also counts the schedules that differ from
unchanged vLLM. With several groups of layers, blockmgr evicts in another order. Schedules must then
be equal where nothing is evicted; elsewhere it must not find fewer tokens over all seeds than
chance explains. For these comparisons, vLLM's own manager keeps every window and state
(``prefix_cache_retention_interval`` of None); the output also counts what it finds by default, when
it keeps fewer. It reads wrong K/V where a chunk is not a multiple of the block size; this is
counted separately and is not a failure.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.engines.layers import HAS_RINGS
from tests.engines.world import Settings, Tally, World, compare_once, draw

ARMS: dict[str, Any] = {
    "plain": {"debug": 1},
    "partial": {"min_partial_tokens": 1, "debug": 1},
    "options": {"eviction": "s3fifo", "retention": True, "ghost_blocks": 8},
    "quotas": {"quotas": {"tenant": 6}},
}
COUNTS = (
    "steps", "preempted", "cached", "copies", "aborted", "resets", "evicted", "turns", "loaded",
    "stored",
)  # fmt: skip
DEFAULT, EVERYTHING = 0, None  # vLLM's prefix_cache_retention_interval
DRAFTS = ("ngram", "eagle")  # who proposes the draft tokens
GROUPED: dict[str, tuple[str, Any]] = {  # layers beside full attention, and options
    "windows": ("window", {"debug": 1}),
    "chunks": ("chunk", {"debug": 1}),
    "windows, partial": ("window", {"min_partial_tokens": 1, "debug": 1}),
    "chunks, partial": ("chunk", {"min_partial_tokens": 1, "debug": 1}),
    "windows, uncached": ("window", {"debug": 1}),
    "windows, eagle": ("window", {"debug": 1}),
    "windows, whole, eagle": ("window", {"debug": 1, "min_partial_tokens": 0}),
    "sizes, eagle": ("window", {"debug": 1}),
    "windows, partial, eagle": ("window", {"min_partial_tokens": 1, "debug": 1}),
    "states": ("state", {"debug": 1, "min_partial_tokens": 0}),
    "states, partial": (
        "state",
        {"debug": 1, "min_partial_tokens": 1, "halfway_stop_tokens": 1, "prompt_end_stop": 1},
    ),
    "states, ngram": ("state", {"debug": 1, "min_partial_tokens": 0}),
    "states, partial, ngram": (
        "state",
        {"debug": 1, "min_partial_tokens": 1, "halfway_stop_tokens": 1, "prompt_end_stop": 1},
    ),
    "states, eagle": ("state", {"debug": 1, "min_partial_tokens": 0}),
    "states, partial, eagle": ("state", {"debug": 1, "min_partial_tokens": 1}),
    # Not with chunks: vLLM refuses these.
    "sizes": ("window", {"debug": 1}),
    "sizes, latent": ("latent", {"debug": 1}),
    "sizes, partial": ("window", {"min_partial_tokens": 1, "debug": 1}),
    "sizes, states": ("state", {"debug": 1, "min_partial_tokens": 1}),
    # No full attention.
    "bare": ("bare", {"debug": 1}),
    "bare, partial": ("bare", {"min_partial_tokens": 1, "debug": 1}),
    "bare, uncached": ("bare", {"debug": 1}),
    "bare, eagle": ("bare", {"debug": 1}),
    "sizes, bare": ("bare", {"debug": 1}),
    "bare states": ("bare, state", {"debug": 1, "min_partial_tokens": 0}),
    "bare states, partial": ("bare, state", {"debug": 1, "min_partial_tokens": 1}),
    "bare states, ngram": ("bare, state", {"debug": 1, "min_partial_tokens": 1}),
    "connector": ("full", {"debug": 1}),
    "windows, connector": ("window", {"debug": 1}),
    "chunks, connector": ("chunk", {"debug": 1}),
    "sizes, connector": ("window", {"debug": 1}),
    "ranks": ("full", {"debug": 1}),
    "states, ranks": ("state", {"debug": 1, "min_partial_tokens": 0}),
    "bare, connector": ("bare", {"debug": 1}),
    "states, connector": ("state", {"debug": 1}),
    "states, ngram, connector": ("state", {"debug": 1}),
    "states, eagle, connector": ("state", {"debug": 1}),
    "sizes, states, connector": ("state", {"debug": 1}),
}
if HAS_RINGS:
    GROUPED |= {
        "replay": ("again", {"debug": 1}),
        "replay, partial": ("again", {"min_partial_tokens": 1, "debug": 1}),
        "replay, uncached": ("again", {"debug": 1}),
        "replay, eagle": ("again", {"debug": 1}),
        "replay, rings": ("again, ring", {"debug": 1}),
        "sizes, replay": ("again", {"debug": 1}),
        "sizes, replay, rings": ("again, ring", {"debug": 1}),
        "rings": ("ring", {"debug": 1}),
        "rings, uncached": ("ring", {"debug": 1}),
        "rings, eagle": ("ring", {"debug": 1}),
        "sizes, rings": ("ring", {"debug": 1}),
        "rings, states": ("ring, state", {"debug": 1}),
        "rings, states, ngram": ("ring, state", {"debug": 1}),
        "rings, states, eagle": ("ring, state", {"debug": 1}),
    }


# Requests find other numbers of tokens than with vLLM's own manager, so steps are others.
FINDS_MORE = (
    "windows, eagle", "sizes, eagle", "windows, partial, eagle", "bare, eagle", "replay, eagle",
)  # fmt: skip
# Behind what was loaded, the managers find other prefixes, and vLLM's own reads wrong K/V.
APART = ("windows, connector", "chunks, connector", "sizes, connector", "bare, connector")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.engines.fuzz", description=__doc__)
    parser.add_argument("model", help="folder with the config of a tiny model")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--arms", nargs="*", default=[*ARMS, *DRAFTS, *GROUPED])
    args = parser.parse_args()
    compare_once()
    bad = 0
    for arm in args.arms:
        for policy in ("fcfs", "priority"):
            runs = grouped_campaign if arm in GROUPED else campaign
            has_drafts = arm in DRAFTS or (arm.endswith("eagle") and "states" not in arm)
            for asynchronous in (False,) if has_drafts else (False, True):
                bad += runs(args, arm, policy, asynchronous)
    return int(bad > 0)


def compared(
    seed: int, model: str, policy: str, asynchronous: bool, options: Any, *, drafts: str = ""
) -> tuple[Tally, Tally, Tally]:
    """The same stream with ours, with vLLM's own manager, and with that changed to one copy."""
    stream: dict[str, Any] = {"lossless": True, "drafts": drafts}
    drawn = (
        draw(seed, model, policy, asynchronous, options, **stream),
        draw(seed, model, policy, asynchronous, None, **stream),
        draw(seed, model, policy, asynchronous, None, one_copy=True, **stream),
    )
    ours, stock, one_copy = (World(settings).run() for settings in drawn)
    return ours, stock, one_copy


def _way(asynchronous: bool) -> str:
    return "async" if asynchronous else "sync"


def is_sparse(settings: Settings) -> bool:
    """Whether vLLM's own manager keeps less by default: it does of windows and states alone."""
    return settings.caching and any(each.kind in {"window", "state"} for each in settings.layers)


def decided_alike(one: Tally, other: Tally) -> bool:
    return one.schedule == other.schedule and one.cached == other.cached


def grouped_campaign(args: argparse.Namespace, arm: str, policy: str, asynchronous: bool) -> int:
    """Runs an arm with several groups; the number of runs with wrong reads or schedules."""
    kind, options = GROUPED[arm]
    finds_more = kind.endswith("state") or arm in FINDS_MORE  # with states, chunks end elsewhere
    total, wrong, differ, stock_wrong, gaps = Tally(), [], [], 0, []
    stock_tokens = {DEFAULT: 0, EVERYTHING: 0}
    roomy = stock_roomy = 0

    def settings_of(seed: int, options: Any, *, roomy: bool = False) -> Settings:
        stream: dict[str, Any] = {"lossless": True, "kind": kind, "roomy": roomy}
        stream["calm"] = roomy and finds_more  # the same requests, though schedules differ
        stream["sized"] = arm.startswith("sizes")
        stream["remote"] = arm.endswith("connector")
        # Where a state is loaded in the step that moves it on, vLLM's own manager reads wrong ones.
        stream["waits"] = roomy and arm.endswith("connector") and "state" in kind
        stream["ranks"] = 2 if arm.endswith("ranks") else 1
        # vLLM's own manager has states inside blocks only with smaller hashes.
        is_ours = options is not None
        stream["inside"] = is_ours and not roomy and arm.endswith("states, connector") and seed % 2
        stream["caching"] = not arm.endswith("uncached")
        stream["drafts"] = next((name for name in DRAFTS if name in arm), "")
        return draw(seed, args.model, policy, asynchronous, options, **stream)

    def run(seed: int, options: Any, *, roomy: bool) -> Tally:
        return World(settings_of(seed, options, roomy=roomy)).run()

    def run_stock(settings: Settings) -> Tally:
        try:
            return World(settings).run()
        except ValueError as error:  # its sums are wrong where states are loaded
            if "free blocks from the pool" not in str(error):
                raise
            return Tally(wrong=[(0, str(error), 0)])

    for seed in range(args.first, args.first + args.seeds):
        tally, settings = run(seed, options, roomy=False), settings_of(seed, None)
        stock = sparse = run_stock(settings)
        if is_sparse(settings):
            sparse = run_stock(replace(settings, interval=DEFAULT))
        stock_tokens[EVERYTHING] += stock.cached
        stock_tokens[DEFAULT] += sparse.cached
        gaps.append(tally.cached - 0.99 * stock.cached)
        for name in COUNTS:
            setattr(total, name, getattr(total, name) + getattr(tally, name))
        stock_wrong += bool(stock.wrong)
        if tally.wrong:
            wrong.append((seed, tally.wrong[0]))
        if finds_more:
            ours, theirs = run(seed, options, roomy=True), run(seed, None, roomy=True)
            if ours.wrong:
                wrong.append((seed, ours.wrong[0]))
            roomy += ours.cached
            stock_roomy += theirs.cached
        elif arm not in APART and not options.get("min_partial_tokens"):
            ours, theirs = run(seed, options, roomy=True), run(seed, None, roomy=True)
            if not decided_alike(ours, theirs):
                differ.append((seed, theirs.cached, ours.cached))
    print(
        f"{arm}, {policy}, {_way(asynchronous)}: {args.seeds} seeds, {total.steps} steps, "
        f"{total.preempted} preempted, {total.cached} tokens cached, {stock_tokens[DEFAULT]} with "
        f"vLLM's own by default, {stock_tokens[EVERYTHING]} where it keeps every window and state, "
        f"{total.copies} copies, {total.aborted} aborted, {total.resets} resets, "
        f"{total.turns} session turns, "
        f"{total.loaded} tokens loaded, {total.stored} states stored; "
        f"{len(wrong)} with wrong reads {wrong[:3]}, {stock_wrong} of vLLM's own; "
        f"{len(differ)} scheduled otherwise in a large pool {differ[:3]}; "
        f"{roomy} tokens cached there, {stock_roomy} with vLLM's own",
        flush=True,
    )
    # Where steps are others, requests come and go at other ones, and only the large pool has the
    # same; likewise with loads that a request waits for. Sessions differ a little everywhere.
    is_alike = not finds_more and not arm.endswith("connector")
    is_less = is_alike and are_clearly_less(gaps)
    return len(wrong) + len(differ) + int(is_less) + int(roomy < 0.95 * stock_roomy)


def are_clearly_less(gaps: Sequence[float]) -> bool:
    """Whether the sum is negative by more than chance explains: three standard deviations.

    In a small pool, one eviction changes all that follows: a seed finds half as many tokens as with
    vLLM's own manager, or twice as many, and the ratio of 20 seeds differs from that of 600 by
    0.045 in the mean.
    """
    return len(gaps) > 1 and sum(gaps) < -3 * math.sqrt(len(gaps)) * statistics.stdev(gaps)


def campaign(args: argparse.Namespace, arm: str, policy: str, asynchronous: bool) -> int:
    """Runs one arm over all seeds; the number of runs with wrong reads or schedules."""
    total, wrong, differ = Tally(), [], []
    otherwise = our_tokens = stock_tokens = 0
    drafts = arm if arm in DRAFTS else ""
    options = {**ARMS["plain"], "min_partial_tokens": 0} if drafts else ARMS[arm]
    for seed in range(args.first, args.first + args.seeds):
        drawn = draw(seed, args.model, policy, asynchronous, options, drafts=drafts)
        tally = World(drawn).run()
        for name in COUNTS:
            setattr(total, name, getattr(total, name) + getattr(tally, name))
        if tally.wrong:
            wrong.append((seed, tally.wrong[0]))
        if arm == "plain" or drafts:
            ours, stock, one_copy = compared(
                seed, args.model, policy, asynchronous, options, drafts=drafts
            )
            otherwise += not decided_alike(ours, stock)
            our_tokens, stock_tokens = our_tokens + ours.cached, stock_tokens + stock.cached
            if not decided_alike(ours, one_copy):
                differ.append((seed, one_copy.cached, ours.cached, one_copy.steps, ours.steps))
    said = (
        f"{arm}, {policy}, {_way(asynchronous)}: {args.seeds} seeds, "
        f"{total.steps} steps, {total.preempted} preempted, {total.cached} tokens cached, "
        f"{total.copies} copies, {total.aborted} aborted, {total.resets} resets, "
        f"{total.evicted} loads failed, {total.turns} session turns; {len(wrong)} with wrong reads "
        f"{wrong[:3]}"
    )
    if arm == "plain" or drafts:
        said += (
            f"; {len(differ)} scheduled otherwise than vLLM with one copy of each block "
            f"{differ[:3]}, {otherwise} than vLLM ({stock_tokens} tokens cached, ours {our_tokens})"
        )
    print(said, flush=True)
    return len(wrong) + len(differ)


if __name__ == "__main__":
    sys.exit(main())
