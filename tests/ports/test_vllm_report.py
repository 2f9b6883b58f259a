"""The log line of the vLLM port, with a stand-in for vLLM's logger."""

from __future__ import annotations

import importlib
import logging
import sys
import urllib.request
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from blockmgr import BlockManager, Prompt
from blockmgr.ports.vllm import OptionError

NAME = "blockmgr.ports.vllm.report"


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    logger = ModuleType("vllm.logger")
    monkeypatch.setattr(logger, "init_logger", logging.getLogger, raising=False)
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.logger", logger)
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    yield importlib.import_module(NAME)
    sys.modules.pop(NAME, None)


def serve(manager: BlockManager, times: int, namespace: bytes) -> None:
    for _ in range(times):
        handle = manager.admit([1, 2, 3, 4, 5, 6, 7], namespace=namespace)
        manager.commit(handle, 7)
        manager.free(handle)


@pytest.mark.parametrize("quotas", [{}, {b"t": 90}, {b"t": 100}])
def test_a_larger_pool_is_that_of_all_shares_together(report: Any, quotas: Any) -> None:
    manager = BlockManager(100, 2, quotas=quotas, ghost_blocks=100)
    serve(manager, 10, b"t")
    said = report.Report(manager, 1).line()
    assert "54 of the last 70 prompt tokens came from the cache" in said
    assert said.endswith(
        "; in whole blocks, this pool of 100 has found 77.1% of all tokens so far, and 200 blocks "
        "would have found 77.1%"
    )


def test_nothing_is_said_of_larger_pools_before_the_first_request(report: Any) -> None:
    assert (
        "has found 0.0% of all tokens"
        in report.Report(BlockManager(8, 2, ghost_blocks=2), 1).line()
    )
    assert "would have found" not in report.Report(BlockManager(8, 2), 1).line()


def test_what_is_shown_to_prometheus_is_what_the_manager_counts(report: Any) -> None:
    exposition = importlib.import_module("blockmgr.ports.vllm.exposition")
    misses = importlib.import_module("blockmgr.ports.vllm.misses")
    manager = BlockManager(100, 2, ghost_blocks=100)
    counted = misses.Misses(manager, 1)
    prompts = [Prompt(list(range(1, 8))), Prompt([1, 2, 3, 4, 9])]
    for prompt in prompts:
        explained = counted.explain(prompt)
        handle = manager.admit(prompt)
        counted.count(explained)
        manager.commit(handle, len(prompt))
        manager.free(handle)
    told = report.Report(manager, 1, counted)
    read = exposition.registry_of(told).get_sample_value
    assert read("blockmgr_prefix_cache_hits_total") == 4
    assert [read("blockmgr_hit_rate", {"blocks": str(size)}) for size in (100, 200)] == [4 / 12] * 2
    assert read("blockmgr_hit_rate", {"blocks": "125"}) is not None
    assert read("blockmgr_missed_tokens_total", {"reason": "never_seen"}) == 6
    assert sum(counted.tokens.values()) == 12 - 4
    assert "tokens not found: 6 never seen, " in told.line()


def test_figures_are_read_over_http_and_a_port_that_is_taken_is_named(report: Any) -> None:
    exposition = importlib.import_module("blockmgr.ports.vllm.exposition")
    told = report.Report(BlockManager(8, 2), 0)
    server = exposition.serve(told, "127.0.0.1", 0)
    try:
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        with urllib.request.urlopen(url, timeout=30) as answer:
            text = answer.read().decode()
        assert 'blockmgr_blocks{state="free"} 8.0' in text
        with pytest.raises(OptionError, match=r"blockmgr\.metrics_port: nothing can listen"):
            exposition.serve(told, "127.0.0.1", server.server_port)
    finally:
        server.shutdown()
        server.server_close()
