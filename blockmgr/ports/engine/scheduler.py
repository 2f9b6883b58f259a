"""The loop of the engine: the step contract, from admission to the next token.

One step, in the order of the contract::

    plan      regrow what was preempted, decode what is ready, room for the next chunks;
              preempt the youngest whenever blocks run out; then admit while there is room
    launch    take_copies, apply them, forward, copies_applied, commit
    deliver   choose tokens, fork, reparent, free what is finished
"""

from __future__ import annotations

import threading
import time
from bisect import insort
from collections import deque
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeVarTuple, Unpack

import numpy as np

from blockmgr.blocks import Admission
from blockmgr.errors import NeverFitsError, OutOfBlocksError, ReentrancyError
from blockmgr.groups import (
    ChunkedAttention,
    RecurrentState,
    SlidingWindow,
    refuse_uncached,
    table_group,
    tokens_per_block,
)
from blockmgr.manager import BlockManager
from blockmgr.ports.engine.beam import BeamJob
from blockmgr.ports.engine.report import EngineReport
from blockmgr.ports.engine.room import blocks_held
from blockmgr.ports.engine.sampling import OnToken, SampleJob, choose_tokens
from blockmgr.ports.transformers.attention import GroupTables, PagedBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch

    from blockmgr.config import ManagerConfig
    from blockmgr.ports.engine.jobs import Job, Track
    from blockmgr.ports.engine.tiers import EngineTiers
    from blockmgr.ports.transformers.model import PagedModel
    from blockmgr.prompt import Prompt

__all__ = ["Scheduler", "batch_of"]

ROW_MASK: Final = 0xFFFFFFFF  # of a handle: its row in the block tables


def batch_of(manager: BlockManager, tracks: list[Track]) -> PagedBatch:
    """The tokens ``[written, target)`` of these tracks, concatenated."""
    starts = np.array([track.written for track in tracks])
    stops = np.array([track.target for track in tracks])
    rows = np.array([track.live() for track in tracks]) & ROW_MASK
    longest, config = int(stops.max()), manager.config
    tokens = [t for track in tracks for t in track.tokens[track.written : track.target]]
    is_last = stops == np.array([len(track.tokens) for track in tracks])

    def tables_of(group: int | None, *, has_slots: bool = True) -> GroupTables:
        slots = None
        if has_slots:
            slots = np.concatenate(
                [manager.slot_mapping(t.live(), t.written, t.target, group=group) for t in tracks]
            )
        table = manager.block_tables if group is None else manager.group_table(group)
        size = config.block_size
        if config.groups:
            kind = config.groups[table_group(config.groups) if group is None else group]
            size = tokens_per_block(kind, size)
        return GroupTables(slots=slots, block_tables=table[rows, : -(-longest // size)])

    whole = tables_of(None)
    assert whole.slots is not None
    return PagedBatch(
        tokens=np.array(tokens, np.int64),
        positions=np.concatenate([np.arange(t.written, t.target) for t in tracks]),
        slots=whole.slots,
        query_lens=stops - starts,
        context_lens=stops,
        block_tables=whole.block_tables,
        outputs=(np.cumsum(stops - starts) - 1)[is_last],
        groups=tuple(
            tables_of(group, has_slots=not isinstance(kind, RecurrentState))
            for group, kind in enumerate(manager.config.groups)
        ),
    )


Ts = TypeVarTuple("Ts")


class Scheduler:
    """Runs jobs concurrently until all are finished.

    Args:
        model: The model and its K/V.
        config: Config of the manager, with the blocks of the model's cache.
        max_batch_tokens: Most tokens of one forward.
        chunk_size: Most tokens of one sequence in one forward.
        waits: Whether to skip a job while another one computes the prefix of its prompt.
        tiers: The tiers, if there are any.

    Attributes:
        manager: The block manager.
        tally: The work so far.
    """

    def __init__(
        self,
        model: PagedModel,
        config: ManagerConfig,
        max_batch_tokens: int,
        chunk_size: int,
        *,
        waits: bool,
        tiers: EngineTiers | None = None,
    ) -> None:
        refuse_uncached(config.groups, "the transformers engine")
        self._tiers = tiers
        self.manager = tiers.manager if tiers else BlockManager.from_config(config)
        self.tally = EngineReport()  # with the counts of earlier managers only
        self._model = model
        self._max_batch_tokens = max_batch_tokens
        self._chunk_size = chunk_size
        self._waits = waits
        self._shrinks = any(
            isinstance(kind, SlidingWindow | ChunkedAttention) for kind in config.groups
        )
        self._has_states = any(isinstance(kind, RecurrentState) for kind in config.groups)
        self._waiting: deque[Job] = deque()  # oldest first: preempted ones, then fresh ones
        self._running: list[Job] = []  # oldest first
        self._finished: list[Job] = []
        self._rows = 0  # rows reserved for admitted jobs, so that every fork gets one
        self._on_token: OnToken | None = None
        self._busy = threading.Lock()
        self._is_mid_step = False
        self._is_stuck = False

    def run(
        self,
        jobs: Sequence[Job],
        on_token: OnToken | None,
        on_step: Callable[[int], None] | None,
    ) -> list[Job]:
        """Runs jobs to their end.

        Args:
            jobs: Jobs in order of age. Each fits the pool if it is alone.
            on_token: Called with every token of a sample.
            on_step: Called after each step with the sum of the jobs' ``num_done``.

        Returns:
            The jobs and the jobs forked from them, in order of age.

        Raises:
            ReentrancyError: A run is going on.
            ValueError: The tiers are closed.

        Leaves:
            No sequences, even after an exception.
        """
        with self._alone():
            if self._tiers is not None and self._tiers.is_closed:
                raise ValueError("the engine is closed; make another one")
            self._on_token = on_token
            self._waiting.extend(jobs)
            try:
                while self._waiting or self._running or (self._tiers and self._tiers.loading):
                    self._poll_tiers()
                    self._step()
                    if on_step is not None:
                        on_step(sum(job.num_done for job in (*self._running, *self._finished)))
                self._poll_tiers()
                return sorted(self._finished, key=attrgetter("order"))
            finally:
                self._clear()

    def report(self) -> EngineReport:
        """The work so far."""
        return self.tally._with(self.manager.stats())

    def reset(self) -> None:
        """Clears the cache, so that everything is computed again.

        Raises:
            ReentrancyError: A run is in progress. Nothing is forgotten.
        """
        with self._alone():
            self._forget()
            self._model.model_changed()

    def close(self) -> None:
        """Stores what is idle in the tiers, and closes them.

        Raises:
            ReentrancyError: A run is in progress. Nothing is closed.
        """
        with self._alone():
            if self._tiers is not None:
                self._tiers.close()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Refuses a nested call, from a callback or another thread."""
        if not self._busy.acquire(blocking=False):
            raise ReentrancyError("the engine is inside another call")
        try:
            yield
        finally:
            self._busy.release()

    def _forget(self) -> None:
        self.tally = self.report()
        if self._tiers is None:
            self.manager = BlockManager.from_config(self.manager.config)
        else:
            self._tiers.restart()
            self.manager = self._tiers.manager

    def _clear(self) -> None:
        """Ends all remaining jobs; there are none unless an exception was raised."""
        # The content of the cache is unknown after such a step, so forget all of it.
        if self._is_mid_step and self._tiers is None:
            self._forget()
        for handle in self.manager.handles():
            self.manager.free(handle)
        if self._is_mid_step and self._tiers is not None:
            # Tiers have only what was idle, and was read before the step began.
            self._tiers.manager.reset_prefix_cache(tiers=False)
        self._is_mid_step = False
        self._waiting.clear()
        self._running.clear()
        if self._tiers is not None:
            self._tiers.clear()
        self._finished = []
        self._rows = 0
        self._is_stuck = False

    def _step(self) -> None:
        start = time.perf_counter()
        self._is_mid_step = True
        chunks = self._plan()
        aimed = [(j, t) for j in self._running for t in j.tracks if t.target > t.written]
        if not aimed:
            if self._tiers is not None and self._tiers.is_busy:
                self._is_mid_step = False
                self._tiers.wait()
            else:
                self._wait_for_room()
            return
        self._is_stuck = False
        # After planning, because block tables change before that.
        batch = batch_of(self.manager, [track for _, track in aimed])
        planned = time.perf_counter()
        logits = self._launch(batch)
        launched = time.perf_counter()
        for _, track in aimed:
            track.written = track.target
        # States are at the end of a forward, and a fork copies them. The next decode commits other
        # decoded tokens.
        done = [track for _, track in aimed] if self._has_states else chunks
        if self._has_states or not self.manager.config.early_commit:
            for track in done:
                self.manager.commit(track.live(), track.written)
        self._is_mid_step = False
        self._count(batch)
        self._deliver([(j, t) for j, t in aimed if t.written == len(t.tokens)], logits)
        self.tally.device_s += launched - planned
        self.tally.host_s += time.perf_counter() - start - (launched - planned)

    def _wait_for_room(self) -> None:
        """Accepts one step in which the only job preempts itself, but not two in a row.

        One such step is legitimate: under ``append_only`` the twins of its blocks may have filled
        the pool, and it uses them when it resumes.
        """
        self._is_mid_step = False
        if self._is_stuck:
            config = self.manager.config
            raise NeverFitsError(
                f"a pool of {config.capacity} blocks of {config.block_size} is too small for "
                f"prompts[{self._waiting[0].order[0]}] alone"
            )
        self._is_stuck = True

    def _poll_tiers(self) -> None:
        """Continues with the jobs whose loads have ended; those that are late compute instead."""
        if self._tiers is None:
            return
        self._tiers.ask(self._waiting)
        for job in self._tiers.landed():
            insort(self._running, job, key=attrgetter("order"))
            if job.num_cached_tokens is None:
                job.num_cached_tokens = job.tracks[0].written
        self._waiting.extendleft(self._tiers.late())

    # Planning.

    def _plan(self) -> list[Track]:
        """Makes room for this step's tokens, and sets the ``target`` of each track.

        Returns:
            The tracks with a target that compute a chunk; the others decode.
        """
        preemptions = self.tally.preemptions
        for job in self._oldest_first():
            self._with_room(job, job.regrow, self.manager)
        decoded = self._decode()
        budget = self._max_batch_tokens - len(decoded)
        chunks = self._next_chunks(budget)
        # A preemption resets targets, including those set before.
        decoded = [track for track in decoded if track.target > track.written]
        chunks = [track for track in chunks if track.target > track.written]
        if self.manager.config.early_commit:
            for track in (*decoded, *chunks):
                self.manager.commit(track.live(), track.target)
        if preemptions == self.tally.preemptions:  # otherwise the new job would be preempted next
            budget -= sum(track.target - track.written for track in chunks)
            chunks += self._admit(budget)
        if self._tiers is not None:
            self._tiers.prefetch(self._waiting)
        return chunks

    def _decode(self) -> list[Track]:
        """Appends the sampled token of each ready track, with one call for the whole batch."""
        while ready := [t for job in self._running for t in job.tracks if t.is_ready]:
            try:
                self.manager.decode([t.live() for t in ready], [t.tokens[t.length] for t in ready])
            except OutOfBlocksError:
                self._preempt_youngest()
                continue
            for track in ready:
                track.length += 1
                track.target = track.length
            break
        return ready

    def _next_chunks(self, budget: int) -> list[Track]:
        """Reserves slots for the next chunk of each prompt in progress."""
        chunks = []
        for job in self._oldest_first():
            for track in job.tracks:
                size = min(track.length - track.written, self._chunk_size, budget)
                if track.target > track.written or size <= 0:
                    continue
                size = self._reserve(job, track, size)
                if size:
                    _aim(self.manager, track, track.written + size)
                    chunks.append(track)
                    budget -= size
        return chunks

    def _admit(self, budget: int) -> list[Track]:
        """Starts waiting jobs, the oldest first, while there are rows, blocks and budget.

        A job is skipped only until the other one has computed their common prefix.
        """
        started = []
        for job in [*self._waiting]:
            if budget <= 0:
                break
            if self._waits and self._is_computed(job):
                continue
            if self._tiers is not None and self._tiers.is_asking(job):
                continue
            if self._load(job):
                continue
            if not self._start(job, budget):
                break
            self._waiting.remove(job)
            insort(self._running, job, key=attrgetter("order"))
            track = job.tracks[0]
            if self.manager.config.early_commit:
                self.manager.commit(track.live(), track.target)
            budget -= track.target - track.written
            started.append(track)
        return started

    def _load(self, job: Job) -> bool:
        """Lets a fresh job wait for what tiers have of its prompt; False: they have nothing."""
        if self._tiers is None or job.tracks[0].handle is not None:
            return False
        if self._rows + job.rows > self.manager.config.max_seqs:
            return False
        if not self._tiers.enter(job):
            return False
        self._waiting.remove(job)
        self._rows += job.rows
        return True

    def _is_computed(self, job: Job) -> bool:
        """Whether another job is computing the prefix of this one."""
        return self.manager.match(_prompt(job)).num_computing_tokens > 0

    def _start(self, job: Job, budget: int) -> bool:
        """Admits or resumes a job for its first chunk; returns False if there is no room yet."""
        track, prompt = job.tracks[0], _prompt(job)
        if track.handle is None and self._rows + job.rows > self.manager.config.max_seqs:
            return False
        cached = self.manager.match(prompt).num_cached_tokens
        size = min(len(prompt) - cached, self._chunk_size, budget)
        fits = _enter(self.manager, track, prompt, cached + size)
        # If it is alone, a smaller chunk works: windows release blocks after each chunk.
        is_alone = self._shrinks and not self._running
        if not fits and not (is_alone and _enter(self.manager, track, prompt, 1)):
            return False
        if track.length == 0:
            track.length = len(prompt)
            self._rows += job.rows
        track.written = self.manager.sequence(track.live()).num_computed_tokens
        if not fits:
            size = _reserve_some(self.manager, track, size)
            if not size:
                job.preempt(self.manager)
                return False
        # If blocks are short, an admission uses less of the match.
        _aim(self.manager, track, min(cached, track.written) + size)
        if job.num_cached_tokens is None:
            job.num_cached_tokens = track.written
        return True

    def _reserve(self, job: Job, track: Track, size: int) -> int:
        """Takes slots for a chunk of at most ``size`` tokens.

        Returns:
            The size of the chunk; 0 if the job has preempted itself.
        """
        if self._shrinks and self._running[-1] is job:
            size = _reserve_some(self.manager, track, size) or 1
        has_room = self._with_room(job, self.manager.reserve, track.live(), track.written + size)
        return size if has_room else 0

    def _oldest_first(self) -> Iterator[Job]:
        """Iterates over the running jobs, of which the youngest may be preempted meanwhile."""
        i = 0
        while i < len(self._running):
            yield self._running[i]
            i += 1

    def _with_room(self, job: Job, call: Callable[[Unpack[Ts]], object], *args: *Ts) -> bool:
        """Makes a call that takes blocks, and preempts the youngest job until there are enough.

        Returns:
            False if ``job`` itself was preempted.
        """
        while True:
            try:
                call(*args)
            except OutOfBlocksError:
                if self._preempt_youngest() is job:
                    return False
            else:
                return True

    def _preempt_youngest(self) -> Job:
        job = self._running.pop()
        job.preempt(self.manager)
        self._waiting.appendleft(job)
        self.tally.preemptions += 1
        return job

    # The step on the device.

    def _launch(self, batch: PagedBatch) -> torch.Tensor:
        """Runs the copies, then the forward, which may write to their sources."""
        plan = self.manager.take_copies()
        try:
            self._model.cache.copy(plan)
            logits = self._model.forward(batch)
        except BaseException:
            self.manager.copies_aborted(plan.ticket)
            raise
        self.manager.copies_applied(plan.ticket)
        self.tally.copies += len(plan)
        self.tally.copied_tokens += int(plan.num_tokens.sum())
        return logits

    def _count(self, batch: PagedBatch) -> None:
        config = self.manager.config
        unshared = sum(blocks_held(config, t.written) for job in self._running for t in job.tracks)
        self.tally._count_step(len(batch.tokens), self.manager.stats().used_blocks, unshared)

    # The results of the step.

    def _deliver(self, landed: list[tuple[Job, Track]], logits: torch.Tensor) -> None:
        """Gives each job its logits, and removes finished jobs."""
        samples: list[SampleJob] = []
        rows: list[int] = []
        preemptions = self.tally.preemptions
        for row, (job, track) in enumerate(landed):
            # A job that is preempted for another one's forks returns here.
            if preemptions != self.tally.preemptions and job not in self._running:
                continue
            if isinstance(job, SampleJob):
                forks = self._split(job)
                samples += [*forks, job]
                rows += [row] * (len(forks) + 1)
            elif isinstance(job, BeamJob):
                if job.accept(track, logits[row]):
                    self._with_room(job, job.branch, self.manager)
                if job.is_done:
                    self._finish(job)
        if preemptions != self.tally.preemptions:
            kept = [i for i, sample in enumerate(samples) if sample in self._running]
            samples, rows = [samples[i] for i in kept], [rows[i] for i in kept]
        if samples:
            self._sample(samples, logits[rows])

    def _sample(self, samples: list[SampleJob], logits: torch.Tensor) -> None:
        """Gives each sample its next token, and removes those that end with it."""
        for sample, token in zip(samples, choose_tokens(logits, samples), strict=True):
            streamed = sample.accept(token)
            if self._on_token is not None:
                self._on_token(streamed)
            if sample.finish_reason is not None:
                self._finish(sample)

    def _split(self, job: SampleJob) -> list[SampleJob]:
        """Forks a computed prompt into its samples.

        If preempting all others does not make room for their states, the samples start like new
        prompts.
        """
        while True:
            try:
                forks = job.split(self.manager)
            except OutOfBlocksError:
                if self._running[-1] is not job:
                    self._preempt_youngest()
                    continue
                apart = job.part()
                self._rows -= len(apart)
                self._waiting.extendleft(reversed(apart))
                return []
            for fork in forks:
                insort(self._running, fork, key=attrgetter("order"))
            return forks

    def _finish(self, job: Job) -> None:
        for track in job.tracks:
            self.manager.commit(track.live(), track.written)
            self.manager.free(track.live())
        self._running.remove(job)
        self._finished.append(job)
        self._rows -= job.rows
        self.tally.generated_tokens += sum(len(sample.tokens) for sample in job.result())


def _prompt(job: Job) -> Prompt:
    """The tokens that a waiting job has to compute before it samples."""
    return job.tracks[0].prompt()


def _enter(manager: BlockManager, track: Track, prompt: Prompt, num_slots: int) -> bool:
    """Admits or resumes a track; returns False if there is no room for this many slots."""
    if track.handle is None:
        if manager.can_admit(prompt, num_slots=num_slots) is not Admission.NOW:
            return False
        track.handle = manager.admit(prompt, num_slots=num_slots)
        return True
    try:
        manager.resume(track.handle, num_slots=num_slots)
    except (OutOfBlocksError, NeverFitsError):
        return False
    return True


def _aim(manager: BlockManager, track: Track, target: int) -> None:
    """Sets the target of a chunk, so that it ends where the manager can keep a state."""
    stops = manager.stops(track.live()) if manager.config.groups else ()
    track.target = min([target, *(stop for stop in stops if stop > track.written)])


def _reserve_some(manager: BlockManager, track: Track, size: int) -> int:
    """Takes slots for a chunk of ``size`` tokens, or of fewer that fit; returns how many."""
    while size:
        try:
            manager.reserve(track.live(), track.written + size)
        except OutOfBlocksError:
            size //= 2
        else:
            break
    return size
