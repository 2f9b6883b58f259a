"""Without a GPU the Triton kernels run in Triton's interpreter, which is chosen by this variable.

It is read when the kernels are imported, so it is set before any test of this folder is. With a
GPU it stays unset: interpreted kernels cannot reach device memory, and tests/gpu is in the same
process.
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
    """Both backends on the CPU; the kernels of the second one interpreted."""
    if request.param == "triton":
        interpreter()
    return request.param


def interpreter() -> None:
    """Skips the test unless kernels can be interpreted."""
    pytest.importorskip("triton", reason="needs triton")
    if HAS_GPU:
        pytest.skip("with a GPU the kernels are compiled, not interpreted: see tests/gpu")
