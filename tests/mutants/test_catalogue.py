"""The text of every planted bug occurs exactly once in its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutant import Mutant
from tests.mutants.planted import CORE, EXTENSION, GROUPS, PYTHON

PACKAGE = Path(__file__).parents[2] / "blockmgr"
PLACES = [
    *(
        pytest.param(PACKAGE / "csrc", mutant, id=mutant.name)
        for mutant in (*CORE, *EXTENSION, *GROUPS)
    ),
    *(pytest.param(PACKAGE, mutant, id=mutant.name) for mutant in PYTHON),
]


@pytest.mark.parametrize(("folder", "mutant"), PLACES)
def test_the_text_of_a_planted_bug_is_there_once(folder: Path, mutant: Mutant) -> None:
    text = (folder / mutant.file).read_text(encoding="utf-8")
    assert text.count(mutant.before) == 1
    assert mutant.after != mutant.before
