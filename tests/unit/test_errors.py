"""The error classes: their bases, and pickling."""

from __future__ import annotations

import pickle

import pytest

import blockmgr
from blockmgr import BlockMgrError

EXAMPLES: list[BlockMgrError] = [
    blockmgr.OutOfBlocksError(3, 2, 1),
    blockmgr.OutOfSequencesError(2, 1),
    blockmgr.NeverFitsError("9 tokens need 3 blocks"),
    blockmgr.UnknownSequenceError(7),
    blockmgr.SequenceStateError("sequence 7 is preempted"),
    blockmgr.StepError("ticket 1 is not resolved"),
    blockmgr.TicketError("ticket 1 was never taken"),
    blockmgr.ReentrancyError("the manager is inside another call"),
    blockmgr.LayoutError("layers.0.k", "row_bytes 12 is not a multiple of 16"),
    blockmgr.PageSizeError(2, "RecurrentState()", "a state of 96 bytes exceeds a page of 64"),
    blockmgr.UnsupportedModelError("mamba", "no attention layers to page"),
    blockmgr.BlockStateError(3, "released, but not held"),
    blockmgr.CopyError(3, "destination 9 is not in [0, 8)"),
    blockmgr.TraceFormatError("t.jsonl", 3, 4, "'x'", "a number"),
    blockmgr.ClusterLostError("127.0.0.1:6379", "does not answer"),
    blockmgr.EndpointError("tcp://127.0.0.1:5557", "address in use"),
    blockmgr.MissingExtraError("plot", "--plot"),
    blockmgr.InvariantError(("one", "two")),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_errors_keep_their_fields_through_a_pickle(error: BlockMgrError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_messages_are_lower_case_without_a_full_stop(error: BlockMgrError) -> None:
    assert not str(error).endswith(".")
    assert not str(error)[0].isupper()


@pytest.mark.parametrize(
    ("error", "base"),
    [
        (blockmgr.NeverFitsError, ValueError),
        (blockmgr.UnknownSequenceError, KeyError),
        (blockmgr.TraceFormatError, ValueError),
        (blockmgr.MissingExtraError, ImportError),
        (blockmgr.InvariantError, AssertionError),
    ],
)
def test_errors_are_also_what_python_calls_them(
    error: type[Exception], base: type[Exception]
) -> None:
    assert issubclass(error, BlockMgrError)
    assert issubclass(error, base)


def test_a_trace_error_leads_to_the_place() -> None:
    error = blockmgr.TraceFormatError("t.jsonl", 3, 4, "'x'", "a number")
    assert str(error) == "t.jsonl:3:4: found 'x', expected a number"


def test_an_error_that_cannot_be_made_is_replaced_by_what_went_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []

    def fail_once(self: BaseException, *arguments: int) -> None:
        calls.append(arguments)
        if len(calls) == 1:
            raise LookupError("no words")

    manager = blockmgr.BlockManager(4, 2)
    manager.admit([1] * 5)
    monkeypatch.setattr(blockmgr.OutOfBlocksError, "__init__", fail_once)
    with pytest.raises(LookupError, match="no words"):
        manager.admit([2] * 5)
    assert calls == [(3, 1, 0, False)]
