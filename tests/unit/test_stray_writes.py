"""The arrays shown to callers are output only: writes to them do not affect the manager.

In NumPy they are read-only, but DLPack, ``ctypes`` and ``.base`` can write to them.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from blockmgr import BlockManager
from tests.conftest import MakeManager
from tests.stress.draw import Draw
from tests.stress.perform import finish_up, perform
from tests.stress.profiles import DIGESTS, PROFILES, draw_config
from tests.stress.world import World
from tests.unit.engine import ids, serve

Numbers = npt.NDArray[np.int32]


def through_base(array: Numbers) -> Numbers:
    assert isinstance(array.base, np.ndarray)
    return array.base


def through_ctypes(array: Numbers) -> Numbers:
    address = ctypes.cast(array.ctypes.data, ctypes.POINTER(ctypes.c_int32))
    return np.ctypeslib.as_array(address, array.shape)


def through_the_array_interface(array: Numbers) -> Numbers:
    class Writable:
        @property
        def __array_interface__(self) -> dict[str, Any]:
            described = array.__array_interface__
            return {**described, "data": (described["data"][0], False)}

    return np.asarray(Writable())


def through_dlpack(array: Numbers) -> Any:
    torch = pytest.importorskip("torch", reason="NumPy's own DLPack stays read-only")
    return torch.from_dlpack(array)


WAYS = (through_base, through_ctypes, through_the_array_interface, through_dlpack)
PROMPTS = ([1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 6, 6, 6])
NONSENSE = (-1, 0, 1, 2, 7, 8, 2**31 - 1, -(2**31), 100_000_000)
RNG = random.Random(1)


def every_call(manager: BlockManager, handle: int, other: int) -> None:
    """Calls that look up the blocks of two sequences of seven computed tokens."""
    manager.append(handle, [8])
    [child, twin] = manager.fork(handle, 2)
    manager.append(child, [9])
    manager.decode([handle, child], [1, 2])
    manager.reparent([twin, child], [1, 0])
    manager.truncate(child, 5)
    manager.reserve(child, 12)
    manager.slot_mapping(handle, 0, 8)
    manager.explain([1, 2, 3, 4, 5, 6, 7, 8, 9])
    manager.blocks()
    manager.num_common_prefix_blocks()
    manager.copies_applied(manager.take_copies().ticket)
    manager.commit(child, 5)
    manager.preempt(twin)
    manager.resume(twin)
    for ended in (handle, child, twin, other):
        manager.free(ended)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", NONSENSE)
@pytest.mark.parametrize("dedup", ["remap", "append_only"])
def test_a_number_written_to_every_array_misleads_no_call(
    make_manager: MakeManager, way: Callable[[Numbers], Any], number: int, dedup: str
) -> None:
    manager, untouched = (make_manager(24, 2, max_seqs=6, dedup=dedup) for _ in range(2))
    handles = {m: [serve(m, prompt).handle for prompt in PROMPTS] for m in (manager, untouched)}
    for array in (manager.block_tables, manager.seq_lens):
        way(array)[:] = number
    every_call(untouched, *handles[untouched])
    every_call(manager, *handles[manager])
    manager.check_invariants()
    assert manager.stats() == untouched.stats()
    assert manager.num_available == 24


def test_the_ids_of_somebody_else_are_not_released(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2, max_seqs=2)
    own, other = serve(manager, [1, 2, 3, 4]), serve(manager, [5, 6, 7, 8])
    tables = through_base(manager.block_tables)
    tables[own.row] = tables[other.row]
    theirs = ids(other)
    own.free()
    assert manager.stats().used_blocks == len(theirs)
    new = serve(manager, [9] * 8)
    assert not set(ids(new)) & set(theirs)


def test_numpy_is_told_that_the_arrays_are_read_only() -> None:
    manager = BlockManager(8, 2)
    for array in (manager.block_tables, manager.seq_lens):
        assert not np.from_dlpack(array).flags.writeable
        assert memoryview(array).readonly


class Scribbled(BlockManager):
    """A manager whose shown arrays are overwritten with nonsense before each call."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if callable(value) and not name.startswith("_"):
            for array in ("block_tables", "seq_lens"):
                through_base(super().__getattribute__(array))[:] = RNG.choice(NONSENSE)
        return value


class Unread(World):
    """Compares everything with the model except the overwritten arrays."""

    def compare_row(self, entry: Any, view: Any) -> None:
        pass


@pytest.mark.parametrize("seed", range(6))
def test_random_calls_with_a_stray_write_before_each_agree_with_the_model(seed: int) -> None:
    rng = random.Random(seed)
    profile = rng.choice(("balanced", "beam_storm", "tiny_pool"))
    config = draw_config(rng, PROFILES[profile])
    config["digest"] = DIGESTS[config["digest"]]
    world = Unread(config, manager=Scribbled, seed=seed)
    if world.model is not None:
        world.model.choose_victim = world.choose_victim
    draw = Draw(rng, profile)
    for _ in range(150):
        perform(world, draw.one())
    finish_up(world)
