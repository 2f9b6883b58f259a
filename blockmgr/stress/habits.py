"""What engines differ in that a manager has to serve alike: how they find where to write.

An engine that looks everything up at launch makes up for much: it computes again whatever the
manager says is not computed. Others remember what they have done, and write that much and no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import random

__all__ = ["Habits", "draw_habits"]


@dataclass(frozen=True)
class Habits:
    """How an engine goes about its work; by default it looks everything up.

    Attributes:
        writes: Where the forward of a sequence starts to write, and where to. ``"as_asked"``: at
            ``num_computed_tokens``, in the slots that ``slot_mapping`` gives at launch.
            ``"left_off"``: after what it has written, or was told is cached, which it never looks
            up again. ``"as_handed"``: there too, in the slots it was given by the call that made
            room for the tokens, and in no others.
        by_row: Takes slots and lengths from the arrays of all rows, by the number of the row.
        refills: Admits a prompt as soon as a sequence ends, into its row, in the same step.
        eager: With ``early_commit``, commits whatever it can as soon as it can.
        first_step: Steps that were launched, with nothing in them, before anything else.
    """

    writes: Literal["as_asked", "left_off", "as_handed"] = "as_asked"
    by_row: bool = False
    refills: bool = False
    eager: bool = False
    first_step: int = 0

    @property
    def looks_up(self) -> bool:
        """Whether it asks how much is computed."""
        return self.writes == "as_asked"


def draw_habits(rng: random.Random) -> dict[str, Any]:
    """Habits as they are kept with a run. Few runs begin close to where 16 bits are full."""
    near = rng.random() < 1 / 64
    return {
        "writes": rng.choice(["as_asked", "left_off", "as_handed"]),
        "by_row": rng.random() < 0.5,
        "refills": rng.random() < 0.3,
        "eager": rng.random() < 0.5,
        "first_step": 2**16 - rng.randint(0, 24) if near else 0,
    }
