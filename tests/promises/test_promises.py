"""Every prediction of a port, compared with what then happens."""

from __future__ import annotations

import inspect
import re
from types import ModuleType

import pytest

from blockmgr.ports import aphrodite, nano_vllm, radix, slots, tgi
from tests.promises import aphrodite as of_aphrodite
from tests.promises import others

PORTS = (aphrodite, nano_vllm, radix, slots, tgi)
PROMISES = of_aphrodite.PROMISES | others.PROMISES
ASKS = re.compile(
    r"(can_|match|estimate|find|available|evictable|size_info|num_available|is_free|free_count"
    r"|is_appendable|get_num_(?!total|usable))"
)
WORLDS = 150
BASES = {"BlockAllocator of aphrodite"}  # asked as one of the classes derived from it


def asks(module: ModuleType) -> set[tuple[str, str]]:
    """The public calls and attributes of a port that predict other calls."""
    port = module.__name__.rpartition(".")[2]
    return {
        (kind.__name__, name)
        for kind in map(module.__dict__.__getitem__, module.__all__)
        if inspect.isclass(kind) and f"{kind.__name__} of {port}" not in BASES
        for name in dir(kind)
        if ASKS.match(name)
    }


def test_every_call_that_promises_something_is_held_to_it() -> None:
    assert set().union(*map(asks, PORTS)) - {("SizeInfo", "evictable_size")} == set(PROMISES)


@pytest.mark.parametrize("promise", PROMISES, ids=".".join)
def test_what_is_promised_happens_and_what_is_denied_does_not(promise: tuple[str, str]) -> None:
    broken = [found for seed in range(WORLDS) for found in PROMISES[promise](seed)]
    assert not broken, f"{len(broken)} of {WORLDS} worlds, such as {broken[:5]}"


@pytest.mark.parametrize("name", ["can_swap_in", "can_append_slots", "can_allocate"])
def test_an_answer_that_is_wrong_by_a_block_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Checks that the worlds are varied enough to break such a promise."""
    manager = aphrodite.BlockSpaceManager
    free = aphrodite.CpuGpuBlockAllocator.get_num_free_blocks
    honest = getattr(manager, name)

    def pessimist(self: aphrodite.BlockSpaceManager, *args: object) -> object:
        with monkeypatch.context() as patch:
            patch.setattr(
                aphrodite.CpuGpuBlockAllocator,
                "get_num_free_blocks",
                lambda pools, device: max(free(pools, device) - 1, 0),
            )
            patch.setattr(
                aphrodite.NaiveBlockAllocator,
                "get_num_free_blocks",
                lambda pool: max(pool.pool.num_available - 1, 0),
            )
            return honest(self, *args)

    monkeypatch.setattr(manager, name, pessimist)
    promise = PROMISES["BlockSpaceManager", name]
    assert any(found for seed in range(WORLDS) for found in promise(seed))
