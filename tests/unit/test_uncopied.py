"""Objects without a meaningful copy refuse copies and pickles, with advice."""

from __future__ import annotations

import copy
import inspect
import pickle
import pydoc
import tempfile
from collections.abc import Callable
from dataclasses import fields

import pytest

from blockmgr import BlockManager, ManagerConfig
from blockmgr.pool import BlockPool
from blockmgr.tiers import Slab


def manager() -> BlockManager:
    return BlockManager(8, 4)


def sequence() -> object:
    made = manager()
    return made.sequence(made.admit([1, 2, 3]))


def cache() -> object:
    torch = pytest.importorskip("torch", reason="needs torch")
    from blockmgr.kv import ModelShape, PagedKVCache

    return PagedKVCache(
        8, 16, ModelShape(num_layers=1, num_kv_heads=1, head_dim=4, dtype=torch.float32)
    )


def slab() -> object:
    with tempfile.TemporaryDirectory() as folder:
        return Slab(f"{folder}/kv.slab", {}, num_blocks=1, block_bytes=8, key_bytes=1)


def worker_index() -> object:
    pytest.importorskip("msgspec", reason="needs the extra events")
    from blockmgr.index import WorkerIndex

    return WorkerIndex()


MAKE: dict[str, Callable[[], object]] = {
    "BlockManager": manager,
    "Sequence": sequence,
    "BlockPool": lambda: BlockPool(8, 4),
    "PagedKVCache": cache,
    "Slab": slab,
    "WorkerIndex": worker_index,
}


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize(
    ("call", "how"), [(copy.copy, "copied"), (copy.deepcopy, "copied"), (pickle.dumps, "pickled")]
)
def test_a_copy_is_refused_with_what_to_do_instead(
    name: str, call: Callable[[object], object], how: str
) -> None:
    made = MAKE[name]()
    with pytest.raises(TypeError, match=f"a {name} cannot be {how}: .{{10}}"):
        call(made)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_no_protocol_of_pickle_gets_around_it(protocol: int) -> None:
    with pytest.raises(TypeError, match="a BlockManager cannot be pickled"):
        pickle.dumps(manager(), protocol)


def test_the_engine_is_refused_too() -> None:
    pytest.importorskip("transformers", reason="needs transformers")
    from blockmgr.ports.engine import Engine

    made = object.__new__(Engine)
    with pytest.raises(TypeError, match="a Engine cannot be copied: make another engine"):
        copy.copy(made)
    with pytest.raises(TypeError, match="Engine has no option 'evicton'; did you mean 'eviction'"):
        Engine(None, evicton="lru")  # type: ignore[arg-type, call-arg]


def test_an_option_that_does_not_exist_is_refused_with_the_nearest() -> None:
    message = "BlockManager has no option 'evicton'; did you mean 'eviction'?"
    with pytest.raises(TypeError) as caught:
        BlockManager(8, 4, evicton="lru")  # type: ignore[call-arg]
    assert str(caught.value) == message
    with pytest.raises(TypeError, match=r"^BlockManager has no option 'zzz'$"):
        BlockManager(8, 4, zzz=1)  # type: ignore[call-arg]


def test_help_shows_every_option_with_type_and_default() -> None:
    text = pydoc.plain(pydoc.render_doc(BlockManager))
    parameters = inspect.signature(BlockManager).parameters
    assert list(parameters) == [field.name for field in fields(ManagerConfig)]
    for field in fields(ManagerConfig):
        assert f"{field.name}: " in text
        assert parameters[field.name].annotation == field.type or field.name in (
            "num_blocks",
            "block_size",
        )
        if field.name not in ("num_blocks", "block_size"):
            assert parameters[field.name].default == field.default
            assert parameters[field.name].kind is inspect.Parameter.KEYWORD_ONLY
    assert "**options" not in text.partition("Methods defined here")[0].splitlines()[2]
    assert BlockManager(8, 4, eviction="arc").config.eviction == "arc"


@pytest.mark.parametrize("of", [BlockManager, BlockPool, ManagerConfig])
def test_whatever_takes_options_names_the_nearest(of: type) -> None:
    with pytest.raises(TypeError) as caught:
        of(num_blocks=8, block_size=4, evicton="lru")
    assert str(caught.value) == f"{of.__name__} has no option 'evicton'; did you mean 'eviction'?"
