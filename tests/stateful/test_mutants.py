"""The test of the tests: no planted bug survives the detectors."""

from __future__ import annotations

import pytest

from tests import soak
from tests.model import ModelManager
from tests.stateful.mutants import MUTANTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_planted_bug_is_found(mutant: type[ModelManager]) -> None:
    with pytest.raises(soak.Violation):
        soak.soak(
            20_000, 1, list(soak.PROFILES), manager=mutant, model=ModelManager, detectors="IKD"
        )


def test_the_model_itself_is_clean() -> None:
    done = soak.soak(
        4_000, 1, list(soak.PROFILES), manager=ModelManager, model=ModelManager, detectors="IKD"
    )
    assert done.total() == 4_000
