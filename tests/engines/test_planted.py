"""The fuzz of vLLM's scheduler can fail: bugs planted in the port are found.

Run where vLLM is installed (``tests/engines/run``); elsewhere it is skipped. The model is a folder
named by ``BLOCKMGR_TINY_MODEL``.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM: see tests/engines/run")

from blockmgr import BlockManager, ChunkedAttention, RecurrentState, Ring, SlidingWindow
from blockmgr.ports.vllm import (
    commits,
    held,
    layers,
    manager,
    plugin,
    prompts,
    states,
    support,
    tables,
)
from blockmgr.ports.vllm.options import Options
from blockmgr.ports.vllm.slots import Slots, WholeState
from tests.engines.fuzz import are_clearly_less, compared, decided_alike
from tests.engines.layers import HAS_RINGS
from tests.engines.world import More, World, draw

MODEL = os.environ.get("BLOCKMGR_TINY_MODEL", "")
pytestmark = pytest.mark.skipif(not MODEL, reason="BLOCKMGR_TINY_MODEL names no model")
SEEDS = 12
needs_rings = pytest.mark.skipif(not HAS_RINGS, reason="this vLLM has no rings")


def wrong_runs(
    options: dict[str, Any],
    kind: str = "full",
    policy: str = "fcfs",
    *,
    sized: bool = False,
    remote: bool = False,
    drafts: str = "",
    asynchronous: bool = False,
) -> int:
    """Runs that read K/V of another request, or end in an error."""
    wrong = 0
    for seed in range(SEEDS):
        lossless = kind != "full"
        settings = draw(
            seed,
            MODEL,
            policy,
            asynchronous,
            options,
            kind=kind,
            drafts=drafts,
            lossless=lossless,
            sized=sized,
            remote=remote,
        )
        try:
            tally = World(settings).run()
        except Exception:
            wrong += 1
        else:
            wrong += bool(tally.wrong)
    return wrong


def test_the_port_itself_is_clean() -> None:
    assert wrong_runs({"min_partial_tokens": 1, "debug": 1}) == 0


def test_tokens_that_most_seeds_lack_are_told_from_chance() -> None:
    assert are_clearly_less([-10, -11, -9] * 7)
    assert not are_clearly_less([-100, 90] * 10)


def test_a_salt_that_is_passed_over_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "namespace", lambda request: b"")
    assert wrong_runs({}) > 0


def test_copies_that_are_not_made_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    take = manager.KVCacheManager.take_kv_cache_block_copies

    def lose(self: Any) -> Any:
        take(self)
        return [], []

    monkeypatch.setattr(manager.KVCacheManager, "take_kv_cache_block_copies", lose)
    assert wrong_runs({"min_partial_tokens": 1}) > 0


def test_blocks_that_turned_out_wrong_and_stay_cached_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(manager.KVCacheManager, "evict_blocks", lambda self, block_ids: None)
    assert wrong_runs({}) > 0


def test_a_table_that_lacks_a_block_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    grow = manager.KVCacheManager._grow

    def too_far(self: Any, held: Any, slots: int) -> bool:
        has_grown: bool = grow(self, held, slots)
        held.num_slots += self.block_size
        return has_grown

    monkeypatch.setattr(manager.KVCacheManager, "_grow", too_far)
    assert wrong_runs({}) > 0


def runs_that_differ() -> tuple[int, int]:
    """Differences from vLLM with one copy of each block, and from unchanged vLLM."""
    from_one_copy = from_stock = 0
    for seed in range(SEEDS):
        ours, stock, one_copy = compared(seed, MODEL, "fcfs", False, {})
        from_one_copy += not decided_alike(ours, one_copy)
        from_stock += not decided_alike(ours, stock)
    return from_one_copy, from_stock


def test_schedules_are_vllms_but_for_its_second_copies() -> None:
    from_one_copy, from_stock = runs_that_differ()
    assert from_one_copy == 0
    assert from_stock > 0


def test_a_block_that_is_not_found_changes_a_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    find = manager.KVCacheManager.get_computed_blocks

    def one_less(self: Any, request: Any, *arguments: Any) -> Any:
        blocks, num_tokens, boundary = find(self, request, *arguments)
        if len(blocks.by_group[0]) < 3:
            return blocks, num_tokens, boundary
        kept = self.truncate_computed_blocks(blocks, num_tokens - self.block_size)
        return kept, num_tokens - self.block_size, boundary

    monkeypatch.setattr(manager.KVCacheManager, "get_computed_blocks", one_less)
    from_one_copy, _ = runs_that_differ()
    assert from_one_copy > 0


@pytest.mark.parametrize("kind", ["window", "chunk", "state", "bare", "bare, state"])
def test_the_port_is_clean_with_groups(kind: str) -> None:
    assert wrong_runs({"min_partial_tokens": 1, "debug": 1}, kind) == 0


@pytest.mark.parametrize("kind", ["window", "state"])
def test_the_port_is_clean_with_blocks_of_different_sizes(kind: str) -> None:
    assert wrong_runs({"min_partial_tokens": 1, "debug": 1}, kind, sized=True) == 0


def test_entries_counted_in_blocks_of_another_size_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fewer(self: Any, num_slots: int) -> int:
        count: int = -(-num_slots // (2 * self.block_size))
        return count

    monkeypatch.setattr(layers.Layers, "num_entries", fewer)
    assert wrong_runs({}, "window", sized=True) > 0


@pytest.mark.parametrize("kind", ["window", "chunk", "state", "bare"])
def test_a_table_that_changes_is_noticed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Options.config

    def remapping(self: Any, **named: Any) -> Any:
        return config(self, **named, dedup="remap")

    monkeypatch.setattr(Options, "config", remapping)
    assert wrong_runs({}, kind) > 0


@pytest.mark.parametrize("kind", ["window", "chunk", "bare"])
def test_layers_that_are_thought_to_read_less_are_noticed(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = layers.group_of

    def less(spec: Any, block_size: int | None = None) -> Any:
        group = real(spec, block_size)
        if isinstance(group, SlidingWindow):
            return SlidingWindow(max(1, group.width - 1))
        return ChunkedAttention(2) if isinstance(group, ChunkedAttention) else group

    monkeypatch.setattr(layers, "group_of", less)
    assert wrong_runs({}, kind) > 0


@pytest.mark.parametrize("kind", ["window", "state"])
def test_copies_that_are_made_in_one_group_alone_are_noticed(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = manager.KVCacheManager.take_kv_cache_block_copies

    def lose(self: Any) -> Any:
        copies, kept = take(self)
        return copies[::2], kept

    monkeypatch.setattr(manager.KVCacheManager, "take_kv_cache_block_copies", lose)
    assert wrong_runs({"min_partial_tokens": 1}, kind) > 0


def test_a_state_that_is_told_to_be_at_the_last_block_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    up_to = states.StateCommits.up_to

    def whole_blocks(self: Any, held: Any, num_computed: int) -> None:
        up_to(self, held, num_computed - num_computed % self._block_size)

    def whole_chunk(self: Any, request: Any, num_new_tokens: int, *found: int) -> int:
        return num_new_tokens

    monkeypatch.setattr(states.StateCommits, "up_to", whole_blocks)
    monkeypatch.setattr(states.StateCommits, "clip_chunk", whole_chunk)
    assert wrong_runs({}, "state") > 0


def test_a_state_that_moves_unseen_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = states.StateCommits
    up_to = kind.up_to

    def without_news(self: Any, held: Any, num_computed: int) -> None:
        held.next_commit = self._next_commit(held)
        if num_computed >= held.next_commit:
            up_to(self, held, num_computed)

    # Otherwise few states are cached at the end of a request alone.
    monkeypatch.setattr(kind, "_is_scarce", lambda self: False)
    monkeypatch.setattr(BlockManager, "cache_state", lambda self, handle: False)
    assert wrong_runs({"min_partial_tokens": 1}, "state", "priority") == 0
    monkeypatch.setattr(kind, "up_to", without_news)
    assert wrong_runs({"min_partial_tokens": 1}, "state", "priority") > 0


def test_states_that_are_committed_while_they_move_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    up_to = states.StateCommits.up_to

    def in_advance(self: Any, held: Any, num_computed: int) -> None:
        up_to(self, held, num_computed)
        self._manager.cache_state(held.handle)

    monkeypatch.setattr(states.StateCommits, "up_to", in_advance)
    assert wrong_runs({}, "state") > 0


def test_a_state_in_one_column_only_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = tables.Tables.blocks

    def last_only(self: Any, held: Any, start: int = 0) -> Any:
        found = blocks(self, held, start)
        groups = zip(self._layers, found.by_group, strict=True)
        found.by_group = tuple(
            [0] * (len(ids) - 1) + ids[-1:] if layers.has_states else ids for layers, ids in groups
        )
        return found

    monkeypatch.setattr(tables.Tables, "blocks", last_only)
    assert wrong_runs({}, "state") > 0


PARTIAL = {"min_partial_tokens": 1, "debug": 1}


@pytest.mark.parametrize("drafts", ["ngram", "eagle"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_port_is_clean_with_states_and_drafts(drafts: str, asynchronous: bool) -> None:
    assert wrong_runs(PARTIAL, "state", drafts=drafts, asynchronous=asynchronous) == 0


def runs_with_checkpoints() -> int:
    """Wrong runs of a model whose forwards of prompts write states on their way, as Mamba2's."""
    wrong = 0
    for seed in range(SEEDS):
        settings = draw(seed, MODEL, "fcfs", False, PARTIAL, kind="state", lossless=True)
        settings = replace(settings, checkpoints=True, num_blocks=settings.num_blocks + 50)
        wrong += bool(World(settings).run().wrong)
    return wrong


def test_states_that_a_forward_writes_on_its_way_need_a_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert runs_with_checkpoints() == 0
    real = layers.group_of

    def one_slot(spec: Any, block_size: int | None = None) -> Any:
        group = real(spec, block_size)
        return RecurrentState() if isinstance(group, RecurrentState) else group

    monkeypatch.setattr(layers, "group_of", one_slot)
    assert runs_with_checkpoints() > 0


def test_a_slot_for_each_draft_alone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_few(self: Slots, column: int) -> int:
        return (column - self.first) % (1 + self.drafts)

    monkeypatch.setattr(Slots, "slot_of", too_few)
    assert wrong_runs(PARTIAL, "state", drafts="ngram") > 0


def runs_of_conversations() -> int:
    """Wrong runs with drafts in which most prompts continue an answer."""
    wrong = 0
    for seed in range(SEEDS):
        settings = draw(
            seed, MODEL, "fcfs", False, PARTIAL, kind="state", lossless=True, drafts="ngram"
        )
        wrong += bool(World(replace(settings, talkative=True)).run().wrong)
    return wrong


def test_the_state_after_right_drafts_is_not_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    assert runs_of_conversations() == 0

    def after_drafts(self: Slots, num_tokens: int, least: int, end: int) -> None:
        column = (self.computed + num_tokens - 1) // self.size
        self.state, self.computed = WholeState(end, column + end - least), end

    monkeypatch.setattr(Slots, "_move", after_drafts)
    assert runs_of_conversations() > 0


def test_a_state_that_a_step_in_flight_overwrites_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Slots, "known", lambda self: self.state)
    assert wrong_runs(PARTIAL, "state", drafts="ngram", asynchronous=True) > 0


@pytest.mark.parametrize("kind", ["full", "window", "chunk", "state"])
def test_the_port_is_clean_with_a_connector(kind: str) -> None:
    assert wrong_runs({"debug": 1}, kind, remote=True) == 0


@pytest.mark.parametrize("drafts", ["", "ngram"])
def test_the_port_is_clean_with_a_connector_of_states_that_runs_ahead(drafts: str) -> None:
    assert wrong_runs({}, "state", remote=True, drafts=drafts, asynchronous=True) == 0


def test_a_connector_that_stores_the_running_state_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def offer(self: states.StateCommits, copies: Any) -> None:
        kept, self._kept = self._kept, []
        for each, num_tokens in kept:
            if self._is_live(each):
                ids = self._manager.group_table(self._groups[0])[each.handle & held.ROW]
                offers = [(self._groups[0], int(ids[0]), num_tokens)]
                self._offers[each.request.request_id] = offers

    monkeypatch.setattr(states.StateCommits, "_offer", offer)
    assert wrong_runs({}, "state", remote=True) > 0


def test_a_loaded_state_that_columns_before_name_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blocks = tables.Tables.blocks

    def named(self: Any, each: held.Held, start: int = 0) -> Any:
        return blocks(self, replace(each, num_before=0), start)

    monkeypatch.setattr(tables.Tables, "blocks", named)
    assert wrong_runs({}, "state", remote=True) > 0


def test_a_state_that_is_brought_to_another_column_before_its_load_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert wrong_runs({}, "state", remote=True, drafts="ngram") == 0
    monkeypatch.setattr(Slots, "load_in_step", lambda self, end: None)
    assert wrong_runs({}, "state", remote=True, drafts="ngram") > 0


@pytest.mark.parametrize("kind", ["full", "window"])
def test_a_load_that_counts_as_done_when_it_begins_is_noticed(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at_once(num_found: int, num_loaded: int, end: int, waits: bool) -> held.Hit:
        return held.Hit(num_found, num_loaded, end, False)

    monkeypatch.setattr(manager, "Hit", at_once)
    assert wrong_runs({}, kind, remote=True) > 0


def test_a_window_that_begins_behind_what_is_loaded_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admit = BlockManager.admit

    def later(self: Any, prompt: Any, *, num_loaded_tokens: int = 0, **named: Any) -> int:
        most = min(len(prompt), named["num_slots"])
        more = min(most, num_loaded_tokens + 2) if num_loaded_tokens else 0
        return admit(self, prompt, num_loaded_tokens=more, **named)

    monkeypatch.setattr(BlockManager, "admit", later)
    assert wrong_runs({}, "window", remote=True) > 0


@needs_rings
@pytest.mark.parametrize("kind", ["ring", "ring, state"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_port_is_clean_with_rings(kind: str, asynchronous: bool) -> None:
    assert wrong_runs({"debug": 1}, kind, asynchronous=asynchronous) == 0


@needs_rings
def test_a_ring_that_workers_zero_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_all(self: Any, held: Any, start: int, *, is_new: bool = False) -> list[int]:
        pairs = zip(self.blocks(held).by_group, self._layers, strict=True)
        rings = [block for ids, each in pairs if each.is_ring for block in ids]
        return rings + real(self, held, start, is_new=is_new)

    real = tables.Tables.ids_to_zero
    monkeypatch.setattr(tables.Tables, "ids_to_zero", of_all)
    assert wrong_runs({}, "ring, state") > 0


@needs_rings
def test_a_prompt_that_begins_inside_a_ring_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = layers.group_of

    def anywhere(spec: Any, block_size: int | None = None) -> Any:
        group = real(spec, block_size)
        return Ring(group.width) if isinstance(group, Ring) else group

    monkeypatch.setattr(support, "_of_partial_tokens", lambda *arguments: iter(()))
    assert wrong_runs({"min_partial_tokens": 1}, "ring") == 0
    monkeypatch.setattr(layers, "group_of", anywhere)
    assert wrong_runs({"min_partial_tokens": 1}, "ring") > 0


@needs_rings
@pytest.mark.parametrize("kind", ["again", "again, ring"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_port_is_clean_with_windows_that_are_computed_again(
    kind: str, asynchronous: bool
) -> None:
    assert wrong_runs({"debug": 1}, kind, asynchronous=asynchronous) == 0


@needs_rings
@pytest.mark.parametrize("again", [None, 1])
def test_a_window_that_is_computed_again_in_part_is_noticed(
    again: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = layers.group_of

    def less(spec: Any, block_size: int | None = None) -> Any:
        group = real(spec, block_size)
        if not isinstance(group, SlidingWindow):
            return group
        if again is None:  # it is found instead
            return SlidingWindow(group.width)
        return replace(group, width=1, replay=again)

    monkeypatch.setattr(layers, "group_of", less)
    assert wrong_runs({}, "again") > 0


@pytest.mark.parametrize("kind", ["window", "bare"])
def test_a_load_into_a_block_that_a_step_in_flight_reads_is_noticed(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    assert wrong_runs({}, kind, remote=True, asynchronous=True) == 0

    def at_once(scheduler: Any, blocks: list[int]) -> None:
        pool = scheduler.kv_cache_manager.block_pool
        pool.free_blocks([pool.blocks[block] for block in blocks])

    monkeypatch.setattr(plugin, "_free_later", at_once)
    assert wrong_runs({}, kind, remote=True, asynchronous=True) > 0


def test_a_load_that_overtakes_a_copy_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wrong_runs({}, "state", drafts="ngram", remote=True, asynchronous=True) == 0
    take = manager.KVCacheManager.take_kv_cache_block_copies

    def keep_none(self: Any) -> Any:
        taken = take(self)
        self.commits.let_go()
        return taken

    monkeypatch.setattr(manager.KVCacheManager, "take_kv_cache_block_copies", keep_none)
    assert wrong_runs({}, "state", drafts="ngram", remote=True, asynchronous=True) > 0


def test_a_block_that_is_sent_and_given_to_others_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert wrong_runs({}, "window", remote=True) == 0
    monkeypatch.setattr(commits.Commits, "hand_over", lambda self, held: None)
    assert wrong_runs({}, "window", remote=True) > 0


def runs_with_stages() -> int:
    """Wrong runs in which steps with drafts are in flight while others are planned."""
    wrong = 0
    for seed in range(3 * SEEDS):
        settings = draw(seed, MODEL, "fcfs", False, {}, lossless=True, kind="state", drafts="ngram")
        wrong += bool(World(replace(settings, more=More(stages=2))).run().wrong)
    return wrong


def test_a_draft_in_flight_that_counts_as_right_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert runs_with_stages() == 0
    monkeypatch.setattr(states.StateCommits, "_num_right", lambda self, r: r.num_computed_tokens)
    assert runs_with_stages() > 0


def runs_that_read_what_failed() -> int:
    """Wrong runs in which loads of a step fail."""
    wrong = 0
    for seed in range(26, 32):
        settings = draw(seed, MODEL, "fcfs", False, {}, lossless=True, remote=True)
        settings = replace(settings, more=More(fails_in_step=True))
        wrong += bool(World(settings).run().wrong)
    return wrong


def test_a_failed_load_that_stays_cached_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert runs_that_read_what_failed() == 0
    monkeypatch.setattr(manager.KVCacheManager, "forget_failed", lambda self, names: None)
    assert runs_that_read_what_failed() > 0
