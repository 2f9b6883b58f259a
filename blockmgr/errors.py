"""All errors of the library.

::

    BlockMgrError(Exception)
    ├── OutOfBlocksError                       ordinary shortage: retry after a block is freed
    ├── OutOfSequencesError                    ordinary shortage of sequence rows
    ├── NeverFitsError       (also ValueError)      larger than the pool or a table row
    ├── UnknownSequenceError (also KeyError)        never admitted, freed, or another manager's
    ├── StaleMatchError                        blocks of a match were evicted: match again
    ├── PinBudgetError                         ordinary shortage: unpin first
    ├── UnknownPinError      (also KeyError)        never made, or released
    ├── SequenceStateError                     the handle is right, the sequence's state is not
    ├── BlockStateError                        the block id is right, the block's state is not
    ├── StepError                              the order of calls within a step is broken
    ├── TicketError                            a copy plan resolved twice, or never taken
    ├── ReentrancyError                        a call from inside another call of the same manager
    ├── ForkError                              forked while another thread was inside a call
    ├── PolicyError                            an eviction policy in Python has failed
    ├── LayoutError           (also ValueError)      KV tensors that cannot be registered
    ├── PageSizeError         (also ValueError)      groups of layers whose pages are not equal
    ├── CopyError             (also ValueError)      block copies that must not be launched
    ├── UnsupportedModelError (also ValueError)      attention the paged cache cannot serve
    ├── TraceFormatError      (also ValueError)      path:line:column, found and expected
    ├── HintError             (also ValueError)      an envelope of KV hints that is malformed
    ├── EndpointError         (also OSError)         cannot listen on an address
    ├── ClusterLostError      (also ConnectionError) a cluster that has stopped answering
    ├── MissingExtraError     (also ImportError)     names the extra to install
    └── InvariantError        (also AssertionError)  only from check_invariants(): our bug

Bad arguments are plain ``ValueError`` and ``TypeError`` that name the parameter, the value and
its bound. Whatever a call raises, the manager is as it was before the call.
"""

from typing import Any, cast

__all__ = [
    "BlockMgrError",
    "BlockStateError",
    "ClusterLostError",
    "CopyError",
    "EndpointError",
    "ForkError",
    "HintError",
    "InvariantError",
    "LayoutError",
    "MissingExtraError",
    "NeverFitsError",
    "OutOfBlocksError",
    "OutOfSequencesError",
    "PageSizeError",
    "PinBudgetError",
    "PolicyError",
    "ReentrancyError",
    "SequenceStateError",
    "StaleMatchError",
    "StepError",
    "TicketError",
    "TraceFormatError",
    "UnknownPinError",
    "UnknownSequenceError",
    "UnsupportedModelError",
]


class BlockMgrError(Exception):
    """Root of every error in this library.

    An error that takes more than a message keeps each argument as an attribute of the same name.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        code = getattr(type(self).__init__, "__code__", None)
        if code is None:  # it takes a message
            return cast("tuple[Any, ...]", super().__reduce__())
        names = code.co_varnames[1 : code.co_argcount]
        return type(self), tuple(getattr(self, name) for name in names)


class OutOfBlocksError(BlockMgrError):
    """Not enough blocks at the moment. Free or preempt a sequence and try again.

    Attributes:
        needed: Blocks the call would have taken, idle blocks it would have hit included.
        available: Blocks that could be handed out (free and idle).
        reserved_by_watermark: Of those, blocks held back from new work.
        of_nodes: Whether nodes are short, not blocks, and counted here: see
            ``ManagerConfig.num_nodes``.
    """

    def __init__(
        self, needed: int, available: int, reserved_by_watermark: int = 0, of_nodes: bool = False
    ) -> None:
        self.needed = needed
        self.available = available
        self.reserved_by_watermark = reserved_by_watermark
        self.of_nodes = of_nodes
        message = f"need {needed} {'nodes' if of_nodes else 'blocks'}, {available} available"
        if of_nodes:
            message += "; num_nodes sets how many there are"
        if reserved_by_watermark:
            held_back = min(reserved_by_watermark, available)
            message += f", {held_back} of them held back by the watermark"
        super().__init__(message)


class OutOfSequencesError(BlockMgrError):
    """Every sequence row is taken. Free a sequence, or configure more with ``max_seqs``.

    Attributes:
        needed: Rows the call would have taken.
        available: Rows that are not taken.
    """

    def __init__(self, needed: int, available: int) -> None:
        self.needed, self.available = needed, available
        super().__init__(
            f"need {needed} sequence rows, {available} available; max_seqs sets how many there are"
        )


class NeverFitsError(BlockMgrError, ValueError):
    """The sequence is larger than the pool or a block table row; retrying cannot help."""


class UnknownSequenceError(BlockMgrError, KeyError):
    """The handle was never issued, belongs to another manager, or was freed already.

    Attributes:
        handle: The handle as it was passed.
    """

    def __init__(self, handle: int) -> None:
        self.handle = handle
        super().__init__(
            f"handle {_brief(handle)} names no live sequence; it was freed, or never issued"
        )

    def __str__(self) -> str:
        # KeyError would print the repr of the message.
        return str(self.args[0])


class StaleMatchError(BlockMgrError):
    """The cache no longer holds exactly what the ``match`` of an admission found. Match again.

    Attributes:
        expected: Tokens that the match found.
        found: Tokens that admission finds, at most ``expected``.
    """

    def __init__(self, expected: int, found: int) -> None:
        self.expected, self.found = expected, found
        super().__init__(f"the match found {expected} tokens, {found} of them are cached now")


class PinBudgetError(BlockMgrError):
    """More pins than ``max_pinned_blocks`` allows. Unpin something, or pin less.

    Attributes:
        needed: Blocks the call would have pinned that no pin covers yet; 1 if the number of pins is
            exhausted.
        available: Blocks, or pins, left in the budget.
        budget: ``max_pinned_blocks``, or the share's part of it.
    """

    def __init__(self, needed: int, available: int, budget: int) -> None:
        self.needed, self.available, self.budget = needed, available, budget
        super().__init__(
            f"need {needed} more of the pin budget, {available} of {budget} left; "
            "max_pinned_blocks sets it"
        )


class UnknownPinError(BlockMgrError, KeyError):
    """The pin was never made, or was released already.

    Attributes:
        pin: The pin as it was passed.
    """

    def __init__(self, pin: int) -> None:
        self.pin = pin
        super().__init__(f"pin {_brief(pin)} is not held; it was released, or never made")

    def __str__(self) -> str:
        # KeyError would print the repr of the message.
        return str(self.args[0])


class SequenceStateError(BlockMgrError):
    """The call needs the sequence to be running, preempted, or with slots for all its tokens."""


class BlockStateError(BlockMgrError):
    """A block is not in the state that the call needs, such as a block that is not held.

    Attributes:
        block: The block id.
    """

    def __init__(self, block: int, problem: str) -> None:
        self.block, self.problem = block, problem
        super().__init__(f"block {block}: {problem}")


class StepError(BlockMgrError):
    """A call broke the order of calls within a step."""


class TicketError(BlockMgrError):
    """The ticket was never issued, or its copy plan has been resolved already."""


class ReentrancyError(BlockMgrError):
    """A manager was called from inside its own call, or an engine while another call ran."""


class ForkError(BlockMgrError):
    """The process was forked while another thread was inside a call of this manager or pool.

    That thread does not exist in the child, so its call never ends there. Nothing has changed in
    the parent. A manager with no call in progress at the fork works in both. A slab works in the
    process that opened it only, and raises this in every child.
    """


class PolicyError(BlockMgrError):
    """An eviction policy written in Python raised, or named an impossible victim.

    Raised by ``check_policy()`` and ``check_invariants()``, never by the call in which the policy
    failed: that call has finished.

    Attributes:
        error: The first error.
    """

    def __init__(self, error: BaseException) -> None:
        self.error = error
        super().__init__(f"the eviction policy failed: {type(error).__name__}: {error}")


class TraceFormatError(BlockMgrError, ValueError):
    """A trace file breaks the rules of its format.

    Attributes:
        path: The file.
        line: Line number, from 1.
        column: Column of the offending value or character, from 1.
        found: The text in the file.
        expected: The text that the format allows.
    """

    def __init__(self, path: str, line: int, column: int, found: str, expected: str) -> None:
        self.path = path
        self.line = line
        self.column = column
        self.found = found
        self.expected = expected
        super().__init__(f"{path}:{line}:{column}: found {found}, expected {expected}")


class HintError(BlockMgrError, ValueError):
    """An envelope of KV hints is malformed. No action of it has been carried out."""


class EndpointError(BlockMgrError, OSError):
    """The program cannot listen on an address: its port is taken, say.

    Attributes:
        endpoint: The address.
        problem: The system's message.
    """

    def __init__(self, endpoint: str, problem: str) -> None:
        self.endpoint, self.problem = endpoint, problem
        super().__init__(f"cannot listen on {endpoint}: {problem}")


class ClusterLostError(BlockMgrError, ConnectionError):
    """A cluster does not answer, or has stopped answering.

    Attributes:
        address: Address of the cluster.
        problem: What happened, as far as is known.
    """

    def __init__(self, address: str, problem: str) -> None:
        self.address, self.problem = address, problem
        super().__init__(f"the cluster at {address} is lost: {problem}")


class MissingExtraError(BlockMgrError, ImportError):
    """An optional dependency is not installed.

    Attributes:
        extra: The extra that brings it, as in ``pip install '.[extra]'`` in a clone of blockmgr.
        feature: The feature that needs it.
    """

    def __init__(self, extra: str, feature: str) -> None:
        self.extra, self.feature = extra, feature
        # The package is in no index under this name, and a stranger could register the name.
        hint = f"in a clone of blockmgr: pip install '.[{extra}]'"
        super().__init__(f"{feature} needs an extra; {hint}")


class InvariantError(BlockMgrError, AssertionError):
    """Counts or links are wrong. Only ``check_invariants()`` raises this; please report it.

    Attributes:
        violations: Every violated invariant, one sentence each.
    """

    def __init__(self, violations: tuple[str, ...]) -> None:
        self.violations = violations
        super().__init__("; ".join(violations))


class LayoutError(BlockMgrError, ValueError):
    """KV tensors cannot be registered: a stride, an overlap, a device or a size is wrong.

    Attributes:
        segment: Name of the segment at fault.
    """

    def __init__(self, segment: str, problem: str) -> None:
        self.segment, self.problem = segment, problem
        super().__init__(f"segment {segment!r}: {problem}")


class PageSizeError(BlockMgrError, ValueError):
    """The pages of groups of layers cannot be made equal, so the groups cannot share a pool.

    Attributes:
        group: Position of the group at fault in the groups of the model.
        kind: The group, as in ``RecurrentState()``.
    """

    def __init__(self, group: int, kind: str, problem: str) -> None:
        self.group, self.kind, self.problem = group, kind, problem
        super().__init__(f"group {group}, {kind}: {problem}")


class CopyError(BlockMgrError, ValueError):
    """A list of block copies must not be launched. Nothing has been copied.

    Attributes:
        pair: Index in the list of the copy at fault; None if the whole list is at fault.
    """

    def __init__(self, pair: int | None, problem: str) -> None:
        self.pair, self.problem = pair, problem
        super().__init__(problem if pair is None else f"pair {pair}: {problem}")


class UnsupportedModelError(BlockMgrError, ValueError):
    """The paged cache cannot serve the model's attention. No weights have been loaded.

    Attributes:
        model: The model type, as its configuration names it.
        missing: The missing feature.
    """

    def __init__(self, model: str, missing: str) -> None:
        self.model, self.missing = model, missing
        super().__init__(f"{model}: {missing}")


def _brief(number: int) -> str:
    """An int as text, or its size: Python refuses to print an int of thousands of digits."""
    bits = number.bit_length()
    return str(number) if bits <= 64 else f"of {bits} bits"
