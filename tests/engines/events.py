"""``python -m tests.engines.events MODEL``: the events of vLLM on blockmgr, read by a mirror.

vLLM's scheduler takes the events and passes them to its publisher, which here records them. After
each step the mirror must have the hashes of exactly the blocks that can be found, as vLLM's
functions compute them from their tokens. The events of a block must equal those of vLLM's own
manager. Finally a whole engine publishes over ZMQ to a ``Subscriber`` with an index. Exit code 1 if
anything is wrong.
"""

from __future__ import annotations

import argparse
import ast
import os
import sys
import time
from typing import Any

import msgspec
from vllm import LLM, SamplingParams
from vllm.config import KVEventsConfig
from vllm.distributed.kv_events import AllBlocksCleared, BlockStored, KVEventBatch
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import hash_block_tokens, maybe_convert_block_hash

from blockmgr import EventKind
from blockmgr.events import Subscriber
from blockmgr.index import WorkerIndex
from blockmgr.ports.vllm.options import namespace_of
from tests.engines.fuzz import ARMS, GROUPED
from tests.engines.serve import free_port
from tests.engines.world import IMAGE, LORA, World, compare_once, draw

HASH = get_hash_fn_by_name("sha256")
GROUPED_ARMS = ("windows", "windows, partial", "chunks", "states", "sizes", "sizes, states")
Told = tuple[int, Any]
"""The number of a group, and the hash of one of its blocks."""


class Published:
    """Replaces vLLM's publisher: a mirror, and the contents of the events of each block."""

    def __init__(self) -> None:
        self.mirror: set[Told] = set()
        self.told: dict[Told, set[tuple[Any, ...]]] = {}
        self.twice = 0
        self.unknown = 0
        self.blocks = 0
        self.encoder = msgspec.msgpack.Encoder()
        self.decoder = msgspec.msgpack.Decoder(KVEventBatch)

    def publish(self, batch: Any) -> None:
        decoded = self.decoder.decode(self.encoder.encode(batch))
        for event in decoded.events:
            if isinstance(event, AllBlocksCleared):
                self.mirror.clear()
                continue
            told = [(event.group_idx, block) for block in event.block_hashes]
            if isinstance(event, BlockStored):
                self.twice += len(self.mirror.intersection(told))
                self.mirror.update(told)
                self.blocks += len(told)
                # vLLM leaves out blocks behind windows, but not their tokens.
                if len(event.token_ids) == len(told) * event.block_size:
                    self.note(event)
            else:
                self.unknown += len(set(told) - self.mirror)
                self.mirror.difference_update(told)

    def note(self, event: Any) -> None:
        parent, size = event.parent_block_hash, event.block_size
        for i, block in enumerate(event.block_hashes):
            about = (
                parent, tuple(event.token_ids[i * size : (i + 1) * size]), size, event.lora_id,
                event.medium, event.lora_name, repr(event.extra_keys[i]), event.group_idx,
                event.kv_cache_spec_kind, event.kv_cache_spec_sliding_window, event.session_id,
            )  # fmt: skip
            self.told.setdefault((event.group_idx, block), set()).add(about)
            parent = block

    def shutdown(self) -> None:
        """The publisher's interface has it."""


class EventWorld(World):
    """A world whose events are mirrored, and compared with the truth after each report."""

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.published = Published()
        self.scheduler.kv_event_publisher = self.published
        self.differing: list[int] = []

    def report(self) -> None:
        super().report()
        if self.settings.options is not None and self.published.mirror != self.findable():
            self.differing.append(self.tally.steps)

    def findable(self) -> set[Told]:
        """The hashes of all blocks that can be found, from their tokens and salts.

        Of a group with small blocks, those that the query reads which follows a large block.
        """
        manager = self.scheduler.kv_cache_manager.manager
        keys = {
            namespace_of(salt, lora and lora.lora_name, lora and lora.lora_path): (
                (("lora", lora.lora_name, lora.lora_path),) if lora else (),
                (("cache_salt", salt),) if salt else (),
            )
            for salt in (None, "tenant")
            for lora in (None, LORA)
        }
        # By the manager's blocks: their place, and the hashes of their parts.
        known: dict[bytes, tuple[int, list[Any]]] = {}
        found: set[Told] = set()
        node, unit = manager.config.block_size, self.settings.hash_size
        waiting = manager.take_events()  # events since the scheduler took them
        assert not len(waiting), "vLLM's scheduler did not take all events"
        stored = [e for e in manager.resident_events() if e.kind is EventKind.STORED]
        whole = {g for g, each in enumerate(self.settings.layers) if each.kind == "full"}
        for event in sorted(stored, key=lambda event: event.group not in whole):
            parent = event.parent
            pairs = zip(event.digests, event.tokens.tolist(), strict=True)
            for row, (digest, tokens) in enumerate(pairs):
                if digest not in known:
                    place, before = (-1, [None]) if parent is None else known[parent]
                    adapter, salt = keys[event.namespace]
                    parts = [before[-1]]
                    images = ast.literal_eval(event.extras.get(row, b"()").decode())
                    for first in range(0, node, unit):
                        inside = range(first - IMAGE + 1, first + unit)
                        # vLLM's digests tell equal texts from the same text twice.
                        named = [(sys.intern(name), at) for _, name, at in images if at in inside]
                        shown = tuple(("mm", name, at - first) for name, at in named)
                        extra = adapter + shown + (() if parts[-1] else salt)
                        part = tokens[first : first + unit]
                        parts.append(hash_block_tokens(HASH, parts[-1], part, extra or None))
                    known[digest] = place + 1, parts[1:]
                parent = digest
                place, parts = known[digest]
                found |= {
                    (event.group, maybe_convert_block_hash(parts[end // unit - 1]))
                    for end in self.ends(event.group, place * node, node)
                }
        return found

    def ends(self, group: int, start: int, node: int) -> range:
        """Where the blocks of a group end that are published for one of the manager's blocks."""
        layers, size = self.settings.layers[group], self.settings.sizes[group]
        first = start
        if layers.kind == "window":
            first = max(start, layers.first_read(start + node) // size * size)
        elif layers.kind == "state":
            first = start + node - size
        return range(first - start + size, node + 1, size)


def campaign(args: argparse.Namespace, arm: str, policy: str, asynchronous: bool) -> int:
    """Runs one arm over all seeds; returns the number of wrong runs."""
    blocks = theirs = 0
    bad: list[Any] = []
    kind, options = GROUPED.get(arm, ("full", ARMS.get(arm)))
    named: dict[str, Any] = {"events": True, "kind": kind, "sized": arm.startswith("sizes")}
    named["lossless"] = arm in GROUPED
    for seed in range(args.first, args.first + args.seeds):
        ours = EventWorld(draw(seed, args.model, policy, asynchronous, options, **named))
        ours.run()
        seen = ours.published
        blocks += seen.blocks
        if ours.differing or seen.twice or seen.unknown:
            bad.append((seed, ours.differing[:1], seen.twice, seen.unknown))
        if arm in ("plain", "windows", "chunks", "sizes") and policy == "fcfs":
            one, stock = (
                EventWorld(draw(seed, args.model, policy, asynchronous, o, calm=True, **named))
                for o in (options, None)
            )
            one.run()
            stock.run()
            theirs += stock.published.twice
            told, others = one.published.told, stock.published.told
            both = told.keys() | others.keys() if arm == "plain" else told.keys() & others.keys()
            if any(told.get(each) != others.get(each) for each in both):
                bad.append((seed, "told otherwise than vLLM's own manager"))
    print(
        f"{arm}, {policy}, {'async' if asynchronous else 'sync'}: {args.seeds} seeds, {blocks} "
        f"blocks stored (vLLM's own told {theirs} twice); {len(bad)} runs wrong {bad[:3]}",
        flush=True,
    )
    return len(bad)


def served(model: str) -> int:
    """Runs an engine with vLLM's ZMQ publisher, read by ``blockmgr.events``; 1 if wrong."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    publish, replay = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
    llm = LLM(
        model=model,
        enforce_eager=True,
        dtype="float32",
        block_size=32,
        max_model_len=512,
        additional_config={"blockmgr": {}},
        kv_events_config=KVEventsConfig(
            enable_kv_cache_events=True, endpoint=publish, replay_endpoint=replay
        ),
    )
    manager = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager
    index = WorkerIndex(max_workers=1)
    index.announce("engine")
    prompts = [{"prompt_token_ids": [7] * 100 + [n] * 50} for n in range(3, 11)]
    with Subscriber("engine", publish, replay, index, retry_s=0.05) as reader:
        llm.generate(prompts, SamplingParams(max_tokens=40, ignore_eos=True), use_tqdm=False)
        known = {known.hashes[0] for known in manager.kv_events._known.values()}

        def heard(count: int) -> bool:
            end = time.monotonic() + 20
            while index.num_blocks("engine") != count and time.monotonic() < end:
                reader.poll(0.1)
            return index.num_blocks("engine") == count

        good = heard(len(known)) and all(index.found([each])[0, 0] for each in known)
        llm.reset_prefix_cache()  # no step follows
        flushed = heard(0)
    print(
        f"an engine with vLLM's ZMQ publisher: {len(known)} blocks, "
        f"{'in' if good else 'NOT IN'} the index; a reset of the idle engine "
        f"{'empties' if flushed else 'DOES NOT EMPTY'} it",
        flush=True,
    )
    return int(not (good and known and flushed))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.engines.events", description=__doc__)
    parser.add_argument("model", help="folder with the config of a tiny model")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--arms", nargs="*", default=[*ARMS, *GROUPED_ARMS])
    parser.add_argument(
        "--scheduler-only",
        action="store_true",
        help="without a whole engine, for a vLLM without kernels",
    )
    args = parser.parse_args()
    compare_once()
    wrong = sum(
        campaign(args, arm, policy, asynchronous)
        for arm in args.arms
        for policy in ("fcfs", "priority")
        for asynchronous in (False, True)
    )
    if not args.scheduler_only:
        wrong += served(args.model)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
