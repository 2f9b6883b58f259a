"""The two generations of nano-vllm's ``BlockManager``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blockmgr.arguments import integer
from blockmgr.changes import at_once
from blockmgr.ports.locking import exclusive
from blockmgr.ports.nano_vllm.tables import Tables, check_has

if TYPE_CHECKING:
    from blockmgr.ports.nano_vllm.tables import ChunkedSequence, Holder, NanoSequence

__all__ = ["BlockManager", "LegacyBlockManager"]


class BlockManager(Tables):
    """The current interface: ``can_allocate`` counts cached blocks, ``hash_blocks`` publishes.

    Args:
        num_blocks: Physical blocks in the pool.
        block_size: Tokens per block.
        max_seqs: Sequences that hold blocks at a time; beyond, ``can_allocate`` answers -1.
        prefix_caching: Off, nothing is found again.
        digest: As in ``ManagerConfig``.
        dedup: As in ``ManagerConfig``. With ``"remap"``, ``hash_blocks`` may change entries of
            ``block_table`` to the blocks of a sequence with the same content.
        eviction: As in ``ManagerConfig``.

    Source: nano-vllm, ``nanovllm/engine/block_manager.py``, since chunked prefill.
    """

    __slots__ = ()

    @exclusive
    def can_allocate(self, seq: NanoSequence) -> int:
        """The number of cached blocks that ``allocate`` would find, or -1 if it would not succeed.

        Raises:
            NeverFitsError: The sequence needs more blocks than there are; it would wait forever.
            ValueError: No tokens, or a token out of bounds.
            TypeError: Tokens of the wrong type.
        """
        if not self._has_room_for_all_of(seq) and not self._admission(seq):
            return -1
        return self._num_cached_blocks(seq)

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
            TypeError: Tokens of the wrong type.
        """
        self._check_holds_nothing(seq)
        found = self._num_cached_blocks(seq)
        if num_cached_blocks != found:
            raise ValueError(
                f"num_cached_blocks must be {found}, as can_allocate answers at the moment, "
                f"got {num_cached_blocks!r}"
            )
        self._admit(seq)

    @exclusive
    def hash_blocks(self, seq: ChunkedSequence) -> None:
        """Makes the blocks findable that this step's forward has filled.

        Call it after the forward and before the scheduler advances ``num_cached_tokens``.

        Raises:
            SequenceStateError: The sequence holds no blocks.
            ValueError: The sum of ``num_cached_tokens`` and ``num_scheduled_tokens`` is less than
                the computed tokens, or more than all tokens.
            TypeError: One of them is not an int.
        """
        holder = self._holder(seq)
        if not hasattr(seq, "num_scheduled_tokens"):
            check_has(seq, "num_scheduled_tokens")  # raises
        computed = integer("num_cached_tokens", seq.num_cached_tokens)
        computed += integer("num_scheduled_tokens", seq.num_scheduled_tokens)
        most = self._lengths[holder.row]
        if not holder.num_computed_tokens <= computed <= most:
            raise ValueError(
                f"num_cached_tokens + num_scheduled_tokens must be in "
                f"[{holder.num_computed_tokens}, {most}], got {computed}"
            )
        if publication := self._publication(holder, computed):
            at_once(publication, None)
        else:
            holder.num_computed_tokens = computed

    def _has_room_for_all_of(self, seq: NanoSequence) -> bool:
        """Whether it fits even if none of it is cached, which saves a look-up."""
        check_has(seq, "token_ids")
        needed = -(-len(seq.token_ids) // self.block_size)
        has_row = len(self._holders) < self.manager.config.max_seqs
        return has_row and needed <= self.manager.num_available

    def _num_cached_blocks(self, seq: NanoSequence) -> int:
        return len(self.manager.match(seq.token_ids).block_ids)


class LegacyBlockManager(Tables):
    """The first interface: ``can_allocate`` returns a bool, and no call follows a forward.

    A block becomes findable once the scheduler's calls show that it is computed: when
    ``may_append`` or ``deallocate`` sees a later token or, in schedulers with chunked prefill, when
    ``num_cached_tokens`` counts its chunk. The original published whole prompts before they were
    computed.

    Args:
        num_blocks: Physical blocks in the pool.
        block_size: Tokens per block.
        max_seqs: Sequences that hold blocks at a time; beyond, ``can_allocate`` answers False.
        prefix_caching: Off, nothing is found again.
        digest: As in ``ManagerConfig``.
        dedup: As in ``ManagerConfig``. With ``"remap"``, ``may_append`` may change entries of
            ``block_table`` to the blocks of a sequence with the same content.
        eviction: As in ``ManagerConfig``.

    Source: nano-vllm, ``nanovllm/engine/block_manager.py``, up to 0.2.0.
    """

    __slots__ = ()

    @exclusive
    def can_allocate(self, seq: NanoSequence) -> bool:
        """Whether ``allocate`` would succeed; shared blocks are counted once.

        Raises:
            NeverFitsError: The sequence needs more blocks than there are; it would wait forever.
            ValueError: No tokens, or a token out of bounds.
            TypeError: Tokens of the wrong type.
        """
        return self._admission(seq)

    @exclusive
    def allocate(self, seq: NanoSequence) -> None:
        """Allocates blocks for all tokens of the sequence, those in the cache first.

        Fills ``block_table`` and sets ``num_cached_tokens``.

        Raises:
            OutOfBlocksError: Too few blocks at the moment.
            NeverFitsError: The sequence needs more blocks than there are.
            OutOfSequencesError: ``max_seqs`` sequences hold blocks.
            SequenceStateError: The sequence holds blocks already.
            ValueError: No tokens, or a token out of bounds.
            TypeError: Tokens of the wrong type.
        """
        self._check_holds_nothing(seq)
        self._admit(seq)

    @exclusive
    def may_append(self, seq: NanoSequence) -> None:  # noqa: D102  # the base's, documented there
        holder = self._holder(seq)
        tokens, entries = self._growth(holder)
        computed = self._computed(holder)
        publication = self._publication(holder, computed)
        if tokens and (entries or publication):
            append = (self.manager.compiled.append, holder.handle, tokens)
            at_once((append, *entries, *publication), None)
        elif tokens:
            self.manager.append(holder.handle, tokens)
        else:
            at_once(publication, None)

    @exclusive
    def deallocate(self, seq: NanoSequence) -> None:  # noqa: D102  # the base's, documented there
        holder = self._holder(seq)
        publication = self._publication(holder, self._computed(holder))
        at_once(publication + self._departure(holder), None)

    def _computed(self, holder: Holder) -> int:
        """Tokens whose K/V must be written by this time."""
        seq, known = holder.seq, self._lengths[holder.row]
        if len(seq.token_ids) > known:
            return known  # the new token was sampled after the last of them
        # Schedulers count a token as cached when they sample it, one step too early.
        return max(holder.num_computed_tokens, min(seq.num_cached_tokens, known - 1))
