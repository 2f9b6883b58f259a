"""The plug-in of vLLM where vLLM reads its arguments, with stand-ins for vLLM."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from blockmgr.ports.vllm import OptionError, register


class EngineArgs:
    """vLLM's arguments of an engine, as far as the plug-in knows them."""

    def __init__(self, additional_config: Any = None) -> None:
        self.additional_config = additional_config
        self.created = 0

    def create_engine_config(self, usage: str = "", *, headless: bool = False) -> tuple[str, bool]:
        self.created += 1
        return usage, headless


@pytest.fixture
def arguments(monkeypatch: pytest.MonkeyPatch) -> type:
    """The class of the arguments, after the plug-in was loaded twice."""
    names = ("vllm", "vllm.v1", "vllm.v1.core", "vllm.v1.core.sched")
    modules = {name: ModuleType(name) for name in (*names, "vllm.engine", "vllm.engine.arg_utils")}
    scheduler: Any = ModuleType("vllm.v1.core.sched.scheduler")
    scheduler.Scheduler = type("Scheduler", (), {"__init__": lambda self: None})
    modules["vllm.v1.core.sched"].scheduler = scheduler  # type: ignore[attr-defined]
    kind = type("EngineArgs", (EngineArgs,), {})
    kind.create_engine_config = EngineArgs.create_engine_config  # type: ignore[attr-defined]
    modules["vllm.engine.arg_utils"].EngineArgs = kind  # type: ignore[attr-defined]
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    register()
    first = kind.create_engine_config  # type: ignore[attr-defined]
    register()
    assert kind.create_engine_config is first  # type: ignore[attr-defined]
    return kind


@pytest.mark.parametrize("options", [{"evicton": "lru"}, {"eviction": "newest"}, "lru"])
def test_a_wrong_option_is_refused_before_an_engine_starts(arguments: type, options: Any) -> None:
    wrong = arguments({"blockmgr": options})
    with pytest.raises(OptionError, match="blockmgr"):
        wrong.create_engine_config()
    assert wrong.created == 0


@pytest.mark.parametrize("config", [None, {}, {"other": 1}, {"blockmgr": {}}, {"blockmgr": None}])
def test_other_arguments_are_passed_on_as_they_are(arguments: type, config: Any) -> None:
    right = arguments(config)
    assert right.create_engine_config("server", headless=True) == ("server", True)
    assert right.created == 1


def test_a_process_without_the_module_of_the_arguments_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, arguments: type
) -> None:
    monkeypatch.delitem(sys.modules, "vllm.engine.arg_utils")
    register()
    assert "vllm.engine.arg_utils" not in sys.modules
