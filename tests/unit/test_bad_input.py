"""Wrong arguments: the right exception, the argument's name in it, and nothing changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from blockmgr import (
    BlockManager,
    ManagerConfig,
    StepError,
    TicketError,
    UnknownSequenceError,
)
from tests.conftest import MakeManager
from tests.unit.snapshot import refused

CONFIGS: list[tuple[str, Any, type[Exception]]] = [
    ("num_blocks", 0, ValueError),
    ("num_blocks", -1, ValueError),
    ("num_blocks", 2**31, ValueError),
    ("num_blocks", 1_789_569_281, ValueError),  # a fifth more nodes would not fit
    ("num_blocks", True, TypeError),
    ("num_blocks", 8.0, TypeError),
    ("num_blocks", "8", TypeError),
    ("num_blocks", None, TypeError),
    ("block_size", 0, ValueError),
    ("block_size", 65536, ValueError),
    ("block_size", False, TypeError),
    ("block_size", 1.5, TypeError),
    ("max_seqs", 0, ValueError),
    ("max_seqs", 2**31, ValueError),
    ("max_seqs", 1.0, TypeError),
    ("max_blocks_per_seq", 0, ValueError),
    ("max_blocks_per_seq", True, TypeError),
    ("prefix_caching", 1, TypeError),
    ("digest", "md5", ValueError),
    ("digest", 5, TypeError),
    ("dedup", "merge", ValueError),
    ("dedup", None, TypeError),
    ("min_partial_tokens", -1, ValueError),
    ("min_partial_tokens", 5, ValueError),
    ("min_partial_tokens", 1.0, TypeError),
    ("eviction", "fifo", ValueError),
    ("watermark_blocks", -1, ValueError),
    ("watermark_blocks", 9, ValueError),
    ("watermark_blocks", True, TypeError),
    ("steps_in_flight", -1, ValueError),
    ("steps_in_flight", 201, ValueError),
    ("early_commit", "yes", TypeError),
    ("null_block", 0, TypeError),
]


@pytest.mark.parametrize(("name", "value", "error"), CONFIGS)
def test_a_manager_is_not_built_on_a_wrong_option(
    name: str, value: Any, error: type[Exception]
) -> None:
    options = {"num_blocks": 8, "block_size": 4, name: value}
    with pytest.raises(error, match=name):
        BlockManager(**options)
    with pytest.raises(error, match=name):
        ManagerConfig(**options)


def test_the_null_block_alone_is_no_pool() -> None:
    with pytest.raises(ValueError, match="num_blocks"):
        BlockManager(1, 4, null_block=True)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="block_sise"):
        BlockManager(8, 4, block_sise=4)  # type: ignore[call-arg]


def test_index_objects_are_whole_numbers() -> None:
    manager = BlockManager(np.int64(8), np.uint8(4))  # type: ignore[arg-type]
    assert (manager.config.num_blocks, manager.config.block_size) == (8, 4)
    assert type(manager.config.num_blocks) is int


BAD_TOKENS: list[tuple[str, Any, type[Exception]]] = [
    ("empty", [], ValueError),
    ("negative", [1, -1], ValueError),
    ("too large", [1, 2**32], ValueError),
    ("huge", [2**80], ValueError),
    ("empty tuple", (), ValueError),
    ("empty range", range(0), ValueError),
    ("negative range", range(-1, 2), ValueError),
    ("empty array", np.zeros(0, np.int64), ValueError),
    ("bytearray", bytearray(b"abc"), TypeError),
    ("negative in a column", np.array([[1, 2], [-1, 3]])[:, 0], ValueError),
    ("negative in an array", np.array([1, -1]), ValueError),
    ("negative int8", np.array([-1], np.int8), ValueError),
    ("negative int32", np.array([1, -1], np.int32), ValueError),
    ("int32 that is all negative", np.full(5, -(2**31), np.int32), ValueError),
    ("too large in an array", np.array([2**32]), ValueError),
    ("too large uint64", np.array([2**63], np.uint64), ValueError),
]


@pytest.mark.parametrize(
    ("tokens", "error"), [row[1:] for row in BAD_TOKENS], ids=[row[0] for row in BAD_TOKENS]
)
@pytest.mark.parametrize("call", ["admit", "match", "can_admit", "append"])
def test_wrong_tokens_are_refused(
    make_manager: MakeManager, call: str, tokens: Any, error: type[Exception]
) -> None:
    manager = make_manager()
    handle = manager.admit([1, 2, 3])
    args = (handle, tokens) if call == "append" else (tokens,)
    with refused(manager, error, "token"):
        getattr(manager, call)(*args)


def test_keys_at_their_longest_are_fine(make_manager: MakeManager) -> None:
    manager = make_manager()
    manager.admit([1, 2, 3], namespace=bytes(1024), extras={0: bytes(1024), 10**6: b"x"})


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 2**100])
def test_integers_beyond_every_integer_are_refused_too(
    make_manager: MakeManager, value: int
) -> None:
    manager = make_manager(steps_in_flight=1)
    handle = manager.admit([1, 2, 3])
    ticket = manager.take_copies().ticket
    calls: dict[str, list[Callable[[], object]]] = {
        "num_computed_tokens": [lambda: manager.commit(handle, value)],
        "num_tokens": [lambda: manager.truncate(handle, value)],
        "n": [lambda: manager.fork(handle, value)],
        "num_slots": [
            lambda: manager.reserve(handle, value),
            lambda: manager.admit([1], num_slots=value),
        ],
        "stop": [lambda: manager.slot_mapping(handle, 0, value)],
        "start": [lambda: manager.slot_mapping(handle, value, 1)],
        "extras": [lambda: manager.admit([1], extras={value: b"x"})],
        "handles must be in int64": [lambda: manager.decode([value], [1])],
        "parents must be in int64": [lambda: manager.reparent([handle], [value])],
    }
    for name, refusals in calls.items():
        for call in refusals:
            with refused(manager, ValueError, name):
                call()
    # No object has these numbers, as with numbers that were never given.
    unknown: dict[type[Exception], list[Callable[[int], object]]] = {
        UnknownSequenceError: [manager.free, manager.sequence, manager.row, manager.fork],
        TicketError: [manager.copies_applied, manager.copies_aborted],
        StepError: [manager.complete],
    }
    for error, named in unknown.items():
        for call_of in named:
            with refused(manager, error):
                call_of(value)
    manager.copies_applied(ticket)


def test_a_block_has_one_value_of_extras(make_manager: MakeManager) -> None:
    """Two keys of a mapping can name one block, and the manager must not guess."""

    class Zero:
        def __index__(self) -> int:
            return 0

    manager = make_manager()
    with refused(manager, ValueError, "extras"):
        manager.admit([1, 2, 3], extras={0: b"x", Zero(): b"y"})  # type: ignore[dict-item]


def test_arguments_are_read_before_the_manager_is_touched(make_manager: MakeManager) -> None:
    """A token may be an object whose ``__index__`` calls the manager."""
    manager = make_manager()
    handle = manager.admit([1, 2, 3])

    class Meddler:
        def __index__(self) -> int:
            manager.free(handle)
            return 5

    with pytest.raises(UnknownSequenceError):
        manager.append(handle, [Meddler()])  # type: ignore[list-item]
    assert manager.handles() == []


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("length", range(1, 11))
def test_a_list_of_any_length_is_read_whole_and_to_its_end_only(
    make_manager: MakeManager, length: int, kind: Any
) -> None:
    manager = make_manager(8, 4)
    manager.free(manager.admit(list(range(1000, 1020))))  # a longer one was read before
    handle = manager.admit(kind(range(length)))
    assert manager.sequence(handle).tokens.tolist() == list(range(length))


@pytest.mark.parametrize("position", range(10))
def test_a_wrong_token_is_found_wherever_it_stands(
    make_manager: MakeManager, position: int
) -> None:
    manager = make_manager(8, 4)
    tokens = list(range(10))
    tokens[position] = -1
    with pytest.raises(ValueError, match=f"got -1 at index {position}"):
        manager.admit(tokens)
    assert manager.stats().used_blocks == 0


@pytest.mark.parametrize("ttl", [0.0, -0.5, -1.0, float("nan")])
def test_the_core_checks_a_ttl_of_its_own(ttl: float) -> None:
    manager = BlockManager(8, 2, retention=True)
    handle = manager.admit([1, 2, 3])
    with refused(manager, ValueError, "ttl must be above 0"):
        manager._core.retain(handle, 0, 2, 3, ttl)
