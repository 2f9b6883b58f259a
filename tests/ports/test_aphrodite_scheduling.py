"""The Aphrodite port: further calls that a scheduler of vLLM 0.6 to 0.9 needs."""

from __future__ import annotations

import enum
from typing import Any

import pytest

from blockmgr.ports.aphrodite import (
    AllocStatus,
    BlockSpaceManager,
    EncoderDecoderError,
)
from tests.ports import aphrodite_support as support
from tests.ports.aphrodite_support import Group, Seq


def space(blocks: int = 8, size: int = 4, **options: Any) -> BlockSpaceManager:
    return support.space(blocks, 8, size, **{"enable_caching": True, **options})


def serve(manager: BlockSpaceManager, name: int, tokens: list[int], chunk: int | None) -> Seq:
    seq = Seq(name, tokens)
    manager.allocate(Group([seq]))
    manager.mark_blocks_as_computed(Group([seq]), chunk)
    return seq


def test_to_free_a_sequence_without_blocks_does_nothing() -> None:
    manager = space()
    seq = serve(manager, 0, [1, 2], 2)
    manager.free(Seq(7, [1]))
    manager.free(seq)
    manager.free(seq)
    assert manager.get_num_free_gpu_blocks() == 8


def test_a_chunk_makes_only_what_it_reaches_count_as_computed() -> None:
    manager = space()
    first = serve(manager, 0, list(range(14)), 6)
    assert manager.get_num_cached_tokens(Seq(1, list(range(14)))) == 4
    assert len(manager.get_common_computed_block_ids([first])) == 1
    manager.mark_blocks_as_computed(Group([first]), 6)
    assert manager.get_num_cached_tokens(Seq(2, list(range(14)))) == 12
    manager.mark_blocks_as_computed(Group([first]), 2)
    first.tokens += [20, 21, 22]  # sampled, so the earlier tokens are computed
    manager.append_slots(first)
    manager.mark_blocks_as_computed(Group([first]), 1)
    assert manager.get_num_cached_tokens(Seq(3, [*first.tokens, 23])) == 12
    first.tokens.append(23)
    manager.append_slots(first)
    manager.mark_blocks_as_computed(Group([first]), 1)
    assert manager.get_num_cached_tokens(Seq(4, [*first.tokens, 24])) == 16


def test_a_sampled_token_makes_all_before_it_count_as_computed() -> None:
    manager = space()
    seq = serve(manager, 0, list(range(9)), 1)
    assert manager.get_num_cached_tokens(Seq(1, list(range(9)))) == 0
    seq.tokens.append(9)
    manager.append_slots(seq)
    assert manager.get_num_cached_tokens(Seq(1, list(range(9)))) == 8


def test_without_a_size_all_that_has_slots_counts_as_computed() -> None:
    manager = space()
    serve(manager, 0, list(range(14)), None)
    assert manager.get_num_cached_tokens(Seq(1, list(range(14)))) == 12


def test_a_block_that_fills_up_keeps_its_own_memory_while_its_twin_is_not_written() -> None:
    manager = space()
    writer = serve(manager, 0, [1, 2, 3], 3)
    serve(manager, 1, [1, 2, 3, 4, 5, 6], 1)  # of the common prefix, one token is computed
    own = manager.get_block_table(writer)
    writer.tokens.append(4)
    manager.append_slots(writer)
    assert manager.get_block_table(writer) == own


def test_a_whole_hit_counts_and_its_last_block_is_left_to_compute() -> None:
    """The schedulers count one token of it as not cached; no forward writes to a shared block."""
    manager = space()
    manager.free(serve(manager, 0, list(range(8)), 8))
    again = Seq(1, list(range(8)))
    assert manager.get_num_cached_tokens(again) == 8
    manager.allocate(Group([again]))
    assert len(manager.get_common_computed_block_ids([again])) == 1


def test_an_answer_about_a_prompt_stays_until_it_is_taken_back() -> None:
    manager = space()
    waiting = Seq(1, list(range(10)), in_prompt=True)
    assert manager.get_num_cached_tokens(waiting) == 0
    serve(manager, 0, list(range(10)), 10)
    assert manager.get_num_cached_tokens(waiting) == 0
    manager.remove_seq_from_computed_blocks_tracker(waiting)
    assert manager.get_num_cached_tokens(waiting) == 8


def test_sequences_with_another_adapter_share_nothing() -> None:
    manager = space()
    serve(manager, 0, list(range(8)), 8)
    other = Seq(1, list(range(8)), adapter=5)
    assert manager.get_num_cached_tokens(other) == 0
    manager.allocate(Group([other]))
    assert not set(manager.get_block_table(other)) & set(manager.get_block_table(Seq(0, [])))
    other.tokens += [8, 9, 10, 11]
    manager.append_slots(other)
    manager.mark_blocks_as_computed(Group([other]))
    assert manager.get_num_cached_tokens(Seq(2, list(range(13)))) == 8
    assert manager.get_num_cached_tokens(Seq(3, list(range(13)), adapter=5)) == 12


def test_every_sequence_of_a_group_keeps_its_adapter() -> None:
    manager = space()
    one, two = (Seq(name, [0, 1, 2], adapter=5) for name in range(2))
    manager.allocate(Group([one, two]))
    two.tokens.append(3)
    manager.append_slots(two)
    manager.mark_blocks_as_computed(Group([one, two]))
    assert manager.get_num_cached_tokens(Seq(2, list(range(5)))) == 0
    assert manager.get_num_cached_tokens(Seq(3, list(range(5)), adapter=5)) == 4


def test_a_group_with_an_encoder_is_refused_and_changes_nothing() -> None:
    manager = space(enable_caching=False)
    group = Group([Seq(0, [1])], has_encoder=True)
    for call in (manager.can_allocate, manager.allocate):
        with pytest.raises(EncoderDecoderError, match="must have no encoder"):
            call(group)
        with pytest.raises(NotImplementedError):
            call(group)
    assert manager.get_num_free_gpu_blocks() == 8


def test_a_reset_forgets_the_hit_rate() -> None:
    manager = space()
    manager.free(serve(manager, 0, list(range(8)), 8))
    seq = serve(manager, 1, list(range(8)), 8)
    assert manager.get_prefix_cache_hit_rate() == 0.5
    assert not manager.reset_prefix_cache()
    assert manager.get_prefix_cache_hit_rate() == 0.5
    manager.free(seq)
    assert manager.reset_prefix_cache()
    assert manager.get_prefix_cache_hit_rate() == 0


class Theirs:
    """An engine's own class."""

    class AllocStatus(enum.Enum):
        OK = 1
        LATER = 2

    class Device(enum.Enum):
        GPU = 1


class Weather(enum.Enum):
    OK = 1


def test_an_engine_s_own_enumerations_are_understood() -> None:
    manager = space()
    assert manager.can_allocate(Group([Seq(0, [1])])) == Theirs.AllocStatus.OK
    assert manager.can_allocate(Group([Seq(0, [1])])) != Theirs.AllocStatus.LATER
    assert Weather.OK != AllocStatus.OK
    assert manager.get_prefix_cache_hit_rate(Theirs.Device.GPU) == 0  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="device must be a Device"):
        manager.get_prefix_cache_hit_rate("gpu")  # type: ignore[arg-type]
