"""The interface of nano-vllm's block manager on this core.

Replaces ``nanovllm.engine.block_manager.BlockManager``; the scheduler does not change::

    schedule prompts   found = can_allocate(seq), then allocate(seq, found)
    schedule decodes   can_append(seq), then may_append(seq)
    after a forward    hash_blocks(seq)
    finish, preempt    deallocate(seq)

Source: nano-vllm, ``nanovllm/engine/block_manager.py``, since chunked prefill.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

import blockmgr
from blockmgr.arguments import integer
from blockmgr.blocks import Admission
from blockmgr.errors import NeverFitsError, SequenceStateError
from blockmgr.ports.locking import exclusive, new_mutex

if TYPE_CHECKING:
    from collections.abc import Callable

    from blockmgr.policy import PolicyFactory

__all__ = ["BlockManager", "NanoSequence"]


class NanoSequence(Protocol):
    """The attributes of nano-vllm's ``Sequence`` that the port reads and writes."""

    token_ids: list[int]
    """Prompt and sampled tokens. May grow between calls, but only at the end."""
    block_table: list[int]
    """Block ids in logical order; written here, empty while the sequence holds no blocks."""
    num_cached_tokens: int
    """Set by ``allocate`` and ``deallocate``; advanced by the scheduler."""
    num_scheduled_tokens: int
    """Tokens, from ``num_cached_tokens`` on, that this step's forward computes."""


class BlockManager:
    """Block tables of nano-vllm's sequences. Calls of several threads wait for one another.

    A sequence that lacks an attribute, or a value of the wrong type, raises ``TypeError``; no
    tokens, or a token out of ``[0, 2**32)``, ``ValueError``.

    Args:
        num_blocks: Physical blocks in the pool.
        block_size: Tokens per block.
        max_seqs: Sequences that hold blocks at a time; beyond, ``can_allocate`` answers -1.
        prefix_caching: Off, nothing is found again.
        digest: As in ``ManagerConfig``.
        dedup: As in ``ManagerConfig``. With ``"remap"``, ``hash_blocks`` may change entries of
            ``block_table`` to the blocks of a sequence with the same content.
        eviction: As in ``ManagerConfig``.

    Attributes:
        manager: The underlying manager, for its statistics. Its sequences belong to the port.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        max_seqs: int = 512,
        prefix_caching: bool = True,
        digest: str | Callable[[bytes], bytes] = "xxh3_128",
        dedup: Literal["remap", "append_only"] = "remap",
        eviction: str | PolicyFactory = "lru",
    ) -> None:
        self.manager = blockmgr.BlockManager(
            num_blocks,
            block_size,
            max_seqs=max_seqs,
            prefix_caching=prefix_caching,
            digest=digest,
            dedup=dedup,
            eviction=eviction,
        )
        self.block_size = self.manager.config.block_size
        # By identity of the sequence, which this keeps alive, with its name in the core.
        self._holders: dict[int, tuple[NanoSequence, int]] = {}
        self._mutex = new_mutex()

    @exclusive
    def can_allocate(self, seq: NanoSequence) -> int:
        """The number of cached blocks that ``allocate`` would find, or -1 if it would not succeed.

        Raises:
            NeverFitsError: The sequence needs more blocks than there are; it would wait forever.
        """
        _check_has(seq, "token_ids")
        prompt = blockmgr.Prompt(seq.token_ids)
        answer = self.manager.can_admit(prompt)
        if answer is Admission.NEVER:
            raise self._never_fits(seq)
        if answer is not Admission.NOW:
            return -1
        return len(self.manager.match(prompt).block_ids)

    @exclusive
    def allocate(self, seq: NanoSequence, num_cached_blocks: int) -> None:
        """Allocates blocks for all tokens of the sequence, the cached ones first.

        Fills ``block_table`` and sets ``num_cached_tokens``.

        Args:
            seq: A sequence that holds no blocks.
            num_cached_blocks: Result of ``can_allocate``, with which the scheduler planned its
                step.

        Raises:
            OutOfBlocksError: Too few blocks at the moment.
            NeverFitsError: The sequence needs more blocks than there are.
            OutOfSequencesError: ``max_seqs`` sequences hold blocks.
            SequenceStateError: The sequence holds blocks already.
            ValueError: ``num_cached_blocks`` is not what the cache holds, no tokens, or a token
                out of bounds.
        """
        _check_has(seq, "token_ids", "block_table")
        if not isinstance(seq.block_table, list):
            kind = type(seq.block_table).__name__
            raise TypeError(f"block_table of a sequence must be a list, got {kind}")
        if len(seq.block_table) or id(seq) in self._holders:
            raise SequenceStateError("the sequence holds blocks already; deallocate it first")
        prompt = blockmgr.Prompt(seq.token_ids)
        found = len(self.manager.match(prompt).block_ids)
        if integer("num_cached_blocks", num_cached_blocks) != found:
            raise ValueError(
                f"num_cached_blocks must be {found}, as can_allocate answers at the moment, "
                f"got {num_cached_blocks!r}"
            )
        handle = self.manager.admit(prompt)
        self._holders[id(seq)] = seq, handle
        seq.block_table.extend(self.manager.block_ids(handle))
        seq.num_cached_tokens = self.manager.sequence(handle).num_cached_tokens

    @exclusive
    def can_append(self, seq: NanoSequence) -> bool:
        """Whether ``may_append`` has the block it needs.

        Raises:
            NeverFitsError: The sequence needs more blocks than there are; preempting others
                cannot help.
            SequenceStateError: The sequence holds no blocks, or has lost tokens it had.
        """
        self._sampled(self._handle(seq), seq)
        needed = -(-len(seq.token_ids) // self.block_size)
        lacking = needed - len(seq.block_table)
        if lacking > 0 and needed > self.manager.config.row_width:
            raise self._never_fits(seq)
        return lacking <= max(0, self.manager.num_available)

    @exclusive
    def may_append(self, seq: NanoSequence) -> None:
        """Adds the tokens sampled since the last call, with a block for them if necessary.

        Raises:
            OutOfBlocksError: No block is available; ``can_append`` would have returned False.
            NeverFitsError: The sequence needs more blocks than there are.
            SequenceStateError: The sequence holds no blocks, or has lost tokens it had.
        """
        handle = self._handle(seq)
        if sampled := self._sampled(handle, seq):
            self.manager.append(handle, sampled)
            seq.block_table.extend(self.manager.block_ids(handle, len(seq.block_table)))

    @exclusive
    def hash_blocks(self, seq: NanoSequence) -> None:
        """Makes the blocks findable that this step's forward has filled.

        Call it after the forward and before the scheduler advances ``num_cached_tokens``.

        Raises:
            SequenceStateError: The sequence holds no blocks.
            ValueError: The sum of ``num_cached_tokens`` and ``num_scheduled_tokens`` is less than
                the computed tokens, or more than all tokens.
        """
        handle = self._handle(seq)
        _check_has(seq, "num_scheduled_tokens")
        view = self.manager.sequence(handle)
        before, most = view.num_computed_tokens, view.num_tokens
        computed = integer("num_cached_tokens", seq.num_cached_tokens)
        computed += integer("num_scheduled_tokens", seq.num_scheduled_tokens)
        if not before <= computed <= most:
            raise ValueError(
                "num_cached_tokens + num_scheduled_tokens must be in "
                f"[{before}, {most}], got {computed}"
            )
        self.manager.commit(handle, computed)
        # With ``dedup="remap"``, the blocks that are now full may have changed.
        start, stop = before // self.block_size, computed // self.block_size
        seq.block_table[start:stop] = self.manager.block_ids(handle, start)[: stop - start]

    @exclusive
    def deallocate(self, seq: NanoSequence) -> None:
        """Releases the blocks of a finished or preempted sequence, the last first.

        Its full computed blocks stay findable until they are evicted, so a preempted sequence can
        find most of its tokens again.

        Raises:
            SequenceStateError: The sequence holds no blocks: never allocated, or deallocated
                already.
        """
        self.manager.free(self._handle(seq))
        del self._holders[id(seq)]
        seq.block_table.clear()
        seq.num_cached_tokens = 0

    def _handle(self, seq: NanoSequence) -> int:
        if id(seq) not in self._holders:
            raise SequenceStateError(
                "the sequence holds no blocks; it was never allocated, or deallocated already"
            )
        return self._holders[id(seq)][1]

    def _sampled(self, handle: int, seq: NanoSequence) -> list[int]:
        """The tokens sampled since the last call."""
        known, present = self.manager.sequence(handle).num_tokens, len(seq.token_ids)
        if present < known:
            raise SequenceStateError(
                f"the sequence had {known} tokens and has {present}; "
                "tokens may be added only, deallocate it first"
            )
        return seq.token_ids[known:]

    def _never_fits(self, seq: NanoSequence) -> NeverFitsError:
        needed = -(-len(seq.token_ids) // self.block_size)
        return NeverFitsError(
            f"{len(seq.token_ids)} tokens need {needed} blocks of {self.block_size}, there are "
            f"{self.manager.config.row_width}"
        )


def _check_has(seq: object, *names: str) -> None:
    """Refuses objects that are not sequences of nano-vllm."""
    for name in names:
        if not hasattr(seq, name):
            raise TypeError(f"seq must have {name}, got {type(seq).__name__}")
