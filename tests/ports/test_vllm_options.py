"""The part of the vLLM port that needs no vLLM: options, blocks, activation.

These tests use minimal stand-ins and do not show that vLLM works with the port. ``tests/engines``
does that with a real vLLM.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from blockmgr import BlockManager
from blockmgr.ports.drift import read_of
from blockmgr.ports.vllm import OptionError, Options, UnsupportedConfigError
from blockmgr.ports.vllm.blocks import Block, BlockPool, Blocks
from blockmgr.ports.vllm.coordinator import Coordinator
from blockmgr.ports.vllm.held import Held
from blockmgr.ports.vllm.options import DECIDED_BY_VLLM, namespace_of


def test_neither_blockmgr_nor_the_port_imports_vllm() -> None:
    code = "import sys, blockmgr, blockmgr.ports.vllm; sys.exit('vllm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("values", [True, {}])
def test_no_options_are_the_defaults(values: Any) -> None:
    assert Options.read(values) == Options()


@pytest.mark.parametrize("name", DECIDED_BY_VLLM)
def test_what_vllm_decides_is_refused_with_the_name_of_its_own_option(name: str) -> None:
    with pytest.raises(OptionError, match=f"vLLM decides blockmgr.{name}"):
        Options.read({name: 1})


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"evction": "lru"}, "is it eviction"),
        ({"eviction": "newest"}, "blockmgr.eviction must be one of"),
        ({"fallback": "maybe"}, 'must be "refuse" or "stock"'),
        ({"enabled": 1}, "blockmgr.enabled must be true or false"),
        ({"min_partial_tokens": -1}, "blockmgr.min_partial_tokens must be a whole number"),
        ({"ghost_blocks": True}, "blockmgr.ghost_blocks must be a whole number"),
        ({"report_every": "1"}, "blockmgr.report_every must be seconds"),
        ({"explain_every": -1}, "blockmgr.explain_every must be a whole number"),
        ({"metrics_port": 70_000}, "blockmgr.metrics_port must be a port"),
        ({"metrics_port": True}, "blockmgr.metrics_port must be a port"),
        ({"metrics_host": ""}, "blockmgr.metrics_host must be an address"),
        ({"quotas": {"": 3}}, "blockmgr.quotas must be an object of salts"),
        ({"quotas": [3]}, "blockmgr.quotas must be an object of salts"),
        ([], "blockmgr must be an object"),
        (False, "blockmgr must be an object"),
        ("on", "blockmgr must be an object"),
    ],
)
def test_a_wrong_option_is_refused_by_name(values: Any, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        Options.read(values)


def test_a_bound_that_depends_on_the_pool_is_named_when_it_is_made() -> None:
    options = Options.read({"quotas": {"a": 40}})
    with pytest.raises(OptionError, match="quotas"):
        options.config(num_blocks=8, block_size=4)


def test_options_reach_the_managers_configuration() -> None:
    options = Options.read({"eviction": "arc", "min_partial_tokens": 2, "quotas": {"a": 3}})
    config = options.config(num_blocks=16, block_size=4)
    assert (config.eviction, config.min_partial_tokens) == ("arc", 2)
    assert dict(config.quotas) == {namespace_of("a", None): 3}
    assert (config.dedup, config.null_block, config.early_commit) == ("append_only", True, True)


def test_salts_and_adapters_have_namespaces_of_their_own() -> None:
    names = {namespace_of(*pair) for pair in (("a", None), (None, "a"), ("a", "a"), (None, None))}
    assert len(names) == 4
    assert namespace_of(None, "a", "/first") != namespace_of(None, "a", "/second")


def manager() -> BlockManager:
    return BlockManager(num_blocks=9, block_size=2, null_block=True, dedup="append_only")


def test_a_block_is_looked_up_when_it_is_asked_for() -> None:
    core = manager()
    handle = core.admit([1, 2, 3])
    first, last = (Block(core, block) for block in core.block_ids(handle))
    assert (first.ref_cnt, first.block_hash, first.is_null) == (1, None, False)
    core.commit(handle, 3)
    assert first.block_hash is not None
    assert last.block_hash is None
    assert Block(core, 0).is_null


def test_blocks_of_a_group_come_as_lists_of_ids() -> None:
    core = manager()
    layers: Any = (SimpleNamespace(num_entries=lambda slots: -(-slots // 2)),)
    blocks = Blocks(core, layers, ([1, 2],))
    assert blocks.get_block_ids() == ([1, 2],)
    assert blocks.first(0).get_block_ids() == ([],)
    assert blocks.first(0).get_block_ids(allow_none=True) is None
    assert (blocks + Blocks(core, layers, ([3],))).by_group == ([1, 2, 3],)
    assert blocks.get_unhashed_block_ids_all_groups() == [[1, 2]]


def test_a_touched_block_is_kept_until_it_is_freed() -> None:
    core = manager()
    pool = BlockPool(core)
    handle = core.admit([1, 2, 3])
    core.commit(handle, 3)
    block = pool.blocks[core.block_ids(handle)[0]]
    pool.touch([block, pool.null_block])
    core.free(handle)
    assert (pool.get_num_free_blocks(), pool.get_usage()) == (7, 1 / 8)
    pool.free_blocks(reversed([block, pool.null_block]))
    assert pool.get_num_free_blocks() == 8
    pool.evict_blocks({0, block.block_id})
    assert not core.is_cached(block.block_id)


def test_blocks_a_request_still_takes_are_counted() -> None:
    pool = BlockPool(manager())
    held = {"a": Held(SimpleNamespace(), 1, 3, 4, 2, 4)}
    named = {"block_size": 2, "spec": None, "most_blocks": None}
    named |= {"has_states": False, "is_ring": False}
    layers: Any = SimpleNamespace(num_entries=lambda slots: -(-slots // 2), **named)
    counts = Coordinator((layers,), pool, held)

    def needed(name: str, num_tokens: int) -> int:
        return counts.get_num_blocks_to_allocate(name, num_tokens, ([],), 0, 0, 0, num_tokens)

    assert [needed("a", n) for n in (1, 4, 5)] == [0, 0, 1]
    assert needed("b", 5) == 3


def test_what_a_scheduler_asks_of_its_manager_is_read_off_its_source() -> None:
    source = "self.kv_cache_manager.free(r)\nkv_cache_manager.usage\nself.other.free_all()"
    assert read_of(source, ("kv_cache_manager", "cache_manager")) == {"free", "usage"}


def test_the_reasons_against_a_configuration_survive_a_process_boundary() -> None:
    error = UnsupportedConfigError(("one thing", "another"), "Turn it off")
    assert pickle.loads(pickle.dumps(error)).reasons == error.reasons
    assert "one thing; another. Turn it off" in str(error)
