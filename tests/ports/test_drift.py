"""How a port notices changes in an engine, tested on a tiny engine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blockmgr.ports.drift import Difference, Interface

ENGINE = """
from dataclasses import dataclass

__version__ = "2.3.1"


class Cache:
    size = 3

    def __init__(self):
        self.free = 0

    def find(self, key, limit):
        return key


@dataclass
class Told:
    block: int
    parent: int
    medium: str = "GPU"


def run(tree_cache):
    tree_cache.find(1, 2)
    tree_cache.size
"""


@pytest.fixture
def interface(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Interface]:
    (tmp_path / "tiny_engine.py").write_text(ENGINE)
    monkeypatch.syspath_prepend(tmp_path)
    yield Interface(
        engine="Tiny",
        module="tiny_engine",
        tried=("2.3",),
        methods={"tiny_engine:Cache.find": ("key", "limit")},
        attributes={"tiny_engine:Cache": ("size", "free")},
        places=(("tiny_engine", "run"),),
        callers=("tiny_engine",),
        names=("tree_cache",),
        known={"find", "size"},
    )
    sys.modules.pop("tiny_engine", None)


def test_an_engine_as_it_was_differs_in_nothing(
    interface: Interface, capsys: pytest.CaptureFixture[str]
) -> None:
    assert interface.differences() == []
    assert interface.main() == 0
    said = capsys.readouterr().out
    assert said == "Tiny 2.3.1 (tried): 4 signatures and names compared, 0 differ\n"


@pytest.mark.parametrize(
    ("changed", "place", "what", "is_fatal"),
    [
        ({"methods": {"tiny_engine:Cache.find": ("key",)}}, "find", "also takes limit", True),
        (
            {"methods": {"tiny_engine:Cache.find": ("key", "limit", "old")}},
            "find",
            "no longer takes old",
            False,
        ),
        ({"methods": {"tiny_engine:Cache.lock": ()}}, "lock", "is gone", True),
        ({"methods": {"tiny_motor:Cache.lock": ()}}, "lock", "is gone", True),
        ({"attributes": {"tiny_engine:Cache": ("used",)}}, "Cache", "has no used", True),
        ({"attributes": {"tiny_engine:Tree": ("used",)}}, "Tree", "is gone", True),
        ({"structures": {"tiny_engine:Said": ("block",)}}, "Said", "is gone", True),
        (
            {"structures": {"tiny_engine:Told": ("block", "parent")}},
            "Told",
            "also has medium",
            False,
        ),
        (
            {"structures": {"tiny_engine:Told": ("block", "medium")}},
            "Told",
            "also has parent, without a default",
            True,
        ),
        (
            {"structures": {"tiny_engine:Told": ("block", "parent", "medium", "rank")}},
            "Told",
            "no longer has rank",
            True,
        ),
        (
            {"structures": {"tiny_engine:Told": ("parent", "block", "medium")}},
            "Told",
            "has its fields in another order",
            True,
        ),
        ({"places": (("tiny_engine", "walk"),)}, "tiny_engine.walk", "is gone", True),
        ({"places": (("tiny_motor", "walk"),)}, "tiny_motor.walk", "is gone", True),
        ({"known": {"find"}}, "tiny_engine", "asks for size", True),
    ],
)
def test_each_change_is_named(
    interface: Interface, changed: dict[str, Any], place: str, what: str, is_fatal: bool
) -> None:
    other = replace(interface, **changed)
    [found] = other.differences()
    assert found.place.endswith(place)
    assert (found.what, found.is_fatal) == (what, is_fatal)
    assert other.main() == int(is_fatal)
    first, second = other.report().splitlines()
    assert first.endswith(", 1 differ")
    assert second.split() == ["FATAL" if is_fatal else "differs", *str(found).split()]


def test_what_is_fatal_comes_first(interface: Interface) -> None:
    methods = {"tiny_engine:Cache.find": ("key", "limit", "old"), "tiny_engine:Cache.lock": ()}
    found = replace(interface, methods=methods).differences()
    assert [difference.is_fatal for difference in found] == [True, False]


@pytest.mark.parametrize(
    ("tried", "expected"),
    [(("2.3",), True), (("2.3.1",), True), (("2", "9"), True), (("2.30",), False), ((), False)],
)
def test_a_version_stands_for_those_that_continue_it(
    interface: Interface, tried: tuple[str, ...], expected: bool
) -> None:
    assert replace(interface, tried=tried).is_tried() is expected


FIND = "tiny_engine:Cache.find"
TOLD = "tiny_engine:Told"


@pytest.mark.parametrize(
    ("tried", "differs"),
    [
        (("2.3",), []),  # as the version that is installed
        (("1.0", "2.3", "3.0"), []),
        (("1.0", "3.0"), ["Cache.find: no longer takes depth", "Told: also has medium"]),
        (("3.0", "1.0"), ["Cache.find: also takes limit"]),
    ],
)
def test_each_version_has_expectations_of_its_own(
    interface: Interface, tried: tuple[str, ...], differs: list[str]
) -> None:
    """An untested version is compared with the newest tested one, which is the last named."""
    changed = {
        "1.0": {FIND: ("key",)},
        "3.0": {FIND: ("key", "limit", "depth"), TOLD: ("block", "parent")},
    }
    structures = {TOLD: ("block", "parent", "medium")}
    several = replace(interface, tried=tried, changed=changed, structures=structures)
    assert [str(difference) for difference in several.differences()] == differs
    first = several.report().splitlines()[0]
    assert first.endswith(f"5 signatures and names compared, {len(differs)} differ")


def test_the_warning_names_versions_and_differences(interface: Interface) -> None:
    other = replace(interface, tried=("1.0", "1.1"))
    gone = [Difference("Cache.lock", "is gone", is_fatal=False)]
    assert other.warning(gone) == (
        "blockmgr was tried with Tiny 1.0, 1.1, this is 2.3.1; what differs: Cache.lock: is gone"
    )
    assert other.warning([]).endswith("; what differs: nothing that is looked at")
    assert "(not tried, as 1.0, 1.1 was)" in other.report()
