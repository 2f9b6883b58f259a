"""Block ids and slots in every container: the list's result, or an unchanged cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from blockmgr import BlockMgrError
from blockmgr.kv import ModelShape, PagedKVCache
from tests.arguments.containers import (
    CONTAINERS,
    OTHER,
    RAISED,
    REFUSED,
    SAME,
    Due,
    Kind,
    NotApplicable,
    Stop,
)

NUMBERS = [3, 1, 2]


class World:
    """A cache with content in every slot, and a counterpart on the host."""

    def __init__(self) -> None:
        shape = ModelShape(num_layers=2, num_kv_heads=1, head_dim=2, dtype=torch.float32)
        self.cache = PagedKVCache(5, 4, shape, device="cpu", backend="torch")
        self.host = self.cache.host_counterpart(5)
        for which, cache in enumerate((self.cache, self.host)):
            for layer in range(2):
                values = torch.arange(40, dtype=torch.float32).reshape(20, 1, 2)
                values += 1000 * which + 100 * layer
                cache.write(layer, values, -values, list(range(20)))

    def content(self) -> list[Any]:
        """All K and V."""
        return [
            plain(cache.gather(layer, list(range(5)), 20))
            for cache in (self.cache, self.host)
            for layer in range(2)
        ]


def write(world: World, slots: Any) -> Any:
    rows = torch.full((len(NUMBERS), 1, 2), 7.0)
    return world.cache.write(1, rows, rows, slots)


CALLS: dict[str, Callable[[World, Any], Any]] = {
    "zero": lambda w, ids: w.cache.zero(ids),
    "slots": lambda w, ids: w.cache.slots(ids),
    "write": write,
    "gather": lambda w, ids: w.cache.gather(0, ids, 9),
    "gather_batch, lengths": lambda w, ids: w.cache.gather_batch(0, np.arange(3)[:, None], ids),
    "swap_out, device_blocks": lambda w, ids: w.cache.swap_out(w.host, ids, [0, 2, 4]),
    "swap_out, host_blocks": lambda w, ids: w.cache.swap_out(w.host, [0, 2, 4], ids),
    "swap_in, device_blocks": lambda w, ids: w.cache.swap_in(w.host, [0, 2, 4], ids),
    "swap_in, host_blocks": lambda w, ids: w.cache.swap_in(w.host, ids, [0, 2, 4]),
}


def plain(result: Any) -> Any:
    """The result of a call in a comparable form."""
    if isinstance(result, tuple):
        return [plain(part) for part in result]
    return result.tolist() if isinstance(result, torch.Tensor) else None


def outcome(call: Callable[[World, Any], Any], given: Any) -> Any:
    """The result and the content after the call; None if it was refused with nothing changed."""
    world = World()
    before = world.content()
    try:
        result = call(world, given)
    except (TypeError, ValueError, BlockMgrError, Stop, LookupError):
        assert world.content() == before, "a refused call changed something"
        return None
    return plain(result), world.content()


def passed_on(kind: Kind) -> Due:
    """The call looks up an attribute of any object that may be a tensor."""
    return RAISED if "__getattribute__" in kind.name else Due(0)


@pytest.mark.parametrize("name", CALLS)
def test_ids_in_any_container_are_those_of_the_plain_list(name: str) -> None:
    call = CALLS[name]
    expected = outcome(call, NUMBERS)
    assert expected is not None
    wrong = []
    for kind in CONTAINERS:
        try:
            given = kind.make(NUMBERS)
        except (NotApplicable, OverflowError):
            continue
        found = outcome(call, given)
        done = REFUSED | RAISED if found is None else SAME if found == expected else OTHER
        if not done & (kind.due | passed_on(kind)):
            wrong.append(f"{kind.name}: due is {kind.due.name}, got {done.name}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("outer", [list, tuple])
def test_pairs_may_be_rows_of_any_container(outer: Callable[[Any], Any]) -> None:
    def copy(world: World, rows: Any) -> None:
        world.cache.copy_blocks(rows)

    expected = outcome(copy, [[0, 1], [1, 2]])
    assert expected is not None
    for kind in CONTAINERS:
        try:
            rows = outer([kind.make([0, 1]), kind.make([1, 2])])
        except (NotApplicable, OverflowError):
            continue
        found = outcome(copy, rows)
        done = REFUSED | RAISED if found is None else SAME if found == expected else OTHER
        assert done & (kind.due | passed_on(kind)), kind.name


@pytest.mark.parametrize(
    "pairs", [iter([[0, 1]]), {(0, 1)}, 5, None, "text", b"01", [[0, 1], [2]], [[[0, 1]]], [0, 1]]
)
def test_what_are_no_pairs_is_refused(pairs: Any) -> None:
    assert outcome(lambda world, given: world.cache.copy_blocks(given), pairs) is None
