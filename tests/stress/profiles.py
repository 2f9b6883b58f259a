"""Profiles of runs: the kind of engine, and the sizes of the manager."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from blockmgr import groups as layers
from blockmgr.config import EVICTION_POLICIES, ManagerConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BALANCED", "DIGESTS", "PROFILES", "Profile", "draw_config"]

BALANCED = {
    "admit": 14,
    "next_turn": 4,
    "append": 16,
    "decode": 16,
    "step": 22,
    "begin": 3,
    "finish": 3,
    "abort": 1,
    "complete": 2,
    "commit": 4,
    "reserve": 3,
    "truncate": 3,
    "fork": 6,
    "branch": 3,
    "reparent": 2,
    "free": 10,
    "preempt": 3,
    "resume": 5,
    "take_remaps": 1,
    "reset": 0.5,
    "hold": 1,
    "let_go": 2,
    "touch_blocks": 0.5,
    "forget": 0.7,
    "retain": 2,
    "pin": 1,
    "unpin": 1,
    "touch": 0.5,
    "set_time": 0.5,
    "nonsense": 1,
}
"""Default weights of the operations."""


def constant_digest(message: object) -> bytes:
    """A digest with which all blocks collide: only the comparison of tokens separates them."""
    return bytes(16)


DIGESTS: dict[str, Any] = {
    "xxh3_128": "xxh3_128",
    "sha256": "sha256",
    "constant": constant_digest,
}
"""Digests by their names in saved runs."""


@dataclass(frozen=True)
class Profile:
    """Bounds of the configurations of a run, and the weights of its operations.

    Attributes:
        blocks: Fewest and most blocks of the pool.
        sizes: Block sizes, in tokens.
        max_seqs: Fewest and most sequences at a time.
        prompt: Longest prompt, in tokens.
        weights: Weights that differ from ``BALANCED``.
        namespaces: Namespaces of the prompts.
        vocabulary: Numbers of distinct tokens; one is drawn for each run.
        quotas: Whether some of the namespaces have quotas.
        swarm: Largest exponent of 2 by which a weight is multiplied, drawn for each run.
        sessions: Whether prompts have sessions.
        together: Whether preempted sequences are resumed together. Such a profile is in no run of
            all profiles, whose seeds would stand for others.
        resized: Whether the pool shrinks and grows. Such a profile is in no run of all profiles,
            either.
        layouts: Whether a run has any groups of layers, or only full attention.
        rings: Whether its layouts have rings; in no run of all profiles, as with ``together``.
        replays: Likewise windows that are computed again instead of cached.
        drafts: The same with slots for drafts.
        bare: The same without full attention.
        loads: Likewise with prompts whose first tokens something else than a forward provides.
        samples: Whether they are compared with the specification, too, and fork much.
        mixed: Whether layouts have groups of every kind at a time, and options are drawn that the
            other profiles with layouts leave out. It has no specification.
    """

    blocks: tuple[int, int] = (4, 48)
    sizes: tuple[int, ...] = (1, 2, 3, 4, 8)
    max_seqs: tuple[int, int] = (4, 12)
    prompt: int = 24
    weights: dict[str, float] = field(default_factory=dict)
    namespaces: tuple[bytes, ...] = (b"", b"tenant")
    vocabulary: tuple[int, ...] = (2, 2, 3, 50)
    quotas: bool = False
    swarm: float = 0.5
    layouts: bool = False
    rings: bool = False
    replays: bool = False
    drafts: bool = False
    bare: bool = False
    loads: bool = False
    samples: bool = False
    mixed: bool = False
    sessions: bool = False
    together: bool = False
    resized: bool = False


RESIZES: dict[str, float] = {"shrink": 6, "grow": 4, "preempt": 6, "resume": 10}

FAMILIES = {"fork": 16, "branch": 10, "reparent": 6, "append": 24, "decode": 20, "preempt": 8,
            "resume_together": 12, "regroup": 8, "hold": 0.1}  # fmt: skip

STEPS = {
    "turn": 4,
    "cache": 1,
    "retain_prefix": 1,
    "begin": 12,
    "finish": 6,
    "complete": 6,
    "abort": 3,
}
"""Weights of an engine for several groups of layers."""

DEEP = {**STEPS, "truncate": 6, "fork": 8}
"""The same, with more forks and more that is taken back."""


SAMPLES = {**DEEP, "fork": 14, "branch": 10, "reparent": 5, "append": 20, "decode": 20,
           "preempt": 5, "resume": 7, "resume_together": 4, "step": 26}  # fmt: skip
"""Several samples of a prompt, and beams."""


MIXED = {**SAMPLES, "shrink": 1, "grow": 3, "regroup": 1, "signal": 3, "end_session": 2,
         "truncate": 8, "admit": 20, "free": 14}  # fmt: skip
"""All that an engine can do."""


def of_groups(**fields: Any) -> Profile:
    """A profile whose runs have any groups of layers."""
    usual: dict[str, Any] = {
        "sizes": (1, 2, 3, 4, 5, 8, 16), "prompt": 36, "vocabulary": (2, 2, 3), "weights": STEPS
    }  # fmt: skip
    return Profile(**{**usual, **fields}, quotas=True, swarm=1.0, layouts=True)


PROFILES = {
    "balanced": Profile(),
    "beam_storm": Profile(
        weights={"fork": 20, "branch": 12, "reparent": 20, "append": 30, "decode": 25, "admit": 6}
    ),
    "admission": Profile(
        blocks=(4, 16), weights={"admit": 25, "preempt": 14, "resume": 14, "step": 14}
    ),
    "tiny_pool": Profile(blocks=(1, 6), sizes=(1, 2, 3), max_seqs=(2, 5), prompt=9),
    "exact_fit": Profile(blocks=(4, 12), sizes=(1, 2, 4), weights={"append": 6, "free": 16}),
    "multi_tenant": Profile(
        namespaces=(b"", b"a", b"b", b"c"), quotas=True, weights={"admit": 24, "free": 18}
    ),
    "aborts": Profile(
        sizes=(2, 3, 4, 8),
        weights={"begin": 25, "abort": 16, "fork": 25, "append": 40, "step": 8, "admit": 8},
    ),
    # More children of one block than a partial match examines.
    "wide": Profile(blocks=(40, 64), sizes=(1, 2, 3), prompt=6, vocabulary=(40, 80)),
    # The usual block size, for which the core has a separate comparison.
    "large": Profile(blocks=(65, 160), sizes=(16,), prompt=120, max_seqs=(8, 24)),
    # Pools too large for the model: checks the invariants every hundred calls, and the memory.
    "huge": Profile(blocks=(2_000, 100_000), sizes=(16, 32, 128), prompt=2_000, max_seqs=(8, 64)),
    "swarm": Profile(blocks=(2, 64), sizes=(1, 2, 3, 5, 8, 16), swarm=3.0),
    # Few names and a small table, so that sessions often go on, end and are dropped.
    "sessions": Profile(
        namespaces=(b"", b"a", b"b"),
        quotas=True,
        sessions=True,
        weights={"admit": 24, "free": 18, "signal": 6, "end_session": 3, "set_time": 3},
    ),
    "groups": of_groups(),
    "rings": of_groups(rings=True, weights=DEEP),
    "replays": of_groups(rings=True, replays=True, weights={**DEEP, "turn": 6}),
    "drafts": of_groups(drafts=True, weights={**DEEP, "append": 24}),
    "bare": of_groups(bare=True, weights=DEEP),
    "loads": of_groups(loads=True, weights={**DEEP, "admit": 24, "free": 14}),
    "loads_with_rings": of_groups(rings=True, loads=True, weights={**DEEP, "admit": 24}),
    "bare_loads": of_groups(bare=True, loads=True, samples=True, weights={**DEEP, "admit": 24}),
    "bare_samples": of_groups(bare=True, samples=True, weights=SAMPLES),
    "families": Profile(blocks=(3, 24), quotas=True, together=True, weights=FAMILIES),
    "families_in_groups": Profile(
        sizes=(1, 2, 3, 4, 8), vocabulary=(2, 2, 3), quotas=True, layouts=True, together=True,
        weights={**FAMILIES, "turn": 4, "cache": 1},
    ),
    "resize": Profile(blocks=(1, 24), quotas=True, resized=True, swarm=1.0, weights=RESIZES),
    "resize_in_groups": Profile(
        sizes=(1, 2, 3, 4, 8), vocabulary=(2, 2, 3), quotas=True, layouts=True, resized=True,
        weights={**RESIZES, "turn": 4, "cache": 1, "retain_prefix": 1},
    ),
    "mixed": of_groups(mixed=True, loads=True, sessions=True, resized=True, together=True,
                       namespaces=(b"", b"a", b"b"), weights=MIXED),
}  # fmt: skip
"""The kinds of run, by name."""

OF_THE_MANAGER = tuple(
    name
    for name, each in PROFILES.items()
    if not (each.together or each.rings or each.drafts or each.bare or each.loads or each.resized)
)
ONE_GROUP = tuple(name for name in OF_THE_MANAGER if not PROFILES[name].layouts)

GROUPS = {
    "full": layers.FullAttention,
    "window": layers.SlidingWindow,
    "chunk": layers.ChunkedAttention,
    "state": layers.RecurrentState,
    "ring": layers.Ring,
}
"""Groups of layers by their names in saved runs."""


def groups_named(layout: Sequence[str]) -> list[layers.Group]:
    """The groups of a layout, such as ``["full", "window 5 block_size=2", "state"]``."""
    return [group_named(text) for text in layout]


def group_named(text: str) -> layers.Group:
    """What the name of a group stands for, such as ``"window 5 block_size=2"``."""
    name, *parts = text.split()
    widths = [int(part) for part in parts if "=" not in part]
    pairs = (part.split("=") for part in parts if "=" in part)
    values: dict[str, Any] = {field: int(value) for field, value in pairs}
    if "cached" in values:
        values["cached"] = bool(values["cached"])
    return GROUPS[name](*widths, **values)


def draw_layout(rng: random.Random) -> list[str]:
    """Full attention, and up to five other groups, in any order."""
    layout = [
        f"{rng.choice(['window', 'chunk'])} {rng.randint(1, 20)}" for _ in range(rng.randint(0, 3))
    ]
    layout += ["state"] * rng.choice([0, 0, 1, 1, 2]) or ["window 5"] * (not layout)
    layout.insert(rng.choice([0, rng.randint(0, len(layout))]), "full")
    return layout


def draw_rings(rng: random.Random) -> list[str]:
    """Groups as of ``draw_layout``, and one or two rings among them."""
    layout = draw_layout(rng)[: rng.choice([1, 2, 2, 3, 6])]
    layout = layout if "full" in layout else ["full", *layout]
    for _ in range(rng.choice([1, 1, 2])):
        restart = rng.choice([1, 2, 3, 4, 4, 8])
        ring = f"ring {restart + rng.choice([0, 1, 3, 12])} restart={restart}"
        layout.insert(rng.randint(0, len(layout)), ring)
    return layout


def draw_replays(rng: random.Random) -> list[str]:
    """Full attention, windows that are cached and that are not, and in half of them rings."""
    count = rng.choice([0, 0, 1, 2])
    cached = [f"{rng.choice(['window', 'chunk'])} {rng.randint(1, 20)}" for _ in range(count)]
    layout = ["full", *cached]
    most = 1
    for _ in range(rng.choice([1, 1, 2])):
        width = rng.randint(1, 6)
        replay = max(1, width - 1 + rng.choice([0, 0, 0, 1, 4]))
        layout.append(f"window {width} cached=0 replay={replay}")
        most = max(most, replay)
    if rng.random() < 0.5:
        restart = rng.randint(1, min(8, most + 1))
        layout.append(f"ring {restart + rng.choice([0, 1, 3, 12])} restart={restart}")
    rng.shuffle(layout)
    return layout


def draw_drafts(rng: random.Random) -> list[str]:
    """Groups as of ``draw_layout``, one of them with states, which all have slots for drafts."""
    layout = draw_layout(rng)
    layout += ["state"] * ("state" not in layout)
    extra = rng.randint(1, 4)
    return [f"state extra_blocks={extra}" if name == "state" else name for name in layout]


def draw_bare(rng: random.Random) -> list[str]:
    """Groups none of which has full attention, in any order."""
    kinds = rng.choice([["window"], ["window"], ["chunk"], ["window", "chunk"], []])
    count = rng.randint(1, 3) if kinds else 0
    layout = [f"{rng.choice(kinds)} {rng.randint(1, 20)}" for _ in range(count)]
    state = rng.choice(["state", "state", f"state extra_blocks={rng.randint(1, 4)}"])
    layout += [state] * rng.choice([0, 1, 2] if layout else [1, 1, 2])
    if rng.random() < 0.3:
        restart = rng.choice([1, 2, 4])
        layout.append(f"ring {restart + rng.choice([0, 1, 3, 12])} restart={restart}")
    rng.shuffle(layout)
    return layout


def draw_mixed(rng: random.Random) -> list[str]:
    """Up to six groups of every kind that go together."""
    while True:
        layout = draw_any_kinds(rng)
        groups = groups_named(layout)
        try:
            ManagerConfig(num_blocks=100, block_size=8, null_block=True, groups=groups)
        except ValueError:
            continue
        return layout


def draw_any_kinds(rng: random.Random) -> list[str]:
    replay, extra = rng.randint(1, 8), rng.choice([0, 0, rng.randint(1, 4)])
    kinds = {
        "full": lambda: "full",
        "window": lambda: f"window {rng.randint(1, 20)}",
        "chunk": lambda: f"chunk {rng.randint(1, 20)}",
        "replayed": lambda: f"window {rng.randint(1, replay + 1)} cached=0 replay={replay}",
        "state": lambda: f"state extra_blocks={extra}" if extra else "state",
        "ring": lambda: (
            f"ring {(restart := rng.choice([1, 2, 3, 4, 8])) + rng.choice([0, 1, 3, 12])} "
            f"restart={restart}"
        ),
    }
    names = list(kinds)[1:]
    drawn = ["full"] * (rng.random() < 0.8) + rng.choices(names, k=rng.randint(1, 5))
    rng.shuffle(drawn)
    return [kinds[name]() for name in drawn]


def draw_smaller_blocks(layout: Sequence[str], size: int, seed: int) -> list[str]:
    """Every fourth time, with blocks of their own for some groups; the seed comes from a draw."""
    rng = random.Random(f"{layout} {size} {seed}")
    if seed % 4 or size == 1 or "block_size" in " ".join(layout):
        return list(layout)
    sizes = [n for n in range(1, size + 1) if size % n == 0]
    return [
        text
        if text.startswith(("state", "ring")) or rng.random() < 0.3
        else f"{text} block_size={rng.choice(sizes)}"
        for text in layout
    ]


def blocks_in_a_node(layout: Sequence[str], size: int) -> int:
    sizes = [getattr(group, "block_size", None) or size for group in groups_named(layout)]
    return sum(size // each for each in sizes)


NODES_A_BLOCK = 64
"""More than a run fills. The default of the manager is 4,000 a state, all of them audited."""


def draw_groups(rng: random.Random, profile: Profile, layout: Sequence[str]) -> dict[str, Any]:
    """Options of a manager with groups, with the layout by name; half of them have much room."""
    size = rng.choice(profile.sizes)
    room = rng.choice([24, 40, 64, 120]) // size + 3 * len(layout) + 100 * (rng.random() < 0.5)
    least, in_flight = min(size, rng.choice([0, 1, 2])), rng.choice([0, 1, 2, 8])
    dedup = "remap" if room % 3 else "append_only"
    layout = draw_smaller_blocks(layout, size, room)
    room = room * blocks_in_a_node(layout, size) // len(layout)
    quotas = draw_quotas(rng, profile, room // 2)
    has_states = any(name.startswith("state") for name in layout)
    bare = all(name.split()[0] != "full" for name in layout)
    rings = [group for group in groups_named(layout) if isinstance(group, layers.Ring)]
    back = min([12, *(ring.width - ring.restart for ring in rings)])
    options = {
        "layout": list(layout),
        "num_blocks": room + 1,
        "block_size": size,
        "max_seqs": rng.randint(*profile.max_seqs),
        "null_block": True,
        "digest": rng.choice(["xxh3_128", "xxh3_128", "sha256", "constant"]),
        "min_partial_tokens": least,
        "halfway_stop_tokens": rng.choice([0, 1, 16]),
        "prompt_end_stop": rng.choice([None, 0, 1, 3]) if least and has_states else None,
        "quotas": quotas,
        "eviction": rng.choice(["lru", "lru", rng.choice(EVICTION_POLICIES)]),
        "steps_in_flight": in_flight,
        "early_commit": rng.random() < 0.3,
        "max_rollback_tokens": 0 if has_states else min(back, rng.choice([0, 0, 2, 12])),
        "dedup": dedup,
        "retention": (retention := rng.random() < 0.5),
        "max_pinned_blocks": rng.randint(0, 6) if retention else 0,
        "debug": rng.choice([0, 0, 0, 1]),
        "hit_rate_window": rng.choice([0, 5, 1000]),
        "stop_margin_tokens": rng.choice([0, 0, 1, size]),
    }
    if bare:  # what such a manager has not, and few nodes where there is little room
        options |= {"quotas": {}, "retention": False, "max_pinned_blocks": 0}
        options |= {"num_nodes": room if room < 100 else NODES_A_BLOCK * room}
    if profile.mixed:
        options |= draw_rare_options(rng, options, bare=bare)
    if profile.samples:
        nodes = rng.choice([NODES_A_BLOCK * room, max(8, room // len(layout))])
        options |= {"dedup": "remap", "num_nodes": nodes}
    return options


def draw_rare_options(rng: random.Random, options: dict[str, Any], *, bare: bool) -> dict[str, Any]:
    """Options of a manager with groups that no other profile draws."""
    num_blocks = options["num_blocks"]
    return {
        "max_sessions": rng.choice([1, 4, 100]),
        "max_blocks_per_seq": rng.choice([None, None, None, 8]),
        "watermark_blocks": rng.choice([0, 0, 1, min(4, num_blocks - 1)]),
        "strict_decode": rng.random() < 0.1,
        "events": (events := not bare and rng.random() < 0.5),
        "event_blocks": rng.choice([None, None, 1, 3, 10]) if events else None,
    }


def draw_quotas(rng: random.Random, profile: Profile, capacity: int) -> dict[str, int]:
    """Quotas for some of the namespaces, as text; sometimes they take all blocks."""
    quotas = {}
    for namespace in rng.sample(profile.namespaces, rng.randint(0, len(profile.namespaces))):
        if capacity:
            quotas[namespace.decode()] = rng.randint(1, capacity)
            capacity -= quotas[namespace.decode()]
    return quotas


def draw_config(
    rng: random.Random, profile: Profile, *, default: bool = False, layout: Sequence[str] = ()
) -> dict[str, Any]:
    """Options of a manager, with its digest by name.

    Args:
        rng: Random generator.
        profile: Bounds.
        default: Draw sizes only; every other option has its default.
        layout: Groups of a profile with layouts; none: draw them.
    """
    if profile.layouts:
        draw = draw_rings if profile.rings else draw_layout
        draw = draw_replays if profile.replays else draw
        draw = draw_drafts if profile.drafts else draw
        draw = draw_bare if profile.bare else draw
        draw = draw_mixed if profile.mixed else draw
        return draw_groups(rng, profile, layout or draw(rng))
    null_block = rng.random() < 0.2
    num_blocks = rng.randint(*profile.blocks)
    size = rng.choice(profile.sizes)
    sizes = {
        "num_blocks": num_blocks,
        "block_size": size,
        "max_seqs": rng.randint(*profile.max_seqs),
    }
    if default:
        return {**sizes, "digest": "xxh3_128"}
    quotas = draw_quotas(rng, profile, num_blocks) if profile.quotas else {}
    retention = rng.random() < 0.3 or profile.sessions
    return {
        **sizes,
        **({"max_sessions": 1 + num_blocks % 7} if profile.sessions else {}),
        **({"quotas": quotas} if quotas else {}),
        "num_blocks": num_blocks + null_block,
        "max_blocks_per_seq": rng.choice([None, None, None, 8]),
        "prefix_caching": rng.random() < 0.9,
        "digest": rng.choice(["xxh3_128", "xxh3_128", "sha256", "constant"]),
        "dedup": rng.choice(["remap", "append_only"]),
        "min_partial_tokens": rng.choice([0, 1, 1, min(2, size)]),
        "eviction": rng.choice(["lru", rng.choice(EVICTION_POLICIES)]),
        "watermark_blocks": min(num_blocks, rng.choice([0, 0, 0, 1])),
        "steps_in_flight": rng.choice([0, 0, 0, 1, 2, 3]),
        "early_commit": rng.random() < 0.3,
        "null_block": null_block,
        "debug": rng.choice([0, 0, 0, 1]),
        "hit_rate_window": rng.choice([0, 1, 5, 1000]),
        "events": (events := rng.random() < 0.5),
        "event_blocks": rng.choice([None, None, 1, 3, 10]) if events else None,
        "retention": retention,
        "max_pinned_blocks": rng.randint(0, num_blocks) if retention else 0,
        "ghost_blocks": rng.choice([0, 0, 1, num_blocks]),
    }
