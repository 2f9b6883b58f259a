"""The engine between a manager and its device.

It launches steps on the fake device, and commits tokens only after a forward has written them (or,
with early commit, once a forward is certain to).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from blockmgr.blocks import Admission, Priority
from tests.specification.layers import RecurrentState, Ring
from tests.stress.lockstep import DivergenceError, Entry, Launched
from tests.stress.memory import Step, Work, extend_prefixes, prefixes_of
from tests.stress.resizing import ResizingEngine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["DivergenceError", "Entry", "Launched", "World"]


class World(ResizingEngine):
    """A manager, optionally its model, a device, and the engine between them."""

    def skips(self, op: str) -> bool:
        """Whether an operation is left out here."""
        del op
        return False

    # ---- admission ----------------------------------------------------------------------

    def admit(
        self,
        tokens: list[int],
        namespace: bytes = b"",
        extras: Mapping[int, bytes] | None = None,
        num_slots: int | None = None,
        read_cache: bool = True,
        *,
        by_match: bool = False,
        session: bytes = b"",
        **limits: int | None,
    ) -> Entry | None:
        """With ``by_match``, takes exactly what a match finds, or does nothing."""
        key: dict[str, Any] = {"namespace": namespace, "extras": extras, "num_slots": num_slots}
        num_loaded = limits.pop("num_loaded_tokens", None)
        found = self.match(tokens, namespace, extras, num_slots=num_slots, **limits)
        if not read_cache:
            key["read_cache"] = False
        elif by_match and found is not None:
            key["match"] = found[0]
            limits.pop("max_cached_tokens", None)
        key |= limits
        if num_loaded:
            key["num_loaded_tokens"] = num_loaded
        promise = self.both("can_admit", [tokens], [tokens], **key)
        self.same_digests(tokens, namespace, extras)
        if session:
            key["session"] = session
        answer = self.both("admit", [tokens], [tokens], **key)
        if promise is not None and (promise[0] is Admission.NOW) != (answer is not None):
            raise DivergenceError(f"can_admit said {promise[0]}, admit {answer}")
        if promise is not None and self.model is not None and promise[0] is not promise[1]:
            raise DivergenceError(f"can_admit said {promise[0]}, expected {promise[1]}")
        if answer is None:
            self.settle()
            return None
        prefixes = prefixes_of(tokens, self.size, namespace, extras)
        handle, twin = answer
        entry = Entry(handle, twin, namespace, dict(extras or {}), list(tokens), prefixes)
        self.begin_entry(entry)
        due = found[0].num_cached_tokens if read_cache and found else 0
        if entry.start != due and ("match" in key or not num_loaded):
            raise DivergenceError(f"match found {due} tokens, admit {entry.start}")
        self.entries.append(entry)
        self.found += entry.start
        self.settle()
        return entry

    def begin_entry(self, entry: Entry) -> None:
        """Records how much of the prompt is cached."""
        entry.start = entry.left_off = self.manager.sequence(entry.handle).num_cached_tokens
        self.hand(entry)

    def reset(self, *, reset_hit_rate: bool = True) -> None:
        """The cache forgets everything, and running sequences continue."""
        self.same_answer("reset_prefix_cache", [], reset_hit_rate=reset_hit_rate)

    def resume(self, entry: Entry, num_slots: int | None = None, read_cache: bool = True) -> None:
        key = {} if read_cache else {"read_cache": False}
        if self.both("resume", [entry.handle], [entry.twin], num_slots=num_slots, **key):
            entry.running = True
            self.begin_entry(entry)
        self.settle()

    def resume_together(self, entries: list[Entry], **key: Any) -> bool:
        """Returns whether the sequences run."""
        ours, theirs = [entry.handle for entry in entries], [entry.twin for entry in entries]
        done = self.both("resume_together", [ours], [theirs], **key) is not None
        for entry in entries if done else ():
            entry.running = True
            self.begin_entry(entry)
        self.settle()
        return done

    def regroup(self) -> None:
        """Preempts all running sequences, which must then fit where they were."""
        config, family = self.manager.config, [entry for entry in self.entries if entry.running]
        views = [self.manager.sequence(entry.handle) for entry in family]
        must_fit = not (self.steps or self.holds or config.watermark_blocks)
        must_fit &= self.limit == config.num_blocks  # a shrunk pool hands out no blocks above it
        must_fit &= all(view.num_slots >= view.num_tokens for view in views)
        must_fit &= all(kind.first_read(10**6) == 0 for kind in self.attention())
        for entry in family:
            self.preempt(entry, withdraw=True)
        waiting = [entry for entry in family if not entry.running]
        must_fit &= len(waiting) == len(family)
        if not self.resume_together(waiting) and must_fit:
            raise DivergenceError(f"{len(family)} sequences do not fit where they were")

    def attention(self) -> list[Any]:
        """The groups whose blocks hold tokens."""
        return [kind for kind in self.kinds if not isinstance(kind, RecurrentState | Ring)]

    def cache_state(self, entry: Entry) -> None:
        raise NotImplementedError("of groups with states")

    def retain_prefix(self, entry: Entry, priority: Priority) -> None:
        raise NotImplementedError("of groups")

    # ---- one sequence -------------------------------------------------------------------

    def on(self, name: str, entry: Entry, *args: Any) -> Any:
        return self.both(name, [entry.handle, *args], [entry.twin, *args])

    def append(self, entry: Entry, tokens: list[int]) -> None:
        if self.on("append", entry, tokens):
            self.extend(entry, tokens)
            self.hand_anew(entry)
        self.settle()

    def extend(self, entry: Entry, tokens: list[int]) -> None:
        entry.tokens += tokens
        extend_prefixes(entry.prefixes, tokens, self.size, entry.namespace, entry.extras)

    def reserve(self, entry: Entry, num_slots: int) -> None:
        if self.on("reserve", entry, num_slots):
            self.hand_anew(entry)
        self.settle()

    def written_until(self, entry: Entry) -> int:
        """The number of leading tokens whose K/V is in memory, in the sequence's current slots."""
        view = self.manager.sequence(entry.handle)
        if view.is_preempted:
            return 0
        start = self.first_to_write(entry)
        stop = max(start, min(view.num_tokens, view.num_slots, len(entry.written)))
        slots = self.manager.slot_mapping(entry.handle, start, stop)
        matching = slots == entry.written[start:stop]
        return int(start + matching.cumprod().sum())

    def committable(self, entry: Entry) -> int:
        view = self.manager.sequence(entry.handle)
        if self.early and not view.is_preempted:
            slotted: int = min(view.num_tokens, view.num_slots)
            return slotted
        return self.written_until(entry)

    def commit(self, entry: Entry, num_computed_tokens: int) -> None:
        """Commits what the engine may commit, or more if the manager must refuse it."""
        view = self.manager.sequence(entry.handle)
        n, slots = num_computed_tokens, min(view.num_tokens, view.num_slots)
        if view.num_computed_tokens <= n <= slots and not view.is_preempted:
            n = min(n, self.committable(entry))
        if self.on("commit", entry, n):
            if self.early:
                entry.promise = n
                self.hand(entry)  # after an early commit the engine asks for its slots again
            else:
                entry.start = entry.left_off = n
        self.settle()

    def truncate(self, entry: Entry, num_tokens: int) -> None:
        if self.on("truncate", entry, num_tokens):
            del entry.tokens[num_tokens:], entry.prefixes[num_tokens:]
            entry.written = entry.written[:num_tokens]
            entry.left_off = min(entry.left_off, num_tokens)
            entry.promise = min(entry.promise, num_tokens)
            self.hand(entry)
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
        """A fork skips what its parent has computed, or computes in this step's forward."""
        entry.start = self.manager.sequence(entry.handle).num_computed_tokens

    @staticmethod
    def become_fork(child: Entry, parent: Entry) -> None:
        child.namespace, child.extras = parent.namespace, parent.extras
        child.tokens, child.prefixes = list(parent.tokens), list(parent.prefixes)
        child.start, child.written = parent.start, parent.written
        child.left_off, child.handed, child.promise = parent.left_off, parent.handed, 0
        child.ahead = []
        child.loads = 0  # nobody forks what loads, and what loaded is left behind
        child.begins = parent.begins
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

    def free(
        self, entry: Entry, expect_reuse: bool | None = None, *, withdraw: bool = False
    ) -> None:
        key = {} if expect_reuse is None else {"expect_reuse": expect_reuse}
        if withdraw:
            key["withdraw"] = True
        if self.both("free", [entry.handle], [entry.twin], **key):
            self.entries.remove(entry)
            self.dead.append((entry.handle, entry.twin))
        self.settle()

    def preempt(self, entry: Entry, *, withdraw: bool = False) -> None:
        key = {"withdraw": True} if withdraw else {}
        if self.both("preempt", [entry.handle], [entry.twin], **key):
            entry.start, entry.written, entry.running = 0, entry.written[:0], False
            entry.left_off, entry.promise, entry.handed = 0, 0, entry.handed[:0]
            entry.ran = 0
            entry.version += 1
        self.settle()

    def decode(self, entries: list[Entry], tokens: list[int]) -> None:
        """Appends one token to each sequence, except to those with unwritten K/V."""
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
            entry.start = entry.left_off = len(entry.tokens)
            entry.promise = 0
            self.extend(entry, [token])
            n = len(entry.tokens)
            if self.habits.writes == "as_handed":
                entry.handed = np.append(entry.handed[: n - 1], slot)
            if self.manager.sequence(entry.handle).num_computed_tokens != n - 1:
                raise DivergenceError(f"decode left more than a token of {entry.handle} to compute")
            if self.manager.slot_mapping(entry.handle, n - 1, n)[0] != slot:
                raise DivergenceError(f"decode answered slot {slot} for {entry.handle}")
        self.settle()

    def on_dead(self, name: str, which: int, *args: Any) -> None:
        ours, theirs = self.dead[which % len(self.dead)]
        if self.both(name, [ours, *args], [theirs, *args]) is not None:
            raise DivergenceError(f"{name} accepted a dead handle")
        self.settle()

    # ---- retention ----------------------------------------------------------------------

    def same_answer(self, name: str, args: Sequence[Any], **kw: Any) -> None:
        answer = self.both(name, args, args, **kw)
        if answer is not None and answer[0] != answer[1]:
            raise DivergenceError(f"{name}: {answer[0]}, expected {answer[1]}")
        self.settle()

    def retain(self, entry: Entry, start: int, stop: int, **key: Any) -> None:
        self.both("retain", [entry.handle, start, stop], [entry.twin, start, stop], **key)
        self.settle()

    def pin(self, tokens: list[int], **key: Any) -> None:
        answer = self.both("pin", [tokens], [tokens], **key)
        if answer is not None:
            self.pins.append(answer)
        self.settle()

    def unpin(self, which: int, *, again: bool = False) -> None:
        ours, theirs = self.pins[which % len(self.pins)]
        held = self.both("unpin", [ours], [theirs]) is not None
        if again and self.both("unpin", [ours], [theirs]) is not None:
            raise DivergenceError(f"pin {ours} was given back twice")
        if held:
            self.pins.remove((ours, theirs))
        self.settle()

    # ---- steps --------------------------------------------------------------------------

    def begin(self, skip: int = -1, applied: bool = False) -> Launched | None:
        """Takes the copy plan and launches the forward of all running sequences except one."""
        answer = self.both("take_copies", [], [])
        if answer is None:
            self.settle()
            return None
        plan, expected = answer
        self.compare_plan(plan, expected)
        launched = Launched(self.device.launch(plan), [], set())
        self.complete_step(launched.step)
        for index, entry in enumerate(self.entries):
            view = self.manager.sequence(entry.handle)
            launched.blocks.update(self.blocks_of(entry))
            if index == skip and not self.early:
                continue
            work = self.work_of(entry, view)
            if work is None:
                continue
            launched.step.work.append(work)
            launched.entries.append((entry, entry.version, work))
            self.note_launch(entry, view, work)
        launched.blocks.update(plan.sources.tolist(), plan.destinations.tolist())
        self.open = launched
        self.steps.append(launched)
        if applied:
            self.resolve("copies_applied")
        self.settle()
        return launched

    def complete_step(self, step: Step) -> None:
        """What else than copies its plan says."""

    def blocks_of(self, entry: Entry) -> set[int]:
        return set(self.manager.sequence(entry.handle).block_ids.tolist())

    def work_of(self, entry: Entry, view: Any) -> Work | None:
        """What the next forward does for a sequence: all that has slots."""
        end = min(view.num_tokens, view.num_slots)
        if end == 0:
            return None
        return Work(
            f"sequence {entry.handle}",
            [self.slots(entry, 0, end)],
            np.array(entry.prefixes[:end], np.int64),
            self.first_to_write(entry),
            entry.handed if self.habits.writes == "as_handed" else None,
        )

    def note_launch(self, entry: Entry, view: Any, work: Work) -> None:
        del work
        entry.start = view.num_computed_tokens
        if self.early:
            entry.left_off, entry.promise = max(entry.left_off, entry.promise), 0

    def note_run(self, entry: Entry, work: Work, held_back: int) -> None:
        """Commits what a forward has written, except the tokens that are held back."""
        entry.written = work.slots[0]
        if not self.early:
            computed = self.manager.sequence(entry.handle).num_computed_tokens
            self.commit(entry, max(computed, self.written_until(entry) - held_back))

    def note_abort(self, entry: Entry, work: Work) -> None:
        if self.early:
            entry.left_off = min(entry.left_off, work.start)
            self.hand(entry)

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
        """Runs the step, and commits all computed tokens except some."""
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
                    self.note_run(entry, work, held_back)

    def complete(self, count: int = 1) -> None:
        """Completes the oldest ``count`` steps in flight."""
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
        """A whole step: copies, forward, commit. First makes room among the steps in flight."""
        if self.open is not None:
            self.finish(self.open)
        if self.in_flight_limit and len(self.steps) >= self.in_flight_limit:
            self.complete()
        launched = self.begin(skip)
        assert launched is not None, "take_copies was refused at the start of a step"
        self.finish(launched, held_back)

    def abort(self) -> None:
        """Aborts a launch: neither copies nor forward have run."""
        if self.early and self.open is not None:
            self.finish(self.open)
        launched = self.open or self.begin()
        if launched is None:
            return
        self.device.cancel(launched.step)
        self.resolve("copies_aborted")
        self.steps.remove(launched)
        for entry, version, work in launched.entries:
            entry.start = min(entry.start, work.start)
            if entry in self.entries and entry.version == version:
                self.note_abort(entry, work)
        if self.early:  # the next step must compute the tokens committed early
            self.step()

    def take_remaps(self) -> None:
        answer = self.both("take_remaps", [], [])
        self.settle()
        if self.model is not None and [tuple(r) for r in answer[0]] != self.remaps:
            raise DivergenceError(f"remaps {answer[0]}, expected {self.remaps}")
        self.remaps.clear()
