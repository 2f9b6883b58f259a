"""Habits of engines: the different ways in which they find the slots to write.

An engine that looks everything up at launch hides many bugs: it computes again whatever the manager
says is not computed. Other engines remember what they have done, and write only what they expect to
be missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import random

__all__ = ["Habits", "draw_habits"]


@dataclass(frozen=True)
class Habits:
    """The habits of one engine; by default it looks everything up.

    Attributes:
        writes: First token and slots that the forward of a sequence writes. ``"as_asked"``: from
            ``num_computed_tokens``, in the slots of ``slot_mapping`` at launch. ``"left_off"``:
            after the tokens that it wrote or that admission found, without asking again.
            ``"as_handed"``: likewise, in the slots returned by the call that made room for the
            tokens, and in no others.
        by_row: Reads slots and lengths from the arrays of all rows, by row number.
        refills: Admits a prompt in the same step in which a sequence ends, into its row.
        eager: With ``early_commit``, commits as many tokens as it can, as soon as it can.
        first_step: Empty steps launched before all others.
    """

    writes: Literal["as_asked", "left_off", "as_handed"] = "as_asked"
    by_row: bool = False
    refills: bool = False
    eager: bool = False
    first_step: int = 0

    @property
    def looks_up(self) -> bool:
        """Whether the engine asks how many tokens are computed."""
        return self.writes == "as_asked"


def draw_habits(rng: random.Random) -> dict[str, Any]:
    """Habits in the form stored with a run. Few runs begin near the overflow of 16 bits."""
    near = rng.random() < 1 / 64
    return {
        "writes": rng.choice(["as_asked", "left_off", "as_handed"]),
        "by_row": rng.random() < 0.5,
        "refills": rng.random() < 0.3,
        "eager": rng.random() < 0.5,
        "first_step": 2**16 - rng.randint(0, 24) if near else 0,
    }
