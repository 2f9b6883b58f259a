"""The engine with tiers: tokens as without, also from damaged files, and more cached tokens."""

from __future__ import annotations

import copy
import itertools
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.ports.engine_models import VOCAB, engine_of, greedy_truth, model_of, tokens_of
from tests.ports.test_engine_groups import GROUPS, WITH_STATES

import torch  # isort: skip  (engine_models skips this file where there is none)

from blockmgr.errors import ReentrancyError
from blockmgr.ports.engine import Engine, Sampling
from blockmgr.tiers import (
    DiskTier,
    HostTier,
    MooncakeTier,
    SharedStorage,
    Slab,
    SlabHeldError,
    SlabMismatchError,
)
from blockmgr.tiers.storages import Storage
from tests.tiers.fake_store import FakeStore

NEW = 4
GREEDY = Sampling(max_new_tokens=NEW)
LENGTH = 60
ROOM = 2**20


def first_turns(count: int = 4) -> list[list[int]]:
    random = torch.Generator().manual_seed(7)
    return torch.randint(0, VOCAB, (count, LENGTH), generator=random).tolist()


def disk(folder: Path, **options: Any) -> DiskTier:
    return DiskTier(path=folder / "kv.slab", bytes_to_use=ROOM, **options)


def host_and(last: Any, *, has_host: bool) -> list[Any]:
    """Tiers that end in this one."""
    return [HostTier(bytes_to_use=ROOM), last] if has_host else [last]


def tiered(*tiers: Any, num_blocks: int = 20, **options: Any) -> Engine:
    """An engine whose device holds one conversation at a time."""
    return engine_of(num_blocks=num_blocks, block_size=4, tiers=tiers, **options)


def settle(engine: Engine) -> None:
    """Waits for the transfers, so that what is found does not depend on the speed of threads."""
    if engine._tiers is not None:
        engine._tiers._mover.drain()


def talk(engine: Engine, turns: int = 2) -> tuple[list[list[int]], list[int]]:
    """Conversations in turn: the tokens of each answer, and the cached tokens of each prompt."""
    prompts, answers, cached = first_turns(), [], []
    for _ in range(turns):
        for prompt in prompts:
            [found] = engine.generate([prompt], GREEDY)
            settle(engine)
            answers.append(found.tokens)
            cached.append(found.num_cached_tokens)
            prompt += [*found.tokens, 1, 2, 3]
    engine.manager.check_invariants()
    return answers, cached


@pytest.fixture(scope="module")
def truth() -> tuple[list[list[int]], list[int]]:
    return talk(tiered(num_blocks=20, prefix_caching=False))


@pytest.mark.parametrize("kind", ["host", "disk", "both"])
def test_second_turns_come_from_tiers_after_their_eviction(
    kind: str, tmp_path: Path, truth: Any
) -> None:
    _, alone = talk(tiered())
    assert sum(alone[4:]) == 0  # evicted, and computed again
    tiers = {
        "host": [HostTier(bytes_to_use=ROOM)],
        "disk": [disk(tmp_path)],
        "both": [HostTier(bytes_to_use=96 * 1024), disk(tmp_path)],
    }[kind]
    engine = tiered(*tiers)
    answers, cached = talk(engine)
    assert answers == truth[0]
    assert cached[4:] == [60] * 4
    engine.close()


def test_the_next_process_finds_the_slab(tmp_path: Path, truth: Any) -> None:
    engine = tiered(disk(tmp_path))
    talk(engine)
    with pytest.raises(SlabHeldError):
        tiered(disk(tmp_path))
    engine.close()
    again = tiered(disk(tmp_path))
    answers, cached = talk(again)
    assert answers == truth[0]
    assert cached[:4] == [56] * 4
    again.close()


def test_a_damaged_slab_costs_hits_and_never_tokens(tmp_path: Path, truth: Any) -> None:
    engine = tiered(disk(tmp_path))
    talk(engine)
    engine.close()
    data = bytearray((tmp_path / "kv.slab").read_bytes())
    for at in range(len(data) - 2 * ROOM, len(data), 512):
        data[at] ^= 1
    (tmp_path / "kv.slab").write_bytes(data)
    again = tiered(disk(tmp_path))
    answers, cached = talk(again, turns=1)
    assert answers == truth[0][:4]
    assert sum(cached) == 0
    [stats] = again.manager.tier_stats()
    assert stats.refused == 4
    again.close()


@pytest.mark.parametrize(
    ("name", "num_blocks"),
    [("Llama", 40), ("Gemma3Text", 60), ("Llama4Text", 40), ("Qwen3Next", 40)],
)
def test_all_at_once_gives_the_same_tokens(name: str, num_blocks: int) -> None:
    prompts = first_turns(8)
    size = None if name in WITH_STATES else 4
    tiers = [HostTier(bytes_to_use=16 * ROOM)]
    engine = engine_of(name, num_blocks=num_blocks, block_size=size, tiers=tiers)
    for _ in range(3):
        found = engine.generate(prompts, GREEDY)
        settle(engine)
        assert tokens_of(found) == greedy_truth(name, prompts, max_new_tokens=NEW)
    assert engine.manager.tier_stats()[0].loaded > 0
    engine.manager.check_invariants()


@pytest.mark.parametrize("options", [{"wait_for_computing": True}, {"chunk_size": 7}], ids=str)
def test_prompts_that_share_a_stored_prefix_give_the_same_tokens(options: dict[str, Any]) -> None:
    [prefix] = first_turns(1)
    prompts = [[*prefix, i, i + 1] for i in range(6)]
    engine = tiered(HostTier(bytes_to_use=ROOM), num_blocks=30, **options)
    for _ in range(2):
        found = engine.generate(prompts, GREEDY)
        assert tokens_of(found) == greedy_truth("Llama", prompts, max_new_tokens=NEW)
        engine.generate(first_turns(2)[1:], GREEDY)


def test_a_model_that_changed_finds_nothing_of_before(tmp_path: Path) -> None:
    engine = tiered(HostTier(bytes_to_use=2**16), disk(tmp_path))
    talk(engine)
    engine.reset()
    prompts = first_turns()
    assert [engine.generate([p], GREEDY)[0].num_cached_tokens for p in prompts] == [0] * 4
    engine.close()
    again = tiered(HostTier(bytes_to_use=2**16), disk(tmp_path))
    assert [again.generate([p], GREEDY)[0].num_cached_tokens for p in prompts] == [0] * 4
    again.close()


def test_a_slab_of_other_weights_is_refused(tmp_path: Path) -> None:
    tiered(disk(tmp_path)).close()
    model = copy.deepcopy(model_of("Llama"))
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[0, 0] += 1
    with pytest.raises(SlabMismatchError, match="weights"):
        Engine(model, num_blocks=20, block_size=4, tiers=[disk(tmp_path)])


@pytest.mark.parametrize("part", ["forward", "copy"])
def test_a_step_that_fails_leaves_no_k_v_behind_and_tiers_as_they_were(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, truth: Any
) -> None:
    engine = tiered(disk(tmp_path))
    talk(engine, turns=1)

    def fail(_: Any) -> None:
        raise RuntimeError("stop")

    with monkeypatch.context() as patch:
        patch.setattr(engine.model if part == "forward" else engine.model.cache, part, fail)
        with pytest.raises(RuntimeError, match="stop"):
            engine.generate(first_turns(), GREEDY)
    assert not engine.manager.handles()
    assert engine.manager.stats().cached_blocks == 0
    # The slab has nothing of that step, and what it gets from here on stays.
    answers, cached = talk(engine, turns=1)
    assert (answers, cached) == (truth[0][:4], [56] * 4)
    engine.generate([[9] * 21], GREEDY)
    engine.close()
    again = tiered(disk(tmp_path))
    assert again.generate([[9] * 21], GREEDY)[0].num_cached_tokens == 20
    assert talk(again, turns=1) == (answers, cached)
    again.close()


class Held(Storage):
    """A storage whose reads wait until they may go on."""

    def __init__(self, storage: Storage) -> None:
        self.write = storage.write
        self._storage = storage
        self.may_read = threading.Event()

    def read(self, *args: Any) -> bytes | None:
        assert self.may_read.wait(60)
        return self._storage.read(*args)


@pytest.mark.parametrize("num_blocks", [20, 40])
def test_a_request_computes_what_tiers_do_not_bring_in_time(
    num_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiered(HostTier(bytes_to_use=ROOM), num_blocks=num_blocks, load_timeout=0.01)
    talk(engine, turns=1)
    assert engine._tiers is not None
    held = Held(engine._tiers._mover._storages[0])
    engine._tiers._mover._storages = (held,)
    waits, wait = itertools.count(), engine._tiers.wait

    def counted() -> None:
        if next(waits) == 3:  # in the small pool, nothing else gives back the blocks of the load
            held.may_read.set()
        wait()

    monkeypatch.setattr(engine._tiers, "wait", counted)
    prompts = first_turns()
    found = engine.generate(prompts[:1], GREEDY)
    assert tokens_of(found) == greedy_truth("Llama", prompts[:1], max_new_tokens=NEW)
    assert found[0].num_cached_tokens == 0
    held.may_read.set()
    settle(engine)
    assert not engine.manager.handles()
    assert engine.manager.num_available == num_blocks
    engine.close()


def test_prompts_in_the_queue_are_copied_from_disk_to_memory(tmp_path: Path) -> None:
    prompts = first_turns()
    engine = tiered(HostTier(bytes_to_use=ROOM), disk(tmp_path))
    talk(engine, turns=1)
    engine.close()
    again = tiered(HostTier(bytes_to_use=ROOM), disk(tmp_path))
    found = again.generate(prompts, GREEDY)
    assert tokens_of(found) == greedy_truth("Llama", prompts, max_new_tokens=NEW)
    _, slab = again.manager.tier_stats()
    assert slab.promoted > 0
    again.close()


def test_a_request_that_is_aborted_leaves_an_engine_that_works() -> None:
    engine = tiered(HostTier(bytes_to_use=ROOM))
    talk(engine, turns=1)

    def fail(_: Any) -> None:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        engine.generate(first_turns(), GREEDY, on_token=fail)
    prompts = first_turns()
    assert tokens_of(engine.generate(prompts, GREEDY)) == greedy_truth(
        "Llama", prompts, max_new_tokens=NEW
    )
    assert not engine.manager.handles()


@pytest.mark.parametrize(
    ("tiers", "error", "words"),
    [
        (["host"], TypeError, "tiers must have HostTier, DiskTier and MooncakeTier only"),
        ("host", TypeError, "tiers must be a sequence"),
        ([HostTier(bytes_to_use=8)], ValueError, r"bytes_to_use must be in \["),
        ([HostTier(bytes_to_use=2**60)], ValueError, r"bytes_to_use must be in \["),
    ],
    ids=str,
)
def test_a_wrong_tier_is_named(tiers: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        tiered(*tiers) if isinstance(tiers, list) else engine_of(tiers=tiers)


@pytest.mark.parametrize("name", ["Llama", "Gemma3Text"])
def test_what_loads_too_long_is_computed(name: str) -> None:
    num_blocks = {"Llama": 20, "Gemma3Text": 60}[name]
    tier = HostTier(bytes_to_use=16 * ROOM)
    engine = engine_of(name, num_blocks=num_blocks, block_size=4, tiers=[tier])
    tiers = engine._tiers
    assert tiers is not None
    late, seen = tiers.late, []
    tiers.late = lambda: [seen.append(job) or job for job in late()]  # type: ignore[func-returns-value,method-assign]
    for timeout in (30.0, 1e-9):
        tiers._mover._timeout = timeout
        assert not seen
        for prompt in first_turns(4):
            found = engine.generate([prompt], GREEDY)
            settle(engine)
            assert tokens_of(found) == greedy_truth(name, [prompt], max_new_tokens=NEW)
    assert seen
    engine.manager.check_invariants()


@pytest.mark.parametrize("name", GROUPS)
def test_windows_chunks_and_states_come_from_a_shared_store(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FakeStore()

    def on_store(tier: MooncakeTier, layout: Any, **options: Any) -> SharedStorage:
        return SharedStorage(store, layout, timeout=60.0, **options)

    monkeypatch.setattr("blockmgr.ports.engine.tiers.connected", on_store)
    prompts = [[*prompt, *prompt] for prompt in first_turns(3)]
    expected = greedy_truth(name, prompts, max_new_tokens=NEW)
    size = None if name in WITH_STATES else 4
    for number in range(2):
        engine = engine_of(name, block_size=size, tiers=[MooncakeTier(master="any:1")])
        found = engine.generate(prompts, GREEDY)
        assert tokens_of(found) == expected
        cached = [each.num_cached_tokens for each in found]
        assert all(cached) if number else not any(cached)
        engine.close()


@pytest.mark.parametrize("name", GROUPS)
def test_windows_chunks_and_states_come_from_a_slab(name: str, tmp_path: Path) -> None:
    size = engine_of(name, block_size=None if name in WITH_STATES else 4).manager.config.block_size
    prompts = [[*prompt, *prompt] for prompt in first_turns(3)]
    expected = greedy_truth(name, prompts, max_new_tokens=NEW)
    tier = DiskTier(path=tmp_path / "kv.slab", bytes_to_use=64 * ROOM)
    cached = []
    for damaged in (False, False, True):
        engine = engine_of(name, block_size=size, num_blocks=400, tiers=[tier])
        if damaged:
            slab = engine._tiers._places[0]  # type: ignore[union-attr]
            assert isinstance(slab, Slab)
            slab.read_digests = lambda blocks, *_: iter([None] * len(blocks))  # type: ignore[method-assign]
        found = engine.generate(prompts, GREEDY)
        assert tokens_of(found) == expected
        cached.append([each.num_cached_tokens for each in found])
        engine.manager.check_invariants()
        engine.close()
    assert cached[0] == cached[2] == [0] * 3
    assert min(cached[1]) >= 96


@pytest.mark.parametrize("name", ["Llama", "Gemma3Text", "Bamba", "Jamba", "Qwen3Next"])
def test_a_conversation_of_fewer_tokens_than_a_block_goes_on_from_its_end(
    name: str, tmp_path: Path
) -> None:
    """From memory after its eviction, from a slab, and from the slab of an earlier process."""
    size = {"Bamba": 32}.get(name, 16)
    kinds: dict[str, list[Any]] = {
        "host": [HostTier(bytes_to_use=16 * ROOM)],
        "disk": [DiskTier(path=tmp_path / "kv.slab", bytes_to_use=16 * ROOM)],
    }
    prompts = [prompt[: size - NEW - 3] for prompt in first_turns(3)]
    first = greedy_truth(name, prompts, max_new_tokens=NEW)
    turns = [[*p, *found[0], 1, 2] for p, found in zip(prompts, first, strict=True)]
    assert all(len(turn) < size for turn in turns)
    second = greedy_truth(name, turns, max_new_tokens=NEW)

    def opened(kind: str) -> Engine:
        tiers = kinds[kind]
        return engine_of(name, block_size=size, num_blocks=60, min_partial_tokens=1, tiers=tiers)

    def go_on(engine: Engine) -> None:
        found = engine.generate(turns, GREEDY)
        assert tokens_of(found) == second
        # All that was computed, which is all but the last token of an answer.
        assert [each.num_cached_tokens for each in found] == [len(turn) - 3 for turn in turns]
        engine.manager.check_invariants()

    for kind in kinds:
        engine = opened(kind)
        assert tokens_of(engine.generate(prompts, GREEDY)) == first
        assert engine._tiers is not None
        while engine._tiers._mover.poll():
            settle(engine)
        engine.manager.reset_prefix_cache(tiers=False)  # evicted
        if kind == "disk":
            engine.close()
            engine = opened(kind)
        go_on(engine)
        engine.close()


def test_a_close_that_fails_closes_the_slab_and_a_second_one_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiered(disk(tmp_path))
    talk(engine)
    assert engine._tiers is not None
    monkeypatch.setattr(engine._tiers._mover, "poll", lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        engine.close()
    monkeypatch.undo()
    engine.close()
    again = tiered(disk(tmp_path))
    again.close()
    again.close()


def test_an_engine_is_closed_between_calls_and_says_so_later(tmp_path: Path) -> None:
    engine = tiered(disk(tmp_path))

    def close(*_: object) -> None:
        with pytest.raises(ReentrancyError, match="inside another call"):
            engine.close()

    [found] = engine.generate(first_turns(1), GREEDY, on_token=close)
    assert len(found.tokens) == NEW
    engine.close()
    for _ in range(2):
        with pytest.raises(ValueError, match="the engine is closed"):
            engine.generate(first_turns(1), GREEDY)
    engine.close()
