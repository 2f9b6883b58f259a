"""Options and fixtures shared by all tests."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from blockmgr import BlockManager
from tests.strategies import DIGESTS

COMMON: dict[str, Any] = {
    "deadline": None,  # tests are never timed
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}
settings.register_profile("ci", max_examples=200, stateful_step_count=30, **COMMON)
settings.register_profile("long", max_examples=2_000, stateful_step_count=60, **COMMON)
settings.register_profile("nightly", max_examples=20_000, stateful_step_count=100, **COMMON)
settings.load_profile("ci")  # the other profile: pytest --hypothesis-profile=nightly

MakeManager = Callable[..., BlockManager]

QUICK = {"unit", "golden"}
"""Folders whose tests are the quick ones."""

if "PYTEST_XDIST_WORKER" in os.environ:
    # With a worker per core, several torch threads would wait for one another.
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--digest",
        action="append",
        choices=sorted(DIGESTS),
        help="run the behavioural tests with this digest; repeatable"
        " (default: xxh3_128 and constant)",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``-m quick``, folders without quick tests are not even imported: torch takes seconds."""
    here = Path(__file__).parent
    if config.option.markexpr != "quick" or here not in collection_path.parents:
        return None
    folder = here / collection_path.relative_to(here).parts[0]
    return True if folder.is_dir() and folder.name not in QUICK else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and item.path.relative_to(here).parts[0] in QUICK:
            item.add_marker(pytest.mark.quick)


def pytest_collection_finish() -> None:
    # Libraries and tests, a million objects, live as long as the process, so garbage collection
    # need not visit them.
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # otherwise they outlive the interpreter, and nanobind reports leaks


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "digest" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("digest") or ["xxh3_128", "constant"]
        metafunc.parametrize("digest", chosen, indirect=True)


@pytest.fixture
def digest(request: pytest.FixtureRequest) -> Any:
    """The digest of this run. No behaviour may depend on it, even if it collides."""
    return DIGESTS[request.param]


@pytest.fixture
def make_manager(digest: Any) -> Iterator[MakeManager]:
    """Builds managers, and checks every invariant of each when the test is over."""
    made: list[BlockManager] = []

    def make(num_blocks: int = 8, block_size: int = 4, **options: Any) -> BlockManager:
        manager = BlockManager(num_blocks, block_size, **{"digest": digest, **options})
        made.append(manager)
        return manager

    yield make
    for manager in made:
        manager.check_invariants()
