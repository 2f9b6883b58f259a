"""Small K/V tensors in guarded memory, in every layout, and what a copy should leave in them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import pytest

from blockmgr import CopyPlan

torch = pytest.importorskip("torch", reason="blockmgr.kv needs torch")

from blockmgr.kv import (  # noqa: E402  (torch is there)
    KVBlocks,
    ModelShape,
    PagedKVCache,
    Segment,
    segments_from,
)

__all__ = [
    "LAYOUTS",
    "KVBlocks",
    "Layout",
    "ModelShape",
    "PagedKVCache",
    "Place",
    "World",
    "delay",
    "draw_plan",
    "no_device",
    "plan_of",
    "segments_from",
    "synchronisation_is_an_error",
    "torch",
]

GUARD = 0xA5
GUARD_BYTES = 256

Pairs = Sequence[tuple[int, int]]
Entry = tuple[int, int, int]
"""Source, destination and tokens."""

TICKETS = count()


def no_device() -> str:
    """The reason why tests cannot run on a device; empty if they can."""
    return "" if torch.cuda.is_available() else "torch sees no CUDA or ROCm device"


@dataclass(frozen=True)
class Place:
    """A device and the backend that copies on it."""

    device: str
    backend: str

    def synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


@dataclass(frozen=True)
class Layout:
    """Tensors of one kind: their axes, sizes and type.

    Attributes:
        given: The argument of ``segments_from``: a preset or the axes.
        axes: The names of the axes, from which ``block`` and ``token`` are found.
        shape: Sizes for ``num_blocks`` and ``block_size``.
        whole: The layout cannot copy part of a block, so it copies whole blocks.
        padding: Elements left unused behind each block.
    """

    given: str
    axes: str
    shape: Callable[[int, int], tuple[int, ...]]
    dtype: torch.dtype = torch.bfloat16
    whole: bool = False
    padding: int = 0

    def by_token(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor seen as ``[num_blocks, block_size, ...]``."""
        axes = self.axes.split()
        if "token" not in axes:
            return tensor.movedim(axes.index("block"), 0).unsqueeze(1)
        return tensor.movedim((axes.index("block"), axes.index("token")), (0, 1))


HEADS, DIM, LAYERS = 2, 64, 3
LAYOUTS = {
    "NHD": Layout("NHD", "block token head dim", lambda n, b: (n, b, HEADS, DIM)),
    "HND": Layout("HND", "block head token dim", lambda n, b: (n, HEADS, b, DIM)),
    "K and V interleaved": Layout(
        "HND", "block head token dim", lambda n, b: (n, HEADS, b, 2 * DIM)
    ),
    "MLA": Layout("MLA", "block token latent", lambda n, b: (n, b, 576)),
    "MLA, 656 bytes": Layout("MLA", "block token latent", lambda n, b: (n, b, 656), torch.uint8),
    "K and V first": Layout(
        "KV_NHD", "kv block token head dim", lambda n, b: (2, n, b, HEADS, DIM)
    ),
    "K and V first, HND": Layout(
        "KV_HND", "kv block head token dim", lambda n, b: (2, n, HEADS, b, DIM)
    ),
    "K and V in the block": Layout(
        "BLOCK_KV_NHD", "block kv token head dim", lambda n, b: (n, 2, b, HEADS, DIM)
    ),
    "K and V in the block, HND": Layout(
        "BLOCK_KV_HND", "block kv head token dim", lambda n, b: (n, 2, HEADS, b, DIM)
    ),
    "all layers fused": Layout(
        "FUSED_NHD",
        "block layer kv token head dim",
        lambda n, b: (n, LAYERS, 2, b, HEADS, DIM),
    ),
    "packed K": Layout(
        "block head pack token lane",
        "block head pack token lane",
        lambda n, b: (n, HEADS, DIM // 8, b, 8),
    ),
    "V by token last": Layout(
        "block head dim token",
        "block head dim token",
        lambda n, b: (n, HEADS, DIM, b),
        whole=True,
    ),
    "scales": Layout("block token head", "block token head", lambda n, b: (n, b, 4), torch.float32),
    "padded blocks": Layout(
        "NHD", "block token head dim", lambda n, b: (n, b, HEADS, DIM), padding=DIM
    ),
    "8-bit": Layout("NHD", "block token head dim", lambda n, b: (n, b, HEADS, DIM), torch.uint8),
    "odd dim": Layout("NHD", "block token head dim", lambda n, b: (n, b, HEADS, 3)),
    "odd bytes": Layout("NHD", "block token head dim", lambda n, b: (n, b, 1, 5), torch.uint8),
}


class World:
    """The tensors of one or more layouts, registered together, and a twin on the processor.

    Every tensor lies between guards; comparisons cover all memory, guards included.
    """

    def __init__(
        self,
        layouts: Iterable[Layout],
        place: Place,
        num_blocks: int = 24,
        block_size: int = 5,
        **options: Any,
    ) -> None:
        self.place = place
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.layouts = list(layouts)
        self.memory: list[torch.Tensor] = []
        self.tensors: list[torch.Tensor] = []
        segments: list[Segment] = []
        for index, layout in enumerate(self.layouts):
            memory, tensor = _guarded(layout, num_blocks, block_size, place.device, seed=index)
            self.memory.append(memory)
            self.tensors.append(tensor)
            segments += segments_from(tensor, layout=layout.given, name=f"tensor {index}")
        self.blocks = KVBlocks(segments, block_size=block_size, backend=place.backend, **options)
        self.twin = [memory.to("cpu", copy=True) for memory in self.memory]

    def _twins(self) -> Iterator[tuple[Layout, torch.Tensor]]:
        """The twin's tensors by token."""
        for layout, memory in zip(self.layouts, self.twin, strict=True):
            tensor = _view(memory, layout, self.num_blocks, self.block_size)
            yield layout, layout.by_token(tensor)

    def expect(self, entries: Iterable[Entry]) -> None:
        """Makes the copies in the twin, one entry after the other."""
        entries = list(entries)
        for layout, tensor in self._twins():
            for source, destination, n in entries:
                stop = tensor.shape[1] if layout.whole else n
                tensor[destination, :stop] = tensor[source, :stop].clone()

    def expect_at_once(self, pairs: Pairs) -> None:
        """Copies whole blocks in the twin; reads all of them before it writes."""
        for _, tensor in self._twins():
            blocks = [tensor[source].clone() for source, _ in pairs]
            for block, (_, destination) in zip(blocks, pairs, strict=True):
                tensor[destination] = block

    def expect_zero(self, blocks: Iterable[int]) -> None:
        """Zero bytes in the twin."""
        for _, tensor in self._twins():
            for block in blocks:
                tensor[block] = 0

    def check(self) -> None:
        """Compares all memory with the twin's."""
        self.place.synchronize()
        for layout, memory, twin in zip(self.layouts, self.memory, self.twin, strict=True):
            assert torch.equal(memory.cpu(), twin), layout.axes


def _guarded(
    layout: Layout, num_blocks: int, block_size: int, device: str, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    size = _num_bytes(layout, num_blocks, block_size) + 2 * GUARD_BYTES
    memory = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
    memory[:GUARD_BYTES] = memory[-GUARD_BYTES:] = GUARD
    memory = memory.to(device)
    return memory, _view(memory, layout, num_blocks, block_size)


def _num_bytes(layout: Layout, num_blocks: int, block_size: int) -> int:
    elements = int(np.prod(layout.shape(num_blocks, block_size))) + num_blocks * layout.padding
    return elements * layout.dtype.itemsize


def _view(memory: torch.Tensor, layout: Layout, num_blocks: int, block_size: int) -> torch.Tensor:
    """The tensor inside its guards."""
    shape = layout.shape(num_blocks, block_size)
    inside = memory[GUARD_BYTES:-GUARD_BYTES].view(layout.dtype)
    if not layout.padding:
        return inside.view(shape)
    inside = inside.view(num_blocks, -1)
    return inside[:, : -layout.padding].view(shape)


def plan_of(entries: Iterable[Entry]) -> CopyPlan:
    """A plan as ``take_copies`` returns it."""
    columns = np.array(list(entries), np.int32).reshape(-1, 3).T.copy()
    return CopyPlan(next(TICKETS), *columns)


def draw_plan(
    random: np.random.Generator, num_blocks: int, block_size: int, most: int | None = None
) -> list[Entry]:
    """Entries as a manager plans them: sources may repeat, and are never destinations."""
    order = random.permutation(num_blocks).tolist()
    num_sources = int(random.integers(1, num_blocks // 2))
    sources, destinations = order[:num_sources], order[num_sources:]
    return [
        (int(random.choice(sources)), destination, int(random.integers(1, block_size + 1)))
        for destination in destinations[: random.integers(1, (most or num_blocks) + 1)]
    ]


@contextmanager
def synchronisation_is_an_error() -> Iterator[None]:
    """Makes torch raise on every call of its own that waits for the device."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls the mode a prototype
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


def delay() -> None:
    """Keeps the current stream busy for about a tenth of a second, so that work piles up."""
    torch.cuda._sleep(200_000_000)
