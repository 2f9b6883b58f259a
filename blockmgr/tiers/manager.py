"""``TieredManager``: a manager whose evicted prefixes go to host memory or disk, and come back."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, cast

from blockmgr import _core
from blockmgr.arguments import integer, real, truth, whole
from blockmgr.config import ManagerConfig, ManagerOptions
from blockmgr.errors import (
    BlockStateError,
    ForkError,
    NeverFitsError,
    OutOfBlocksError,
    StepError,
)
from blockmgr.event_columns import Tier, joined
from blockmgr.manager import BlockManager, Sequence
from blockmgr.options import spells_options
from blockmgr.prompt import Prompt
from blockmgr.tiers.layout import Layout
from blockmgr.tiers.loads import Loads, LookUps
from blockmgr.tiers.paths import Path, secret
from blockmgr.tiers.plans import LookUp, Ticket, Tickets, TierMatch, TierStats, TransferPlan
from blockmgr.tiers.shared_books import SharedBooks
from blockmgr.tiers.stores import Stores
from blockmgr.tiers.tier import TierBooks, TierConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from collections.abc import Sequence as IntSequence

    from blockmgr.blocks import Match, Priority
    from blockmgr.event_columns import Events
    from blockmgr.manager import Blocks
    from blockmgr.tokens import Extras, Ints, Tokens

__all__ = ["TieredManager"]

F = TypeVar("F", bound="Callable[..., Any]")


def _in_turn(call: F, how: str) -> F:
    """A call of ``BlockManager`` that waits for those of other threads."""

    @wraps(call)
    def alone(self: TieredManager, *args: Any, **kwargs: Any) -> Any:
        with self._turn():
            return call(self, *args, **kwargs)

    alone.__doc__ = f"``BlockManager.{call.__name__}``, {how}."
    return cast("F", alone)


def _while_settled(call: F) -> F:
    """A call of ``BlockManager`` that is refused while its sequence waits for a load."""

    @wraps(call)
    def settled(self: TieredManager, handle: int, *args: Any, **kwargs: Any) -> Any:
        with self._settled(handle):
            return call(self, handle, *args, **kwargs)

    settled.__doc__ = f"``BlockManager.{call.__name__}``; ``StepError`` while the sequence loads."
    return cast("F", settled)


def _while_all_settled(call: F) -> F:
    """The same of a call for several sequences."""

    @wraps(call)
    def settled(self: TieredManager, handles: Ints, *args: Any, **kwargs: Any) -> Any:
        with self._turn(), self._settled(*self._named(handles)):
            return call(self, handles, *args, **kwargs)

    settled.__doc__ = f"``BlockManager.{call.__name__}``; ``StepError`` while one of them loads."
    return cast("F", settled)


class TieredManager(BlockManager):
    """A ``BlockManager`` whose evicted prefixes can be in slower memory, and come back.

    It moves no bytes. It plans *transfers*, each with a ticket; a *mover*, such as
    ``blockmgr.tiers.movers.Mover``, carries them out and reports how each ended::

        handle = manager.admit(prompt, load=True)  # what tiers have comes into its blocks
        for transfer in manager.take_loads():      # move the bytes, prove them
            manager.loads_done(transfer.ticket, num_proved)
        for transfer in manager.take_stores():     # idle blocks, ahead of their eviction
            manager.stores_done(transfer.ticket, num_written)

    A sequence that waits for a load can be freed, preempted and retained: other calls that change
    it raise ``StepError`` until its tickets are resolved. No call waits for a tier. In a forked
    process, every call raises ``ForkError``. A value of the wrong type raises ``TypeError``.

    Each tier holds prefixes from their beginning, and evicts by itself. Its quotas are those of the
    manager, in proportion. With ``min_partial_tokens``, it holds the ends of sequences, too: their
    last blocks, which are not full. A shared store does not, nor a tier with ``second_touch``.

    With ``groups``, a tier holds full attention from the beginning, and of windows, chunks and
    states what is read at an end from which prompts can continue. A load brings one such end, from
    one tier, as a whole. If it does not arrive whole, its sequence is preempted: ``resume`` it, and
    it computes; or ``free`` it and admit the prompt again. What a shared store has of a prompt
    counts up to such an end.

    Args:
        num_blocks: Physical blocks of the device.
        block_size: Tokens per block.
        tiers: The tiers, the fastest first.
        max_loading: Most blocks of the device that wait for bytes at a time; None for half of them.
        max_storing: Most blocks that are written to tiers at a time; None for an eighth of
            ``num_blocks``, at least 16.
        **options: The other fields of ``ManagerConfig``, by keyword. There must be
            ``prefix_caching``, and no ``early_commit``.

    Raises:
        ValueError: A value is out of its bounds.
        TypeError: A value is of the wrong type.

    >>> from blockmgr.tiers import TierConfig, TieredManager
    >>> manager = TieredManager(4, 2, tiers=[TierConfig(num_blocks=8, ahead=4)])
    >>> first = manager.admit([1, 2, 3, 4, 5])
    >>> manager.commit(first, 5)
    >>> manager.free(first)
    >>> [store] = manager.take_stores()
    >>> manager.stores_done(store.ticket, len(store))  # both blocks are in the tier
    2
    >>> manager.free(manager.admit([9] * 8))  # evicts them from the device
    >>> again = manager.admit([1, 2, 3, 4, 5], load=True)
    >>> [load] = manager.take_loads()
    >>> manager.loads_done(load.ticket, len(load))  # four tokens need no computation
    4
    """

    __slots__ = ("_loads", "_lock", "_lookups", "_pid", "_stores", "_tickets", "_tiers")

    @spells_options(ManagerConfig, ManagerOptions)
    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        tiers: IntSequence[TierConfig],
        max_loading: int | None = None,
        max_storing: int | None = None,
        **options: Unpack[ManagerOptions],
    ) -> None:
        config = ManagerConfig(num_blocks=num_blocks, block_size=block_size, **options)
        self._set_up(config)
        self._add_tiers(tiers, max_loading, max_storing)

    @classmethod
    def from_config(
        cls,
        config: ManagerConfig,
        *,
        tiers: IntSequence[TierConfig] = (),
        max_loading: int | None = None,
        max_storing: int | None = None,
    ) -> Self:
        """A manager with this config and these tiers, which must not be left out."""
        manager = super().from_config(config)
        manager._add_tiers(tiers, max_loading, max_storing)
        return manager

    def _add_tiers(
        self,
        tiers: IntSequence[TierConfig],
        max_loading: int | None,
        max_storing: int | None,
    ) -> None:
        config, known = self.config, _checked(tiers)
        if not config.prefix_caching:
            raise ValueError("prefix_caching must be True with tiers, got False")
        if config.early_commit:
            # What arrives is committed when it is there, which no step of the engine writes.
            raise ValueError("early_commit must be False with tiers, got True")
        kinds = [tier.kind for tier in known]
        if config.events and len(set(kinds)) < len(kinds):
            # A mirror knows where a block is by the kind of the tier.
            raise ValueError("events must be False with two tiers in memory, or two in slabs")
        if config.steps_in_flight and any(tier.store == "commit" for tier in known):
            raise ValueError(
                "steps_in_flight must be 0 with a tier that stores at commit, because a step in "
                f"flight may have yet to write what is committed, got {config.steps_in_flight}"
            )
        loading = config.capacity // 2 if max_loading is None else max_loading
        storing = max(16, config.num_blocks // 8) if max_storing is None else max_storing
        whole("max_loading", loading, 0)
        whole("max_storing", storing, 0)
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._tickets = Tickets()
        layout = Layout(config)
        self._tiers = tuple(
            (TierBooks if tier.shared is None else SharedBooks)(tier, config, layout)
            for tier in known
        )
        self._loads = Loads(self, layout, self._tiers, self._tickets, loading)
        self._stores = Stores(
            self, layout, config.num_blocks, self._tiers, self._tickets, max_storing=storing
        )
        self._lookups = LookUps(self._tiers, self._stores)
        for tier in known:
            if tier.slab is not None:
                tier.slab.is_used = True

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """One call at a time; none in a forked child, which shares the tiers' memory and files."""
        if self._pid != os.getpid():
            raise ForkError("a manager with tiers belongs to the process that made it")
        with self._lock:
            yield

    @contextmanager
    def _settled(self, *handles: int) -> Iterator[None]:
        """A turn for a call that needs these sequences to be done with loading."""
        with self._turn():
            for handle in handles if self._loads.waiting else ():
                if integer("handle", handle) in self._loads.waiting:
                    raise StepError(
                        f"sequence {handle} waits for a load; until loads_done it can only be "
                        "freed or preempted"
                    )
            yield

    def _named(self, handles: Ints) -> list[int]:
        """The handles of a batch, read only while there are loading sequences."""
        return _core.int_array(handles, "handles").tolist() if self._loads.waiting else []

    # Look-up and admission.

    def match_tiers(
        self,
        tokens: Tokens | Prompt,
        *,
        namespace: bytes = b"",
        extras: Extras | None = None,
        max_cached_tokens: int | None = None,
    ) -> TierMatch:
        """What ``admit(load=True)`` would find on the device and in tiers; changes nothing.

        Its arguments are those of ``match``.

        Raises:
            ValueError: A value out of its bounds.
        """
        with self._turn():
            prompt = _as_prompt(tokens, namespace, extras)
            return self._loads.match(prompt, max_cached_tokens)[0]

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
        load: bool | TierMatch = False,
    ) -> int:
        """``BlockManager.admit``, and with ``load`` begins to load what the device lacks.

        A load takes slots up to its end, whatever ``num_slots`` says. If they do not fit, it is
        shorter; if that does not help, there is none. Whether a load began shows in ``is_loading``.
        With several groups of layers, a shorter load ends where prompts can continue as well.

        With ``load``, there is no ``match`` and no ``num_loaded_tokens``, and what is loaded counts
        for ``max_cached_tokens``. A result of ``match_tiers`` as ``load`` loads as much, or raises.
        Without ``read_cache``, nothing is loaded.

        Raises:
            StaleMatchError: Less is there than ``load`` found.
            Exception: As ``BlockManager.admit``.
        """
        with self._turn():
            asked = load if isinstance(load, TierMatch) else None
            if not ((asked is not None or truth("load", load)) and read_cache):
                entered = super().admit(
                    tokens,
                    namespace=namespace,
                    extras=extras,
                    num_slots=num_slots,
                    read_cache=read_cache,
                    match=match,
                    max_cached_tokens=max_cached_tokens,
                    watermark_blocks=watermark_blocks,
                    session=session,
                    num_loaded_tokens=num_loaded_tokens,
                )
                self._count_find(entered)
                return entered
            if num_loaded_tokens is not None:
                raise ValueError("num_loaded_tokens must be None with load, which says as much")
            if match is not None:
                raise ValueError("match must be None with load; pass a result of match_tiers to it")
            if num_slots is not None:
                whole("num_slots", num_slots, 1)
            prompt = _as_prompt(tokens, namespace, extras, session)
            if asked is not None:
                most = asked.num_cached_tokens
                max_cached_tokens = min(
                    most, most if max_cached_tokens is None else max_cached_tokens
                )
            enter = partial(super().admit, prompt, watermark_blocks=watermark_blocks)
            handle = self._admit_loading(prompt, enter, num_slots, max_cached_tokens, asked)
            if handle is None:
                handle = enter(num_slots=num_slots, max_cached_tokens=max_cached_tokens)
            self._count_find(handle)
            return handle

    def _count_find(self, handle: int) -> None:
        """Notes the prefix that an admission has found on the device, if a tier stores by that."""
        if self._stores.counts_finds:
            found = super().sequence(handle).num_computed_tokens // self.config.block_size
            path = self._path_of(self.block_ids(handle)[found - 1]) if found else None
            if path is not None:
                self._stores.found(path)

    def _admit_loading(
        self,
        prompt: Prompt,
        enter: Callable[..., int],
        num_slots: int | None,
        max_cached_tokens: int | None,
        asked: TierMatch | None,
    ) -> int | None:
        """Admits a prompt with the longest load that fits; None: none does, or there is none."""
        found, path = self._loads.match(prompt, max_cached_tokens)
        stop = self._loads.limit(found, path, asked)
        first, size = len(found.device.block_ids), self.config.block_size
        slots = len(prompt) if num_slots is None else num_slots
        while stop > first * size:
            most = max(slots, stop)
            # Behind whole blocks; of several groups, those that have what the end of it needs.
            cached = stop - 1 if self.config.groups else first * size
            try:
                handle = enter(num_slots=most, max_cached_tokens=cached, num_loaded_tokens=stop)
            except (OutOfBlocksError, NeverFitsError):
                if asked is not None:
                    raise
                half = first + (-(-stop // size) - first) // 2 if most > slots else first
                stop = self._loads.shorter(path, half)
                continue
            try:
                self._loads.begin(handle, path, stop)
            except BaseException:
                super().free(handle)
                raise
            return handle
        return None

    def sequence(self, handle: int) -> Sequence:
        """``BlockManager.sequence``."""
        return _View(self, super().sequence(handle).handle)

    def is_loading(self, handle: int) -> bool:
        """Whether a sequence waits for a load.

        Raises:
            UnknownSequenceError: The handle is not live.
        """
        with self._turn():
            return self.sequence(handle).handle in self._loads.waiting

    def prefetch(
        self, tokens: Tokens | Prompt, *, namespace: bytes = b"", extras: Extras | None = None
    ) -> int:
        """Has what slower tiers have of a prompt copied to the fastest tier, with the next stores.

        For prompts that enter a queue: the copy needs no block of the device. A shared store is
        asked first, as in ``look_up``.

        Its arguments are those of ``match``.

        Returns:
            The number of the look-up, for ``is_looking_up``; 0 if there is none.

        Raises:
            ValueError: A value out of its bounds.
        """
        with self._turn():
            prompt = _as_prompt(tokens, namespace, extras)
            found, path = self._loads.match(prompt, None)
            ticket = self._lookups.ask(path, self._num_known(found), fetch=True)
            if not ticket:
                self._stores.prefetch(path)
            return ticket

    # Look-ups in a shared store.

    def look_up(
        self, tokens: Tokens | Prompt, *, namespace: bytes = b"", extras: Extras | None = None
    ) -> int:
        """Has a shared store asked what it has of a prompt, of which less is known here.

        For prompts that enter a queue. An admission loads what is known by then, and never waits.

        Its arguments are those of ``match``.

        Returns:
            The number of the look-up, for ``is_looking_up``; 0 if there is nothing to ask.

        Raises:
            ValueError: A value out of its bounds.
        """
        with self._turn():
            prompt = _as_prompt(tokens, namespace, extras)
            found, path = self._loads.match(prompt, None)
            return self._lookups.ask(path, self._num_known(found), fetch=False)

    def _num_known(self, found: TierMatch) -> int:
        return max(found.device.num_cached_tokens, *found.num_tier_tokens) // self.config.block_size

    def is_looking_up(self, ticket: int) -> bool:
        """Whether a look-up has no answer yet."""
        with self._turn():
            return integer("ticket", ticket) in self._lookups.open

    def take_lookups(self, *, now: float | None = None) -> tuple[LookUp, ...]:
        """The look-ups to make since the last call.

        Args:
            now: Time by the caller's clock. What was stored or seen in a shared store longer than
                ``known_seconds`` ago is forgotten; with None, it is not.

        Raises:
            ValueError: ``now`` is too large.
        """
        with self._turn():
            return tuple(self._lookups.take(None if now is None else real("now", now)))

    def lookups_done(self, ticket: int, has: IntSequence[bool]) -> int:
        """Declares what a shared store said.

        Args:
            ticket: Of ``take_lookups``.
            has: For each key, whether the store says to have its block; none if it could not be
                asked. Keys for which there is no answer are not there.

        Returns:
            Blocks that are known now and were not.

        Raises:
            TicketError: The look-up was never taken, or is resolved.
            ValueError: There are more answers than keys.
        """
        with self._turn():
            return self._lookups.done(ticket, has)

    # Loads.

    def take_loads(self, *, deadline: float | None = None) -> TransferPlan:
        """The loads to begin since the last call.

        Args:
            deadline: Time, by the caller's clock, after which these loads are late; None for never.

        Raises:
            ValueError: ``deadline`` is too large.
        """
        with self._turn():
            due = None if deadline is None else real("deadline", deadline)
            return _plan(self._loads.take(due))

    def loads_done(self, ticket: int, n: int, *, refused: bool = True) -> int:
        """Declares that no transfer writes to the blocks of a load any more.

        The leading blocks that arrived count as computed, and are findable; the others are to be
        computed. Of several tickets of a sequence, what comes first in its prompt counts first.
        With several groups of layers, all blocks count or none does, and then the sequence is
        preempted.

        Args:
            ticket: Of a transfer of ``take_loads``.
            n: Leading blocks that were read and proved.
            refused: Whether block ``n`` of the transfer was read and not proved: then it is
                forgotten in its tier, with all that continues it. False if it could not be read.

        Returns:
            Tokens of the sequence that are computed now; 0 if it was freed or preempted.

        Raises:
            TicketError: The ticket was never taken, is resolved, or is a store's.
            StepError: As ``commit``; the ticket stays open.
            ValueError: ``n`` is more than the transfer has.
        """
        with self._turn():
            known, count = self._tickets.get(ticket, n, is_load=True)
            computed = self._loads.done(known, count, refused=truth("refused", refused))
            self._stores.found(known.path.head(computed // self.config.block_size))
            return computed

    def loads_late(self, now: float) -> list[int]:
        """The sequences that wait for a load whose deadline has passed; preempt them.

        Their tickets keep the blocks until the mover reports. A sequence that is resumed computes.

        Raises:
            ValueError: ``now`` is too large.
        """
        with self._turn():
            return self._loads.late(real("now", now))

    # Stores.

    def take_stores(self, most_blocks: int | None = None) -> TransferPlan:
        """The stores to begin: what is evicted next, and what ``prefetch`` asked for.

        What is read is not kept: if it is evicted before ``stores_read`` or ``stores_done``, the
        store has failed.

        Args:
            most_blocks: Blocks to move at most; None for ``max_storing``, which counts stores that
                are under way.

        Raises:
            ValueError: ``most_blocks`` below 0.

        Cost: O(blocks at the cold end), and O(blocks) of each prefix that a tier may lack.
        """
        with self._turn():
            most = self.config.num_blocks if most_blocks is None else most_blocks
            return _plan(self._stores.take(whole("most_blocks", most, 0)))

    def stores_read(self, ticket: int, n: int) -> int:
        """Declares that a store has read its source, which may be evicted from here on.

        For movers that copy what they read before they write it; those that write to a slab should,
        and write only as many blocks as this call returns. Otherwise a process that ends before
        ``stores_done`` can leave blocks on disk that were read too late, with good proofs. Those
        that write to a shared store must, for others read from it at once.

        Args:
            ticket: Of a transfer of ``take_stores``.
            n: Leading blocks that were read.

        Returns:
            Of these, the leading blocks that had their content all the time; only they count.

        Raises:
            TicketError: The ticket was never taken, is resolved, or is a load's.
            ValueError: ``n`` is more than the transfer has.
        """
        with self._turn():
            known, count = self._tickets.get(ticket, n, is_load=False)
            return self._stores.read(known, count)

    def stores_done(self, ticket: int, n: int, *, refused: bool = True) -> int:
        """Declares that a store has ended.

        Args:
            ticket: Of a transfer of ``take_stores``.
            n: Leading blocks that were written whole.
            refused: Of a transfer from a tier: whether block ``n`` was read there and not proved.

        Returns:
            Blocks that are findable in the tier now.

        Raises:
            TicketError: The ticket was never taken, is resolved, or is a load's.
            OSError: After a reset, what was written could not be erased; the ticket stays open.
            ValueError: ``n`` is more than the transfer has.
        """
        with self._turn():
            known, count = self._tickets.get(ticket, n, is_load=False)
            return self._stores.done(known, count, refused=truth("refused", refused))

    def abandon(self, ticket: int) -> None:
        """Ends a transfer whose mover never reports, as if nothing had arrived.

        Only if the mover can no longer write: it would overwrite what others put there.

        Raises:
            TicketError: The ticket was never taken, or is resolved.
        """
        with self._turn():
            known = self._tickets.open.get(integer("ticket", ticket))
            is_load = known is None or known.is_load
            known, _ = self._tickets.get(ticket, 0, is_load=is_load)
            (self._loads if is_load else self._stores).done(known, 0, refused=False)

    # Calls of a manager that concern tiers.

    def reset_prefix_cache(self, *, reset_hit_rate: bool = True, tiers: bool = True) -> int:
        """``BlockManager.reset_prefix_cache`` of the device and all tiers, as for new weights.

        A transfer that is under way brings nothing. A slab keeps what it gets from here on
        only until the process ends: its layout may name other weights than those used now.

        Args:
            reset_hit_rate: As in ``BlockManager``.
            tiers: False for a device that lost its memory, while tiers are as before.

        Raises:
            OSError: A slab could not be reset; the device is as it was.
            Exception: As ``BlockManager.reset_prefix_cache``.
        """
        with self._turn():
            truth("reset_hit_rate", reset_hit_rate)
            if truth("tiers", tiers):
                for books in self._tiers:
                    books.reset()
            count = super().reset_prefix_cache(reset_hit_rate=reset_hit_rate)
            if tiers:
                for books in self._tiers:
                    books.forget_all()
                for ticket in self._tickets.open.values():
                    ticket.is_void = True
            return count

    def retire(self, namespace: bytes = b"") -> int:
        """``BlockManager.retire`` on the device and in all tiers.

        Raises:
            OSError: A slab could not be written; no prompt finds less than before.
            Exception: As ``BlockManager.retire``.
        """
        with self._turn():
            self.quota_usage(namespace)  # refuses what is no namespace
            own = secret(namespace)
            void = [t for t in self._tickets.open.values() if t.path.namespace == own]
            for number, books in enumerate(self._tiers):  # first, because it can fail
                books.erase_namespace(own, [t for t in void if t.target == number])
            count = super().retire(namespace)
            for ticket in void:
                ticket.is_void = True
            for books in self._tiers:
                books.forget_namespace(own)
            return count

    def forget(self, blocks: Blocks) -> int:
        """``BlockManager.forget``, and the same content in tiers, which came from these blocks.

        A transfer of it that is under way brings nothing.

        Raises:
            OSError: A slab could not be written; no prompt finds less than before.
            Exception: As ``BlockManager.forget``.
        """
        with self._turn():
            ids = _core.int_array(blocks, "blocks")
            self.contents_of(ids)  # refuses what is no block
            paths = [path for block in ids.tolist() if (path := self._path_of(block)) is not None]
            void = [
                ticket
                for ticket in self._tickets.open.values()
                if any(map(ticket.path.begins_with, paths))
            ]
            for number, books in enumerate(self._tiers):  # first, because it can fail
                books.erase(paths, [t for t in void if t.target == number])
            count = super().forget(ids)
            for ticket in void:
                ticket.is_void = True
            for path in paths:
                for books in self._tiers:
                    books.condemn(path)
            return count

    def shrink(self, num_blocks: int) -> int:
        """``BlockManager.shrink`` of the device; tiers keep what they have.

        Blocks that wait for a load leave once its ticket is resolved. A store whose source leaves
        has failed; resolve it before the memory is released. What no tier has is lost: take stores
        before.

        Raises:
            Exception: As ``BlockManager.shrink``.
        """
        with self._turn():
            return super().shrink(num_blocks)

    def retain_prefix(
        self,
        tokens: Tokens | Prompt,
        *,
        priority: Priority | None,
        ttl: float | None = None,
        namespace: bytes = b"",
        extras: Extras | None = None,
    ) -> int:
        """``BlockManager.retain_prefix``, on the device and in all tiers.

        Returns:
            The number of leading blocks that are cached on the device.

        Raises:
            Exception: As ``BlockManager.retain_prefix``.
        """
        with self._turn():
            prompt = _as_prompt(tokens, namespace, extras)
            count = super().retain_prefix(prompt, priority=priority, ttl=ttl)
            path = Path.of_prompt(prompt, self.config.block_size, len(prompt)).whole()
            for books in self._tiers:
                found = books.find(path)
                books.pool.retain(found[found >= 0], priority=priority, ttl=ttl)
            return count

    def set_time(self, seconds: float) -> None:
        """``BlockManager.set_time``, for the device and all tiers."""
        with self._turn():
            super().set_time(seconds)
            for books in self._tiers:
                books.pool.set_time(seconds)

    def _path_of(self, block: int) -> Path | None:
        try:
            path = Path.of_device(self.prefix_of(block), self.config.block_size)
        except (BlockStateError, ValueError):
            return None
        return path if len(path) else None

    def take_events(self) -> Events:
        """``BlockManager.take_events`` of the device and all tiers; ``Event.tier`` says of which.

        Tiers know namespaces and extra keys by their SHA-256 only, so their events name those, and
        the digests of such blocks are made of them. A tier has a block of a group if it has all
        that a query right behind it reads of it.

        Raises:
            Exception: As ``BlockManager.take_events``.
        """
        with self._turn():
            return self._joined(super().take_events(), TierBooks.take_events)

    def take_snapshot(self) -> Events:
        """``BlockManager.take_snapshot`` of the device and all tiers; each is cleared first."""
        with self._turn():
            return self._joined(super().take_snapshot(), TierBooks.take_snapshot)

    def resident_events(self) -> Events:
        """``BlockManager.resident_events`` of the device and all tiers."""
        with self._turn():
            return self._joined(super().resident_events(), TierBooks.resident_events)

    def _joined(self, device: Events, call: Callable[[TierBooks], Events]) -> Events:
        own = {books.kind: call(books) for books in self._tiers}
        return joined({Tier.DEVICE: device, **own})

    def tier_stats(self) -> tuple[TierStats, ...]:
        """What happened in each tier so far."""
        with self._turn():
            return tuple(replace(books.stats) for books in self._tiers)

    def close(self) -> None:
        """Closes the slabs of its tiers, which keep the order of uses for the next process.

        Without it, and after a crash, the order is that of writes. The tiers are of no use
        afterwards; a second time does nothing.

        Raises:
            StepError: A transfer is under way; ``Mover.drain`` first. Nothing is closed.
            OSError: An order could not be written. All slabs are closed.
        """
        with self._turn():
            if any(ticket.is_taken for ticket in self._tickets.open.values()):
                raise StepError("close must come after the end of all transfers")
            with ExitStack() as stack:
                for books in self._tiers:
                    stack.callback(books.close)

    def check_invariants(self) -> None:
        """``BlockManager.check_invariants`` of the device and of the pools of all tiers."""
        with self._turn():
            super().check_invariants()
            for books in self._tiers:
                books.pool.check_invariants()

    # Calls that a loading sequence refuses, and those that end it.

    append = _while_settled(BlockManager.append)
    cache_state = _while_settled(BlockManager.cache_state)
    commit = _while_settled(BlockManager.commit)
    decode = _while_all_settled(BlockManager.decode)
    fork = _while_settled(BlockManager.fork)
    mark_state_moved = _while_settled(BlockManager.mark_state_moved)
    place_state = _while_settled(BlockManager.place_state)
    reparent = _while_all_settled(BlockManager.reparent)
    reserve = _while_settled(BlockManager.reserve)
    truncate = _while_settled(BlockManager.truncate)

    resume = _in_turn(BlockManager.resume, "which loads nothing")
    resume_together = _in_turn(BlockManager.resume_together, "which loads nothing")
    grow = _in_turn(BlockManager.grow, "of the device")

    def free(
        self, handle: int, *, expect_reuse: bool | None = None, withdraw: bool = False
    ) -> None:
        """``BlockManager.free``; the blocks of a load stay with its ticket."""
        with self._turn():
            super().free(handle, expect_reuse=expect_reuse, withdraw=withdraw)
            self._loads.leave(integer("handle", handle))

    def preempt(self, handle: int, *, withdraw: bool = False) -> None:
        """``BlockManager.preempt``; the blocks of a load stay with its ticket."""
        with self._turn():
            super().preempt(handle, withdraw=withdraw)
            self._loads.leave(integer("handle", handle))


class _View(Sequence):
    """A view whose own calls are refused, too, while the sequence loads."""

    __slots__ = ()
    _manager: TieredManager

    def fork(self, n: int = 1) -> list[Sequence]:
        with self._manager._settled(self.handle):
            return super().fork(n)


def _checked(tiers: object) -> tuple[TierConfig, ...]:
    if not isinstance(tiers, list | tuple):
        raise TypeError(f"tiers must be a list or tuple of TierConfig, got {type(tiers).__name__}")
    for tier in tiers:
        if not isinstance(tier, TierConfig):
            raise TypeError(f"tiers must have TierConfig only, got {type(tier).__name__}")
    if not tiers:
        raise ValueError("tiers must have at least one tier; without any, use BlockManager")
    slabs = [tier.slab for tier in tiers if tier.slab is not None]
    if len(set(slabs)) < len(slabs):
        raise ValueError("tiers must have another slab each, got one of them twice")
    if any(slab.is_used for slab in slabs):
        raise ValueError("tiers must have slabs that no manager has had; close and open them again")
    if any(tier.shared is not None for tier in tiers[:-1]):
        raise ValueError("tiers must have a shared store as the last one")
    return tuple(tiers)


def _as_prompt(
    tokens: Tokens | Prompt, namespace: bytes, extras: Extras | None, session: bytes = b""
) -> Prompt:
    if type(tokens) is Prompt:
        tokens._parts(namespace, extras)
        tokens._session_with(session)
        return tokens
    return Prompt(tokens, namespace=namespace, extras=extras, session=session)


def _plan(tickets: list[Ticket]) -> TransferPlan:
    return TransferPlan(tuple(ticket.transfer() for ticket in tickets))
