"""The places of the tests in this folder: the processor and a device, with each backend."""

from __future__ import annotations

import os
from typing import Any

import pytest

PLACES = ["cpu-torch", *(f"cuda-{backend}" for backend in ("torch", "triton"))]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "place" in metafunc.fixturenames:
        # The same kernels in Triton's interpreter, if requested.
        interpreted = ["cpu-triton"] if os.environ.get("TRITON_INTERPRET") == "1" else []
        metafunc.parametrize(
            "place",
            [
                pytest.param(place, marks=[pytest.mark.gpu] if "cuda" in place else [])
                for place in [*PLACES, *interpreted]
            ],
            indirect=True,
        )


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Any:
    """A device and a backend on it."""
    from tests.gpu.world import Place, no_device

    device, backend = request.param.split("-")
    if device == "cuda" and (reason := no_device()):
        pytest.skip(reason)
    return Place(device, backend)


@pytest.fixture
def cuda() -> Any:
    """The device, for features that only a device has: streams, graphs, work in flight."""
    from tests.gpu.world import Place, no_device

    if reason := no_device():
        pytest.skip(reason)
    return Place("cuda", "triton")
