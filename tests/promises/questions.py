"""Compares what a call predicts with what then happens: ask, then act.

A question is a public name of a class that predicts what another call will do: ``can_*``,
``match``, the available blocks, the needed blocks. ``questions`` finds them by name, so that a
question without a check fails a test. The rest of this module is for both managers and ports.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Acts", "Broken", "keeps_its_word", "questions"]

ASKS = re.compile(
    r"(can|may|fits|estimate|match|explain|find|peek|would)(_|$)|"
    r".*(available|needed|required|num_free|num_idle|common_prefix_blocks)"
)


class Broken(AssertionError):
    """A promise was not kept."""


def questions(kind: type) -> set[str]:
    """The public names of a class that predict what another call will do."""
    return {name for name in dir(kind) if not name.startswith("_") and ASKS.match(name)}


@dataclass
class Acts:
    """The actions that test a verdict in one world.

    Attributes:
        act: Performs the action in question.
        shortages: The errors for a temporary shortage.
        nevers: The errors for an action that can never succeed.
        everybody_leaves: Ends all other sequences; can be called once.
        alone: Performs the action in an empty world; None if there is none.
        unchanged: Returns the visible state, which a refused action must not change.
    """

    act: Callable[[], Any]
    shortages: tuple[type[Exception], ...]
    nevers: tuple[type[Exception], ...]
    everybody_leaves: Callable[[], None]
    alone: Callable[[], Any] | None = None
    unchanged: Callable[[], Any] = field(default=lambda: None)

    def refused(self, errors: tuple[type[Exception], ...], said: str) -> None:
        """Checks that the action raises one of these errors and changes nothing."""
        before = self.unchanged()
        try:
            self.act()
        except errors:
            if self.unchanged() != before:
                raise Broken(f"{said}, and the refusal changed something") from None
        except (*self.shortages, *self.nevers) as error:
            raise Broken(f"{said}, but it raised {error!r}") from error
        else:
            raise Broken(f"{said}, but it succeeded")


def keeps_its_word(verdict: Any, acts: Acts) -> Any:
    """Acts on a verdict of now, later or never, and raises ``Broken`` if it was wrong.

    Args:
        verdict: An enum of the names ``NOW`` (or ``OK``), ``LATER`` and ``NEVER``.
        acts: How to act on it.

    Returns:
        The result of the action; None if it can never succeed.
    """
    if verdict.name in ("NOW", "OK"):
        try:
            return acts.act()
        except (*acts.shortages, *acts.nevers) as error:
            raise Broken(f"the verdict is now, but it raised {error!r}") from error
    if verdict.name == "NEVER":
        acts.refused(acts.nevers, "the verdict is never")
        if acts.alone is not None:
            try:
                acts.alone()
            except acts.nevers:
                return None
            raise Broken("the verdict is never, but alone it succeeds")
        return None
    acts.refused(acts.shortages, "the verdict is later")
    acts.everybody_leaves()
    try:
        return acts.act()
    except (*acts.shortages, *acts.nevers) as error:
        raise Broken(f"the verdict is later, but alone it raises {error!r}") from error
