"""An engine that releases K/V memory for a while, and takes it back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blockmgr.blocks import BlockState
from tests.stress.holding import HoldingEngine
from tests.stress.lockstep import DivergenceError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.stress.lockstep import Entry

__all__ = ["ResizingEngine"]


class ResizingEngine(HoldingEngine):
    """Takes blocks out of use and back. Which blocks the model takes is told by their users."""

    limit: int
    """Blocks from here on are out of use."""

    out: dict[int, int]
    """Of those, by id, the ids in the model."""

    def shrink(self, num_blocks: int) -> None:
        config = self.manager.config
        least = config.null_block + sum(config.quotas.values())
        fits = self.model is not None and num_blocks >= least
        pairs = self.paired(range(num_blocks, self.limit)) if fits else {}
        if pairs is None:
            return
        answer = self.resized("shrink", num_blocks, {**self.out, **pairs})
        if answer is not None and answer[0] != answer[1]:
            raise DivergenceError(f"shrink: {answer[0]}, expected {answer[1]}")
        self.settle()

    def grow(self, num_blocks: int) -> None:
        kept = {ours: theirs for ours, theirs in self.out.items() if ours >= num_blocks}
        self.resized("grow", num_blocks, kept)
        self.settle()

    def resized(self, name: str, num_blocks: int, out: dict[int, int]) -> Any:
        """Makes the call; afterwards these blocks are out of use."""
        self.hints = {"out": list(out.values())}
        try:
            answer = self.both(name, [num_blocks], [num_blocks])
        finally:
            self.hints = {}
        if answer is not None:
            self.limit, self.out = num_blocks, out
        return answer

    def paired(self, ids: Iterable[int]) -> dict[int, int] | None:
        """The model's blocks for these: of those without content, any. None: it is unknown."""
        states = self.manager.blocks().state.tolist()
        known = {ours: block.id for ours, block in self.owners().items()}
        model = self.model
        waiting = {i for i, fence in model.fence_of_id.items() if model.fenced(fence)}
        waiting -= {block.id for block in model.live}
        past = {self.last_names[i]: i for i in waiting if i in self.last_names}
        free = iter(model.free_blocks())
        pairs: dict[int, int] = {}
        for block in ids:
            theirs = known.get(block)
            if theirs is None:
                theirs = next(free, None) if states[block] == BlockState.FREE else past.get(block)
            if theirs is None or theirs in pairs.values():
                return None
            pairs[block] = theirs
        return pairs

    def leave(self) -> list[Entry]:
        """The sequences that have blocks that are out of use."""
        users = self.manager.leaving()
        handles = {handle for own in users.values() for handle in own}
        return [entry for entry in self.entries if entry.handle in handles]

    def settle(self) -> None:
        """Nothing may read what is in released memory any more."""
        super().settle()
        waiting = [launched for launched in self.steps if not launched.finished]
        leaving = self.manager.leaving() if self.limit < self.manager.config.num_blocks else {}
        if not waiting:
            for block in range(self.limit, self.manager.config.num_blocks):
                if block not in leaving:
                    self.device.spoil(block)
        if self.model is None:
            return
        twins = {entry.twin: entry.handle for entry in self.entries}
        due = self.model.leaving()
        for block, handles in leaving.items():
            expected = [twins[twin] for twin in due.pop(self.out[block])]
            if sorted(handles) != sorted(expected):
                raise DivergenceError(f"leaving {block}: {handles}, expected {expected}")
        if due:
            raise DivergenceError(f"leaving: none of {due}")
