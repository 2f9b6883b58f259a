"""One manager under test beside the model and the KV oracle: every call goes through here.

``World`` makes each call on the manager and on the model, compares what they answer or raise, and
compares what can be seen of both afterwards. Block ids and handles are compared up to renaming.
It also plays the engine: it launches steps on the fake device and never claims that K/V is
computed before a forward has written it (or, with early commit, before one is sure to).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from blockmgr.blocks import Admission, BlockState
from blockmgr.errors import BlockMgrError, InvariantError, OutOfBlocksError, OutOfSequencesError
from tests.model import ModelManager
from tests.model_pool import Block
from tests.oracle import Device, Step, Work, extend_prefixes

# A TypeError is never in order: no rule passes a value of the wrong type.
REFUSALS = (BlockMgrError, ValueError)
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
    """A live sequence as the engine knows it."""

    handle: int
    twin: int  # its handle in the model
    namespace: bytes
    extras: Mapping[int, bytes]
    tokens: list[int]
    prefixes: list[int]
    start: int = 0  # first position the next forward has to write
    running: bool = True
    version: int = 0  # grows when tokens are taken back
    written: Any = field(default_factory=lambda: np.zeros(0, np.int64))  # slot of each position


@dataclass
class Launched:
    """A step on its way, with the entries that take part in it."""

    step: Step
    entries: list[tuple[Entry, int, Work]]
    blocks: set[int]
    applied: bool = False
    finished: bool = False


class World:
    """A manager, optionally its model, a device, and the engine between them."""

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        manager: Callable[..., Any],
        model: Callable[..., Any] | None = ModelManager,
        seed: int = 0,
        check_every: int = 1,
        detectors: str = "IKD",
    ) -> None:
        self.detectors = detectors
        self.manager = manager(**config)
        self.model = model(**config) if model is not None and "D" in detectors else None
        if self.model is not None and config.get("eviction", "lru") != "lru":
            self.model.choose_victim = self.choose_victim
        self.size = int(config["block_size"])
        self.early = bool(config.get("early_commit", False))
        self.in_flight_limit = int(config.get("steps_in_flight", 0))
        self.rng = random.Random(seed)
        self.device = Device(config["num_blocks"], self.size, self.rng, "K" in detectors)
        self.entries: list[Entry] = []
        self.dead: list[tuple[int, int]] = []
        self.steps: list[Launched] = []  # taken and not completed
        self.open: Launched | None = None  # ticket not resolved
        self.tables: set[int] = set()
        self.names: dict[int, int] = {}  # model serial -> block id of the manager
        self.remaps: list[tuple[int, int, int, int]] = []
        self.check_every, self.calls = check_every, 0

    # ---- calling both -------------------------------------------------------------------

    def both(self, name: str, ours: Sequence[Any], theirs: Sequence[Any], **kw: Any) -> Any:
        """Calls manager and model; a pair of answers, or None when both refuse alike."""
        before = {} if self.model is None else self.model_names()
        known = 0 if self.model is None else len(self.model.remaps)
        answer, error = self.attempt(self.manager, name, ours, kw)
        expected, refusal = None, error
        if self.model is not None:
            expected, refusal = self.attempt(self.model, name, theirs, kw)
            if type(error) is not type(refusal):
                raise DivergenceError(f"{name}{tuple(ours)}{kw}: {error!r}, expected {refusal!r}")
            shortage = isinstance(error, OutOfBlocksError | OutOfSequencesError)
            if shortage and vars(error) != vars(refusal):
                raise DivergenceError(f"{name}: {vars(error)}, expected {vars(refusal)}")
        if isinstance(error, OutOfBlocksError):
            room = error.available - error.reserved_by_watermark
            if error.needed <= room:
                raise DivergenceError(f"{name} refused although it fits: {error}")
        self.calls += 1
        self.observe(name, before, known)
        return None if error is not None else (answer, answer if self.model is None else expected)

    def choose_victim(self, idle: list[Block]) -> Block:
        """What the manager has evicted in the call that the model is about to make.

        The model knows one order, the least recently used first. Under any other it is told who has
        gone, and checks that it was somebody idle without children.
        """
        assert self.model is not None
        facts, names = self.manager.blocks(), self.model_names()
        cached = (BlockState.CACHED, BlockState.IDLE, BlockState.FENCED)
        gone = [b for b in idle if facts.state[names[b.id]] not in cached]
        parents = {(b.content[0], b.content[1][:-1]) for b in self.model.live if b.content}
        leaves = [block for block in gone if block.content not in parents]
        if not leaves:
            raise DivergenceError(f"evicted {gone}, none of them without children")
        return leaves[0]

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
        """To be called when the entries are in step with the last call."""
        for entry in self.entries:
            view = self.manager.sequence(entry.handle)
            entry.start = min(entry.start, view.num_computed_tokens)
        if self.model is not None:
            self.compare()

    # ---- detectors ----------------------------------------------------------------------

    def compare(self) -> None:
        """Lock-step: everything that can be seen, up to the names of blocks."""
        self.model.check_invariants()
        ours, theirs = asdict(self.manager.stats()), asdict(self.model.stats())
        if ours != theirs:
            different = {k: (ours[k], theirs[k]) for k in ours if ours[k] != theirs[k]}
            raise DivergenceError(f"stats (manager, model): {different}")
        if set(self.manager.handles()) != {e.handle for e in self.entries}:
            raise DivergenceError("live handles")
        owner = {self.names[b.serial]: b for b in self.model.live if b.serial in self.names}
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
        for remap in self.model.remaps[self._known :]:
            handle = next(e.handle for e in self.entries if e.twin == remap.handle)
            new = self.model_names()[remap.new]
            self.remaps.append((handle, remap.index, self._before[remap.old], new))
        self._known = len(self.model.remaps)

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
        """No block a launched step may still use is handed out for writing."""
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

    # ---- admission ----------------------------------------------------------------------

    def admit(
        self,
        tokens: list[int],
        namespace: bytes = b"",
        extras: Mapping[int, bytes] | None = None,
        num_slots: int | None = None,
    ) -> Entry | None:
        key = {"namespace": namespace, "extras": extras, "num_slots": num_slots}
        promise = self.both("can_admit", [tokens], [tokens], **key)
        self.match(tokens, namespace, extras)
        answer = self.both("admit", [tokens], [tokens], **key)
        if promise is not None and (promise[0] is Admission.NOW) != (answer is not None):
            raise DivergenceError(f"can_admit said {promise[0]}, admit {answer}")
        if promise is not None and self.model is not None and promise[0] is not promise[1]:
            raise DivergenceError(f"can_admit said {promise[0]}, expected {promise[1]}")
        if answer is None:
            self.settle()
            return None
        prefixes: list[int] = []
        extend_prefixes(prefixes, tokens, self.size, namespace, extras or {})
        entry = Entry(*answer, namespace, dict(extras or {}), list(tokens), prefixes)
        entry.start = self.manager.sequence(entry.handle).num_cached_tokens
        self.entries.append(entry)
        self.settle()
        return entry

    def match(
        self, tokens: list[int], namespace: bytes = b"", extras: Mapping[int, bytes] | None = None
    ) -> Any:
        answer = self.both("match", [tokens], [tokens], namespace=namespace, extras=extras)
        if answer is None or self.model is None:
            return answer
        ours, theirs = answer
        for name in ("num_cached_tokens", "num_partial_tokens"):
            if getattr(ours, name) != getattr(theirs, name):
                raise DivergenceError(f"match({tokens}).{name}: {ours}, expected {theirs}")
        self.same_blocks(ours.block_ids.tolist(), theirs.block_ids.tolist(), "match")
        return answer

    def resume(self, entry: Entry, num_slots: int | None = None) -> None:
        if self.both("resume", [entry.handle], [entry.twin], num_slots=num_slots):
            entry.running = True
            entry.start = self.manager.sequence(entry.handle).num_cached_tokens
        self.settle()

    # ---- one sequence -------------------------------------------------------------------

    def on(self, name: str, entry: Entry, *args: Any) -> Any:
        return self.both(name, [entry.handle, *args], [entry.twin, *args])

    def append(self, entry: Entry, tokens: list[int]) -> None:
        if self.on("append", entry, tokens):
            self.extend(entry, tokens)
        self.settle()

    def extend(self, entry: Entry, tokens: list[int]) -> None:
        entry.tokens += tokens
        extend_prefixes(entry.prefixes, tokens, self.size, entry.namespace, entry.extras)

    def reserve(self, entry: Entry, num_slots: int) -> None:
        self.on("reserve", entry, num_slots)
        self.settle()

    def written_until(self, entry: Entry) -> int:
        """How far the K/V of the sequence is in memory, in the slots it has at the moment."""
        view = self.manager.sequence(entry.handle)
        if view.is_preempted:
            return 0
        start = entry.start if self.early else view.num_computed_tokens
        stop = max(start, min(view.num_tokens, view.num_slots, len(entry.written)))
        slots = self.manager.slot_mapping(entry.handle, start, stop)
        return start + int((slots == entry.written[start:stop]).cumprod().sum())

    def committable(self, entry: Entry) -> int:
        view = self.manager.sequence(entry.handle)
        if self.early and not view.is_preempted:
            return min(view.num_tokens, view.num_slots)
        return self.written_until(entry)

    def commit(self, entry: Entry, num_computed_tokens: int) -> None:
        """Commits what the engine may claim; larger claims only where they must be refused."""
        view = self.manager.sequence(entry.handle)
        n, slots = num_computed_tokens, min(view.num_tokens, view.num_slots)
        if view.num_computed_tokens <= n <= slots and not view.is_preempted:
            n = min(n, self.committable(entry))
        if self.on("commit", entry, n) and not self.early:
            entry.start = n
        self.settle()

    def truncate(self, entry: Entry, num_tokens: int) -> None:
        if self.on("truncate", entry, num_tokens):
            del entry.tokens[num_tokens:], entry.prefixes[num_tokens:]
            entry.written = entry.written[:num_tokens]
            entry.version += 1
        self.settle()

    def fork(self, entry: Entry, n: int = 1) -> list[Entry]:
        answer = self.both("fork", [entry.handle, n], [entry.twin, n])
        children = []
        for handle, twin in zip(answer[0], answer[1], strict=True) if answer else ():
            child = Entry(handle, twin, b"", {}, [], [])
            self.become_fork(child, entry)
            self.trust_what_is_computed(child)
            children.append(child)
        self.entries += children
        self.settle()
        return children

    def trust_what_is_computed(self, entry: Entry) -> None:
        """A fork computes nothing that its parent has computed, or will in this step's forward."""
        entry.start = self.manager.sequence(entry.handle).num_computed_tokens

    @staticmethod
    def become_fork(child: Entry, parent: Entry) -> None:
        child.namespace, child.extras = parent.namespace, parent.extras
        child.tokens, child.prefixes = list(parent.tokens), list(parent.prefixes)
        child.start, child.written = parent.start, parent.written
        child.version += 1

    def reparent(self, entries: list[Entry], parents: list[int]) -> None:
        ours, theirs = [e.handle for e in entries], [e.twin for e in entries]
        if self.both("reparent", [ours, parents], [theirs, parents]):
            before = [Entry(0, 0, b"", {}, [], []) for _ in entries]
            for copy, entry in zip(before, entries, strict=True):
                self.become_fork(copy, entry)
            for i, parent in enumerate(parents):
                if parent != i:
                    self.become_fork(entries[i], before[parent])
                    self.trust_what_is_computed(entries[i])
        self.settle()

    def free(self, entry: Entry) -> None:
        if self.on("free", entry):
            self.entries.remove(entry)
            self.dead.append((entry.handle, entry.twin))
        self.settle()

    def preempt(self, entry: Entry) -> None:
        if self.on("preempt", entry):
            entry.start, entry.written, entry.running = 0, entry.written[:0], False
            entry.version += 1
        self.settle()

    def decode(self, entries: list[Entry], tokens: list[int]) -> None:
        """One token for each; sequences whose K/V is not all written yet are left out."""
        slots = {e: self.manager.sequence(e.handle).num_slots for e in entries}
        ready = [
            (e, token)
            for e, token in zip(entries, tokens, strict=True)
            if self.written_until(e) == len(e.tokens) or slots[e] < len(e.tokens)
        ]
        if not ready:
            return
        new = np.array([token for _, token in ready], np.int64)
        ours = np.array([e.handle for e, _ in ready], np.int64)
        theirs = np.array([e.twin for e, _ in ready], np.int64)
        answer = self.both("decode", [ours, new], [theirs, new])
        for (entry, token), slot in zip(ready, answer[0] if answer else (), strict=False):
            entry.start = len(entry.tokens)
            self.extend(entry, [token])
            n = len(entry.tokens)
            if self.manager.slot_mapping(entry.handle, n - 1, n)[0] != slot:
                raise DivergenceError(f"decode answered slot {slot} for {entry.handle}")
        self.settle()

    def on_dead(self, name: str, which: int, *args: Any) -> None:
        ours, theirs = self.dead[which % len(self.dead)]
        if self.both(name, [ours, *args], [theirs, *args]) is not None:
            raise DivergenceError(f"{name} accepted a dead handle")
        self.settle()

    # ---- steps --------------------------------------------------------------------------

    def begin(self, skip: int = -1, applied: bool = False) -> Launched | None:
        """Takes the copy plan and launches the forward of all running sequences but one."""
        answer = self.both("take_copies", [], [])
        if answer is None:
            self.settle()
            return None
        plan, expected = answer
        self.compare_plan(plan, expected)
        launched = Launched(self.device.launch(plan), [], set())
        for index, entry in enumerate(self.entries):
            view = self.manager.sequence(entry.handle)
            launched.blocks.update(view.block_ids.tolist())
            end = min(view.num_tokens, view.num_slots)
            if end == 0 or (index == skip and not self.early):
                continue
            start = entry.start if self.early else view.num_computed_tokens
            slots = self.manager.slot_mapping(entry.handle, 0, end)
            prefixes = np.array(entry.prefixes[:end], np.int64)
            work = Work(f"sequence {entry.handle}", slots, prefixes, start)
            launched.step.work.append(work)
            launched.entries.append((entry, entry.version, work))
            entry.start = view.num_computed_tokens
        launched.blocks.update(plan.sources.tolist(), plan.destinations.tolist())
        self.open = launched
        self.steps.append(launched)
        if applied:
            self.resolve("copies_applied")
        self.settle()
        return launched

    def compare_plan(self, plan: Any, expected: Any) -> None:
        sources, destinations = plan.sources.tolist(), plan.destinations.tolist()
        if len(set(destinations)) < len(destinations) or set(sources) & set(destinations):
            raise DivergenceError(f"the order of the copy plan matters: {list(plan)}")
        if self.model is None:
            return
        if plan.ticket != expected.ticket or list(plan.num_tokens) != list(expected.num_tokens):
            raise DivergenceError(f"copy plan {list(plan)}, expected {list(expected)}")
        self.same_blocks(sources, expected.sources.tolist(), "copy sources")
        self.same_blocks(destinations, expected.destinations.tolist(), "copy destinations")

    def resolve(self, name: str) -> None:
        if self.open is None:
            return
        ticket = self.open.step.ticket
        if self.both(name, [ticket], [ticket]) is None:
            raise DivergenceError(f"{name}({ticket}) was refused")
        self.open.applied = True
        self.open = None
        self.settle()

    def finish(self, launched: Launched, held_back: int = 0) -> None:
        """Runs the step, and commits all but some of the tokens it computed."""
        for earlier in self.steps[: self.steps.index(launched)] if launched in self.steps else ():
            if not earlier.finished:
                self.finish(earlier)
        self.device.run(launched.step)
        if launched is self.open:
            self.resolve("copies_applied")
        if not launched.finished:
            launched.finished = True
            if not self.in_flight_limit:
                self.steps.remove(launched)
            for entry, version, work in launched.entries:
                if entry in self.entries and entry.version == version:
                    entry.written = work.slots
                    if not self.early:
                        computed = self.manager.sequence(entry.handle).num_computed_tokens
                        ready = self.written_until(entry)
                        self.commit(entry, max(computed, ready - held_back))

    def complete(self, count: int = 1) -> None:
        """The device has run the oldest ``count`` steps in flight."""
        done = self.steps[:count]
        if not done or done[-1] is self.open:
            return
        for launched in done:
            self.finish(launched)
        ticket = done[-1].step.ticket
        if self.both("complete", [ticket], [ticket]) is None:
            raise DivergenceError(f"complete({ticket}) was refused")
        del self.steps[:count]
        self.settle()

    def step(self, skip: int = -1, held_back: int = 0) -> None:
        """A whole step: copies, forward, commit; frees a place among those in flight first."""
        if self.open is not None:
            self.finish(self.open)
        if self.in_flight_limit and len(self.steps) >= self.in_flight_limit:
            self.complete()
        launched = self.begin(skip)
        assert launched is not None, "take_copies was refused at the start of a step"
        self.finish(launched, held_back)

    def abort(self) -> None:
        """The launch failed: neither copies nor forward have run."""
        if self.early and self.open is not None:
            self.finish(self.open)
        launched = self.open or self.begin()
        if launched is None:
            return
        self.device.cancel(launched.step)
        starts = [(entry, work.start) for entry, _, work in launched.entries]
        self.resolve("copies_aborted")
        self.steps.remove(launched)
        for entry, start in starts:
            entry.start = min(entry.start, start)
        if self.early:  # what was promised must be computed by the very next step
            self.step()

    def take_remaps(self) -> None:
        answer = self.both("take_remaps", [], [])
        self.settle()
        if self.model is not None and [tuple(r) for r in answer[0]] != self.remaps:
            raise DivergenceError(f"remaps {answer[0]}, expected {self.remaps}")
        self.remaps.clear()
