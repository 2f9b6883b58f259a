"""``MooncakeHiCache``: Mooncake Store behind SGLang's hierarchical cache, with proved pages.

It works with SGLang's own prefix cache, as its ``dynamic`` storage backend::

    --enable-hierarchical-cache --hicache-storage-backend dynamic
    --hicache-storage-backend-extra-config '{"backend_name": "blockmgr",
      "module_path": "blockmgr.ports.sglang.storage", "class_name": "MooncakeHiCache",
      "master": "127.0.0.1:50051", "lent_bytes": 4000000000, "revision": "weights-1"}'
"""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING, Any

import sglang
import torch
import xxhash
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage

from blockmgr.ports.outages import Outages
from blockmgr.ports.unsupported import UnsupportedConfigError
from blockmgr.tiers import MooncakeTier
from blockmgr.tiers.mooncake import connected

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blockmgr.tiers import SharedStorage

__all__ = ["MooncakeHiCache"]

logger = logging.getLogger("sglang.blockmgr")
KEY_BYTES = 32
SGLANGS = ("backend_name", "module_path", "class_name", "interface_v1")
INSTEAD = "Without --hicache-storage-backend, SGLang keeps pages in host memory alone"


class MooncakeHiCache(HiCacheStorage):  # type: ignore[misc]  # SGLang is not installed here
    """Pages of SGLang's host memory in Mooncake Store, which servers share.

    SGLang's key is a SHA-256 of the whole prefix, its adapter and its salt; the name of a page has
    that and the layout. A page that cannot be read or proved counts as not found. If the store does
    not answer in time, it counts as empty for some seconds.

    Args:
        storage_config: As SGLang passes it. Its ``extra_config`` has the options of
            ``blockmgr.tiers.MooncakeTier``. ``revision`` is needed: a name for the weights and for
            settings of the model that change what they compute.
        kwargs: As SGLang passes it.

    Raises:
        UnsupportedConfigError: There is no ``revision``, or the configuration is not supported.
        ValueError: A value is out of its bounds.
        TypeError: A value is of the wrong type, or there is no option of this name.
    """

    _storage: SharedStorage

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        given = dict(storage_config.extra_config or {})
        self._where = MooncakeTier(**{k: v for k, v in given.items() if k not in SGLANGS})
        reasons = []
        if not self._where.revision:
            reasons.append("SGLang does not say which weights it has: give `revision`")
        if given.get("interface_v1"):
            reasons.append("`interface_v1` is not supported")
        if reasons:
            raise UnsupportedConfigError(tuple(reasons), INSTEAD)
        self._config = storage_config
        self._outages = Outages(logger, f"the store at {self._where.master}")

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Connects to the store, for the pages of this memory.

        Raises:
            SharedStoreError: Mooncake is not installed, or there is no such store.
            UnsupportedConfigError: The memory does not say in which format its K/V is.
        """
        if mem_pool_host.dtype == torch.uint8:  # either format of fp8
            raise UnsupportedConfigError(("K/V of 8 bits is not supported",), INSTEAD)
        super().register_mem_pool_host(mem_pool_host)
        config = self._config
        tp_rank = "any" if config.is_mla_model else config.tp_rank
        self._storage = connected(
            self._where,
            {
                "engine": f"SGLang {sglang.__version__}",
                "model": str(config.model_name),
                "revision": self._where.revision,
                "dtype": str(mem_pool_host.dtype),
                "page_size": mem_pool_host.page_size,
                "page_layout": str(mem_pool_host.layout),
                "ranks": (
                    f"tp {tp_rank} of {config.tp_size}, pp {config.pp_rank} of {config.pp_size}, "
                    f"cp {config.attn_cp_rank} of {config.attn_cp_size}, "
                    f"dcp {config.dcp_rank} of {config.dcp_size}"
                ),
            },
            block_bytes=mem_pool_host.get_dummy_flat_data_page().nbytes,
            key_bytes=2 * KEY_BYTES,
        )

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Refuses pools beside that of full attention.

        Raises:
            UnsupportedConfigError: There is one.
        """
        if str(host_pool_name) != "kv":
            reason = f"a pool {str(host_pool_name)!r} is not supported, only full attention"
            raise UnsupportedConfigError((reason,), INSTEAD)

    def exists(self, key: str) -> bool:
        """Whether the store says to have a page."""
        return self.batch_exists([key]) == 1

    def batch_exists(self, keys: Sequence[str], extra_info: Any = None) -> int:
        """How many pages, from the first on, the store says to have; 0 if it does not answer."""
        return self._outages.tried(self._storage.exist, self._names(keys)) or 0

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """The memory with a page in it; None: it is not there."""
        return self.batch_get([key], [target_location])[0]

    def batch_get(
        self, keys: Sequence[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[Any]:
        """For each page its memory, up to the first that is not there or not proved, then None."""
        found: list[Any] = []
        for first in range(0, len(keys), self._storage.batch):
            targets = target_locations[first : first + self._storage.batch]
            names = self._names(keys[first : first + len(targets)])
            into = [_bytes_of(target) for target in targets]
            for digest in self._outages.tried(self._storage.read, names, into) or (None,):
                if digest is None:
                    return found + [None] * (len(keys) - len(found))
                found.append(target_locations[len(found)])
        return found

    def set(
        self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None
    ) -> bool:
        """Stores a page; whether it is there now."""
        return self.batch_set([key], [value])

    def batch_set(
        self,
        keys: Sequence[str],
        values: Any = None,
        target_locations: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        """Stores pages; whether all are there now."""
        for first in range(0, len(keys), self._storage.batch):
            data = [_bytes_of(each.contiguous()) for each in values[first:][: self._storage.batch]]
            names = self._names(keys[first : first + len(data)])
            digests = [xxhash.xxh3_128_digest(each) for each in data]
            n = self._outages.tried(self._storage.write, names, data, digests) or 0
            if n < len(data):
                return False
        return True

    def clear(self) -> None:
        """Shares no more from here on; what others stored stays."""
        self._storage.reset()

    def close(self) -> None:
        """Ends the connection; what this process has lent goes with it."""
        self._storage.close()

    def _names(self, keys: Sequence[str]) -> list[bytes]:
        return [self._storage.root + hashlib.sha256(key.encode()).digest() for key in keys]


def _bytes_of(page: Any) -> memoryview:
    return memoryview(page.view(torch.uint8).numpy()).cast("B")
