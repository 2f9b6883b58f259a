"""``BlockManager``: the calls that an engine makes.

Longer than other modules, because most of it documents the calls; ``csrc`` implements them. Calls
about the cache as a whole and about retention are in separate modules.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Self, Unpack

from blockmgr import _core
from blockmgr.arguments import integer
from blockmgr.blocks import Admission, BlockSnapshot, CopyPlan, Match, Remap
from blockmgr.changes import CompiledManagerCalls
from blockmgr.config import ManagerConfig, ManagerOptions, spells_options
from blockmgr.digest import digest_options
from blockmgr.errors import InvariantError, PolicyError
from blockmgr.groups import core_groups, first_full
from blockmgr.manager_blocks import BlockCalls
from blockmgr.manager_cache import CacheCalls
from blockmgr.manager_events import EventCalls
from blockmgr.manager_groups import GroupCalls
from blockmgr.manager_retention import RetentionCalls
from blockmgr.policy import policies_of
from blockmgr.prompt import Prompt
from blockmgr.sequence import Sequence
from blockmgr.stats import Stats
from blockmgr.tokens import Extras, Tokens, extras_pairs
from blockmgr.uncopied import NotCopied

if TYPE_CHECKING:
    from collections.abc import Sequence as IntSequence

    import numpy as np
    import numpy.typing as npt

__all__ = ["BlockManager", "Sequence", "Tokens"]


_ADMISSIONS = (Admission.NOW, Admission.LATER, Admission.NEVER)


class BlockManager(BlockCalls, CacheCalls, EventCalls, GroupCalls, RetentionCalls, NotCopied):
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

    __slots__ = ("__weakref__", "_config", "_core", "block_tables", "compiled", "seq_lens")

    block_tables: npt.NDArray[np.int32]
    """``int32[max_seqs, max_blocks_per_seq]`` on the host: the block table of every row, live,
    zero-copy and read-only. Entries past a sequence's blocks are 0, so a kernel that reads ahead
    stays inside the pool. ``torch.from_numpy`` needs writable memory: pass ``.base``. Never write
    to it: the manager has its own tables and never reads this array, but all readers of the array
    would see the change."""

    seq_lens: npt.NDArray[np.int32]
    """``int32[max_seqs]`` on the host: ``num_tokens`` of the running sequence of each row, else 0;
    live, zero-copy and read-only."""

    compiled: CompiledManagerCalls
    """Its calls as functions of compiled code: see ``blockmgr.changes``."""

    _instead = "fork its sequences, or make another manager with from_config(manager.config)"

    @spells_options
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
        options = {
            "num_blocks": config.num_blocks,
            "block_size": config.block_size,
            "max_seqs": config.max_seqs,
            "row_width": config.row_width,
            "prefix_caching": config.prefix_caching,
            "remap": config.dedup == "remap",
            "min_partial_tokens": config.min_partial_tokens,
            "watermark_blocks": config.watermark_blocks,
            "steps_in_flight": config.steps_in_flight,
            "early_commit": config.early_commit,
            "null_block": config.null_block,
            "eviction": config.eviction if isinstance(config.eviction, str) else "lru",
            "ghost_blocks": config.ghost_blocks,
            "hit_rate_window": config.hit_rate_window,
            "event_blocks": config.waiting_blocks,
            "python_policies": policies_of(
                config.eviction,
                config.shares,
                keys_move=config.prefix_caching and config.dedup == "append_only",
            ),
            "retention": config.retention,
            "max_pinned_blocks": config.max_pinned_blocks,
            "quotas": list(config.quotas.items()),
            "groups": core_groups(config.groups),
            "full_group": first_full(config.groups),
            "max_rollback": config.max_rollback_tokens,
            "halfway_stop_tokens": config.halfway_stop_tokens,
            **digest_options(config.digest, config.prefix_caching),
        }
        self._core = _core.Core(options)
        self.compiled = CompiledManagerCalls(self._core)
        self._core.set_debug(config.debug)
        self.block_tables = _read_only(self._core.block_tables())
        self.seq_lens = _read_only(self._core.seq_lens())
        self._group_tables = _read_only(self._core.group_tables())

    def __repr__(self) -> str:
        config = self._config
        return (
            f"<BlockManager: {config.num_blocks} blocks of {config.block_size} tokens, "
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

        Returns:
            The handle of a running sequence. Its ``num_computed_tokens`` came from the cache.

        Raises:
            OutOfBlocksError: Too few blocks at the moment, the watermark counted.
            OutOfSequencesError: All ``max_seqs`` rows are taken.
            NeverFitsError: The prompt does not fit even an empty pool, the watermark counted.
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
            tokens, namespace, keys = tokens.parts(namespace, extras)
        else:
            keys = None if extras is None else extras_pairs(extras)
        return self._core.admit(
            tokens,
            namespace,
            keys,
            num_slots,
            read_cache,
            match,
            max_cached_tokens,
            watermark_blocks,
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
    ) -> Admission:
        """Whether ``admit`` with these arguments would succeed; changes nothing.

        Shared blocks are counted once, and the watermark applies.

        Raises:
            StaleMatchError: Fewer tokens are cached than ``match`` found.
            ValueError: A value out of its bounds.
            TypeError: A value of the wrong type.
        """
        if type(tokens) is Prompt:
            tokens, namespace, keys = tokens.parts(namespace, extras)
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
            SequenceStateError: A sequence is preempted, or lacks slots for its tokens.
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

    # A step.

    def take_copies(self) -> CopyPlan:
        """The block copies to run before this step's forward; ends the planning of the step.

        Raises:
            StepError: The previous ticket is not resolved, or ``steps_in_flight`` steps are
                launched and not complete.

        Leaves:
            Sources and destinations pinned until the ticket is resolved.
        """
        return self._core.take_copies(CopyPlan)

    def copies_applied(self, ticket: int) -> None:
        """Declares a plan's copies issued, ahead of any later write on the same stream.

        Raises:
            TicketError: The ticket was never taken, or is resolved.
        """
        self._core.copies_applied(ticket)

    def copies_aborted(self, ticket: int) -> None:
        """Makes a plan's copies pending again; the step counts as not launched.

        Raises:
            TicketError: The ticket was never taken, or is resolved.
        """
        self._core.copies_aborted(ticket)

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

    @property
    def num_available(self) -> int:
        """Blocks that can be handed out: free and idle. With quotas, those of all shares."""
        return self._core.num_available()

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

    def memory_usage(self) -> int:
        """Bytes that the manager holds on the host, including the address space of unused rows.

        Cost: O(max_seqs).
        """
        return self._core.memory_usage()

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

    def check_invariants(self) -> None:
        """Recomputes and checks every count, link and invariant.

        Raises:
            InvariantError: An invariant is violated, which is a bug in blockmgr.
            PolicyError: As in ``check_policy``.

        Cost: O(blocks + entries of all block tables). For tests and debugging.
        """
        if violations := self._core.violations():
            raise InvariantError(tuple(violations))
        self.check_policy()

    def check_policy(self) -> None:
        """Raises the first error of an eviction policy written in Python, if there was one.

        Raises:
            PolicyError: The policy raised, or named a victim that cannot be evicted. The call in
                which that happened has finished, as have all later calls, which evict the least
                recently used block first.
        """
        if error := self._core.policy_error():
            raise PolicyError(error) from error


def _read_only(array: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    # The core only writes to these arrays and has its own tables. Kernels find K/V by these
    # numbers.
    view = array.view()
    view.setflags(write=False)
    return view
