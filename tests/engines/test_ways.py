"""The ways to run vLLM on blockmgr, and what is refused at start-up.

Run where vLLM is installed (``tests/engines/run``); elsewhere it is skipped. The model is a folder
named by ``BLOCKMGR_TINY_MODEL``.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM: see tests/engines/run")

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from blockmgr.ports.drift import Interface
from blockmgr.ports.unsupported import UnsupportedConfigError
from blockmgr.ports.vllm import OptionError, plugin
from blockmgr.ports.vllm.manager import KVCacheManager
from tests.engines.world import arguments, draw, make_scheduler

MODEL = os.environ.get("BLOCKMGR_TINY_MODEL", "")
pytestmark = pytest.mark.skipif(not MODEL, reason="BLOCKMGR_TINY_MODEL names no model")


def scheduler(options: Any, asynchronous: bool = False, kind: str = "full") -> Any:
    return make_scheduler(draw(1, MODEL, "fcfs", asynchronous, options, kind=kind))


def by_class(options: Any, asynchronous: bool = False) -> Any:
    """As ``--scheduler-cls`` does it."""
    return plugin.Scheduler(**arguments(draw(1, MODEL, "fcfs", asynchronous, options)))


def is_ours(made: Any) -> bool:
    return isinstance(made.kv_cache_manager, KVCacheManager)


def test_without_the_option_vllm_has_its_own_manager() -> None:
    assert not is_ours(scheduler(None))
    assert not is_ours(scheduler({"enabled": False}))
    assert is_ours(scheduler({}))


@pytest.mark.parametrize(("asynchronous", "kind"), [(False, Scheduler), (True, AsyncScheduler)])
def test_the_class_by_itself_is_the_scheduler_that_the_configuration_asks_for(
    asynchronous: bool, kind: type
) -> None:
    made = by_class(None, asynchronous)
    assert type(made) is kind
    assert is_ours(made)


def test_both_ways_at_once_make_one_manager_with_the_options_given(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plugin.register()
    plugin.register()
    with caplog.at_level("INFO", "vllm.blockmgr"):
        made = by_class({"min_partial_tokens": 2})
    assert made.kv_cache_manager.options.min_partial_tokens == 2
    said = [record.getMessage() for record in caplog.records]
    assert len([line for line in said if line.startswith("blockmgr manages")]) == 1


def test_both_ways_at_once_that_say_opposite_things_are_refused() -> None:
    with pytest.raises(OptionError, match="--scheduler-cls asks for blockmgr"):
        by_class({"enabled": False})


@pytest.mark.parametrize("make", [scheduler, by_class])
def test_an_option_that_is_vllms_to_say_is_refused(make: Any) -> None:
    with pytest.raises(OptionError, match="--block-size"):
        make({"block_size": 16})


def test_what_is_not_supported_is_refused_by_name_or_left_to_vllm(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(UnsupportedConfigError, match="ghost_blocks do not work with several"):
        scheduler({"ghost_blocks": 8}, kind="window")
    made = scheduler({"ghost_blocks": 8, "fallback": "stock"}, kind="window")
    assert not is_ours(made)
    [line] = [
        r.getMessage() for r in caplog.records if "leaves the KV cache to vLLM" in r.getMessage()
    ]
    assert "ghost_blocks" in line


def test_a_version_that_nobody_tried_is_warned_of_and_one_without_a_method_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Interface, "is_tried", lambda self: False)
    assert is_ours(scheduler({}))
    assert [r for r in caplog.records if r.levelname == "WARNING" and r.name == "vllm.blockmgr"]
    from vllm.v1.core import kv_cache_manager

    monkeypatch.delattr(kv_cache_manager.KVCacheManager, "take_events")
    with pytest.raises(UnsupportedConfigError, match="take_events"):
        scheduler({})


def test_a_request_is_converted_when_it_comes() -> None:
    made = scheduler({})
    assert len(made.kv_cache_manager.prompts) == 0
    world_request(made)
    assert len(made.kv_cache_manager.prompts) == 1
    made.schedule()
    assert len(made.kv_cache_manager.prompts) == 0


def world_request(made: Any) -> None:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    made.add_request(Request("a", [1, 2, 3], SamplingParams(max_tokens=2), None))
