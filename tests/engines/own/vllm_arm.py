"""A pytest plugin for vLLM's tests: runs its schedulers on blockmgr, without the network.

``BLOCKMGR_ARM`` is ``stock`` or ``blockmgr``. With ``blockmgr``, configurations that it does not
support use vLLM's own manager, and the tables of requests, which tests read from vLLM's group
managers, are those that blockmgr hands to vLLM. ``BLOCKMGR_TINY_MODEL`` is a folder with a model
that replaces every model name.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
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


class Tables(Mapping[str, Any]):
    """The blocks of each request in one group."""

    def __init__(self, manager: Any, group: int) -> None:
        self._manager, self._group = manager, group

    def __getitem__(self, request: str) -> Any:
        if request not in self._manager._held:
            raise KeyError(request)
        return self._manager.get_blocks(request).blocks[self._group]

    def __iter__(self) -> Iterator[str]:
        return iter(self._manager._held)

    def __len__(self) -> int:
        return len(self._manager._held)


def _with_tables(make: Any) -> Any:
    @functools.wraps(make)
    def __init__(self: Any, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        for group, single in enumerate(self.coordinator.single_type_managers):
            single.req_to_blocks = Tables(self, group)

    return __init__


ModelConfig.__init__ = _local(ModelConfig.__init__)
if os.environ["BLOCKMGR_ARM"] == "blockmgr":
    from blockmgr.ports.vllm import register
    from blockmgr.ports.vllm.manager import KVCacheManager

    register()
    KVCacheManager.__init__ = _with_tables(KVCacheManager.__init__)
    scheduler.Scheduler.__init__ = _on_blockmgr(scheduler.Scheduler.__init__)
