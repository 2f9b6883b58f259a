"""The C interface does what the package does, with any groups of layers."""

from __future__ import annotations

import ctypes
import functools
import os
import random
from pathlib import Path
from typing import Any

import pytest

from blockmgr import (
    BlockManager,
    ChunkedAttention,
    FullAttention,
    ManagerConfig,
    RecurrentState,
    Ring,
    SlidingWindow,
)
from blockmgr.errors import OutOfBlocksError, SequenceStateError, UnknownSequenceError
from tests.library.face import loaded, text_of
from tests.library.twin import GROUP, STATUS, InC, Refused, Twin, options_for_c
from tests.stress.run import Plan, stress

Layout = tuple[Any, ...]
LAYOUTS: dict[str, Layout] = {
    "rings": (FullAttention(), Ring(8, 4)),
    "drafts": (RecurrentState(2), FullAttention(), RecurrentState(2)),
    "replays": (SlidingWindow(3, cached=False, replay=4), FullAttention(), Ring(6, 2)),
    "windows alone": (Ring(4), SlidingWindow(5), SlidingWindow(9)),
    "chunks alone": (ChunkedAttention(8), SlidingWindow(5)),
    "states alone": (RecurrentState(1),),
    "windows and states": (RecurrentState(), SlidingWindow(6)),
}


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    if "BLOCKMGR_PREFIX" not in os.environ:
        pytest.skip("tests/library/check builds the library, and then runs these tests")
    return loaded(Path(os.environ["BLOCKMGR_PREFIX"]) / "lib" / "libblockmgr.so")


def twin_of(library: ctypes.CDLL, layout: Layout, **options: Any) -> Twin:
    usual = {"num_blocks": 60, "block_size": 4, "max_seqs": 6, "null_block": True}
    return Twin(library, **{**usual, "groups": layout, **options})


PROFILES = ("groups", "rings", "drafts", "replays", "bare", "resize_in_groups",
            "families_in_groups", "balanced", "multi_tenant", "aborts", "sessions")  # fmt: skip


@pytest.mark.parametrize("profile", PROFILES)
def test_random_calls_have_the_answers_of_the_package(library: ctypes.CDLL, profile: str) -> None:
    twin = functools.partial(Twin, library)
    plan = Plan(1_200, 7, (profile,), "I", manager=twin, options={"digest": "xxh3_128"})
    outcome = stress(plan)
    assert outcome.ops.total() == 1_200


def step(twin: Twin, handle: int, stop: int) -> Any:
    plan = twin.take_copies()
    twin.copies_applied(plan.ticket)
    twin.commit(handle, stop)
    return plan


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_a_second_prompt_finds_the_first_one_in_both(library: ctypes.CDLL, layout: Layout) -> None:
    twin, tokens = twin_of(library, layout, min_partial_tokens=1), list(range(18))
    first = twin.admit(tokens)
    plan = step(twin, first, 16)
    assert len(plan.zeros) == sum(isinstance(group, Ring) for group in layout)
    step(twin, first, 18)
    twin.shrink(twin.config.num_blocks - 20)
    twin.leaving()
    twin.grow(twin.config.num_blocks)
    twin.free(first)
    second = twin.admit([*tokens[:17], 99])
    assert twin.sequence(second).num_cached_tokens >= 8
    assert any("replay" in str(group) for group in layout) == bool(
        twin.sequence(second).num_replayed_tokens
    )
    children = twin.fork(second, 2)
    twin.append(children[0], [1])
    for group in range(len(layout)):
        if not isinstance(layout[group], RecurrentState | Ring):
            twin.slot_mapping(second, 16, 18, group=group)


def test_groups_without_k_v_of_tokens_have_no_slots(library: ctypes.CDLL) -> None:
    twin = twin_of(library, (FullAttention(), RecurrentState(), Ring(4)))
    handle = twin.admit([1, 2, 3])
    for group, what in ((1, "states"), (2, "rings")):
        with pytest.raises(Refused):
            twin.in_c.slot_mapping(handle, 0, 1, group=group)
        assert text_of(library) == f"group must be one of attention, got {group}, which has {what}"
        with pytest.raises(ValueError, match=text_of(library)):
            twin.slot_mapping(handle, 0, 1, group=group)


def test_states_are_placed_in_the_slots_that_there_are(library: ctypes.CDLL) -> None:
    twin = twin_of(library, LAYOUTS["drafts"])
    handle = twin.admit(list(range(9)))
    step(twin, handle, 9)
    before = twin.group_table(0)[twin.row(handle)].tolist()
    twin.place_state(handle, 2)
    twin.append(handle, [1])
    for slot in (-1, 3):
        with pytest.raises(ValueError, match="slot must be in"):
            twin.place_state(handle, slot)
        assert "slot must be in [0, 2]" in text_of(library)
    twin.preempt(handle)
    with pytest.raises(SequenceStateError):
        twin.place_state(handle, 0)
    twin.free(handle)
    with pytest.raises(UnknownSequenceError):
        twin.place_state(handle, 0)
    assert len(set(before)) == 3


def test_a_shortage_of_nodes_is_no_shortage_of_blocks(library: ctypes.CDLL) -> None:
    twin = twin_of(library, (SlidingWindow(4),), num_nodes=4)
    twin.admit(list(range(12)))
    with pytest.raises(OutOfBlocksError) as refusal:
        twin.admit(list(range(50, 58)))
    assert refusal.value.of_nodes
    with pytest.raises(Refused) as told:
        twin.in_c.admit(list(range(50, 58)))
    assert told.value.args == (STATUS["OUT_OF_NODES"],)


@pytest.mark.parametrize("name", sorted(LAYOUTS.keys() - {"replays"}))
def test_a_prompt_whose_beginning_is_loaded_takes_the_same_blocks(
    library: ctypes.CDLL, name: str
) -> None:
    twin, tokens = twin_of(library, LAYOUTS[name]), list(range(18))
    twin.can_admit(tokens, num_loaded_tokens=12)
    handle = twin.admit(tokens, num_loaded_tokens=12)
    step(twin, handle, 18)


NUMBERS = (0, 0, 1, 2, 3, 5, 8, 1024, 1025, 2**31 - 1)


def drawn_group(rng: random.Random) -> tuple[int, int, int]:
    """Kind, width and detail, most of which fit the kind."""
    kind = rng.choice([0, 0, 1, 1, 2, 3, 4])
    width = rng.choice(NUMBERS) if kind in (1, 2, 4) else rng.choice([0] * 9 + [2])
    detail = rng.choice(NUMBERS) if kind in (1, 3, 4) and rng.random() < 0.6 else 0
    return kind, width, detail


def python_group(kind: int, width: int, detail: int) -> Any:
    if kind in (0, 3) and width:
        raise ValueError("these have no width")
    if kind == 1:
        return SlidingWindow(width, cached=not detail, replay=detail)
    if kind == 4:
        return Ring(width, detail or 1)
    of_the_rest = (FullAttention, None, functools.partial(ChunkedAttention, width))
    return RecurrentState(detail) if kind == 3 else of_the_rest[kind]()  # type: ignore[misc]


def test_the_same_groups_are_taken_and_refused_as_in_python(library: ctypes.CDLL) -> None:
    rng, seen = random.Random(11), {True: 0, False: 0}
    for _ in range(4_000):
        drawn = [drawn_group(rng) for _ in range(rng.choice([0, 1, 1, 2, 3]))]
        given = {
            "num_blocks": 40,
            "block_size": 4,
            "null_block": rng.random() < 0.95,
            "early_commit": rng.random() < 0.2,
            "max_rollback_tokens": rng.choice([0, 0, 0, 2]),
            "max_blocks_per_seq": rng.choice([None, None, 4]),
            "num_nodes": rng.choice([None, None, 1, 100]),
            "retention": rng.random() < 0.1,
            "ghost_blocks": rng.choice([0] * 9 + [3]),
        }
        try:
            config = ManagerConfig(**given, groups=[python_group(*each) for each in drawn])
        except ValueError:
            config = None
        taken = made(library, given, drawn)
        assert taken == (config is not None), (given, drawn, text_of(library))
        seen[taken] += 1
    assert min(seen.values()) > 500


def made(library: ctypes.CDLL, given: dict[str, Any], drawn: list[tuple[int, int, int]]) -> bool:
    """Whether the C interface makes a manager of these options."""
    plain = {"num_blocks", "block_size"}
    options = options_for_c(BlockManager(**{name: given[name] for name in plain}).config)
    for name, value in given.items():
        setattr(options, name, int(value or 0))
    groups = (GROUP * len(drawn))(*(GROUP(kind, detail, width) for kind, width, detail in drawn))
    options.groups, options.num_groups = ctypes.addressof(groups), len(drawn)
    manager = ctypes.c_void_p()
    status = library.blockmgr_create(ctypes.byref(options), ctypes.byref(manager))
    assert status in (0, STATUS["BAD_VALUE"])
    library.blockmgr_destroy(manager)
    return not status


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("size", [1, 4, 16, 1000])
def test_the_default_number_of_nodes_is_that_of_python(
    library: ctypes.CDLL, layout: Layout, size: int
) -> None:
    config = ManagerConfig(num_blocks=60, block_size=size, null_block=True, groups=layout)
    assert InC(library, config).tables[0].shape[1] == config.row_width
