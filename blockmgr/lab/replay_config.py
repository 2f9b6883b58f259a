"""The config of a replay, and what clients know and say in it.

A replay knows the future of its trace, so it can give a client any knowledge. ``HINT_MODELS``
states which, by the name that ``--hints`` takes; ``blockmgr.lab.hints.Clients`` carries it out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from blockmgr.arguments import MOST
from blockmgr.config import EVICTION_POLICIES, ManagerConfig
from blockmgr.groups import (
    Group,
    RecurrentState,
    check_block_sizes,
    check_prompt_end_stop,
    checked_groups,
    refuse_bare,
    refuse_uncached,
)
from blockmgr.lab.tiered import ReplayTier
from blockmgr.options import check_options, rule, same_option
from blockmgr.tiers import TierConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from blockmgr.lab.request import Hints
    from blockmgr.lab.trace import Request
    from blockmgr.policy import PolicyFactory
    from blockmgr.tiers.kinds import StoreName

__all__ = [
    "HINT_MODELS",
    "HintModel",
    "HintName",
    "Progress",
    "ReplayConfig",
    "check_one_group",
    "different_configs",
]

HintName = Literal["none", "session", "tool", "ended_session", "truth"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HintModel:
    """What clients say with their requests, and after them.

    Attributes:
        text: The same in a few words.
        foretells: At the end of each request, whether its conversation continues.
        names: The session of each request.
        waits: After an answer that calls a tool, that the session waits for it, and about how long.
        ends: After the last request of a session, that it has ended.
    """

    text: str
    foretells: bool = False
    names: bool = False
    waits: bool = False
    ends: bool = False


HINT_MODELS: Final[Mapping[HintName, HintModel]] = MappingProxyType(
    {
        "none": HintModel(text="nothing"),
        "session": HintModel(text="the session of each request", names=True),
        "tool": HintModel(
            text="that, and after an answer that calls a tool, about how long the tool takes",
            names=True,
            waits=True,
        ),
        "ended_session": HintModel(
            text="the session of each request, and its end", names=True, ends=True
        ),
        "truth": HintModel(
            text="at the end of each request, whether its conversation continues", foretells=True
        ),
    }
)
"""The models by name."""


Progress = Callable[[], None]
"""Called once for each request, when it is admitted or rejected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """The config of a replay.

    Attributes:
        block_size: Tokens per block.
        max_seqs: Most sequences that run at a time; further requests wait.
        min_service_ms: Shortest time for which a request holds its blocks, in milliseconds.
        service_ms_per_token: Time for which it holds them per output token, in milliseconds.
        min_partial_tokens: As in ``ManagerConfig``: fewest tokens to reuse from part of a block; 0
            is off.
        dedup: As in ``ManagerConfig``: handling of a block that is cached already.
        digest: As in ``ManagerConfig``: name of the digest that finds candidates.
        eviction: As in ``ManagerConfig``: eviction order, or a custom policy. If the policy has a
            method ``on_request_end``, it gets the ``Traits`` of each ending request before the
            ``on_idle`` of its blocks.
        hints: What clients tell the manager, by the name of a model
            in ``HINT_MODELS``: nothing (``"none"``); the ``"session"`` of each request
            (``blockmgr.lab.hints.sessions_of``); that, and about how long it waits for a
            ``"tool"``; the session of each request, and its end (``"ended_session"``); or, at the
            end of each request, the ``"truth"`` about whether its conversation continues. Or a
            function of the ``Traits`` of an ending request, such as its turn and the length of its
            output, for a hint at its end.
        outputs: Handling of outputs of which the trace has only the length: they ``"hold"`` blocks,
            with tokens that no prompt repeats, or there are ``"none"``, as in simulators that count
            ids. Outputs with known tokens always hold blocks.
        groups: As in ``ManagerConfig``: groups of layers; empty for one of full attention.
        forward_tokens: With groups, most tokens of a prompt that one forward computes; it affects
            the blocks that windows hold during a forward.
        prompt_end_stop: As in ``ManagerConfig``: with recurrent states, each prompt also stops so
            many tokens before its end; None for no such stop.
        tiers: Slower memory for evicted blocks, the fastest first (``blockmgr.lab.tiered``); its
            eviction order is ``eviction``, too.
        store: As in ``TierConfig``: what is stored in each tier, and when.
        prefetch: Whether what slower tiers have of the prompts that wait is copied to the fastest
            tier before their turn; without effect on fewer than two tiers.

    Raises:
        ValueError: A value is out of its bounds, no group has full attention, a manager with
            groups does not support a setting, or there are tiers with groups or with one name.
        TypeError: A value is of the wrong type.
    """

    block_size: int = same_option(ManagerConfig, "block_size", 16, text="Tokens per block.")
    max_seqs: int = same_option(
        ManagerConfig, "max_seqs", 1024, text="Sequences running at once, at most."
    )
    min_service_ms: int = field(
        default=500, metadata=rule(0, MOST, text="Shortest time a request holds its blocks.")
    )
    service_ms_per_token: int = field(
        default=30,
        metadata=rule(0, MOST, text="Time a request holds its blocks, for each output token."),
    )
    min_partial_tokens: int = same_option(
        ManagerConfig,
        "min_partial_tokens",
        text="Reuse at least this many tokens of a part of a block; 0 is off.",
    )
    dedup: Literal["remap", "append_only"] = same_option(
        ManagerConfig,
        "dedup",
        text="remap merges equal blocks; append_only never changes a block table.",
    )
    digest: str = same_option(
        ManagerConfig, "digest", text="Digest that finds candidates; tokens prove each hit."
    )
    eviction: str | PolicyFactory = same_option(  # noqa: RUF009  (it is a field)
        ManagerConfig,
        "eviction",
        text=f"Order in which idle blocks are evicted: {', '.join(EVICTION_POLICIES)}.",
    )
    hints: HintName | Hints = field(
        default="none",
        metadata=rule(
            choices=tuple(HINT_MODELS),
            or_function=True,
            text="What clients say: nothing; the session of each request; that, and how long "
            "tools take; the session of each request, and its end; or the truth about whether a "
            "conversation continues, at the end of each request.",
        ),
    )
    outputs: Literal["hold", "none"] = field(
        default="hold",
        metadata=rule(
            choices=("hold", "none"),
            text="Whether outputs of known length and unknown tokens hold blocks.",
        ),
    )
    groups: tuple[Group, ...] = ()
    forward_tokens: int = field(
        default=8192,
        metadata=rule(
            1,
            text="Most tokens of a prompt that one forward computes, for models with several "
            "groups.",
        ),
    )
    prompt_end_stop: int | None = same_option(
        ManagerConfig,
        "prompt_end_stop",
        text="Also cache a state this many tokens before the end of each prompt, for models with "
        "recurrent states; needs --min-partial-tokens.",
    )
    tiers: tuple[ReplayTier, ...] = ()
    store: StoreName = same_option(  # noqa: RUF009  (it is a field)
        TierConfig, "store", text="What is stored in tiers, and when; see the guide to tiers."
    )
    prefetch: bool = field(
        default=False,
        metadata=rule(text="Copy prompts that wait from slower tiers to the fastest one."),
    )

    def __post_init__(self) -> None:
        check_options(self)
        object.__setattr__(self, "groups", checked_groups(self.groups))
        refuse_bare(self.groups, "replays")
        check_prompt_end_stop(self.prompt_end_stop, self.groups, self.min_partial_tokens)
        check_block_sizes(self.groups, self.block_size)
        refuse_uncached(self.groups, "a replay")
        self._check_tiers()
        if self.groups:
            told = tuple(name for name, model in HINT_MODELS.items() if not model.foretells)
            for name, only in (("dedup", ("remap",)), ("hints", told)):
                value = getattr(self, name)
                if value not in only:
                    raise ValueError(
                        f"{name} must be {' or '.join(map(repr, only))} with groups of layers, "
                        f"got {value!r}"
                    )

    def _check_tiers(self) -> None:
        object.__setattr__(self, "tiers", tuple(self.tiers))
        for tier in self.tiers:
            if not isinstance(tier, ReplayTier):
                raise TypeError(f"tiers must have ReplayTier only, got {type(tier).__name__}")
        names = [tier.name for tier in self.tiers]
        if len(set(names)) < len(names):
            raise ValueError(f"tiers must have different names, got {', '.join(names)}")
        if self.tiers and self.groups:
            raise ValueError("tiers must be empty with groups of layers")

    @property
    def has_states(self) -> bool:
        """Whether any group has recurrent states."""
        return any(isinstance(group, RecurrentState) for group in self.groups)

    @property
    def of_one_group(self) -> ReplayConfig:
        """The same for full attention alone."""
        return replace(self, groups=(), prompt_end_stop=None)

    @property
    def of_device(self) -> ReplayConfig:
        """The same without tiers."""
        return replace(self, tiers=())

    @property
    def as_plain(self) -> dict[str, Any]:
        """All settings for a JSON document; those of groups and tiers only if there are any."""
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        groups = plain.pop("groups")
        plain["tiers"] = [asdict(tier) for tier in self.tiers]
        if not self.tiers:
            del plain["tiers"], plain["store"], plain["prefetch"]
        if groups:
            return {**plain, "groups": [repr(group) for group in groups]}
        del plain["forward_tokens"], plain["prompt_end_stop"]
        return plain

    @property
    def hint_model(self) -> HintModel | None:
        """What clients know and say; None if a function decides."""
        return HINT_MODELS[self.hints] if isinstance(self.hints, str) else None

    @property
    def names_sessions(self) -> bool:
        """Whether requests name their sessions."""
        return self.hint_model is not None and self.hint_model.names

    def session_name(self, request: Request) -> bytes:
        """The name of a request's session, if requests name theirs; empty for none."""
        return b"%d" % request.session if request.session and self.names_sessions else b""

    def service_ms(self, request: Request) -> int:
        """Milliseconds for which a running request holds its blocks."""
        return max(self.min_service_ms, self.service_ms_per_token * request.num_output_tokens)

    def output_lengths(self, request: Request) -> list[int]:
        """Output tokens for which each sequence of a request holds blocks."""
        if request.outputs:
            return [len(output) for output in request.outputs]
        return [request.num_output_tokens if self.outputs == "hold" else 0]


def check_one_group(config: ReplayConfig, what: str) -> None:
    """Refuse groups of layers in functions that need a single order of blocks.

    Raises:
        ValueError: ``config`` has groups.
    """
    if config.groups:
        raise ValueError(
            f"groups must be empty for {what}, got {len(config.groups)}: a hit ends where any "
            "group lacks a block, so hits do not follow from one order of blocks; replay at "
            "several pool sizes instead (sweep)"
        )


def different_configs(config: ReplayConfig | Sequence[ReplayConfig]) -> list[ReplayConfig]:
    """One config, or several in order.

    Raises:
        ValueError: There is none, or one is given twice.
    """
    configs = [config] if isinstance(config, ReplayConfig) else list(config)
    if not configs:
        raise ValueError("config must be a config or several, got none")
    if len(set(configs)) < len(configs):
        raise ValueError("configs must differ, got one of them twice")
    return configs
