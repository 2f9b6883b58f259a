"""Laws that hold for any sequence of tokens in any tiny world."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from blockmgr import BlockManager
from tests import strategies
from tests.unit.engine import serve, step


@given(tokens=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=9))
def test_tokens_of_any_size_come_back_as_they_were(tokens: list[int]) -> None:
    manager = BlockManager(16, 2)
    handle = manager.admit(tokens, num_slots=3)
    assert manager.sequence(handle).tokens.tolist() == tokens
    manager.reserve(handle, len(tokens))
    manager.preempt(handle)
    assert manager.sequence(handle).tokens.tolist() == tokens


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
