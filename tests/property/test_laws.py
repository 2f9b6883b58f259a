"""Laws that hold for any sequence of tokens in any tiny world."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockmgr import Admission, BlockManager, BlockMgrError
from tests import strategies
from tests.unit.engine import cache, serve, step
from tests.unit.snapshot import snapshot

CONTAINERS: dict[str, Any] = {
    "list": list,
    "tuple": tuple,
    "array of unsigned": lambda tokens: array.array("I", tokens),
    "array of long long": lambda tokens: array.array("q", tokens),
    "bytes of small tokens": lambda tokens: np.array(tokens, np.uint8),
    "int16": lambda tokens: np.array(tokens, np.int16),
    "int32": lambda tokens: np.array(tokens, np.int32),
    "int64": lambda tokens: np.array(tokens, np.int64),
    "uint32": lambda tokens: np.array(tokens, np.uint32),
    "uint64": lambda tokens: np.array(tokens, np.uint64),
    "memoryview": lambda tokens: memoryview(array.array("i", tokens)),
    "every third of an array": lambda tokens: np.repeat(np.array(tokens, np.uint32), 3)[::3],
    "a column": lambda tokens: np.stack([tokens, tokens], axis=1)[:, 1],
    "backwards": lambda tokens: np.array(tokens[::-1], np.uint32)[::-1],
    "a field of records": lambda tokens: np.array([(0, t) for t in tokens], "i1,u4")["f1"],
    "int subclasses": lambda tokens: [np.int64(token) for token in tokens],
}


class Tensor:
    """A minimal tensor: only ``__array__``."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(self.tokens, dtype or np.int64)


CONTAINERS["__array__"] = Tensor


@pytest.mark.parametrize("kind", CONTAINERS)
@given(tokens=st.lists(st.integers(0, 120), min_size=1, max_size=12))
def test_every_kind_of_token_container_means_the_same(kind: str, tokens: list[int]) -> None:
    make = CONTAINERS[kind]
    managers = [BlockManager(16, 2) for _ in range(2)]
    for manager, given_tokens in zip(managers, (tokens, make(tokens)), strict=True):
        handle = manager.admit(given_tokens)
        step(manager)
        manager.append(handle, make(tokens) if manager is managers[1] else tokens)
        assert manager.match(given_tokens).num_cached_tokens == (len(tokens) - 1) // 2 * 2
        assert manager.can_admit(given_tokens) is not Admission.NEVER
        assert manager.sequence(handle).tokens.tolist() == tokens + tokens
    assert snapshot(managers[0]) == snapshot(managers[1])


@given(start=st.integers(0, 50), n=st.integers(1, 12))
def test_a_range_is_a_container_of_tokens_too(start: int, n: int) -> None:
    manager = BlockManager(16, 2)
    handle = manager.admit(range(start, start + n))
    assert manager.sequence(handle).tokens.tolist() == list(range(start, start + n))


@given(tokens=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=9))
def test_tokens_of_any_size_come_back_as_they_were(tokens: list[int]) -> None:
    manager = BlockManager(16, 2)
    handle = manager.admit(tokens, num_slots=3)
    assert manager.sequence(handle).tokens.tolist() == tokens
    manager.reserve(handle, len(tokens))
    manager.preempt(handle)
    assert manager.sequence(handle).tokens.tolist() == tokens


@given(config=strategies.configs(), tokens=strategies.prompts, slots=strategies.slots)
def test_admitting_and_freeing_gives_every_block_back(
    config: dict[str, Any], tokens: list[int], slots: int | None
) -> None:
    manager = BlockManager(**config)
    try:
        handle = manager.admit(tokens, num_slots=slots)
    except BlockMgrError:
        assert manager.can_admit(tokens, num_slots=slots) is not Admission.NOW
    else:
        manager.free(handle)
    assert manager.num_available == manager.stats().capacity


@given(
    config=strategies.configs(),
    warm=st.lists(strategies.prompts, max_size=3),
    tokens=strategies.prompts,
    slots=strategies.slots,
)
def test_can_admit_says_what_admit_does(
    config: dict[str, Any], warm: list[list[int]], tokens: list[int], slots: int | None
) -> None:
    manager = BlockManager(**{**config, "steps_in_flight": 0})
    for prompt in warm:
        if manager.can_admit(prompt) is Admission.NOW:
            serve(manager, prompt)
    before = snapshot(manager)
    promise = manager.can_admit(tokens, num_slots=slots)
    assert snapshot(manager) == before
    try:
        manager.admit(tokens, num_slots=slots)
    except ValueError:
        assert promise is Admission.NEVER
    except BlockMgrError:
        assert promise is Admission.LATER
    else:
        assert promise is Admission.NOW


@given(
    tokens=strategies.prompts,
    size=st.integers(1, 4),
    partial=st.booleans(),
    more=strategies.prompts,
)
def test_admit_finds_what_match_finds(
    tokens: list[int], size: int, partial: bool, more: list[int]
) -> None:
    manager = BlockManager(64, size, min_partial_tokens=int(partial))
    cache(manager, tokens)
    prompt = tokens + more
    match = manager.match(prompt)
    seq = manager.sequence(manager.admit(prompt))
    assert seq.num_cached_tokens == match.num_cached_tokens
    assert seq.block_ids.tolist()[: len(match.block_ids)] == match.block_ids.tolist()
    assert match.num_cached_tokens < len(prompt)
    if partial:
        assert match.num_cached_tokens == len(tokens)


@given(
    prompts=st.lists(strategies.prompts, min_size=1, max_size=4),
    forks=st.lists(st.integers(0, 3), max_size=3),
    size=st.integers(1, 4),
)
def test_no_two_tokens_are_to_be_written_to_one_slot(
    prompts: list[list[int]], forks: list[int], size: int
) -> None:
    """After all have appended, no uncomputed position shares its slot with another token."""
    manager = BlockManager(128, size, min_partial_tokens=1)
    handles = [manager.admit(prompt) for prompt in prompts]
    step(manager)
    handles += [manager.fork(handles[i % len(handles)])[0] for i in forks]
    manager.decode(handles, [i % 2 for i in range(len(handles))])
    slots: list[int] = []
    for handle in handles:
        seq = manager.sequence(handle)
        slots += seq.slot_mapping(seq.num_computed_tokens, seq.num_slots).tolist()
    assert len(set(slots)) == len(slots)


@given(tokens=strategies.prompts, size=st.integers(1, 4), cut=st.integers(1, 8))
def test_truncating_and_appending_again_is_as_if_nothing_was(
    tokens: list[int], size: int, cut: int
) -> None:
    manager = BlockManager(32, size)
    seq = serve(manager, tokens)
    cut = min(cut, len(tokens))
    rest = tokens[cut:]
    seq.truncate(cut)
    if rest:
        seq.append(rest)
    step(manager)
    assert seq.tokens.tolist() == tokens
    assert seq.num_computed_tokens == len(tokens)
    assert manager.match([*tokens, 0]).num_cached_tokens == len(tokens) // size * size


@given(config=strategies.configs(), prompts=st.lists(strategies.prompts, max_size=4))
def test_equal_histories_give_equal_managers(
    config: dict[str, Any], prompts: list[list[int]]
) -> None:
    def history() -> dict[str, Any]:
        manager = BlockManager(**{**config, "steps_in_flight": 0})
        for prompt in prompts:
            if manager.can_admit(prompt) is Admission.NOW:
                serve(manager, prompt)
        return snapshot(manager)

    assert history() == history()
