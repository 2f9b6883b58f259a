"""The line that the port of vLLM logs, with a stand-in for vLLM's logger."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from blockmgr import BlockManager

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
        "; 200 blocks instead of 100 would have found 77.1% of all tokens instead of 77.1%"
    )


def test_nothing_is_said_of_larger_pools_before_the_first_request(report: Any) -> None:
    assert "found 0.0% of all tokens" in report.Report(BlockManager(8, 2, ghost_blocks=2), 1).line()
    assert "would have found" not in report.Report(BlockManager(8, 2), 1).line()
