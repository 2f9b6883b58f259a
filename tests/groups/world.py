"""A small world for the tests of single rules: a manager and its memory, one step a call."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tests.groups.adapter import Adapter
from tests.specification.boundaries import ModelBoundaries
from tests.specification.layers import FullAttention, Kind, RecurrentState, Ring
from tests.stress.memory import Device, Step, Work, prefixes_of

build: Any = ModelBoundaries
"""What a world is made of: the specification, or the manager itself (see ``conftest.py``)."""

FULL, STATE = FullAttention(), RecurrentState()


class World:
    """A manager and its memory, one step a call."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *kinds: Kind,
        **options: Any,
    ) -> None:
        # Block 0 is the null block.
        self.manager: Any = Adapter(num_blocks + 1, block_size, kinds, build=build, **options)
        self.memory = Device(
            num_blocks + 1, block_size, random.Random(1), kinds=kinds, null_block=True
        )

    def work(self, handle: int, start: int, stop: int) -> Work:
        seq, size = self.manager.seqs[handle], self.manager.size
        prefixes = prefixes_of(seq.tokens[:stop], size, seq.namespace)
        tables, kinds = self.manager.tables(handle), self.manager.kinds
        work = Work.on_tables(str(handle), prefixes, start, tables, kinds=kinds, block_size=size)
        if any(kind.replay for kind in kinds):
            view = self.manager.core.sequence(handle)
            since = view.num_cached_tokens
            work.hit = since + view.num_replayed_tokens
            for group, kind in enumerate(kinds):
                uncached = isinstance(kind, Ring) or not kind.cached
                late = isinstance(kind, Ring) and start >= work.hit
                work.low = {**work.low, **({group: -1 if late else since} if uncached else {})}
                work.first = {**work.first, **({} if uncached else {group: max(start, work.hit)})}
        return work

    def launch(self, *work: Work) -> None:
        """Closes a step that does this work, and runs it."""
        copies = self.manager.take_copies()
        for index, copy in enumerate(copies):
            if isinstance(self.manager.kinds[copy.group], Ring):
                copies[index] = copy._replace(num_tokens=self.memory.stride)
        self.memory.forward(Step(0, copies, list(work), emptied=self.manager.zeros))
        self.manager.copies_applied()

    def forward(self, handle: int, stop: int) -> None:
        """Launches a step that computes the sequence up to here, without a commit."""
        computed = self.manager.seqs[handle].computed
        self.launch(*[self.work(handle, computed, stop)] * (stop > computed))

    def compute(self, handle: int, *stops: int) -> None:
        for stop in stops:
            self.forward(handle, stop)
            self.manager.commit(handle, stop)
        assert not self.manager.violations()

    def serve(self, tokens: Sequence[int], *stops: int) -> int:
        """Admits, computes and frees a prompt; returns the tokens found."""
        handle = self.manager.admit(list(tokens))
        cached: int = self.manager.seqs[handle].cached
        self.compute(handle, *(stop for stop in stops if stop > cached), len(tokens))
        self.manager.free(handle)
        return cached

    def step(self) -> None:
        """Closes and launches a step that computes everything committed early."""
        seqs = self.manager.seqs.items()
        self.launch(
            *(self.work(h, s.settled, s.computed) for h, s in seqs if s.computed > s.settled)
        )
        assert not self.manager.violations()

    def serve_early(self, tokens: Sequence[int]) -> int:
        """Admits, commits, computes and frees a prompt; returns the tokens found."""
        handle = self.manager.admit(list(tokens))
        cached: int = self.manager.seqs[handle].cached
        self.manager.commit(handle, len(tokens))
        self.step()
        self.manager.free(handle)
        return cached
