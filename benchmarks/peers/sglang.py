"""SGLang's radix trees, in Rust and in Python, over its own paged slot allocator.

Timed is what its scheduler calls, without the layers between: match, lock, ``alloc_extend``, the
request's row of slots, and the insertion of new pages; a decode step is one ``alloc_decode`` for
the batch, which makes nothing findable before the request ends. The Rust tree is called through
its binding, without the Python adapter around it, and what is cached already is not inserted
again, both of which its engine would do. Tensors lie on the CPU, where a GPU's engine launches
kernels.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
from array import array
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.peers.adapter import BLOCK_SIZE, Operation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

__all__ = ["SglangPython", "SglangRust", "SglangTreeAlone"]

_NO_FORK = "has no fork: parallel samples are requests of their own, which share by way of the tree"
_FULL = 0  # the component of its tree that full attention uses


@dataclass(eq=False)
class _Request:
    prompt: array[int]
    row: int
    num_tokens: int
    num_inserted: int
    node: Any
    lock: Any
    outputs: list[int] = field(default_factory=list)


@dataclass
class _Batch:
    requests: Sequence[_Request]
    rows: Any
    seq_lens: Any


class _Sglang:
    """What both trees have in common: prompts, and how a cache is opened."""

    _kind: type[_Cache]

    def __init__(self, tree: str) -> None:
        self._allocator = import_module("sglang.srt.mem_cache.allocator.paged")
        self.name = f"SGLang {version('sglang')}, {tree} tree"
        self.cannot: Mapping[str, str] = {
            Operation.FORK: _NO_FORK,
            Operation.COPY_ON_WRITE: _NO_FORK,
        }

    def prompt(self, tokens: npt.NDArray[np.uint32]) -> array[int]:
        """Its trees take nothing else."""
        return array("q", tokens.astype(np.int64).tobytes())

    def open(
        self,
        num_blocks: int,
        block_size: int = BLOCK_SIZE,
        *,
        max_requests: int = 64,
        max_tokens: int = 1 << 18,
    ) -> _Cache:
        import torch

        allocator = self._allocator.PagedTokenToKVPoolAllocator(
            num_blocks * block_size, block_size, torch.float16, "cpu", None, False
        )
        rows = torch.empty((max_requests, max_tokens + block_size), dtype=torch.int32)
        return self._kind(allocator, rows, block_size)


class _Cache:
    """The path of a request through allocator and tree; subclasses know the tree."""

    def __init__(self, allocator: Any, rows: Any, page_size: int) -> None:
        import torch

        self._torch = torch
        self._allocator = allocator
        self._rows = rows
        self._free_rows = list(range(len(rows)))
        self._page_size = page_size
        self._open_tree()

    def _open_tree(self) -> None: ...

    def _find(self, prompt: array[int]) -> tuple[int, Any]:
        """Leading tokens in the tree, at most all but one, and the node they end in."""
        raise NotImplementedError

    def _slots_of(self, node: Any) -> Any:
        raise NotImplementedError

    def _lock(self, node: Any) -> Any:
        raise NotImplementedError

    def _unlock(self, node: Any, lock: Any) -> None:
        raise NotImplementedError

    def _insert(self, tokens: array[int], slots: Any, num_known: int) -> tuple[int, Any]:
        """Tokens that were there already, their slots given back, and the last node."""
        raise NotImplementedError

    def _evict(self, num_tokens: int) -> None:
        raise NotImplementedError

    def _evictable(self) -> int:
        raise NotImplementedError

    def match(self, prompt: array[int]) -> int:
        return self._find(prompt)[0]

    def admit(self, prompt: array[int]) -> _Request:
        torch = self._torch
        num_found, node = self._find(prompt)
        lock = self._lock(node)
        found = self._slots_of(node)
        num_tokens = len(prompt)
        num_new = num_tokens - num_found
        self._make_room(num_new + self._page_size)
        seq_lens = torch.tensor([num_tokens])
        prefix_lens = torch.tensor([num_found])
        last = found[-1:] if num_found else torch.tensor([-1])
        new = self._allocator.alloc_extend(
            prefix_lens, prefix_lens, seq_lens, seq_lens, last, num_new
        )
        if new is None:
            raise MemoryError("SGLang has too few pages")
        number = self._free_rows.pop()
        row = self._rows[number]
        row[:num_found] = found
        row[num_found:num_tokens] = new
        request = _Request(prompt, number, num_tokens, num_found, node, lock)
        self._publish(request, prompt)
        return request

    def _publish(self, request: _Request, tokens: array[int]) -> None:
        num_full = len(tokens) // self._page_size * self._page_size
        known = request.num_inserted
        if num_full == known:
            return
        key = tokens if num_full == len(tokens) else tokens[:num_full]
        row = self._rows[request.row]
        slots = row[:num_full].to(self._torch.int64)
        num_there, node = self._insert(key, slots, known)
        lock = self._lock(node)
        self._unlock(request.node, request.lock)
        request.node, request.lock, request.num_inserted = node, lock, num_full
        if num_there > known:  # another request's pages take the place of these
            row[:num_full] = self._slots_of(node)

    def free(self, request: _Request) -> None:
        if request.num_tokens // self._page_size * self._page_size > request.num_inserted:
            self._publish(request, request.prompt + array("q", request.outputs))
        if request.num_tokens > request.num_inserted:
            tail = self._rows[request.row, request.num_inserted : request.num_tokens]
            self._allocator.free_segment(tail.to(self._torch.int64), start_pos=request.num_inserted)
        self._unlock(request.node, request.lock)
        self._free_rows.append(request.row)

    def batch(self, requests: Sequence[_Request]) -> _Batch:
        tensor = self._torch.tensor
        rows = tensor([request.row for request in requests])
        return _Batch(requests, rows, tensor([request.num_tokens for request in requests]))

    def step(self, batch: _Batch, tokens: array[int]) -> None:
        self._make_room(len(batch.requests) * self._page_size)
        last = self._rows[batch.rows, batch.seq_lens - 1].to(self._torch.int64)
        seq_lens = batch.seq_lens + 1
        slots = self._allocator.alloc_decode(seq_lens, seq_lens, last)
        if slots is None:
            raise MemoryError("SGLang has too few pages")
        self._rows[batch.rows, batch.seq_lens] = slots.to(self._torch.int32)
        batch.seq_lens = seq_lens
        for request, token in zip(batch.requests, tokens, strict=True):
            request.outputs.append(token)
            request.num_tokens += 1

    def _make_room(self, num_tokens: int) -> None:
        # Its engine asks for a page more for each request than the request may need.
        available = self._allocator.available_size()
        if available < num_tokens:
            self._evict(num_tokens - available)

    def fork(self, request: _Request, count: int) -> Sequence[_Request]:
        raise NotImplementedError(_NO_FORK)

    def copies(self) -> int:
        return 0

    def num_free(self) -> int:
        return (self._allocator.available_size() + self._evictable()) // self._page_size

    def scatter(self, order: npt.NDArray[np.int64]) -> None:
        allocator = self._allocator
        slots = allocator.alloc(len(order) * self._page_size)
        allocator.free_page_ids(slots[:: self._page_size][order] // self._page_size)


class _RustCache(_Cache):
    def _open_tree(self) -> None:
        binding = import_module("sglang.srt.mem_cache.rust_tree_core.extension")
        self._binding = binding
        self._match_key = binding.MatchParamsBinding
        parameters = binding.TreeCoreInitParamsBinding(
            eviction_policy="lru", page_size=self._page_size, device="cpu"
        )
        self._tree = binding.RustUnifiedTreeCoreBinding(parameters, [_FULL])
        self._root = self._tree.root_node_handle()

    def _find(self, prompt: array[int]) -> tuple[int, Any]:
        if not len(prompt) % self._page_size:  # a page more would hold the last token
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
        tree.evict_device_start(_FULL, num_tokens)
        step = tree.evict_device_next_node(_FULL, {_FULL: num_evicted})
        while step.node_id is not None:
            leaf = tree.evict_device_leaf(step.node_id)
            for result in (step, leaf):
                num_evicted += result.tracker.get(_FULL, 0)
                for freed in result.new_device_frees.get(_FULL, ()):
                    self._allocator.free_segment(freed, start_pos=0)
            step = tree.evict_device_next_node(_FULL, {_FULL: num_evicted})
        tree.evict_device_end(_FULL)

    def _evictable(self) -> int:
        return self._tree.full_evictable_size()


class SglangRust(_Sglang):
    """SGLang with its tree in Rust."""

    _kind = _RustCache

    def __init__(self) -> None:
        import_module("sglang.srt.mem_cache.rust_tree_core.extension")
        super().__init__("Rust")


_ALONE = "the tree alone, without an allocator, only finds and holds"


class _BareCache(_RustCache):
    """The tree without allocator and rows of slots: the least an admission could do."""

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
        """Brings a prompt in, which nothing here times."""
        num_full = len(prompt) // self._page_size * self._page_size
        self._insert(prompt[:num_full], self._torch.arange(num_full), 0)


class SglangTreeAlone(_Sglang):
    """SGLang's tree in Rust, and nothing else of it."""

    _kind = _BareCache

    def __init__(self) -> None:
        import_module("sglang.srt.mem_cache.rust_tree_core.extension")
        super().__init__("Rust")
        self.name += " alone"
        self.cannot = dict.fromkeys(Operation, _ALONE)
        del self.cannot[Operation.ADMIT]


class _PythonCache(_Cache):
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


class SglangPython(_Sglang):
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
    # Its package index has torchvision for CUDA only; SGLang imports it on the way to the cache,
    # for preprocessors of images that nothing here calls.
    try:
        import_module("torchvision")
    except ImportError:
        import_module("transformers.image_utils")  # looks for the real one, once
        for name in ("torchvision", "torchvision.transforms", "torchvision.transforms.functional"):
            module = _StandIn(name)
            module.__spec__ = importlib.machinery.ModuleSpec(name, None)
            module.__path__ = []
            sys.modules[name] = module
