"""Lists of pairs: reads the caller's, and sends them to a device by a ring or for a graph."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from blockmgr.blocks import CopyPlan
from blockmgr.kv.indices import array_of
from blockmgr.uncopied import NotCopied

__all__ = [
    "PairBuffer",
    "PairRing",
    "Slot",
    "StreamEvent",
    "check_list",
    "columns_of",
    "make_ring",
    "on_device",
]

RING_SIZE = 8
"""Most lists in flight; the next one waits for the oldest."""


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """The context in which to launch a kernel: Triton launches on the current device.

    It is the current one in nearly every call, and to enter it again takes a tenth of a launch.
    """
    if device.type == "cpu" or device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)


class StreamEvent(Protocol):
    """The part of ``torch.cuda.Event`` that a ring uses."""

    def record(self) -> None:
        """Marks this point in the current stream."""

    def query(self) -> bool:
        """Whether the device has passed the mark."""

    def synchronize(self) -> None:
        """Waits until it has."""


class Slot:
    """Memory for one list, on the host and on the device.

    Attributes:
        host: ``int32[capacity]``, pinned where the device is a GPU.
        device: ``int32[capacity]`` on the device; ``host`` itself on a CPU.
        numbers: ``host`` as an array.
        rows: The same with three numbers per row: a count, then a list of pairs.
        device_pairs: ``device`` from the first pair on.
    """

    def __init__(self, host: torch.Tensor, device: torch.Tensor, event: StreamEvent | None) -> None:
        self.host = host
        self.device = device
        self.device_pairs = device[3:]
        self.numbers: npt.NDArray[np.int32] = host.numpy()
        self.rows = self.numbers.reshape(-1, 3)
        self._event = event
        self._in_flight = False

    def wait(self) -> None:
        """Waits until no launch reads the slot."""
        if self._in_flight and self._event is not None and not self._event.query():
            self._event.synchronize()
        self._in_flight = False

    def mark(self) -> None:
        """Marks that everything that reads the slot is enqueued."""
        if self._event is not None:
            self._event.record()
            self._in_flight = True


class PairRing:
    """Slots used in turn. A slot is rewritten only after the launches that read it have run.

    The host writes a list, and the device reads it later: with a single buffer, the host would
    overwrite the list of a launch that still waits. If all slots are in flight, ``free`` waits for
    the oldest, which limits how far an engine runs ahead.
    """

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots
        self._next = 0

    @property
    def free(self) -> Slot:
        """The slot with the oldest launch, safe to write; the same one until it is used."""
        slot = self._slots[self._next]
        slot.wait()
        return slot

    @contextmanager
    def using(self) -> Iterator[Slot]:
        """Work enqueued inside this context may read the slot.

        Marks the slot after an error as well, because part of the work may be enqueued.
        """
        slot = self._slots[self._next]
        try:
            yield slot
        finally:
            self._next = (self._next + 1) % len(self._slots)
            slot.mark()


def make_ring(
    capacity: int, device: torch.device, make_event: Callable[[], StreamEvent] = torch.cuda.Event
) -> PairRing:
    """A ring for a device; a CPU needs only one slot, because its launches are synchronous.

    Args:
        capacity: Most rows of three numbers in a list.
        device: Device that reads the lists.
        make_event: Makes an event for the device.
    """
    if device.type == "cpu":
        host = torch.zeros(3 * capacity, dtype=torch.int32)
        return PairRing([Slot(host, host, None)])
    return PairRing(
        [
            Slot(
                torch.zeros(3 * capacity, dtype=torch.int32, pin_memory=True),
                torch.zeros(3 * capacity, dtype=torch.int32, device=device),
                make_event(),
            )
            for _ in range(RING_SIZE)
        ]
    )


class PairBuffer(NotCopied):
    """A list of copies in device memory, filled before each replay of a graph that reads it.

    ::

        buffer = kv.pair_buffer(64)
        with torch.cuda.graph(graph):
            kv.copy_buffer(buffer)
            ...  # the forward
        for each step:
            buffer.fill(manager.take_copies())  # also when the plan is empty
            graph.replay()

    Attributes:
        owner: The ``KVBlocks`` it belongs to.
        count: ``int32[1]`` on the device.
        pairs: ``int32[max_pairs, 3]`` on the device: source, destination, tokens.
    """

    _instead = "make another one with pair_buffer() of its owner"

    def __init__(
        self,
        owner: object,
        rows: torch.Tensor,
        fill: Callable[[torch.Tensor, CopyPlan], None],
    ) -> None:
        self.owner = owner
        self.count = rows[0, :1]
        self.pairs = rows[1:]
        self._rows = rows
        self._fill = fill

    @property
    def max_pairs(self) -> int:
        """Most pairs it can hold."""
        return len(self.pairs)

    def fill(self, plan: CopyPlan) -> None:
        """Replaces the content of the buffer by a plan, on the current stream.

        Args:
            plan: A plan from ``take_copies()``; it counts as copied after this call.

        Raises:
            TicketError: This plan has been copied already.
            CopyError: As in ``KVBlocks.copy``, or the plan is longer than the buffer. The buffer
                keeps its content.
            StepError: The stream is being captured into a graph.
            TypeError: Not a plan.
        """
        self._fill(self._rows, plan)


def columns_of(pairs: npt.ArrayLike) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Sources and destinations of ``int[n, 2]``; raises if ``pairs`` are anything else."""
    array = array_of("pairs", pairs, 2)
    if array.size and array.shape[1] != 2:
        raise ValueError(f"pairs must have 2 columns, got shape {array.shape}")
    columns = array.reshape(-1, 2).T
    return np.ascontiguousarray(columns[0]), np.ascontiguousarray(columns[1])


def check_list(
    tensor: torch.Tensor, shape: tuple[int, ...], name: str, device: torch.device
) -> None:
    """Checks that a kernel can read a list on the device.

    Raises:
        ValueError: A tensor of another shape, type or device.
        TypeError: Not a tensor.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    if tuple(tensor.shape) != shape or tensor.dtype != torch.int32:
        raise ValueError(
            f"{name} must be int32 of shape {shape}, got {tensor.dtype} of {tuple(tensor.shape)}"
        )
    if tensor.device != device or not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous on {device}, got one on {tensor.device}")
