"""A short run of the parsers' fuzzer, and a check that it finds bugs."""

from __future__ import annotations

import pytest

from blockmgr.lab.formats import event_batch
from blockmgr.lab.formats.record import Record
from tests import fuzz_parsers


def test_no_input_gets_past_the_parsers() -> None:
    done, new, lines = fuzz_parsers.fuzz(seconds=1e9, seed=1, runs=1_500)
    assert done == 1_500
    assert new > 3
    assert lines > 100


def test_an_error_that_is_not_promised_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(of: object, values: list[int], *_: object) -> list[int]:
        return [int(value) for value in values]

    monkeypatch.setattr(Record, "tokens", lambda self, field, values: careless(field, values))
    monkeypatch.setattr(event_batch, "checked_tokens", careless)
    with pytest.raises((TypeError, ValueError, AssertionError, OverflowError)):
        fuzz_parsers.fuzz(seconds=1e9, seed=1, runs=20_000)
