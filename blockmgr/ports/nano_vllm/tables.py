"""The base of both generations of nano-vllm's interface: block tables and growth."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import xxhash

import blockmgr
from blockmgr.arguments import whole
from blockmgr.blocks import Admission, BlockState
from blockmgr.changes import at_once
from blockmgr.errors import NeverFitsError, SequenceStateError
from blockmgr.ports.locking import exclusive, new_mutex

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from blockmgr.changes import Change
    from blockmgr.policy import PolicyFactory

__all__ = ["ChunkedSequence", "Holder", "NanoSequence", "Tables", "check_has"]


class NanoSequence(Protocol):
    """The attributes of nano-vllm's ``Sequence`` that the port reads and writes."""

    token_ids: list[int]
    """Prompt and sampled tokens. May grow between calls, but only at the end."""
    block_table: list[int]
    """Block ids in logical order; written here, empty while the sequence holds no blocks."""
    num_cached_tokens: int
    """Set by ``allocate`` and ``deallocate``; advanced by the scheduler."""


class ChunkedSequence(NanoSequence, Protocol):
    """The same for schedulers with chunked prefill."""

    num_scheduled_tokens: int
    """Tokens, from ``num_cached_tokens`` on, that this step's forward computes."""


class Holder:
    """A sequence that holds blocks, and the core's state of it; keeps the sequence alive."""

    __slots__ = ("_entries", "handle", "num_computed_tokens", "row", "seq")

    def __init__(
        self, seq: NanoSequence, view: blockmgr.Sequence, entries: npt.NDArray[np.int32]
    ) -> None:
        self.seq = seq
        self.handle = view.handle
        self.row = view.row
        self.num_computed_tokens = view.num_cached_tokens
        # The core's own block table; a memory view yields Python ints.
        self._entries = memoryview(entries)  # type: ignore[arg-type]  # NumPy's are buffers

    def entries(self, start: int, stop: int) -> Change:
        """Copies these entries from the core's block table when the change is made."""
        entries = self._entries[start:stop]
        return (self.seq.block_table.__setitem__, slice(start, stop), entries)


class Tables:
    """The base of both generations: block tables, growth, and the attributes.

    Calls of several threads wait for one another.
    """

    __slots__ = ("_holders", "_lengths", "_most_blocks", "_mutex", "block_size", "manager")

    manager: blockmgr.BlockManager
    """The underlying manager, for its statistics. Its sequences belong to the port."""

    block_size: int
    """Tokens per block."""

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
        self._lengths = memoryview(self.manager.seq_lens)  # type: ignore[arg-type]  # as in Holder
        self.block_size = self.manager.config.block_size
        self._most_blocks = self.manager.config.row_width
        self._holders: dict[int, Holder] = {}  # by identity of the sequence
        self._mutex = new_mutex()

    @staticmethod
    def compute_hash(token_ids: list[int], prefix: int = -1) -> int:
        """The chained 64-bit hash by which nano-vllm names a full block; not used for matching.

        Args:
            token_ids: The tokens of the block.
            prefix: The hash of the block before, in ``[0, 2**64)``; -1 for the first.

        Raises:
            ValueError: ``prefix`` or a token out of its bounds.
            TypeError: Values of the wrong type.

        >>> from blockmgr.ports.nano_vllm import BlockManager
        >>> BlockManager.compute_hash(list(range(1, 17)))
        12258205949268247123
        """
        prefix = whole("prefix", prefix, -1, 2**64 - 1)
        before = b"" if prefix == -1 else prefix.to_bytes(8, "little")
        tokens = [whole("token_ids", token, 0, 2**63 - 1) for token in token_ids]
        return xxhash.xxh64_intdigest(before + np.array(tokens, "<i8").tobytes())

    @exclusive
    def can_append(self, seq: NanoSequence) -> bool:
        """Whether ``may_append`` has the block it needs.

        Raises:
            NeverFitsError: The sequence needs more blocks than there are; preempting others
                cannot help.
            SequenceStateError: The sequence holds no blocks, or has lost tokens it had.
        """
        holder = self._holder(seq)
        num_tokens = len(seq.token_ids)
        self._known(holder, num_tokens)
        needed = -(-num_tokens // self.block_size)
        lacking = needed - len(seq.block_table)
        if lacking <= 0:
            return True
        if needed > self._most_blocks:
            raise self._never_fits(seq)
        return lacking <= self.manager.num_available

    @exclusive
    def may_append(self, seq: NanoSequence) -> None:
        """Adds the tokens sampled since the last call, with a block for them if necessary.

        Raises:
            OutOfBlocksError: No block is available; ``can_append`` would have returned False.
            NeverFitsError: The sequence needs more blocks than there are.
            SequenceStateError: The sequence holds no blocks, or has lost tokens it had.
            ValueError: A token out of bounds.
            TypeError: A token that is not an int.
        """
        holder = self._holder(seq)
        tokens, entries = self._growth(holder)
        if entries:
            at_once(((self.manager.compiled.append, holder.handle, tokens), *entries), None)
        elif tokens:
            self.manager.append(holder.handle, tokens)

    @exclusive
    def deallocate(self, seq: NanoSequence) -> None:
        """Releases the blocks of a finished or preempted sequence, the last first.

        Its full computed blocks stay findable until they are evicted, so a preempted sequence can
        find most of its tokens again.

        Raises:
            SequenceStateError: The sequence holds no blocks: never allocated, or deallocated
                already.
        """
        at_once(self._departure(self._holder(seq)), None)

    @property
    def used_block_ids(self) -> set[int]:
        """The blocks that cannot be handed out: named by a block table, or pinned; a snapshot.

        Cost: O(blocks + entries of all block tables).
        """
        state = self.manager.blocks().state
        used = (state == BlockState.OWNED) | (state == BlockState.CACHED)
        return set(np.flatnonzero(used).tolist())

    @property
    def free_block_ids(self) -> deque[int]:
        """The other blocks in the order of use, empty ones before cached ones; a snapshot.

        Cost: O(blocks + entries of all block tables). ``manager.num_available`` is its length.
        """
        blocks = self.manager.blocks()
        return deque([*blocks.ids(BlockState.FREE).tolist(), *blocks.eviction_order.tolist()])

    @exclusive
    def check_invariants(self) -> None:
        """Recomputes and checks the state of the core.

        Raises:
            InvariantError: An invariant is violated, which is a bug in blockmgr.
        """
        self.manager.check_invariants()

    def _holder(self, seq: NanoSequence) -> Holder:
        holder = self._holders.get(id(seq))
        if holder is None:
            raise SequenceStateError(
                "the sequence holds no blocks; it was never allocated, or deallocated already"
            )
        return holder

    def _known(self, holder: Holder, num_tokens: int) -> int:
        """The number of tokens the core knows of a sequence; raises if the sequence has fewer."""
        known = self._lengths[holder.row]
        if num_tokens < known:
            raise SequenceStateError(
                f"the sequence had {known} tokens and has {num_tokens}; "
                "tokens may be added only, deallocate it first"
            )
        return known

    def _admission(self, seq: NanoSequence) -> bool:
        """Whether the whole sequence can be admitted; raises if it never can."""
        check_has(seq, "token_ids")
        answer = self.manager.can_admit(seq.token_ids)
        if answer is Admission.NEVER:
            raise self._never_fits(seq)
        return answer is Admission.NOW

    def _never_fits(self, seq: NanoSequence) -> NeverFitsError:
        num_tokens = len(seq.token_ids)
        return NeverFitsError(
            f"{num_tokens} tokens need {-(-num_tokens // self.block_size)} blocks of "
            f"{self.block_size}, there are {self._most_blocks}"
        )

    def _admit(self, seq: NanoSequence) -> None:
        handles: list[int] = []
        try:
            # Recorded in the same instruction.
            arguments = ((seq.token_ids,), (b"",), (None,), (None,), (True,))
            handles.extend(map(self.manager.compiled.admit, *arguments))
            view = self.manager.sequence(handles[0])
            holder = Holder(seq, view, self.manager.block_tables[view.row])
            at_once(
                (
                    (seq.block_table.extend, view.block_ids.tolist()),
                    (setattr, seq, "num_cached_tokens", holder.num_computed_tokens),
                    (self._holders.__setitem__, id(seq), holder),
                    (handles.clear,),
                ),
                None,
            )
        except BaseException:  # out of memory, say
            for handle in handles:
                self.manager.free(handle)
            raise

    def _growth(self, holder: Holder) -> tuple[list[int], list[Change]]:
        """The tokens sampled since the last call, and the change that adds blocks for them."""
        seq = holder.seq
        num_tokens = len(seq.token_ids)
        known = self._known(holder, num_tokens)
        num_blocks, present = -(-num_tokens // self.block_size), len(seq.block_table)
        entries = [holder.entries(present, num_blocks)] if num_blocks > present else []
        return seq.token_ids[known:], entries

    def _publication(self, holder: Holder, num_computed_tokens: int) -> list[Change]:
        """Commits computed tokens, only if they fill a block."""
        start = holder.num_computed_tokens // self.block_size
        full = num_computed_tokens // self.block_size
        if full == start:
            return []
        return [
            (self.manager.compiled.commit, holder.handle, num_computed_tokens),
            # With ``dedup="remap"``, these blocks may change.
            holder.entries(start, full),
            (setattr, holder, "num_computed_tokens", num_computed_tokens),
        ]

    def _departure(self, holder: Holder) -> list[Change]:
        """Releases the blocks, and forgets the sequence."""
        seq = holder.seq
        return [
            (self.manager.compiled.free, holder.handle),
            (self._holders.pop, id(seq)),
            (seq.block_table.clear,),
            (setattr, seq, "num_cached_tokens", 0),
        ]

    def _check_holds_nothing(self, seq: NanoSequence) -> None:
        check_has(seq, "token_ids", "block_table")
        if seq.block_table or id(seq) in self._holders:
            raise SequenceStateError("the sequence holds blocks already; deallocate it first")


def check_has(seq: object, *names: str) -> None:
    """Refuses objects that are not sequences of nano-vllm.

    Raises:
        TypeError: ``seq`` lacks one of the attributes ``names``.
    """
    for name in names:
        if not hasattr(seq, name):
            raise TypeError(f"seq must have {name}, got {type(seq).__name__}")
