"""The vLLM port with rings, on stand-ins for vLLM's modules."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from blockmgr import Ring
from blockmgr.ports.vllm import Options
from tests.ports.vllm_modules import (
    KINDS,
    SIZE,
    layout,
    make,
    options_and_reasons,
    request,
    ring,
    spec,
    step,
)

FULL = spec(tokens_per_state=2)
RING = ring(2)
STATE = spec(KINDS.MAMBA, mamba_cache_mode="align", num_speculative_blocks=0)
TOKENS = list(range(1, 20))


def test_a_request_has_one_ring_from_its_first_step_to_its_end(vllm: None) -> None:
    manager = make(FULL, RING)
    assert manager.layers[1].group == Ring(2, restart=2)
    served = request("a", TOKENS)
    step(manager, served, 6)
    full, [block] = manager.get_block_ids("a")
    assert block
    assert len(full) == 2
    added = step(manager, served)
    assert [len(ids) for ids in added.by_group] == [3, 0]
    assert manager.get_block_ids("a")[1] == [block]
    assert manager.get_block_ids_for_computed_tokens("a", 4)[1] == [block]
    manager.free(served)
    assert manager.manager.num_available == manager.manager.config.capacity


def test_prompts_find_whole_blocks_and_no_ring(vllm: None) -> None:
    manager = make(FULL, RING)
    first = request("a", TOKENS)
    step(manager, first)
    second = request("b", [*TOKENS[:14], 90, 91])
    blocks, found, _ = manager.get_computed_blocks(second)
    assert (found, [len(ids) for ids in blocks.by_group]) == (12, [3, 0])
    assert manager.truncate_computed_blocks(blocks, 8).by_group[1] == []
    args = 16, blocks.by_group, 0, 12, 12, 16
    assert manager.coordinator.get_num_blocks_to_allocate("b", *args) == 2
    step(manager, second)
    assert manager.get_block_ids("b")[0][:3] == manager.get_block_ids("a")[0][:3]
    assert manager.get_block_ids("b")[1] != manager.get_block_ids("a")[1]
    args = 16, manager.empty_kv_cache_blocks.by_group, 0, 16, 0, 16
    assert manager.coordinator.get_num_blocks_to_allocate("b", *args) == 0


def test_workers_zero_no_ring(vllm: None) -> None:
    manager = make(FULL, RING, STATE, zeroes=True, min_partial_tokens=0)
    served = request("a", TOKENS)
    step(manager, served, 6)
    assert manager.take_new_block_ids() == manager.get_block_ids("a")[0]
    step(manager, served)
    assert manager.take_new_block_ids() == manager.get_block_ids("a")[0][2:]


def test_a_ring_counts_as_one_block_in_what_must_fit(vllm: None) -> None:
    # Of 8 blocks, 5 for the tokens, one for each ring, and one for a state.
    for num_blocks in (8, 9):
        manager = make(FULL, RING, ring(4), STATE, num_blocks=num_blocks, min_partial_tokens=0)
        manager.new_step_starts()
        added = manager.allocate_slots(request("a", TOKENS), 4, full_sequence_must_fit=True)
        assert (added is not None) == (num_blocks == 9)


def test_the_ring_stays_in_its_column_where_drafts_move_a_state(vllm: None) -> None:
    drafting = spec(KINDS.MAMBA, mamba_cache_mode="align", num_speculative_blocks=2)
    manager = make(FULL, RING, drafting, num_blocks=99, min_partial_tokens=0)
    served = request("a", TOKENS)
    step(manager, served, 6)
    [block] = manager.get_block_ids("a")[1]
    states = {*manager.get_block_ids("a")[2]}
    for count in (2, 4, 1, 6):
        step(manager, served, count)
        assert manager.get_block_ids("a")[1] == [block]
        states |= {*manager.get_block_ids("a")[2]}
    assert len(states) == 4
    assert block not in states
    manager.free(served)
    assert manager.manager.num_available == manager.manager.config.capacity


def test_blocks_are_whole_rings(vllm: None) -> None:
    assert make(FULL, ring(6)).block_size == 12
    assert make(spec(block_size=8), ring(SIZE)).block_size == 8


def test_one_block_of_a_quota_is_for_a_ring(vllm: None) -> None:
    def reasons(blocks: int) -> list[str]:
        options = Options.read({"quotas": {"tenant": blocks}})
        config = layout(FULL, RING, num_blocks=99)
        return options_and_reasons(options=options, kv_cache_config=config)[1]

    assert reasons(16)
    assert not reasons(17)  # 64 tokens, and a ring


@pytest.mark.parametrize(
    ("specs", "options", "reason"),
    [
        (
            (spec(), RING),
            {"min_partial_tokens": 1},
            "min_partial_tokens does not go together with layers that compress tokens",
        ),
        (
            (FULL, SimpleNamespace(**vars(RING))),
            {},
            "layers of vLLM's SimpleNamespace are not supported",
        ),
    ],
    ids=["parts of blocks", "another spec"],
)
def test_what_does_not_go_with_rings_is_refused(
    vllm: None, specs: tuple[Any, ...], options: dict[str, Any], reason: str
) -> None:
    assert options_and_reasons(*specs, options=Options.read(options))[1] == [reason]
    assert options_and_reasons(spec(), RING, use_eagle=True)[1] == []
