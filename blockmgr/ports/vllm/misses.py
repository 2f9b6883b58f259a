"""Counts missed tokens by reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blockmgr import BlockManager, Explanation, MissReason, Prompt

__all__ = ["Misses"]


class Misses:
    """Counts the missed tokens of admitted prompts by reason.

    Args:
        manager: The manager.
        every: Explain one of this many prompts, because an explanation may scan all cached blocks.

    Attributes:
        tokens: Missed tokens so far, by reason.
    """

    def __init__(self, manager: BlockManager, every: int) -> None:
        self._manager = manager
        self._every = every
        self._left = 0  # prompts until the next explanation
        self.tokens: dict[MissReason, int] = {}

    @property
    def is_due(self) -> bool:
        """Whether to explain the next prompt."""
        return self._left == 0

    def explain(self, prompt: Prompt) -> Explanation:
        """Explains a prompt that is about to be admitted."""
        return self._manager.explain(prompt)

    def count(self, explanation: Explanation | None) -> None:
        """Records the admission of a prompt, with its explanation if there is one."""
        self._left = (self._left or self._every) - 1
        for miss in () if explanation is None else explanation.misses:
            self.tokens[miss.reason] = self.tokens.get(miss.reason, 0) + miss.num_tokens

    def line(self) -> str:
        """The reasons, those with the most tokens first."""
        if not self.tokens:
            return ""
        most_first = sorted(self.tokens.items(), key=lambda each: -each[1])
        said = ", ".join(f"{count} {reason.value}" for reason, count in most_first)
        return f"; of the prompts explained, tokens not found: {said}"
