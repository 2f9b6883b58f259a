"""A real Mooncake Store; tests/tiers has the same with a store that is made up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("mooncake.store", reason="needs blockmgr[mooncake]", exc_type=ImportError)

from blockmgr.tiers import MooncakeTier, SharedStorage, SharedStoreError
from blockmgr.tiers.mooncake import MooncakeStore
from tests.engines.mooncake import LENT, SHAPES, engine_on, master, owner, turns

pytestmark = pytest.mark.filterwarnings("default")  # its modules have warnings of their own


@pytest.fixture
def running() -> Iterator[Any]:
    with master() as found:
        yield found


@pytest.fixture(scope="module")
def truth() -> Any:
    return turns(engine_on(), rounds=2)[0]


@pytest.mark.parametrize("name", SHAPES)
def test_a_second_process_finds_what_the_first_one_stored(name: str, running: Any) -> None:
    address, _ = running
    with owner(address, name):
        engine = engine_on(MooncakeTier(master=address), name=name)
        answers, cached = turns(engine, rounds=1)
    assert answers == turns(engine_on(name=name), rounds=1)[0]
    assert cached[0] > 0
    engine.close()


@pytest.mark.parametrize("dies", ["owner", "master"])
def test_tokens_are_the_same_whoever_dies(dies: str, running: Any, truth: Any) -> None:
    address, process = running
    with owner(address) as first:
        engine = engine_on(MooncakeTier(master=address, timeout=0.5))
        kill = first.kill if dies == "owner" else process.kill
        assert turns(engine, kill, rounds=2)[0] == truth
        shared = engine._tiers._places[-1]  # type: ignore[union-attr]
        assert isinstance(shared, SharedStorage)
        engine.close()


def test_an_address_without_a_master_is_refused() -> None:
    with pytest.raises(SharedStoreError, match="nothing answers there"):
        MooncakeStore("127.0.0.1:1")


def test_objects_are_put_read_and_removed(running: Any) -> None:
    store = MooncakeStore(running[0], lent_bytes=LENT)
    memory = store.buffer(3 * 8192)
    parts = [memory[i * 8192 : (i + 1) * 8192] for i in range(3)]
    parts[0][:], parts[1][:] = b"a" * 8192, b"b" * 8192
    assert store.put(["a", "b"], parts[:2]) == [True, True]
    assert store.exist(["a", "c", "b"]) == [True, False, True]
    assert store.get(["b", "c"], parts[1:]) == [8192, 0]
    assert bytes(parts[1]) == b"b" * 8192
    store.remove(["a"])
    assert store.exist(["a", "b"]) == [False, True]
    store.close()
