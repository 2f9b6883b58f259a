"""The KV cache manager that vLLM's scheduler calls.

Its parts: ``Lookup`` finds prefixes, ``Fits`` counts blocks, ``Commits`` makes blocks findable
(``StateCommits`` if there are recurrent states), and ``Tables`` reads the ids of blocks. ``Layers``
has what differs between the groups of layers.
"""

from __future__ import annotations

import logging
import math
import time
from itertools import chain
from typing import TYPE_CHECKING, Any

from vllm.v1.metrics.stats import PrefixCacheStats
from vllm.v1.request import RequestStatus

from blockmgr import (
    BlockManager,
    NeverFitsError,
    OutOfBlocksError,
    OutOfSequencesError,
    StaleMatchError,
    StepError,
)
from blockmgr.groups import is_bare
from blockmgr.hints import Hints
from blockmgr.ports.hinted import CarriedHints
from blockmgr.ports.vllm.blocks import Block, BlockPool, FoundBlocks
from blockmgr.ports.vllm.commits import Commits
from blockmgr.ports.vllm.coordinator import Coordinator
from blockmgr.ports.vllm.events import KVEvents, Published, waiting_blocks
from blockmgr.ports.vllm.fits import Fits
from blockmgr.ports.vllm.held import Held, Hit, Room
from blockmgr.ports.vllm.layers import Layers, num_nodes, tokens_of_block
from blockmgr.ports.vllm.lookup import Lookup
from blockmgr.ports.vllm.misses import Misses
from blockmgr.ports.vllm.prompts import Prompts
from blockmgr.ports.vllm.report import Report
from blockmgr.ports.vllm.states import StateCommits
from blockmgr.ports.vllm.tables import Tables
from blockmgr.ports.vllm.wishes import Wishes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy
    from vllm.v1.request import Request

    from blockmgr.ports.vllm.blocks import Blocks
    from blockmgr.ports.vllm.options import Options

__all__ = ["KVCacheManager"]

SHORTAGES = (OutOfBlocksError, OutOfSequencesError, NeverFitsError, StaleMatchError)
WAITING = (RequestStatus.WAITING, RequestStatus.PREEMPTED)
logger = logging.getLogger("vllm.blockmgr")  # below the logger that vLLM sets up


class KVCacheManager:
    """vLLM's ``KVCacheManager`` on a ``BlockManager``, with the same arguments.

    Args:
        options: The values given under ``blockmgr``.
        max_seqs: Most requests that have blocks at a time.
        kv_cache_config: As in vLLM's manager, like the other arguments.
    """

    mamba_shared_prefix_checkpoint = False

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
        # vLLM 0.33 may keep the last block, because its hashes cover the tokens behind.
        self.use_eagle = use_eagle or num_hash_lookahead_tokens > 0
        self.log_stats = log_stats
        self.enable_kv_cache_events = enable_kv_cache_events
        self.prefix_cache_stats = PrefixCacheStats() if log_stats else None
        self.watermark_blocks = int(watermark * kv_cache_config.num_blocks)
        sizes = [tokens_of_block(group.kv_cache_spec, dcp_world_size) for group in groups]
        self.block_size = math.lcm(*sizes)
        self._zeroes = bool(kv_cache_config.needs_kv_cache_zeroing)
        in_flight = max_model_len if max_in_flight_tokens is None else max_in_flight_tokens
        self.layers = tuple(
            Layers.of(group.kv_cache_spec, size, self.block_size, in_flight, max_model_len)
            for group, size in zip(groups, sizes, strict=True)
        )
        most_slots = max_model_len + min(in_flight, max_model_len)
        slots = max(each.num_blocks(1) for each in self.layers)
        self.manager = self._new_manager(
            max_seqs, max(-(-most_slots // self.block_size) + 1, slots)
        )
        self.kv_events = None
        if enable_kv_cache_events:
            told = [Published.of(each, self.block_size) for each in self.layers]
            self.kv_events = KVEvents(self.manager, self.block_size, hash_block_size, told)
        self.publish_events: Callable[[], None] | None = None  # the engine may be idle
        self._held: dict[str, Held] = {}
        self._leaving: list[int] = []  # handles that could not be freed within the step
        self._new_block_ids: list[int] = []
        self._copies: list[KVCacheBlockCopy] | None = None  # of a step whose planning has ended
        self.prompts = Prompts(self.block_size, options.retention)
        least = options.min_partial_tokens or 0
        self._lookup = Lookup(self.manager, self.prompts, least=least)
        self._fits = Fits(self.manager, self.layers, self._lookup)
        self._tables = Tables(self.manager, self.layers)
        self.commits = self._new_commits()
        is_counted = options.explain_every and enable_caching
        self._misses = Misses(self.manager, options.explain_every) if is_counted else None
        self.wishes = Wishes(options.retention)
        self.hints = Hints(self.manager) if options.kv_hints else None
        self._carried = CarriedHints(self.hints, logger) if self.hints else None
        self.report = Report(self.manager, options.report_every, self._misses, self.wishes.ignored)
        self.block_pool = BlockPool(self.manager, self.kv_events)
        self.coordinator = Coordinator(self.layers, self.block_pool, self._held)
        self.empty_kv_cache_blocks = self._tables.empty

    def _new_manager(self, max_seqs: int, max_blocks_per_seq: int) -> BlockManager:
        num_blocks, events = self.kv_cache_config.num_blocks, self.enable_kv_cache_events
        # Windows release blocks by commits, so groups have the cache in any case. Without caching
        # in vLLM, no request reads it.
        caching: dict[str, Any] = {"prefix_caching": self.enable_caching}
        groups = tuple(each.group for each in self.layers)
        if len(groups) > 1 or is_bare(groups):
            caching = {"groups": groups}
        if is_bare(groups):
            caching["num_nodes"] = num_nodes(self.layers, num_blocks - 1, max_blocks_per_seq)
        if self.use_eagle:
            # With parts of blocks, it is known whether the token after a block is cached, too.
            least = min(1, self.options.min_partial_tokens or 0)
            caching |= {"min_partial_tokens": least, "stop_margin_tokens": least or self.block_size}
        config = self.options.config(
            num_blocks=num_blocks,
            block_size=self.block_size,
            max_seqs=max_seqs,
            max_blocks_per_seq=max_blocks_per_seq,
            events=events,
            event_blocks=waiting_blocks(num_blocks) if events else None,
            **caching,
        )
        return BlockManager.from_config(config)

    def _new_commits(self) -> Commits:
        about = self.manager, self.layers, self._held
        named: dict[str, Any] = {"caching": self.enable_caching, "events": self.kv_events}
        if not any(each.has_states for each in self.layers):
            return Commits(*about, **named)
        has_quotas = bool(self.options.quotas)
        return StateCommits(*about, lookup=self._lookup, has_quotas=has_quotas, **named)

    # Look-ups.

    @property
    def usage(self) -> float:
        """Fraction of the blocks that are in use, 0.0 to 1.0."""
        return self.block_pool.get_usage()

    def prefix_cache_lookup_enabled(self, request: Request) -> bool:
        """Whether the request may be served from the cache."""
        return self.enable_caching and not request.skip_reading_prefix_cache

    def make_prefix_cache_stats(self) -> PrefixCacheStats | None:
        """The statistics of look-ups since the last call."""
        stats = self.prefix_cache_stats
        if self.log_stats:
            self.prefix_cache_stats = PrefixCacheStats()
        return stats

    def record_prefix_cache_stats(self, request: Request, num_hits: int) -> None:
        """Counts a request's look-up."""
        if self.prefix_cache_stats is None or not self.prefix_cache_lookup_enabled(request):
            return
        self.prefix_cache_stats.record(
            num_tokens=request.num_tokens,
            num_hits=num_hits,
            preempted=request.num_preemptions > 0,
        )

    def get_computed_blocks(
        self, request: Request, max_cache_hit_length: int | None = None
    ) -> tuple[Blocks, int, int]:
        """Looks the request up without taking blocks; returns blocks, tokens, and a 0.

        Args:
            request: The request, which finds at most all tokens except its last one.
            max_cache_hit_length: Most tokens to find; if this limits the hit, only whole blocks are
                found.
        """
        if not self.prefix_cache_lookup_enabled(request):
            return self.empty_kv_cache_blocks, 0, 0
        found = self._lookup.of(request, max_cache_hit_length)
        count = found.num_cached_tokens
        if not count:
            return self.empty_kv_cache_blocks, 0, 0
        if self.kv_events is not None:
            self.kv_events.reused_by(request, count)
        return FoundBlocks(self.manager, self.layers, found), count, 0

    def get_computed_blocks_for_connector(
        self, request: Request, max_cache_hit_length: int | None = None
    ) -> tuple[Blocks, int, int, bool]:
        """Likewise, with the number of tokens on which all groups agree."""
        return *self.get_computed_blocks(request, max_cache_hit_length), False

    def truncate_computed_blocks(self, blocks: Blocks, num_computed_tokens: int) -> Blocks:
        """The leading blocks of a look-up, for this many tokens."""
        if num_computed_tokens % self.block_size:
            raise ValueError(
                f"num_computed_tokens must be whole blocks of {self.block_size}, "
                f"got {num_computed_tokens}"
            )
        return blocks.first(num_computed_tokens)

    def estimate_cached_tokens(self, request: Request) -> int:
        """Number of the request's tokens that others can find in attention groups."""
        held = self._held.get(request.request_id)
        if held is None or not self.enable_caching:
            return 0
        return held.num_committed - held.num_committed % self.block_size

    # Tables.

    def get_blocks(self, request_id: str) -> Blocks:
        """The request's blocks by group, those it found first."""
        held = self._held.get(request_id)
        return self.empty_kv_cache_blocks if held is None else self._tables.blocks(held)

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        """Their ids."""
        return self.get_blocks(request_id).by_group

    def get_block_ids_for_computed_tokens(
        self, request_id: str, num_computed_tokens: int
    ) -> tuple[list[int], ...]:
        """The ids of the blocks that hold this many tokens."""
        return self.get_blocks(request_id).first(num_computed_tokens).by_group

    def get_num_common_prefix_blocks(self, running_request_id: str) -> list[int]:
        """0 for each group, because vLLM has no cascade attention."""
        return [0] * self.num_kv_cache_groups

    # Growth.

    def allocate_slots(  # noqa: PLR0917  the order of vLLM
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: Blocks | None = None,
        num_lookahead_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        delay_cache_blocks: bool = False,
        num_encoder_tokens: int = 0,
        full_sequence_must_fit: bool = False,
        reserved_blocks: int = 0,
        has_scheduled_reqs: bool = True,
        skip_zeroing_group_ids: tuple[int, ...] = (),
    ) -> Blocks | None:
        """Takes slots for a request's next tokens; returns new blocks, or None without a change."""
        held = self._held.get(request.request_id)
        is_new = held is None
        found = num_new_computed_tokens + num_external_computed_tokens
        if not found:
            if not num_new_tokens:
                raise ValueError(
                    "num_new_tokens must be greater than 0 when there are no computed tokens to "
                    "adopt"
                )
            # Almost all calls of a decode step.
            last = request.num_computed_tokens + num_new_tokens + num_lookahead_tokens
            if held is not None and last <= held.num_covered:  # 0 with states and drafts
                return self.empty_kv_cache_blocks
        end = request.num_computed_tokens + found + num_new_tokens
        slots = end + num_lookahead_tokens
        if slots > self.max_model_len:
            slots = self.max_model_len
            end = min(request.num_computed_tokens + found, slots) + num_new_tokens
        about = full_sequence_must_fit, reserved_blocks, has_scheduled_reqs
        if held is None:
            room = self._room(request, slots, about)
            hit = Hit(num_new_computed_tokens, found, end, delay_cache_blocks)
            held = self._admit(request, hit, room)
            if held is None:
                return None
            before = num_new_computed_tokens
            is_loaded = 0 in skip_zeroing_group_ids
            # What is found of a block is not zeroed: it is copied there, or stays there. A load may
            # overtake the zeroing.
            to_zero = found if is_loaded else num_new_computed_tokens
        else:
            before = to_zero = held.num_slots
            is_bound = full_sequence_must_fit or reserved_blocks or self.watermark_blocks
            if (is_bound or request.resumable) and not self._goes_on(held, request, slots, about):
                return None
            if slots > held.num_slots and not self._grow(held, slots):
                return None
        if self._zeroes:
            self._new_block_ids += self._tables.ids_to_zero(held, to_zero, is_new=is_new)
        if end >= held.next_commit and not delay_cache_blocks:
            self.commits.up_to(held, end)
        self.commits.launch(held, end)
        has_more = held.num_slots > before
        return self._tables.blocks(held, before) if has_more else self.empty_kv_cache_blocks

    def _room(self, request: Request, slots: int, about: tuple[bool, int, bool]) -> Room:
        whole, reserved, has_scheduled = about
        is_waiting = has_scheduled and request.status in WAITING
        return Room(
            slots,
            min(request.num_tokens, self.max_model_len) if whole else 0,
            self.watermark_blocks if is_waiting else 0,
            reserved,
        )

    def _admit(self, request: Request, hit: Hit, room: Room) -> Held | None:
        """Admits the request with exactly the hit that was reported to it."""
        num_found = hit.num_found
        if not self.commits.may_start(request, hit.num_loaded):
            return None
        slots, prompt = room.slots, self.prompts.of(request)
        reads = self.prefix_cache_lookup_enabled(request)
        match = self._lookup.told(num_found) if reads else None
        found = num_found if reads else None
        misses, explained = self._misses if reads else None, None
        try:
            # If it takes all of its slots, ``admit`` checks whether they fit.
            is_whole = room.whole <= slots or self._fits.whole(prompt, room, found)
            if not (is_whole and self._fits.beside(prompt, room, found)):
                self._do_without_part(request, num_found)
                return None
            if misses is not None and misses.is_due:
                explained = misses.explain(prompt)
            handle = self.manager.admit(
                prompt,
                num_slots=slots,
                read_cache=reads,
                match=match,
                watermark_blocks=room.headroom,
                num_loaded_tokens=hit.num_loaded if hit.num_loaded > num_found else None,
            )
        except SHORTAGES:
            self._do_without_part(request, num_found)
            return None
        if misses is not None:
            misses.count(explained)
        self._lookup.whole_only.discard(request.request_id)
        self.prompts.forget(request.request_id)
        num_slots = self._fits.slots(max(slots, num_found))
        held = Held(request, handle, len(prompt), num_slots, num_found, num_found)
        held.wish = self.wishes.of(request)
        held.num_before = hit.num_loaded
        self.commits.start(held)
        held.is_loading = hit.waits
        if hit.num_loaded > num_found and not hit.waits:
            self.commits.loads_in_step(held, hit.num_loaded, hit.end)
        self._held[request.request_id] = held
        if self._carried is not None:  # requests have hints since vLLM 0.33
            self._carried.carry_out(getattr(request, "kv_hints", None), prompt.namespace, handle)
        return held

    def _do_without_part(self, request: Request, num_found: int) -> None:
        """Handles a shortage: the next attempt goes without a partial copy."""
        if num_found % self.block_size:
            self._lookup.whole_only.add(request.request_id)

    def _goes_on(
        self, held: Held, request: Request, slots: int, about: tuple[bool, int, bool]
    ) -> bool:
        """Whether a request can grow to this many slots without blocks reserved for others."""
        if request.resumable and request.status in WAITING:
            self._follow_session(held, request)
        return self._fits.growth(held, self._room(request, slots, about))

    def _grow(self, held: Held, slots: int) -> bool:
        """Grows the request to this many slots; returns False if there are too few blocks."""
        try:
            self.manager.reserve(held.handle, slots)
        except (OutOfBlocksError, NeverFitsError):
            return False
        held.num_slots = self._fits.slots(slots)
        return True

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
        self.commits.close_late()
        self.manager.truncate(held.handle, same)
        held.num_known = same
        held.num_slots = self._fits.slots(self.manager.sequence(held.handle).num_slots)
        self.commits.truncated(held, same)

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Commits tokens known since: asynchronous outputs, and tokens that a connector loaded."""
        held = self._held.get(request.request_id)
        if held is None:
            return
        if held.is_loading:
            self.commits.loaded(held, num_computed_tokens)
        elif held.slots is not None:
            held.slots.report(num_computed_tokens)
        else:
            self.commits.up_to(held, num_computed_tokens)

    def remove_skipped_blocks(
        self, request_id: str, processed_computed_tokens: int, num_prompt_tokens: int | None = None
    ) -> None:
        """Releases what no query reads any more: vLLM hands the table of an ended request over.

        A connector may read the blocks that are left until the request is freed.
        """
        held = self._held.get(request_id)
        if held is not None:
            self.commits.hand_over(held)

    # Ends of requests.

    def free(self, request: Request) -> None:
        """Releases the request's blocks in an order that evicts the last ones first."""
        held = self._held.pop(request.request_id, None)
        self._lookup.whole_only.discard(request.request_id)
        self.prompts.forget(request.request_id)
        if held is None:
            return
        self.commits.finish(held)
        if self.hints is not None:
            self.hints.finish(held.handle)
        if self._new_block_ids and self.commits.in_step:
            # It was preempted. A connector is not told that it had taken these blocks, and may
            # still store what they held before.
            gone = set(self._tables.ids_to_zero(held, 0))
            self._new_block_ids = [each for each in self._new_block_ids if each not in gone]
        wish = held.wish
        stop = min(request.num_prompt_tokens, held.num_known, held.num_slots)
        if wish.priority is not None and stop > 0:
            self.manager.retain(held.handle, 0, stop, priority=wish.priority, ttl=wish.ttl)
        try:
            # A preempted request may have been scheduled earlier in this step.
            in_step = self.commits.in_step
            self.manager.free(held.handle, expect_reuse=wish.expect_reuse, withdraw=in_step)
        except StepError:
            self._leaving.append(held.handle)

    def pop_blocks_for_free(self, request: Request) -> list[Block]:
        """Ends the request; holds its blocks until ``block_pool.free_blocks`` releases them."""
        held = self._held.get(request.request_id)
        if held is None:
            return []
        by_group = self._tables.blocks(held).by_group
        ids = [block for block in dict.fromkeys(chain.from_iterable(by_group)) if block]
        self.manager.acquire(ids)
        self.free(request)
        return [Block(self.manager, block) for block in ids]

    def forget_failed(self, request_ids: Iterable[str]) -> None:
        """Removes what these requests compute again from the cache, after loads in a step failed.

        vLLM leaves it there, where others find it before its K/V are right. What these requests
        compute from there on is not cached.
        """
        for held in [self._held[name] for name in request_ids if name in self._held]:
            computed = held.request.num_computed_tokens
            self.evict_blocks({*self._tables.blocks(held, computed).by_group[0]})

    def evict_blocks(self, block_ids: set[int]) -> None:
        """Removes these blocks from the cache, in use or not."""
        self.commits.close_late()
        self.block_pool.evict_blocks(block_ids)

    def reset_prefix_cache(self) -> bool:
        """Forgets everything, unless a block is in use."""
        self.commits.close_late()
        capacity = self.manager.config.capacity
        if self.manager.num_available + len(self.commits.kept) >= capacity:
            self.commits.let_go()  # nothing that computes is in flight
        if self.manager.num_available < capacity:
            return False
        self.manager.reset_prefix_cache()
        if self.prefix_cache_stats is not None:
            self.prefix_cache_stats.reset = True
        if self.publish_events is not None:
            self.publish_events()
        return True

    # Steps.

    def new_step_starts(self) -> None:
        """Begins the planning of a step."""
        self.commits.start_step()
        self.report.now_and_then()
        if self.options.retention:
            self.manager.set_time(time.monotonic())
        if self.hints is not None:
            self.hints.expire()

    def take_kv_cache_block_copies(self) -> tuple[list[KVCacheBlockCopy], list[Block]]:
        """The copies to run before this step's forward; vLLM has no blocks to hold for them."""
        copies = self._copies if self._copies is not None else self.commits.end_planning()
        self._copies = None
        for handle in self._leaving:
            self.manager.free(handle)
        self._leaving.clear()
        return copies, []

    def take_new_block_ids(self) -> list[int]:
        """Blocks handed out since the last call, if workers zero them."""
        ids, self._new_block_ids = self._new_block_ids, []
        return ids

    def record_blocks_for_zeroing(self, request_id: str, start_token: int) -> None:
        """Makes the workers zero the request's blocks from a token on."""
        if self._zeroes:
            start = start_token - start_token % self.block_size
            self._new_block_ids += self._tables.ids_to_zero(self._held[request_id], start)

    def take_events(self) -> list[Any]:
        """The events since the last call, in vLLM's form."""
        return self.block_pool.take_events()

    def take_boundary_state_offloads(self) -> dict[str, list[tuple[int, int, int]]]:
        """The states that the step's copies keep, for a connector that stores them.

        Returns:
            By request: the group, the block that has the state after the copies, and the number of
            tokens that the state includes.
        """
        self._copies = self.commits.end_planning()
        return self.commits.take_kept_states()

    def finalize_partial_tail_offloads(self, request: Request) -> list[tuple[int, int, int]]:
        """None: with a connector, no state inside a block is kept."""
        return []
