"""A device memory of real tensors for the engines of ``tests.groups``.

K of a token is a number that depends on its layer and on all tokens up to its own; so is the state,
in two tensors of different types. A forward must read exactly these numbers through its tables. The
pages start with random bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from blockmgr import CopyPlan, FullAttention, RecurrentState
from blockmgr.groups import Group
from blockmgr.kv import GroupedKVCache, HybridShape, LayerShape, ModelShape, StateTensor
from tests.groups.core import group_of
from tests.groups.memory import Copy, Prefix, Work, WrongRead
from tests.specification.layers import Kind
from tests.specification.layers import RecurrentState as State

KV = ModelShape(num_layers=1, num_kv_heads=2, head_dim=4, dtype=torch.int32)
STATES = (StateTensor((3,), torch.int16), StateTensor((2, 2), torch.int64))
LAYERS_OF_A_GROUP = 2


def layer_of(kind: Group) -> LayerShape:
    if isinstance(kind, RecurrentState):
        return LayerShape(kind=kind, states=STATES)
    return LayerShape(kind=kind, kv=KV)


def shape_of(kinds: Sequence[Kind]) -> HybridShape:
    """Two layers of each kind."""
    groups = [group_of(kind) for kind in kinds]
    layers = [layer_of(group) for group in groups for _ in range(LAYERS_OF_A_GROUP)]
    return HybridShape(layers, group_size=LAYERS_OF_A_GROUP)


def number(layer: int, prefix: Prefix, salt: str = "") -> int:
    text = repr((layer, prefix, salt)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=3).digest())


class TensorMemory:
    """Runs launched steps on a ``GroupedKVCache``."""

    def __init__(self, num_blocks: int, block_size: int, kinds: Sequence[Kind], backend: str):
        self.kinds, self.shape = kinds, shape_of(kinds)
        self.size = block_size
        self.cache = GroupedKVCache(num_blocks, block_size, self.shape, backend=backend)  # type: ignore[arg-type]
        rng = np.random.default_rng(0)
        for tensor in self.cache.blocks.segments:
            noise = rng.integers(0, 256, tensor.tensor.untyped_storage().nbytes(), np.uint8)
            tensor.tensor.untyped_storage().copy_(torch.from_numpy(noise).untyped_storage())
        self.tickets = 0
        self.num_reads = 0
        self.num_state_copies = 0
        first = next(i for i, g in enumerate(self.shape.groups) if isinstance(g, FullAttention))
        assert first == 0

    def run(self, copies: Iterable[Copy], work: Sequence[Work]) -> None:
        listed = list(copies)
        self.tickets += 1
        columns = [
            np.array([getattr(copy, name) for copy in listed], np.int32)
            for name in ("source", "destination", "num_tokens", "group")
        ]
        self.cache.copy(CopyPlan(self.tickets, *columns))
        states = [i for i, kind in enumerate(self.kinds) if isinstance(kind, State)]
        self.num_state_copies += sum(copy.group in states for copy in listed)
        for group, members in enumerate(self.shape.members):
            for layer in members:
                for one in work:
                    if isinstance(self.kinds[group], State):
                        self.advance(layer, group, one)
                    else:
                        self.write(layer, group, one)
                if not isinstance(self.kinds[group], State):
                    for one in work:
                        self.read(layer, group, one)

    def k(self, layer: int, one: Work, positions: Iterable[int]) -> torch.Tensor:
        namespace, tokens = one.prefix
        rows = [number(layer, (namespace, tokens[: p + 1])) for p in positions]
        return torch.tensor(rows, dtype=torch.int32)[:, None, None].expand(-1, 2, 4)

    def write(self, layer: int, group: int, one: Work) -> None:
        positions = np.arange(one.start, one.stop)
        table = np.array(one.tables[group])
        slots = table[positions // self.size].astype(np.int64) * self.size + positions % self.size
        assert (slots >= self.size).all(), f"{one.name} writes the null block"
        k = self.k(layer, one, positions.tolist())
        self.cache.write(layer, k, -k, slots)

    def read(self, layer: int, group: int, one: Work) -> None:
        kind = self.kinds[group]
        assert not isinstance(kind, State)
        start = min(kind.first_read(query) for query in range(one.start, one.stop))
        keys, values = self.cache.gather(layer, np.array(one.tables[group]), one.stop)
        assert values is not None
        due = self.k(layer, one, range(start, one.stop))
        self.num_reads += one.stop - start
        if not (torch.equal(keys[start:], due) and torch.equal(values[start:], -due)):
            raise WrongRead(f"{one.name} reads foreign K/V in layer {layer}, group {group}")

    def state(self, layer: int, prefix: Prefix) -> list[torch.Tensor]:
        return [
            torch.full(state.shape, number(layer, prefix, str(i)) % 2**15, dtype=state.dtype)
            for i, state in enumerate(STATES)
        ]

    def advance(self, layer: int, group: int, one: Work) -> None:
        [block] = one.tables[group]
        namespace, tokens = one.prefix
        own = [tensor[block] for tensor in self.cache.states(layer)]
        due = self.state(layer, (namespace, tokens[: one.start]))
        self.num_reads += 1
        if one.start and not all(map(torch.equal, own, due)):
            raise WrongRead(f"{one.name} continues with a wrong state in layer {layer}")
        for tensor, new in zip(
            own, self.state(layer, (namespace, tokens[: one.stop])), strict=True
        ):
            tensor.copy_(new)
