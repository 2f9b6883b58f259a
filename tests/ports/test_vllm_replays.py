"""The vLLM port with windows that are computed again, on stand-ins for vLLM's modules."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ports.vllm_modules import KINDS, make, options_and_reasons, request, ring, spec, step


def again(width: int) -> Any:
    """A window of this many tokens that is not cached, as in DeepSeek-V4.1."""
    facts = {"sliding_window": width, "prefix_replay_tokens": width, "prefix_cacheable": False}
    return spec(KINDS.SLIDING_WINDOW_MLA, **facts)


FULL, WINDOW = spec(), spec(KINDS.SLIDING_WINDOW, sliding_window=6)
AGAIN = again(6)
STATE = spec(KINDS.MAMBA, mamba_cache_mode="align", num_speculative_blocks=0)
TOKENS = list(range(1, 32))
SECOND = [*TOKENS[:18], 90, 91, 92, 93]  # of which 16 tokens are found


def served(**options: Any) -> Any:
    """A manager that has computed ``TOKENS``."""
    manager = make(FULL, AGAIN, **options)
    step(manager, request("a", TOKENS), len(TOKENS))
    manager.take_new_block_ids()
    return manager


def test_a_request_finds_what_is_cached_and_no_window(vllm: None) -> None:
    manager = served()
    blocks, found, _ = manager.get_computed_blocks(request("b", SECOND))
    assert (found, [len(ids) for ids in blocks.by_group]) == (16, [4, 0])
    step(manager, request("b", SECOND), 6)
    full, window = manager.get_block_ids("b")
    assert full[:4] == manager.get_block_ids("a")[0][:4]
    # The window is computed again from token 10 on, in blocks of the request.
    assert window[:2] == [0, 0]
    assert all(window[2:])
    assert not set(window[2:]) & set(manager.get_block_ids("a")[1])


def test_no_hit_is_as_short_as_what_is_computed_again(vllm: None) -> None:
    manager = make(FULL, again(8))
    step(manager, request("a", TOKENS), len(TOKENS))
    for count, found in ((7, 0), (8, 0), (12, 12)):
        prompt = request("b", [*TOKENS[:count], 90, 91])
        assert manager.get_computed_blocks(prompt)[1] == found


def test_a_chunk_that_ends_inside_the_replay_takes_blocks_for_the_hit_alone(vllm: None) -> None:
    manager = served()
    second = request("b", SECOND)
    step(manager, second, 0)
    assert [len(ids) for ids in manager.get_block_ids("b")] == [4, 4]
    second.num_computed_tokens = 12  # the scheduler went back to 10, and scheduled two tokens
    added = step(manager, second, 4 + 6)
    assert [len(ids) for ids in added.by_group] == [2, 2]
    manager.free(second)
    third = request("c", [*SECOND, 94])  # what was computed behind the replay is found
    assert manager.get_computed_blocks(third)[1] == 20


def test_workers_zero_all_blocks_of_a_new_requests_window(vllm: None) -> None:
    manager = served(zeroes=True)
    step(manager, request("b", SECOND), 6)
    full, window = manager.get_block_ids("b")
    assert manager.take_new_block_ids() == [*full[4:], *window[2:]]


def test_a_window_releases_its_blocks_with_the_step_after(vllm: None) -> None:
    manager = make(FULL, AGAIN)
    served = request("a", TOKENS)
    step(manager, served, 16)
    assert all(manager.get_block_ids("a")[1])  # the forward reads them
    manager.new_step_starts()
    assert manager.get_block_ids("a")[1] == [0, 0, *manager.get_block_ids("a")[1][2:]]


def test_what_fits_counts_the_window_from_where_it_is_computed_again(vllm: None) -> None:
    # The first request has 8 and 2 blocks, and the second needs 2 and 4.
    for num_blocks in (15, 16):
        manager = make(FULL, AGAIN, num_blocks=1 + num_blocks)
        first, second = request("a", TOKENS), request("b", SECOND)
        step(manager, first, 16)
        step(manager, first, 15)
        manager.new_step_starts()
        blocks, found, _ = manager.get_computed_blocks(second)
        added = manager.allocate_slots(second, 0, found, blocks, full_sequence_must_fit=True)
        assert (added is not None) == (num_blocks == 16)


@pytest.mark.parametrize(
    ("specs", "reason"),
    [
        ((FULL, AGAIN, WINDOW), "beside cached windows or states"),
        ((FULL, AGAIN, STATE), "beside cached windows or states"),
        ((FULL, AGAIN, ring(8)), "beside larger rings"),
        ((AGAIN,), "windows that are computed again do not work without full attention"),
    ],
)
def test_what_does_not_go_with_windows_that_are_computed_again_is_refused_by_name(
    vllm: None, specs: tuple[Any, ...], reason: str
) -> None:
    found = options_and_reasons(*specs)[1]
    assert any(reason in each for each in found)


def test_full_attention_and_small_rings_go_with_windows_that_are_computed_again(
    vllm: None,
) -> None:
    compressed = spec(KINDS.MLA_ATTENTION, block_size=8, tokens_per_state=2)
    for specs in ((FULL, AGAIN), (AGAIN, again(6), compressed, ring(4))):
        for use_eagle in (False, True):
            assert options_and_reasons(*specs, use_eagle=use_eagle)[1] == []
