"""The vLLM port with several groups of layers, on stand-ins for vLLM's modules."""

from __future__ import annotations

import importlib
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest

from blockmgr.ports.vllm import Options
from blockmgr.ports.vllm.blocks import first_full
from tests.ports.vllm_modules import (
    KINDS,
    SIZE,
    layout,
    make,
    needed,
    request,
    ring,
    serve,
    spec,
    step,
)

FULL = spec()
WINDOW = spec(KINDS.SLIDING_WINDOW, sliding_window=6)
COMPRESSED = spec(KINDS.MLA_ATTENTION, block_size=8, tokens_per_state=4)
LARGE = spec(KINDS.SLIDING_WINDOW, block_size=8, sliding_window=6)
CHUNK = spec(KINDS.CHUNKED_LOCAL_ATTENTION, attention_chunk_size=8)
MAMBA = spec(KINDS.MAMBA, mamba_cache_mode="align", num_speculative_blocks=0)
VLLM = {
    "kv_transfer_config": None,
    "cache_config": SimpleNamespace(use_replayssm=False),
}
TOKENS = list(range(1, 20))


def reasons(
    *specs: Any, said: dict[str, Any] | None = None, options: Any = None, **arguments: Any
) -> list[str]:
    support = importlib.import_module("blockmgr.ports.vllm.support")
    given = {
        "kv_cache_config": layout(*specs),
        "hash_block_size": SIZE,
        "scheduler_block_size": SIZE,
        "max_model_len": 64,
    }
    config = SimpleNamespace(**{**VLLM, **(said or {})})
    found: list[str] = support.reasons_against(
        Options.read(options or {}), config, {**given, **arguments}
    )
    return found


@pytest.mark.parametrize(
    "specs",
    [
        (FULL, WINDOW),
        (CHUNK, FULL),
        (WINDOW, FULL, WINDOW, CHUNK),
        (FULL, MAMBA),
        (MAMBA, WINDOW, FULL, MAMBA),
        (FULL, LARGE),
        (LARGE, FULL, CHUNK, spec(block_size=6)),
        (COMPRESSED, spec(KINDS.SLIDING_WINDOW_MLA, block_size=2, sliding_window=4)),
    ],
)
def test_windows_chunks_and_states_beside_full_attention_are_supported(
    vllm: None, specs: tuple[Any, ...]
) -> None:
    assert reasons(*specs) == []


@pytest.mark.parametrize(
    ("specs", "reason"),
    [
        (
            (FULL, spec(KINDS.MAMBA, mamba_cache_mode="none", num_speculative_blocks=0)),
            "recurrent states (Mamba) need mamba_cache_mode align",
        ),
        (
            (FULL, spec(KINDS.MAMBA, mamba_cache_mode="align", num_speculative_blocks=SIZE)),
            "blocks longer than the drafts of a step",
        ),
        (
            (FULL, spec(KINDS.SLIDING_WINDOW, sliding_window=6, extra_retained_tokens=1)),
            "keep more than the window",
        ),
        (
            (FULL, spec(KINDS.SLIDING_WINDOW_MLA, sliding_window=6, prefix_cacheable=False)),
            "cannot be shared by prefix",
        ),
        ((spec(prefix_cacheable=False),), "cannot be shared by prefix"),
    ],
)
def test_groups_that_are_not_supported_are_refused_by_name(
    vllm: None, specs: tuple[Any, ...], reason: str
) -> None:
    [found] = reasons(*specs)
    assert reason in found


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dcp_world_size": 2}, "decode context parallelism"),
        ({"options": {"ghost_blocks": 8}}, "ghost_blocks"),
        (
            {"said": {"cache_config": SimpleNamespace(use_replayssm=True)}},
            "--use-replayssm",
        ),
        (
            {
                "said": {
                    "cache_config": SimpleNamespace(use_replayssm=False, use_kda_recoverssm=True)
                }
            },
            "RecoverSSM",
        ),
    ],
)
def test_what_does_not_go_together_with_groups_is_refused_by_name(
    vllm: None, change: dict[str, Any], reason: str
) -> None:
    [found] = reasons(FULL, WINDOW, **change)
    assert reason in found
    assert "with several groups" in found
    assert not [line for line in reasons(FULL, **change) if "several groups" in line]


def test_connectors_are_refused_beside_rings_and_where_they_send_tables_with_states(
    vllm: None,
) -> None:
    offloading = SimpleNamespace(kv_connector="OffloadingConnector", kv_connector_extra_config={})
    [found] = reasons(FULL, ring(2), said={"kv_transfer_config": offloading})
    assert found == "KV connectors do not work with rings with several groups of KV cache layers"
    again = {"sliding_window": 6, "prefix_replay_tokens": 6, "prefix_cacheable": False}
    window = spec(KINDS.SLIDING_WINDOW_MLA, **again)
    [found] = reasons(FULL, window, said={"kv_transfer_config": offloading})
    assert "KV connectors do not work with windows that are computed again" in found
    for layers in (WINDOW, MAMBA):
        assert reasons(FULL, layers, said={"kv_transfer_config": offloading}) == []
    drafts = spec(KINDS.MAMBA, mamba_cache_mode="align", num_speculative_blocks=1)
    assert reasons(FULL, drafts, said={"kv_transfer_config": offloading}) == []
    nixl = SimpleNamespace(kv_connector="NixlConnector", kv_connector_extra_config={})
    [found] = reasons(FULL, MAMBA, said={"kv_transfer_config": nixl})
    assert "NixlConnector does not work with recurrent states" in found
    assert reasons(FULL, WINDOW, said={"kv_transfer_config": nixl}) == []


@pytest.mark.parametrize(
    "name",
    [
        "SimpleCPUOffloadConnector",
        "MooncakeStoreConnector",
        "UMBPStoreConnector",
        "HiSparseConnector",
    ],
)
def test_connectors_that_use_the_pool_of_vllm_are_refused_by_name(vllm: None, name: str) -> None:
    said = SimpleNamespace(kv_connector=name, kv_connector_extra_config={})
    [found] = reasons(FULL, said={"kv_transfer_config": said})
    assert f"the KV connector {name} " in found


def test_ranks_of_decode_context_parallelism_split_full_attention_alone(vllm: None) -> None:
    whole = spec(KINDS.SLIDING_WINDOW, sliding_window=64, dcp_sharded=False)
    assert reasons(FULL, MAMBA, whole, dcp_world_size=2) == []
    manager = make(FULL, MAMBA, whole, ranks=2)
    assert [each.block_size for each in manager.layers] == [2 * SIZE, SIZE, SIZE]
    manager.get_computed_blocks(served := request("a", TOKENS[:12]))
    step(manager, served, 12)
    assert [len(table) for table in manager.get_block_ids("a")] == [2, 3, 3]


def test_an_entry_of_several_tokens_is_not_found_in_part(vllm: None) -> None:
    [found] = reasons(COMPRESSED, WINDOW, options={"min_partial_tokens": 4})
    assert "layers that compress tokens" in found


def test_a_quota_has_to_hold_the_longest_request_in_every_group(vllm: None) -> None:
    assert reasons(FULL, WINDOW, options={"quotas": {"a": 8}}, max_model_len=16) == []
    [found] = reasons(FULL, WINDOW, options={"quotas": {"a": 7}}, max_model_len=16)
    assert "7 blocks, and a request of --max-model-len takes 8" in found
    assert reasons(FULL, LARGE, options={"quotas": {"a": 6}}, max_model_len=16) == []
    [found] = reasons(FULL, LARGE, options={"quotas": {"a": 5}}, max_model_len=16)
    assert "5 blocks, and a request of --max-model-len takes 6" in found


@pytest.mark.parametrize(("salt", "waits"), [("tenant", True), (None, False)])
def test_a_prompt_waits_if_its_share_cannot_hold_all_of_it(
    vllm: None, salt: str | None, waits: bool
) -> None:
    manager = make(FULL, WINDOW, quotas={"tenant": 8})
    earlier, later = request("a", TOKENS[:12]), request("b", TOKENS[4:16])
    earlier.cache_salt, later.cache_salt = "tenant", salt
    manager.new_step_starts()
    assert manager.allocate_slots(earlier, 12, full_sequence_must_fit=True) is not None
    blocks = manager.allocate_slots(later, 4, full_sequence_must_fit=True)
    assert (blocks is None) == waits
    assert manager.manager.num_available == 32 - 6 - (0 if waits else 2)


def test_a_window_gives_its_blocks_back_and_shows_block_0_there(vllm: None) -> None:
    manager = make(FULL, WINDOW)
    served = request("a", TOKENS)
    first = step(manager, served, 16).get_block_ids()
    assert [len(ids) for ids in first] == [4, 4]
    assert len({*first[0], *first[1]}) == 8
    step(manager, served, 3)
    full, window = manager.get_block_ids("a")
    assert full[:4] == first[0]
    # The query at 16 reads 11 to 16, so blocks 0 and 1 have left the window.
    assert window[:4] == [0, 0, *first[1][2:]]
    assert manager.manager.num_available == 32 - 5 - 3


def test_what_a_step_adds_comes_by_group(vllm: None) -> None:
    manager = make(WINDOW, FULL, CHUNK)
    served = request("a", TOKENS)
    step(manager, served, 16)
    added = step(manager, served, 3).get_block_ids()
    assert [len(ids) for ids in added] == [1, 1, 1]
    assert added == tuple(ids[4:] for ids in manager.get_block_ids("a"))
    assert [len(ids) for ids in manager.get_block_ids_for_computed_tokens("a", 9)] == [3, 3, 3]


def test_a_prompt_is_found_as_far_as_every_group_serves(vllm: None) -> None:
    manager = make(FULL, WINDOW)
    serve(manager, TOKENS)
    again = request("again", [*TOKENS[:17], 90, 91])
    blocks, found, boundary = manager.get_computed_blocks(again)
    assert (found, boundary) == (16, 0)
    assert [len(ids) for ids in blocks.get_block_ids()] == [4, 4]
    assert manager.allocate_slots(again, 3, found, blocks) is not None
    full, window = manager.get_block_ids("again")
    assert full[:4] == blocks.get_block_ids()[0]
    assert window[:2] == [0, 0]
    assert all(window[2:])
    assert manager.get_computed_blocks(request("less", TOKENS), 15)[1] == 12


@pytest.mark.parametrize(
    ("specs", "found"), [((FULL, WINDOW), [12, 8, 0, 0]), ((FULL, LARGE), [8, 0, 0, 0])]
)
def test_the_head_of_eagle_computes_the_last_block_with_what_its_window_reads(
    vllm: None, specs: tuple[Any, ...], found: list[int]
) -> None:
    assert reasons(*specs, use_eagle=True) == []
    manager = make(*specs, use_eagle=True)
    serve(manager, TOKENS)
    caps = (None, 15, 4, 0)
    assert [manager.get_computed_blocks(request("a", TOKENS), cap)[1] for cap in caps] == found
    again = request("a", TOKENS)
    blocks, num_tokens, _ = manager.get_computed_blocks(again)
    manager.new_step_starts()
    assert manager.allocate_slots(again, 19 - num_tokens, num_tokens, blocks) is not None
    window = manager.get_block_ids("a")[1]
    size = specs[1].block_size
    assert all(window[(num_tokens - 5) // size :])
    manager.take_kv_cache_block_copies()
    manager.manager.check_invariants()


def test_what_the_next_turn_finds_with_the_head_of_eagle_outlives_what_was_passed(
    vllm: None,
) -> None:
    manager = make(FULL, WINDOW, num_blocks=21, use_eagle=True)
    prompt = list(range(1, 30))
    serve(manager, prompt)
    serve(manager, [*range(100, 116)])  # takes the blocks of passed boundaries
    assert manager.manager.stats().evicted_blocks
    assert manager.get_computed_blocks(request("next", [*prompt, 90, 91]))[1] == 24


@pytest.mark.parametrize("specs", [(FULL,), (FULL, WINDOW)])
def test_the_head_of_eagle_finds_all_before_the_last_block_if_that_is_cached(
    vllm: None, specs: tuple[Any, ...]
) -> None:
    manager = make(*specs, use_eagle=True)
    serve(manager, TOKENS)
    for length, found in ((16, 12), (15, 8), (13, 8), (12, 8), (8, 4), (4, 0)):
        again = request("again", TOKENS[:length])
        assert manager.get_computed_blocks(again)[1] == found


@pytest.mark.parametrize("specs", [(FULL,), (FULL, WINDOW), (FULL, LARGE)])
def test_the_head_of_eagle_finds_one_token_less_where_parts_of_blocks_are_found(
    vllm: None, specs: tuple[Any, ...]
) -> None:
    manager = make(*specs, use_eagle=True, min_partial_tokens=1)
    serve(manager, TOKENS)
    whole = manager.manager.config.block_size
    for same, found in ((18, 17), (17, 16), (whole, whole - 1), (3, 2), (1, 0)):
        prompt = [*TOKENS[:same], *range(90, 99)]
        assert manager.get_computed_blocks(request("a", prompt))[1] == found
    assert manager.get_computed_blocks(request("a", TOKENS), 15)[1] == {4: 8, 8: 0}[whole]


@pytest.mark.parametrize("specs", [(FULL,), (FULL, WINDOW)])
def test_the_head_of_eagle_keeps_a_whole_block_if_the_token_after_it_is_cached(
    vllm: None, specs: tuple[Any, ...]
) -> None:
    manager = make(*specs, use_eagle=True, min_partial_tokens=4)
    serve(manager, TOKENS)
    for same, found in ((18, 16), (17, 16), (16, 12), (5, 4), (4, 0)):
        prompt = [*TOKENS[:same], *range(90, 99)]
        blocks, num_tokens, _ = manager.get_computed_blocks(request("a", prompt))
        assert (num_tokens, len(blocks.get_block_ids()[0])) == (found, found // SIZE)


def test_a_part_of_a_block_is_copied_in_every_group(vllm: None) -> None:
    manager = make(FULL, WINDOW, min_partial_tokens=1)
    serve(manager, TOKENS)
    again = request("again", [*TOKENS[:18], 90, 91])
    blocks, found, _ = manager.get_computed_blocks(again)
    assert found == 18
    manager.new_step_starts()
    assert manager.allocate_slots(again, 2, found, blocks) is not None
    copies, kept = manager.take_kv_cache_block_copies()
    assert (len(copies), kept) == (2, [])
    tables = manager.get_block_ids("again")
    assert {copy.destination for copy in copies} == {table[4] for table in tables}


def test_no_copy_reads_what_a_request_of_the_same_step_has_yet_to_write(vllm: None) -> None:
    manager = make(FULL, CHUNK, num_blocks=19, min_partial_tokens=1)
    first, other = request("first", TOKENS[:13]), request("other", list(range(50, 74)))
    step(manager, first, 9)
    step(manager, first, 4)  # leaves its first chunk, which the other one evicts
    step(manager, other, 24)
    manager.free(other)
    again, part = request("again", TOKENS[:7]), request("part", [*TOKENS[:3], 90, 91])
    manager.new_step_starts()
    assert manager.get_computed_blocks(again)[1] == 0
    assert manager.allocate_slots(again, 7) is not None
    assert manager.get_computed_blocks(part)[1] == 0
    manager.take_kv_cache_block_copies()
    manager.new_step_starts()
    assert manager.get_computed_blocks(part)[1] == 3


def test_a_table_stays_as_it_is_where_another_request_has_cached_its_blocks(vllm: None) -> None:
    manager = make(FULL, WINDOW)
    first, second = request("first", TOKENS), request("second", TOKENS)
    second.skip_reading_prefix_cache = True
    step(manager, first, 19)
    step(manager, second, 6)
    told = manager.get_block_ids("second")
    for _ in range(2):
        added = step(manager, second, 6).get_block_ids()
        told = tuple(old + new for old, new in zip(told, added, strict=True))
        now = manager.get_block_ids("second")
        pairs = [zip(*tables, strict=True) for tables in zip(told, now, strict=True)]
        assert all(after in (before, 0) for before, after in chain.from_iterable(pairs))
    assert 0 in manager.get_block_ids("second")[1]
    assert manager.manager.stats().deduplicated_blocks == 4


def test_a_prompt_fits_whose_windows_hold_a_part_of_it_at_a_time(vllm: None) -> None:
    tokens = list(range(1, 49))
    manager = make(FULL, WINDOW, num_blocks=22, max_in_flight_tokens=SIZE)
    served = request("a", tokens)
    manager.new_step_starts()
    # 12 blocks of full attention, and 4 of the window: the blocks it reads, and a chunk.
    assert manager.allocate_slots(served, SIZE, full_sequence_must_fit=True) is not None
    manager.free(served)
    less = make(FULL, WINDOW, num_blocks=15, max_in_flight_tokens=SIZE)
    less.new_step_starts()
    assert less.allocate_slots(served, SIZE, full_sequence_must_fit=True) is None
    assert less.manager.num_available == 14


@pytest.mark.parametrize(("watermark", "fits"), [(0, True), (1, True), (3, False)])
def test_blocks_that_are_found_and_idle_count_where_a_whole_prompt_must_fit(
    vllm: None, watermark: int, fits: bool
) -> None:
    manager = make(FULL, WINDOW, num_blocks=21, max_in_flight_tokens=SIZE)
    served = request("a", list(range(1, 41)))
    step(manager, served, 40)
    manager.free(served)
    manager.watermark_blocks = watermark
    again = request("again", [*served._all_token_ids[:33], *range(60, 91)])
    blocks, found, _ = manager.get_computed_blocks(again)
    assert found == 32
    manager.new_step_starts()
    # Of 20 blocks, 8 and 2 are found and idle, and full attention takes 8 more.
    taken = manager.allocate_slots(again, SIZE, found, blocks, full_sequence_must_fit=True)
    assert (taken is not None) == fits


@pytest.mark.parametrize(
    ("window", "least", "most"), [(WINDOW, (10, 14), (16, 20)), (LARGE, (8 + 2, 10 + 3), (12, 15))]
)
def test_blocks_that_a_request_still_takes_are_counted_by_group(
    vllm: None, window: Any, least: tuple[int, int], most: tuple[int, int]
) -> None:
    manager = make(FULL, window, max_in_flight_tokens=SIZE)
    step(manager, request("a", TOKENS), 8)
    for capped, expected in ((False, most), (True, least)):
        assert tuple(needed(manager, name, 40, capped=capped) for name in "ab") == expected


def test_the_first_group_of_full_attention_is_named(vllm: None) -> None:
    for specs, first in (((FULL, WINDOW), 0), ((CHUNK, FULL), 1)):
        assert first_full(make(*specs).layers) == first


@pytest.mark.parametrize(("window", "new"), [(WINDOW, 2), (LARGE, 1)])
def test_workers_zero_the_new_blocks_of_every_group(vllm: None, window: Any, new: int) -> None:
    manager = make(FULL, window, zeroes=True)
    served = request("a", TOKENS)
    step(manager, served, 9)
    assert sorted(manager.take_new_block_ids()) == sorted(chain(*manager.get_block_ids("a")))
    added = step(manager, served, 6).get_block_ids()
    assert sorted(manager.take_new_block_ids()) == sorted(chain(*added))
    assert len([*chain(*added)]) == new


def test_blocks_of_several_groups_come_as_a_list_for_each(vllm: None) -> None:
    manager = make(FULL, WINDOW)
    step(manager, request("a", TOKENS), 19)
    blocks = manager.get_blocks("a")
    assert blocks.get_block_ids(group_ids=[1, 0]) == tuple(reversed(blocks.get_block_ids()))
    assert blocks.first(0).get_block_ids(allow_none=True) is None
    assert blocks.first(0).get_block_ids() == ([], [])
    both = manager.truncate_computed_blocks(blocks, 8) + manager.truncate_computed_blocks(blocks, 4)
    assert [len(ids) for ids in both.get_block_ids()] == [3, 3]
    last = [ids[4] for ids in blocks.get_block_ids()]
    assert blocks.get_unhashed_block_ids_all_groups() == [[block] for block in last]
    with pytest.raises(ValueError, match="whole blocks"):
        manager.truncate_computed_blocks(blocks, 3)
    with pytest.raises(ValueError, match="several groups"):
        blocks.get_unhashed_block_ids()
    assert [block.is_null for block in blocks.blocks[1]] == [False] * 5
    assert manager.get_num_common_prefix_blocks("a") == [0, 0]


def test_without_caching_windows_release_blocks_and_no_prompt_finds_any(vllm: None) -> None:
    assert reasons(FULL, WINDOW, enable_caching=False) == []
    manager = make(FULL, WINDOW, enable_caching=False)
    served = request("a", TOKENS)
    step(manager, served, 16)
    step(manager, served, 3)
    assert manager.get_block_ids("a")[1][:2] == [0, 0]
    assert manager.estimate_cached_tokens(served) == 0
    manager.free(served)
    again = request("b", TOKENS)
    assert manager.get_computed_blocks(again)[1] == 0
    step(manager, again, 16)
    assert manager.manager.stats().hit_tokens == 0
    manager.free(again)
    assert manager.manager.num_available == 32


def test_the_cache_is_reset_once_nobody_uses_it(vllm: None) -> None:
    manager = make(FULL, WINDOW)
    served = request("a", TOKENS)
    step(manager, served, 19)
    assert not manager.reset_prefix_cache()
    manager.free(served)
    assert manager.reset_prefix_cache()
    assert manager.get_computed_blocks(request("b", TOKENS))[1] == 0


# Groups whose blocks have different sizes.


def sizes(tables: Any) -> list[int]:
    return [len(ids) for ids in tables]


@pytest.mark.parametrize("specs", [(FULL, LARGE), (spec(block_size=8), WINDOW)])
def test_each_group_has_a_block_for_as_many_tokens_as_its_blocks_hold(
    vllm: None, specs: tuple[Any, ...]
) -> None:
    manager = make(*specs)
    served = request("a", TOKENS)
    told = step(manager, served, 3).get_block_ids()
    each = [layers.block_size for layers in specs]
    for upto in (5, 6, 9, 16, 17):
        added = step(manager, served, upto - served.num_computed_tokens).get_block_ids()
        told = tuple(old + new for old, new in zip(told, added, strict=True))
        assert sizes(told) == [-(-upto // size) for size in each]
        now = manager.get_block_ids("a")
        for table, others in zip(now, told, strict=True):
            assert all(block in (other, 0) for block, other in zip(table, others, strict=True))
    of_nine = manager.get_block_ids_for_computed_tokens("a", 9)
    assert sizes(of_nine) == [-(-9 // size) for size in each]
    manager.manager.check_invariants()


def test_tokens_count_as_cached_once_blocks_of_all_groups_are_full(vllm: None) -> None:
    manager = make(FULL, LARGE)
    served = request("a", TOKENS)
    counted = []
    for count in (3, 2, 3, 7):
        step(manager, served, count)
        counted.append(manager.estimate_cached_tokens(served))
    assert counted == [0, 0, 8, 8]
    assert manager.estimate_cached_tokens(request("b", TOKENS)) == 0


def test_a_step_that_fits_in_the_large_block_adds_small_blocks_alone(vllm: None) -> None:
    manager = make(FULL, LARGE)
    served = request("a", TOKENS)
    step(manager, served, 3)
    assert step(manager, served, 1) is manager.empty_kv_cache_blocks
    assert sizes(step(manager, served, 1).get_block_ids()) == [1, 0]


def test_a_window_in_small_blocks_gives_them_back_within_a_block_of_full_attention(
    vllm: None,
) -> None:
    manager = make(spec(block_size=16), WINDOW)
    served = request("a", TOKENS)
    free = []
    for _ in range(5):
        step(manager, served, 3)
        free.append(32 - manager.manager.num_available)
    # One block of full attention, and those of a window of 6 tokens and of the step's 3.
    assert free == [2, 3, 4, 3, 4]
    assert manager.get_block_ids("a")[1][0] == 0


def test_a_prompt_is_found_in_whole_blocks_of_every_group_or_with_a_part(vllm: None) -> None:
    for least, expected in ((0, 16), (1, 18)):
        manager = make(FULL, LARGE, min_partial_tokens=least)
        serve(manager, TOKENS)
        again = request("again", [*TOKENS[:18], 90, 91])
        blocks, found, _ = manager.get_computed_blocks(again)
        assert found == expected
        assert sizes(blocks.get_block_ids()) == [-(-found // 4), -(-found // 8)]
        shorter = manager.truncate_computed_blocks(blocks, 8)
        assert sizes(shorter.get_block_ids()) == [2, 1]
        manager.new_step_starts()
        assert manager.allocate_slots(again, 20 - found, found, blocks) is not None
        copies, _ = manager.take_kv_cache_block_copies()
        assert {copy.destination for copy in copies} == (
            {table[-1] for table in manager.get_block_ids("again")} if least else set()
        )


@pytest.mark.parametrize(("blocks", "fits"), [(13, True), (12, False)])
def test_a_prompt_waits_for_room_in_blocks_of_each_size(
    vllm: None, blocks: int, fits: bool
) -> None:
    manager = make(FULL, LARGE, num_blocks=blocks + 1, max_in_flight_tokens=SIZE)
    manager.new_step_starts()
    # 10 blocks of 4 tokens and 3 of 8.
    long = request("a", list(range(1, 41)))
    taken = manager.allocate_slots(long, SIZE, full_sequence_must_fit=True)
    assert (taken is not None) == fits


@pytest.mark.parametrize("specs", [(FULL,), (FULL, WINDOW)])
def test_a_load_begins_beside_reserved_blocks_though_its_whole_prompt_does_not_fit_there(
    vllm: None, specs: tuple[Any, ...]
) -> None:
    manager = make(*specs, num_blocks=16)
    loaded = request("loaded", range(40))
    needed = -(-8 // SIZE) * len(specs)

    def load(reserved: int) -> Any:
        return manager.allocate_slots(
            loaded,
            0,
            num_external_computed_tokens=8,
            delay_cache_blocks=True,
            reserved_blocks=reserved,
        )

    assert load(16 - needed) is None
    assert load(15 - needed) is not None


def test_prompts_with_and_without_an_image_share_what_is_before_it(
    vllm: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keys_of(asked: Any, start: int, end: int, index: int) -> tuple[tuple[Any, ...], int]:
        image = [("mm", name, 9 - start) for name in asked.mm_features if start <= 9 < end]
        salt = [] if start else [("cache_salt", "salt")]
        return (("lora", "adapter", "/adapter"), *image, *salt), index

    naming = importlib.import_module("blockmgr.ports.vllm.naming")
    monkeypatch.setattr(naming, "generate_block_hash_extra_keys", keys_of)
    manager = make()
    adapter = SimpleNamespace(lora_name="adapter", lora_path="/adapter")
    about = {"cache_salt": "salt", "lora_request": adapter}
    serve(manager, TOKENS, "first", mm_features=["cat"], **about)
    for images, found in ((["cat"], 16), (["dog"], 8), ([], 8)):
        served = request("next", TOKENS)
        vars(served).update(about, mm_features=images)
        assert manager.get_computed_blocks(served)[1] == found
        manager.prompts.forget("next")


@pytest.mark.parametrize("specs", [(FULL, WINDOW), (CHUNK, FULL), (WINDOW,)])
def test_blocks_that_steps_in_flight_read_are_given_back_after_them(
    vllm: None, specs: tuple[Any, ...]
) -> None:
    manager = make(*specs, num_blocks=33)
    later: list[int] = []
    manager.commits.free_later = later.extend
    served = request("first", [*TOKENS, *TOKENS])
    step(manager, served, 20)
    read = {*chain.from_iterable(manager.get_block_ids("first"))} - {0}
    step(manager, served, 4)  # the first step may still run
    kept = read - {*chain.from_iterable(manager.get_block_ids("first"))}
    assert kept
    assert kept == {*later}
    assert all(manager.manager.ref_count(block) == 1 for block in kept)
    manager.block_pool.free_blocks([manager.block_pool.blocks[block] for block in later])
    assert not any(manager.manager.ref_count(block) for block in kept)
    manager.free(served)
    manager.manager.check_invariants()
    assert manager.manager.num_available == manager.manager.config.capacity


def test_blocks_of_copies_are_held_until_these_have_run(vllm: None) -> None:
    manager = make(FULL, MAMBA, num_blocks=33, min_partial_tokens=0)
    manager.commits.free_later, manager.commits.most_in_flight = list, 2
    served = request("first", TOKENS)
    step(manager, served, 2 * SIZE)
    manager.new_step_starts()  # caches the state where the forward ended
    assert manager.allocate_slots(served, SIZE) is not None
    [copy] = manager.take_kv_cache_block_copies()[0]
    manager.free(served)
    for held in (1, 0):
        manager.new_step_starts()
        assert [manager.manager.ref_count(each) for each in copy] == [held, held]
        manager.take_kv_cache_block_copies()


def test_a_step_that_only_copies_holds_no_blocks_of_an_idle_engine(vllm: None) -> None:
    manager = make(FULL, MAMBA, num_blocks=33, min_partial_tokens=0)
    manager.commits.free_later, manager.commits.most_in_flight = list, 2
    served = request("first", TOKENS)
    step(manager, served, 2 * SIZE)
    manager.new_step_starts()  # the request waits for its token, and its state is copied
    assert len(manager.take_kv_cache_block_copies()[0]) == 1
    manager.free(served)
    assert manager.reset_prefix_cache()


def test_a_table_that_was_handed_over_names_what_it_did_until_the_request_is_freed(
    vllm: None,
) -> None:
    manager = make(FULL, WINDOW, num_blocks=33)
    served = request("first", [*TOKENS, *TOKENS])
    step(manager, served, 20)
    manager.remove_skipped_blocks("first", 20)
    tables = manager.get_block_ids("first")
    assert 0 in tables[1]  # what no later query reads
    step(manager, request("other", TOKENS[::-1]), 8)
    assert manager.get_block_ids("first") == tables
    manager.free(served)
    manager.manager.check_invariants()


def test_a_full_pool_takes_no_block_of_a_window_that_is_being_sent(vllm: None) -> None:
    manager = make(FULL, WINDOW, MAMBA, num_blocks=13, min_partial_tokens=0)
    served = request("first", TOKENS)
    step(manager, served, 8)
    step(manager, served, 3)  # the next step would commit these for lack of room
    manager.remove_skipped_blocks("first", 11)
    sent = {*chain.from_iterable(manager.get_block_ids("first"))} - {0}
    manager.new_step_starts()
    assert all(manager.manager.ref_count(block) for block in sent)
    manager.take_kv_cache_block_copies()
    manager.free(served)
    manager.manager.check_invariants()


def test_a_block_that_is_loaded_in_part_is_not_zeroed(vllm: None) -> None:
    manager = make(FULL, WINDOW, num_blocks=33, zeroes=True)
    served = request("first", TOKENS)
    manager.new_step_starts()
    taken = manager.allocate_slots(
        served, 0, num_external_computed_tokens=SIZE + 1, delay_cache_blocks=True,
        skip_zeroing_group_ids=(0, 1),
    )  # fmt: skip
    assert taken is not None
    assert manager.take_new_block_ids() == []


def settled_scheduler(manager: Any, **more: Any) -> Any:
    """A stand-in for vLLM's scheduler, connected with the manager as the plug-in does."""
    plugin = importlib.import_module("blockmgr.ports.vllm.plugin")
    usual = {
        "kv_cache_manager": manager,
        "defer_block_free": False,
        "add_request": lambda served: None,
        "_handle_invalid_blocks": lambda blocks, scheduled: {"first", "gone"},
        "connector": object(),
    }
    scheduler = SimpleNamespace(**{**usual, **more})
    plugin._settle(scheduler, Options(), SimpleNamespace(max_concurrent_batches=2))
    return scheduler


def test_what_is_computed_again_after_a_failed_load_is_not_found(vllm: None) -> None:
    manager = make(FULL, num_blocks=33)
    scheduler = settled_scheduler(manager)
    served = request("first", TOKENS)
    step(manager, served)
    manager.new_step_starts()
    manager.take_kv_cache_block_copies()
    served.num_computed_tokens = SIZE
    assert scheduler._handle_invalid_blocks({3}, {"first": 4}) == {"first", "gone"}
    _, found, _ = manager.get_computed_blocks(request("second", TOKENS))
    assert found == SIZE
    step(manager, served)
    manager.free(served)
    manager.manager.check_invariants()


def test_blocks_wait_for_steps_in_flight_if_the_scheduler_defers_what_it_frees(vllm: None) -> None:
    manager, freed = make(FULL, WINDOW, num_blocks=33), []
    settled_scheduler(manager)
    assert manager.commits.free_later is None
    settled_scheduler(
        manager,
        defer_block_free=True,
        sched_step_seq=7,
        _free_cow_retained_blocks=lambda blocks, fence: freed.append((blocks, fence)),
    )
    assert manager.commits.most_in_flight == 2
    manager.commits.free_later([3, 5])
    [(blocks, fence)] = freed
    assert [each.block_id for each in blocks] == [3, 5]
    assert fence == 7
