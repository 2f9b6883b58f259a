"""The vLLM port with recurrent states, on stand-ins for vLLM's modules."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from blockmgr import BlockManager
from blockmgr.ports.vllm import Options, plugin
from tests.ports.vllm_modules import KINDS, SIZE, make, needed, request, spec

FULL = spec()
STATE = spec(KINDS.MAMBA, mamba_cache_mode="align", num_speculative_blocks=0)
WINDOW = spec(KINDS.SLIDING_WINDOW, sliding_window=6)
TOKENS = list(range(1, 20))


class Scheduler:
    """Prefills in chunks, as vLLM's scheduler does, and keeps the tables of workers."""

    def __init__(self, manager: Any, budget: int = 64) -> None:
        self.manager = manager
        self.budget = budget
        self.tables: dict[str, list[list[int]]] = {}

    def chunk(self, served: Any) -> list[tuple[int, int]] | None:
        """Computes the next chunk of a request in a step; returns the copies of the step."""
        manager, start = self.manager, served.num_computed_tokens
        manager.new_step_starts()
        found, blocks = 0, manager.empty_kv_cache_blocks
        if served.request_id not in self.tables:
            blocks, found, _ = manager.get_computed_blocks(served)
        most = min(self.budget, served.num_tokens - start - found)
        count = manager.commits.clip_chunk(served, most, found)
        added = manager.allocate_slots(served, count, found, blocks)
        if added is None:
            manager.take_kv_cache_block_copies()
            return None
        name = served.request_id
        if name not in self.tables:
            self.tables[name] = list(manager.get_block_ids(name))
        else:
            pairs = zip(self.tables[name], added.get_block_ids(), strict=True)
            self.tables[name] = [old + new for old, new in pairs]
        copies, _ = manager.take_kv_cache_block_copies()
        served.num_computed_tokens = start + found + count
        return [(copy.source, copy.destination) for copy in copies]

    def compute(self, served: Any) -> list[int]:
        """Computes all of a request; returns where its forwards ended."""
        ends = []
        while served.num_computed_tokens < served.num_tokens:
            assert self.chunk(served) is not None
            ends.append(served.num_computed_tokens)
        return ends

    def run(self, name: str, tokens: list[int]) -> list[int]:
        """Computes a request, and ends it."""
        served = request(name, tokens)
        ends = self.compute(served)
        self.manager.free(served)
        return ends


def test_prefills_stop_where_a_state_is_worth_caching(vllm: None) -> None:
    scheduler = Scheduler(make(FULL, STATE, min_partial_tokens=0))
    assert scheduler.run("first", TOKENS) == [16, 19]
    again = request("again", [*TOKENS[:17], 90, 91, 92])
    assert scheduler.manager.get_computed_blocks(again)[1] == 16
    parts = [*TOKENS[:9], *range(50, 60)]
    assert scheduler.run("parts", parts) == [8, 16, 19]
    assert scheduler.run("next", [*TOKENS[:9], *range(70, 75)]) == [12, 14]  # finds 8


def test_chunks_end_with_a_block_and_their_states_are_found(vllm: None) -> None:
    scheduler = Scheduler(make(FULL, STATE, num_blocks=99, min_partial_tokens=0), budget=6)
    assert scheduler.run("first", TOKENS) == [4, 8, 12, 16, 19]
    found = scheduler.manager.get_computed_blocks(request("parts", [*TOKENS[:13], 90, 91]))
    assert found[1] == 12
    small = Scheduler(make(FULL, STATE, num_blocks=99, min_partial_tokens=0), budget=3)
    assert small.run("first", TOKENS[:8]) == [3, 4, 7, 8]  # a chunk smaller than a block


def test_a_prompt_stops_and_continues_within_a_block(vllm: None) -> None:
    scheduler = Scheduler(make(STATE, FULL, STATE, num_blocks=99, min_partial_tokens=1))
    scheduler.run("first", TOKENS)
    assert scheduler.run("parts", [*TOKENS[:10], *range(50, 60)]) == [10, 16, 20]
    third = request("third", [*TOKENS[:10], *range(70, 75)])
    assert scheduler.manager.get_computed_blocks(third)[1] == 10
    copies = scheduler.chunk(third)
    assert copies is not None
    tables = scheduler.tables["third"]
    assert {destination for _, destination in copies} >= {
        tables[0][-1],
        tables[2][-1],
        tables[1][2],
    }


def test_the_end_of_an_answer_is_found_within_a_block(vllm: None) -> None:
    scheduler = Scheduler(make(FULL, STATE, num_blocks=99, min_partial_tokens=1))
    scheduler.run("turn", TOKENS)
    found = scheduler.manager.get_computed_blocks(request("next", [*TOKENS, 90, 91]))
    assert found[1] == 19
    whole = Scheduler(make(FULL, STATE, num_blocks=99, min_partial_tokens=0))
    whole.run("turn", TOKENS)
    assert whole.manager.get_computed_blocks(request("next", [*TOKENS, 90, 91]))[1] == 16


@pytest.mark.parametrize("before_end", [0, 2])
def test_a_turn_that_repeats_no_thoughts_finds_the_prompt_before(
    vllm: None, before_end: int
) -> None:
    options = {"num_blocks": 99, "min_partial_tokens": 1, "prompt_end_stop": before_end}
    scheduler = Scheduler(make(FULL, STATE, **options))
    served = request("turn", TOKENS)
    ends = scheduler.compute(served)
    end = len(TOKENS) - before_end
    assert end in ends
    for token in range(60, 70):
        served._all_token_ids = [*served._all_token_ids, token]
        scheduler.compute(served)
    scheduler.manager.free(served)
    found = scheduler.manager.get_computed_blocks(request("next", [*TOKENS[:end], 90, 91]))
    assert found[1] == end


def test_workers_find_a_state_in_every_column_and_it_stays_where_it_is(vllm: None) -> None:
    scheduler = Scheduler(make(FULL, STATE, num_blocks=99, min_partial_tokens=0))
    served = request("a", TOKENS)
    scheduler.chunk(served)
    full, state = scheduler.tables["a"]
    assert [bool(block) for block in full] == [True] * 4
    assert state == [state[0]] * 4 != [0] * 4
    copies = scheduler.chunk(served)
    [(source, copy)] = copies or []  # the state at 16, which is found there
    assert source == state[0] != copy
    assert scheduler.tables["a"][1] == [source] * 5
    assert scheduler.tables["a"][0][:4] == full


def test_a_session_that_continues_sends_its_whole_table(vllm: None) -> None:
    scheduler = Scheduler(make(FULL, STATE, num_blocks=99, min_partial_tokens=0))
    served = request("a", TOKENS)
    scheduler.compute(served)
    served._all_token_ids = [*TOKENS, *range(50, 61)]
    served.num_tokens = served.num_prompt_tokens = 30
    scheduler.manager.new_step_starts()
    assert scheduler.manager.allocate_slots(served, 11) is not None
    _, state = scheduler.manager.get_block_ids("a")
    # Its workers find the state after 19 tokens in column 4, and write it in the last one.
    assert state == [state[0]] * 8 != [0] * 8


def test_a_state_that_is_found_is_copied_first(vllm: None) -> None:
    scheduler = Scheduler(make(FULL, STATE, num_blocks=99, min_partial_tokens=0))
    scheduler.run("first", TOKENS)
    cached = scheduler.tables["first"][1]
    again = request("again", [*TOKENS[:17], *range(50, 63)])
    [(_, copy)] = scheduler.chunk(again) or []
    # A worker reads no column before that of the state.
    assert scheduler.tables["again"][1] == [0] * 3 + [copy] * 4
    assert copy not in cached


def test_a_prompt_waits_until_it_can_use_a_state_that_this_step_computes(vllm: None) -> None:
    manager = make(FULL, STATE, num_blocks=99, min_partial_tokens=0)
    first, second = request("first", TOKENS), request("second", [*TOKENS[:17], 90])
    other = request("other", [*TOKENS[:15], 80, 81, 82])
    manager.new_step_starts()
    assert manager.allocate_slots(first, manager.commits.clip_chunk(first, 19)) is not None
    for waiting, waits in ((second, True), (other, False)):
        blocks, found, _ = manager.get_computed_blocks(waiting)
        assert (found, (manager.allocate_slots(waiting, 8, found, blocks) is None)) == (0, waits)
    manager.take_kv_cache_block_copies()
    first.num_computed_tokens = 16
    manager.new_step_starts()
    # The copy that keeps it has yet to run.
    blocks, found, _ = manager.get_computed_blocks(second)
    assert (found, manager.allocate_slots(second, 8, found, blocks)) == (0, None)
    manager.take_kv_cache_block_copies()
    manager.new_step_starts()
    blocks, found, _ = manager.get_computed_blocks(second)
    assert found == 16
    assert manager.allocate_slots(second, 2, found, blocks) is not None


def test_workers_zero_no_state_and_nothing_of_a_block_that_is_found(vllm: None) -> None:
    scheduler = Scheduler(make(FULL, STATE, num_blocks=99, zeroes=True, min_partial_tokens=1))
    manager = scheduler.manager
    scheduler.run("first", TOKENS)
    manager.take_new_block_ids()
    again = request("again", [*TOKENS[:19], *range(50, 60)])
    scheduler.chunk(again)
    full, state = manager.get_block_ids("again")
    assert again.num_computed_tokens > 19
    assert manager.take_new_block_ids() == full[5:]
    assert full[4] not in full[5:]
    assert state[-1]


def test_a_request_that_is_preempted_continues_from_its_state(vllm: None) -> None:
    scheduler = Scheduler(make(FULL, STATE, num_blocks=15, min_partial_tokens=1))
    manager = scheduler.manager
    served = request("a", TOKENS)
    scheduler.compute(served)
    served._all_token_ids = [*TOKENS, 70, 71]
    served.num_tokens = 21
    scheduler.chunk(served)
    assert served.num_computed_tokens == 21
    manager.allocate_slots(request("other", list(range(30, 44))), 14)
    manager.take_kv_cache_block_copies()
    manager.new_step_starts()  # few blocks are left
    manager.free(served)
    served.num_computed_tokens = 0
    served._all_token_ids = [*TOKENS, 70, 71, 72]
    served.num_tokens = 22
    manager.take_kv_cache_block_copies()
    assert manager.get_computed_blocks(served)[1] == 21


def test_a_state_that_has_moved_is_not_cached_where_the_last_commit_said(
    vllm: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BlockManager, "cache_state", lambda self, handle: False)
    scheduler = Scheduler(make(FULL, STATE, num_blocks=99, min_partial_tokens=0))
    manager, served = scheduler.manager, request("a", TOKENS)
    scheduler.compute(served)
    for token in range(70, 73):  # decoding passes the end of a block at 20
        served._all_token_ids = [*served._all_token_ids, token]
        served.num_tokens += 1
        scheduler.chunk(served)
    assert served.num_computed_tokens == 22
    manager.new_step_starts()
    manager.free(served)  # preempted while this step is planned
    manager.take_kv_cache_block_copies()
    again = request("again", [*TOKENS, 70, 71, 90, 91])
    assert manager.get_computed_blocks(again)[1] == 16


def test_a_state_that_a_forward_ahead_has_moved_is_not_cached(
    vllm: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With asynchronous scheduling, a step is planned before the token that it reads is known."""
    monkeypatch.setattr(BlockManager, "cache_state", lambda self, handle: False)  # none is free
    scheduler = Scheduler(make(FULL, STATE, num_blocks=99, min_partial_tokens=0))
    manager, tokens = scheduler.manager, list(range(1, 21))
    served = request("a", tokens)
    assert scheduler.compute(served) == [16, 20]
    served.num_output_placeholders = 1
    manager.new_step_starts()
    assert manager.allocate_slots(served, 1) is not None
    manager.take_kv_cache_block_copies()
    served.num_computed_tokens = 21
    served.num_output_placeholders = 2
    manager.free(served)  # while the forward that moves its state runs
    assert manager.get_computed_blocks(request("next", [*tokens, 90, 91]))[1] == 16


def test_a_prompt_that_fills_an_empty_pool_is_admitted_although_it_finds_a_state(
    vllm: None,
) -> None:
    manager = make(FULL, STATE, num_blocks=1 + 5 + 2, min_partial_tokens=0)
    scheduler = Scheduler(manager)
    scheduler.run("first", TOKENS)
    again = request("again", [*TOKENS[:17], 90, 91, 92])
    manager.new_step_starts()
    blocks, found, _ = manager.get_computed_blocks(again)
    assert found == 16
    count = manager.commits.clip_chunk(again, 3, found)
    taken = manager.allocate_slots(again, count, found, blocks, full_sequence_must_fit=True)
    assert taken is not None


def test_states_count_once_where_blocks_are_counted(vllm: None) -> None:
    manager = make(FULL, STATE, WINDOW, max_in_flight_tokens=SIZE)
    assert needed(manager, "a", 40, capped=True) == 10 + 1 + 4
    full, state, window = manager.layers
    # A match counts the copy of a state that it finds.
    assert (state.num_fresh_blocks(40, 0), state.num_fresh_blocks(40, 16)) == (1, 0)
    assert [each.num_more_blocks(40, 32) for each in (full, state, window)] == [2, 0, 0]
    served = request("a", TOKENS)
    manager.new_step_starts()
    assert manager.allocate_slots(served, 8) is not None
    assert needed(manager, "a", 40, capped=True) == 8 + 2
    assert manager.estimate_cached_tokens(served) == 8


@pytest.mark.parametrize(
    ("given", "has_states", "expected"),
    [({}, True, 16), ({}, False, 0), ({"min_partial_tokens": 0}, True, 0)],
)
def test_parts_of_blocks_are_reused_by_default_where_there_are_states(
    given: dict[str, int], has_states: bool, expected: int
) -> None:
    options = Options.read(given).for_model([32], has_states=has_states)
    assert options.min_partial_tokens == expected
    assert Options.read(given).for_model([8], has_states=has_states).min_partial_tokens <= 8


# Draft tokens.

DRAFTED = spec(KINDS.MAMBA, mamba_cache_mode="align", num_speculative_blocks=2)
END = list(range(60, 80))  # of an answer


def verify(
    scheduler: Scheduler, served: Any, drafts: int, right: list[int]
) -> list[tuple[int, int]]:
    """A step with drafts, of which the first are right; the copies before it."""
    manager = scheduler.manager
    served.num_tokens = len(served._all_token_ids)
    manager.new_step_starts()
    added = manager.allocate_slots(served, 1 + drafts)
    assert added is not None
    pairs = zip(scheduler.tables[served.request_id], added.get_block_ids(), strict=True)
    scheduler.tables[served.request_id] = [old + new for old, new in pairs]
    copies, _ = manager.take_kv_cache_block_copies()
    served.num_computed_tokens += len(right)
    served._all_token_ids = [*served._all_token_ids, *right]
    served.num_tokens = len(served._all_token_ids)
    return [(copy.source, copy.destination) for copy in copies]


def answered(num_computed: int, **options: Any) -> tuple[Scheduler, Any]:
    """A request of which this many tokens are computed and one more is known."""
    scheduler = Scheduler(make(FULL, DRAFTED, **{"num_blocks": 99, **options}))
    served = request("a", [*TOKENS, *END][:num_computed])
    scheduler.compute(served)
    served._all_token_ids = [*TOKENS, *END][: num_computed + 1]
    return scheduler, served


def test_columns_name_the_slots_of_a_request_with_drafts_in_turn(vllm: None) -> None:
    scheduler, served = answered(10, min_partial_tokens=0)
    state = scheduler.tables["a"][1]
    assert len(state) == 3 + 2  # two behind that of the last token
    assert len({*state[:4]} - {0}) == 4
    assert state[4] == state[0]
    told = served._all_token_ids[-1:]
    for _ in range(3):
        verify(scheduler, served, 2, told)
    assert scheduler.tables["a"][1] == [*state[:4], *state[:2]]
    again = request("again", [*TOKENS[:9], 90, 91])
    [(_, copy)] = scheduler.chunk(again) or []
    assert scheduler.tables["again"][1][1] == copy  # the column of the last token that it found


def test_the_state_at_the_end_of_a_block_is_found_though_drafts_passed_it(vllm: None) -> None:
    scheduler, served = answered(10, min_partial_tokens=0)
    verify(scheduler, served, 2, END[2:5])  # right up to token 13, past 12
    copies = verify(scheduler, served, 2, END[5:6])
    assert [source for source, _ in copies] == [scheduler.tables["a"][1][2]]
    tokens = [*served._all_token_ids[:13], 90]
    assert scheduler.manager.get_computed_blocks(request("next", tokens))[1] == 12


def test_drafts_of_a_step_in_flight_are_not_right_yet(vllm: None) -> None:
    """With pipeline stages, others are planned while it is in flight."""
    scheduler, served = answered(10, min_partial_tokens=0)
    manager = scheduler.manager
    for known in (11, 12, 13):
        served._all_token_ids = [*TOKENS[:10], 80, 81, 82][:known]
        served.num_tokens = known
        manager.new_step_starts()
        assert manager.allocate_slots(served, 3) is not None
        manager.take_kv_cache_block_copies()
        served.num_computed_tokens, served.num_in_flight_tokens = known + 2, 3
        kept_in(manager)
        served.num_computed_tokens, served.num_in_flight_tokens = known, 0  # the drafts are wrong
    prompt = [*served._all_token_ids, 90]
    assert manager.get_computed_blocks(request("next", prompt))[1] == 12


def test_no_drafts_fill_up_a_step_that_loads_a_state_inside_a_block(vllm: None) -> None:
    """Its columns up to that of its last token name one slot, which a later step may write."""
    commits = make(FULL, DRAFTED, min_partial_tokens=0).commits
    for loaded, count in ((9, 1), (8, 3)):
        served = request("a", TOKENS[: loaded + 1])
        assert commits.clip_chunk(served, 3, num_external_computed_tokens=loaded) == count


def test_the_end_of_an_answer_is_found_up_to_its_last_drafts(vllm: None) -> None:
    scheduler, served = answered(16, min_partial_tokens=1)
    verify(scheduler, served, 2, END[:2])  # 17 tokens are in the state before the drafts
    assert served.num_computed_tokens == 18
    scheduler.manager.free(served)
    following = request("next", [*served._all_token_ids, 90])
    assert scheduler.manager.get_computed_blocks(following)[1] == 17
    scheduler.chunk(following)  # nobody else reads that state, so it is taken over
    assert scheduler.tables["next"][1][4] == scheduler.tables["a"][1][4]


def test_slots_for_drafts_count_where_blocks_are_counted(vllm: None) -> None:
    manager = make(FULL, DRAFTED, num_blocks=1 + 5 + 4)
    assert needed(manager, "a", 3, capped=True) == 1 + 4
    served = request("a", TOKENS)
    manager.new_step_starts()
    assert manager.allocate_slots(served, 16) is not None
    assert manager.block_pool.get_num_free_blocks() == 1
    assert needed(manager, "a", 19, capped=True) == 1
    assert manager.allocate_slots(request("b", [50]), 1) is None
    manager.take_kv_cache_block_copies()
    manager.free(served)
    assert manager.block_pool.get_num_free_blocks() == 9


def test_a_draft_head_finds_a_state_if_the_token_behind_it_is_cached(vllm: None) -> None:
    manager = make(FULL, DRAFTED, num_blocks=99, use_eagle=True, min_partial_tokens=1)
    scheduler = Scheduler(manager)
    scheduler.run("first", TOKENS)
    behind = ([*TOKENS, 90], TOKENS, [*TOKENS[:17], 90], TOKENS[:17])
    for tokens, found in (*((each, 16) for each in behind), ([*TOKENS[:16], 90], 0)):
        assert manager.get_computed_blocks(request("next", tokens))[1] == found


def test_without_parts_of_blocks_a_draft_head_needs_the_block_behind_a_state(vllm: None) -> None:
    manager = make(FULL, DRAFTED, num_blocks=99, use_eagle=True, min_partial_tokens=0)
    served = request("first", TOKENS[:17])
    assert Scheduler(manager).compute(served) == [12, 17]
    assert manager.get_computed_blocks(request("next", TOKENS[:16]))[1] == 12
    manager.free(served)  # no state is behind that block
    assert manager.get_computed_blocks(request("next", TOKENS))[1] == 0


def test_a_draft_head_finds_the_states_that_its_prompts_left(vllm: None) -> None:
    manager = make(FULL, DRAFTED, num_blocks=99, use_eagle=True, min_partial_tokens=0)
    scheduler = Scheduler(manager)
    assert scheduler.compute(request("first", TOKENS)) == [12, 19]
    other = [*TOKENS[:17], 90, 91, 92]  # the last block that it shares is computed again
    assert manager.get_computed_blocks(request("next", other))[1] == 12
    parts = [*TOKENS[:8], *range(70, 80)]
    assert scheduler.compute(request("second", parts)) == [4, 12, 18]
    assert manager.get_computed_blocks(request("third", [*TOKENS[:8], 99]))[1] == 4


def kept_in(manager: Any) -> dict[str, list[tuple[int, int, int]]]:
    """Begins a step and plans nothing; returns the states that are handed to a connector."""
    manager.new_step_starts()
    kept: dict[str, list[tuple[int, int, int]]] = manager.take_boundary_state_offloads()
    copies, _ = manager.take_kv_cache_block_copies()
    assert {block for some in kept.values() for _, block, _ in some} <= {b for _, b in copies}
    return kept


def test_a_connector_is_told_which_block_keeps_a_state(vllm: None) -> None:
    scheduler = Scheduler(make(STATE, FULL, STATE, num_blocks=99, min_partial_tokens=0), budget=8)
    manager, served = scheduler.manager, request("a", TOKENS)
    scheduler.chunk(served)
    first, _, second = scheduler.tables["a"]
    kept = kept_in(manager)
    assert [(group, stop) for group, _, stop in kept["a"]] == [(0, 8), (2, 8)]
    assert not {block for _, block, _ in kept["a"]} & {*first, *second}
    assert kept_in(manager) == {}  # the state has not moved
    scheduler.chunk(served)
    manager.new_step_starts()
    manager.free(served)  # its blocks go back before the step's copies run
    assert manager.take_boundary_state_offloads() == {}
    manager.take_kv_cache_block_copies()
    assert manager.finalize_partial_tail_offloads(served) == []


def load(manager: Any, served: Any, num_tokens: int, found: int = 0) -> None:
    """Begins a load for which the request waits."""
    manager.new_step_starts()
    blocks = manager.get_computed_blocks(served)[0]
    taken = manager.allocate_slots(
        served, 0, found, blocks, 0, num_tokens - found, delay_cache_blocks=True
    )
    assert taken is not None
    served.num_computed_tokens = num_tokens
    manager.take_kv_cache_block_copies()


@pytest.mark.parametrize("drafts", [0, 1])
def test_a_state_is_loaded_into_the_first_column_that_names_a_block(
    vllm: None, drafts: int
) -> None:
    state = spec(KINDS.MAMBA, mamba_cache_mode="align", num_speculative_blocks=drafts)
    manager, served = make(FULL, state, num_blocks=99, min_partial_tokens=0), request("a", TOKENS)
    load(manager, served, 12)
    full, columns = manager.get_block_ids("a")
    assert len(columns) >= len(full) == 3
    assert columns[:2] == [0, 0] != columns[2:3]
    assert 0 not in [*full, *columns[2:]]
    assert columns[2] == manager.manager.group_table(1)[0][0]  # where the manager expects it
    assert manager.get_blocks("a").blocks[1][2].block_hash is None  # nobody finds it yet


def test_a_state_that_was_loaded_is_found(vllm: None) -> None:
    scheduler = Scheduler(make(FULL, STATE, num_blocks=99, min_partial_tokens=0))
    manager, served = scheduler.manager, request("a", TOKENS)
    load(manager, served, 12)
    assert kept_in(manager) == {}  # it is not there yet
    manager.commits.finished_loads = lambda: {"a", "gone"}
    [(_, block, stop)] = kept_in(manager)["a"]
    assert (block in manager.get_block_ids("a")[1], stop) == (False, 12)
    other = request("b", [*TOKENS[:14], *range(50, 60)])
    assert manager.get_computed_blocks(other)[1] == 12
    scheduler.tables["a"] = list(manager.get_block_ids("a"))
    assert scheduler.compute(served) == [16, 19]


def test_a_state_that_its_own_step_loads_is_not_copied_before(vllm: None) -> None:
    """The copies of a step run before a load for which the request does not wait."""
    manager, served = make(FULL, STATE, num_blocks=99, min_partial_tokens=0), request("a", TOKENS)
    manager.new_step_starts()
    blocks = manager.empty_kv_cache_blocks
    assert manager.allocate_slots(served, 3, 0, blocks, 0, 16) is not None
    assert manager.take_kv_cache_block_copies()[0] == []
    served.num_computed_tokens = 19
    assert kept_in(manager) == {}
    assert manager.get_computed_blocks(request("b", [*TOKENS[:18], 99]))[1] == 0
    manager.manager.check_invariants()


@pytest.mark.parametrize("end", [13, 17, 19])
def test_a_state_that_its_own_step_loads_is_where_the_forward_reads(vllm: None, end: int) -> None:
    """Workers bring states to the columns of a step before they begin its loads."""
    manager, served = make(FULL, DRAFTED, num_blocks=99, min_partial_tokens=0), request("a", TOKENS)
    manager.new_step_starts()
    empty = manager.empty_kv_cache_blocks
    assert manager.allocate_slots(served, end - 12, 0, empty, 0, 12) is not None
    _, columns = manager.get_block_ids("a")
    now = (end - 1) // 4
    assert columns[:2] == [0, 0]
    assert columns[2] == columns[now]  # the load writes column 2, and the forward reads the other
    written = columns[max(3, now - 1) : now + 3]  # with a checkpoint before, and two drafts
    assert len({*written} - {0}) == len(written)


def test_a_state_is_kept_in_the_step_in_which_another_one_is_loaded(vllm: None) -> None:
    """With slots for drafts, the commit of what ran before is closed before that of the load."""
    scheduler, served = answered(10, min_partial_tokens=0)
    manager = scheduler.manager
    load(manager, request("b", list(range(80, 99))), 16)  # a stop, so its commit plans a copy
    verify(scheduler, served, 2, END[2:4])  # 12 tokens are computed, and 11 were known
    manager.commits.finished_loads = lambda: {"b"}
    kept = kept_in(manager)
    assert {name: [stop for _, _, stop in some] for name, some in kept.items()} == {
        "a": [12],
        "b": [16],
    }


def test_a_load_that_failed_has_not_finished(vllm: None) -> None:
    scheduler = SimpleNamespace(
        finished_recving_kv_req_ids={"good", "bad"}, failed_recving_kv_req_ids={"bad"}
    )
    assert plugin._finished_loads(scheduler) == {"good"}


def test_a_load_that_fails_leaves_nothing(vllm: None) -> None:
    manager, served = make(FULL, STATE, num_blocks=99, min_partial_tokens=0), request("a", TOKENS)
    load(manager, served, 12)
    manager.new_step_starts()
    manager.free(served)
    manager.take_kv_cache_block_copies()
    assert manager.get_computed_blocks(request("b", TOKENS))[1] == 0
    manager.manager.check_invariants()


def test_a_prompt_does_not_wait_for_a_state_before_what_it_loads(vllm: None) -> None:
    manager = make(FULL, STATE, num_blocks=99, min_partial_tokens=0)
    first, second = request("first", TOKENS[:9]), request("second", [*TOKENS[:17], 90])
    manager.new_step_starts()
    assert manager.allocate_slots(first, manager.commits.clip_chunk(first, 9)) is not None
    empty = manager.empty_kv_cache_blocks
    assert manager.allocate_slots(second, 4, 0, empty) is None
    assert manager.allocate_slots(second, 4, 0, empty, 0, 12) is not None


def test_blocks_of_a_request_that_is_preempted_in_its_step_are_not_zeroed(vllm: None) -> None:
    manager = make(FULL, STATE, num_blocks=99, zeroes=True, min_partial_tokens=0)
    first, second = request("first", TOKENS), request("second", list(range(30, 44)))
    manager.new_step_starts()
    for served in (first, second):
        assert manager.allocate_slots(served, served.num_tokens) is not None
    manager.free(second)
    manager.take_kv_cache_block_copies()
    assert manager.take_new_block_ids() == manager.get_block_ids("first")[0]
