"""``ManagerConfig`` is the table of options; what cannot read it is compared with it here."""

from __future__ import annotations

import hashlib
import inspect
import re
from dataclasses import dataclass, field, fields
from typing import Any

import pytest

from blockmgr import BlockManager, ManagerConfig, _core
from blockmgr.config import ManagerOptions, PoolOptions, core_options, options_of
from blockmgr.lab.replay_config import ReplayConfig
from blockmgr.options import check_options, rule, same_option
from blockmgr.pool import BlockPool
from blockmgr.ports.vllm.options import DECIDED_BY_VLLM, Options

SIZES = ["num_blocks", "block_size"]
CONVERTED = {"max_blocks_per_seq", "dedup", "events", "debug"}
"""Options that the core gets in another form, by another name or by a call."""


def sha256(message: bytes) -> bytes:
    return hashlib.sha256(message).digest()


def written(options: type) -> dict[str, str]:
    """The names and types of a ``TypedDict``, as they are written."""
    return {name: kind.__forward_arg__ for name, kind in options.__annotations__.items()}


def test_the_keyword_options_have_the_names_and_types_of_the_table() -> None:
    table = {row.name: row.type for row in fields(ManagerConfig) if row.name not in SIZES}
    assert written(ManagerOptions) == table
    assert written(PoolOptions).items() <= table.items()


@pytest.mark.parametrize("table", [ManagerConfig, ReplayConfig, Options])
def test_the_text_of_a_table_describes_each_option_once_and_in_order(table: type) -> None:
    listed = (inspect.getdoc(table) or "").partition("Attributes:\n")[2].partition("\n\n")[0]
    names = re.findall(r"^ {4}(\w+): ", listed, re.MULTILINE)
    assert names == [row.name for row in fields(table)]


def test_help_of_a_pool_shows_its_options_with_the_defaults_of_the_table() -> None:
    shown = inspect.signature(BlockPool).parameters
    assert set(shown) == {*SIZES, *PoolOptions.__annotations__}
    for row in fields(ManagerConfig):
        if row.name in PoolOptions.__annotations__:
            assert shown[row.name].default == row.default
            assert shown[row.name].annotation == row.type


@pytest.mark.parametrize("name", [row.name for row in fields(ManagerConfig)])
def test_the_core_reads_each_option(name: str) -> None:
    config = ManagerConfig(num_blocks=8, block_size=4, digest=sha256)
    options = core_options(config)
    del options[name]
    if name in CONVERTED:
        _core.Core(options)
        return
    with pytest.raises(KeyError, match=name):
        _core.Core(options)
    if name in {*SIZES, *PoolOptions.__annotations__}:
        with pytest.raises(KeyError, match=name):
            _core.PoolCore(options)


def test_vllm_decides_nothing_that_it_lets_users_decide() -> None:
    assert not DECIDED_BY_VLLM.keys() & {row.name for row in fields(Options)}
    assert DECIDED_BY_VLLM.keys() <= {row.name for row in fields(ManagerConfig)}


@dataclass
class Table:
    flag: bool = False
    number: int = field(default=0, metadata=rule(0, "most"))
    perhaps: int | None = field(default=None, metadata=rule(1, needs="flag"))
    name: str = field(default="a", metadata=rule(choices=("a", "bcd")))
    free: Any = None

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def most(self) -> int:
        return 9 if self.flag else 4


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"flag": 1}, TypeError, "flag must be a bool, got 1"),
        ({"number": 5}, ValueError, r"number must be in \[0, 4\], got 5"),
        ({"number": 10, "flag": True}, ValueError, r"number must be in \[0, 9\], got 10"),
        ({"number": True}, TypeError, "number must be an int, got True"),
        ({"number": None}, TypeError, "number must be an int, got None"),
        ({"perhaps": 0, "flag": True}, ValueError, "perhaps must be at least 1, got 0"),
        ({"perhaps": 1}, ValueError, "perhaps must be None without flag, got 1"),
        ({"name": "bc"}, ValueError, "name must be one of a, bcd, got 'bc'; did you mean 'bcd'?"),
        ({"name": print}, TypeError, "name must be one of a, bcd, got <built-in function print>"),
    ],
)
def test_a_value_is_refused_by_the_rule_of_its_row(
    given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"^{message.replace('?', '[?]')}$"):
        Table(**given)


def test_a_row_of_another_table_keeps_its_rule_and_may_have_its_own_default() -> None:
    @dataclass
    class Other:
        block_size: int = same_option(ManagerConfig, "block_size", 7)
        eviction: str = same_option(ManagerConfig, "eviction")
        surplus: int = 1

        def __post_init__(self) -> None:
            check_options(self)

    assert options_of(Other()) == {"block_size": 7, "eviction": "lru"}
    with pytest.raises(ValueError, match=r"block_size must be in \[1, 65535\], got 0"):
        Other(block_size=0)
    with pytest.raises(ValueError, match="eviction must be one of lru"):
        Other(eviction="fifo")


def test_the_options_of_a_replay_reach_its_manager() -> None:
    config = ReplayConfig(block_size=4, min_partial_tokens=2, dedup="append_only")
    manager = BlockManager(8, **options_of(config))
    assert options_of(manager.config).items() >= options_of(config).items()


@pytest.mark.parametrize("owner", [BlockManager, BlockPool])
def test_help_on_a_constructor_has_the_text_of_each_option(owner: type) -> None:
    shown = inspect.getdoc(owner.__init__) or ""
    for name in [*inspect.signature(owner).parameters]:
        assert len(re.findall(rf"^    {name}: \S", shown, re.MULTILINE)) == 1, name
    assert "some 110 bytes\n" in shown  # the text of an option goes over several lines
