"""The ring: no list is overwritten before its launch has read it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from blockmgr.kv.pairs import PairRing, Slot, make_ring
from tests.kv.conftest import interpreter
from tests.kv.pools import BLOCKS, World, plan_of, sequential


class Device:
    """A device that runs enqueued work only when a caller waits or the test says so."""

    def __init__(self) -> None:
        self.queue: list[Any] = []
        self.waits = 0

    def enqueue(self, work: Any) -> None:
        self.queue.append(work)

    def run_until(self, mark: object) -> None:
        while mark in self.queue:
            work = self.queue.pop(0)
            if callable(work):
                work()


class Event:
    """A mark in the queue of a Device."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.mark: object = None

    def record(self) -> None:
        self.mark = object()
        self.device.enqueue(self.mark)

    def query(self) -> bool:
        return self.mark not in self.device.queue

    def synchronize(self) -> None:
        self.device.waits += 1
        self.device.run_until(self.mark)


def ring_on(device: Device, size: int = 3) -> PairRing:
    return PairRing(
        [
            Slot(
                torch.zeros(3, dtype=torch.int32), torch.zeros(3, dtype=torch.int32), Event(device)
            )
            for _ in range(size)
        ]
    )


def send(ring: PairRing, device: Device, number: int, seen: list[int]) -> None:
    ring.free.numbers[0] = number
    with ring.using() as slot:
        device.enqueue(lambda: seen.append(int(slot.numbers[0])))


def test_every_list_is_read_as_it_was_written() -> None:
    rng = random.Random(0)
    device, seen = Device(), []
    ring = ring_on(device)
    for number in range(200):
        send(ring, device, number, seen)
        marks = [work for work in device.queue if not callable(work)]
        if rng.random() < 0.3:
            device.run_until(rng.choice(marks))
    device.run_until(device.queue[-1])
    assert seen == list(range(200))


def test_only_a_full_ring_waits_and_only_for_the_oldest() -> None:
    device, seen = Device(), []
    ring = ring_on(device)
    for number in range(3):
        send(ring, device, number, seen)
    assert (device.waits, seen) == (0, [])
    send(ring, device, 3, seen)
    assert (device.waits, seen) == (1, [0])
    device.run_until(device.queue[-1])
    for number in range(4, 7):
        send(ring, device, number, seen)
    assert device.waits == 1  # the device had caught up: a query, no wait


def test_a_list_that_is_refused_costs_no_slot() -> None:
    ring = ring_on(Device())
    assert ring.free is ring.free
    ring.free.numbers[0] = 7
    assert ring.free.numbers[0] == 7


def test_a_launch_that_fails_half_way_holds_its_slot() -> None:
    """Work enqueued before the failure may still read the slot."""
    device = Device()
    ring = ring_on(device, 1)
    seen: list[int] = []
    ring.free.numbers[0] = 5

    def fail() -> None:
        with ring.using() as slot:
            device.enqueue(lambda: seen.append(int(slot.numbers[0])))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    ring.free.numbers[0] = 6
    assert seen == [5]


def test_a_slot_has_room_for_rows_on_the_host_and_on_the_device() -> None:
    slot = make_ring(5, torch.device("cpu")).free
    assert slot.host is slot.device
    assert slot.rows.shape == (5, 3)
    slot.rows[1] = (1, 2, 3)
    assert slot.device_pairs[:3].tolist() == [1, 2, 3]
    assert slot.numbers[3:6].tolist() == [1, 2, 3]


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Interpreted kernels whose lists have separate memory on the device."""
    interpreter()
    from blockmgr.kv import copy_triton

    device = Device()
    launches: list[str] = []
    rings: list[list[Slot]] = []

    def make(capacity: int, _: torch.device) -> PairRing:
        def numbers() -> torch.Tensor:
            return torch.full((3 * capacity,), -77, dtype=torch.int32)

        rings.append([Slot(numbers(), numbers(), Event(device)) for _ in range(2)])
        return PairRing(rings[-1])

    launch = copy_triton._Launcher.__call__

    def spy(self: Any, programs: int, *arguments: Any) -> None:
        [slots] = rings
        devices = {id(t) for s in slots for t in (s.device, s.device_pairs)}
        launches.append("ring" if any(id(a) in devices for a in arguments) else "elsewhere")
        launch(self, programs, *arguments)

    monkeypatch.setattr(copy_triton, "make_ring", make)
    monkeypatch.setattr(copy_triton._Launcher, "__call__", spy)
    return launches


def test_up_to_four_pairs_go_by_value_and_more_are_transferred(remote: list[str]) -> None:
    world = World("NHD", "triton")
    copies = [(0, 1, 1), (6, 2, 3), (0, 3, 4), (6, 4, 2), (0, 5, 3)]
    for count in range(1, 6):
        for one in copies[:count]:
            world.expect(*one)
        world.blocks.copy(plan_of(*copies[:count], ticket=count))
        world.check()
    assert remote == ["elsewhere"] * 4 + ["ring"]


@pytest.mark.parametrize("max_pairs", [1, 16])
def test_moves_are_transferred_whether_they_fit_a_slot_or_not(
    remote: list[str], max_pairs: int
) -> None:
    world = World("NHD", "triton", max_pairs=max_pairs)
    pairs = [(0, 1), (1, 0), (2, 3), (5, 2), (3, 5), (4, 6)]
    after = sequential(list(range(BLOCKS)), pairs)
    for view, *_ in world.views():
        view[:] = view[after]
    world.blocks.copy_blocks(pairs)
    world.check()
    assert remote == ["ring" if max_pairs > 1 else "elsewhere"]


@pytest.mark.parametrize("count", range(1, 40))
def test_the_largest_list_of_moves_fits_a_slot(count: int) -> None:
    """As many swaps as max_pairs allows: each takes three moves for two pairs, and one group."""
    from blockmgr._core import order_copies

    swaps = [(b ^ 1, b) for b in range(count - count % 2)]
    columns = np.array([*swaps, *([(100, 101)] if count % 2 else [])]).T
    starts, moves = order_copies(*np.ascontiguousarray(columns), 200, False)
    assert len(starts) + moves.size <= 3 * (count + count // 3 + 2)


def test_a_buffer_is_filled_through_the_ring(remote: list[str]) -> None:
    world = World("NHD", "triton")
    buffer = world.blocks.pair_buffer(3)
    assert (buffer.max_pairs, buffer.count.tolist()) == (3, [0])
    world.blocks.copy_buffer(buffer)
    for copies in ([(0, 1, 1), (0, 2, 3)], [(2, 3, 4)], []):
        buffer.fill(plan_of(*copies))
        assert buffer.count.tolist() == [len(copies)]
        for one in copies:
            world.expect(*one)
        world.blocks.copy_buffer(buffer)
        world.check()
