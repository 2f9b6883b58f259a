"""The vLLM port with models without full attention, on stand-ins for vLLM's modules."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest

from blockmgr.ports.vllm import Options
from tests.ports.test_vllm_groups import CHUNK, FULL, LARGE, MAMBA, TOKENS, WINDOW, reasons
from tests.ports.vllm_modules import (
    KINDS,
    SIZE,
    layout,
    make,
    options_and_reasons,
    request,
    ring,
    serve,
    spec,
    step,
)


@pytest.mark.parametrize(
    "specs",
    [(WINDOW,), (WINDOW, LARGE), (WINDOW, CHUNK), (MAMBA,), (MAMBA, WINDOW), (WINDOW, ring(2))],
)
def test_models_without_full_attention_are_supported(vllm: None, specs: tuple[Any, ...]) -> None:
    assert reasons(*specs) == []
    serve(make(*specs), TOKENS)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"enable_kv_cache_events": True}, "KV cache events do not work"),
        ({"options": {"quotas": {"a": 9}}, "max_model_len": 16}, "quotas do not work"),
        ({"options": {"retention": True}}, "retention and kv_hints do not work"),
        ({"options": {"ghost_blocks": 8}}, "ghost_blocks do not work"),
        ({"dcp_world_size": 2}, "decode context parallelism that splits windows does not work"),
        (
            {"said": {"cache_config": SimpleNamespace(use_replayssm=True)}},
            "--use-replayssm does not work",
        ),
    ],
)
def test_what_does_not_go_together_with_them_is_refused_by_name(
    vllm: None, change: dict[str, Any], reason: str
) -> None:
    assert reasons(WINDOW, **change) == [f"{reason} without full attention"]
    assert f"{reason} without full attention" not in reasons(FULL, **change)
    assert f"{reason} without full attention" not in reasons(FULL, WINDOW, **change)


def test_rings_alone_are_refused(vllm: None) -> None:
    assert reasons(ring(2)) == ["the model's KV cache cannot be shared by prefix"]


@pytest.mark.parametrize(("layers", "least"), [(MAMBA, SIZE), (WINDOW, 0)])
def test_parts_of_blocks_are_found_where_workers_zero_others(
    vllm: None, layers: Any, least: int
) -> None:
    zeroing = layout(layers)
    zeroing.needs_kv_cache_zeroing = True
    options, against = options_and_reasons(layers, kv_cache_config=zeroing)
    assert (options.min_partial_tokens, against) == (least, [])
    asked = Options.read({"min_partial_tokens": 2})
    assert len(options_and_reasons(layers, options=asked, kv_cache_config=zeroing)[1]) == (
        not least
    )


def test_a_window_alone_gives_its_blocks_back_and_is_found(vllm: None) -> None:
    manager = make(WINDOW)
    served = request("a", TOKENS)
    [first] = step(manager, served, 16).get_block_ids()
    step(manager, served, 3)
    [window] = manager.get_block_ids("a")
    # The query at 16 reads 11 to 16, so blocks 0 and 1 have left the window.
    assert window[:4] == [0, 0, *first[2:]]
    assert manager.manager.num_available == 32 - 3
    manager.free(served)
    again = request("again", [*TOKENS[:17], 90, 91])
    blocks, found, _ = manager.get_computed_blocks(again)
    assert (found, blocks.get_block_ids()) == (16, ([0] * 4,))
    assert manager.allocate_slots(again, 3, found, blocks) is not None
    assert manager.get_block_ids("again")[0][:4] == [0, 0, *first[2:]]
    manager.free(again)
    assert manager.reset_prefix_cache()
    assert manager.get_computed_blocks(again)[1] == 0


def test_a_state_alone_is_found(vllm: None) -> None:
    manager = make(MAMBA)
    serve(manager, TOKENS[:16])
    blocks, found, _ = manager.get_computed_blocks(request("again", TOKENS))
    assert (found, blocks.get_block_ids()) == (16, ([0, 0, 0, 0],))


def test_without_caching_a_window_alone_gives_its_blocks_back(vllm: None) -> None:
    manager = make(WINDOW, enable_caching=False)
    served = request("a", TOKENS)
    step(manager, served, 16)
    step(manager, served, 3)
    assert manager.get_block_ids("a")[0][:2] == [0, 0]
    manager.free(served)
    assert manager.get_computed_blocks(request("b", TOKENS))[1] == 0
    assert manager.manager.num_available == 32


def test_each_window_that_the_blocks_hold_is_found_however_long_its_prefix(vllm: None) -> None:
    manager = make(WINDOW)
    prompts = [[number, *range(100, 160)] for number in range(12)]
    for prompt in prompts:
        served = request("a", prompt)
        while served.num_computed_tokens < 60:
            step(manager, served, 4)
        manager.free(served)
    found = [manager.get_computed_blocks(request("b", prompt))[1] for prompt in prompts]
    assert found == [60] * 12


def test_a_prompt_longer_than_the_pool_is_found(vllm: None) -> None:
    manager = make(WINDOW, num_blocks=9)
    served = request("a", list(range(1, 61)))
    while served.num_computed_tokens < 60:
        step(manager, served, 4)
    manager.free(served)
    again = request("again", [*range(1, 61), 99])
    blocks, found, _ = manager.get_computed_blocks(again)
    assert found == 60
    assert manager.allocate_slots(again, 1, found, blocks) is not None


def test_nodes_are_bounded_but_the_longest_request_has_them(
    vllm: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("blockmgr.ports.vllm.layers")
    of = module.Layers.of
    window = of(WINDOW, 4, 4, 64, 64)  # the 5 tokens before a query are in 2 blocks or more
    state, of_ring = of(MAMBA, 4, 4, 64, 64), of(ring(2), 4, 4, 64, 64)
    small = of(spec(KINDS.SLIDING_WINDOW, sliding_window=5), 4, 4, 64, 64)
    assert [each.least_blocks for each in (window, small, state, of_ring)] == [2, 1, 1, 1]
    assert of(CHUNK, 4, 4, 64, 64).least_blocks == 0
    assert module.num_nodes([window], 32, 20) == 17 * 20
    assert module.num_nodes([window, state], 32, 20) == 11 * 20
    assert module.num_nodes([window], 32, 1) == 32
    monkeypatch.setattr(module, "MOST_NODES", 100)
    assert module.num_nodes([window], 32, 20) == 100
    assert module.num_nodes([window], 32, 200) == 200


@pytest.mark.parametrize("specs", [(WINDOW,), (FULL, WINDOW)])
def test_blocks_of_each_group_are_held_until_a_step_in_flight_has_ended(
    vllm: None, specs: tuple[Any, ...]
) -> None:
    manager = make(*specs)
    served = request("a", TOKENS)
    step(manager, served, 16)
    step(manager, served, 3)
    held = {block for ids in manager.get_block_ids("a") for block in ids} - {0}
    blocks = manager.pop_blocks_for_free(served)
    assert {block.block_id for block in blocks} == held
    assert len(blocks) == len(held)
    assert manager.manager.num_available == 32 - len(held)
    manager.block_pool.free_blocks(reversed(blocks))
    assert manager.manager.num_available == 32
