"""Runs the Triton kernels in Triton's interpreter if there is no GPU.

Triton reads the variable when the kernels are imported, so it is set before any test of this folder
is imported. With a GPU it stays unset, because interpreted kernels cannot access device memory, and
tests/gpu runs in the same process.
"""

from __future__ import annotations

import os

import pytest

try:
    import torch
except ModuleNotFoundError:
    collect_ignore_glob = ["test_*.py"]
    HAS_TORCH = HAS_GPU = False
else:
    HAS_TORCH, HAS_GPU = True, torch.cuda.is_available()

if HAS_TORCH and not HAS_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(params=["torch", "triton"])
def backend(request: pytest.FixtureRequest) -> str:
    """Both backends on the CPU; the kernels of the second one are interpreted."""
    if request.param == "triton":
        interpreter()
    return request.param


def interpreter() -> None:
    """Skips the test unless kernels can be interpreted."""
    pytest.importorskip("triton", reason="needs triton")
    if HAS_GPU:
        pytest.skip("with a GPU the kernels are compiled, not interpreted: see tests/gpu")
