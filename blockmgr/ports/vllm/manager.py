"""The KV cache manager that vLLM's scheduler calls, for one group of full attention.

``hybrid`` has the manager for several groups.

vLLM publishes blocks before the forward that fills them, and requests of the same step find them:
``early_commit``. The planning of a step ends with ``take_kv_cache_block_copies``, the scheduler's
last call; blocks published between two steps were written by an earlier step.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from vllm.v1.metrics.stats import PrefixCacheStats
from vllm.v1.request import RequestStatus

from blockmgr import (
    Admission,
    BlockManager,
    Match,
    NeverFitsError,
    OutOfBlocksError,
    OutOfSequencesError,
    StaleMatchError,
)
from blockmgr.ports.vllm.blocks import BlockPool, Blocks
from blockmgr.ports.vllm.coordinator import Coordinator
from blockmgr.ports.vllm.events import KVEvents, Published, waiting_blocks
from blockmgr.ports.vllm.held import Held, Room
from blockmgr.ports.vllm.hinting import RequestHints
from blockmgr.ports.vllm.id_lists import IdLists
from blockmgr.ports.vllm.layers import Layers
from blockmgr.ports.vllm.lookups import Lookups
from blockmgr.ports.vllm.misses import Misses
from blockmgr.ports.vllm.prompts import Prompts
from blockmgr.ports.vllm.releases import Releases
from blockmgr.ports.vllm.report import Report
from blockmgr.ports.vllm.wishes import Wishes

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm.v1.request import Request

    from blockmgr import Prompt
    from blockmgr.ports.vllm.blocks import SomeBlocks
    from blockmgr.ports.vllm.options import Options

__all__ = ["KVCacheManager"]

NEVER = 1 << 62  # as a number of tokens
NO_BLOCKS = np.zeros(0, np.int32)
SHORTAGES = (OutOfBlocksError, OutOfSequencesError, NeverFitsError, StaleMatchError)
WAITING = (RequestStatus.WAITING, RequestStatus.PREEMPTED)


class KVCacheManager(Lookups, Releases):
    """vLLM's ``KVCacheManager`` on a ``BlockManager``, with the same arguments.

    Args:
        options: The values given under ``blockmgr``.
        max_seqs: Most requests that have blocks at a time.
        kv_cache_config: As in vLLM's manager, like the other arguments.
    """

    mamba_shared_prefix_checkpoint = False
    retained_hit_group_ids = ()

    def __init__(
        self,
        options: Options,
        max_seqs: int,
        *,
        kv_cache_config: Any,
        max_model_len: int,
        scheduler_block_size: int,
        hash_block_size: int,
        max_in_flight_tokens: int | None = None,
        enable_caching: bool = True,
        use_eagle: bool = False,
        num_hash_lookahead_tokens: int = 0,
        num_prefill_lookahead: int = 0,
        log_stats: bool = False,
        enable_kv_cache_events: bool = False,
        dcp_world_size: int = 1,
        pcp_world_size: int = 1,
        metrics_collector: Any = None,
        watermark: float = 0.0,
        enable_mamba_shared_prefix_checkpoint: bool = False,
    ) -> None:
        groups = kv_cache_config.kv_cache_groups
        self.num_kv_cache_groups = len(groups)
        self.options = options
        self.kv_cache_config = kv_cache_config
        self.max_model_len = max_model_len
        self.enable_caching = enable_caching
        # vLLM 0.33 keeps the last block, because its hashes cover the tokens behind. Ours do not.
        self.use_eagle = use_eagle or num_hash_lookahead_tokens > 0
        self.log_stats = log_stats
        self.metrics_collector = metrics_collector
        self.enable_kv_cache_events = enable_kv_cache_events
        self.prefix_cache_stats = PrefixCacheStats() if log_stats else None
        self.watermark_blocks = int(watermark * kv_cache_config.num_blocks)
        sizes = [group.kv_cache_spec.block_size * dcp_world_size for group in groups]
        self.block_size = math.lcm(*sizes)
        self._slots_at_once = math.gcd(*sizes)
        self._has_shares = bool(options.quotas)
        self._zeroes = bool(kv_cache_config.needs_kv_cache_zeroing)
        in_flight = max_model_len if max_in_flight_tokens is None else max_in_flight_tokens
        self.layers = tuple(
            Layers.of(group.kv_cache_spec, size, self.block_size, in_flight, max_model_len)
            for group, size in zip(groups, sizes, strict=True)
        )
        most_slots = max_model_len + min(in_flight, max_model_len)
        self.manager = self._new_manager(max_seqs, -(-most_slots // self.block_size) + 1)
        self.kv_events = None
        if enable_kv_cache_events:
            told = [Published.of(each, self.block_size) for each in self.layers]
            self.kv_events = KVEvents(self.manager, self.block_size, hash_block_size, told)
        self.publish_events: Callable[[], None] | None = None  # the engine may be idle
        self._held: dict[str, Held] = {}
        # By request, the number of tokens up to which it neither needs nor fills a block: most
        # calls of a decode step need only this look-up, instead of several fields of ``Held``.
        self._nothing_to_do: dict[str, int] = {}
        self._whole_only: set[str] = set()  # requests without room for a partial copy
        self.prompts = Prompts(self.block_size, options.retention)
        self._ids = IdLists()
        self._told: tuple[str, Match] | None = None  # the last request looked up, and its match
        self._in_step = False
        self._committed_late = False  # since the step's planning ended
        self._leaving: list[int] = []  # handles that could not be freed within the step
        self._new_block_ids: list[int] = []
        is_counted = options.explain_every and enable_caching
        self._misses = Misses(self.manager, options.explain_every) if is_counted else None
        self.wishes = Wishes(options.retention)
        self.hints = RequestHints(self.manager) if options.kv_hints else None
        self.report = Report(self.manager, options.report_every, self._misses, self.wishes.ignored)
        self.block_pool = BlockPool(self.manager, enable_caching, self.kv_events)
        self.coordinator = Coordinator(self.layers, self.block_pool, self._held, use_eagle)
        for single in self.coordinator.single_type_managers:
            single.records_new_block_ids = self._zeroes
        self.empty_kv_cache_blocks = self._no_blocks()

    def _new_manager(self, max_seqs: int, max_blocks_per_seq: int) -> BlockManager:
        num_blocks, events = self.kv_cache_config.num_blocks, self.enable_kv_cache_events
        config = self.options.config(
            num_blocks=num_blocks,
            block_size=self.block_size,
            max_seqs=max_seqs,
            max_blocks_per_seq=max_blocks_per_seq,
            events=events,
            event_blocks=waiting_blocks(num_blocks) if events else None,
            **self._caching(),
        )
        return BlockManager.from_config(config)

    def _caching(self) -> dict[str, Any]:
        """Options of the block manager about the cache and groups."""
        return {"prefix_caching": self.enable_caching}

    def _no_blocks(self) -> SomeBlocks:
        return Blocks(self.manager, [])

    # Growth.

    def allocate_slots(  # noqa: PLR0917  the order of vLLM
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: SomeBlocks | None = None,
        num_lookahead_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        delay_cache_blocks: bool = False,
        num_encoder_tokens: int = 0,
        full_sequence_must_fit: bool = False,
        reserved_blocks: int = 0,
        has_scheduled_reqs: bool = True,
        skip_zeroing_group_ids: tuple[int, ...] = (),
    ) -> SomeBlocks | None:
        """Takes slots for a request's next tokens; returns new blocks, or None without a change."""
        name = request.request_id
        found = num_new_computed_tokens + num_external_computed_tokens
        if not found:
            if not num_new_tokens:
                raise ValueError(
                    "num_new_tokens must be greater than 0 when there are no computed tokens to "
                    "adopt"
                )
            # Almost all calls of a decode step.
            last = request.num_computed_tokens + num_new_tokens + num_lookahead_tokens
            if last <= self._nothing_to_do.get(name, 0):
                return self.empty_kv_cache_blocks
        end = request.num_computed_tokens + found + num_new_tokens
        slots = end + num_lookahead_tokens
        if slots > self.max_model_len:
            slots = self.max_model_len
            end = min(request.num_computed_tokens + found, slots) + num_new_tokens
        about = full_sequence_must_fit, reserved_blocks, has_scheduled_reqs
        held = self._held.get(name)
        if held is None:
            room = self._room(request, slots, about)
            held = self._admit(request, num_new_computed_tokens, room)
            if held is None:
                return None
            before = num_new_computed_tokens
            held.is_loading = delay_cache_blocks
            is_loaded = 0 in skip_zeroing_group_ids
            # What is found of a block is not zeroed: it is copied there, or stays there.
            to_zero = found - found % self.block_size if is_loaded else num_new_computed_tokens
        else:
            before = to_zero = held.num_slots
            is_bound = full_sequence_must_fit or reserved_blocks or self.watermark_blocks
            if (is_bound or request.resumable) and not self._goes_on(held, request, slots, about):
                return None
            if slots > held.num_slots and not self._grow(held, request, slots):
                return None
        if self._zeroes:
            self._new_block_ids += self._ids_from(held, to_zero)
        if end >= held.next_full and not delay_cache_blocks:
            self._publish(held, request, end)
        if not request.resumable:  # the tokens of a session change between turns
            self._nothing_to_do[name] = min(held.next_full - 1, held.num_slots)
        has_more = held.num_slots > before
        return self._blocks_from(held, before) if has_more else self.empty_kv_cache_blocks

    def _room(self, request: Request, slots: int, about: tuple[bool, int, bool]) -> Room:
        whole, reserved, has_scheduled = about
        is_waiting = has_scheduled and request.status in WAITING
        return Room(
            slots,
            min(request.num_tokens, self.max_model_len) if whole else 0,
            self.watermark_blocks if is_waiting else 0,
            reserved,
        )

    def _blocks_from(self, held: Held, start: int) -> SomeBlocks:
        """The blocks of a request behind those of its first slots."""
        return Blocks(self.manager, self._ids_from(held, start))

    def _admit(self, request: Request, num_found: int, room: Room) -> Held | None:
        """Admits the request with exactly the hit that was reported to it."""
        slots, manager, prompt = room.slots, self.manager, self.prompts.of(request)
        reads = self.enable_caching and not request.skip_reading_prefix_cache
        match = self._told_of(request, num_found) if reads else None
        misses, explained = self._misses if reads else None, None
        try:
            # If it takes all of its slots, ``admit`` checks whether they fit.
            if room.whole > slots and not self._whole_fits(prompt, room, match):
                self._do_without_part(request, num_found)
                return None
            if misses is not None and misses.is_due:
                explained = misses.explain(prompt)
            handle = manager.admit(
                prompt,
                num_slots=slots,
                read_cache=reads,
                match=match,
                watermark_blocks=room.headroom + room.reserved,
            )
        except SHORTAGES:
            self._do_without_part(request, num_found)
            return None
        if misses is not None:
            misses.count(explained)
        self._whole_only.discard(request.request_id)
        self.prompts.forget(request.request_id)
        held = Held(
            handle,
            len(prompt),
            self._whole_slots(max(slots, num_found)),
            (num_found // self.block_size + 1) * self.block_size if self.enable_caching else NEVER,
            self.wishes.of(request),
        )
        self._held[request.request_id] = held
        if self.hints is not None:
            self.hints.begin(request, handle)
        return held

    def _told_of(self, request: Request, num_found: int) -> Match:
        """The match of this many tokens; if fewer than found, a new match."""
        if self._told is not None and self._told[0] == request.request_id:
            found = self._told[1]
            if found.num_cached_tokens == num_found:
                return found
        return Match(num_found, 0, NO_BLOCKS)

    def _do_without_part(self, request: Request, num_found: int) -> None:
        """Handles a shortage: the next attempt goes without a partial copy."""
        if num_found % self.block_size:
            self._whole_only.add(request.request_id)

    def _whole_fits(self, prompt: Prompt, room: Room, match: Match | None) -> bool:
        """Whether there is room for the whole prompt, of which the first slots are taken."""
        slots, headroom = max(room.whole, room.slots), room.headroom
        # An upper bound, without any hit and with the source of a copy.
        most = -(-slots // self.block_size) + 1
        if not self._has_shares and most <= self.manager.num_available - headroom:
            return True
        verdict = self.manager.can_admit(
            prompt,
            num_slots=slots,
            read_cache=match is not None,
            match=match,
            watermark_blocks=headroom,
        )
        return verdict is Admission.NOW

    def _goes_on(
        self, held: Held, request: Request, slots: int, about: tuple[bool, int, bool]
    ) -> bool:
        """Whether a request can grow to this many slots without blocks reserved for others."""
        if request.resumable and request.status in WAITING:
            self._follow_session(held, request)
        return self._leaves(held, self._room(request, slots, about))

    def _grow(self, held: Held, request: Request, slots: int) -> bool:
        """Grows the request to this many slots; returns False if there are too few blocks."""
        try:
            self.manager.reserve(held.handle, slots)
        except (OutOfBlocksError, NeverFitsError):
            return False
        held.num_slots = self._whole_slots(slots)
        return True

    def _whole_slots(self, slots: int) -> int:
        """The slots in the blocks that a request has when it needs this many."""
        return -(-slots // self._slots_at_once) * self._slots_at_once

    def _leaves(self, held: Held, room: Room) -> bool:
        """Whether growth leaves the blocks reserved for others."""
        if not (room.whole or room.headroom or room.reserved):
            return True
        needed = sum(
            each.num_more_entries(room.slots, held.num_slots)
            for each in self.layers
            if not each.has_states
        )
        to_end = sum(each.num_more_blocks(room.whole, held.num_slots) for each in self.layers)
        available = self.manager.num_available - room.headroom
        return needed <= available - room.reserved and to_end <= available

    def _follow_session(self, held: Held, request: Request) -> None:
        """A streaming session drops its last sampled token before it continues."""
        tokens = request._all_token_ids
        mine = self.manager.sequence(held.handle).tokens.tolist()
        same = next(
            (i for i, (a, b) in enumerate(zip(mine, tokens, strict=False)) if a != b),
            min(len(mine), len(tokens)),
        )
        if same == len(mine):
            return
        self._close_late_commits()
        self.manager.truncate(held.handle, same)
        held.num_known = same
        held.num_slots = self._whole_slots(self.manager.sequence(held.handle).num_slots)
        held.next_full = min(held.next_full, (same // self.block_size + 1) * self.block_size)

    def remove_skipped_blocks(
        self, request_id: str, processed_computed_tokens: int, num_prompt_tokens: int | None = None
    ) -> None:
        """Does nothing: full attention reads every block."""
