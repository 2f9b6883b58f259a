"""The events of the vLLM port without vLLM: the hash of each published block.

Stand-ins take the place of vLLM's structures and functions. ``tests/engines`` runs a real vLLM.
"""

from __future__ import annotations

import gc
import importlib
import sys
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from blockmgr import BlockManager, FullAttention, SlidingWindow

pytest.importorskip("msgspec", reason="the extra 'events'")

from blockmgr.events import wire

SIZE = 2


def keys_of(request: Any, start: int, stop: int, index: int) -> tuple[Any, int]:
    """The extra keys of vLLM for adapters and salts."""
    keys = [("lora", request.lora_request.name)] if request.lora_request else []
    keys += [("cache_salt", request.cache_salt)] if request.cache_salt and not start else []
    if request.prompt_embeds is not None:
        keys.append(("prompt_embeds", type(request.prompt_embeds).__name__))
    return tuple(keys) or None, index


def untagged(keys: list[Any]) -> list[Any]:
    return [None if each is None else tuple(key[1] for key in each) for each in keys]


MODULES = {
    "vllm": {},
    "vllm.distributed": {},
    "vllm.distributed.kv_events": {
        "MEDIUM_GPU": "GPU",
        "AllBlocksCleared": wire.AllBlocksCleared,
        "BlockRemoved": wire.BlockRemoved,
        "BlockStored": wire.BlockStored,
    },
    "vllm.v1": {},
    "vllm.v1.core": {},
    "vllm.v1.core.kv_cache_utils": {
        "generate_block_hash_extra_keys": keys_of,
        "maybe_convert_block_hash": lambda digest: digest.decode(),
        "to_event_extra_keys": untagged,
    },
    "vllm.v1.kv_cache_interface": {"get_kv_cache_spec_kind": lambda spec: spec.kind},
}


@pytest.fixture
def kv_events(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    for name, names in MODULES.items():
        module = ModuleType(name)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, name, module)
    yield importlib.import_module("blockmgr.ports.vllm.events")
    sys.modules.pop("blockmgr.ports.vllm.events")


def told_of(group: Any, size: int) -> int:
    """The blocks of a window that the query behind the manager's block reads."""
    each = group.block_size or size
    return min(size // each, -(-(group.width - 1) // each))


class Engine:
    """A manager as the port builds it, and requests that commit their tokens."""

    def __init__(
        self,
        module: ModuleType,
        num_blocks: int = 9,
        groups: tuple[Any, ...] = (),
        size: int = SIZE,
    ) -> None:
        self.manager = BlockManager(
            num_blocks, size, dedup="append_only", null_block=True, early_commit=True, events=True,
            event_blocks=module.waiting_blocks(num_blocks), groups=groups,
        )  # fmt: skip
        published = [
            module.Published("full_attention", None, size, 1)
            if isinstance(group, FullAttention)
            else module.Published(
                "sliding_window", group.width, group.block_size or size, told_of(group, size)
            )
            for group in groups or [FullAttention()]
        ]
        self.events = module.KVEvents(self.manager, size, SIZE, published)

    def request(self, tokens: list[int], **named: Any) -> Any:
        """A request with a hash for each block that shows its tokens."""
        hashes = [
            "/".join(map(str, tokens[: end + SIZE])).encode()
            for end in range(0, len(tokens) - SIZE + 1, SIZE)
        ]
        about = {"lora_request": None, "cache_salt": None, "mm_features": [], "session_id": None}
        return SimpleNamespace(
            _all_token_ids=tokens, block_hashes=hashes, prompt_embeds=None, **{**about, **named}
        )

    def serve(self, tokens: list[int], *upto: int, **named: Any) -> int:
        """Admits a request and commits it in parts; returns the handle."""
        request = self.request(tokens, **named)
        handle = self.manager.admit(tokens, read_cache=False, num_slots=len(tokens))
        for end in upto or (len(tokens) // SIZE * SIZE,):
            self.manager.commit(handle, end)
            self.events.stored_by(request)
        self.manager.copies_applied(self.manager.take_copies().ticket)
        self.manager.commit(handle, end)  # releases what windows have passed
        return handle


Make = Callable[..., Engine]


@pytest.fixture
def make(kv_events: ModuleType) -> Make:
    return lambda *arguments: Engine(kv_events, *arguments)


def test_a_commit_is_told_with_the_hashes_of_its_request(make: Make) -> None:
    engine = make()
    engine.serve([1, 2, 3, 4, 5], 2, 4)
    first, second = engine.events.take()
    assert (first.block_hashes, first.parent_block_hash, first.token_ids) == (["1/2"], None, [1, 2])
    assert (second.block_hashes, second.parent_block_hash) == (["1/2/3/4"], "1/2")
    assert (second.token_ids, second.block_size, second.medium) == ([3, 4], 2, "GPU")
    assert (second.group_idx, second.kv_cache_spec_kind) == (0, "full_attention")
    assert (first.extra_keys, first.lora_id, first.session_id) == ([None], None, None)
    assert engine.events.take() == []


def test_what_another_request_has_cached_is_not_told_again(make: Make) -> None:
    """Publishes only its new block, with the other request's block as its parent."""
    engine = make()
    engine.serve([1, 2, 3, 4, 5])
    engine.events.take()
    engine.serve([1, 2, 3, 4, 7, 8, 9])
    [more] = engine.events.take()
    assert (more.block_hashes, more.parent_block_hash) == (["1/2/3/4/7/8"], "1/2/3/4")
    assert more.token_ids == [7, 8]


def test_equal_blocks_at_two_places_of_a_prompt_are_told_apart(make: Make) -> None:
    engine = make()
    engine.serve([1, 1, 1, 1, 1])
    [stored] = engine.events.take()
    assert stored.block_hashes == ["1/1", "1/1/1/1"]


def test_removed_and_cleared_blocks_are_told_as_they_were_stored(make: Make) -> None:
    engine = make(4)  # one of them is the null block
    engine.manager.free(engine.serve([1, 2, 3, 4, 5]))
    engine.manager.free(engine.serve([6, 7, 8, 9, 10]))
    told = engine.events.take()
    assert [type(event).__name__ for event in told] == [
        "BlockStored",
        "BlockRemoved",
        "BlockStored",
    ]
    assert sorted(told[1].block_hashes) == ["1/2", "1/2/3/4"]
    assert told[1].group_idx == 0
    engine.manager.reset_prefix_cache()
    [cleared] = engine.events.take()
    assert type(cleared).__name__ == "AllBlocksCleared"
    engine.serve([1, 2, 3])
    [again] = engine.events.take()
    assert again.block_hashes == ["1/2"]


def test_adapters_salts_and_sessions_are_told(make: Make) -> None:
    engine = make()
    adapter = SimpleNamespace(name="sql", adapter_id=3)
    engine.serve([1, 2, 3, 4, 5], lora_request=adapter, cache_salt="tenant", session_id="s")
    [stored] = engine.events.take()
    assert (stored.lora_id, stored.lora_name, stored.session_id) == (3, "sql", "s")
    assert stored.extra_keys == [("sql", "tenant"), ("sql",)]


def test_a_request_that_wants_it_is_told_of_what_it_found(make: Make) -> None:
    engine = make()
    engine.events.reused_by(engine.request([1, 2, 3, 4, 5]), 4)
    assert engine.events.take() == []
    wanted = engine.request([1, 2, 3, 4, 5], kv_cache_report_mode="full")
    engine.events.reused_by(wanted, 0)
    engine.events.reused_by(wanted, 5)
    [told] = engine.events.take()
    assert (told.block_hashes, told.parent_block_hash) == (["1/2", "1/2/3/4"], None)


def test_no_event_is_lost_between_two_commits(make: Make) -> None:
    """All blocks are evicted and stored again before the events are taken."""
    engine = make(33)
    for first in range(1, 400, 70):
        handle = engine.serve(list(range(first, first + 64)))
        engine.manager.forget(engine.manager.block_ids(handle)[:1])
        engine.manager.free(handle)
        assert engine.manager.match(list(range(first, first + 64))).num_cached_tokens == 0
    mirror: set[str] = set()
    for event in engine.events.take():
        if hasattr(event, "token_ids"):
            mirror.update(event.block_hashes)
        else:
            mirror.difference_update(event.block_hashes)
    assert mirror == set()


def told_by(events: list[Any]) -> list[tuple[str, int, list[str]]]:
    return [(type(each).__name__[5:], each.group_idx, each.block_hashes) for each in events]


def test_each_group_tells_of_its_own_blocks(make: Make) -> None:
    engine = make(15, (FullAttention(), SlidingWindow(3)))
    engine.serve([1, 2, 3, 4, 5, 6, 7])
    stored = engine.events.take()
    assert told_by(stored) == [
        ("Stored", 0, ["1/2", "1/2/3/4", "1/2/3/4/5/6"]),
        ("Stored", 1, ["1/2", "1/2/3/4", "1/2/3/4/5/6"]),
    ]
    assert [(each.kv_cache_spec_kind, each.kv_cache_spec_sliding_window) for each in stored] == [
        ("full_attention", None),
        ("sliding_window", 3),
    ]
    assert stored[0].token_ids == stored[1].token_ids == [1, 2, 3, 4, 5, 6]


def test_small_blocks_that_two_large_ones_begin_with_are_stored_and_removed_once(
    make: Make,
) -> None:
    engine = make(17, (FullAttention(), SlidingWindow(9, block_size=2)), 4)
    first = engine.serve([1, 2, 3, 4, 5])
    second = engine.serve([1, 2, 7, 8, 9])
    assert told_by(engine.events.take()) == [
        ("Stored", 0, ["1/2/3/4"]),
        ("Stored", 1, ["1/2", "1/2/3/4"]),
        ("Stored", 0, ["1/2/7/8"]),
        ("Stored", 1, ["1/2/7/8"]),
    ]
    removed = []
    for handle in (first, second):
        block = engine.manager.block_ids(handle)[0]
        engine.manager.free(handle)
        engine.manager.forget([block])
        removed += told_by(engine.events.take())
    assert sorted(removed) == [
        ("Removed", 0, ["1/2/3/4"]),
        ("Removed", 0, ["1/2/7/8"]),
        ("Removed", 1, ["1/2", "1/2/7/8"]),
        ("Removed", 1, ["1/2/3/4"]),
    ]


def test_of_a_window_the_small_blocks_are_told_that_the_next_query_reads(make: Make) -> None:
    engine = make(17, (FullAttention(), SlidingWindow(3, block_size=2)), 8)
    engine.serve(list(range(1, 18)))
    stored = engine.events.take()
    whole = "/".join(map(str, range(1, 9)))
    more = "/".join(map(str, range(1, 17)))
    assert told_by(stored) == [
        ("Stored", 0, [whole, more]),
        ("Stored", 1, [whole]),
        ("Stored", 1, [more]),
    ]
    assert [each.token_ids for each in stored[1:]] == [[7, 8], [15, 16]]
    assert stored[2].parent_block_hash == "/".join(map(str, range(1, 15)))
    assert stored[2].block_size == 2


def test_groups_keep_the_adapter_and_the_salt_of_the_request_that_stored_a_block(
    make: Make,
) -> None:
    engine = make(15, (FullAttention(), SlidingWindow(3)))
    adapter = SimpleNamespace(name="sql", adapter_id=3)
    engine.serve([1, 2, 3, 4, 5], lora_request=adapter, cache_salt="tenant", session_id="s")
    full, window = engine.events.take()
    for stored in (full, window):
        assert (stored.lora_id, stored.lora_name, stored.session_id) == (3, "sql", "s")
        assert stored.extra_keys == [("sql", "tenant"), ("sql",)]


def test_blocks_in_the_cache_keep_no_embeddings_of_their_requests(make: Make) -> None:
    class Embeddings:
        """As large as the prompt of a model."""

    engine = make(15, (FullAttention(), SlidingWindow(3)))
    embeddings = Embeddings()
    kept = weakref.ref(embeddings)
    tokens = [1, 2, 3, 4, 5]
    request = engine.request(tokens)
    request.prompt_embeds = embeddings
    handle = engine.manager.admit(tokens, read_cache=False)
    engine.manager.commit(handle, 4)
    engine.events.stored_by(request)
    assert [event.extra_keys for event in engine.events.take()] == [[("Embeddings",)] * 2] * 2
    del request, embeddings
    gc.collect()
    assert kept() is None
    engine.manager.copies_applied(engine.manager.take_copies().ticket)
    engine.manager.free(handle)
    engine.manager.reset_prefix_cache()
    assert [type(event).__name__ for event in engine.events.take()] == ["AllBlocksCleared"]
