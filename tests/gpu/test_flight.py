"""Work in flight: pair lists while launches wait, streams, waits and allocations."""

from __future__ import annotations

import numpy as np
import pytest

from blockmgr import CopyPlan, TicketError
from tests.gpu.world import (
    LAYOUTS,
    Place,
    World,
    delay,
    draw_plan,
    plan_of,
    synchronisation_is_an_error,
    torch,
)

LAUNCHES = 40
"""Several times what the ring of pair lists holds."""


def test_the_arrays_of_a_plan_are_free_when_copy_returns(place: Place) -> None:
    """An engine may reuse the arrays although the launch has not started on the device."""
    world = World([LAYOUTS["NHD"], LAYOUTS["HND"]], place, num_blocks=64)
    random = np.random.default_rng(0)
    if place.device == "cuda":
        delay()
    for _ in range(LAUNCHES):
        entries = draw_plan(random, world.num_blocks, world.block_size)
        plan = plan_of(entries)
        world.blocks.copy(plan)
        for column in (plan.sources, plan.destinations, plan.num_tokens):
            column[:] = -1
        world.expect(entries)
    world.check()


def test_lists_of_both_kinds_share_the_ring(place: Place) -> None:
    world = World([LAYOUTS["MLA"]], place, num_blocks=32)
    random = np.random.default_rng(1)
    if place.device == "cuda":
        delay()
    for _ in range(LAUNCHES // 2):
        entries = draw_plan(random, world.num_blocks, world.block_size)
        world.blocks.copy(plan_of(entries))
        world.expect(entries)
        pairs = random.integers(0, world.num_blocks, (6, 2))
        world.blocks.copy_blocks(pairs)
        world.expect((*pair, world.block_size) for pair in pairs.tolist())
    world.check()


@pytest.mark.gpu
def test_a_copy_neither_waits_nor_allocates(cuda: Place) -> None:
    """Makes as many calls as the ring holds; one more would have to wait for the first."""
    world = World([LAYOUTS["NHD"], LAYOUTS["HND"]], cuda, num_blocks=64)
    random = np.random.default_rng(2)
    plans = [draw_plan(random, 64, world.block_size) for _ in range(8)]
    ready = [plan_of(entries) for entries in plans]
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()
    with synchronisation_is_an_error():
        for plan in ready:
            world.blocks.copy(plan)
    after = torch.cuda.memory_stats()
    for name in ("allocation.all.allocated", "segment.all.allocated"):
        assert after[name] == before[name]
    for entries in plans:
        world.expect(entries)
    world.check()


@pytest.mark.gpu
def test_a_copy_returns_while_the_device_is_still_busy(cuda: Place) -> None:
    world = World([LAYOUTS["NHD"]], cuda)
    entries = [(0, 1, 4)]
    delay()
    busy = torch.cuda.Event()
    busy.record()
    world.blocks.copy(plan_of(entries))
    assert not busy.query()
    world.expect(entries)
    world.check()


@pytest.mark.gpu
def test_a_copy_runs_in_order_on_the_current_stream(cuda: Place) -> None:
    """A copy sees writes before it on its stream, but not writes after it."""
    world = World([LAYOUTS["NHD"]], cuda)
    [tensor] = world.tensors
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        delay()
        tensor[5] = 1.0
        world.blocks.copy(plan_of([(5, 6, world.block_size)]))
        tensor[5] = 2.0
    torch.cuda.synchronize()
    assert torch.all(tensor[6] == 1.0)
    assert torch.all(tensor[5] == 2.0)


@pytest.mark.gpu
def test_launches_on_several_streams_keep_their_own_lists(cuda: Place) -> None:
    """The streams have different delays, so that slots of the ring are freed out of order."""
    world = World([LAYOUTS["NHD"], LAYOUTS["MLA"]], cuda, num_blocks=64)
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    for held_back, stream in enumerate(streams):
        with torch.cuda.stream(stream):
            for _ in range(len(streams) - held_back):
                delay()
    for turn in range(LAUNCHES):
        lane = turn % len(streams)  # of 16 blocks each, one range per stream
        first = 16 * lane + turn // len(streams) % 8
        entries = [(first, first + 8, 1 + turn % 4)]
        with torch.cuda.stream(streams[lane]):
            world.blocks.copy(plan_of(entries))
        world.expect(entries)
    world.check()


def test_a_pair_buffer_is_copied_as_it_was_last_filled(place: Place) -> None:
    world = World([LAYOUTS["HND"], LAYOUTS["MLA"]], place)
    buffer = world.blocks.pair_buffer(world.num_blocks)
    random = np.random.default_rng(3)
    for most in (3, 24, 1, 24):
        entries = draw_plan(random, world.num_blocks, world.block_size, most)
        buffer.fill(plan_of(entries))
        world.blocks.copy_buffer(buffer)
        world.expect(entries)
    world.check()


@pytest.mark.gpu
def test_a_captured_copy_replays_whatever_the_buffer_holds(cuda: Place) -> None:
    """The capture fixes the grid but not the number of pairs: more, fewer and none."""
    world = World([LAYOUTS["HND"], LAYOUTS["MLA"], LAYOUTS["odd bytes"]], cuda)
    buffer = world.blocks.pair_buffer(world.num_blocks)
    first = [(0, 1, 4)]
    buffer.fill(plan_of(first))
    world.blocks.copy_buffer(buffer)  # compiled and warm before the capture
    world.expect(first)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        world.blocks.copy_buffer(buffer)
    world.check()  # a capture runs nothing

    random = np.random.default_rng(4)
    for most in (1, 24, 0, 5, 24):
        entries = draw_plan(random, world.num_blocks, world.block_size, most) if most else []
        buffer.fill(plan_of(entries))
        graph.replay()
        world.expect(entries)
    world.check()


@pytest.mark.gpu
def test_replays_in_flight_keep_the_lists_they_were_filled_with(cuda: Place) -> None:
    """The buffer is refilled while earlier replays wait: each must still see its own list."""
    world = World([LAYOUTS["NHD"]], cuda, num_blocks=64)
    buffer = world.blocks.pair_buffer(64)
    buffer.fill(plan_of([]))
    world.blocks.copy_buffer(buffer)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        world.blocks.copy_buffer(buffer)
    random = np.random.default_rng(5)
    delay()
    for _ in range(LAUNCHES):
        entries = draw_plan(random, 64, world.block_size)
        buffer.fill(plan_of(entries))
        graph.replay()
        world.expect(entries)
    world.check()


def test_a_plan_is_refused_the_second_time_on_any_device(place: Place) -> None:
    world = World([LAYOUTS["NHD"]], place)
    plan: CopyPlan = plan_of([(0, 1, 4)])
    world.blocks.copy(plan)
    world.expect([(0, 1, 4)])
    with pytest.raises(TicketError):
        world.blocks.copy(plan)
    world.check()
