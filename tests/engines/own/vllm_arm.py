"""A pytest plugin for vLLM's tests: runs its schedulers on blockmgr, without the network.

``BLOCKMGR_ARM`` is ``stock`` or ``blockmgr``. With ``blockmgr``, configurations that it does not
support use vLLM's own manager. ``BLOCKMGR_TINY_MODEL`` is a folder with a model that replaces every
model name.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

from vllm.config import ModelConfig
from vllm.v1.core.sched import scheduler

MODEL = os.environ["BLOCKMGR_TINY_MODEL"]


def _local(make: Any) -> Any:
    @functools.wraps(make)
    def __init__(self: Any, *arguments: Any, **named: Any) -> None:
        if not Path(named.get("model", MODEL)).is_dir():
            named["model"] = MODEL
            named.pop("hf_overrides", None)
        make(self, *arguments, **named)

    return __init__


def _on_blockmgr(make: Any) -> Any:
    @functools.wraps(make)
    def __init__(self: Any, vllm_config: Any, *arguments: Any, **named: Any) -> None:
        vllm_config.additional_config = {"blockmgr": {"fallback": "stock"}}
        caching = vllm_config.cache_config.enable_prefix_caching
        make(self, vllm_config, *arguments, **named)
        # The tests read this setting afterwards, and hash their requests themselves.
        vllm_config.cache_config.enable_prefix_caching = caching

    return __init__


ModelConfig.__init__ = _local(ModelConfig.__init__)
if os.environ["BLOCKMGR_ARM"] == "blockmgr":
    from blockmgr.ports.vllm import register

    register()
    scheduler.Scheduler.__init__ = _on_blockmgr(scheduler.Scheduler.__init__)
