"""The test of the tests: no planted bug survives the detectors."""

from __future__ import annotations

import pytest

from tests.specification.leaves import ModelLeaves
from tests.stateful.mutants import MUTANTS
from tests.stress.profiles import ONE_GROUP
from tests.stress.run import Failure, Plan, stress

MODELLED = [profile for profile in ONE_GROUP if profile not in {"huge", "sessions"}]
"""The mutants have no sessions."""
# The profile that finds a bug soon, if most profiles rarely do.
MET_BY = {
    "DoesNotCollapseOnAbort": "aborts",
    "DropsCopiesOnAbort": "aborts",
    "MergesIntoPromises": "admission",
    "ReusesWhatIsNotWrittenYet": "swarm",
    "TakesOverPartsOfTails": "admission",
    "TakesOverTailsInUse": "swarm",
    "TruncateLeavesPromoted": "multi_tenant",
    "WritesIntoCachedBlocks": "aborts",
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_planted_bug_is_found(mutant: type[ModelLeaves]) -> None:
    name = mutant.__name__
    profiles = [MET_BY[name]] if name in MET_BY else MODELLED
    with pytest.raises(Failure):
        stress(Plan(ops=60_000, seed=1, profiles=profiles, manager=mutant))


def test_bugs_that_are_met_by_one_engine_exist() -> None:
    assert set(MET_BY) <= {mutant.__name__ for mutant in MUTANTS}


def test_the_model_itself_is_clean() -> None:
    outcome = stress(Plan(ops=4_000, seed=1, profiles=MODELLED, manager=ModelLeaves))
    assert outcome.ops.total() == 4_000
