"""The list of vLLM's tests that fail on blockmgr must match the failures and messages."""

from __future__ import annotations

import tomllib

import pytest

from tests.engines.own.__main__ import HERE, compare

STOCK = {"a::one": "", "a::two": "", "a::three": "assert 0", "a::four": ""}
LISTED = {"a::two": "has no attribute 'x'"}


@pytest.mark.parametrize(
    ("ours", "listed", "found"),
    [
        ({"a::two": "has no attribute 'x'", "a::three": "assert 0"}, LISTED, []),
        ({"a::two": "has no attribute 'x'", "a::three": ""}, LISTED, []),
        ({"a::two": "", "a::three": ""}, LISTED, ["listed, and passes  a::two"]),
        ({"a::two": "assert 1 == 2"}, LISTED, ["NOT LISTED  a::two: assert 1 == 2"]),
        (
            {"a::one": "assert 3", "a::two": "has no attribute 'x'"},
            LISTED,
            ["NOT LISTED  a::one: assert 3"],
        ),
        ({}, {"a::three": "assert"}, ["listed, and not passed by vLLM's own  a::three"]),
    ],
)
def test_what_is_not_as_it_is_listed_is_named(
    ours: dict[str, str], listed: dict[str, str], found: list[str]
) -> None:
    all_of_them = {"a::one": "", "a::two": "", "a::three": "", "a::four": "", **ours}
    assert compare(STOCK, all_of_them, listed) == found


def test_a_test_that_is_gone_is_named() -> None:
    assert compare({"a::one": ""}, {}, {}) == ["NOT LISTED  a::one: it is gone"]


def test_each_verdict_has_its_tests_and_their_words() -> None:
    tables = tomllib.loads((HERE / "verdicts.toml").read_text(encoding="utf-8"))["verdict"]
    names = [name for table in tables for name in table["tests"]]
    assert len(names) == len(set(names)) == 28
    assert all(table["why"] and table["says"] for table in tables)
