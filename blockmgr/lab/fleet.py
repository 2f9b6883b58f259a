"""Replays a trace on several replicas behind a router: hit rate, balance, latency.

Each replica is a separate replay with a real ``BlockManager``; a router sends every request to one
of them at its arrival. Replicas share only the clock. A fleet of one replica gives the same counts
as ``replay``; the memory for events is not counted.

Time to first token comes from a model, ``PrefillModel`` by default, which can be replaced, and a
queue of prefills at each replica, in the order of admission. Only the time that depends on computed
tokens occupies a replica: the fixed part of a request passes beside other prefills. The times are
computed from an ended replay, so they do not change which blocks a replica holds, or for how long.

The replicas of a ``Split`` either prefill or decode, with transfers of K/V between them. Each half
is a separate fleet: the second half does not affect the first.

::

    arrival ──► router ──► prefill replica ──► decode router ──► decode replica ──► end
                           waits for room,     first token       waits for room,
                           computes what is                      receives what is
                           not cached there                      not cached there, generates

* A prefill replica computes one prompt after another. It holds the blocks of a prompt for the time
  of the first-token model without waiting. Then they stay cached there. It has no outputs, so the
  next turn of a conversation computes the previous answer.
* A decode replica holds blocks of the prompt and of the outputs during the transfer of K/V and for
  the service time after that. Its cached part of a prompt needs no transfer.
* A prefill replica does not wait for a decode replica without room: no block is held in between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from blockmgr.arguments import amount
from blockmgr.lab.demand import replay_manager
from blockmgr.lab.optimum import optimum
from blockmgr.lab.replay import EventLoop, Limits
from blockmgr.lab.routers import router_of
from blockmgr.lab.routing import AT_ONCE, Arrival, Delivery, Listener, Setting
from blockmgr.lab.trace import Trace

if TYPE_CHECKING:
    import numpy.typing as npt

    from blockmgr.event_columns import Events
    from blockmgr.lab.replay import Progress, ReplayConfig, ReplayResult
    from blockmgr.lab.request import Request, Running
    from blockmgr.lab.routing import RouterFactory

__all__ = [
    "USUAL_PREFILL",
    "FleetOptions",
    "FleetResult",
    "PrefillModel",
    "Size",
    "Split",
    "best_hit_rate",
    "fleet",
    "total",
]


class Split(NamedTuple):
    """The replicas of a fleet that prefill or decode."""

    prefill: int
    """Number of prefill replicas."""
    decode: int
    """Number of decode replicas."""

    def __str__(self) -> str:
        return f"{self.prefill}+{self.decode}"


Size = int | Split
"""Replicas of a fleet: their number, or the number of each kind."""


def total(size: Size) -> int:
    """The number of all replicas."""
    return sum(size) if isinstance(size, Split) else size


BusyTime = Callable[["Request", int], int]
"""Milliseconds for which a request holds its blocks, from the request and its computed tokens."""


class Served(NamedTuple):
    """An admitted request, when everything is there that it does not compute."""

    number: int
    """Its number in the trace, from 1."""
    now_ms: int
    """Time in simulated milliseconds."""
    wait_ms: int
    """Time that it waited."""
    num_computed_tokens: int
    """Tokens of its prompt that were not cached."""
    replica: int
    """Index of the replica."""


class Replica(EventLoop):
    """An ``EventLoop`` that a router can query.

    Args:
        trace: All requests of the fleet.
        num_blocks: Blocks in its pool.
        config: Config of the replay.
        replica: Index of the replica.
        limits: Limits of the trace; with events if ``told`` is given.
        served: Called for each admitted request.
        busy_ms: Time for which a request holds its blocks; None for that of ``config``.
        told: Called with the time and the events of each step with events; None for no calls.
        progress: As in ``EventLoop``.
    """

    def __init__(
        self,
        trace: Trace,
        num_blocks: int,
        config: ReplayConfig,
        *,
        replica: int,
        limits: Limits,
        served: Callable[[Served], None],
        busy_ms: BusyTime | None = None,
        told: Callable[[int, Events], None] | None = None,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(trace, num_blocks, config, limits=limits, progress=progress)
        self._replica = replica
        self._served = served
        self._told = told
        self._busy = busy_ms

    @property
    def num_requests(self) -> int:
        """Number of requests that run or wait here."""
        return len(self._running) + self.num_waiting

    def cached_tokens(self, arrival: Arrival) -> int:
        """Leading tokens of a prompt that are cached here."""
        return self.manager.match(
            arrival.tokens, namespace=arrival.request.namespace
        ).num_cached_tokens

    def block_digests(self, arrival: Arrival) -> list[bytes]:
        """Digests of the whole blocks of a prompt."""
        return self.manager.block_digests(arrival.tokens, namespace=arrival.request.namespace)

    def _begin(self, order: int, now: int) -> None:
        super()._begin(order, now)
        one = self._running[order]
        computed = one.request.num_prompt_tokens - one.num_cached_tokens
        wait = now - one.request.arrival_ms
        self._served(Served(one.number, now, wait, computed, self._replica))

    def _busy_ms(self, one: Running) -> int:
        if self._busy is None:
            return super()._busy_ms(one)
        return self._busy(one.request, one.request.num_prompt_tokens - one.num_cached_tokens)

    def _count_step(self, now: int) -> None:
        super()._count_step(now)
        if self._told is None:
            return
        events = self.manager.take_events()
        lost = events.num_lost
        if len(events):
            self._told(now, events)
        if lost:
            self._told(now, self.manager.take_snapshot())


def event_bytes(num_blocks: int, config: ReplayConfig, limits: Limits) -> int:
    """Memory of the manager of a replica for its events, which results leave out."""
    plain, telling = (
        replay_manager(num_blocks, config, replace(limits, events=events), "lru").memory_usage()
        for events in (False, limits.events)
    )
    return telling - plain


FirstToken = Callable[[float, int], float]
"""Milliseconds to the first token, from the time that a request waited for blocks and for the
prefills before it, and from its computed tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillModel:
    """A model of prefill: a constant time per token.

    Attributes:
        ms_per_token: Time per computed prompt token.
        overhead_ms: Time of a request without computed tokens.

    Raises:
        ValueError: A time is out of bounds.
        TypeError: A time is not a number.
    """

    ms_per_token: float = 0.1
    overhead_ms: float = 20.0

    def __post_init__(self) -> None:
        for name in ("ms_per_token", "overhead_ms"):
            amount(name, getattr(self, name))

    def __call__(self, wait_ms: float, num_computed_tokens: int) -> float:
        """Milliseconds from arrival to the first token."""
        return wait_ms + self.overhead_ms + self.ms_per_token * num_computed_tokens


USUAL_PREFILL: Final = PrefillModel()


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """How routers choose replicas, and the stated times of a fleet.

    Attributes:
        seed: Seed of random routers.
        load_weight: Weight of the load in ``prefix-minus-load`` and ``events``, at least 0.
        delivery: Delivery of events to the router ``events``.
        first_token: Model of the time to first token; picklable for other processes.
        decode_router: Router of prefilled requests, if some replicas decode.
        decode_blocks: Blocks in the pool of each replica that decodes; None for as many as in
            those that prefill.
        send_ms_per_token: Transfer time of K/V per token, likewise.

    Raises:
        ValueError: A number is out of bounds.
        TypeError: A number is of the wrong type.
    """

    seed: int = 0
    load_weight: float = 0.25
    delivery: Delivery = AT_ONCE
    first_token: FirstToken = USUAL_PREFILL
    decode_router: str | RouterFactory = "least-loaded"
    decode_blocks: int | None = None
    send_ms_per_token: float = 0.0

    def __post_init__(self) -> None:
        for name in ("load_weight", "send_ms_per_token"):
            amount(name, getattr(self, name))


def _no_times() -> npt.NDArray[np.float64]:
    return np.zeros(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetResult:
    """The counts of a fleet.

    Attributes:
        router: Name of the router of prompts, or of its factory.
        prefill: The counts of each replica that computes prompts; of a fleet that is not split, all
            replicas, as replays of their requests.
        first_token_ms: Time to first token of each request, in the order of admission:
            ``float64[n]`` on the host.
        prefill_loads: Prefill load of each of these replicas, as in ``blockmgr.lab.fleet``.
        decode_router: Router of prefilled requests, if some replicas decode; else empty.
        decode: The counts of each replica that only decodes; its hit tokens were not transferred.
        handover_ms: Time from the first token to the start of decoding, with wait and transfer, of
            each request that another replica decodes, in the order of admission: ``float64[m]``.
    """

    router: str
    prefill: tuple[ReplayResult, ...]
    first_token_ms: npt.NDArray[np.float64]
    prefill_loads: tuple[float, ...] = ()
    decode_router: str = ""
    decode: tuple[ReplayResult, ...] = ()
    handover_ms: npt.NDArray[np.float64] = field(default_factory=_no_times)

    @property
    def replicas(self) -> tuple[ReplayResult, ...]:
        """The counts of all replicas."""
        return self.prefill + self.decode

    @property
    def prefill_load(self) -> float | None:
        """Prefill load of the busiest replica; None if all requests arrive at once."""
        return max(self.prefill_loads, default=None)

    @property
    def hit_rate(self) -> float:
        """Prompt tokens that no replica computed over all prompt tokens, in ``0 … 1``."""
        asked = sum(result.query_tokens for result in self.prefill)
        return sum(result.hit_tokens for result in self.prefill) / asked

    @property
    def imbalance(self) -> float:
        """Computed prompt tokens of the busiest replica over the mean of all; 1 is balanced."""
        return _over_mean([result.query_tokens - result.hit_tokens for result in self.prefill])

    @property
    def decode_imbalance(self) -> float:
        """Requests of the busiest replica that decodes over their mean."""
        return _over_mean([result.requests for result in self.decode])

    @property
    def handover_mean_ms(self) -> float:
        """Mean time from the first token to the start of decoding; 0 if nothing was handed over."""
        return float(self.handover_ms.mean()) if len(self.handover_ms) else 0.0

    @property
    def sent_tokens(self) -> int:
        """Tokens whose K/V was transferred."""
        return sum(result.query_tokens - result.hit_tokens for result in self.decode)

    @property
    def waited(self) -> int:
        """Requests that were admitted after their arrival, at each replica that they visit."""
        return sum(result.waited for result in self.replicas)

    @property
    def rejected(self) -> int:
        """Requests larger than their replica's pool."""
        return sum(result.rejected for result in self.replicas)

    @property
    def first_token_mean_ms(self) -> float:
        """Mean time to first token, in milliseconds; 0 if nothing was served."""
        return float(self.first_token_ms.mean()) if len(self.first_token_ms) else 0.0

    def first_token_quantile(self, share: float) -> float:
        """Percentile of the time to first token, in milliseconds, for this share of requests.

        Raises:
            ValueError: ``share`` is not in ``[0, 1]``.
        """
        if not 0 <= share <= 1:
            raise ValueError(f"share must be in [0, 1], got {share}")
        return float(np.quantile(self.first_token_ms, share)) if len(self.first_token_ms) else 0.0


def _over_mean(counts: list[int]) -> float:
    """The largest of some counts over their mean."""
    return max(counts) * len(counts) / max(1, sum(counts))


def fleet(
    trace: Trace,
    replicas: Size,
    num_blocks: int,
    config: ReplayConfig,
    router: str | RouterFactory = "round-robin",
    *,
    options: FleetOptions | None = None,
    progress: Progress | None = None,
) -> FleetResult:
    """Replay ``trace`` on several replicas.

    Args:
        trace: The requests.
        replicas: Number of replicas, at least 1; or of those that prefill and those that decode.
        num_blocks: Blocks in the pool of each.
        config: Config of each replica's replay.
        router: Name of a router of prompts (``blockmgr.lab.routers``), or a factory.
        options: The other options, for all routers; None for ``FleetOptions()``.
        progress: Called once for each request that is prefilled or rejected.

    Raises:
        ValueError: A number is out of bounds, there is no such router, or the trace cannot be cut
            into blocks of ``config.block_size``. Of a ``Split``: no request fits a prefill replica,
            or ``config`` has groups of layers (a transfer would need more than K/V).
        MissingExtraError: The router is ``events``, and the extra ``events`` is not installed.

    Cost: That of the replays; routers by prefix look each prompt up in every replica.
    """
    chosen = options or FleetOptions()
    split = replicas if isinstance(replicas, Split) else None
    if split is not None:
        _check(split, config)

    def prefill_ms(_: Request, computed: int) -> int:
        return round(chosen.first_token(0, computed))

    def decode_ms(request: Request, sent: int) -> int:
        return config.service_ms(request) + round(chosen.send_ms_per_token * sent)

    setting = Setting(
        trace=trace if split is None else _prompts(trace),
        block_size=config.block_size,
        num_replicas=replicas.prefill if isinstance(replicas, Split) else replicas,
        groups=config.groups,
        seed=chosen.seed,
        load_weight=chosen.load_weight,
        delivery=chosen.delivery,
    )
    busy_ms = None if split is None else prefill_ms
    results, served = _serve(
        setting, num_blocks, config, router, busy_ms=busy_ms, progress=progress
    )
    times, loads = _prefills(setting, served, chosen.first_token)
    found = FleetResult(
        router=_name_of(router), prefill=results, first_token_ms=times, prefill_loads=loads
    )
    if split is None:
        return found
    if not served:
        raise ValueError(f"num_blocks must hold a request of {trace.name}, got {num_blocks}")
    handed_over = _in_order_of_handover(trace, served, times)
    later = replace(setting, trace=handed_over, num_replicas=split.decode)
    blocks = num_blocks if chosen.decode_blocks is None else chosen.decode_blocks
    decoded, started = _serve(later, blocks, config, chosen.decode_router, busy_ms=decode_ms)
    waits = [one.wait_ms + chosen.send_ms_per_token * one.num_computed_tokens for one in started]
    return replace(
        found,
        decode_router=_name_of(chosen.decode_router),
        decode=decoded,
        handover_ms=np.array(waits, dtype=np.float64),
    )


def _check(split: Split, config: ReplayConfig) -> None:
    for name, count in split._asdict().items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
    if config.groups:
        raise ValueError(
            f"groups must be empty for prefill and decode apart, got {len(config.groups)}"
        )


def _prompts(trace: Trace) -> Trace:
    """The requests without their outputs."""
    alone = (replace(request, outputs=(), num_output_tokens=0) for request in trace.requests)
    return Trace(trace.name, tuple(alone))


def _in_order_of_handover(
    trace: Trace, served: list[Served], first_token_ms: npt.NDArray[np.float64]
) -> Trace:
    """The prefilled requests, each with the end of its prefill as arrival."""
    done = sorted(
        (one.now_ms - one.wait_ms + round(time), one.number)
        for one, time in zip(served, first_token_ms.tolist(), strict=True)
    )
    arrived = (replace(trace.requests[number - 1], arrival_ms=at) for at, number in done)
    return Trace(trace.name, tuple(arrived))


def _prefills(
    setting: Setting, served: list[Served], model: FirstToken
) -> tuple[npt.NDArray[np.float64], tuple[float, ...]]:
    """The times of the prefills of a fleet.

    Returns:
        Time to first token of each of ``served``, all admitted requests in the order of admission.

        Prefill of each replica over the time in which the trace arrives. Above 1, more is asked of
        a replica than it can compute: its queue grows to the end of the trace, and times to first
        token say how long the trace is. Empty if all requests arrive at once.
    """
    requests = setting.trace.requests
    idle_at, busy_ms = [0.0] * setting.num_replicas, [0.0] * setting.num_replicas
    times = np.empty(len(served), dtype=np.float64)
    for i, one in enumerate(served):
        start = max(float(one.now_ms), idle_at[one.replica])
        work = model(0, one.num_computed_tokens) - model(0, 0)
        idle_at[one.replica] = start + work
        busy_ms[one.replica] += work
        times[i] = model(one.wait_ms + start - one.now_ms, one.num_computed_tokens)
    span = requests[-1].arrival_ms - requests[0].arrival_ms
    return times, tuple(busy / span for busy in busy_ms) if span > 0 else ()


def _name_of(router: str | RouterFactory) -> str:
    """The name of a router or of its factory."""
    return router if isinstance(router, str) else getattr(router, "__name__", "own")


def _serve(
    setting: Setting,
    num_blocks: int,
    config: ReplayConfig,
    router: str | RouterFactory,
    *,
    busy_ms: BusyTime | None,
    progress: Progress | None = None,
) -> tuple[tuple[ReplayResult, ...], list[Served]]:
    """Run a trace on replicas; returns their counts, and all requests in admission order.

    Args:
        setting: The trace, the number of replicas, and the inputs of routers.
        num_blocks: Blocks in the pool of each.
        config: Config of each replica's replay.
        router: Name of a router, or a factory.
        busy_ms: Time for which a request holds its blocks; None for that of ``config``.
        progress: As in ``EventLoop``.

    Raises:
        ValueError: As ``fleet`` does.
        MissingExtraError: Likewise.
    """
    replicas = setting.num_replicas
    if replicas < 1:
        raise ValueError(f"replicas must be at least 1, got {replicas}")
    choose = router_of(router, setting)
    told = choose.listen if isinstance(choose, Listener) else None
    limits = replace(Limits.of(setting.trace, config), events=told is not None)
    more_bytes = event_bytes(num_blocks, config, limits)
    served: list[Served] = []
    loops = [
        Replica(
            setting.trace,
            num_blocks,
            config,
            limits=limits,
            replica=replica,
            served=served.append,
            busy_ms=busy_ms,
            told=None if told is None else partial(told, replica),
            progress=progress,
        )
        for replica in range(replicas)
    ]
    for number, request in enumerate(setting.trace.requests, start=1):
        for loop in loops:
            loop.advance(request.arrival_ms)
        chosen = choose(Arrival(number, request, request.tokens()), loops)
        if not 0 <= chosen < replicas:
            raise ValueError(f"router must choose from [0, {replicas}), got {chosen}")
        loops[chosen].offer(number, request)
    results = (loop.finish() for loop in loops)
    return tuple(replace(r, memory_bytes=r.memory_bytes - more_bytes) for r in results), served


def best_hit_rate(trace: Trace, replicas: Size, num_blocks: int, config: ReplayConfig) -> float:
    """An upper bound for all routers and policies: the optimum of one pool of all blocks.

    One pool of the same number of blocks can hold everything that the replicas hold, and needs no
    block twice. Of a ``Split``, only the replicas that prefill count, which have no outputs.

    Raises:
        ValueError: As in ``optimum``.
    """
    if isinstance(replicas, Split):
        return best_hit_rate(_prompts(trace), replicas.prefill, num_blocks, config)
    return optimum(trace, replicas * num_blocks, config).hit_rate
