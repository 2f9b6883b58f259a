"""Which slot has the recurrent state of a request, where vLLM's workers write several.

A step over ``n`` tokens, the last ``d`` of which are drafts, ends in one column of the worker's
table. There it leaves the state before the drafts, and in the columns behind it the states after
each draft. Part of a state, the window of its convolution, stays in the first of these columns for
all of them, so only that column has a whole state: the one before the drafts. The next step begins
with the accepted one. If accepted tokens reach the end of a block, the worker brings the state
there to the column of that block. The forward of a prompt may write that column, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Slots", "WholeState"]


class WholeState(NamedTuple):
    """A state of which all parts are in one column.

    Attributes:
        num_tokens: Tokens that it includes.
        column: Column of the worker's table.
    """

    num_tokens: int
    column: int


@dataclass(slots=True)
class Slots:
    """The slots of one request, which the columns of its worker's table name in turn.

    Attributes:
        size: Tokens per column.
        drafts: Most drafts of a step.
        first: The column of the first slot.
        computed: Tokens that are right after the steps whose outcome is known; below 0: unknown.
        state: The last whole state that these steps left; None if that is unknown.
        steps: Tokens and drafts of each step that was launched since.
        spare: Drafts of the last step before them that do not count as right.
        loaded: The column that a load in the first step writes; it names the first slot, too.
    """

    size: int
    drafts: int
    first: int
    computed: int
    state: WholeState | None
    steps: list[tuple[int, int]] = field(default_factory=list)
    spare: int = 0
    loaded: int | None = None

    @classmethod
    def after(cls, num_before: int, size: int, drafts: int) -> Slots:
        """Of a request that begins behind this many tokens, with their state in its first slot."""
        column = max(0, num_before - 1) // size
        return cls(size, drafts, column, num_before, WholeState(num_before, column))

    def slot_of(self, column: int) -> int:
        """The slot of a column.

        A step writes ``1 + drafts`` columns and may write the one before, all in different slots.
        """
        if column == self.loaded:
            return 0
        return (column - self.first) % (2 + self.drafts)

    def load_in_step(self, end: int) -> None:
        """A connector loads the state in the step that ends with this token and moves it on.

        Workers bring states to the columns of a step before they begin its loads. So the column
        that is loaded names the slot from which the forward reads.
        """
        self.loaded, self.first = self.first, (end - 1) // self.size

    def launch(self, num_tokens: int, num_drafts: int) -> None:
        """Notes a step over this many tokens, of which the last ones are drafts."""
        self.steps.append((num_tokens, num_drafts))

    def report(self, computed: int) -> None:
        """Notes that this many tokens are right after the last step that the engine reported."""
        while self.steps and self.computed >= 0:
            num_tokens, num_drafts = self.steps[0]
            least = self.computed + num_tokens - num_drafts
            if num_drafts and computed < least:
                return
            end = computed if num_drafts else least
            if end > least + num_drafts:  # reports of several steps at once
                self.computed = -1
                return
            del self.steps[0]
            self._move(num_tokens, least, end)

    def known(self) -> WholeState | None:
        """The last whole state, if no step in flight writes its slot."""
        if self.computed < 0 or self.state is None or len(self.steps) > 1:
            return None
        for num_tokens, num_drafts in self.steps:
            least = self.computed + num_tokens
            # Of a request that ends, right drafts are taken back; this step began behind them.
            for end in range(least, least + self.spare + 1):
                column = (end - 1) // self.size
                passes = column * self.size >= end - num_drafts
                written = range(column - passes, column + self.drafts + 1)
                if any(self.slot_of(each) == self.slot_of(self.state.column) for each in written):
                    return None
        return self.state

    def _move(self, num_tokens: int, least: int, end: int) -> None:
        stop = self.computed + num_tokens
        column = (stop - 1) // self.size
        block_end = end - end % self.size
        if block_end >= least:
            self.state = WholeState(block_end, block_end // self.size - 1)
        elif stop % self.size == 0:
            # Of a request that ends, vLLM 0.33 takes back right drafts behind its last token. If
            # all were right, the state at the end of the block has replaced this one.
            self.state = None
        else:
            self.state = WholeState(least, column)
        self.computed, self.spare = end, stop - end
