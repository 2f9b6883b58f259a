"""KVBlocks: copies the blocks of an engine's K/V tensors."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Literal, Protocol
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
import numpy.typing as npt
import torch

from blockmgr._core import CopyChecker, order_copies
from blockmgr.arguments import whole
from blockmgr.blocks import CopyPlan
from blockmgr.errors import CopyError, LayoutError, MissingExtraError, TicketError
from blockmgr.kv import ops
from blockmgr.kv.copy_torch import TorchCopier
from blockmgr.kv.indices import array_of
from blockmgr.kv.pairs import PairBuffer, check_list, columns_of
from blockmgr.kv.registration import Registration, form_of, place_of, register
from blockmgr.uncopied import NotCopied

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blockmgr.kv.layout import Segment

__all__ = ["Copier", "KVBlocks"]

Backend = Literal["torch", "triton"]
Semantics = Literal["sequential", "simultaneous"]
Ints = npt.NDArray[np.int32]

NO_LIMIT = 2**31 - 1


class Copier(Protocol):
    """The interface of a backend. A list is staged and checked on the host, then launched."""

    table: torch.Tensor
    """``int64[num_segments, COLUMNS]``, on the device that ``ops.copy_blocks`` reads."""

    @property
    def chunks(self) -> torch.Tensor | None:
        """For ``ops.copy_blocks``: the chunks of a block for the kernels; None without kernels."""

    def stage(self) -> Ints:
        """``int32[1 + max_pairs, 3]`` to pack a list into; valid until the next launch."""

    def launch(self, source: Registration, destination: Registration, count: int) -> None:
        """Copies the staged pairs from one pool to another, or within one."""

    def move(self, starts: Ints, moves: Ints) -> None:
        """Runs groups of moves from ``order_copies``."""

    def send(self, rows: torch.Tensor, count: int) -> None:
        """Puts the staged count and pairs into ``int32[n, 3]`` on the device."""


class KVBlocks(NotCopied):
    """The blocks of K/V tensors that a manager hands out, registered once for copying.

    A copy runs on the current stream, over all layers, K and V, in one launch, and copies only the
    filled tokens if the layout allows that. Lists are checked on the host before the launch. A call
    neither waits for the device nor allocates, unless eight lists are in flight already: then it
    waits for the oldest of them.

    Use it from one thread at a time. It keeps the tensors alive, and they must keep their memory: a
    call that finds a storage freed or exchanged raises a ``LayoutError`` and copies nothing.
    (``copy_pairs`` and ``copy_buffer`` check the tensors' addresses on each call that is not in a
    graph.) The tensors must not require gradients. The object cannot be pickled or copied, because
    it refers to memory.

    Args:
        segments: Segments from ``segments_from``, for all tensors that belong to a block, in any
            order. Bytes that two segments name are copied once.
        block_size: Tokens per block of the manager.
        backend: None for ``"triton"`` on CUDA and ROCm if it can be imported, else
            ``"torch"``. ``"triton"`` on a CPU is Triton's interpreter, for tests.
        access_bytes: Require accesses of 16, 8, 4, 2 or 1 bytes; None for the widest that all
            segments allow.
        max_pairs: Most pairs per launch, at least 1. A longer plan takes several launches.

    Raises:
        LayoutError: Names the segment: devices or numbers of blocks differ, rows do not hold
            ``block_size`` tokens, two segments share some but not all bytes, or a segment does not
            allow ``access_bytes``.
        MissingExtraError: ``"triton"`` is requested and not installed.
        ValueError: No segments, a number out of range, or no such backend here.
        TypeError: An argument is of the wrong type.

    >>> from blockmgr.kv import segments_from
    >>> k, v = torch.arange(24.0).reshape(2, 3, 2, 1, 2)  # 3 blocks of 2 tokens
    >>> blocks = KVBlocks(segments_from([(k, v)], layout="NHD"), block_size=2)
    >>> blocks.copy_blocks([(0, 1), (1, 2)])
    >>> k[:, 0, 0].tolist()
    [[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]]
    """

    _instead = "register the tensors again, or other ones"

    def __init__(
        self,
        segments: Sequence[Segment],
        *,
        block_size: int,
        backend: Backend | None = None,
        access_bytes: int | None = None,
        max_pairs: int = 4096,
    ) -> None:
        self._max_pairs = whole("max_pairs", max_pairs, 1, NO_LIMIT)
        self._registered = register(segments, block_size, access_bytes)
        self._backend = _choose_backend(backend, self.device)
        with torch.inference_mode(False):  # views made in it cannot be written outside
            self._copier = _make_copier(self._backend, self._registered, self._max_pairs)
        self._checker = CopyChecker(self.num_blocks, self.block_size)
        self._to: WeakKeyDictionary[KVBlocks, CopyChecker] = WeakKeyDictionary()
        self._done: WeakSet[CopyPlan] = WeakSet()
        # A compiled function reads these as plain attributes.
        self._table, self._chunks = self._copier.table, self._copier.chunks
        self._tensors = self._registered.tensors
        self._place, self._form = place_of(self._tensors), form_of(self._tensors)
        self._no_limit = torch.tensor([NO_LIMIT], dtype=torch.int32, device=self.device)

    @property
    def num_blocks(self) -> int:
        """Number of blocks; ids are in ``[0, num_blocks)``."""
        return self._registered.num_blocks

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self._registered.block_size

    @property
    def device(self) -> torch.device:
        """Device of the blocks."""
        return self._registered.device

    @property
    def backend(self) -> Backend:
        """The backend that copies: ``"torch"`` or ``"triton"``."""
        return self._backend

    @property
    def access_bytes(self) -> int:
        """Bytes that one access of a kernel moves."""
        return self._registered.access_bytes

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments to copy; each byte of a block is in one of them."""
        return self._registered.segments

    @property
    def num_segments(self) -> int:
        """The number of segments in a copy."""
        return len(self._registered.segments)

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one whole block over all segments."""
        return self._registered.bytes_per_block

    @property
    def max_pairs(self) -> int:
        """Pairs per launch."""
        return self._max_pairs

    def copy(self, plan: CopyPlan) -> None:
        """Runs the copies of a plan, after the zeroing of new blocks and before the forward.

        Args:
            plan: A plan from ``take_copies()``. Each plan can be copied once, because its
                destinations may hold newer tokens later.

        Raises:
            TicketError: This plan has been copied already.
            CopyError: Names the pair: an id or a number of tokens is out of range, a destination
                appears twice, or a block is both source and destination. Nothing is copied.
            StepError: The stream is being captured into a graph; see ``pair_buffer``.
            TypeError: Not a plan.
        """
        self._refuse_twice(plan)
        self._registered.check_memory()
        rows = self._copier.stage()
        total = self._checker.check(plan.sources, plan.destinations, self._tokens(plan), rows)
        self._launch(total, self._checker, self._registered, self._registered)
        self._done.add(plan)

    def _tokens(self, plan: CopyPlan) -> Ints:
        """The leading tokens to copy of each pair, as the segments have them."""
        return plan.num_tokens

    def _launch(
        self,
        total: int,
        checker: CopyChecker,
        source: Registration,
        destination: Registration,
    ) -> None:
        """Launches a checked list whose first pairs are packed."""
        for start in range(0, total, self._max_pairs):
            if start:
                checker.pack(start, self._copier.stage())
            self._copier.launch(source, destination, min(total - start, self._max_pairs))

    def _refuse_twice(self, plan: CopyPlan) -> None:
        if not isinstance(plan, CopyPlan):
            raise TypeError(f"plan must be a CopyPlan, got {type(plan).__name__}")
        if plan in self._done:
            raise TicketError(f"the plan of ticket {plan.ticket} has been copied already")

    def copy_blocks(self, pairs: npt.ArrayLike, *, semantics: Semantics = "sequential") -> None:
        """Copies whole blocks by any list: chains, swaps, several copies into one block.

        Args:
            pairs: ``int[n, 2]`` on the host: (source, destination).
            semantics: ``"sequential"``: as if copied one after the other. ``"simultaneous"``: as if
                all reads came before all writes.

        Raises:
            CopyError: Names the pair: an id is out of range, or ``"simultaneous"`` and a
                destination appears twice. Nothing is copied.
            ValueError: ``pairs`` has another shape, or ``semantics`` is unknown.
            TypeError: ``pairs`` does not hold integers.

        Cost: One launch. The host resolves the list in O(n).
        """
        if semantics not in ("sequential", "simultaneous"):
            raise ValueError(f"semantics must be 'sequential' or 'simultaneous', got {semantics!r}")
        in_order = semantics == "sequential"
        starts, moves = order_copies(*columns_of(pairs), self.num_blocks, in_order)
        self._registered.check_memory()
        if len(moves):
            self._copier.stage()
            self._copier.move(starts, moves)

    def zero(self, blocks: npt.ArrayLike) -> None:
        """Fills whole blocks with zero bytes; call it first in a step, before the copies.

        Args:
            blocks: ``int[n]`` on the host; a block may appear more than once.

        Raises:
            CopyError: Names the first id out of range, as a pair. Nothing is filled.
            ValueError: ``blocks`` has another shape.
            TypeError: ``blocks`` does not hold integers.
        """
        ids = array_of("blocks", blocks, 1)
        self._registered.check_memory()
        total = self._checker.check_blocks(ids, self._copier.stage())
        self._launch(total, self._checker, self._registered, self._registered)

    def copy_to(self, other: KVBlocks, pairs: npt.ArrayLike) -> None:
        """Copies whole blocks into another pool, as swapping does.

        Between a GPU and pinned host memory, the kernel reads or writes host memory directly: the
        call returns at once, and the host must not touch its blocks until the stream has run the
        copy. The torch backend waits for the device instead.

        Args:
            other: A pool with the same bytes and rows per block, on this device or on the host.
            pairs: ``int[n, 2]`` on the host: (source here, destination in ``other``).

        Raises:
            CopyError: Names the pair: an id is out of range, or a destination appears twice.
                Nothing is copied.
            LayoutError: Names the segment of ``other`` that differs or cannot be reached.
            ValueError: ``other`` is this pool, or ``pairs`` has another shape.
            TypeError: An argument is of the wrong type.
        """
        if not isinstance(other, KVBlocks):
            raise TypeError(f"other must be KVBlocks, got {type(other).__name__}")
        if other is self:
            raise ValueError("other must be another pool; copy_blocks copies within one")
        self._registered.check_alike(other._registered)
        self._registered.check_memory()
        other._registered.check_memory()
        runner = self._runner(other)
        rows = runner._copier.stage()
        checker = self._to.get(other)
        if checker is None:
            checker = CopyChecker(self.num_blocks, self.block_size, other.num_blocks)
            self._to[other] = checker
        total = checker.check(*columns_of(pairs), None, rows)
        runner._launch(total, checker, self._registered, other._registered)

    def _runner(self, other: KVBlocks) -> KVBlocks:
        """The pool that launches: the one on the GPU, if there is one."""
        if self.device == other.device:
            return self
        on_host = [pool for pool in (self, other) if pool.device.type == "cpu"]
        if len(on_host) != 1:
            raise LayoutError(
                other.segments[0].name, f"is on {other.device}, the other pool on {self.device}"
            )
        runner = other if on_host[0] is self else self
        if runner.backend == "triton":
            for segment in on_host[0].segments:
                if not segment.tensor.is_pinned():
                    raise LayoutError(
                        segment.name, "must be in pinned memory for a kernel to reach it"
                    )
        return runner

    def pair_buffer(self, max_pairs: int) -> PairBuffer:
        """A list in device memory, for copies inside a CUDA graph or a compiled function.

        Args:
            max_pairs: Most pairs it can hold, in ``[1, self.max_pairs]``. A graph always launches
                work for this many pairs.

        Raises:
            ValueError: ``max_pairs`` is out of range.
            TypeError: ``max_pairs`` is not an int.
        """
        rows = 1 + whole("max_pairs", max_pairs, 1, self._max_pairs)
        return PairBuffer(
            self, torch.zeros(rows, 3, dtype=torch.int32, device=self.device), self._fill
        )

    def _fill(self, rows: torch.Tensor, plan: CopyPlan) -> None:
        """Puts a plan into the rows of a buffer."""
        self._refuse_twice(plan)
        self._registered.check_memory()
        staged = self._copier.stage()
        total = self._checker.check(plan.sources, plan.destinations, self._tokens(plan), staged)
        if total >= len(rows):
            raise CopyError(None, f"the plan has {total} pairs, the buffer holds {len(rows) - 1}")
        self._copier.send(rows, total)
        self._done.add(plan)

    def copy_buffer(self, buffer: PairBuffer) -> None:
        """Copies the pairs that the buffer holds at the launch; can be captured in a graph.

        Args:
            buffer: A buffer from ``pair_buffer`` of this object.

        Raises:
            ValueError: The buffer belongs to another object.
            TypeError: Not a buffer.
        """
        if not isinstance(buffer, PairBuffer):
            raise TypeError(f"buffer must be a PairBuffer, got {type(buffer).__name__}")
        if buffer.owner is not self:
            raise ValueError("buffer must come from pair_buffer() of the same KVBlocks")
        self.copy_pairs(buffer.pairs, buffer.count)

    def copy_pairs(self, pairs: torch.Tensor, count: torch.Tensor | None = None) -> None:
        """Copies a list that is on the device, through ``torch.ops.blockmgr.copy_blocks``.

        The list cannot be checked without waiting for the device. Pairs with an id out of range or
        without tokens are skipped, and a number of tokens above the block size means the whole
        block. The caller must make sure that no block is both read and written. Source -1 fills
        with zeros.

        Args:
            pairs: ``int32[n, 3]`` on the device, contiguous: source, destination, tokens.
            count: ``int32[1]`` on the device: number of leading pairs to copy; None for all.

        Raises:
            ValueError: A tensor is of another shape, type or device.
            TypeError: An argument is not a tensor.
        """
        num_pairs = len(pairs) if isinstance(pairs, torch.Tensor) and pairs.ndim else 0
        check_list(pairs, (num_pairs, 3), "pairs", self.device)
        if num_pairs > self._max_pairs:
            raise ValueError(f"pairs must be at most {self._max_pairs}, got {num_pairs}")
        if count is None:
            count = self._no_limit
        check_list(count, (1,), "count", self.device)
        ops.copy_blocks(
            self._tensors,
            self._table,
            self._chunks,
            pairs,
            count,
            self.num_blocks,
            self.access_bytes,
            self._place,
            self._form,
        )


def _choose_backend(backend: str | None, device: torch.device) -> Backend:
    has_triton = importlib.util.find_spec("triton") is not None
    if backend is None:
        return "triton" if device.type == "cuda" and has_triton else "torch"
    if backend == "torch":
        return "torch"
    if backend != "triton":
        raise ValueError(f"backend must be 'torch', 'triton' or None, got {backend!r}")
    if device.type not in ("cuda", "cpu"):
        raise ValueError(f"backend 'triton' needs CUDA or ROCm, the tensors are on {device}")
    if not has_triton:
        raise MissingExtraError("torch", "backend 'triton'")
    return "triton"


def _make_copier(backend: Backend, registered: Registration, max_pairs: int) -> Copier:
    if backend == "torch":
        return TorchCopier(registered, max_pairs)
    from blockmgr.kv.copy_triton import TritonCopier  # noqa: PLC0415  (imports triton)

    return TritonCopier(registered, max_pairs)
