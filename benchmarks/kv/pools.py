"""K/V tensors of known models in one buffer with guards, and a mirror to check against.

All tensors of a pool are views of one buffer, separated by guards. So one comparison covers the
whole pool, guards included, and a contiguous copy of any length fits in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

__all__ = ["GUARD", "MODELS", "Copies", "Model", "Pool"]

GUARD = 0xA5
"""Every byte between two tensors."""

GUARD_BYTES = 4096
COMPARED_AT_ONCE = 1 << 30
"""Bytes; a comparison itself allocates an eighth of it."""


@dataclass(frozen=True)
class Model:
    """The shape of one block of a model, in each of its tensors.

    Attributes:
        parts: Tensors per layer: K and V, or only the latent.
        block_shape: Axes of a block in each tensor, as the layout orders them.
        layout: Preset of ``segments_from``.
        token_axis: Which axis of a block counts tokens.
    """

    name: str
    num_layers: int
    parts: int
    block_shape: tuple[int, ...]
    dtype: torch.dtype
    layout: str
    token_axis: int = 0

    @property
    def block_size(self) -> int:
        return self.block_shape[self.token_axis]

    @property
    def num_tensors(self) -> int:
        return self.num_layers * self.parts

    @property
    def bytes_per_block(self) -> int:
        """All layers, K and V."""
        return self.num_tensors * prod(self.block_shape) * self.dtype.itemsize

    @property
    def bytes_per_token(self) -> int:
        return self.bytes_per_block // self.block_size


MODELS = (
    Model("Llama-3-8B bf16", 32, 2, (16, 8, 128), torch.bfloat16, "NHD"),
    Model("Llama-3-8B fp8", 32, 2, (16, 8, 128), torch.uint8, "NHD"),
    Model("Llama-3-70B bf16", 80, 2, (16, 8, 128), torch.bfloat16, "NHD"),
    Model("Llama-3-70B bf16 TP8", 80, 2, (16, 1, 128), torch.bfloat16, "NHD"),
    Model("MLA bf16 576", 61, 1, (64, 576), torch.bfloat16, "MLA"),
    Model("MLA fp8 656 B", 61, 1, (64, 656), torch.uint8, "MLA"),
    Model("Llama-3-8B bf16 HND", 32, 2, (8, 16, 128), torch.bfloat16, "HND", token_axis=1),
)


@dataclass(frozen=True)
class Copies:
    """One list of block copies on the host, as a plan holds it.

    Attributes:
        whole: Every block is copied whole.
    """

    sources: npt.NDArray[np.int32]
    destinations: npt.NDArray[np.int32]
    num_tokens: npt.NDArray[np.int32]
    whole: bool

    def __len__(self) -> int:
        return len(self.sources)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        columns = (self.sources, self.destinations, self.num_tokens)
        return zip(*(column.tolist() for column in columns), strict=True)

    def num_bytes(self, model: Model) -> int:
        """Bytes to be copied, counted once."""
        return int(self.num_tokens.sum()) * model.bytes_per_token


class Pool:
    """The tensors of a model, and a mirror of the same size that is updated on demand."""

    def __init__(self, model: Model, num_blocks: int, device: torch.device, seed: int) -> None:
        self.model = model
        self.num_blocks = num_blocks
        self.device = device
        self._shape = (num_blocks, *model.block_shape)
        self._tensor_bytes = prod(self._shape) * model.dtype.itemsize
        self._stride = self._tensor_bytes + GUARD_BYTES
        size = model.num_tensors * self._stride + GUARD_BYTES
        generator = torch.Generator(device).manual_seed(seed)
        self.memory = torch.empty(size, dtype=torch.uint8, device=device)
        self.memory.view(torch.int64).random_(generator=generator)
        for start in range(0, size, self._stride):
            self.memory[start : start + GUARD_BYTES] = GUARD
        self.mirror = torch.empty_like(self.memory)
        self.tensors = self._views(self.memory)
        self.mirror_tensors = self._views(self.mirror)
        self._random = np.random.default_rng(seed)

    def _views(self, memory: torch.Tensor) -> list[torch.Tensor]:
        starts = range(GUARD_BYTES, len(memory), self._stride)
        return [
            memory[start : start + self._tensor_bytes].view(self.model.dtype).view(self._shape)
            for start in starts
        ]

    def layers(self) -> list[Any]:
        """The tensors as an engine holds them: for each layer a tuple of K and V, or the latent."""
        if self.model.parts == 1:
            return list(self.tensors)
        return list(zip(self.tensors[::2], self.tensors[1::2], strict=True))

    def draw(self, pairs: int, *, whole: bool) -> Copies:
        """Random copies of which no two have a block in common, with the case's token counts."""
        blocks = self._random.choice(self.num_blocks, 2 * pairs, replace=False).astype(np.int32)
        block_size = self.model.block_size
        num_tokens = np.full(pairs, block_size, np.int32)
        if not whole:
            num_tokens = self._random.integers(1, block_size, pairs, dtype=np.int32)
        return Copies(blocks[:pairs].copy(), blocks[pairs:].copy(), num_tokens, whole)

    def draw_span(self, num_bytes: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Two contiguous ranges of that many bytes, one in the pool and one in the mirror."""
        latest = (len(self.memory) - num_bytes) // 256 + 1
        source, destination = (int(i) * 256 for i in self._random.integers(0, latest, 2))
        return (
            self.memory[source : source + num_bytes],
            self.mirror[destination : destination + num_bytes],
        )

    def refresh_mirror(self) -> None:
        """Makes the mirror equal to the pool."""
        self.mirror.copy_(self.memory)

    def copy_in_mirror(self, copies: Copies, *, whole: bool) -> None:
        """The oracle: plain indexing, one tensor and one token count at a time."""
        for count in np.unique(copies.num_tokens).tolist():
            chosen = copies.num_tokens == count
            sources, destinations = (
                torch.from_numpy(ids[chosen].astype(np.int64)).to(self.device)
                for ids in (copies.sources, copies.destinations)
            )
            stop = self.model.block_size if whole else count
            for tensor in self.mirror_tensors:
                tokens = tensor.narrow(1 + self.model.token_axis, 0, stop)
                tokens[destinations] = tokens[sources]

    def equals_mirror(self) -> bool:
        """Whether every byte is the same: all blocks, copied or not, and all guards."""
        guards = self.memory.as_strided(
            (self.model.num_tensors + 1, GUARD_BYTES), (self._stride, 1)
        )
        return bool((guards == GUARD).all()) and all(
            torch.equal(ours, oracle)
            for ours, oracle in zip(
                self.memory.split(COMPARED_AT_ONCE),
                self.mirror.split(COMPARED_AT_ONCE),
                strict=True,
            )
        )
