"""The vLLM port for each tested version, on stand-ins for vLLM's modules.

``tests/engines/conformance.py`` compares these expectations with the installed vLLM.
"""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blockmgr.ports.vllm import Options
from blockmgr.ports.vllm.expected import CHANGED, METHODS, STRUCTURES, TRIED
from blockmgr.ports.vllm.interface import INTERFACE
from tests.ports.vllm_modules import SIZE, layout, make, request, serve, step


@pytest.mark.parametrize(
    ("cap", "found"), [(None, 16), (16, 16), (17, 16), (15, 12), (4, 4), (3, 0), (0, 0)]
)
def test_a_request_finds_no_more_than_it_may(vllm: None, cap: int | None, found: int) -> None:
    manager = make()
    tokens = list(range(1, 20))
    serve(manager, tokens)
    again = request("second", tokens)
    blocks, num_tokens, _ = manager.get_computed_blocks(again, cap)
    assert (num_tokens, len(blocks.by_group[0])) == (found, found // SIZE)
    assert manager.get_computed_blocks_for_connector(again, cap)[1] == found
    assert manager.allocate_slots(again, 19 - found, found, blocks) is not None
    assert manager.get_blocks("second").by_group[0][: found // SIZE] == blocks.by_group[0]


def test_the_head_of_eagle_computes_the_last_block_that_may_be_found_again(vllm: None) -> None:
    manager = make(use_eagle=True)
    tokens = list(range(1, 20))
    serve(manager, tokens)
    found = [manager.get_computed_blocks(request("a", tokens), cap)[1] for cap in (None, 15, 4, 0)]
    assert found == [12, 8, 0, 0]


@pytest.mark.parametrize(("cap", "found"), [(None, 18), (18, 18), (17, 16), (9, 8)])
def test_parts_of_blocks_are_found_only_where_all_of_it_may_be(
    vllm: None, cap: int | None, found: int
) -> None:
    manager = make(min_partial_tokens=1)
    serve(manager, list(range(1, 20)))
    again = request("second", [*range(1, 19), 90, 91])
    blocks, num_tokens, _ = manager.get_computed_blocks(again, cap)
    assert num_tokens == found
    assert manager.allocate_slots(again, 20 - found, found, blocks) is not None


def reasons(**arguments: Any) -> list[str]:
    support = importlib.import_module("blockmgr.ports.vllm.support")
    given = {"hash_block_size": SIZE, "scheduler_block_size": SIZE, "max_model_len": 64}
    found: list[str] = support.reasons_against(
        Options(),
        SimpleNamespace(kv_transfer_config=None),
        {"kv_cache_config": layout(), **given, **arguments},
    )
    return found


def test_hashes_that_look_ahead_change_nothing_unless_events_name_blocks_by_them(
    vllm: None,
) -> None:
    assert reasons(num_hash_lookahead_tokens=1) == []
    assert reasons(num_hash_lookahead_tokens=0, enable_kv_cache_events=True) == []
    [reason] = reasons(num_hash_lookahead_tokens=1, enable_kv_cache_events=True)
    assert "KV cache events" in reason
    assert "disable_lookahead_block_hashes" in reason
    manager = make(num_hash_lookahead_tokens=1)
    serve(manager, list(range(1, 20)))
    # As with use_eagle: vLLM's hashes tell which token follows a block, and ours do not.
    assert manager.get_computed_blocks(request("a", list(range(1, 20))))[1] == 12


def test_the_stand_ins_can_be_called_as_every_version_calls_vllms_own(
    vllm: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    conformance = importlib.import_module("tests.engines.conformance")
    assert conformance.lacking() == []
    kind = importlib.import_module("blockmgr.ports.vllm.manager").KVCacheManager
    monkeypatch.setattr(kind, "get_computed_blocks", lambda self, request: None)
    assert conformance.lacking() == ["0.33: KVCacheManager.get_computed_blocks takes ('request',)"]
    monkeypatch.setattr(
        kind, "get_computed_blocks", lambda self, request, max_cache_hit_length: None
    )
    [line] = conformance.lacking()
    assert line.startswith("0.32: KVCacheManager.get_computed_blocks takes")


def test_what_changes_in_a_version_is_something_that_is_compared() -> None:
    assert set(CHANGED) <= set(TRIED)
    for version, changes in CHANGED.items():
        expected = INTERFACE.as_of(version)
        for path, names in changes.items():
            assert path in METHODS or path in STRUCTURES
            assert names in (expected.methods.get(path), expected.structures.get(path))
    assert INTERFACE.as_of("0.32").methods == METHODS
    assert "num_hash_lookahead_tokens" in INTERFACE.as_of("0.33").methods[
        "vllm.v1.core.kv_cache_manager:KVCacheManager.__init__"
    ]  # fmt: skip


def test_a_prompt_is_converted_once_until_it_has_more_tokens(
    vllm: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = importlib.import_module("blockmgr.ports.vllm.prompts")
    convert, converted = prompts.Prompt, []

    def counted(tokens: list[int], **named: Any) -> Any:
        converted.append(len(tokens))
        return convert(tokens, **named)

    monkeypatch.setattr(prompts, "Prompt", counted)
    manager = make()
    tokens = list(range(1, 20))
    waiting = request("waiting", tokens)
    manager.prompts.prepare(waiting)
    for _ in range(3):
        manager.get_computed_blocks(waiting)
    assert converted == [19]
    tokens += [20, 21]  # of its output: it was preempted
    waiting.num_tokens = 21
    blocks, found, _ = manager.get_computed_blocks(waiting)
    assert manager.allocate_slots(waiting, 21, found, blocks) is not None
    assert converted == [19, 21]
    assert manager.manager.sequence(manager._held["waiting"].handle).tokens.tolist() == tokens
    manager.get_computed_blocks(request("another", tokens))
    assert converted == [19, 21, 21]


def test_prompts_are_kept_only_while_their_requests_wait(vllm: None) -> None:
    manager = make()
    waiting, ended, session = (request(name, list(range(1, 20))) for name in "abc")
    session.resumable = True
    for each in (waiting, ended, session):
        manager.prompts.prepare(each)
    assert len(manager.prompts) == 2
    manager.free(ended)
    assert manager.allocate_slots(waiting, 19) is not None
    assert len(manager.prompts) == 0
    manager.get_computed_blocks(session)
    session._all_token_ids[4] = 90  # a session continues with other tokens
    assert manager.get_computed_blocks(session)[1] == 4
    manager.free(session)
    assert len(manager.prompts) == 0


def test_requests_that_come_under_one_name_are_told_apart(vllm: None) -> None:
    manager = make()
    serve(manager, list(range(1, 20)))
    manager.prompts.prepare(request("a", list(range(50, 69))))
    assert manager.get_computed_blocks(request("a", list(range(1, 20))))[1] == 16


def test_lists_of_block_ids_are_those_of_the_table(vllm: None) -> None:
    tables = importlib.import_module("blockmgr.ports.vllm.tables")
    piece, lists = tables.PIECE, tables.IdLists()
    table = np.arange(3 * piece, dtype=np.int32)
    for length in (3 * piece, piece, 2 * piece + 1, 0, 2 * piece):
        for changed in (None, 0, piece - 1, piece, length - 1):
            row = table[:length].copy()
            if changed is not None and 0 <= changed < length:
                row[changed] = -1
            ids = lists.of(row)
            assert ids == row.tolist()
            ids.append(7)  # it belongs to the caller


def test_why_admitted_prompts_were_not_found_is_counted_once_for_each(vllm: None) -> None:
    assert make()._misses is None
    manager = make(explain_every=1)
    serve(manager, list(range(1, 20)))
    counted = sum(manager._misses.tokens.values())
    assert counted == 19
    again = request("again", [*range(1, 17), 90, 91])
    large = request("large", list(range(200, 400)))
    assert manager.allocate_slots(large, 200) is None
    for _ in range(2):
        blocks, found, _ = manager.get_computed_blocks(again)
    assert manager.allocate_slots(again, 18 - found, found, blocks) is not None
    assert sum(manager._misses.tokens.values()) == counted + 2
    unread = request("unread", list(range(1, 20)))
    unread.skip_reading_prefix_cache = True
    assert manager.allocate_slots(unread, 19) is not None
    assert sum(manager._misses.tokens.values()) == counted + 2


def test_each_so_many_th_prompt_is_explained(vllm: None) -> None:
    manager = make(num_blocks=101, explain_every=3)
    for number in range(7):
        served = request(str(number), list(range(100 * number, 100 * number + 10)))
        assert manager.allocate_slots(served, 10) is not None
    assert sum(manager._misses.tokens.values()) == 3 * 10


def test_the_next_turn_finds_the_end_of_an_answer_within_a_block(vllm: None) -> None:
    manager = make(min_partial_tokens=1)
    served = request("first", list(range(1, 11)))
    for num_new in (10, 1, 1, 1, 1, 1):  # the prompt and the sampled tokens
        step(manager, served, num_new)
        served._all_token_ids.append(50 + served.num_computed_tokens)
        served.num_tokens += 1
    manager.free(served)
    turn = request("second", [*served._all_token_ids, 90, 91])
    # Of 16 tokens, the last was sampled and not computed.
    assert manager.get_computed_blocks(turn)[1] == 15
