"""A share of the planted bugs, drawn for each commit."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

from tests.mutants.mutant import Mutant


def drawn_share(mutants: Sequence[Mutant], parts: int, word: str) -> tuple[Mutant, ...]:
    """One in ``parts`` of the mutants, at least one, in the order of the catalogue.

    A hash of the word and of each name decides. So the choice is random, the run of a commit can be
    repeated, and another commit has another share.

    Args:
        mutants: Mutants with different names.
        parts: 1 or more; with 1, all are drawn.
        word: Any text, such as the id of a commit.
    """
    wanted = math.ceil(len(mutants) / parts)
    drawn = set(sorted(mutants, key=lambda mutant: ticket(mutant, word))[:wanted])
    return tuple(mutant for mutant in mutants if mutant in drawn)


def ticket(mutant: Mutant, word: str) -> str:
    """A hash of the mutant and the word; the lowest are drawn."""
    return hashlib.sha256(f"{word} {mutant.name}".encode()).hexdigest()
