"""A share of the planted bugs, drawn anew for each commit."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

from tests.mutants.catalogue import Mutant


def drawn_share(mutants: Sequence[Mutant], parts: int, word: str) -> tuple[Mutant, ...]:
    """One in ``parts`` of the mutants, at least one, in the order of the catalogue.

    A hash of the word and of each name decides. So nobody chooses which bugs are planted, a run of
    one commit can be repeated, and another commit has another share.

    Args:
        mutants: Each with a name of its own.
        parts: 1 or more; with 1, all are drawn.
        word: Such as the id of a commit.
    """
    wanted = math.ceil(len(mutants) / parts)
    drawn = set(sorted(mutants, key=lambda mutant: ticket(mutant, word))[:wanted])
    return tuple(mutant for mutant in mutants if mutant in drawn)


def ticket(mutant: Mutant, word: str) -> str:
    """The lowest are drawn."""
    return hashlib.sha256(f"{word} {mutant.name}".encode()).hexdigest()
