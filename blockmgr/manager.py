"""``BlockManager``: the calls that an engine makes, and ``Sequence``, a view of one sequence.

Long, because most of it documents the calls; ``csrc`` implements them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal, Self, Unpack

from blockmgr import _core
from blockmgr.arguments import integer, whole
from blockmgr.blocks import (
    Admission,
    BlockSnapshot,
    Match,
    Priority,
    Remap,
    retention_of,
    signal_of,
)
from blockmgr.common_calls import CommonCalls
from blockmgr.config import ManagerConfig, ManagerOptions, core_options
from blockmgr.digest_calls import DigestCalls
from blockmgr.errors import UnknownSequenceError
from blockmgr.explain import Explanation, explanation
from blockmgr.groups import (
    FullAttention,
    Group,
    Ring,
    extra_blocks_of,
    first_slices,
    is_single,
    tokens_per_block,
)
from blockmgr.options import spells_options
from blockmgr.prompt import Prompt, parts_of
from blockmgr.stats import RecentHits, Stats
from blockmgr.tokens import Extras, Tokens, extras_pairs
from blockmgr.uncopied import NotCopied

if TYPE_CHECKING:
    from collections.abc import Sequence as IntSequence

    import numpy as np
    import numpy.typing as npt

    Blocks = IntSequence[int] | npt.NDArray[np.integer]

__all__ = ["BlockManager", "Sequence", "Tokens"]


_ADMISSIONS = (Admission.NOW, Admission.LATER, Admission.NEVER)


class BlockManager(CommonCalls, DigestCalls, NotCopied):
    """Decides which physical KV-cache block holds which tokens.

    It hands out blocks, shares them between sequences with a common prefix, plans a copy only when
    a sharer writes, keeps the blocks of finished sequences in the cache, and evicts them by a
    policy. It works on integers only and needs no tensors.

    A sequence is named by a *handle*, an int whose low 32 bits are its row in ``block_tables``.
    Every call either finishes or raises with nothing changed. Calls may come from several threads:
    each waits for the one before it.

    Args:
        num_blocks: Physical blocks in the pool.
        block_size: Tokens per block.
        **options: The other fields of ``ManagerConfig``, by keyword.

    >>> manager = BlockManager(num_blocks=8, block_size=4)
    >>> parent = manager.admit([1, 2, 3, 4, 5, 6])
    >>> manager.commit(parent, 6)
    >>> [child] = manager.fork(parent)
    >>> manager.append(child, [7])
    >>> manager.sequence(parent).block_ids.tolist(), manager.sequence(child).block_ids.tolist()
    ([0, 1], [0, 2])
    >>> list(manager.take_copies())
    [BlockCopy(source=1, destination=2, num_tokens=2)]

    Source: block tables and copy-on-write, Kwon et al., "Efficient Memory Management for Large
    Language Model Serving with PagedAttention", SOSP 2023, sections 4.2 to 4.4.
    """

    __slots__ = (
        "__weakref__",
        "_config",
        "_core",
        "_first_slices",
        "_group_tables",
        "block_tables",
        "seq_lens",
    )

    _core: _core.Core

    block_tables: npt.NDArray[np.int32]
    """``int32[max_seqs, max_blocks_per_seq]`` on the host: the block table of every row, live,
    zero-copy and read-only. Entries past a sequence's blocks are 0, so a kernel that reads ahead
    stays inside the pool. ``torch.from_numpy`` needs writable memory: pass ``.base``. Never write
    to it: the manager has its own tables and never reads this array, but all readers of the array
    would see the change."""

    seq_lens: npt.NDArray[np.int32]
    """``int32[max_seqs]`` on the host: ``num_tokens`` of the running sequence of each row, else 0;
    live, zero-copy and read-only."""

    _instead = "fork its sequences, or make another manager with from_config(manager.config)"

    # Set up.

    @spells_options(ManagerConfig, ManagerOptions)
    def __init__(self, num_blocks: int, block_size: int, **options: Unpack[ManagerOptions]) -> None:
        self._set_up(ManagerConfig(num_blocks=num_blocks, block_size=block_size, **options))

    @classmethod
    def from_config(cls, config: ManagerConfig) -> Self:
        """A manager with this config."""
        manager = cls.__new__(cls)
        manager._set_up(config)
        return manager

    def _set_up(self, config: ManagerConfig) -> None:
        self._config = config
        self._core = _core.Core(core_options(config))
        self._core.set_debug(config.debug)
        self.block_tables = _read_only(self._core.block_tables())
        self.seq_lens = _read_only(self._core.seq_lens())
        self._group_tables = _read_only(self._core.group_tables())
        self._first_slices = first_slices(config.groups, config.block_size) or (-1,)

    def __repr__(self) -> str:
        config = self._config
        return (
            f"<{type(self).__name__}: {config.num_blocks} blocks of {config.block_size} tokens, "
            f"{self.num_available} available>"
        )

    @property
    def config(self) -> ManagerConfig:
        """The config of this manager."""
        return self._config

    # Admission.

    def admit(
        self,
        tokens: Tokens | Prompt,
        *,
        namespace: bytes = b"",
        extras: Extras | None = None,
        num_slots: int | None = None,
        read_cache: bool = True,
        match: Match | None = None,
        max_cached_tokens: int | None = None,
        watermark_blocks: int | None = None,
        session: bytes = b"",
        num_loaded_tokens: int | None = None,
    ) -> int:
        """Admits a prompt: finds its longest cached prefix, and takes blocks for the rest.

        The last token is never served from the cache, so one is always left to compute.

        Args:
            tokens: The prompt, at least one token; or a ``Prompt``, which includes its namespace
                and extras.
            namespace: Prompts in different namespaces never share blocks: a tenant's salt, an
                adapter (see ``namespace_key``). At most 1024 bytes.
            extras: Extra keys of single blocks, by logical block: the hash of an image in it, say.
            num_slots: Take blocks for this many tokens instead of all of them: the first chunk of a
                chunked prefill, or look-ahead beyond the prompt.
            read_cache: False skips the look-up, so that the whole prompt is computed, as
                log-probabilities of its tokens require. It does not count as a look-up. Computed
                blocks still become findable; if an equal block is cached already, ``commit``
                handles it as ``dedup`` says.
            match: Result of ``match`` for this prompt. The call takes exactly its
                ``num_cached_tokens`` from the cache, or raises: a caller that planned with that
                number can rely on it.
            max_cached_tokens: Take at most this many tokens from the cache.
            watermark_blocks: Blocks to hold back from this call, instead of the config's number: 0
                lets it take the last block, more leaves room for later work. With ``quotas``, a
                namespace holds back its share of them.
            session: Name of the session that the prompt continues, at most 256 bytes; empty for
                none. Needs ``retention``. The same name in another namespace is another session. If
                the prompt shares at least half of the blocks that the session's last sequence left
                in the cache, it supersedes the rest of them: those that no other sequence, session
                or hold uses, that nothing else continues and that are not retained are evicted
                before all others. See ``end_session`` and ``signal``.
            num_loaded_tokens: Leading tokens, at most those with slots, whose K/V something else
                than a forward provides: a connector or a lower tier. With several groups of
                layers, windows then hold no blocks before what the token behind them reads, states
                are not copied from the cache, and blocks come from it up to the first of which a
                group lacks what that token reads. Once the load is done, ``commit`` as many
                tokens; until then the sequence cannot decode, fork, be truncated or have its state
                cached, and ``free`` caches none of it. With full attention alone it makes no
                difference.

        Returns:
            The handle of a running sequence. Its ``num_computed_tokens`` came from the cache.

        Raises:
            OutOfBlocksError: Too few blocks at the moment, the watermark counted.
            OutOfSequencesError: All ``max_seqs`` rows are taken.
            NeverFitsError: The prompt does not fit even an empty pool, the watermark counted. With
                several groups of layers, it may still fit in parts, with fewer ``num_slots``.
            StaleMatchError: Fewer tokens are cached than ``match`` found.
            ValueError: A value out of its bounds.
            TypeError: A value of the wrong type.

        Leaves:
            A planned copy, if part of a cached block is reused (``min_partial_tokens``).

        Cost: O(blocks): a comparison of tokens for each cached block, one digest where prompts
        diverge.
        """
        # Checked inline: calling a function would take as long as the core's work for a short
        # prompt.
        if type(tokens) is Prompt:
            session = tokens._session_with(session)
            tokens, namespace, keys = tokens._parts(namespace, extras)
        else:
            keys = None if extras is None else extras_pairs(extras)
        if num_loaded_tokens is not None:
            return self._core.admit_loading(
                tokens,
                namespace,
                keys,
                num_slots,
                read_cache,
                match,
                max_cached_tokens,
                watermark_blocks,
                session,
                num_loaded_tokens,
            )
        return self._core.admit(
            tokens,
            namespace,
            keys,
            num_slots,
            read_cache,
            match,
            max_cached_tokens,
            watermark_blocks,
            session,
        )

    def can_admit(
        self,
        tokens: Tokens | Prompt,
        *,
        namespace: bytes = b"",
        extras: Extras | None = None,
        num_slots: int | None = None,
        read_cache: bool = True,
        match: Match | None = None,
        max_cached_tokens: int | None = None,
        watermark_blocks: int | None = None,
        num_loaded_tokens: int | None = None,
    ) -> Admission:
        """Whether ``admit`` with these arguments would succeed; changes nothing.

        Shared blocks are counted once, and the watermark applies.

        Raises:
            StaleMatchError: Fewer tokens are cached than ``match`` found.
            ValueError: A value out of its bounds.
            TypeError: A value of the wrong type.
        """
        if type(tokens) is Prompt:
            tokens, namespace, keys = tokens._parts(namespace, extras)
        else:
            keys = None if extras is None else extras_pairs(extras)
        verdict = self._core.can_admit(
            tokens,
            namespace,
            keys,
            num_slots,
            read_cache,
            match,
            max_cached_tokens,
            watermark_blocks,
            num_loaded_tokens,
        )
        return _ADMISSIONS[verdict]

    # Growth.

    def reserve(self, handle: int, num_slots: int) -> None:
        """Takes slots for the first ``num_slots`` tokens: the next chunk, or look-ahead.

        Never takes slots away. Slots beyond ``num_tokens`` are private to the sequence until it is
        forked.

        Raises:
            OutOfBlocksError: Too few blocks at the moment.
            NeverFitsError: More than the pool or a block table row holds.
            UnknownSequenceError: The handle is not live.
            SequenceStateError: The sequence is preempted.
            ValueError: ``num_slots`` below 1.

        Leaves:
            A planned copy, if the block to be written is shared.
        """
        self._core.reserve(handle, num_slots)

    def append(self, handle: int, tokens: Tokens) -> None:
        """Appends tokens, with slots; copies the last block first if it is shared.

        Raises:
            OutOfBlocksError: Too few blocks at the moment.
            NeverFitsError: More than the pool or a block table row holds.
            UnknownSequenceError: The handle is not live.
            SequenceStateError: The sequence is preempted.
            StepError: With ``early_commit``, the block to be written is shared, and the tokens to
                copy from it are written only by this step's forward.
            ValueError: No tokens, or a token out of bounds.
            TypeError: Tokens of the wrong type.

        Leaves:
            A planned copy, if another sequence shares the block or it can be found.
        """
        self._core.append(handle, tokens)

    def commit(self, handle: int, num_computed_tokens: int) -> None:
        """Declares the K/V of the first ``num_computed_tokens`` tokens written.

        Every full, computed block becomes findable. If an equal block is cached already, the two
        are deduplicated as ``dedup`` says.

        Args:
            handle: A running sequence.
            num_computed_tokens: From the current value up to ``min(num_tokens, num_slots)``.

        Raises:
            UnknownSequenceError: The handle is not live.
            SequenceStateError: The sequence is preempted.
            StepError: With ``early_commit``, while a copy plan is not resolved.
            ValueError: ``num_computed_tokens`` out of that range.

        Leaves:
            Remaps, for ``take_remaps``.

        Cost: One digest for each block that becomes findable.
        """
        self._core.commit(handle, num_computed_tokens)

    def decode(
        self, handles: IntSequence[int] | npt.NDArray[np.int64], tokens: Tokens
    ) -> npt.NDArray[np.int64]:
        """One decode step for a batch: commits all tokens, then appends one to each sequence.

        The call assumes that the previous forward has computed every token. So afterwards
        ``num_computed_tokens == num_tokens - 1`` for each sequence, and the engine writes only the
        returned slots of these sequences.

        The whole batch succeeds or nothing changes, even if it has sequences of several namespaces.
        With ``quotas``, an ``OutOfBlocksError`` has the numbers of one namespace that lacks blocks;
        use one call per namespace if a shortage in one should not affect the others.

        Args:
            handles: ``int64[batch]``, distinct, running, with slots for all their tokens.
            tokens: ``[batch]``, the token sampled for each.

        Returns:
            ``int64[batch]`` on the host: the slot of each new token.

        Raises:
            OutOfBlocksError: Too few blocks for the batch at the moment.
            NeverFitsError: A sequence fills the pool, or its block table row.
            UnknownSequenceError: A handle is not live.
            SequenceStateError: A sequence is preempted, or lacks slots for its tokens; or, with
                ``strict_decode``, has more than one token to compute.
            StepError: Some tokens cannot be in memory before this step's forward: a sequence was
                committed ahead of it, or shares a block that it writes, or a block that waits for a
                copy of fewer tokens. Or, with ``early_commit``, a copy plan is not resolved.
            ValueError: Handles repeated, or not as many tokens as handles.

        Leaves:
            Planned copies and remaps, as ``append`` and ``commit`` do.

        Cost: O(batch), one native call.
        """
        return self._core.decode(handles, tokens)

    def truncate(self, handle: int, num_tokens: int) -> int:
        """Drops the tokens from ``num_tokens`` on: rejected drafts, an edited prompt.

        Releases look-ahead blocks too. A later ``append`` copies the last block if it is shared.

        With several groups of layers, the sequence continues from the deepest position for which
        each group still has everything it reads. If a window is gone, or a state includes dropped
        tokens, computed tokens are lost as well, if necessary all of them. So are slots behind a
        gap in a window; ``reserve`` or ``append`` takes them again.

        Returns:
            The new ``num_computed_tokens``: where the next forward begins.

        Raises:
            UnknownSequenceError: The handle is not live.
            SequenceStateError: The sequence is preempted.
            StepError: It would drop tokens committed ahead of this step's forward.
            ValueError: ``num_tokens`` not in ``[1, num_tokens]``.
        """
        return self._core.truncate(handle, num_tokens)

    # Families of sequences.

    def fork(self, handle: int, n: int = 1) -> list[int]:
        """Creates ``n`` sequences that share every block of this one; copies nothing.

        Returns:
            The handles of the children.

        Raises:
            OutOfSequencesError: Fewer than ``n`` rows are left.
            UnknownSequenceError: The handle is not live.
            SequenceStateError: The sequence is preempted.
            StepError: The sequence was committed ahead of this step's forward.
            ValueError: ``n`` below 1.

        Cost: O(blocks + n x blocks x 4 bytes), without recursion; tokens that have no slots yet
        are copied for each child.
        """
        return self._core.fork(handle, n, None)

    def reparent(
        self,
        handles: IntSequence[int] | npt.NDArray[np.int64],
        parents: IntSequence[int] | npt.NDArray[np.int64],
    ) -> None:
        """Beam search: ``handles[i]`` becomes a fork of what ``handles[parents[i]]`` was.

        The change is simultaneous, so parents may be permuted and repeated. Handles keep their
        rows.

        Args:
            handles: ``int64[beams]``, distinct and running.
            parents: ``int64[beams]``, indices into ``handles``.

        Raises:
            UnknownSequenceError: A handle is not live.
            SequenceStateError: A sequence is preempted.
            StepError: A sequence to be replaced, or its new parent, was committed ahead of this
                step's forward.
            ValueError: Handles repeated, or an index out of range.

        Cost: O(blocks) to compare tables; references change only for the blocks that differ.
        """
        self._core.reparent(handles, parents)

    # Release.

    def free(
        self, handle: int, *, expect_reuse: bool | None = None, withdraw: bool = False
    ) -> None:
        """Ends a sequence and releases its blocks, the last block first.

        Full computed blocks stay findable until evicted; so does the partial tail, with
        ``min_partial_tokens``.

        Args:
            handle: A live sequence.
            expect_reuse: Whether the conversation will continue. True moves its blocks to
                ``Priority.EXPECTED``; False moves its last blocks to ``Priority.LOW``, if no other
                sequence uses, continues or expects them; None gives no hint. The next admission
                that finds a whole block consumes its hint.
            withdraw: Whether to undo first what the sequence committed ahead of this step's forward
                (``early_commit``), because the forward will not write it.

        Raises:
            UnknownSequenceError: The handle is not live, as on a double free.
            StepError: The sequence was committed ahead of this step's forward; with ``withdraw``,
                only if others share what it committed, or the copies of the step are taken.
            ValueError: ``expect_reuse`` without ``retention``.
            TypeError: ``expect_reuse`` or ``withdraw`` is not a bool.

        Cost: O(blocks); about twice that with ``expect_reuse``.
        """
        if expect_reuse is None:
            self._core.free(handle, withdraw)
        elif isinstance(expect_reuse, bool):
            self._core.free_expecting(handle, expect_reuse, withdraw)
        else:
            raise TypeError(f"expect_reuse must be a bool or None, got {expect_reuse!r}")

    def preempt(self, handle: int, *, withdraw: bool = False) -> None:
        """Releases a sequence's blocks and keeps its tokens, for ``resume``.

        Args:
            handle: A running sequence.
            withdraw: As in ``free``: for a scheduler that preempts a sequence it scheduled earlier
                in the same step.

        Raises:
            UnknownSequenceError: The handle is not live.
            SequenceStateError: The sequence is preempted already.
            StepError: The sequence was committed ahead of this step's forward; with ``withdraw``,
                only if others share what it committed, or the copies of the step are taken.
            TypeError: ``withdraw`` is not a bool.
        """
        self._core.preempt(handle, withdraw)

    def resume(self, handle: int, *, num_slots: int | None = None, read_cache: bool = True) -> None:
        """Admits a preempted sequence again, under the same handle.

        Tokens that it finds count as ``resumed_hit_tokens``, not as ``hit_tokens``. The watermark
        is lowered if the sequence would not fit an empty pool with it, so a sequence that has grown
        past it can still resume. ``read_cache=False`` skips the look-up, as in ``admit``.

        Raises:
            OutOfBlocksError: Too few blocks at the moment, the watermark counted.
            NeverFitsError: ``num_slots`` is more than the pool or a block table row holds.
            UnknownSequenceError: The handle is not live.
            SequenceStateError: The sequence is not preempted.
            ValueError: ``num_slots`` below 1.

        Leaves:
            A planned copy, if part of a cached block is reused (``min_partial_tokens``).
        """
        self._core.resume(handle, num_slots, read_cache)

    def resume_together(
        self,
        handles: IntSequence[int] | npt.NDArray[np.int64],
        *,
        num_slots: int | None = None,
        read_cache: bool = True,
    ) -> None:
        """Resumes preempted sequences, which share again what they have in common; all or none.

        Samples of one prompt and beams share blocks that are not cached: the last block of the
        prompt, a chunk that is not committed. Resumed one by one, each takes such blocks for
        itself, so that they may not fit where they were. In one call, they share blocks as forks
        do: those in which their tokens, namespace and extra keys are equal up to there, and the
        last block of a sequence whose tokens others continue. Such sequences have the same
        ``num_computed_tokens``, and each computes what follows.

        Sequences that share blocks with no others are resumed too. If the blocks do not suffice,
        some sequences find less than is cached, so that they can share more. With full attention
        alone, sequences that were preempted with all their forks therefore fit into the blocks that
        they held, unless ``num_slots`` asks for more, others took those blocks, or the watermark
        holds them back. Windows may need more: a prompt that is computed again holds blocks that
        its windows had passed, so ask for a chunk of it with ``num_slots``.

        Args:
            handles: ``int64[sequences]``, distinct and preempted.
            num_slots: As in ``resume``, for each sequence. Blocks with slots behind the tokens of a
                sequence are not shared.
            read_cache: As in ``resume``.

        Raises:
            OutOfBlocksError: Too few blocks for all of them at the moment, the watermark counted.
                With ``quotas``, it has the numbers of one namespace that lacks blocks.
            NeverFitsError: ``num_slots`` is more than the pool or a block table row holds, or the
                sequences take more blocks than there are.
            UnknownSequenceError: A handle is not live.
            SequenceStateError: A sequence is not preempted.
            ValueError: Handles repeated, or ``num_slots`` below 1.

        Leaves:
            Planned copies, as ``resume`` does, and of states.

        Cost: That of ``resume`` for each, and a sort of the sequences by their tokens.

        >>> manager = BlockManager(num_blocks=4, block_size=4)
        >>> first = manager.admit([1, 2, 3, 4, 5, 6])
        >>> handles = [first, *manager.fork(first, 3)]
        >>> for handle in handles:
        ...     manager.preempt(handle)
        >>> manager.resume_together(handles)
        >>> manager.stats().used_blocks
        2
        """
        self._core.resume_together(handles, num_slots, read_cache)

    # A step.

    def complete(self, ticket: int) -> None:
        """Declares the step of this ticket, and all earlier ones, complete on the device.

        Blocks freed while they ran can be handed out again.

        Raises:
            StepError: The step is complete already, was aborted or never launched, or
                ``steps_in_flight`` is 0.
        """
        self._core.complete(ticket)

    def take_remaps(self) -> list[Remap]:
        """The block table entries that deduplication changed since the last call.

        Only for engines that keep their own tables; ``block_tables`` is up to date already. The log
        is bounded. If it overflowed since the last call, this returns every entry of every running
        sequence instead, with an ``old`` of -1: applying all of them updates any table.
        """
        return self._core.take_remaps(Remap)

    # Layers in groups.

    def group_table(self, group: int) -> npt.NDArray[np.int32]:
        """The block table of a group of layers.

        Args:
            group: Its position in ``ManagerConfig.groups``; 0 without groups.

        Returns:
            ``int32[max_seqs, max_blocks_per_seq]`` on the host, read-only and never reallocated:
            entry ``i`` of a row is the block with tokens
            ``[i * block_size, (i + 1) * block_size)``, or 0, the null block, where the group holds
            nothing. If the group has a block size of its own, that is the one meant, and there are
            as many times more columns. For a group of states,
            ``int32[max_seqs, 1 + extra_blocks]``: the sequence's slots, one of which holds its
            state (``place_state``). For a ring, ``int32[max_seqs, 1]``: its block.

        Raises:
            ValueError: There is no such group.
            TypeError: ``group`` is not an int.
        """
        kind, position = self._group(group)
        if is_single(kind):
            whole = self.block_tables if position < 0 else self._group_tables[position]
            slots: npt.NDArray[np.int32] = whole[:, : 1 + extra_blocks_of(kind)]
            return slots
        if position < 0:
            return self.block_tables
        slices = self._config.block_size // tokens_per_block(kind, self._config.block_size)
        table: npt.NDArray[np.int32] = self._group_tables[position : position + slices]
        return table.reshape(self._config.max_seqs, -1)

    def slot_mapping(
        self, handle: int, start: int, stop: int, *, group: int | None = None
    ) -> npt.NDArray[np.int64]:
        """The slot of each token position in ``[start, stop)``, in token order.

        A slot is ``block_id * block_size + offset``, by the group's block size. Look-ahead
        positions have slots too.

        Args:
            handle: The sequence.
            start: First position.
            stop: Position after the last one.
            group: Position of an attention group in ``ManagerConfig.groups``; ``None`` for the
                group of ``block_tables``.

        Returns:
            ``int64[stop - start]`` on the host, owned by the caller. ``PAD_SLOT`` only at the
            ``num_replayed_tokens`` after ``num_cached_tokens``, in groups that are cached: there
            is nothing to write; or if no group is one of attention.

        Raises:
            UnknownSequenceError: The handle is not live.
            ValueError: The range is not inside ``[0, num_slots]`` or begins before the group's
                window, there is no such group, or it is a group of states or rings.
            TypeError: An argument is not an int.
        """
        if group is None:
            return self._core.slot_mapping(handle, start, stop)
        kind, position = self._group(group)
        if is_single(kind):
            what = "rings" if isinstance(kind, Ring) else "states"
            raise ValueError(f"group must be one of attention, got {group}, which has {what}")
        if position < 0:
            return self._core.slot_mapping(handle, start, stop)
        return self._core.group_slots(handle, start, stop, position)

    def stops(self, handle: int) -> tuple[int, ...]:
        """Token counts at which forwards should end, so that the states can be found later.

        A state is findable only at a position where a forward ended and ``commit`` was called. So
        end a chunk at each of these positions, and commit it before launching the next one.

        Returns:
            Numbers of tokens, ascending and above ``num_computed_tokens``: the last block boundary
            that another prompt can use; the end of the prefix shared with cached blocks, which may
            be inside a block with ``min_partial_tokens``; half of what a long prompt computes, see
            ``halfway_stop_tokens``; the end of the prompt, see ``prompt_end_stop``; and the end of
            a range that ``retain`` keeps longer. The first two and the fourth come
            ``stop_margin_tokens`` earlier. Empty without groups of states.

        Raises:
            UnknownSequenceError: The handle is not live.
        """
        number = integer("handle", handle)
        computed = self._core.view(number)[1]
        return tuple(sorted({s for s in self._core.view_groups(number)[1] if s > computed}))

    def cache_state(self, handle: int) -> bool:
        """Caches a sequence's state at the end of a block that is none of its ``stops``.

        ``commit`` caches states at ``stops`` only. An engine whose forwards also end elsewhere, at
        the ends of chunks or while it decodes, can have these states cached in blocks that nothing
        else uses: the call evicts nothing, and what it caches is evicted first. Like a state at a
        stop, it is found after ``copies_applied``. The sequence continues in a copy; with
        ``dedup="append_only"`` what is cached is the copy.

        Args:
            handle: A running sequence, after the ``commit`` that said where its forward stopped.

        Returns:
            Whether prompts can continue from there. False if the sequence is inside a block, too
            few blocks are free, the state is cached already, or there are no groups of states.

        Raises:
            UnknownSequenceError: The handle is not live.
            SequenceStateError: The sequence is preempted.
            StepError: A forward may have moved the state since the last commit.

        Leaves:
            A planned copy for each group of states.
        """
        return self._core.cache_state(handle)

    def mark_state_moved(self, handle: int, *, num_slots: int | None = None) -> None:
        """Records that a launched forward moves states and rings of a sequence past its tokens.

        The manager knows from ``append`` and ``decode`` which sequences a forward can move. An
        engine that launches a forward before it knows the tokens that the one before it sampled
        calls this after the step's ``copies_applied``, for each sequence with such a token. Until
        a ``commit`` says where the states are, nothing is kept of them. Of a ring, ``truncate``
        counts on nothing that the forward may have overwritten. Does nothing without groups of
        states or rings.

        Args:
            handle: A running sequence.
            num_slots: The forward writes no slot behind so many of the sequence; ``None``: it may
                write all of them.

        Raises:
            UnknownSequenceError: The handle is not live.
            SequenceStateError: The sequence is preempted.
            ValueError: ``num_slots`` is below 1, or more than the sequence has.
        """
        self._core.mark_state_moved(handle, num_slots)

    def place_state(self, handle: int, slot: int) -> None:
        """Says in which of its slots the states of a sequence are.

        With ``extra_blocks``, a forward over draft tokens leaves the states after several tokens,
        each in a slot of its own, and the engine knows which one is right once the drafts are
        verified. It calls this before the ``commit`` that says where the states are, which keeps
        them from that slot. After ``admit``, ``fork``, ``reparent`` and ``resume`` the states are
        in slot 0.

        Args:
            handle: A running sequence.
            slot: Column of ``group_table``, in all groups of states; 0 to ``extra_blocks``.

        Raises:
            UnknownSequenceError: The handle is not live.
            SequenceStateError: The sequence is preempted.
            ValueError: There is no such slot.
        """
        self._core.place_state(handle, slot)

    # The cache.

    def match(
        self,
        tokens: Tokens | Prompt,
        *,
        namespace: bytes = b"",
        extras: Extras | None = None,
        num_slots: int | None = None,
        max_cached_tokens: int | None = None,
        watermark_blocks: int | None = None,
    ) -> Match:
        """Finds what ``admit`` would find; changes nothing, not even recency.

        If that admission succeeds, it takes exactly ``num_cached_tokens`` from the cache, in these
        blocks. Neither call reuses part of a block if no block is left for the copy, or if
        ``num_slots`` ends before it. ``admit(match=...)`` takes exactly this match or raises,
        whatever happens in between. The prompt may be longer than any that the manager could admit.

        Args:
            tokens: The prompt, at least one token.
            namespace: As in ``admit``.
            extras: As in ``admit``.
            num_slots: As in ``admit``.
            max_cached_tokens: As in ``admit``.
            watermark_blocks: As in ``admit``.

        Raises:
            ValueError: A value out of its bounds.
            TypeError: A value of the wrong type.
        """
        if type(tokens) is Prompt:
            tokens, namespace, keys = tokens._parts(namespace, extras)
        else:
            keys = None if extras is None else extras_pairs(extras)
        return self._core.match(
            tokens, namespace, keys, num_slots, max_cached_tokens, watermark_blocks
        )

    def block_digests(
        self, tokens: Tokens | Prompt, *, namespace: bytes = b"", extras: Extras | None = None
    ) -> list[bytes]:
        """The digests of the whole blocks of a prompt, cached or not.

        Each digest covers its block and all blocks before it. It depends on ``digest`` and
        ``block_size`` only, so two managers with the same settings agree. Tokens after the last
        whole block have no digest. A block that the last token fills is a whole block.

        Args:
            tokens: The prompt, at least one token, of any length.
            namespace: As in ``admit``.
            extras: As in ``admit``.

        Returns:
            ``len(tokens) // block_size`` digests, in order.

        Raises:
            ValueError: A value out of its bounds, or ``prefix_caching`` is off.
            TypeError: A value of the wrong type.

        Cost: One digest for each block.
        """
        tokens, namespace, keys = parts_of(tokens, namespace, extras)
        return self._core.block_digests(tokens, namespace, keys)

    def explain(
        self, tokens: Tokens | Prompt, *, namespace: bytes = b"", extras: Extras | None = None
    ) -> Explanation:
        """Explains how much of a prompt is cached, and why the rest is not.

        The answer assumes that there is a block left to copy part of a block to.

        Changes nothing, not even recency. With ``ghost_blocks``, it distinguishes evicted blocks
        from blocks that were never cached, and says how many more blocks the pool would need to
        keep them. With several groups of layers, it names the group that lacks what full attention
        has cached. It reports that the same tokens are cached in another namespace, but neither
        which namespace nor which extra keys. Even that should stay hidden from other tenants, so
        this call is for the operator of the engine.

        Raises:
            NeverFitsError: The prompt is longer than a block table row.
            ValueError: A value out of its bounds.
            TypeError: A value of the wrong type.

        Cost: With ``ghost_blocks``, one digest for each whole block that is not found. If there is
        such a block, also O(cached blocks + blocks of running sequences) comparisons, most of which
        end at the first token.

        >>> manager = BlockManager(num_blocks=8, block_size=4)
        >>> handle = manager.admit([1, 2, 3, 4, 5, 6])
        >>> manager.explain([1, 2, 3, 4, 7]).reason
        <MissReason.NOT_COMMITTED: 'computed but not committed'>
        """
        tokens, namespace, keys = parts_of(tokens, namespace, extras)
        return explanation(self._core.explain(tokens, namespace, keys))

    def num_common_prefix_blocks(
        self, handles: IntSequence[int] | npt.NDArray[np.int64] | None = None
    ) -> int:
        """The number of leading blocks that all these sequences share, for cascade attention.

        Only whole, computed blocks count, which a forward may read for the whole batch at once,
        without a mask. For a single sequence, these are all of its computed blocks.

        Args:
            handles: ``int64[batch]``, running; None for all running sequences.

        Returns:
            The number of blocks; 0 without any sequence.

        Raises:
            UnknownSequenceError: A handle is not live.
            SequenceStateError: A sequence is preempted.
            TypeError: Handles of the wrong type.

        Cost: O(sequences x blocks they have in common).

        >>> manager = BlockManager(num_blocks=8, block_size=2)
        >>> first = manager.admit([1, 2, 3, 4, 5])
        >>> manager.commit(first, 5)
        >>> second = manager.admit([1, 2, 3, 4, 6, 7])
        >>> manager.num_common_prefix_blocks()
        2
        """
        return self._core.num_common_prefix_blocks(handles)

    def reset_prefix_cache(self, *, reset_hit_rate: bool = True) -> int:
        """Forgets all cached blocks, as after a change of weights; running sequences continue.

        Prompts find nothing that was computed before this call. Idle blocks become free. Blocks in
        use stay with their sequences and become private. What those sequences and their forks
        compute later depends on K/V from before the call, so it is not cached until the sequence is
        preempted and resumed, which computes everything again.

        Planned copies stay planned. Pins stay held but cover no blocks, as ``pinned`` shows;
        retention and hints of cached blocks are forgotten. With ``ghost_blocks``, the ghosts are
        forgotten as well. The counters of ``stats`` and ``hit_rate_curve`` continue. An eviction
        policy keeps what it has learned.

        Args:
            reset_hit_rate: Whether to reset ``recent_hits`` as well.

        Returns:
            The number of blocks removed from the cache.

        Raises:
            StepError: With ``early_commit``, while a sequence is committed ahead of this step's
                forward.
            TypeError: ``reset_hit_rate`` is not a bool.

        Cost: O(num_blocks + entries of all block tables).

        >>> manager = BlockManager(num_blocks=8, block_size=2)
        >>> handle = manager.admit([1, 2, 3])
        >>> manager.commit(handle, 3)
        >>> manager.reset_prefix_cache(), manager.match([1, 2, 3]).num_cached_tokens
        (1, 0)
        """
        return self._core.reset_prefix_cache(reset_hit_rate)

    def retire(self, namespace: bytes = b"") -> int:
        """Forgets what is cached in one namespace, as after a change of its weights.

        Prompts find nothing that was computed there before this call, and what is computed there
        later is cached as usual. Of the forgotten blocks, the idle ones are the next to be taken,
        before any other block is evicted, whatever their retention. Other namespaces change in
        nothing.

        Running sequences of the namespace continue with what they have. What they and their forks
        compute later depends on K/V from before the call, so it is not cached until the sequence is
        preempted and resumed, which computes everything again. Pins stay held; ``unpin`` them.

        ``explain`` and ``hit_rate_curve`` forget the evicted blocks of the namespace: a larger pool
        would not have found them, either.

        Args:
            namespace: As in ``admit``.

        Returns:
            The number of running sequences that continue with K/V from before the call.

        Raises:
            StepError: With ``early_commit``, while a sequence of the namespace is committed ahead
                of this step's forward.
            ValueError: A value out of its bounds.
            TypeError: A value of the wrong type.

        Cost: O(max_seqs + ghost_blocks), whatever the number of blocks. With ``events``, which name
        each block that is removed, and with several groups of layers: O(cached blocks of the
        namespace).

        >>> manager = BlockManager(num_blocks=8, block_size=2)
        >>> handle = manager.admit([1, 2, 3], namespace=b"policy")
        >>> manager.commit(handle, 3)
        >>> manager.retire(b"policy"), manager.match([1, 2, 3], namespace=b"policy").block_ids
        (1, array([], dtype=int32))
        """
        return self._core.retire(namespace)

    def recent_hits(self) -> RecentHits:
        """The hits of the last ``hit_rate_window`` requests.

        Counted in tokens, at first admissions that read the cache.

        Cost: O(1).

        >>> manager = BlockManager(num_blocks=8, block_size=2, hit_rate_window=2)
        >>> for prompt in ([1, 2, 3], [1, 2, 3], [1, 2, 9, 9]):
        ...     with manager.sequence(manager.admit(prompt)) as sequence:
        ...         sequence.commit(len(prompt))
        >>> manager.recent_hits()
        RecentHits(requests=2, query_tokens=7, hit_tokens=4)
        """
        requests, query_tokens, hit_tokens = self._core.recent_hits()
        return RecentHits(requests=requests, query_tokens=query_tokens, hit_tokens=hit_tokens)

    def reset_hit_rate(self) -> None:
        """Resets ``recent_hits``. The counters of ``stats`` continue."""
        self._core.reset_hit_rate()

    # Single blocks.

    def acquire(self, blocks: Blocks) -> None:
        """Holds blocks independently of the sequences whose tables name them.

        For callers that move K/V out of blocks or into them while sequences come and go. A held
        block is not handed out. If it can be found, it stays findable, and so do the blocks that it
        continues. If deduplication passes its key to a block with the same content, its own K/V
        stays. A hold is not a reference of a block table: a sequence still writes in place to a
        private block that is held. So hold only cached blocks if their K/V must not change.

        To keep the blocks of a sequence after its end: ``acquire`` them, ``free`` the sequence, and
        later ``release`` them in the order in which they should be evicted.

        Args:
            blocks: ``int[n]``, each named by a block table, cached, or held already. A block that
                is listed twice is held twice.

        Raises:
            BlockStateError: A block is not held, and it is not cached.
            ValueError: A block out of bounds.
            TypeError: Blocks of the wrong type.

        Cost: O(blocks), and O(1) for each idle block that they continue.

        >>> manager = BlockManager(num_blocks=4, block_size=2)
        >>> handle = manager.admit([1, 2, 3, 4])
        >>> blocks = manager.block_ids(handle)
        >>> manager.acquire(blocks)
        >>> manager.free(handle)
        >>> manager.num_available
        2
        >>> manager.release(reversed(blocks))
        Traceback (most recent call last):
        ...
        TypeError: blocks must be a list, tuple, array or buffer of ints, got list_reverseiterator
        >>> manager.release(blocks[::-1])
        >>> manager.num_available
        4
        """
        self._core.acquire(blocks)

    def release(self, blocks: Blocks) -> None:
        """Releases holds on blocks, in this order: the first is evicted first.

        Args:
            blocks: ``int[n]``; a block that is listed twice is released twice.

        Raises:
            BlockStateError: A block is released more often than it is held.
            ValueError: A block out of bounds.
            TypeError: Blocks of the wrong type.
        """
        self._core.release(blocks)

    def touch_blocks(self, blocks: Blocks) -> None:
        """Marks blocks and their ancestors as just used.

        The last block in the list is evicted last. Blocks in use do not change. ``touched_blocks``
        counts every touch.

        Args:
            blocks: ``int[n]``, each named by a block table, cached, or held.

        Raises:
            BlockStateError: A block is not held, and it is not cached.
            ValueError: A block out of bounds.
            TypeError: Blocks of the wrong type.

        Cost: O(1) for each idle block that one of them continues.
        """
        self._core.touch_blocks(blocks)

    def forget(self, blocks: Blocks) -> int:
        """Removes these blocks, and all that continue them, from the cache.

        For K/V that turns out to be wrong, as after a failed load. Idle blocks become free. Blocks
        in use stay with their sequences, which continue to use them. What those sequences hold from
        the first of these blocks on, and what they compute later, is not cached until the sequence
        is preempted and resumed, which computes it again. Earlier copies of part of a block stay.
        With ``append_only``, a sequence may have a twin of a forgotten block; its next commit
        caches the twin. Holds stay. The retention of the blocks is forgotten.

        Args:
            blocks: ``int[n]``, in use or not. A block that is neither cached nor in use has nothing
                to forget.

        Returns:
            The number of blocks removed from the cache, including those that continue them.

        Raises:
            StepError: With ``early_commit``, while a sequence is committed ahead of this step's
                forward.
            ValueError: A block out of bounds.
            TypeError: Blocks of the wrong type.

        Cost: O(entries of all block tables), a few times that if sequences with ``append_only``
        hold each other's blocks; O(1) for each block forgotten.

        >>> manager = BlockManager(num_blocks=8, block_size=2)
        >>> handle = manager.admit([1, 2, 3, 4, 5])
        >>> manager.commit(handle, 5)
        >>> manager.forget(manager.block_ids(handle, 1)), manager.match([1, 2, 3, 4, 5]).block_ids
        (1, array([0], dtype=int32))
        """
        return self._core.forget(blocks)

    # The size of a live pool.

    def shrink(self, num_blocks: int) -> int:
        """Takes the blocks from ``num_blocks`` on out of use, so that their memory can be released.

        Free and idle blocks leave at once. Block tables do not change, so each block that is in use
        leaves when its last user releases it; ``leaving`` tells the users. What the blocks hold,
        and all that continues it, leaves the cache as with ``forget``, retention and pins with it.

        A prompt, or a preempted sequence, that fits only a larger pool has to wait: ``can_admit``
        answers ``LATER``, and calls raise ``OutOfBlocksError``, because ``grow`` may follow.

        Release the memory once the result is 0 and the forwards launched before have run. The call
        can be repeated, with the same number or a lower one.

        Args:
            num_blocks: Ids below this stay in use, the null block among them. At least the blocks
                of all quotas, which stay whole, and the null block; at most the present number.

        Returns:
            The number of blocks that are out of use and have not left yet.

        Raises:
            StepError: With ``early_commit``, while a sequence is committed ahead of this step's
                forward.
            ValueError: ``num_blocks`` out of its bounds.
            TypeError: Not an int.

        Cost: O(blocks + entries of all block tables), and that of ``forget``.

        >>> manager = BlockManager(num_blocks=8, block_size=2)
        >>> handles = [manager.admit([1, 2, 3]), manager.admit([4, 5, 6])]
        >>> manager.shrink(3), manager.leaving() == {3: [handles[1]]}
        (1, True)
        >>> manager.preempt(handles[1])
        >>> manager.shrink(3), manager.stats().capacity
        (0, 3)
        >>> manager.grow(8)
        >>> manager.resume(handles[1])
        """
        return self._core.shrink(num_blocks)

    def grow(self, num_blocks: int) -> None:
        """Takes the blocks below ``num_blocks`` back into use, once their memory is there again.

        Args:
            num_blocks: From the present number up to ``config.num_blocks``.

        Raises:
            ValueError: ``num_blocks`` out of its bounds.
            TypeError: Not an int.

        Cost: O(blocks taken back).
        """
        self._core.grow(num_blocks)

    def leaving(self) -> dict[int, list[int]]:
        """The blocks that ``shrink`` took out of use and that have not left yet, with their users.

        Returns:
            By block id, in order, the handles of the running sequences that have the block, by row:
            free or preempt them. Of a block that no sequence has, the list is empty: it leaves with
            its last hold (``release``), copy (``copies_applied``) or step (``complete``).

        Cost: O(blocks + entries of all block tables).
        """
        blocks, handles = self._core.leaving()
        users: dict[int, list[int]] = {block: [] for block in blocks.tolist()}
        for block, handle in zip(blocks.tolist(), handles.tolist(), strict=True):
            if handle >= 0:
                users[block].append(handle)
        return users

    def is_cached(self, block: int) -> bool:
        """Whether a prompt can find this block.

        Raises:
            ValueError: The block is out of bounds.
            TypeError: Not an int.
        """
        return self._core.is_cached(block)

    def ref_count(self, block: int) -> int:
        """The number of block tables that name this block, plus the number of its holds.

        Raises:
            ValueError: The block is out of bounds.
            TypeError: Not an int.
        """
        return self._core.ref_count(block)

    def block_ids(self, handle: int, start: int = 0) -> list[int]:
        """The blocks of a sequence from a logical block on.

        Args:
            handle: A live sequence.
            start: First logical block. The list is empty from the number of blocks on.

        Returns:
            Block ids as plain ints. ``block_tables`` holds the same ids as an array.

        Raises:
            UnknownSequenceError: The handle is not live.
            ValueError: ``start`` below 0.
            TypeError: An argument that is not an int.
        """
        return self._core.block_ids_from(handle, start)

    # How long blocks are kept.

    def retain(
        self,
        handle: int,
        start: int,
        stop: int,
        *,
        priority: Priority | None,
        ttl: float | None = None,
    ) -> int:
        """Sets how long to keep the blocks of the tokens ``[start, stop)`` of a sequence.

        The retention applies to each block that lies wholly or partly in the range, until the block
        loses its content or is retained again: the last call wins. On blocks that are not cached
        yet, it takes effect when they are. A block is not evicted before the blocks that continue
        it, and when two blocks with equal content are merged, the higher priority wins. A copy made
        for a writer has no retention.

        With several groups of layers, prompts continue only from a boundary. Above ``NORMAL``, the
        end of the range becomes one of ``stops`` if it is not computed yet, and the windows there
        are kept. If there are several such ranges, only the last one has a stop.

        Args:
            handle: A running sequence.
            start: First token position.
            stop: Position after the last one, up to ``min(num_tokens, num_slots)``.
            priority: From ``LOW`` to ``HIGH``; ``NORMAL`` overrules a hint. None removes the
                retention.
            ttl: Seconds, measured by ``set_time``, after which the retention expires; None for
                never.

        Returns:
            The number of blocks in the range.

        Raises:
            UnknownSequenceError: The handle is not live.
            SequenceStateError: The sequence is preempted.
            ValueError: The range, ``priority`` or ``ttl`` out of bounds, or ``retention`` is off.
            TypeError: A value of the wrong type.

        Cost: O(blocks in the range and before it), each O(log blocks) if it is idle.
        """
        level, seconds = retention_of(priority, ttl)
        return self._core.retain(handle, start, stop, level, seconds)

    def retain_prefix(
        self,
        tokens: Tokens | Prompt,
        *,
        priority: Priority | None,
        ttl: float | None = None,
        namespace: bytes = b"",
        extras: Extras | None = None,
    ) -> int:
        """``retain`` for the full blocks of a prompt that are cached at the moment.

        With several groups of layers, those are the blocks up to the deepest boundary from which a
        prompt can continue.

        Args:
            tokens: The prompt, at least one token.
            priority: As in ``retain``.
            ttl: As in ``retain``.
            namespace: As in ``admit``.
            extras: As in ``admit``.

        Returns:
            The number of leading blocks that are cached; the call has no effect on the others.

        Raises:
            NeverFitsError: The prompt is longer than a block table row.
            ValueError: A value out of its bounds, or ``retention`` is off.
            TypeError: A value of the wrong type.
        """
        level, seconds = retention_of(priority, ttl)
        tokens, namespace, keys = parts_of(tokens, namespace, extras)
        return self._core.retain_prefix(tokens, namespace, keys, level, seconds)

    def pin(
        self, tokens: Tokens | Prompt, *, namespace: bytes = b"", extras: Extras | None = None
    ) -> int:
        """Pins the cached full blocks of a prompt: they are evicted after all others.

        A pin is the highest priority, not a reference: ``num_available`` counts pinned blocks, and
        running sequences get them if no other block is left, the deepest and least recently used
        first. ``evicted_pinned_blocks`` counts these evictions, and ``pinned`` shows them. A pin
        does not cover blocks that are cached later; pin the prompt again for those.

        Args:
            tokens: The prompt, at least one token.
            namespace: As in ``admit``.
            extras: As in ``admit``.

        Returns:
            The pin, for ``unpin``. Pins may overlap: a block that several pins cover counts once
            against the budget, and stays pinned until the last of them is released.

        Raises:
            PinBudgetError: More blocks, or pins, than ``max_pinned_blocks``; with ``quotas``, than
                the namespace's share of them.
            NeverFitsError: The prompt is longer than a block table row.
            ValueError: A value out of its bounds, or ``retention`` is off.
            TypeError: A value of the wrong type.
        """
        tokens, namespace, keys = parts_of(tokens, namespace, extras)
        return self._core.pin(tokens, namespace, keys)

    def touch(
        self, tokens: Tokens | Prompt, *, namespace: bytes = b"", extras: Extras | None = None
    ) -> int:
        """Moves a waiting prompt's cached blocks to the end of their priority's eviction order.

        The blocks count as just used, but not as looked up or found, so a policy that only counts
        hits ignores the call. Blocks that wait for a step in flight count as in use until the step
        completes. Works without ``retention``.

        Args:
            tokens: The prompt, at least one token.
            namespace: As in ``admit``.
            extras: As in ``admit``.

        Returns:
            The number of blocks moved, which are the idle ones.

        Raises:
            NeverFitsError: The prompt is longer than a block table row.
            ValueError: A value out of its bounds.
            TypeError: A value of the wrong type.

        Cost: That of ``match``, and O(1) for each idle block found.
        """
        tokens, namespace, keys = parts_of(tokens, namespace, extras)
        return self._core.touch(tokens, namespace, keys)

    def end_session(self, session: bytes, *, namespace: bytes = b"") -> int | None:
        """Ends a session: what only its path uses is evicted before all other blocks.

        The path is what the session's last sequence left in the cache when it ended or was
        preempted, or will leave if it runs. It is forgotten when its last block is evicted. An
        earlier sequence that ends later leaves its blocks as one without a session does.

        Args:
            session: As in ``admit``, not empty.
            namespace: As in ``admit``. A session of another namespace is never affected.

        Returns:
            The number of blocks that go first; None if no such session is known: it has ended,
            it was dropped for newer ones, or there never was one.

        Raises:
            ValueError: A value out of its bounds, or ``retention`` is off.
            TypeError: A value of the wrong type.

        Cost: O(blocks that go first). With several groups also those below the last of them.

        >>> manager = BlockManager(num_blocks=8, block_size=2, retention=True)
        >>> handle = manager.admit([1, 2, 3, 4, 5], session=b"chat")
        >>> manager.commit(handle, 5)
        >>> manager.free(handle)
        >>> manager.end_session(b"chat"), manager.end_session(b"chat")
        (2, None)
        """
        return self._core.end_session(namespace, session)

    def signal(
        self,
        session: bytes,
        signal: Literal["tool_wait", "resumed", "done"],
        *,
        expected_in: float | None = None,
        namespace: bytes = b"",
    ) -> int | None:
        """Notes what a client reports of a session, until its next prompt or signal.

        Args:
            session: As in ``admit``, not empty.
            signal: ``"tool_wait"``: the client runs a tool and will continue; ``"resumed"``: the
                tool has answered, so the next prompt follows. Both move the session's path to
                ``Priority.EXPECTED``. ``"done"``: no prompt is expected. What only the path uses is
                evicted first, but the session stays known.
            expected_in: Seconds, measured by ``set_time``, until the next prompt is expected. After
                that the path is as without a signal. None: unknown. Only while a prompt is
                expected.
            namespace: As in ``admit``. A session of another namespace is never affected.

        Returns:
            The number of blocks of the path, or with ``"done"`` of those that go first; None if no
            such session is known.

        Raises:
            ValueError: A value out of its bounds, or ``retention`` is off.
            TypeError: A value of the wrong type.

        Cost: O(blocks of the path).
        """
        number, seconds = signal_of(signal, expected_in)
        return self._core.signal(namespace, session, number, seconds)

    # Reading.

    def sequence(self, handle: int) -> Sequence:
        """A view of a live sequence, which frees it when used as a context manager.

        Raises:
            UnknownSequenceError: The handle is not live.
        """
        number = integer("handle", handle)
        self._core.view(number)
        return Sequence(self, number)

    def row(self, handle: int) -> int:
        """The sequence's row in ``block_tables`` and ``seq_lens``.

        Raises:
            UnknownSequenceError: The handle is not live.
        """
        number = integer("handle", handle)
        self._core.view(number)
        return number & 0xFFFFFFFF

    def handles(self) -> list[int]:
        """The handles of all live sequences, running and preempted, by row."""
        return self._core.handles()

    def stats(self) -> Stats:
        """A snapshot of every gauge and counter."""
        return Stats(**self._core.stats())

    def blocks(self) -> BlockSnapshot:
        """A snapshot of every block: its state, its sharers, its parent.

        Returns:
            Columns indexed by block id, owned by the caller.

        Cost: O(blocks + entries of all block tables). For debugging: ``blockmgr.inspect`` prints
        it, ``blockmgr.lab.block_map`` draws it.

        >>> manager = BlockManager(num_blocks=4, block_size=2)
        >>> handle = manager.admit([1, 2, 3])
        >>> manager.blocks().num_tokens.tolist()
        [2, 1, 0, 0]
        """
        return BlockSnapshot(**self._core.blocks())

    @property
    def debug(self) -> int:
        """How much each call checks: see ``ManagerConfig.debug``.

        Set it at any time. Above 0, a call that finds an invariant violated raises
        ``InvariantError`` when it is done, instead of any other error.

        Raises:
            ValueError: Not in ``0 … 2``.
            TypeError: Not an int.
        """
        return self._core.debug()

    @debug.setter
    def debug(self, level: int) -> None:
        self._core.set_debug(replace(self._config, debug=level).debug)

    def _group(self, group: int) -> tuple[Group, int]:
        """A group, and its first slice in the core; -1 for the group of ``block_tables``."""
        groups = self._config.groups or (FullAttention(),)
        index = whole("group", group, 0, len(groups) - 1)
        return groups[index], self._first_slices[index]


class Sequence(NotCopied):
    """A readable view of one sequence. It stores only the handle.

    As a context manager it frees the sequence at the end, unless it is freed already. Two views are
    equal if they name the same sequence of the same manager.
    """

    __slots__ = ("_manager", "handle")

    handle: int
    """The sequence's handle."""

    _instead = "it is a view, so use it again, or fork the sequence it shows"

    def __init__(self, manager: BlockManager, handle: int) -> None:
        self._manager = manager
        self.handle = handle

    def __repr__(self) -> str:
        try:
            state = "preempted" if self.is_preempted else "running"
            tokens = f"{self.num_tokens} tokens, {self.num_computed_tokens} computed"
        except UnknownSequenceError:
            return f"<Sequence {self.handle}: freed>"
        return f"<Sequence {self.handle}: {state}, {tokens}, {self.num_blocks} blocks>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return self._manager is other._manager and self.handle == other.handle

    def __hash__(self) -> int:
        return hash((id(self._manager), self.handle))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._manager._core.view(self.handle)
        except UnknownSequenceError:
            return
        self.free()

    @property
    def row(self) -> int:
        """Row in ``block_tables`` and ``seq_lens``."""
        return self._manager.row(self.handle)

    @property
    def num_tokens(self) -> int:
        """Tokens in the sequence."""
        return self._manager._core.view(self.handle)[0]

    @property
    def num_computed_tokens(self) -> int:
        """Leading tokens whose K/V is in the cache."""
        return self._manager._core.view(self.handle)[1]

    @property
    def num_cached_tokens(self) -> int:
        """Leading tokens that came from the cache when the sequence was admitted."""
        return self._manager._core.view(self.handle)[2]

    @property
    def num_replayed_tokens(self) -> int:
        """Tokens after these that were found, too, and are computed again for uncached groups."""
        return self._manager._core.view(self.handle)[6]

    @property
    def num_blocks(self) -> int:
        """Number of blocks held."""
        return self._manager._core.view(self.handle)[3]

    @property
    def num_slots(self) -> int:
        """Tokens with slots: in every group, the blocks held times their block size, or more."""
        return self._manager._core.view(self.handle)[5]

    @property
    def is_preempted(self) -> bool:
        """Whether the sequence waits for ``resume``."""
        return self._manager._core.view(self.handle)[4]

    @property
    def block_ids(self) -> npt.NDArray[np.int32]:
        """``int32[num_blocks]`` on the host, a copy of the block table."""
        return self._manager._core.block_ids(self.handle)

    @property
    def tokens(self) -> npt.NDArray[np.uint32]:
        """``uint32[num_tokens]`` on the host, a copy."""
        return self._manager._core.tokens(self.handle)

    def append(self, tokens: Tokens) -> None:
        """``BlockManager.append`` of this sequence."""
        self._manager.append(self.handle, tokens)

    def commit(self, num_computed_tokens: int) -> None:
        """``BlockManager.commit`` of this sequence."""
        self._manager.commit(self.handle, num_computed_tokens)

    def reserve(self, num_slots: int) -> None:
        """``BlockManager.reserve`` of this sequence."""
        self._manager.reserve(self.handle, num_slots)

    def truncate(self, num_tokens: int) -> int:
        """``BlockManager.truncate`` of this sequence."""
        return self._manager.truncate(self.handle, num_tokens)

    def fork(self, n: int = 1) -> list[Sequence]:
        """Views of ``n`` forks of this sequence, as ``BlockManager.fork`` makes them."""
        manager = self._manager
        return manager._core.fork(self.handle, n, partial(Sequence, manager))

    def slot_mapping(
        self, start: int, stop: int, *, group: int | None = None
    ) -> npt.NDArray[np.int64]:
        """``BlockManager.slot_mapping`` of this sequence."""
        return self._manager.slot_mapping(self.handle, start, stop, group=group)

    @property
    def stops(self) -> tuple[int, ...]:
        """``BlockManager.stops`` of this sequence."""
        return self._manager.stops(self.handle)

    def preempt(self) -> None:
        """``BlockManager.preempt`` of this sequence."""
        self._manager.preempt(self.handle)

    def resume(self, *, num_slots: int | None = None, read_cache: bool = True) -> None:
        """``BlockManager.resume`` of this sequence."""
        self._manager.resume(self.handle, num_slots=num_slots, read_cache=read_cache)

    def retain(
        self, start: int, stop: int, *, priority: Priority | None, ttl: float | None = None
    ) -> int:
        """``BlockManager.retain`` of this sequence."""
        return self._manager.retain(self.handle, start, stop, priority=priority, ttl=ttl)

    def free(self, *, expect_reuse: bool | None = None) -> None:
        """``BlockManager.free`` of this sequence."""
        self._manager.free(self.handle, expect_reuse=expect_reuse)


def _read_only(array: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    # The core only writes to these arrays and has its own tables. Kernels find K/V by these
    # numbers.
    view = array.view()
    view.setflags(write=False)
    return view
