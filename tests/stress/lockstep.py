"""Runs every call on the manager under test, the model and the KV oracle.

Each call is made on the manager and on the model; their results or errors are compared, and then
their visible state. Block ids and handles are compared up to renaming.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from blockmgr.blocks import BlockState
from blockmgr.config import DIGEST_NAMES
from blockmgr.errors import BlockMgrError, InvariantError, OutOfBlocksError, OutOfSequencesError
from blockmgr.manager import BlockManager
from tests.specification.layers import kinds_of
from tests.specification.leaves import ModelLeaves
from tests.stress.habits import Habits
from tests.stress.memory import Device, Step, Work
from tests.stress.mirror import Mirror

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.specification.blocks import Block

__all__ = ["DivergenceError", "Entry", "Launched", "LockStep"]

# A TypeError is always a failure: no rule passes a value of the wrong type.
REFUSALS = (BlockMgrError, ValueError)
NOBODY = b"a namespace without a quota"
VIEW = (
    "num_tokens",
    "num_computed_tokens",
    "num_cached_tokens",
    "num_slots",
    "num_blocks",
    "is_preempted",
)


class DivergenceError(AssertionError):
    """The manager and the model disagree."""


@dataclass(eq=False)
class Entry:
    """The engine's record of a live sequence."""

    handle: int
    twin: int  # its handle in the model
    namespace: bytes
    extras: Mapping[int, bytes]
    tokens: list[int]
    prefixes: list[int]
    start: int = 0  # first position the next forward has to write
    # The memory of an engine that does not look things up: where it left off, what it committed
    # ahead of the next forward, and the slots it was given.
    left_off: int = 0
    promise: int = 0
    begins: bool = False  # with rings: they are empty where its next forward begins
    ran: int = 0  # with groups: where the last forward that has run ended
    slot: int = 0  # with drafts: the one in which the last launched forward leaves the state
    slot_at: int = 0  # and after how many tokens
    placed: int = 0  # with drafts: the one that the manager was told last
    loads: int = 0  # so many leading tokens are being loaded; 0: none
    tables: Any = ()  # with groups: those after the last call on it
    # Tokens that forwards compute, or are about to, before the manager knows them.
    ahead: list[int] = field(default_factory=list)
    handed: Any = field(default_factory=lambda: np.zeros(0, np.int64))
    running: bool = True
    version: int = 0  # grows when tokens are taken back
    written: Any = field(default_factory=lambda: np.zeros(0, np.int64))  # slot of each position


@dataclass
class Launched:
    """A step in flight, with its entries."""

    step: Step
    entries: list[tuple[Entry, int, Work]]
    blocks: set[int]
    applied: bool = False
    finished: bool = False


class LockStep:
    """A manager, optionally its model, and a device; makes and compares every call."""

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        manager: Callable[..., Any],
        model: Callable[..., Any] | None = ModelLeaves,
        seed: int = 0,
        check_every: int = 1,
        detectors: str = "IKD",
        habits: Habits | None = None,
    ) -> None:
        self.detectors = detectors
        self.manager = manager(**config)
        self.model: Any = model(**config) if model is not None and "D" in detectors else None
        # A model in place of the manager has one eviction order, whatever the configuration.
        of_its_own = config.get("eviction", "lru") != "lru" and manager is BlockManager
        if self.model is not None and of_its_own:
            self.model.choose_victim = self.choose_victim
        self.size = int(config["block_size"])
        self.early = bool(config.get("early_commit", False))
        self.in_flight_limit = int(config.get("steps_in_flight", 0))
        self.rng = random.Random(seed)
        self.kinds = kinds_of(config.get("groups", ()))
        self.device = Device(
            config["num_blocks"],
            self.size,
            self.rng,
            kinds=self.kinds,
            check="K" in detectors,
            null_block=bool(config.get("null_block")),
        )
        self.entries: list[Entry] = []
        self.dead: list[tuple[int, int]] = []
        self.steps: list[Launched] = []  # taken and not completed
        self.open: Launched | None = None  # ticket not resolved
        self.pins: list[tuple[int, int]] = []  # of the manager and of the model
        self.holds: list[tuple[int, int]] = []  # block ids, of the manager and of the model
        self.tables: set[int] = set()
        self.names: dict[int, int] = {}  # model serial -> block id of the manager
        self.last_names: dict[int, int] = {}  # the same of the last block with this id of the model
        self.limit = int(config["num_blocks"])
        self.out: dict[int, int] = {}
        self.hints: dict[str, Any] = {}  # what only the model is told
        self.remaps: list[tuple[int, int, int, int]] = []
        self.check_every, self.calls = check_every, 0
        self.found = 0  # tokens that prompts found
        # A model that stands in for the manager has no events.
        told = bool(config.get("events")) and hasattr(self.manager, "take_events")
        self.mirror = Mirror() if told else None
        self.distinct = config.get("digest", "xxh3_128") in DIGEST_NAMES
        self.habits = habits or Habits()
        self.skip_steps(self.habits.first_step)

    def skip_steps(self, count: int) -> None:
        """Launches this many empty steps."""
        take, applied = self.manager.take_copies, self.manager.copies_applied
        for _ in range(count):
            ticket = take().ticket
            applied(ticket)
            if self.in_flight_limit:
                self.manager.complete(ticket)
        if self.model is not None:
            self.model.last_ticket += count

    # ---- calling both -------------------------------------------------------------------

    def both(self, name: str, ours: Sequence[Any], theirs: Sequence[Any], **kw: Any) -> Any:
        """Calls manager and model; returns both results, or None if both raise the same error."""
        before = {} if self.model is None else self.model_names()
        self.last_names |= before
        known = 0 if self.model is None else len(self.model.remaps)
        answer, error = self.attempt(self.manager, name, ours, kw)
        expected, refusal = None, error
        if self.model is not None:
            expected, refusal = self.attempt(self.model, name, theirs, {**kw, **self.hints})
            self.compare_errors(f"{name}{tuple(ours)}{kw}", error, refusal)
        if isinstance(error, OutOfBlocksError):
            room = error.available - error.reserved_by_watermark
            if error.needed <= room:
                raise DivergenceError(f"{name} refused although it fits: {error}")
        self.calls += 1
        self.observe(name, before, known)
        return None if error is not None else (answer, answer if self.model is None else expected)

    def compare_errors(self, call: str, error: Any, refusal: Any) -> None:
        if type(error) is not type(refusal):
            raise DivergenceError(f"{call}: {error!r}, expected {refusal!r}")
        shortage = isinstance(error, OutOfBlocksError | OutOfSequencesError)
        if shortage and vars(error) != vars(refusal):
            raise DivergenceError(f"{call}: {vars(error)}, expected {vars(refusal)}")

    def choose_victim(self, idle: list[Block]) -> Block:
        """The model's next victim: under another order, one that the manager evicted.

        The model knows only one order, the least recently used first. Under any other order it gets
        the manager's victims, and checks that each was idle and without children.

        A victim that left blocks of a lower level behind was the last of its level, unless those
        were evicted as well.
        """
        facts, names = self.manager.blocks(), self.model_names()
        # The sequence that needs the room takes the victims.
        gone = [b for b in idle if facts.state[names[b.id]] == BlockState.OWNED]
        parents = {self.model.parent_of(block) for block in self.model.live}
        leaves = [block for block in gone if block.content and block.content[1] not in parents]
        if not leaves:
            raise DivergenceError(f"evicted {gone}, none of them without children")
        return min(leaves, key=lambda leaf: not self.lowered_by(leaf, idle) <= set(gone))

    def lowered_by(self, leaf: Block, idle: list[Block]) -> set[Block]:
        """The idle blocks that fall below a level when this block is evicted."""
        if not self.model.config.retention:
            return set()
        level, live = self.model.level(leaf), self.model.live
        self.model.live = [block for block in live if block is not leaf]
        try:
            return {b for b in idle if b is not leaf and self.model.level(b) < level}
        finally:
            self.model.live = live

    @staticmethod
    def attempt(target: Any, name: str, args: Sequence[Any], kw: Mapping[str, Any]) -> Any:
        try:
            return getattr(target, name)(*args, **kw), None
        except InvariantError:
            raise
        except REFUSALS as refusal:
            return None, refusal

    def observe(self, name: str, before: Mapping[int, int], known: int) -> None:
        if "I" in self.detectors and self.calls % self.check_every == 0:
            self.manager.check_invariants()
        if self.in_flight_limit and "I" in self.detectors:
            self.check_fences(name)
        self._before, self._known = before, known

    def model_names(self) -> dict[int, int]:
        return {b.id: self.names[b.serial] for b in self.model.live if b.serial in self.names}

    def settle(self) -> None:
        """Runs the detectors; call it when the entries reflect the last call."""
        for entry in self.entries:
            view = self.manager.sequence(entry.handle)
            entry.start = min(entry.start, view.num_computed_tokens)
        if self.mirror is not None:
            self.mirror.follow(self.manager)
        if self.model is not None:
            self.compare()

    # ---- detectors ----------------------------------------------------------------------

    def compare(self) -> None:
        """Compares all visible state, up to the names of blocks."""
        self.model.check_invariants()
        ours, theirs = self.manager.stats(), self.model.stats()
        if ours != theirs:
            pairs = {k: (v, asdict(theirs)[k]) for k, v in asdict(ours).items()}
            different = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
            raise DivergenceError(f"stats (manager, model): {different}")
        self.compare_sums()
        if self.mirror is not None:
            self.compare_mirror(self.mirror)
        if set(self.manager.handles()) != {e.handle for e in self.entries}:
            raise DivergenceError("live handles")
        owner = {self.names[b.serial]: b for b in self.model.live if b.serial in self.names}
        self.compare_sequences(owner)
        self.compare_blocks(owner)
        if self.model.config.retention:
            self.compare_retention(owner)
        for remap in self.model.remaps[self._known :]:
            handle = next(e.handle for e in self.entries if e.twin == remap.handle)
            new = self.model_names()[remap.new]
            self.remaps.append((handle, remap.index, self._before[remap.old], new))
        self._known = len(self.model.remaps)

    def compare_sequences(self, owner: dict[int, Block]) -> None:
        """Compares each sequence with its counterpart."""
        for entry in self.entries:
            view, expected = self.manager.sequence(entry.handle), self.model.sequence(entry.twin)
            for name in VIEW:
                if getattr(view, name) != getattr(expected, name):
                    pair = getattr(view, name), getattr(expected, name)
                    raise DivergenceError(f"{name} of {entry.handle} (manager, model): {pair}")
            if list(view.tokens) != entry.tokens or expected.tokens != entry.tokens:
                raise DivergenceError(f"tokens of {entry.handle}")
            for block_id, block in zip(view.block_ids.tolist(), expected.blocks, strict=True):
                self.pair(block, block_id, owner)
            self.compare_row(entry, view)

    def compare_mirror(self, mirror: Mirror) -> None:
        """Compares the mirror fed by events with the full blocks that the model finds."""
        due = {
            block.content[1]
            for block in self.model.live
            if block.content is not None and not self.model.is_tail(block)
        }
        seen = mirror.contents
        # If all digests are equal, one stands for all blocks.
        if set(seen.values()) != due if self.distinct else len(seen) != bool(due):
            raise DivergenceError(f"the mirror has {set(seen.values())}, expected {due}")

    def compare_blocks(self, owner: dict[int, Block]) -> None:
        raise NotImplementedError

    def compare_sums(self) -> None:
        """Checks queries about several sequences or blocks."""
        for name in ("recent_hits", "num_common_prefix_blocks"):
            seen, due = (getattr(m, name)() for m in (self.manager, self.model))
            if seen != due:
                raise DivergenceError(f"{name} (manager, model): {seen}, {due}")
        for namespace in (*self.model.config.quotas, NOBODY):
            usage, due = (m.quota_usage(namespace) for m in (self.manager, self.model))
            if usage != due:
                raise DivergenceError(f"quota of {namespace!r} (manager, model): {usage}, {due}")

    def compare_retention(self, owner: Mapping[int, Block]) -> None:
        for ours, theirs in self.pins:
            states = self.manager.pinned(ours), self.model.pinned(theirs)
            if states[0] != states[1]:
                raise DivergenceError(f"pin {ours} (manager, model): {states}")
        if not hasattr(self.manager, "blocks"):  # a model under test has no map of its blocks
            return
        priority = self.manager.blocks().priority.tolist()
        for block_id, block in owner.items():
            if block.content is not None and priority[block_id] != self.model.level(block):
                raise DivergenceError(f"block {block_id} has priority {priority[block_id]}")

    def pair(self, block: Block, block_id: int, owner: dict[int, Block]) -> None:
        other = owner.setdefault(block_id, block)
        if self.names.setdefault(block.serial, block_id) != block_id or other is not block:
            raise DivergenceError(f"block {block_id} stands for two blocks of the model")

    def compare_row(self, entry: Entry, view: Any) -> None:
        row = self.manager.row(entry.handle)
        if view.row != row or self.manager.seq_lens[row] != (
            0 if view.is_preempted else view.num_tokens
        ):
            raise DivergenceError(f"row or seq_lens of {entry.handle}")
        table = self.manager.block_tables[row].tolist()
        ids = view.block_ids.tolist()
        if table != ids + [0] * (len(table) - len(ids)):
            raise DivergenceError(f"block table {table} of {entry.handle}, blocks are {ids}")

    def same_blocks(self, ids: Sequence[int], blocks: Sequence[int], what: str) -> None:
        names = self.model_names()
        if list(ids) != [names[i] for i in blocks]:
            raise DivergenceError(f"{what}: {list(ids)}, expected {[names[i] for i in blocks]}")

    def check_fences(self, name: str) -> None:
        """Checks that no block is handed out for writing while a launched step may use it."""
        tables: set[int] = set()
        busy = set().union(*(launched.blocks for launched in self.steps))
        for handle in self.manager.handles():
            view = self.manager.sequence(handle)
            for index, block in enumerate(view.block_ids.tolist()):
                tables.add(block)
                writable = (index + 1) * self.size > view.num_computed_tokens
                if writable and block not in self.tables and block in busy:
                    raise DivergenceError(f"{name} handed out block {block}, still in flight")
        self.tables = tables
