"""The configuration of a manager: one frozen, validated record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from blockmgr.arguments import MOST, integer
from blockmgr.digest import DIGESTS, digest_options
from blockmgr.groups import (
    MAX_BLOCK_SIZE,
    check_block_sizes,
    check_prompt_end_stop,
    check_replay,
    check_rings,
    checked_groups,
    core_groups,
    default_nodes,
    extra_blocks_of,
    full_block_size,
    is_bare,
    table_group,
)
from blockmgr.options import check_options, names_nearest, rule
from blockmgr.policy import policies_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import DataclassInstance

    from blockmgr.groups import Group
    from blockmgr.policy import PolicyFactory

__all__ = [
    "DIGEST_NAMES",
    "EVICTION_POLICIES",
    "ManagerConfig",
    "ManagerOptions",
    "PoolOptions",
    "Quotas",
    "core_options",
    "options_of",
]

# Node ids are int32, and there are a fifth more nodes than blocks. Token counts within a block are
# uint16, fence queue numbers uint8.
MAX_BLOCKS = (2**31 - 512) // 6 * 5
MAX_STEPS_IN_FLIGHT = 200
# Ticks are uint32, and each place takes two.
MAX_PLACES = 2**30
MAX_DEBUG = 2
MAX_WINDOW = 2**24
MAX_SESSIONS = 2**24
MAX_NAMESPACE = 1024
MAX_QUOTAS = 2**16 - 1

EVICTION_POLICIES = ("lru", "lfuda", "s3fifo", "arc")
"""Names of the eviction orders for idle blocks."""

DIGEST_NAMES = tuple(DIGESTS)
"""Names of digests; ``blockmgr.digest`` has their functions."""


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


class PoolOptions(TypedDict, total=False):
    """Keyword options of ``BlockPool``; ``ManagerConfig`` has their meanings and defaults.

    Type checkers and editors need the names and types once more. A test compares them.
    """

    prefix_caching: bool
    digest: str | Callable[[bytes], bytes]
    eviction: str | PolicyFactory
    retention: bool
    max_pinned_blocks: int
    quotas: Mapping[bytes, int]
    null_block: bool
    ghost_blocks: int
    events: bool
    event_blocks: int | None


class ManagerOptions(PoolOptions, total=False):
    """Keyword options of ``BlockManager``; see ``PoolOptions``."""

    max_seqs: int
    max_sessions: int
    max_blocks_per_seq: int | None
    num_nodes: int | None
    dedup: Literal["remap", "append_only"]
    min_partial_tokens: int
    groups: Sequence[Group]
    max_rollback_tokens: int
    halfway_stop_tokens: int
    prompt_end_stop: int | None
    stop_margin_tokens: int
    watermark_blocks: int
    steps_in_flight: int
    early_commit: bool
    strict_decode: bool
    hit_rate_window: int
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
        max_sessions: With ``retention``, most sessions that the manager knows at a time, for
            ``admit(session=...)``. For a new one, it drops the one whose last prompt is the oldest.
            With quotas, each share knows a proportional part, rounded up. A share takes no memory
            for sessions before its first one.
        max_blocks_per_seq: Columns of the block table array; ``None`` for the number of blocks in
            the pool, or for ``num_nodes`` where that is set. The array takes 4 bytes an entry; its
            unused pages take address space but no memory.
        num_nodes: Only with ``groups`` none of which has full attention: most stretches of
            ``block_size`` tokens that sequences and cached prefixes consist of. Elsewhere the
            blocks of full attention bound them. Takes some 160 bytes each, and 5 for each of its
            tokens. ``None`` for prefixes of 8,192 tokens, as many as can end in the blocks with
            their windows and states: at least the number of blocks, and otherwise at most 2**20.
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
            attention. ``block_tables`` holds the tables of the first group with full attention;
            without one, of the first window or chunk, or else of the first group. ``group_table``
            returns the others. See docs/guides/hybrid-models.md. With any, ``null_block`` must be
            set, and ``ghost_blocks`` must be 0. Without full attention, ``retention``, ``quotas``,
            ``events`` and a policy of your own are refused.
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
        stop_margin_tokens: With groups of states, ``stops`` at the end of a prompt, and where it
            leaves what is cached, come so many tokens earlier. Without states, eviction keeps of
            windows and chunks what such an earlier hit reads, too. Set it if your engine uses a
            hit only where so many tokens behind it are cached as well, as with a draft head.
        watermark_blocks: Blocks held back when admitting, so that running sequences can grow. With
            quotas, each share holds back a part in proportion to its size, rounded down.
        steps_in_flight: Most launched steps that may be incomplete at a time. Above 0, blocks freed
            while a step runs are handed out only after ``complete`` of that step.
        early_commit: ``commit`` comes before the forward that writes the tokens.
        strict_decode: ``decode`` refuses a sequence with more than one token to compute. It takes
            all tokens as computed, so without this an engine that forgot a chunk of a prompt
            caches K/V that no forward wrote.
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
            cost of ``check_invariants``. With several groups of layers, other free blocks may be
            handed out than at 0. ``BlockManager.debug`` changes it at any time.

    Raises:
        ValueError: A value is out of its bounds.
        TypeError: A value is of the wrong type.
    """

    num_blocks: int = field(metadata=rule("fewest_blocks", MAX_BLOCKS))
    block_size: int = field(metadata=rule(1, MAX_BLOCK_SIZE))
    max_seqs: int = field(default=256, metadata=rule(1, MOST))
    max_sessions: int = field(default=65_536, metadata=rule(0, MAX_SESSIONS))
    max_blocks_per_seq: int | None = field(default=None, metadata=rule(1, "most_columns"))
    num_nodes: int | None = field(default=None, metadata=rule(1, "most_nodes"))
    prefix_caching: bool = True
    digest: str | Callable[[bytes], bytes] = field(
        default="xxh3_128", metadata=rule(choices=DIGEST_NAMES, or_function=True)
    )
    dedup: Literal["remap", "append_only"] = field(
        default="remap", metadata=rule(choices=("remap", "append_only"))
    )
    min_partial_tokens: int = field(default=0, metadata=rule(0, "block_size"))
    eviction: str | PolicyFactory = field(
        default="lru",
        metadata=rule(choices=EVICTION_POLICIES, or_function=True),
    )
    retention: bool = False
    max_pinned_blocks: int = field(default=0, metadata=rule(0, "capacity", needs="retention"))
    quotas: Mapping[bytes, int] = _NO_QUOTAS
    groups: Sequence[Group] = ()
    max_rollback_tokens: int = field(default=0, metadata=rule(0, MOST, needs="groups"))
    halfway_stop_tokens: int = field(default=8192, metadata=rule(0, MOST))
    prompt_end_stop: int | None = field(default=None, metadata=rule(0, MOST))
    stop_margin_tokens: int = field(default=0, metadata=rule(0, MOST))
    watermark_blocks: int = field(default=0, metadata=rule(0, "capacity"))
    steps_in_flight: int = field(default=0, metadata=rule(0, MAX_STEPS_IN_FLIGHT))
    early_commit: bool = False
    strict_decode: bool = False
    null_block: bool = False
    ghost_blocks: int = field(default=0, metadata=rule(0, "most_ghosts"))
    hit_rate_window: int = field(default=1000, metadata=rule(0, MAX_WINDOW))
    events: bool = False
    event_blocks: int | None = field(default=None, metadata=rule(1, MAX_PLACES, needs="events"))
    debug: int = field(default=0, metadata=rule(0, MAX_DEBUG))

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", checked_groups(self.groups))
        check_options(self)
        check_prompt_end_stop(self.prompt_end_stop, self.groups, self.min_partial_tokens)
        self._check_quotas()
        self._check_groups()

    @property
    def capacity(self) -> int:
        """Blocks that can hold tokens: all but the null block."""
        return self.num_blocks - self.null_block

    @property
    def fewest_blocks(self) -> int:
        """Least ``num_blocks``."""
        return 1 + self.null_block

    @property
    def most_columns(self) -> int:
        """Most ``max_blocks_per_seq``: the length of a sequence fits an int32."""
        return (2**31 - 1) // self.block_size

    @property
    def most_ghosts(self) -> int:
        """Most ``ghost_blocks``."""
        return max(0, MAX_PLACES - self.num_blocks)

    @property
    def shares(self) -> tuple[int, ...]:
        """Blocks without a quota, then those of each quota."""
        quotas = self.quotas.values()
        return (self.capacity - sum(quotas), *quotas)

    @property
    def row_width(self) -> int:
        """Columns of the block table array."""
        return self.max_blocks_per_seq or min(self.bare_nodes or self.capacity, self.most_columns)

    @property
    def most_nodes(self) -> int:
        """Most ``num_nodes``."""
        return MAX_BLOCKS - self.num_blocks

    @property
    def bare_nodes(self) -> int:
        """Most nodes, where these have no blocks of their own; else 0."""
        if not is_bare(self.groups):
            return 0
        return self.num_nodes or default_nodes(self.groups, self.block_size, self.capacity)

    @property
    def waiting_blocks(self) -> int:
        """Most blocks whose events may wait for ``take_events``; 0 without ``events``."""
        if not self.events:
            return 0
        return self.event_blocks or min(65_536, max(256, 4 * self.num_blocks))

    def _check_quotas(self) -> None:
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

    def _check_bare(self) -> None:
        if not is_bare(self.groups):
            return
        refused: dict[str, bool] = {
            "retention": self.retention,
            "events": self.events,
            "quotas": bool(self.quotas),
            "eviction": not isinstance(self.eviction, str),
        }
        for name, is_set in refused.items():
            if is_set:
                what = "a name" if name == "eviction" else "left out"
                raise ValueError(f"{name} must be {what} without a group of FullAttention")

    def _check_groups(self) -> None:
        if self.num_nodes is not None and not is_bare(self.groups):
            raise ValueError(
                f"num_nodes must be None unless all groups lack full attention, got "
                f"{self.num_nodes}"
            )
        if not self.groups:
            return
        check_block_sizes(self.groups, self.block_size)
        self._check_bare()
        check_rings(self.groups, self.max_rollback_tokens)
        check_replay(self.groups)
        extra = max(map(extra_blocks_of, self.groups))
        if extra >= self.row_width:
            raise ValueError(
                f"max_blocks_per_seq must be at least {extra + 1} with extra_blocks={extra}, got "
                f"{self.row_width}"
            )
        wanted: dict[str, object] = {"null_block": True, "prefix_caching": True}
        wanted |= {"ghost_blocks": 0}
        for name, value in wanted.items():
            if getattr(self, name) != value:
                raise ValueError(
                    f"{name} must be {value!r} with several groups of layers, got "
                    f"{getattr(self, name)!r}"
                )


ManagerConfig.__init__ = names_nearest(ManagerConfig.__init__)  # type: ignore[method-assign]


def core_options(config: ManagerConfig) -> dict[str, Any]:
    """The options in the core's form, by the names that it reads; it ignores the others."""
    keys_move = config.prefix_caching and config.dedup == "append_only"
    options = options_of(config)
    options["row_width"] = config.row_width
    options["remap"] = config.dedup == "remap"
    options["eviction"] = config.eviction if isinstance(config.eviction, str) else "lru"
    options["python_policies"] = policies_of(config.eviction, config.shares, keys_move=keys_move)
    options["quotas"] = list(config.quotas.items())
    options["event_blocks"] = config.waiting_blocks
    options["groups"] = core_groups(config.groups, config.block_size)
    options["full_group"] = table_group(config.groups)
    options["num_nodes"] = config.bare_nodes
    options["full_block_size"] = full_block_size(config.groups, config.block_size)
    options.update(digest_options(config.digest, config.prefix_caching))
    return options


def options_of(table: DataclassInstance) -> dict[str, Any]:
    """The options of a manager that a table has, too."""
    options = {}
    for row in fields(table):  # CPython 3.11 leaks if it has no memory for the cell of a closure
        if row.name in ManagerConfig.__dataclass_fields__:
            options[row.name] = getattr(table, row.name)
    return options
