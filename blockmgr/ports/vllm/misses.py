"""Why prompts were not found any further than they were."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blockmgr import BlockManager, Explanation, MissReason, Prompt

__all__ = ["Misses"]


class Misses:
    """Counts the tokens of admitted prompts that were not found, by reason.

    Args:
        manager: Whose cache.
        every: One prompt in so many is explained: doing so can look at each cached block.

    Attributes:
        tokens: Tokens so far, by reason.
    """

    def __init__(self, manager: BlockManager, every: int) -> None:
        self._manager = manager
        self._every = every
        self._left = 0  # prompts until one is explained
        self.tokens: dict[MissReason, int] = {}

    @property
    def is_due(self) -> bool:
        """Whether the next prompt is to be explained."""
        return self._left == 0

    def explain(self, prompt: Prompt) -> Explanation:
        """What is cached of a prompt that is about to be admitted."""
        return self._manager.explain(prompt)

    def count(self, explanation: Explanation | None) -> None:
        """A prompt has been admitted, which was explained if that was due."""
        self._left = (self._left or self._every) - 1
        for miss in () if explanation is None else explanation.misses:
            self.tokens[miss.reason] = self.tokens.get(miss.reason, 0) + miss.num_tokens

    def line(self) -> str:
        """The reasons, those of most tokens first."""
        if not self.tokens:
            return ""
        most_first = sorted(self.tokens.items(), key=lambda each: -each[1])
        said = ", ".join(f"{count} {reason.value}" for reason, count in most_first)
        return f"; of the prompts explained, tokens not found: {said}"
