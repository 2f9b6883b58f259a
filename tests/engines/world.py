"""vLLM's scheduler with a worker that only remembers what each slot holds.

A slot holds the prefix from which its K/V was computed, and the group of layers that wrote it.
Every step zeroes blocks and runs the block copies, then each request writes its new positions, then
it reads in every group what those layers read. Everything read must belong to its own prefix.
Steps run in the order in which they were launched. Loads that requests wait for need not keep to
it: a connector may write K/V while steps before are still to run.

A recurrent state fills its block, and is the prefix of all tokens that it consumed (``states``).
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVEventsConfig,
    KVTransferConfig,
    ModelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from blockmgr.ports.drift import Interface
from blockmgr.ports.vllm import register
from blockmgr.ports.vllm.interface import INTERFACE
from tests.engines.layers import FULL, Layers, draw_layers, group_specs, with_sizes
from tests.engines.one_copy import keep_one_copy
from tests.engines.states import States

__all__ = [
    "IMAGE",
    "LORA",
    "Settings",
    "Tally",
    "World",
    "arguments",
    "compare_once",
    "draw",
    "make_scheduler",
]

MODEL_LENGTH = 512
VOCABULARY = 1000
LORA = LoRARequest("adapter", 1, "/adapter")
IMAGE = 5  # tokens


# A request, its tables, the tokens before and behind what is loaded, and their prefixes.
Load = tuple[str, list[list[int]], int, int, list[int]]


@dataclass(frozen=True)
class More:
    """What ``mixed`` draws beside the rest: settings of vLLM's scheduler, and of requests.

    Attributes:
        scheduling: Fields of vLLM's ``SchedulerConfig``.
        stages: Pipeline stages, each with a step in flight.
        pauses: Whether the scheduler is paused now and then.
        stops: Whether a sampled token may end a request.
        images: Whether prompts have images, with few of them in the encoder's cache.
        hints: Whether requests have ``kv_hints`` and sessions.
        short_drafts: Whether a step may have fewer drafts than it could, as where a grammar
            forbids the others.
        streams: Whether streaming sessions are continued where drafts or asynchronous steps are.
        sends: Whether blocks of a request that has ended stay until a connector has sent them.
        unsure: Whether the connector sometimes does not know yet what it has.
        losses: Whether blocks are lost with several groups, too.
        running_resets: Whether a reset preempts running requests beside a connector, too.
        fails_in_step: Whether loads fail that do not make a request wait.
        unordered: Whether loads that requests wait for overtake steps in flight, as where K/V come
            from other machines. Such a connector stores nothing.
        fails: Whether requests end whose loads fail; else they compute what is missing.
        sleeps: Whether the engine sleeps now and then, and its memory is lost.
        returns: Whether ids of aborted requests are used again.
        slow: Whether what is sent takes many steps, in which nothing is preempted for room.
    """

    scheduling: tuple[tuple[str, Any], ...] = ()
    stages: int = 1
    pauses: bool = False
    stops: bool = False
    images: bool = False
    hints: bool = False
    short_drafts: bool = False
    streams: bool = False
    sends: bool = False
    unsure: bool = False
    losses: bool = False
    running_resets: bool = False
    unordered: bool = False
    fails_in_step: bool = False
    fails: bool = False
    sleeps: bool = False
    returns: bool = False
    slow: bool = False


@dataclass(frozen=True)
class Settings:
    """One run."""

    seed: int
    model: str
    policy: str = "fcfs"
    asynchronous: bool = False
    options: dict[str, Any] | None = None  # None: vLLM's own manager
    block_size: int = 4  # the smallest one of the groups
    num_blocks: int = 40
    max_seqs: int = 6
    budget: int = 24
    requests: int = 50
    calm: bool = False  # no aborts, resets or losses; requests are independent
    lossless: bool = False  # no load fails
    one_copy: bool = False  # vLLM's own manager, changed by ``keep_one_copy``
    events: bool = False
    caching: bool = True
    layers: tuple[Layers, ...] = FULL
    drafts: int = 0  # most draft tokens of a request in a step
    eagle: bool = False  # the drafts come from a draft head, whose K/V have slots as well
    remote: bool = False  # a connector loads prefixes
    waits: bool = False  # and requests wait for each load; else some begin in the step that loads
    ranks: int = 1  # of decode context parallelism; their slots of a block stand side by side
    inside: bool = False  # that end inside blocks, as where others keep states there, too
    checkpoints: bool = False  # the forward of a prompt writes a state on its way
    talkative: bool = False  # most prompts continue others, also those that have ended
    watermark: float = 0.0  # part of the blocks that waiting requests leave free
    reserves: bool = True  # whether a prompt starts only if there is room for all of it
    interval: int | None = None  # 0: vLLM's own manager keeps windows where prompts end alone
    more: More = More()

    @property
    def has_runner_v2(self) -> bool:
        """Whether the scheduler hands resumed requests over as new ones."""
        return self.seed % 2 == 1 or self.replay > 0

    @property
    def replay(self) -> int:
        """Tokens before a hit that are computed again for windows that are not cached."""
        return max(each.width if each.kind == "again" else 0 for each in self.layers)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Tokens per block, by group."""
        return tuple(
            each.size(self.block_size, self.drafts) * (self.ranks if each.kind == "full" else 1)
            for each in self.layers
        )

    @property
    def hash_size(self) -> int:
        """Tokens that each hash of a request covers."""
        sizes = zip(self.sizes, self.layers, strict=True)
        return math.gcd(*(size for size, each in sizes if each.is_found))

    @property
    def has_states(self) -> bool:
        """Whether a group has a recurrent state."""
        return any(each.kind == "state" for each in self.layers)

    @property
    def slots(self) -> int:
        """Blocks for the states of a request, in all groups: one, or some more with drafts."""
        most = 2 + self.drafts if self.drafts or self.checkpoints else 1
        return most * sum(each.kind == "state" for each in self.layers)

    @property
    def length(self) -> int:
        """Most tokens of a request, for which every share of the blocks has room."""
        quotas = list((self.options or {}).get("quotas", {}).values())
        shares = [*quotas, self.num_blocks - 1 - sum(quotas)]
        # Blocks that so many tokens take, in all groups.
        whole = math.lcm(*self.sizes)
        room = min(shares) - (self.slots if self.drafts or self.checkpoints else 0)
        rings = [each.kind == "ring" for each in self.layers]
        per_unit = [whole // size for size, ring in zip(self.sizes, rings, strict=True) if not ring]
        return min(MODEL_LENGTH, (room - sum(rings)) // sum(per_unit) * whole)


@dataclass
class Tally:
    """The results of a run."""

    steps: int = 0
    preempted: int = 0
    cached: int = 0
    copies: int = 0
    aborted: int = 0
    resets: int = 0
    turns: int = 0
    evicted: int = 0
    loaded: int = 0
    stored: int = 0  # states
    wrong: list[tuple[int, str, int]] = field(default_factory=list)
    schedule: list[Any] = field(default_factory=list)


def draw(
    seed: int,
    model: str,
    policy: str,
    asynchronous: bool,
    options: Any,
    *,
    calm: bool = False,
    lossless: bool = False,
    one_copy: bool = False,
    events: bool = False,
    kind: str = "full",
    sized: bool = False,
    roomy: bool = False,
    drafts: str = "",
    caching: bool = True,
    remote: bool = False,
    waits: bool = False,
    ranks: int = 1,
    inside: bool = False,
) -> Settings:
    """A small world, in which blocks run out unless it is roomy."""
    rng = random.Random(seed)
    block_size = rng.choice([2, 4, 8])
    num_blocks = rng.randint(16, 60)
    max_seqs = rng.randint(2, 8)
    budget = rng.choice([8, 16, 32, 64])
    layers = draw_layers(rng, kind, block_size)
    if sized:
        layers = with_sizes(random.Random(seed), layers)
        block_size = rng.choice([1, 2, 4])
    num_states = sum(each.kind == "state" for each in layers)  # a request has a block of each
    if options and "quotas" in options:  # given for one group
        quotas = {salt: blocks * len(layers) for salt, blocks in options["quotas"].items()}
        options = {**options, "quotas": quotas}
    of_attention = [each for each in layers if each.is_attention]
    num_blocks = sum(-(-num_blocks // each.scale) for each in of_attention or layers)
    if (sized or drafts) and options and "quotas" in options:  # so that others have room, too
        num_blocks += sum(options["quotas"].values())
    num_drafts = rng.randint(1, 4) if drafts else 0
    if num_states:  # their blocks are much longer than the drafts of a step
        num_drafts = min(num_drafts, block_size - 1)
    rings = [each.size(block_size, num_drafts) for each in layers if each.kind == "ring"]
    block_size = max(block_size, *rings, 0)
    num_blocks += (2 + num_drafts) * max_seqs * num_states + max_seqs * len(rings)
    return Settings(
        seed,
        model,
        policy,
        asynchronous,
        options,
        block_size=block_size,
        num_blocks=20_000 if roomy else num_blocks,
        max_seqs=max_seqs,
        budget=budget,
        layers=layers,
        calm=calm,
        lossless=lossless,
        one_copy=one_copy,
        events=events,
        caching=caching,
        drafts=num_drafts,
        eagle=drafts == "eagle",
        remote=remote,
        waits=waits,
        ranks=ranks,
        inside=inside,
        more=More(unordered=remote and seed % 4 < 3, sends=remote and seed % 2 == 1),
    )


class Drafting:
    """The part of a ``SpeculativeConfig`` that the scheduler reads."""

    max_num_new_slots_for_drafting = 0

    def __init__(self, num_drafts: int, eagle: bool, lookahead_hashes: bool) -> None:
        self.num_speculative_tokens = num_drafts
        self.disable_lookahead_block_hashes = not lookahead_hashes
        self._eagle = eagle

    def use_eagle(self) -> bool:
        return self._eagle

    use_eagle_block_drop = use_eagle

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("use_", "uses_", "needs_")):
            return lambda: False
        if name.startswith("_"):
            raise AttributeError(name)
        return None


def compare_once() -> None:
    """Compares vLLM's interface now, and not for each scheduler again: it takes two seconds."""
    found = INTERFACE.differences()
    Interface.differences = lambda _: found  # type: ignore[method-assign]


def make_scheduler(settings: Settings) -> Any:
    """vLLM's scheduler, for a model with one layer per group that is never loaded."""
    named = arguments(settings)
    register()
    scheduler = (AsyncScheduler if settings.asynchronous else Scheduler)(**named)
    scheduler.use_v2_model_runner = settings.has_runner_v2
    if settings.options is not None:  # the configuration has the first runner
        most = int(settings.asynchronous) + settings.more.stages
        scheduler.kv_cache_manager.commits.most_in_flight = most
    if settings.more.images:
        scheduler.max_num_encoder_input_tokens = 2 * IMAGE
        scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=4 * IMAGE)
    return scheduler


def arguments(settings: Settings) -> dict[str, Any]:
    """What vLLM's engine passes to its scheduler."""
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"  # its settings ask for Triton
    length = settings.length
    scheduling = SchedulerConfig(
        max_num_seqs=settings.max_seqs,
        max_num_batched_tokens=max(settings.budget, settings.max_seqs),
        max_model_len=length,
        is_encoder_decoder=False,
        enable_chunked_prefill=True,
        async_scheduling=settings.asynchronous,
        policy=settings.policy,
        watermark=settings.watermark,
        scheduler_reserve_full_isl=settings.reserves,
        **dict(settings.more.scheduling),
    )
    caching = CacheConfig(
        block_size=settings.block_size, cache_dtype="auto", enable_prefix_caching=settings.caching
    )
    additional = {} if settings.options is None else {"blockmgr": settings.options}
    config = VllmConfig(
        scheduler_config=scheduling,
        model_config=ModelConfig(
            model=settings.model, dtype="float32", seed=0, max_model_len=length
        ),
        cache_config=caching,
        device_config=DeviceConfig("cpu"),
        additional_config=additional,
        kv_events_config=KVEventsConfig(enable_kv_cache_events=settings.events, publisher="null"),
        kv_transfer_config=connector(settings) if settings.remote else None,
    )
    config.scheduler_config.async_scheduling = settings.asynchronous
    config.cache_config.block_size = settings.block_size
    config.parallel_config.decode_context_parallel_size = settings.ranks
    config.parallel_config.pipeline_parallel_size = settings.more.stages
    if settings.drafts:
        # With these hashes, vLLM's own manager keeps a block that ours drops.
        has_ours = settings.options is not None
        config.speculative_config = Drafting(settings.drafts, settings.eagle, has_ours)
    if settings.has_states:
        config.cache_config.mamba_cache_mode = "align"
        config.cache_config.mamba_block_size = math.lcm(*settings.sizes)
    layout = KVCacheConfig(
        num_blocks=settings.num_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=group_specs(
            settings.layers, settings.block_size, settings.drafts, settings.checkpoints
        ),
        prefix_cache_retention_interval=settings.interval,
    )
    caching.num_gpu_blocks = settings.num_blocks
    return {
        "vllm_config": config,
        "kv_cache_config": layout,
        "structured_output_manager": StructuredOutputManager(config),
        "block_size": math.lcm(*settings.sizes),
        "hash_block_size": settings.hash_size,
        "log_stats": True,
    }


def connector(settings: Settings) -> KVTransferConfig:
    return KVTransferConfig(
        kv_connector="Remote",
        kv_connector_module_path="tests.engines.remote",
        kv_connector_extra_config={
            "seed": settings.seed,
            "unit": 1 if settings.inside else math.lcm(*settings.sizes),
            "states": settings.has_states,
            "waits": settings.waits,
            "stores": not settings.more.unordered,
            "sends": settings.more.sends,
            "unsure": settings.more.unsure,
            "slow": settings.more.slow,
        },
        kv_role="kv_both",
        kv_load_failure_policy="fail" if settings.more.fails else "recompute",
    )


class World:
    """A scheduler, the requests that come to it, and the memory of its blocks."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.scheduler = make_scheduler(settings)
        if settings.one_copy:
            keep_one_copy(self.scheduler.kv_cache_manager)
        self.rng = random.Random(settings.seed)
        self.luck = random.Random(settings.seed)  # of drafts and transfers, not of requests
        self.more = random.Random(f"more {settings.seed}")  # of what ``More`` has
        function = get_hash_fn_by_name("sha256")
        init_none_hash(function)
        self.hasher = get_request_block_hasher(settings.hash_size, function)
        self.stride = max(settings.sizes)  # slots of a block, of which small ones use the first
        self.memory: dict[int, tuple[int, int, int]] = {}  # by slot: group, position, prefix
        self.tables: dict[str, list[list[int]]] = {}  # by request and group
        self.launched: dict[str, list[list[int]]] = {}  # those of the step that runs
        self.stream: list[Callable[[], None]] = []  # what launched steps have yet to do
        self.states = States(self)
        self.again: dict[str, tuple[int, int]] = {}  # by request, what is computed again
        self.computed: dict[str, int] = {}  # by request, right tokens, as its worker knows
        self.proposed: dict[str, list[int]] = {}  # by request, the drafts of its next step
        self.tally = Tally()
        self.alive: list[str] = []
        self.added: list[Request] = []
        self.sessions: dict[str, int] = {}  # streaming sessions, and their turns to come
        longest = min(96, self.scheduler.max_model_len // 2)
        self.heads = [self._tokens(self.rng.randint(4, longest)) for _ in range(3)]
        self.pending: list[tuple[Any, ModelRunnerOutput]] = []  # launched, not reported
        self.loading: dict[str, tuple[int, int]] = {}  # by request that waits for it, a load
        self.paused = 0  # steps until the scheduler goes on

    def _tokens(self, count: int) -> list[int]:
        return [self.rng.randrange(VOCABULARY) for _ in range(count)]

    def run(self) -> Tally:
        """Runs until every request has ended."""
        added = 0
        while (
            added < self.settings.requests
            or self.sessions
            or self.scheduler.requests  # also those that have ended and are being sent
            or self.paused
        ):
            while added < self.settings.requests and self.rng.random() < 0.5:
                self.add(added)
                added += 1
            if not self.settings.calm:
                self.meddle()
            self.continue_sessions()
            self.pause()
            self.step()
            if self.tally.steps > 20_000:
                raise AssertionError("the scheduler is stuck")
        while self.pending:
            self.report()
        self.check_end()
        return self.tally

    def add(self, number: int) -> None:
        rng, size = self.rng, self.settings.block_size
        head = rng.choice(self.heads)
        prompt = head[: rng.randint(1, len(head))] + self._tokens(rng.randint(1, 2 * size))
        if earlier := self.earlier():  # the next turn of a conversation
            is_thoughts = self.settings.has_states and number % 2 == 0
            said = earlier.prompt_token_ids if is_thoughts else earlier._all_token_ids
            prompt = [*said, *self._tokens(3)]
        room = self.scheduler.max_model_len
        prompt = prompt[: room - 2]
        name = f"r{number}"
        turns = rng.randint(1, 3) if rng.random() < 0.1 else 0
        settings = self.settings
        # vLLM fails where a session that had drafts continues.
        is_hard = (settings.asynchronous or settings.drafts) and not settings.more.streams
        if is_hard or settings.calm or turns * 10 * size > room:
            turns = 0
        if turns:
            self.sessions[name] = turns
        request = Request(
            name,
            prompt[: room // 2] if name in self.sessions else prompt,
            SamplingParams(
                temperature=0,
                max_tokens=rng.randint(1, max(1, min(3 * size, room - len(prompt) - 1))),
                ignore_eos=True,
                prompt_logprobs=1 if rng.random() < 0.05 else None,
                extra_args=self.wish(),
                **({"stop_token_ids": list(range(100))} if self.settings.more.stops else {}),
            ),
            None,
            cache_salt=rng.choice([None, None, None, "tenant"]),
            lora_request=rng.choice([None, None, None, LORA]),
            block_hasher=self.hasher,
            priority=rng.randint(0, 3),
            arrival_time=number,
            resumable=name in self.sessions,
            **self.extras(number, len(prompt), earlier),
        )
        self.scheduler.add_request(request)
        self.alive.append(request.request_id)
        self.added.append(request)

    def extras(self, number: int, length: int, earlier: Request | None) -> dict[str, Any]:
        """The images of a request, its hints, and its session."""
        rng, given = self.more, {}
        if self.settings.more.images:
            given["mm_features"] = self.images(length, earlier)
        if self.settings.more.hints:
            given["session_id"] = rng.choice([None, "one", "other"])
            action = {
                "action_id": "a",
                "action_type": rng.choice(["kv.retain", "kv.pin", "kv.demote", "kv.release"]),
                "action_version": "1.0",
                "payload": rng.choice([{}, {"ttl": 0.01}]),
            }
            given["kv_hints"] = rng.choice(
                [None, {"protocol_version": "0.1", "message_id": str(number), "actions": [action]}]
            )
        return given

    def images(self, length: int, earlier: Request | None) -> list[MultiModalFeatureSpec]:
        """Images of a prompt: those of the one that it continues, or some of two."""
        if earlier is not None:
            return [
                each
                for each in earlier.mm_features
                if each.mm_position.offset + each.mm_position.length <= length
            ]
        return [
            MultiModalFeatureSpec(None, "image", name, PlaceholderRange(offset, IMAGE))
            for offset in range(2, length - IMAGE, 2 * IMAGE)
            if (name := self.more.choice(["", "", "cat", "dog"]))
        ]

    def pause(self) -> None:
        """Pauses the scheduler, or lets it go on."""
        if self.paused:
            self.paused -= 1
            if not self.paused:
                self.scheduler.set_pause_state(PauseState.UNPAUSED)
        elif self.settings.more.pauses and self.more.random() < 0.05:
            self.paused = self.more.randint(1, 6)
            states = [PauseState.PAUSED_NEW, PauseState.PAUSED_ALL]
            self.scheduler.set_pause_state(self.more.choice(states))

    def wish(self) -> dict[str, Any] | None:
        """The retention that a request asks for."""
        if not (self.settings.options or {}).get("retention"):
            return None
        luck, wish = self.luck, {"blockmgr_priority": self.luck.choice(["low", "high"])}
        ttl = luck.choice([{}, {"blockmgr_ttl": 0.01}, {"blockmgr_ttl": 60}])
        return luck.choice([None, wish | ttl, {"blockmgr_expect_reuse": luck.random() < 0.5}])

    def earlier(self) -> Request | None:
        """The request that the next prompt continues, if it continues one."""
        rng, settings = self.rng, self.settings
        if settings.talkative:
            return rng.choice(self.added) if self.added and rng.random() < 0.8 else None
        if not self.tables or settings.calm or rng.random() >= 0.2:
            return None
        found: Request | None = self.scheduler.requests.get(rng.choice(list(self.tables)))
        return found

    def continue_sessions(self) -> None:
        """The next turns of streaming sessions that wait for one."""
        rng, size = self.rng, self.settings.block_size
        for name, turns in list(self.sessions.items()):
            request = self.scheduler.requests.get(name)
            if request is None:  # aborted
                del self.sessions[name]
            elif request.status == RequestStatus.WAITING_FOR_STREAMING_REQ and rng.random() < 0.3:
                count = rng.randint(1, 2 * size)
                sampling = SamplingParams(max_tokens=rng.randint(1, 2 * size), ignore_eos=True)
                # One that is not resumable ends the session.
                turn = Request(name, self._tokens(count), sampling, None, resumable=turns > 0)
                self.scheduler.add_request(turn)
                self.sessions[name] -= 1
                self.tally.turns += 1

    def meddle(self) -> None:
        """Random aborts, resets of the cache, and failed loads of blocks."""
        rng, scheduler = self.rng, self.scheduler
        if self.alive and rng.random() < 0.03:
            chosen = self.alive.pop(rng.randrange(len(self.alive)))
            if chosen in scheduler.requests:
                scheduler.finish_requests([chosen], RequestStatus.FINISHED_ABORTED)
                self.tally.aborted += 1
            # Where a step is in flight, vLLM takes its output for that of the new request.
            if self.settings.more.returns and not (self.pending or chosen in scheduler.requests):
                for known in (self.tables, self.sessions, self.computed, self.proposed):
                    known.pop(chosen, None)
                self.add(int(chosen[1:]))
        if self.settings.more.sleeps and self.more.random() < 0.01:
            self.sleep()
        if rng.random() < 0.01:
            running = rng.random() < 0.5 and not self.sessions  # which keep their blocks
            if self.settings.remote:  # vLLM fails while a load or a transfer goes on
                running = running and self.settings.more.running_resets and not self.holds()
            scheduler.reset_prefix_cache(reset_running_requests=running)
            self.tally.resets += 1
        losses = self.settings.more.losses or not self.settings.lossless
        if rng.random() < 0.02 and losses:
            self.lose_some_blocks()

    def sleep(self) -> None:
        """All requests end or are preempted, and the memory is lost."""
        scheduler = self.scheduler
        if ends := self.more.random() < 0.5 or bool(self.sessions):
            scheduler.finish_requests(None, RequestStatus.FINISHED_ABORTED)
        scheduler.set_pause_state(PauseState.PAUSED_NEW if ends else PauseState.PAUSED_ALL)
        while self.pending or (ends and scheduler.requests):
            self.step()
            if not ends or not scheduler.requests:
                while self.pending:
                    self.report()
        if ends or not self.holds():  # vLLM fails while a load or a transfer goes on
            reset = scheduler.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
            assert reset, "something of a sleeping engine stays cached"
            self.memory.clear()
            self.tally.resets += 1
        scheduler.set_pause_state(PauseState.UNPAUSED)
        self.paused = 0

    def holds(self) -> bool:
        """Whether others than running requests have blocks."""
        scheduler, running = self.scheduler, {r.request_id for r in self.scheduler.running}
        tables = (
            scheduler.kv_cache_manager.get_block_ids(n) for n in scheduler.requests.keys() - running
        )
        return bool(scheduler.deferred_frees or self.pending) or any(any(t) for t in tables)

    def lose_some_blocks(self) -> None:
        """A load fails: requests that have its blocks end, and the blocks are evicted."""
        self.run_launched()
        scheduler = self.scheduler
        holders = [r for r in scheduler.running if self.tables.get(r.request_id)]
        if not holders:
            return
        tables = scheduler.kv_cache_manager.get_block_ids(self.rng.choice(holders).request_id)
        table = self.more.choice(tables)
        if not table:
            return
        lost = {*table[self.rng.randrange(len(table)) :]} - {0}
        # Also those that wait, for a turn or a load, or to be scheduled after a load.
        for request in list(scheduler.requests.values()):
            mine = scheduler.kv_cache_manager.get_block_ids(request.request_id)
            if lost.intersection(*[chain(*mine)]):
                scheduler.finish_requests([request.request_id], RequestStatus.FINISHED_ERROR)
        if self.settings.remote:  # nobody counts on what is lost while it is being sent
            sending = scheduler.connector.sending
            for name in [name for name in sending if lost.intersection(chain(*sending[name]))]:
                sending[name] = tuple([0] * len(table) for table in sending[name])
        scheduler.kv_cache_manager.evict_blocks(lost)
        self.spoil(lost)
        self.tally.evicted += 1

    def step(self) -> None:
        """Plans a step, runs it, and reports it immediately or a step later."""
        self.tally.steps += 1
        output = self.scheduler.schedule()
        self.tally.preempted += len(output.preempted_req_ids or ())
        self.tally.schedule.append(sorted(output.num_scheduled_tokens.items()))
        sampled = self.forward(output)
        self.pending.append((output, sampled))
        if len(self.pending) >= int(self.settings.asynchronous) + self.settings.more.stages:
            self.report()

    def report(self) -> None:
        output, result = self.pending.pop(0)
        self.run_launched(len(self.pending))
        self.scheduler.update_from_output(output, result)
        if self.settings.drafts and not self.settings.asynchronous:
            sampled = zip(result.req_ids, result.sampled_token_ids, strict=True)
            self.offer_drafts([name for name, tokens in sampled if tokens])
        for request in result.req_ids:
            if request not in self.scheduler.requests:
                self.tables.pop(request, None)

    def offer_drafts(self, names: list[str]) -> None:
        """Drafts of the next tokens, of which some are wrong."""
        requests = [each for name in names if (each := self.scheduler.requests.get(name))]
        if self.settings.more.stages > 1:  # vLLM fails where one was preempted in between
            running = [each for each in requests if each.status is RequestStatus.RUNNING]
            requests = [each for each in running if not each.num_in_flight_tokens]
        alive = [each.request_id for each in requests]
        drafts = [self.propose(each.request_id, len(each._all_token_ids)) for each in requests]
        self.scheduler.update_draft_token_ids(DraftTokenIds(alive, drafts))

    def forward(self, output: Any) -> ModelRunnerOutput:
        """Launches a step."""
        if self.settings.remote and self.settings.has_states:
            self.store()
        copies = output.kv_cache_block_copies or ()
        self.tally.copies += len(copies)
        batch = self.batch(output)
        drafts = {
            name: self.drafts_of(name, tokens)
            for name, tokens in output.scheduled_spec_decode_tokens.items()
        }
        prefixes = {
            name: self.prefixes(name, stop, drafts.get(name, ())) for name, _, stop in batch
        }
        received, loads = self.load() if self.settings.remote else (None, [])
        result = self.sample([(name, stop) for name, _, stop in batch], drafts)
        result.kv_connector_output = received
        # Steps behind a failed load read it, too, until vLLM knows.
        launched = [result, *(each for _, each in self.pending)]
        failures = [each.kv_connector_output for each in launched if each.kv_connector_output]
        invalid = set[int]().union(*(each.invalid_block_ids for each in failures))
        tables = {name: [[*table] for table in self.tables[name]] for name, _, _ in batch}

        def run() -> None:
            self.launched = tables
            for block in output.new_block_ids_to_zero or ():
                for slot in self.slots(block):
                    self.memory.pop(slot, None)
            self.copy([(copy.src_block_id, copy.dst_block_id) for copy in copies])
            if self.settings.has_states:
                self.states.begin(output, batch)
            # vLLM's workers move states between columns before they begin the loads of the step.
            for load in loads:
                self.bring(*load)
            failed = {name for name in tables if invalid.intersection(chain(*tables[name]))}
            self.spoil(received.invalid_block_ids if received else set())
            self.compute(batch, drafts, prefixes, failed)
            if self.settings.has_states and self.settings.drafts:
                self.settle(batch, drafts, result.sampled_token_ids)

        self.stream.append(run)
        if not self.settings.more.unordered:
            self.run_launched()
        if self.settings.drafts:
            self.verify(batch, drafts, result.sampled_token_ids)
        return result

    def run_launched(self, left: int = 0) -> None:
        """Runs the steps that were launched, except the last ones."""
        while len(self.stream) > left:
            self.stream.pop(0)()

    def compute(
        self,
        batch: list[tuple[str, int, int]],
        drafts: dict[str, list[int]],
        prefixes: dict[str, list[int]],
        failed: set[str],
    ) -> None:
        """The forward: all write before any reads, as layer by layer.

        What requests write is garbage if they read what could not be loaded.
        """
        of_attention = [
            (group, layers)
            for group, layers in enumerate(self.settings.layers)
            if layers.is_attention
        ]
        for name, start, stop in batch:
            for group, layers in of_attention:
                first = max(start, self.again[name][1]) if layers.is_found else start
                for position in range(first, stop):
                    held = group, position, prefixes[name][position]
                    self.memory[self.slot(name, group, position)] = (
                        (-1, -1, 0) if name in failed else held
                    )
        self.consume(batch, drafts, prefixes)
        for name, start, stop in batch:
            for group, layers in of_attention:
                first = self.first_read(name, layers, start)
                if name not in failed:
                    self.read(name, group, range(first, stop), prefixes[name])

    def spoil(self, blocks: set[int]) -> None:
        """Fills blocks with garbage."""
        for block in blocks:
            self.memory |= dict.fromkeys(self.slots(block), (-1, -1, 0))

    def drafts_of(self, name: str, tokens: Sequence[int]) -> list[int]:
        """The drafts of a request's step; an asynchronous scheduler has placeholders for them."""
        if min(tokens, default=0) >= 0:
            return list(tokens)
        mine = self.proposed.pop(name, []) if self.settings.asynchronous else []
        return [*mine, *tokens][: len(tokens)]

    def verify(
        self,
        batch: list[tuple[str, int, int]],
        drafts: dict[str, list[int]],
        sampled: list[list[int]],
    ) -> None:
        """Counts the drafts that are right, and proposes the next ones."""
        for (name, _, stop), tokens in zip(batch, sampled, strict=True):
            end = stop - len(drafts.get(name, ())) + max(1, len(tokens)) - 1
            self.computed[name] = end
            if self.settings.asynchronous and tokens:
                self.proposed[name] = self.propose(name, end + 1)

    def settle(
        self,
        batch: list[tuple[str, int, int]],
        drafts: dict[str, list[int]],
        sampled: list[list[int]],
    ) -> None:
        """Keeps the states that the right drafts reached."""
        for (name, _, stop), tokens in zip(batch, sampled, strict=True):
            least = stop - len(drafts.get(name, ()))
            self.states.settle(name, stop, least, max(1, len(tokens)))

    def propose(self, name: str, at: int) -> list[int]:
        """Drafts of the tokens from a position on, of which some are wrong."""
        right = [self.next_token(name, at + i) for i in range(self.settings.drafts)]
        drafts = [token if self.luck.random() < 0.7 else 0 for token in right]
        return (
            drafts[: self.more.randint(0, len(drafts))]
            if self.settings.more.short_drafts
            else drafts
        )

    def load(self) -> tuple[KVConnectorOutput, list[Load]]:
        """Loads some of what requests wait for; returns what those of this step need, too."""
        manager, loads = self.scheduler.kv_cache_manager, self.scheduler.connector.loads
        of_step: list[Load] = []
        received = KVConnectorOutput(finished_recving=set())
        for name, (start, stop, waits) in loads.items():
            if waits:
                self.loading[name] = start, stop
            else:
                tables = [[*table] for table in self.tables[name]]
                of_step.append((name, tables, start, stop, self.prefixes(name, stop)))
                self.tally.loaded += stop - start
                if self.settings.more.fails_in_step and self.more.random() < 0.3:
                    [table], [size] = tables, self.settings.sizes
                    first = self.more.randrange(start // size, -(-stop // size))
                    received.invalid_block_ids.update(table[first : -(-stop // size)])
        loads.clear()
        sending = self.scheduler.connector.sending
        chance = 0.02 if self.settings.more.slow else 0.3
        received.finished_sending = {name for name in sending if self.more.random() < chance}
        for name in received.finished_sending:
            self.check_sent(name, sending.pop(name))
        for name, (start, stop) in list(self.loading.items()):
            if self.luck.random() < 0.6:
                continue
            del self.loading[name]
            received.finished_recving.add(name)
            request = self.scheduler.requests.get(name)
            if request is None or request.is_finished():
                continue
            tables = manager.get_block_ids(name)
            if self.luck.random() < 0.2:
                self.fail(name, tables, start, stop, received)
            else:
                self.bring(name, tables, start, stop, self.prefixes(name, stop))
                self.tally.loaded += stop - start
        return received, of_step

    def fail(
        self,
        name: str,
        tables: Sequence[list[int]],
        start: int,
        stop: int,
        received: KVConnectorOutput,
    ) -> None:
        """A load fails; with full attention alone, a connector may tell from which block on."""
        # vLLM may wait forever for the blocks that it reserves for this request, from itself.
        self.scheduler._inflight_prefills.discard(self.scheduler.requests[name])
        prefixes = self.prefixes(name, stop)
        self.bring(name, tables, start, stop, prefixes, is_wrong=True)
        if self.settings.layers != FULL or self.more.random() < 0.5:
            received.failed_recving.add(name)
            return
        [table], [size] = tables, self.settings.sizes
        first = self.more.randrange(start // size, -(-stop // size))
        received.invalid_block_ids.update(table[first : -(-stop // size)])
        self.bring(name, tables, start, max(start, first * size), prefixes)

    def bring(
        self,
        name: str,
        tables: Sequence[list[int]],
        start: int,
        stop: int,
        prefixes: list[int],
        *,
        is_wrong: bool = False,
    ) -> None:
        """Writes K/V where the groups have blocks for it."""
        for group, size in enumerate(self.settings.sizes):
            if self.settings.layers[group].kind == "state":
                state = (-1, -1, 0) if is_wrong else (group, stop - 1, prefixes[stop - 1])
                self.states.load(name, tables[group][start // size : -(-stop // size)], state)
                continue
            for position in range(start, stop):
                block = tables[group][position // size]
                held = (-1, -1, 0) if is_wrong else (group, position, prefixes[position])
                if block:
                    self.memory[block * self.stride + position % size] = held

    def store(self) -> None:
        """Stores states that were handed over: what the step may overwrite, and some others.

        Those of this step are stored after its forward at the earliest.
        """
        connector = self.scheduler.connector
        kept, connector.stores = connector.stores, []
        stored = []
        for store in kept:
            is_late = store.prefix is not None and self.luck.random() < 0.3
            (stored if is_late else connector.stores).append(store)
            if store.prefix is None:
                store.prefix = self.prefixes(store.name, store.stop)[-1]
        for store in [*connector.flushed, *stored]:
            due = store.group, store.stop - 1, store.prefix
            if any(self.memory.get(slot) != due for slot in self.slots(store.block)):
                where = f"{store.name}, stored {store.group}"
                self.tally.wrong.append((self.tally.steps, where, store.stop))
            self.tally.stored += 1

    def check_sent(self, name: str, tables: Sequence[list[int]]) -> None:
        """Notes the first position whose K/V were handed over to be sent, and are not there."""
        request = self.scheduler.requests[name]
        prefixes = self.prefixes(name, min(request.num_computed_tokens, request.num_tokens - 1))
        for group, (table, size) in enumerate(zip(tables, self.settings.sizes, strict=True)):
            if not self.settings.layers[group].is_attention:
                continue
            for position, prefix in enumerate(prefixes):
                block = table[position // size]
                slot = block * self.stride + position % size
                if block and self.memory.get(slot) != (group, position, prefix):
                    where = f"{name}, sent {group}"
                    self.tally.wrong.append((self.tally.steps, where, position))
                    break

    def slots(self, block: int) -> range:
        return range(block * self.stride, (block + 1) * self.stride)

    def copy(self, pairs: list[tuple[int, int]]) -> None:
        """Copies whole blocks, all at once."""
        brought = {
            to: self.memory.get(source)
            for first, second in pairs
            for source, to in zip(self.slots(first), self.slots(second), strict=True)
        }
        for slot, held in brought.items():
            self.memory[slot] = held or (-1, -1, 0)  # nothing, which is garbage there
        self.states.copy(pairs)

    def read(self, name: str, group: int, positions: range, prefixes: list[int]) -> None:
        """Notes the first position that is missing or belongs to another request."""
        for position in positions:
            slot = self.slot(name, group, position)
            due = group, position, prefixes[position]
            if slot < self.stride or self.memory.get(slot) != due:
                self.tally.wrong.append((self.tally.steps, f"{name}, group {group}", position))
                return

    def consume(
        self,
        batch: list[tuple[str, int, int]],
        drafts: dict[str, list[int]],
        prefixes: dict[str, list[int]],
    ) -> None:
        """Continues states and rings."""
        for name, start, stop in batch:
            for group, layers in enumerate(self.settings.layers):
                if layers.kind == "state":
                    count = len(drafts.get(name, ()))
                    self.states.consume(name, group, (start, stop, count), prefixes[name])
                elif layers.kind == "ring":
                    self.turn(name, group, (start, stop), prefixes[name])

    def turn(self, name: str, group: int, step: tuple[int, int], prefixes: list[int]) -> None:
        """Compresses tokens: a ring has those that wait for an entry, and gets the step's last."""
        (start, stop), layers = step, self.settings.layers[group]
        if len(self.launched[name][group]) != 1:
            self.tally.wrong.append((self.tally.steps, f"{name}, ring {group}", start))
            return
        self.read(name, group, range(self.first_read(name, layers, start), start), prefixes)
        for position in range(max(start, stop - self.settings.sizes[group]), stop):
            self.memory[self.slot(name, group, position)] = group, position, prefixes[position]

    def first_read(self, name: str, layers: Layers, start: int) -> int:
        """The first position that a forward from here on reads in a group.

        Before what is computed again, windows and rings have nothing; nobody reads there.
        """
        first, (begin, hit) = layers.first_read(start), self.again[name]
        return first if layers.is_found or start >= hit else max(first, begin)

    def batch(self, output: Any) -> list[tuple[str, int, int]]:
        """The requests of a step and the positions they compute; updates the workers' tables."""
        batch = []
        for new in output.scheduled_new_reqs:
            self.tables[new.req_id] = [list(ids) for ids in new.block_ids]
            begin = new.replay_start if self.settings.replay else 0
            self.again[new.req_id] = begin, begin + self.settings.replay if begin else 0
            self.tally.cached += max(new.num_computed_tokens, self.again[new.req_id][1])
            batch.append((new.req_id, new.num_computed_tokens))
        cached = output.scheduled_cached_reqs
        for i, name in enumerate(cached.req_ids):
            new_ids = cached.new_block_ids[i]
            if name in cached.resumed_req_ids:
                self.tables[name] = [list(ids) for ids in new_ids]
                batch.append((name, cached.num_computed_tokens[i]))
                continue
            if new_ids is not None:
                for table, ids in zip(self.tables[name], new_ids, strict=True):
                    table.extend(ids)
            # An asynchronous scheduler counts drafts as right until it knows.
            start, known = cached.num_computed_tokens[i], self.computed.get(name)
            is_known = self.settings.drafts and self.settings.asynchronous and known is not None
            batch.append((name, known if is_known else start))
        counts = output.num_scheduled_tokens
        return [(name, start, start + counts[name]) for name, start in batch]

    def slot(self, name: str, group: int, position: int) -> int:
        size = self.settings.sizes[group]
        column = 0 if self.settings.layers[group].kind == "ring" else position // size
        return self.launched[name][group][column] * self.stride + position % size

    def prefixes(self, name: str, stop: int, drafts: Sequence[int] = ()) -> list[int]:
        request = self.scheduler.requests[name]
        tokens = request._all_token_ids[: stop - len(drafts)]
        while len(tokens) < stop - len(drafts):  # sampled on the device, not reported yet
            tokens.append(self.next_token(name, len(tokens)))
        tokens += drafts
        adapter = request.lora_request and request.lora_request.name
        prefix, prefixes = hash(("salt", request.cache_salt, adapter)), []
        seen = {
            each.mm_position.offset + i: each.identifier
            for each in request.mm_features
            for i in range(each.mm_position.length)
        }
        for position, token in enumerate(tokens[:stop]):
            prefix = hash((prefix, token, seen.get(position)))
            prefixes.append(prefix)
        return prefixes

    def next_token(self, name: str, position: int) -> int:
        return random.Random(f"{self.settings.seed} {name} {position}").randrange(VOCABULARY)

    def sample(
        self, ends: list[tuple[str, int]], drafts: dict[str, list[int]]
    ) -> ModelRunnerOutput:
        """The next tokens of requests whose step ended there."""
        sampled: list[list[int]] = []
        for name, stop in ends:
            if self.scheduler.requests[name].is_prefill_chunk:
                sampled.append([])
                continue
            at = stop - len(drafts.get(name, ()))
            tokens = [self.next_token(name, at)]
            for draft in drafts.get(name, ()):  # accepted up to the first wrong one
                if draft != tokens[-1]:
                    break
                tokens.append(self.next_token(name, at + len(tokens)))
            sampled.append(tokens)
        names = [name for name, _ in ends]
        index = {name: i for i, name in enumerate(names)}
        return ModelRunnerOutput(req_ids=names, req_id_to_index=index, sampled_token_ids=sampled)

    def check_end(self) -> None:
        """Checks that no block is held."""
        manager = self.scheduler.kv_cache_manager
        if self.settings.options is None:
            return
        self.scheduler.processed_step_seq = self.scheduler.sched_step_seq + 1
        manager.commits.let_go()
        self.scheduler._drain_deferred_frees()  # vLLM does so with the next step
        manager.manager.check_invariants()
        assert manager.manager.num_available == manager.manager.config.capacity, "blocks leaked"
        assert not manager.manager.handles(), "sequences leaked"
