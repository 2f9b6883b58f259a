"""Look-ups in the cache, and calls on single blocks: holds, removal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blockmgr.blocks import BlockState
from tests.stress.lockstep import DivergenceError
from tests.stress.remembering import RememberingEngine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.specification.blocks import Block

__all__ = ["HoldingEngine"]

COUNTS = ("num_cached_tokens", "num_partial_tokens", "num_idle_blocks", "num_computing_tokens")
"""The numeric fields of a match."""


class HoldingEngine(RememberingEngine):
    """Looks prompts up, and uses block ids, as code that moves K/V does."""

    def match(
        self,
        tokens: list[int],
        namespace: bytes = b"",
        extras: Mapping[int, bytes] | None = None,
        **asked: int | None,
    ) -> Any:
        key = {"namespace": namespace, "extras": extras, **asked}
        answer = self.both("match", [tokens], [tokens], **key)
        if answer is None or self.model is None:
            return answer
        ours, theirs = answer
        for name in COUNTS:
            if getattr(ours, name) != getattr(theirs, name):
                raise DivergenceError(f"match({tokens}).{name}: {ours}, expected {theirs}")
        self.same_blocks(ours.block_ids.tolist(), theirs.block_ids.tolist(), "match")
        return answer

    def same_digests(
        self, tokens: list[int], namespace: bytes, extras: Mapping[int, bytes] | None
    ) -> None:
        answer = self.both("block_digests", [tokens], [tokens], namespace=namespace, extras=extras)
        if answer is not None and answer[0] != answer[1]:
            raise DivergenceError(f"block_digests({tokens}): {answer[0]}, expected {answer[1]}")

    def some_blocks(self, which: int, count: int) -> list[tuple[int, int]]:
        """Ids, in the manager and in the model, of a few blocks with content."""
        if self.model is None:
            states = self.manager.blocks().state
            pairs = [(b, b) for b, state in enumerate(states) if state != BlockState.FREE]
        else:
            pairs = sorted((ours, block.id) for ours, block in self.owners().items())
        start = which % len(pairs) if pairs else 0
        return (pairs[start:] + pairs[:start])[:count]

    def owners(self) -> dict[int, Block]:
        """The model's blocks, by the manager's ids."""
        return {self.names[b.serial]: b for b in self.model.live if b.serial in self.names}

    def hold(self, which: int, count: int, *, twice: bool = False) -> None:
        pairs = self.some_blocks(which, count) * (1 + twice)
        if self.both("acquire", [[ours for ours, _ in pairs]], [[b for _, b in pairs]]):
            self.holds += pairs
        self.settle()

    def let_go(self, which: int, count: int, *, again: bool = False) -> None:
        start = which % len(self.holds) if self.holds else 0
        pairs = self.holds[start:][:count]
        asked = pairs * 2 if again else pairs
        if self.both("release", [[ours for ours, _ in asked]], [[b for _, b in asked]]):
            for pair in asked:
                self.holds.remove(pair)
        self.settle()

    def touch_blocks(self, which: int, count: int) -> None:
        pairs = self.some_blocks(which, count)
        self.both("touch_blocks", [[ours for ours, _ in pairs]], [[b for _, b in pairs]])
        self.settle()

    def forget(self, which: int, count: int) -> None:
        """Running sequences keep the forgotten blocks."""
        pairs = self.some_blocks(which, count)
        answer = self.both("forget", [[ours for ours, _ in pairs]], [[b for _, b in pairs]])
        if answer is not None and self.model is not None and answer[0] != answer[1]:
            raise DivergenceError(f"forget: {answer[0]}, expected {answer[1]}")
        self.settle()

    def compare_blocks(self, owner: dict[int, Block]) -> None:
        """Checks queries about single blocks."""
        for block_id, block in owner.items():
            for name in ("is_cached", "ref_count"):
                ours, due = (
                    getattr(self.manager, name)(block_id),
                    getattr(self.model, name)(block.id),
                )
                if ours != due:
                    raise DivergenceError(f"{name}({block_id}) (manager, model): {ours}, {due}")
