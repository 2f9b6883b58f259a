"""A device memory of real tensors for random runs with groups.

K of a token is a number that depends on its layer and on all tokens up to its own; so is the state,
in two tensors of different types. A ring has the numbers of its last tokens, and is empty where a
sequence begins. A forward must read exactly these numbers through its tables. The pages start with
random bytes.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch

from blockmgr import FullAttention, RecurrentState
from blockmgr.groups import Group, Ring, tokens_per_block
from blockmgr.kv import GroupedKVCache, HybridShape, LayerShape, ModelShape, StateTensor
from tests.specification.layers import RecurrentState as State
from tests.specification.layers import Ring as RingKind
from tests.specification.layers import kinds_of
from tests.stress.memory import Device, Step, Work, WrongReadError
from tests.stress.profiles import groups_named

KV = ModelShape(num_layers=1, num_kv_heads=2, head_dim=4, dtype=torch.int32)
STATES = (StateTensor((3,), torch.int16), StateTensor((2, 2), torch.int64))
LAYERS_OF_A_GROUP = 2


def layer_of(kind: Group, block_size: int = 1) -> LayerShape:
    """With as many more heads as its blocks have fewer tokens than those of the manager."""
    if isinstance(kind, RecurrentState):
        return LayerShape(kind=kind, states=STATES)
    if isinstance(kind, Ring):
        return LayerShape(kind=kind, states=(StateTensor((kind.width,), torch.int32),))
    heads = KV.num_kv_heads * block_size // tokens_per_block(kind, block_size)
    return LayerShape(kind=kind, kv=replace(KV, num_kv_heads=heads))


def shape_of(layout: Sequence[str], block_size: int) -> HybridShape:
    """Two layers of each kind."""
    groups = groups_named(layout)
    layers = [layer_of(group, block_size) for group in groups for _ in range(LAYERS_OF_A_GROUP)]
    return HybridShape(layers, group_size=LAYERS_OF_A_GROUP)


def number(layer: int, prefix: int, salt: str = "") -> int:
    text = repr((layer, int(prefix), salt)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=3).digest())


class TensorMemory(Device):
    """Runs launched steps on a ``GroupedKVCache``."""

    def __init__(self, num_blocks: int, block_size: int, layout: Sequence[str], backend: str):
        super().__init__(
            num_blocks, block_size, random.Random(0), kinds=kinds_of(groups_named(layout))
        )
        self.shape = shape_of(layout, block_size)
        self.sizes = [tokens_per_block(group, block_size) for group in self.shape.groups]
        self.cache = GroupedKVCache(num_blocks, block_size, self.shape, backend=backend)  # type: ignore[arg-type]
        rng = np.random.default_rng(0)
        for tensor in self.cache.blocks.segments:
            noise = rng.integers(0, 256, tensor.tensor.untyped_storage().nbytes(), np.uint8)
            tensor.tensor.untyped_storage().copy_(torch.from_numpy(noise).untyped_storage())
        self.num_state_copies = self.num_emptied = 0
        assert self.stride == block_size, "a ring is wider than a block"
        first = next(i for i, g in enumerate(self.shape.groups) if isinstance(g, FullAttention))
        assert first == 0

    def forward(self, step: Step) -> None:
        self.cache.copy(step.plan)
        states = [i for i, kind in enumerate(self.kinds) if isinstance(kind, State)]
        self.num_state_copies += int(np.isin(step.plan.groups, states).sum())
        self.num_emptied += len(step.emptied)
        work = [one for one in step.work if one.stop > one.start]
        for group, members in enumerate(self.shape.members):
            for layer in members:
                for one in work:
                    if isinstance(self.kinds[group], State):
                        self.advance(layer, group, one)
                    elif isinstance(self.kinds[group], RingKind):
                        self.turn(layer, group, one)
                    else:
                        self.write(layer, group, one)
                if not isinstance(self.kinds[group], State | RingKind):
                    for one in work:
                        self.read(layer, group, one)

    def k(self, layer: int, one: Work, positions: Iterable[int]) -> torch.Tensor:
        rows = [number(layer, one.prefixes[p]) for p in positions]
        heads, dim = self.cache.keys(layer).shape[2:]
        return torch.tensor(rows, dtype=torch.int32)[:, None, None].expand(-1, heads, dim)

    def write(self, layer: int, group: int, one: Work) -> None:
        places = one.slots[group][one.start :]
        assert (places >= self.stride).all(), f"{one.name} writes the null block"
        slots = places // self.stride * self.sizes[group] + places % self.stride
        k = self.k(layer, one, range(one.start, one.stop))
        self.cache.write(layer, k, -k, slots)

    def read(self, layer: int, group: int, one: Work) -> None:
        kind = self.kinds[group]
        assert not isinstance(kind, State | RingKind)
        start = kind.first_read(one.start)
        table = one.slots[group][:: self.sizes[group]] // self.stride
        keys, values = self.cache.gather(layer, table, one.stop)
        assert values is not None
        due = self.k(layer, one, range(start, one.stop))
        self.num_reads += one.stop - start
        if not (torch.equal(keys[start:], due) and torch.equal(values[start:], -due)):
            raise WrongReadError(f"{one.name} reads foreign K/V in layer {layer}, group {group}")

    def turn(self, layer: int, group: int, one: Work) -> None:
        """Writes and reads position by position."""
        kind = self.kinds[group]
        assert isinstance(kind, RingKind)
        [rings] = self.cache.states(layer)
        own = rings[int(one.slots[group][0]) // self.stride]
        if one.start == one.low[group] and own.any():
            raise WrongReadError(
                f"{one.name} begins with a ring in layer {layer} that is not empty"
            )
        due = [number(layer, prefix) for prefix in one.prefixes]
        for position in range(one.start, one.stop):
            own[position % kind.width] = due[position]
            read = range(kind.first_read(position), position + 1)
            if [int(own[p % kind.width]) for p in read] != [due[p] for p in read]:
                raise WrongReadError(f"{one.name} reads a foreign ring in layer {layer}")
            self.num_reads += 1

    def state(self, layer: int, prefix: int) -> list[torch.Tensor]:
        return [
            torch.full(state.shape, number(layer, prefix, str(i)) % 2**15, dtype=state.dtype)
            for i, state in enumerate(STATES)
        ]

    def advance(self, layer: int, group: int, one: Work) -> None:
        block = int(one.slots[group][0]) // self.stride
        own = [tensor[block] for tensor in self.cache.states(layer)]
        due = self.state(layer, one.prefixes[one.start - 1])
        self.num_reads += 1
        if one.start and not all(map(torch.equal, own, due)):
            raise WrongReadError(f"{one.name} continues with a wrong state in layer {layer}")
        for tensor, new in zip(own, self.state(layer, one.prefixes[-1]), strict=True):
            tensor.copy_(new)
