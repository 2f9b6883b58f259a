"""``python -m tests.engines.mixed MODEL``: as ``fuzz``, but each seed draws what is combined.

Layers, options of blockmgr, drafts, a connector, events and the settings of vLLM's scheduler are
drawn together, until the port accepts them. Exit code 1 if a request reads K/V that is not its own,
if a run ends in an error or with blocks in use, if events differ from what can be found, or if in a
large pool clearly fewer tokens are found than by vLLM's own manager, over all seeds.
"""

from __future__ import annotations

import argparse
import random
import sys
import traceback
from collections import Counter
from dataclasses import fields, replace
from typing import Any

import vllm

from blockmgr.config import EVICTION_POLICIES
from blockmgr.ports.unsupported import UnsupportedConfigError
from blockmgr.ports.vllm import OptionError
from tests.engines.events import EventWorld
from tests.engines.layers import FULL, HAS_RINGS
from tests.engines.world import More, Settings, Tally, World, compare_once, draw, make_scheduler

KINDS = ("full", "window", "chunk", "latent", "bare", "state", "bare, state")
NEW_KINDS = ("again", "again, ring", "ring", "ring, state")  # since vLLM 0.33
IS_OLD = vllm.__version__.startswith("0.32.")


def drawn(rng: random.Random, seed: int, model: str) -> Settings:
    """A combination, which the port may refuse."""
    kind = rng.choice([*KINDS, *NEW_KINDS] if HAS_RINGS else KINDS)
    options: dict[str, Any] = {"debug": 1, "eviction": rng.choice(EVICTION_POLICIES)}
    options["min_partial_tokens"] = rng.choice([None, None, 0, 1, 3])
    if rng.random() < 0.25:
        options["quotas"] = {"tenant": 16}
    if rng.random() < 0.25:
        options["retention"] = True
    if rng.random() < 0.1:
        options["ghost_blocks"] = 8
    if "state" in kind and options["min_partial_tokens"]:
        options["halfway_stop_tokens"] = rng.choice([0, 1, 8])
        options["prompt_end_stop"] = rng.choice([None, 1, 4])
    settings = draw(
        seed,
        model,
        rng.choice(["fcfs", "priority"]),
        rng.random() < 0.5,
        options,
        lossless=kind != "full" or rng.random() < 0.5,
        kind=kind,
        sized=kind not in {"full", "chunk"} and rng.random() < 0.3,
        drafts=rng.choice(["", "", "ngram", "eagle"]),
        caching=rng.random() < 0.9,
        remote=rng.random() < 0.4,
        events=rng.random() < 0.25,
        ranks=2 if rng.random() < 0.15 else 1,
        inside=rng.random() < 0.3,
    )
    checkpoints = settings.has_states and rng.random() < 0.3
    more = draw_more(random.Random(f"more {seed}"), settings)
    if more.hints and options.get("retention"):
        options = {**settings.options, "kv_hints": True, "max_pinned_blocks": 8}
    return replace(
        settings,
        options=options if more.hints and "kv_hints" in options else settings.options,
        more=more,
        eagle=settings.eagle and settings.drafts > 0,
        checkpoints=checkpoints,
        num_blocks=settings.num_blocks + 50 * checkpoints,
        talkative=rng.random() < 0.3,
        calm=rng.random() < 0.1,
        watermark=rng.choice([0.0, 0.0, 0.1]),
        reserves=rng.random() < 0.7,
    )


def draw_more(rng: random.Random, settings: Settings) -> More:
    """Further settings of vLLM's scheduler, and what its requests have."""
    scheduling = {
        # vLLM fails where it is less than a step with drafts takes.
        "long_prefill_token_threshold": rng.choice([0, 0, 8, 20, 8 if settings.drafts else 3]),
        "long_prefill_token_threshold_adaptive": rng.random() < 0.5,
        "prefill_schedule_interval": rng.choice([1, 1, 1, 3]),
        "max_num_active_seqs": rng.choice([None, None, settings.max_seqs // 2 + 1]),
    }
    # vLLM's first model runner has no pipeline stages with asynchronous steps.
    is_whole = settings.asynchronous and not settings.has_runner_v2
    more = More(
        tuple(scheduling.items()),
        stages=1 if is_whole or rng.random() < 0.7 else rng.choice([2, 3]),
        pauses=rng.random() < 0.2,
        stops=rng.random() < 0.3,
        images=rng.random() < 0.3,
        hints=rng.random() < 0.3,
        short_drafts=rng.random() < 0.4,
        # Where a session stops, vLLM's workers may have moved its states further on. Before 0.33,
        # vLLM fails where one that had drafts continues.
        streams=not (settings.has_states or (settings.drafts and IS_OLD)) and rng.random() < 0.4,
        sends=rng.random() < 0.4,
        unsure=rng.random() < 0.3,
        losses=rng.random() < 0.4,
        running_resets=rng.random() < 0.5,
        unordered=settings.remote and rng.random() < 0.5,
        fails=rng.random() < 0.4,
        sleeps=rng.random() < 0.3,
        returns=rng.random() < 0.5,
        slow=rng.random() < 0.2,
    )
    # Where other steps are in flight, vLLM goes on from what they computed of what failed.
    is_known = not (settings.asynchronous or more.stages > 1 or more.streams)
    is_first = settings.remote and settings.layers == FULL and (more.fails or is_known)
    return replace(more, fails_in_step=is_first and rng.random() < 0.5)


def accepted(seed: int, model: str, refused: Counter[str]) -> Settings:
    """The first combination of a seed that the port accepts."""
    rng = random.Random(f"mixed {seed}")
    while True:
        settings = drawn(rng, seed, model)
        if settings.length < 24:
            continue
        try:
            make_scheduler(settings)
        except UnsupportedConfigError as error:
            refused.update(error.reasons)
        except OptionError as error:
            refused[str(error)] += 1
        else:
            return settings


def described(settings: Settings) -> str:
    """What differs from a world with one group and no options."""
    shown = [
        f"{row.name}={getattr(settings, row.name)!r}"
        for row in fields(settings)
        if row.name not in {"seed", "model"} and getattr(settings, row.name) != row.default
    ]
    return ", ".join(shown)


def wrongs(settings: Settings) -> tuple[Tally, str]:
    """A run, and the first thing that is wrong with it; empty if nothing is."""
    world = (EventWorld if settings.events else World)(settings)
    try:
        world.run()
    except Exception:
        return world.tally, traceback.format_exc(limit=-6)
    wrong = [str(each) for each in world.tally.wrong[:1]]
    if isinstance(world, EventWorld):
        seen = world.published
        if world.differing or seen.twice or seen.unknown:
            wrong.append(f"events: {world.differing[:1]}, {seen.twice}, {seen.unknown}")
    return world.tally, "; ".join(wrong)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.engines.mixed", description=__doc__)
    parser.add_argument("model", help="folder with the config of a tiny model")
    parser.add_argument("--seeds", type=int, default=60)
    parser.add_argument("--first", type=int, default=0)
    args = parser.parse_args()
    compare_once()
    refused: Counter[str] = Counter()
    bad = steps = ours = theirs = 0
    for seed in range(args.first, args.first + args.seeds):
        settings = accepted(seed, args.model, refused)
        large = replace(settings, num_blocks=20_000, calm=True, events=False, inside=False)
        large = replace(large, waits=large.remote and large.has_states)  # as in ``fuzz``
        (tally, wrong), (there, wrong_there) = wrongs(settings), wrongs(large)
        steps += tally.steps
        for each, text in ((settings, wrong), (large, wrong_there)):
            if text:
                print(f"{seed}: {text}\n  {described(each)}", flush=True)
        bad += bool(wrong or wrong_there)
        stock, wrong = wrongs(replace(large, options=None))
        if not wrong and not settings.options.get("quotas"):
            ours, theirs = ours + there.cached, theirs + stock.cached
            if there.cached < 0.8 * stock.cached:
                print(f"{seed}: {there.cached} tokens found, {stock.cached} by vLLM's own manager")
                print(f"  {described(large)}", flush=True)
    print(
        f"{args.seeds} seeds, {steps} steps; {bad} wrong; in large pools {ours} tokens found, "
        f"{theirs} by vLLM's own manager where that is right"
    )
    for reason, count in refused.most_common():
        print(f"  refused {count} times: {reason}")
    return int(bad > 0 or ours < 0.9 * theirs)


if __name__ == "__main__":
    sys.exit(main())
