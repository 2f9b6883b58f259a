"""CopyChecker: which lists may run in any order, and how they are packed."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockmgr import CopyError
from blockmgr._core import CopyChecker

rows = st.lists(st.tuples(*[st.integers(-1, 6)] * 3), max_size=6)


def packed(num_rows: int = 8) -> np.ndarray:
    return np.full((num_rows, 3), 99, np.int32)


def columns(copies: Any) -> list[list[int]]:
    return [list(column) for column in zip(*copies, strict=True)] or [[], [], []]


def fault(copies: list[tuple[int, int, int]]) -> int | None:
    """The first invalid pair: ranges and duplicates come first, then overlaps."""
    seen: set[int] = set()
    for i, (source, destination, tokens) in enumerate(copies):
        if not (0 <= source < 6 and 0 <= destination < 6 and 1 <= tokens <= 4):
            return i
        if destination in seen:
            return i
        seen.add(destination)
    return next((i for i, copy in enumerate(copies) if copy[0] in seen), None)


@given(before=rows, copies=rows)
def test_a_list_is_accepted_exactly_if_any_order_is_right(before: Any, copies: Any) -> None:
    checker, out = CopyChecker(6, 4), packed()
    with contextlib.suppress(CopyError):
        checker.check(*columns(before), packed())  # must not affect the next list
    expected = fault(copies)
    if expected is None:
        assert checker.check(*columns(copies), out) == len(copies)
        assert out[0].tolist() == [len(copies), 0, 0]
        assert [tuple(row) for row in out[1 : 1 + len(copies)].tolist()] == copies
        assert (out[1 + len(copies) :] == 99).all()
    else:
        with pytest.raises(CopyError) as caught:
            checker.check(*columns(copies), out)
        assert caught.value.pair == expected
        assert (out == 99).all()


@pytest.mark.parametrize(
    ("copies", "pair", "problem"),
    [
        ([(0, 1, 1), (6, 2, 1)], 1, r"pair 1: source must be in \[0, 6\), got 6"),
        ([(0, -1, 1)], 0, r"destination must be in \[0, 6\), got -1"),
        ([(0, 1, 0)], 0, r"num_tokens must be in \[1, 4\], got 0"),
        ([(0, 1, 5)], 0, r"num_tokens must be in \[1, 4\], got 5"),
        ([(0, 3, 1), (1, 3, 1)], 1, "destination 3 is the destination of pair 0 too"),
        ([(0, 3, 1), (3, 4, 1)], 1, "source 3 is the destination of pair 0"),
        ([(3, 3, 1)], 0, "source 3 is the destination of pair 0"),
        ([(0, 1, 2**32 + 1)], 0, "got 4294967297"),
        ([(2**32, 1, 1)], 0, "got 4294967296"),
    ],
)
def test_a_fault_names_the_pair_the_value_and_the_bound(
    copies: Any, pair: int, problem: str
) -> None:
    out = packed()
    with pytest.raises(CopyError, match=problem) as caught:
        CopyChecker(6, 4).check(*columns(copies), out)
    assert caught.value.pair == pair
    assert (out == 99).all()


def test_between_two_pools_ids_may_be_equal_and_have_bounds_of_their_own() -> None:
    checker, out = CopyChecker(6, 4, 2), packed()
    assert checker.check([1, 5], [1, 0], None, out) == 2
    assert out[1:3].tolist() == [[1, 1, 4], [5, 0, 4]]
    with pytest.raises(CopyError, match=r"destination must be in \[0, 2\), got 2"):
        checker.check([1], [2], None, out)
    with pytest.raises(CopyError, match="destination 1 is the destination of pair 0 too"):
        checker.check([1, 2], [1, 1], None, out)


def test_a_long_list_is_packed_piece_by_piece() -> None:
    checker, out = CopyChecker(20, 4), packed(4)
    assert checker.check(range(8), range(8, 16), [1, 2, 3, 4] * 2, out) == 8
    assert out.tolist() == [[3, 0, 0], [0, 8, 1], [1, 9, 2], [2, 10, 3]]
    assert checker.pack(3, out) == 3
    assert out.tolist() == [[3, 0, 0], [3, 11, 4], [4, 12, 1], [5, 13, 2]]
    assert checker.pack(6, out) == 2
    assert out.tolist()[:3] == [[2, 0, 0], [6, 14, 3], [7, 15, 4]]
    assert checker.pack(8, out) == 0


def test_blocks_to_zero_have_the_source_minus_one_and_may_repeat() -> None:
    checker, out = CopyChecker(6, 4), packed()
    assert checker.check_blocks([5, 0, 5], out) == 3
    assert out[:4].tolist() == [[3, 0, 0], [-1, 5, 4], [-1, 0, 4], [-1, 5, 4]]
    before = out.copy()
    with pytest.raises(CopyError, match=r"block must be in \[0, 6\), got 6") as caught:
        checker.check_blocks([1, 6], out)
    assert caught.value.pair == 1
    assert np.array_equal(out, before)


@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda x: np.array(x, np.uint8)])
def test_columns_may_be_any_integers(kind: Any) -> None:
    out = packed()
    assert CopyChecker(6, 4).check(kind([0]), kind([1]), kind([2]), out) == 1
    assert out[1].tolist() == [0, 1, 2]


def test_arguments_of_the_wrong_kind_are_named() -> None:
    checker, out = CopyChecker(6, 4), packed()
    with pytest.raises(TypeError, match="sources must be"):
        checker.check([0.5], [1], [1], out)
    with pytest.raises(TypeError, match="num_tokens must be"):
        checker.check([0], [1], ["1"], out)
    with pytest.raises(CopyError, match=r"destinations must be as many as sources \(1\), got 0"):
        checker.check([0], [], [1], out)
    with pytest.raises(CopyError, match=r"num_tokens must be as many as sources \(1\), got 2"):
        checker.check([0], [1], [1, 1], out)
    for wrong in (out.astype(np.int64), out.T, out.ravel(), [[0, 0, 0]]):
        with pytest.raises(TypeError):
            checker.check([0], [1], [1], wrong)
    assert (out == 99).all()


@pytest.mark.parametrize(
    ("arguments", "name"),
    [((0, 4), "num_blocks"), ((6, 0), "block_size"), ((6, 4, 0), "num_destinations")],
)
def test_a_checker_needs_sizes(arguments: tuple[int, ...], name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} must be in \[1, 2147483647\], got 0"):
        CopyChecker(*arguments)
