"""The configuration of a manager: one frozen, validated record."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Literal, ParamSpec, TypedDict

from blockmgr.arguments import integer, whole
from blockmgr.groups import checked_groups, checked_prompt_end_stop

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from blockmgr.groups import Group
    from blockmgr.policy import PolicyFactory

__all__ = [
    "DIGEST_NAMES",
    "EVICTION_POLICIES",
    "ManagerConfig",
    "ManagerOptions",
    "Quotas",
    "spells_options",
]

# Node ids are int32, and there are a fifth more nodes than blocks. Token counts within a block are
# uint16, fence queue numbers uint8.
MAX_BLOCKS = (2**31 - 512) // 6 * 5
MAX_BLOCK_SIZE = 2**16 - 1
MAX_STEPS_IN_FLIGHT = 200
# Ticks are uint32, and each place takes two.
MAX_PLACES = 2**30
MAX_DEBUG = 2
MAX_WINDOW = 2**24
MAX_NAMESPACE = 1024
MAX_QUOTAS = 2**16 - 1

EVICTION_POLICIES = ("lru", "lfuda", "s3fifo", "arc")
"""Names of the eviction orders for idle blocks."""

REMOVED_POLICIES = {
    "sieve": "use 's3fifo'",
    "slru": "use 'arc'",
    "adaptive": "use 'lru', or 'arc' where a sweep of your trace shows that it finds more",
}
"""Removed eviction orders, and what to use in their place."""

DIGEST_NAMES = ("xxh3_128", "sha256", "sha256_cbor")
"""Names of digests; ``blockmgr.digest`` has their functions."""


def _most_columns(block_size: int) -> int:
    """Most blocks of a sequence whose length still fits an int32."""
    return (2**31 - 1) // block_size


class Quotas(Mapping[bytes, int]):
    """Blocks reserved for single namespaces; immutable, and never prints the namespaces.

    A namespace may hold a tenant's secret, so ``repr`` and ``str`` show only the numbers.

    Args:
        blocks: Namespaces, at most 1024 bytes each, and the blocks of each, at least 1.

    Raises:
        ValueError: A namespace is too long, a number too small, or there are too many of them.
        TypeError: Not a mapping, a namespace is not bytes, or a number is not an int.

    >>> Quotas({b"secret": 20, b"other": 5})
    <Quotas: 2 namespaces, 20 and 5 blocks>
    """

    __slots__ = ("_blocks",)

    def __init__(self, blocks: Mapping[bytes, int]) -> None:
        if not isinstance(blocks, Mapping):
            raise TypeError(
                f"quotas must map namespaces to numbers of blocks, got {type(blocks).__name__}"
            )
        self._blocks: dict[bytes, int] = {}
        for position, namespace in enumerate(blocks):
            if position == MAX_QUOTAS:
                raise ValueError(f"quotas must be at most {MAX_QUOTAS}, got more")
            if not isinstance(namespace, bytes):
                raise TypeError(
                    "quotas must have bytes as namespaces, "
                    f"got {type(namespace).__name__} at position {position}"
                )
            if len(namespace) > MAX_NAMESPACE:
                raise ValueError(
                    f"quotas must have namespaces of at most {MAX_NAMESPACE} bytes, "
                    f"got {len(namespace)} at position {position}"
                )
            self._blocks[namespace] = _blocks_of(blocks[namespace], position)

    def __getitem__(self, namespace: bytes) -> int:
        if namespace in self._blocks:
            return self._blocks[namespace]
        raise KeyError("no quota for this namespace")  # hides the key

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._blocks)

    def __len__(self) -> int:
        return len(self._blocks)

    def values(self) -> ValuesView[int]:
        """The blocks of each, in order."""
        return self._blocks.values()

    def __hash__(self) -> int:
        return hash(frozenset(self._blocks.items()))

    def __repr__(self) -> str:
        if not self._blocks:
            return "<Quotas: none>"
        *most, last = map(str, self._blocks.values())
        sizes = f"{', '.join(most)} and {last}" if most else last
        return f"<Quotas: {len(self)} namespace{'s' * bool(most)}, {sizes} blocks>"


class ManagerOptions(TypedDict, total=False):
    """Keyword options of ``BlockManager``; ``ManagerConfig`` has their meanings and defaults."""

    max_seqs: int
    max_blocks_per_seq: int | None
    prefix_caching: bool
    digest: str | Callable[[bytes], bytes]
    dedup: Literal["remap", "append_only"]
    min_partial_tokens: int
    eviction: str | PolicyFactory
    retention: bool
    max_pinned_blocks: int
    quotas: Mapping[bytes, int]
    groups: Sequence[Group]
    max_rollback_tokens: int
    halfway_stop_tokens: int
    prompt_end_stop: int | None
    watermark_blocks: int
    steps_in_flight: int
    early_commit: bool
    null_block: bool
    ghost_blocks: int
    hit_rate_window: int
    events: bool
    event_blocks: int | None
    debug: int


def _blocks_of(value: object, position: int) -> int:
    """A checked number of blocks. Errors show only ints: a swapped mapping holds secrets."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(
            f"quotas must map to ints, got {type(value).__name__} at position {position}"
        )
    number = integer("quotas", value)
    if number < 1:
        raise ValueError(f"quotas must be at least 1 block, got {number} at position {position}")
    return number


_NO_QUOTAS = Quotas({})


@dataclass(frozen=True, kw_only=True, slots=True)
class ManagerConfig:
    """The settings of a manager, fixed at construction.

    Attributes:
        num_blocks: Physical blocks in the pool, the null block included.
        block_size: Tokens per block, ``1 … 65535``.
        max_seqs: Rows of the block table array: most sequences alive at a time, preempted ones
            included.
        max_blocks_per_seq: Columns of the block table array; ``None`` for the number of blocks in
            the pool. The array takes 4 bytes an entry; its unused pages take address space but no
            memory.
        prefix_caching: False turns off matching, hashing and caching; the interface stays the same.
        digest: ``"xxh3_128"``, ``"sha256"``, ``"sha256_cbor"`` (the digests that vLLM makes of the
            same tokens; see ``vllm_extras``), a ``VllmDigest``, a ``KeyedDigest``, or any function
            from the bytes of a block to a digest of constant length, 8 to 64 bytes.
        dedup: The action of ``commit`` if an equal block is cached already. ``"remap"`` puts that
            block into the block table; ``"append_only"`` never changes a block table.
        min_partial_tokens: Fewest tokens to reuse from part of a block; 0 turns token-granular
            reuse off.
        eviction: Order in which idle blocks are evicted: one of ``EVICTION_POLICIES``, or a
            function from the capacity to your own ``blockmgr.policy.EvictionPolicy``.
        retention: Whether blocks can be kept longer, or evicted sooner, than the order says:
            ``retain``, ``pin``, ``set_time`` and ``free(expect_reuse=...)``. Takes some 110 bytes
            a block, and time to free and admit.
        max_pinned_blocks: Most blocks that pins may cover at a time, and most pins; above 0 only
            with ``retention``. With ``groups``, only blocks of full attention count. With quotas,
            each share gets a proportional part, rounded down.
        quotas: Blocks reserved for single namespaces. Such a namespace uses only its own blocks,
            with a separate eviction policy, retention and ghosts; all other namespaces share the
            rest.
        groups: Groups of layers, for models whose layers do not all read every token, such as
            ``(FullAttention(), SlidingWindow(1024))``; empty for a single group with full
            attention. At least one must have full attention: ``block_tables`` holds the tables of
            the first such group, and ``group_table`` returns the others. See
            docs/guides/hybrid-models.md. With more than one, ``null_block`` must be set, and
            ``dedup`` and ``ghost_blocks`` must have their defaults.
        max_rollback_tokens: With ``groups``, number of computed tokens that ``truncate`` may drop,
            as after rejected drafts, without losing a window: each window keeps that many more
            tokens.
        halfway_stop_tokens: With groups of states, a prompt that has at least so many tokens to
            compute, and at least eight blocks for each of these groups, gets one more of its
            ``stops``, halfway. The state there takes a block in each of the groups. It keeps the
            first half of the prompt findable when the end is evicted. 0 for none.
        prompt_end_stop: With groups of states and ``min_partial_tokens``, each prompt gets one more
            of its ``stops``, so many tokens before its end. Set it if prompts repeat earlier
            prompts without the thoughts of the answers: to the number of tokens that the chat
            template adds for an answer only, such as ``<think>`` and a newline. The state there is
            cached if there are free blocks for it; it evicts nothing, and is among the first to be
            evicted. None for no such stop.
        watermark_blocks: Blocks held back when admitting, so that running sequences can grow. With
            quotas, each share holds back a part in proportion to its size, rounded down.
        steps_in_flight: Most launched steps that may be incomplete at a time. Above 0, blocks freed
            while a step runs are handed out only after ``complete`` of that step.
        early_commit: ``commit`` comes before the forward that writes the tokens.
        null_block: Reserve block 0 as a target for padded writes.
        ghost_blocks: Evicted blocks to remember, by digest and time of last use. ``hit_rate_curve``
            needs them, and ``explain`` gives more reasons with them. 0 costs nothing. The sum with
            ``num_blocks`` is at most 2**30. With quotas, each share remembers a proportional part,
            rounded up.
        hit_rate_window: Number of requests that ``recent_hits`` covers; 0 for none. Each takes 16
            bytes.
        events: Whether to record, for ``take_events``, which blocks become findable and which stop
            being findable.
        event_blocks: Most blocks whose events may wait for ``take_events``; only with ``events``.
            Those that do not fit are counted as lost. ``None`` for four times ``num_blocks``, at
            least 256 and at most 65,536. The memory, ``4 * block_size + 64`` bytes a block and two
            digests, is reserved at once; its pages are used when events first fill them.
        debug: How much each call checks: 0 its arguments and handles; 1 also every change of a
            block's state, and overwrites freed blocks; 2 also every invariant afterwards, at the
            cost of ``check_invariants``. ``BlockManager.debug`` changes it at any time.

    Raises:
        ValueError: A value is out of its bounds.
        TypeError: A value is of the wrong type.
    """

    num_blocks: int
    block_size: int
    max_seqs: int = 256
    max_blocks_per_seq: int | None = None
    prefix_caching: bool = True
    digest: str | Callable[[bytes], bytes] = "xxh3_128"
    dedup: Literal["remap", "append_only"] = "remap"
    min_partial_tokens: int = 0
    eviction: str | PolicyFactory = "lru"
    retention: bool = False
    max_pinned_blocks: int = 0
    quotas: Mapping[bytes, int] = _NO_QUOTAS
    groups: Sequence[Group] = ()
    max_rollback_tokens: int = 0
    halfway_stop_tokens: int = 8192
    prompt_end_stop: int | None = None
    watermark_blocks: int = 0
    steps_in_flight: int = 0
    early_commit: bool = False
    null_block: bool = False
    ghost_blocks: int = 0
    hit_rate_window: int = 1000
    events: bool = False
    event_blocks: int | None = None
    debug: int = 0

    def __post_init__(self) -> None:
        for flag in ("prefix_caching", "retention", "early_commit", "null_block", "events"):
            value = getattr(self, flag)
            if not isinstance(value, bool):
                raise TypeError(f"{flag} must be a bool, got {value!r}")
        self._whole("num_blocks", 1 + self.null_block, MAX_BLOCKS)
        self._whole("block_size", 1, MAX_BLOCK_SIZE)
        self._whole("max_seqs", 1, 2**31 - 1)
        if self.max_blocks_per_seq is not None:
            self._whole("max_blocks_per_seq", 1, _most_columns(self.block_size))
        self._whole("min_partial_tokens", 0, self.block_size)
        self._whole("watermark_blocks", 0, self.capacity)
        self._whole("max_pinned_blocks", 0, self.capacity)
        if self.max_pinned_blocks and not self.retention:
            raise ValueError(
                f"max_pinned_blocks must be 0 without retention, got {self.max_pinned_blocks}"
            )
        self._whole("steps_in_flight", 0, MAX_STEPS_IN_FLIGHT)
        self._whole("ghost_blocks", 0, max(0, MAX_PLACES - self.num_blocks))
        self._whole("hit_rate_window", 0, MAX_WINDOW)
        if self.event_blocks is not None:
            self._whole("event_blocks", 1, MAX_PLACES)
            if not self.events:
                raise ValueError(
                    f"event_blocks must be None without events, got {self.event_blocks}"
                )
        self._set_quotas()
        self._set_groups()
        self._whole("debug", 0, MAX_DEBUG)
        self._one_of("dedup", ("remap", "append_only"))
        if not callable(self.eviction):
            self._one_of("eviction", EVICTION_POLICIES)
        if not callable(self.digest):
            self._one_of("digest", DIGEST_NAMES)

    @property
    def capacity(self) -> int:
        """Blocks that can hold tokens: all but the null block."""
        return self.num_blocks - self.null_block

    @property
    def shares(self) -> tuple[int, ...]:
        """Blocks without a quota, then those of each quota."""
        quotas = self.quotas.values()
        return (self.capacity - sum(quotas), *quotas)

    @property
    def row_width(self) -> int:
        """Columns of the block table array."""
        return self.max_blocks_per_seq or min(self.capacity, _most_columns(self.block_size))

    @property
    def waiting_blocks(self) -> int:
        """Most blocks whose events may wait for ``take_events``; 0 without ``events``."""
        if not self.events:
            return 0
        return self.event_blocks or min(65_536, max(256, 4 * self.num_blocks))

    def _whole(self, name: str, low: int, high: int) -> None:
        object.__setattr__(self, name, whole(name, getattr(self, name), low, high))

    def _set_quotas(self) -> None:
        quotas = self.quotas if isinstance(self.quotas, Quotas) else Quotas(self.quotas)
        object.__setattr__(self, "quotas", quotas)
        total = sum(quotas.values())
        if total > self.capacity:
            raise ValueError(
                f"quotas must add up to at most {self.capacity}, the capacity, got {total}"
            )
        if quotas and self.num_blocks > MAX_BLOCKS - 2 * len(quotas):
            raise ValueError(
                f"quotas must be at most {(MAX_BLOCKS - self.num_blocks) // 2} for this num_blocks,"
                f" got {len(quotas)}"
            )

    def _set_groups(self) -> None:
        object.__setattr__(self, "groups", checked_groups(self.groups))
        self._whole("max_rollback_tokens", 0, 2**31 - 1)
        self._whole("halfway_stop_tokens", 0, 2**31 - 1)
        stop = checked_prompt_end_stop(self.prompt_end_stop, self.groups, self.min_partial_tokens)
        object.__setattr__(self, "prompt_end_stop", stop)
        if not self.groups:
            if self.max_rollback_tokens:
                raise ValueError(
                    f"max_rollback_tokens must be 0 without groups, got {self.max_rollback_tokens}"
                )
            return
        wanted: dict[str, object] = {"null_block": True, "prefix_caching": True}
        wanted |= {"dedup": "remap", "ghost_blocks": 0}
        for name, value in wanted.items():
            if getattr(self, name) != value:
                raise ValueError(
                    f"{name} must be {value!r} with several groups of layers, got "
                    f"{getattr(self, name)!r}"
                )

    def _one_of(self, name: str, choices: tuple[str, ...]) -> None:
        value = getattr(self, name)
        if not isinstance(value, str):
            raise TypeError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
        if value not in choices:
            near = get_close_matches(value, choices, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            if name == "eviction" and value in REMOVED_POLICIES:
                hint = f"; {value} was removed, {REMOVED_POLICIES[value]}"
            raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}{hint}")


P = ParamSpec("P")


def spells_options(call: Callable[P, None]) -> Callable[P, None]:
    """An ``__init__`` with ``**options``, given the signature of the options it takes.

    ``help`` and ``inspect.signature`` show each field of ``ManagerConfig`` that is not an argument
    already, with type and default. The error about an unknown option names the class and the
    nearest option.
    """
    signature = inspect.signature(call)
    own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    taken = {each.name for each in own}
    options = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default={} if isinstance(field.default, Quotas) else field.default,
            annotation=field.type,
        )
        for field in fields(ManagerConfig)
        if field.name not in {*taken, "num_blocks", "block_size"}
    ]
    checked = names_nearest(call, [*taken, *(each.name for each in options)])
    checked.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    return checked


def names_nearest(
    call: Callable[P, None], names: Collection[str] | None = None
) -> Callable[P, None]:
    """An ``__init__`` whose error about an unknown option names the nearest known option.

    Args:
        call: The ``__init__``.
        names: Names of its options; None for those of its signature.
    """
    known = list(inspect.signature(call).parameters if names is None else names)

    @functools.wraps(call)
    def checked(*args: P.args, **given: P.kwargs) -> None:
        for name in given:
            if name not in known:
                near = get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise TypeError(f"{type(args[0]).__name__} has no option {name!r}{hint}")
        call(*args, **given)

    return checked


ManagerConfig.__init__ = names_nearest(ManagerConfig.__init__)  # type: ignore[method-assign]
