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

__all__ = ["Habits", "draw_chunking", "draw_habits"]


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
        chunk: With groups, the most tokens of a forward.
        stops: With groups, how often a forward ends at a stop of the admission.
        idles: With groups, how often a forward leaves a sequence out.
        affirms: With groups, commits sequences that it left out of a step, at their present length.
        samples_ahead: With groups, launches forwards over tokens that it knows only once the
            forward before has run.
    """

    writes: Literal["as_asked", "left_off", "as_handed"] = "as_asked"
    by_row: bool = False
    refills: bool = False
    eager: bool = False
    first_step: int = 0
    chunk: int = 100
    stops: float = 1.0
    idles: float = 0.0
    affirms: bool = False
    samples_ahead: bool = False

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


def draw_chunking(rng: random.Random) -> dict[str, Any]:
    """The habits of an engine with groups."""
    return draw_habits(rng) | {
        "writes": "as_asked",
        "by_row": False,
        "first_step": 0,
        "chunk": rng.choice([1, 3, 4, 8, 100]),
        "stops": rng.choice([0.0, 0.5, 1.0, 1.0]),
        "idles": rng.choice([0.0, 0.3]),
        "affirms": rng.random() < 0.5,
    }
