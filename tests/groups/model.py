"""The specification as the engines of these tests drive it.

They know no tickets and no arguments with names, and they look at tables by group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from blockmgr.blocks import Priority
from tests.specification import blocks
from tests.specification.blocks import Block, Seq
from tests.specification.boundaries import ModelBoundaries
from tests.specification.layers import Kind


class Copy(NamedTuple):
    """A copy of the leading tokens of a block, by block ids."""

    source: int
    destination: int
    num_tokens: int
    group: int


class ModelManager(ModelBoundaries):
    """A manager for any set of groups, in the form that ``CoreManager`` has, too."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        kinds: Sequence[Kind],
        *,
        min_partial_tokens: int = 0,
        halfway_stop_tokens: int = 0,
        prompt_end_stop: int | None = None,
        quotas: Mapping[bytes, int] | None = None,
        retention: bool = True,
    ) -> None:
        del retention  # the specification always supports levels
        super().__init__(
            num_blocks,
            block_size,
            kinds,
            null_block=True,
            min_partial_tokens=min_partial_tokens,
            halfway_stop_tokens=halfway_stop_tokens,
            prompt_end_stop=prompt_end_stop,
            quotas=quotas or {},
        )

    # ---- calls --------------------------------------------------------------------------

    def match(self, tokens: list[int], namespace: bytes = b"") -> int:  # type: ignore[override]
        return super().match(tokens, namespace=namespace).num_cached_tokens

    def admit(  # type: ignore[override]
        self, tokens: list[int], namespace: bytes = b"", num_slots: int | None = None
    ) -> int:
        return super().admit(tokens, namespace=namespace, num_slots=num_slots)

    def retain_tokens(self, handle: int, start: int, stop: int, level: int) -> None:
        super().retain(handle, start, stop, priority=Priority.NORMAL + level)

    def retain(  # type: ignore[override]
        self, tokens: list[int], level: int, namespace: bytes = b""
    ) -> int:
        priority = Priority.NORMAL + level
        return self.retain_prefix(tokens, priority=priority, namespace=namespace)

    def touch_prompt(self, tokens: list[int], namespace: bytes = b"") -> None:
        self.touch(tokens, namespace=namespace)

    def take_copies(self) -> list[Copy]:  # type: ignore[override]
        super().take_copies()
        return [self.row_of(copy) for copy in self.taken or ()]

    def copies_applied(self) -> None:  # type: ignore[override]
        super().copies_applied(self.last_ticket)

    def copies_aborted(self) -> None:  # type: ignore[override]
        super().copies_aborted(self.last_ticket)

    def complete(self) -> None:  # type: ignore[override]
        """The oldest step in flight is done."""
        if self.in_flight:
            super().complete(self.in_flight[0])

    # ---- looking at it ------------------------------------------------------------------

    @property
    def blocks(self) -> list[Block]:
        return self.live

    def row_of(self, copy: blocks.Copy) -> Copy:
        return Copy(copy.source.id, copy.destination.id, copy.num_tokens, copy.group)

    def tables(self, handle: int) -> tuple[tuple[int, ...], ...]:
        return self.ids(self.running(handle))

    def ids(self, seq: Seq) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(0 if block is None else block.id for block in table) for table in seq.tables
        )

    def fingerprint(self) -> tuple[object, ...]:
        """Everything that a call may change, and that a call which raises must leave unchanged."""
        seqs = [
            (s.handle, tuple(s.tokens), self.ids(s), s.computed, s.settled, s.written, s.stands)
            for s in self.seqs.values()
        ]
        copies = [self.row_of(copy) for copy in self.waiting()]
        contents = {block.id: block.content for block in self.live}
        order = sorted(self.stamps, key=self.stamps.__getitem__)
        return seqs, copies, contents, order, sorted(self.levels.items())
