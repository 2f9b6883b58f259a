"""Replays a trace through a real ``BlockManager``.

Time is simulated, in whole milliseconds; the replay never waits for a real clock. ::

    arrival ──► waiting, first come first served ──► running for service_ms ──► freed
                until all its blocks fit             prompt committed at once,
                                                     outputs appended at the end

* A running request holds blocks for its prompt and its outputs from admission to end. It does not
  grow and is not preempted, so waiting is the only effect of a full pool besides eviction.
* If only the length of an output is known, its tokens are made up, and no prompt repeats them: it
  takes blocks, and no prompt finds it. With ``outputs="none"`` there are no such outputs.
* At each instant, requests end before others are admitted; simultaneous arrivals keep the order of
  the trace. So a service time of 0 replays one request at a time.
* As in an engine, the KV of the last output token is never computed, because no token follows it.
* With several samples, the prompt is admitted once and forked, and every fork immediately gets its
  own tail through the manager's copy plan.
* A request that does not fit even an empty pool is rejected: its whole prompt counts as missed.
* With groups of layers, prompts are computed in chunks that end where a state can be kept
  (``blockmgr.lab.grouped``).
* With tiers, a prompt is computed when what they have of it is there (``blockmgr.lab.tiered``).

``replay_until`` stops in the middle, to inspect the manager.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from blockmgr.blocks import Admission, Priority
from blockmgr.errors import OutOfBlocksError
from blockmgr.lab.by_ids import id_replays, same_replays
from blockmgr.lab.demand import Limits, held_blocks, replay_manager
from blockmgr.lab.grouped import GroupedSteps, GroupWatch
from blockmgr.lab.hints import Clients, Outlook, Traits, TraitsOf
from blockmgr.lab.replay_config import Progress, ReplayConfig
from blockmgr.lab.replay_result import ReplayResult
from blockmgr.lab.request import OUTPUT_TOKEN, Running
from blockmgr.lab.tiered import TierSteps

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from blockmgr.lab.trace import Request, Tokens, Trace
    from blockmgr.manager import BlockManager
    from blockmgr.policy import EvictionPolicy


__all__ = [
    "EventLoop",
    "Limits",
    "Moment",
    "Progress",
    "ReplayConfig",
    "ReplayResult",
    "Running",
    "held_blocks",
    "replay",
    "replay_until",
]


def replay(
    trace: Trace,
    num_blocks: int,
    config: ReplayConfig,
    *,
    progress: Progress | None = None,
) -> ReplayResult:
    """Run the requests of ``trace`` through a manager of ``num_blocks`` blocks.

    Args:
        trace: The requests.
        num_blocks: Blocks in the pool, at least 1.
        config: Config of the replay.
        progress: Called once for each request.

    Raises:
        ValueError: The trace cannot be cut into blocks of ``config.block_size``.
        PolicyError: A custom policy failed.

    Cost: One admission, commit and free per request, and one more attempt to admit at each instant
    at which a request ends while another one waits. Prompts are expanded one at a time. With tiers,
    the same requests also go through one pool of all blocks.
    """
    result = EventLoop(trace, num_blocks, config, progress=progress).run()
    if result.by_tier is None:
        return result
    blocks = num_blocks + sum(tier.num_blocks for tier in config.tiers)
    alone = replace(config.of_device, eviction="lru", hints="none")
    by_ids = id_replays(trace, same_replays(alone))
    if by_ids is not None and by_ids.exact(alone):
        one_pool = by_ids.replay(blocks, alone)
    else:
        one_pool = EventLoop(trace, blocks, alone).run()
    bounded = replace(result.by_tier, one_pool_hit_tokens=one_pool.hit_tokens)
    return replace(result, by_tier=bounded)


@dataclass(slots=True)
class Waiting:
    """A request in the queue; its prompt is expanded at the first attempt to admit it."""

    number: int
    request: Request
    tokens: Tokens | None = None


class EventLoop:
    """The loop of ``replay``, for callers that stop it and inspect the manager.

    It takes the arguments of ``replay``, and also the number of the step, from 1, after which to
    stop, and the limits of the trace, if they are known or the manager has to tell more.
    """

    def __init__(
        self,
        trace: Trace,
        num_blocks: int,
        config: ReplayConfig,
        *,
        progress: Progress | None = None,
        stop_after: int | None = None,
        limits: Limits | None = None,
    ) -> None:
        trace.check_block_size(
            config.block_size, config.min_partial_tokens, any_size=bool(config.groups)
        )
        self._requests = trace.requests
        self._config = config
        self._progress = progress or (lambda: None)
        self._stop_after = stop_after
        limits = limits or Limits.of(trace, config)
        self._free_rows = self._rows = min(config.max_seqs, limits.sequences)
        self._policy: EvictionPolicy | None = None
        eviction = config.eviction if isinstance(config.eviction, str) else self._own_policy
        self._manager = replay_manager(num_blocks, config, limits, eviction)
        self._watch: GroupWatch | None = None
        if config.groups:
            self._watch = GroupWatch(self._manager, config, len(trace.requests))
            taken = self._watch.note_free
            self._grouped = GroupedSteps(self._manager, config, self._apply_copies, taken)
        self._tiers: TierSteps | None = None
        if config.tiers:
            self._tiers = TierSteps(self._manager, trace, config.tiers, config.block_size)
        told = getattr(self._policy, "on_request_end", None)
        self._tell_policy: Callable[[Traits], None] | None = told
        self._outlook: Outlook | None = None
        self._traits: TraitsOf | None = None
        self._clients = Clients(trace, config)
        foretold = config.hint_model is None or config.hint_model.foretells
        if told is not None or foretold:
            self._outlook = Outlook(trace, config.block_size)
        if self._outlook is not None and (told is not None or callable(config.hints)):
            self._traits = TraitsOf(trace, self._outlook)
        self._last_admitted = 0  # number of a request, including rejected ones
        self._num_offered = 0
        self._waiting: deque[int] = deque()  # numbers of requests, in the order of the trace
        self._num_blocks = num_blocks
        self._head: Waiting | None = None  # the first waiting request, once examined
        self._running: dict[int, Running] = {}  # by admission
        # A heap by end of the load or the service, admission number on ties.
        self._agenda: list[tuple[int, int]] = []
        self._order = 0  # requests admitted
        self._rejected = 0
        self._rejected_tokens = 0
        self._waited = 0
        self._wait_ms = 0
        self._copies = 0
        self._steps = 0
        self._last_step_ms = -1
        self._host_s = 0.0

    def run(self) -> ReplayResult:
        """Run all requests; call it once."""
        for number, request in enumerate(self._requests, start=1):
            self.advance(request.arrival_ms)
            if self._is_over(request.arrival_ms):
                break
            self.offer(number, request)
        self._num_offered = len(self._requests)
        return self.finish()

    def offer(self, number: int, request: Request) -> None:
        """Add a request that arrives after all events so far.

        Args:
            number: Its number in the trace, larger than those of earlier arrivals.
            request: The request.
        """
        self._num_offered += 1
        self._waiting.append(number)
        if len(self._waiting) == 1:
            self._head = Waiting(number, request)
        self._admit_waiting(request.arrival_ms)

    def finish(self) -> ReplayResult:
        """Process all remaining events, and return the counts."""
        while self._agenda and not self._is_over(self._agenda[0][0]):
            self.advance(self._agenda[0][0])
        stats = self._manager.stats()
        by_tier = None if self._tiers is None else self._tiers.result(stats.evicted_blocks)
        return ReplayResult(
            num_blocks=self._num_blocks,
            requests=self._num_offered,
            rejected=self._rejected,
            waited=self._waited,
            wait_ms=self._wait_ms,
            query_tokens=stats.query_tokens + self._rejected_tokens,
            hit_tokens=stats.hit_tokens + (0 if by_tier is None else by_tier.loaded_tokens),
            partial_hit_tokens=stats.partial_hit_tokens,
            evictions=stats.evicted_blocks,
            copies=self._copies,
            deduplicated=stats.deduplicated_blocks,
            peak_used_blocks=stats.peak_used_blocks,
            steps=self._steps,
            memory_bytes=self._manager.memory_usage(),
            host_s=self._host_s,
            by_group=None if self._watch is None else self._watch.result(),
            by_tier=by_tier,
        )

    @property
    def manager(self) -> BlockManager:
        """The manager of the replay."""
        return self._manager

    @property
    def time_ms(self) -> int:
        """Simulated milliseconds at the last step so far; -1 before the first."""
        return self._last_step_ms

    @property
    def num_waiting(self) -> int:
        """Requests that have arrived and are not admitted yet."""
        return len(self._waiting)

    def running(self) -> list[tuple[int, list[int]]]:
        """Running requests in order of admission: number in the trace, from 1, and handles."""
        return [(one.number, list(one.handles)) for one in self._running.values()]

    def _is_over(self, now: int) -> bool:
        """Whether ``now`` is after the last requested step."""
        return self._steps == self._stop_after and now > self._last_step_ms

    def advance(self, now: int) -> None:
        """End requests that end up to ``now`` ms, and admit waiting ones after each instant."""
        while self._agenda and self._agenda[0][0] <= now:
            instant = self._agenda[0][0]
            if self._is_over(instant):
                return
            self._clients.at(self._manager, instant)
            while self._agenda and self._agenda[0][0] == instant:
                _, order = heapq.heappop(self._agenda)
                one = self._running[order]
                if one.is_loading:
                    start = time.thread_time()
                    self._begin(order, instant)
                    self._host_s += time.thread_time() - start
                else:
                    del self._running[order]
                    self._end(one.request, one.handles, one.number)
            self._count_step(instant)
            self._admit_waiting(instant)

    def _admit_waiting(self, now: int) -> None:
        self._clients.at(self._manager, now)
        if self._tiers is not None:
            start = time.thread_time()
            self._tiers.store_until(now)
            self._host_s += time.thread_time() - start
        while self._waiting:
            if self._head is None:
                # Not kept while waiting, because most of a trace may wait for a small pool.
                number = self._waiting[0]
                self._head = Waiting(number, self._requests[number - 1])
            head = self._head
            if self._never_fits(head.request):
                self._rejected += 1
                self._rejected_tokens += head.request.num_prompt_tokens
            elif self._admit(head, now):
                if self._traits is not None:
                    self._traits.admit(head.number)
                self._count_step(now)
                self._waited += now > head.request.arrival_ms
                self._wait_ms += now - head.request.arrival_ms
            else:
                self._prefetch(now)
                return
            self._last_admitted, self._head = self._waiting.popleft(), None
            self._progress()

    def _prefetch(self, now: int) -> None:
        """Copy the prompts that wait to the fastest tier, if the config says so."""
        if self._tiers is not None and self._config.prefetch and len(self._config.tiers) > 1:
            queue = ((number, self._requests[number - 1]) for number in self._waiting)
            fitting = (each for each in queue if not self._never_fits(each[1]))
            start = time.thread_time()
            self._tiers.prefetch(fitting, now)
            self._host_s += time.thread_time() - start

    def _never_fits(self, request: Request) -> bool:
        blocks = held_blocks(request, self._config)
        return blocks > self._num_blocks or request.num_samples > self._rows

    def _admit(self, waiting: Waiting, now: int) -> bool:
        request = self._clients.named(waiting.request, waiting.number)
        if request.num_samples > self._free_rows:
            return False
        if waiting.tokens is None:
            waiting.tokens = request.tokens()
        if self._watch is not None:
            self._watch.before(request, waiting.tokens)
        start = time.thread_time()
        handles = self._start(request, waiting.tokens)
        if handles:
            found = self._manager.sequence(handles[0]).num_cached_tokens
            self._enter(Running(waiting.number, request, handles, found), now)
        self._host_s += time.thread_time() - start
        if not handles:
            return False
        if self._watch is not None:
            self._watch.after()
        self._free_rows -= request.num_samples
        return True

    def _enter(self, one: Running, now: int) -> None:
        """Begin an admitted request, or what it loads."""
        order, self._order = self._order, self._order + 1
        self._running[order] = one
        loaded_ms = now if self._tiers is None else self._tiers.load(one, now)
        if loaded_ms > now:
            one.is_loading = True
            heapq.heappush(self._agenda, (loaded_ms, order))
        else:
            self._begin(order, now)
        if self._tiers is not None:
            self._tiers.store_until(now)

    def _begin(self, order: int, now: int) -> None:
        """Compute the prompt of a request, of which everything is there that can be loaded."""
        one = self._running[order]
        if self._tiers is not None:
            self._tiers.loaded(one)
        one.is_loading = False
        if self._watch is None:
            self._compute(one)
        heapq.heappush(self._agenda, (now + self._busy_ms(one), order))

    def _busy_ms(self, one: Running) -> int:
        """The time for which a request holds its blocks after its prompt is computed."""
        return self._config.service_ms(one.request)

    def _start(self, request: Request, tokens: Tokens) -> list[int]:
        """Admit a request whose samples fit; returns no handles if there is no room."""
        if self._watch is not None:
            return self._grouped.start(request, tokens)
        manager, prompt = self._manager, len(tokens)
        if request.num_samples > 1:
            # The samples take their own blocks after the admission, so check for all of them first.
            slots = held_blocks(request, self._config) * self._config.block_size
            verdict = manager.can_admit(tokens, namespace=request.namespace, num_slots=slots)
            if verdict is not Admission.NOW:
                return []
        slots = prompt + self._config.output_lengths(request)[0]
        loads: dict[str, Any] = {} if self._tiers is None else {"load": True}
        try:
            handle = manager.admit(
                tokens,
                namespace=request.namespace,
                num_slots=slots,
                session=self._config.session_name(request),
                **loads,
            )
        except OutOfBlocksError:
            return []
        return [handle]

    def _compute(self, one: Running) -> None:
        """Compute the prompt of a request, and fork its other samples."""
        manager, request, [handle] = self._manager, one.request, one.handles
        prompt = request.num_prompt_tokens
        if self._config.min_partial_tokens:
            # The next commit does not promote a block that waits for its copy.
            self._apply_copies()
        manager.commit(handle, prompt)
        if request.num_samples > 1:
            one.handles += manager.fork(handle, request.num_samples - 1)
            for sample, output in zip(one.handles, request.outputs, strict=True):
                if len(output):
                    manager.reserve(sample, prompt + len(output))
            self._apply_copies()
        manager.take_remaps()

    def _end(self, request: Request, handles: list[int], number: int) -> None:
        manager, prompt = self._manager, request.num_prompt_tokens
        goes_on = self._expectation(number)
        start = time.thread_time()
        for handle, output in zip(handles, self._outputs(request, number), strict=False):
            if len(output):
                manager.append(handle, output)
                manager.commit(handle, prompt + len(output) - 1)
        if self._outlook is not None and goes_on:
            # No later prompt finds what comes after the tokens that return.
            returning = self._outlook.num_returning_tokens(number)
            if returning < prompt:
                manager.retain(handles[0], returning, prompt, priority=Priority.LOW)
        if self._watch is not None:
            self._watch.note_free()
        for handle in handles:
            manager.free(handle, expect_reuse=goes_on)
        self._clients.after(manager, request, number)
        manager.take_remaps()
        self._host_s += time.thread_time() - start
        self._free_rows += len(handles)

    def _expectation(self, number: int) -> bool | None:
        """The hint for the manager at the end of a request."""
        if self._traits is not None:
            traits = self._traits.end(number)
            if self._tell_policy is not None:
                self._tell_policy(traits)
            if callable(self._config.hints):
                return self._config.hints(traits)
        if self._outlook is None or self._config.hints != "truth":
            return None
        return self._outlook.goes_on(number, self._last_admitted)

    def _own_policy(self, capacity: int) -> EvictionPolicy:
        """The eviction policy of the manager, kept to pass it more information."""
        factory = self._config.eviction
        assert not isinstance(factory, str)
        self._policy = factory(capacity)
        return self._policy

    def _outputs(self, request: Request, number: int) -> tuple[Tokens, ...]:
        """The tokens of each sample, made up if only their number is known."""
        [length, *_] = self._config.output_lengths(request)
        if request.outputs or not length:
            return request.outputs
        return (np.full(length, OUTPUT_TOKEN + number % OUTPUT_TOKEN, dtype=np.uint32),)

    def _apply_copies(self) -> None:
        """Take the copy plan and report it as applied, because the replay has no KV to copy."""
        plan = self._manager.take_copies()
        self._copies += len(plan)
        self._manager.copies_applied(plan.ticket)

    def _count_step(self, now: int) -> None:
        self._manager.check_policy()
        self._steps += now != self._last_step_ms
        self._last_step_ms = now


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A replay after one of its steps.

    Attributes:
        manager: The manager after the step.
        step: Number of the step, from 1.
        time_ms: Time of the step in simulated milliseconds.
        names: The request number, from 1, and the sample of each running sequence, by handle and in
            order of admission.
        waiting: Requests that have arrived and are not admitted yet.
    """

    manager: BlockManager
    step: int
    time_ms: int
    names: Mapping[int, str]
    waiting: int


def replay_until(
    trace: Trace,
    num_blocks: int,
    config: ReplayConfig,
    step: int,
    *,
    progress: Progress | None = None,
) -> Moment:
    """``replay``, stopped after the given step.

    A step is an instant of simulated time at which requests were admitted or ended.

    Args:
        trace: The requests.
        num_blocks: Blocks in the pool, at least 1.
        config: Config of the replay.
        step: Number of the step, in ``[1, ReplayResult.steps]``.
        progress: Called once for each request reached.

    Raises:
        ValueError: The replay has no such step, or the trace cannot be cut into blocks of
            ``config.block_size``.
    """
    if step < 1:
        raise ValueError(f"step must be at least 1, got {step}")
    loop = EventLoop(trace, num_blocks, config, progress=progress, stop_after=step)
    steps = loop.run().steps
    if step > steps:
        raise ValueError(f"step must be at most {steps}, the last of this replay, got {step}")
    names = {}
    for number, handles in loop.running():
        for sample, handle in enumerate(handles, start=1):
            of_several = f", sample {sample}" if len(handles) > 1 else ""
            names[handle] = f"request {number}{of_several}"
    return Moment(
        manager=loop.manager,
        step=steps,
        time_ms=loop.time_ms,
        names=names,
        waiting=loop.num_waiting,
    )
