"""The layers of the core: which folder of ``csrc`` may include which."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[2] / "blockmgr" / "csrc"
ROOMS = (
    *("memory", "fleet", "events", "identity", "policies", "places", "sequences", "checks"),
    *("replays", "c", "bindings"),
)
"""From the bottom up. A partition owns its policy, so policies lie below places."""

INCLUDE = re.compile(r'^#include "(.+)"', re.MULTILINE)
BUILT = re.compile(r"\b(?:" + "|".join(ROOMS) + r")/\w+\.cc\b")


def includes() -> Iterator[tuple[Path, str]]:
    """Every file of the core, and each file of the core that it includes."""
    for path in sorted(CSRC.rglob("*.[ch]*")):
        for included in INCLUDE.findall(path.read_text(encoding="utf-8")):
            yield path.relative_to(CSRC), included


def room_of(path: Path | str) -> str:
    return Path(path).parts[0]


def test_every_file_of_the_core_lies_in_a_room() -> None:
    assert {path.name for path in CSRC.iterdir()} == {*ROOMS, "CMakeLists.txt"}
    assert all(len(path.relative_to(CSRC).parts) == 2 for path in CSRC.rglob("*.[ch]*"))


def test_files_are_included_by_the_room_they_lie_in() -> None:
    assert list(includes())
    assert [(path, name) for path, name in includes() if not (CSRC / name).is_file()] == []


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_includes_nothing_of_a_room_above_it(room: str) -> None:
    above = ROOMS[ROOMS.index(room) + 1 :]
    wrong = [
        (str(path), name)
        for path, name in includes()
        if room_of(path) == room and room_of(name) in above
    ]
    assert wrong == []


def test_only_checks_and_tests_include_checks() -> None:
    users = {room_of(path) for path, name in includes() if room_of(name) == "checks"}
    assert users == {"checks"}


def test_wheel_and_library_are_built_of_every_source_of_every_room() -> None:
    built = BUILT.findall((CSRC / "CMakeLists.txt").read_text(encoding="utf-8"))
    assert sorted(built) == sorted(str(path.relative_to(CSRC)) for path in CSRC.glob("*/*.cc"))
