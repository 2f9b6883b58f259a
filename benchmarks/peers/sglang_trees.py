"""SGLang's radix trees, in Rust and in Python.

The Rust tree is called through its binding, without the Python adapter around it.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
from importlib import import_module
from typing import TYPE_CHECKING, Any

from benchmarks.peers.adapter import Operation
from benchmarks.peers.sglang import FULL, PagedCache, Sglang

if TYPE_CHECKING:
    from array import array

__all__ = ["SglangPython", "SglangRust", "SglangTreeAlone"]


class _RustCache(PagedCache):
    def _open_tree(self) -> None:
        binding = import_module("sglang.srt.mem_cache.rust_tree_core.extension")
        self._binding = binding
        self._match_key = binding.MatchParamsBinding
        parameters = binding.TreeCoreInitParamsBinding(
            eviction_policy="lru", page_size=self._page_size, device="cpu"
        )
        self._tree = binding.RustUnifiedTreeCoreBinding(parameters, [FULL])
        self._root = self._tree.root_node_handle()

    def _find(self, prompt: array[int]) -> tuple[int, Any]:
        if not len(prompt) % self._page_size:  # one page more would include the last token
            prompt = prompt[:-1]
        found = self._tree.match_prefix(self._match_key(key=prompt))
        return found.device_prefix_len, found.last_device_node_id

    def match(self, prompt: array[int]) -> int:
        if not len(prompt) % self._page_size:
            prompt = prompt[:-1]
        return self._tree.match_prefix(self._match_key(key=prompt)).device_prefix_len

    def _slots_of(self, node: Any) -> Any:
        return self._tree.collect_full_device_indices(node, self._root)

    def _lock(self, node: Any) -> Any:
        return self._tree.inc_lock_ref(node, [])

    def _unlock(self, node: Any, lock: Any) -> None:
        self._tree.dec_lock_ref(
            node,
            self._binding.DecLockRefParamsBinding(
                node_id=lock.node_id,
                skipped_lock_components=lock.skipped_lock_components,
                component_lock_uuids=lock.component_lock_uuids,
                component_host_lock_uuids=lock.component_host_lock_uuids,
            ),
            False,
        )

    def _insert(self, tokens: array[int], slots: Any, num_known: int) -> tuple[int, Any]:
        result = self._tree.insert(
            self._binding.InsertParamsBinding(
                key=tokens, value=slots, prev_prefix_len=num_known, inserted_len=num_known
            )
        )
        for action in result.cache_actions:
            if action[0] == "free_device_kv":
                for freed in action[1]:
                    self._allocator.free(freed)
        return result.prefix_len, result.last_device_node

    def _evict(self, num_tokens: int) -> None:
        tree, num_evicted = self._tree, 0
        tree.evict_device_start(FULL, num_tokens)
        step = tree.evict_device_next_node(FULL, {FULL: num_evicted})
        while step.node_id is not None:
            leaf = tree.evict_device_leaf(step.node_id)
            for result in (step, leaf):
                num_evicted += result.tracker.get(FULL, 0)
                for freed in result.new_device_frees.get(FULL, ()):
                    self._allocator.free_segment(freed, start_pos=0)
            step = tree.evict_device_next_node(FULL, {FULL: num_evicted})
        tree.evict_device_end(FULL)

    def _evictable(self) -> int:
        return self._tree.full_evictable_size()


class SglangRust(Sglang):
    """SGLang with its tree in Rust."""

    _kind = _RustCache

    def __init__(self) -> None:
        import_module("sglang.srt.mem_cache.rust_tree_core.extension")
        super().__init__("Rust")


_ALONE = "the tree alone, without an allocator, only finds and holds"


class _BareCache(_RustCache):
    """The tree without allocator and rows of slots: a lower bound for an admission."""

    _num_running = 0

    def admit(self, prompt: array[int]) -> Any:
        _, node = self._find(prompt)
        if node == self._root:
            self._seed(prompt)
            _, node = self._find(prompt)
        lock = self._lock(node)
        self._num_running += 1
        return node, lock, self._slots_of(node)

    def free(self, request: Any) -> None:
        node, lock, _ = request
        self._unlock(node, lock)
        self._num_running -= 1

    def num_free(self) -> int:
        held = self._tree.full_protected_size() // self._page_size + self._num_running
        return self._allocator.num_pages - held

    def _seed(self, prompt: array[int]) -> None:
        """Inserts a prompt; not timed."""
        num_full = len(prompt) // self._page_size * self._page_size
        self._insert(prompt[:num_full], self._torch.arange(num_full), 0)


class SglangTreeAlone(Sglang):
    """Only SGLang's tree in Rust."""

    _kind = _BareCache

    def __init__(self) -> None:
        import_module("sglang.srt.mem_cache.rust_tree_core.extension")
        super().__init__("Rust")
        self.name += " alone"
        self.cannot = dict.fromkeys(Operation, _ALONE)
        del self.cannot[Operation.ADMIT]


class _PythonCache(PagedCache):
    def _open_tree(self) -> None:
        from sglang.srt.mem_cache import base_prefix_cache, cache_init_params, radix_cache

        self._key = radix_cache.RadixKey
        self._parameters = base_prefix_cache
        self._tree = radix_cache.RadixCache(
            cache_init_params.CacheInitParams(
                disable=False,
                req_to_token_pool=None,
                token_to_kv_pool_allocator=self._allocator,
                page_size=self._page_size,
            )
        )

    def _find(self, prompt: array[int]) -> tuple[int, Any]:
        key = self._key(prompt, limit=len(prompt) - 1)
        found = self._tree.match_prefix(self._parameters.MatchPrefixParams(key=key))
        return found.device_prefix_len, found.last_device_node

    def _slots_of(self, node: Any) -> Any:
        return self._tree.path_device_indices(node)

    def _lock(self, node: Any) -> Any:
        self._tree.inc_lock_ref(node)

    def _unlock(self, node: Any, lock: Any) -> None:
        self._tree.dec_lock_ref(node)

    def _insert(self, tokens: array[int], slots: Any, num_known: int) -> tuple[int, Any]:
        result = self._tree.insert(
            self._parameters.InsertParams(
                key=self._key(tokens), value=slots, inserted_len=num_known
            )
        )
        doubled = slots[num_known : result.prefix_len]
        self._allocator.free_segment(doubled, start_pos=num_known)
        return result.prefix_len, result.last_device_node

    def _evict(self, num_tokens: int) -> None:
        self._tree.evict(self._parameters.EvictParams(num_tokens=num_tokens))

    def _evictable(self) -> int:
        return self._tree.evictable_size()


class SglangPython(Sglang):
    """SGLang with its ``RadixCache`` in Python."""

    _kind = _PythonCache

    def __init__(self) -> None:
        _stand_in_for_torchvision()
        import_module("sglang.srt.mem_cache.radix_cache")
        super().__init__("Python")


class _StandIn(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(self)


def _stand_in_for_torchvision() -> None:
    # Its package index has torchvision for CUDA only. Importing SGLang's cache imports torchvision,
    # for image preprocessors that are not called here.
    try:
        import_module("torchvision")
    except ImportError:
        import_module("transformers.image_utils")  # looks for the real one, once
        for name in ("torchvision", "torchvision.transforms", "torchvision.transforms.functional"):
            module = _StandIn(name)
            module.__spec__ = importlib.machinery.ModuleSpec(name, None)
            module.__path__ = []
            sys.modules[name] = module
