"""Checks of single arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockmgr.arguments import integer, real, whole


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_every_kind_of_int_is_one(value: Any) -> None:
    for number in (integer("n", value), whole("n", value, 3), whole("n", value, 0, 3)):
        assert type(number) is int
        assert number == 3


@pytest.mark.parametrize("value", [True, np.True_, 3.0, "3", None, float("nan"), [3]])
def test_what_is_no_int_is_refused_by_name(value: Any) -> None:
    for check in (lambda: integer("n", value), lambda: whole("n", value, 0, 9)):
        with pytest.raises(TypeError, match="n must be an int, got "):
            check()


@pytest.mark.parametrize("convert", [int, np.int64])
def test_the_error_names_the_bound_that_was_passed(convert: Any) -> None:
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        whole("n", convert(0), 1)
    for value in (0, 5):
        with pytest.raises(ValueError, match=rf"n must be in \[1, 4\], got {value}"):
            whole("n", convert(value), 1, 4)


def test_a_bool_and_text_are_no_numbers() -> None:
    assert real("x", 2) == 2
    for value in (True, "2", None):
        with pytest.raises(TypeError, match="x must be a number, got "):
            real("x", value)  # type: ignore[arg-type]
