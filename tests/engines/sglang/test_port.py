"""The port inside SGLang: refusals, and planted bugs that a workload must find.

Run where SGLang is installed (``tests/engines/sglang/run``); elsewhere it is skipped.
"""

from __future__ import annotations

import importlib.util
import pickle
import random
from array import array
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if importlib.util.find_spec("sglang") is None:
    pytest.skip("needs SGLang: see tests/engines/sglang/run", allow_module_level=True)

from tests.engines.sglang.engine import Engine, Setting, drawn  # isort: skip  stands in for packages

import msgspec
import numpy as np
import torch
from sglang.srt.managers.kv_hints import KvHintAction, KvHintsEnvelope
from sglang.srt.mem_cache.base_prefix_cache import (
    DecLockRefResult,
    EvictParams,
    IncLockRefResult,
    InsertParams,
    MatchPrefixParams,
)
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.sampling.sampling_params import SamplingParams

from blockmgr.errors import BlockStateError
from blockmgr.ports.drift import Difference, Interface
from blockmgr.ports.sglang import UnsupportedConfigError, cache, keys, plugin
from blockmgr.ports.sglang.keys import Prompt

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE, SLOTS = 4, 1200
REQUESTS = 40


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder: Path = tmp_path_factory.mktemp("model")
    return Engine(Setting("blockmgr", page_size=PAGE, num_slots=SLOTS), folder)


@pytest.fixture
def prefix_cache(engine: Engine) -> Iterator[Any]:
    """The engine's own cache, empty before and after a test."""
    tree = engine.scheduler.tree_cache
    tree.reset()
    yield tree
    tree.reset()


def is_wrong(engine: Engine) -> bool:
    """Whether a short workload shows a fault."""
    try:
        served = engine.serve(3, REQUESTS)
    except Exception:
        return True
    return bool(served.faults or served.counts["slots read with wrong K/V"])


def insert(tree: Any, key: RadixKey, first_slot: int) -> Any:
    value = torch.arange(first_slot, first_slot + len(key.token_ids), dtype=torch.int64)
    return tree.insert(InsertParams(key=key, value=value))


def found(tree: Any, key: RadixKey) -> int:
    return int(tree.match_prefix(MatchPrefixParams(key=key)).device_prefix_len)


def key(tokens: list[int], **namespace: str) -> RadixKey:
    return RadixKey(array("q", tokens), **namespace)


def context(engine: Engine, **changes: Any) -> SimpleNamespace:
    """The context of a supported configuration, with these changes."""
    scheduler = engine.scheduler
    params = {
        "disable": False,
        "req_to_token_pool": scheduler.req_to_token_pool,
        "token_to_kv_pool_allocator": scheduler.token_to_kv_pool_allocator,
        "page_size": PAGE,
        "is_eagle": False,
        "eviction_policy": "lru",
        "enable_metrics": False,
        "enable_kv_cache_events": False,
        "enable_session_radix_cache": False,
        "sliding_window_size": None,
        "component_registry_override": None,
    }
    whole = {"is_hybrid_swa": False, "is_hybrid_ssm": False, "enable_hierarchical_cache": False}
    whole.update({name: value for name, value in changes.items() if name in whole})
    params.update({name: value for name, value in changes.items() if name in params})
    return SimpleNamespace(**whole, params=SimpleNamespace(**params))


def test_requests_are_served_and_read_their_own_keys_and_values(engine: Engine) -> None:
    served = engine.serve(3, REQUESTS)
    assert served.faults == []
    assert served.counts["slots read with wrong K/V"] == 0
    assert served.counts["tokens found in the cache"] > 0
    assert type(engine.scheduler.tree_cache) is cache.PrefixCache


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"is_hybrid_swa": True}, "sliding window"),
        ({"sliding_window_size": 128}, "sliding window"),
        ({"is_hybrid_ssm": True}, "recurrent state"),
        ({"enable_hierarchical_cache": True}, "--enable-hierarchical-cache"),
        ({"is_eagle": True}, "EAGLE"),
        ({"enable_kv_cache_events": True}, "--kv-events-config"),
        ({"enable_session_radix_cache": True}, "--enable-session-radix-cache"),
        ({"eviction_policy": "tlru"}, "--radix-eviction-policy tlru"),
        ({"page_size": 70_000}, "--page-size"),
        ({"component_registry_override": {"MAMBA": object}}, "MAMBA"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    engine: Engine, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(UnsupportedConfigError) as refused:
        plugin.make_cache(context(engine, **changes))
    assert len(refused.value.reasons) == 1
    assert words in str(refused.value)
    assert pickle.loads(pickle.dumps(refused.value)).reasons == refused.value.reasons


def test_every_reason_is_told_at_once(engine: Engine) -> None:
    with pytest.raises(UnsupportedConfigError) as refused:
        plugin.make_cache(context(engine, is_eagle=True, is_hybrid_ssm=True))
    assert len(refused.value.reasons) == 2


def test_a_version_that_was_not_tried_gets_a_warning(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Interface, "version", lambda _: "0.6.0")
    with caplog.at_level("WARNING", logger="sglang.blockmgr"):
        plugin.make_cache(context(engine))
    assert "0.6.0" in caplog.text
    assert "0.5.23" in caplog.text


def test_a_version_that_lacks_a_method_is_refused(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = [Difference("BasePrefixCache.lock", "is gone", is_fatal=True)]
    monkeypatch.setattr(Interface, "differences", lambda _: gone)
    with pytest.raises(UnsupportedConfigError, match=r"BasePrefixCache\.lock: is gone"):
        plugin.make_cache(context(engine))


def test_registering_twice_changes_nothing() -> None:
    plugin.register()
    plugin.register()


def test_adapters_and_salts_share_nothing(prefix_cache: Any) -> None:
    tokens = list(range(100, 108))
    insert(prefix_cache, key(tokens), PAGE)
    assert found(prefix_cache, key(tokens)) == 8
    assert found(prefix_cache, key(tokens, extra_key="a")) == 0
    assert found(prefix_cache, key(tokens, cache_salt="a")) == 0
    insert(prefix_cache, key(tokens, cache_salt="a"), 8 * PAGE)
    assert found(prefix_cache, key(tokens, extra_key="a")) == 0


def test_images_with_equal_low_halves_are_told_apart(prefix_cache: Any) -> None:
    one, other = (1 << 40) + 77, (1 << 41) + 77
    insert(prefix_cache, key([5, 6, one, one, one, one, one, 7]), PAGE)
    assert found(prefix_cache, key([5, 6, one, one, one, one, one, 7])) == 8
    assert found(prefix_cache, key([5, 6, other, other, other, other, other, 7])) == 0
    assert found(prefix_cache, key([5, 6, one, one, one, one, 77, 7])) == 4
    assert found(prefix_cache, key([5, 6, 77, 77])) == 0


def test_what_is_locked_is_not_evicted_and_a_stale_node_is_refused(prefix_cache: Any) -> None:
    allocator = prefix_cache.token_to_kv_pool_allocator
    before = allocator.available_size()
    slots = allocator.alloc(2 * PAGE)
    result = prefix_cache.insert(InsertParams(key=key(list(range(8))), value=slots))
    lock = prefix_cache.lock(result.last_device_node)
    assert prefix_cache.evictable_size() == 0
    assert prefix_cache.evict(SimpleNamespace(num_tokens=8)).num_tokens_evicted == 0
    prefix_cache.unlock(lock)
    assert prefix_cache.evictable_size() == 8
    assert prefix_cache.evict(SimpleNamespace(num_tokens=1)).num_tokens_evicted == PAGE
    with pytest.raises(BlockStateError, match="evicted"):
        prefix_cache.lock(result.last_device_node)
    assert prefix_cache.evict(SimpleNamespace(num_tokens=100)).num_tokens_evicted == PAGE
    assert allocator.available_size() == before


def test_requests_come_in_the_order_of_the_tree_with_the_widest_branch_first(
    prefix_cache: Any,
) -> None:
    def node(*pages: int) -> cache.Node:
        return cache.Node(np.array(pages, dtype=np.int32), 0)

    chains = [node(1), node(2), node(2, 3), node(2, 4), node(2, 4), node()]
    assert prefix_cache.dfs_weight_order(chains) == [3, 4, 2, 1, 0, 5]


def test_the_hints_of_a_request_keep_its_pages_and_release_those_of_its_session(
    engine: Engine, prefix_cache: Any
) -> None:
    def ask(number: int, tokens: list[int], **carried: Any) -> None:
        sampling = SamplingParams(max_new_tokens=1, ignore_eos=True)
        sampling.normalize(None)
        made = drawn(random.Random(0), 0, 1)[0]
        changes = {"rid": f"h-{number}", "input_ids": array("q", tokens), **carried}
        changes |= {"sampling_params": sampling, "extra_key": None, "cache_salt": None}
        engine.scheduler.handle_generate_request(msgspec.structs.replace(made, **changes))
        while engine._step():
            pass

    def message(kind: str, **payload: Any) -> KvHintsEnvelope:
        action = KvHintAction(
            action_id="a", action_type=kind, action_version="1.0", payload=payload
        )
        return KvHintsEnvelope(protocol_version="0.1", message_id=kind, actions=[action])

    kept, other = list(range(100, 500)), list(range(1000, 1400))
    ask(1, kept, kv_hints=message("kv.retain", ttl=3600.0), session_id="s")
    ask(2, other)
    half = prefix_cache.evictable_size() // 2
    assert prefix_cache.evict(EvictParams(num_tokens=half)).num_tokens_evicted == half
    assert found(prefix_cache, key(kept)) == 400
    assert found(prefix_cache, key(other)) < PAGE * 4
    ask(3, [7] * 4, kv_hints=message("kv.release", session="s"))
    counts = prefix_cache.hints.hints.counts
    assert (counts.messages, counts.results["accepted"]) == (2, 2)
    ask(4, other)
    prefix_cache.evict(EvictParams(num_tokens=400))
    assert found(prefix_cache, key(other)) == 400
    assert found(prefix_cache, key(kept)) < PAGE * 4


# Bugs, each of which a workload must show.


def test_a_row_that_still_names_what_was_freed_is_noticed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.scheduler.req_to_token_pool, "write", lambda *arguments: None)
    assert is_wrong(engine)


def test_a_tenant_that_is_passed_over_is_noticed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "namespace_of", lambda extra_key, cache_salt: b"")
    assert is_wrong(engine)


def test_an_image_that_is_cut_to_32_bits_is_noticed(prefix_cache: Any) -> None:
    # Random images whose low halves are equal are too rare.
    real = keys.prompt_of
    one, other = (1 << 40) + 77, (1 << 41) + 77

    def cut(whole: RadixKey, page_size: int) -> Prompt:
        prompt = real(whole, page_size)
        return Prompt(prompt.tokens, None, prompt.namespace)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "prompt_of", cut)
        insert(prefix_cache, key([one] * 4), PAGE)
        assert found(prefix_cache, key([other] * 4)) == 4


def test_slots_that_are_evicted_while_they_are_locked_are_noticed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = cache.PrefixCache
    monkeypatch.setattr(ours, "inc_lock_ref", lambda *_: IncLockRefResult(0))
    monkeypatch.setattr(ours, "dec_lock_ref", lambda *_: DecLockRefResult(0))
    assert is_wrong(engine)


def test_duplicates_that_are_never_freed_are_noticed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocator = engine.scheduler.token_to_kv_pool_allocator
    monkeypatch.setattr(allocator, "free_segment", lambda slots, *, start_pos: None)
    assert is_wrong(engine)
