"""Hypothesis strategies shared by the tests: tiny worlds with many collisions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from blockmgr.blocks import Priority
from tests.stress.profiles import DIGESTS

# With two token values and a few blocks, prefixes collide and blocks run out in almost every run,
# which exposes bugs.
token = st.sampled_from([0, 0, 1])
prompts = st.lists(token, min_size=1, max_size=8)
namespaces = st.sampled_from([b"", b"", b"", b"tenant"])
extras = st.one_of(
    st.none(),
    st.none(),
    st.dictionaries(st.integers(0, 2), st.sampled_from([b"x", b"y"]), max_size=2),
)
slots = st.one_of(st.none(), st.none(), st.integers(1, 14))
limits = st.one_of(
    st.just({}),
    st.just({}),
    st.fixed_dictionaries(
        {}, optional={"max_cached_tokens": st.integers(0, 8), "watermark_blocks": st.integers(0, 3)}
    ),
)


retained = st.sampled_from([None, Priority.LOW, Priority.NORMAL, Priority.EXPECTED, Priority.HIGH])
ttls = st.sampled_from([None, None, 1, 2.5])


@st.composite
def quotas(draw: st.DrawFn, capacity: int) -> dict[bytes, int]:
    """Quotas for none, one or both of the namespaces, up to all blocks."""
    left, chosen = capacity, {}
    for namespace in draw(st.sampled_from([(), (b"tenant",), (b"tenant", b""), (b"",)])):
        if left:
            chosen[namespace] = draw(st.integers(1, left))
            left -= chosen[namespace]
    return chosen


@st.composite
def configs(
    draw: st.DrawFn, digest: str = "any", evictions: Sequence[Any] = ("lru",)
) -> dict[str, Any]:
    """Options of a tiny manager."""
    null_block = draw(st.booleans())
    capacity = draw(st.sampled_from([4, 6, 8, 3, 2, 5, 7, 1]))
    num_blocks = capacity + null_block
    retention = draw(st.booleans())
    block_size = draw(st.integers(1, 4))
    names = sorted(DIGESTS) if digest == "any" else [digest]
    eviction = draw(st.sampled_from(evictions))
    ghost_blocks = draw(st.sampled_from([0, 0, 1, 5]))
    return {
        "num_blocks": num_blocks,
        "block_size": block_size,
        "max_seqs": draw(st.integers(2, 5)),
        "max_blocks_per_seq": draw(st.sampled_from([None, None, None, None, 6, 3, 1])),
        "prefix_caching": draw(st.sampled_from([True, True, True, True, True, False])),
        "digest": DIGESTS[draw(st.sampled_from(names))],
        "dedup": draw(st.sampled_from(["remap", "append_only"])),
        "min_partial_tokens": draw(st.sampled_from([1, 0, min(2, block_size)])),
        "watermark_blocks": draw(st.sampled_from([0, 0, 0, 1])),
        "steps_in_flight": draw(st.sampled_from([0, 0, 0, 1, 2])),
        "early_commit": draw(st.sampled_from([False, False, True])),
        "null_block": null_block,
        "ghost_blocks": ghost_blocks,
        "eviction": eviction,
        "quotas": draw(quotas(capacity)),
        "retention": retention,
        "max_pinned_blocks": draw(st.integers(0, capacity)) if retention else 0,
        "hit_rate_window": draw(st.sampled_from([1000, 0, 1, 3])),
        "events": (events := draw(st.booleans())),
        "event_blocks": draw(st.sampled_from([None, None, 1, 2, 5] if events else [None])),
    }
