"""The cost of the import, and properties of the built extension."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import blockmgr
from blockmgr import _core
from tests.fingerprints import core_testing

HEAVY = (
    "torch",
    "triton",
    "click",
    "rich",
    "matplotlib",
    "jinja2",
    "jax",
    "msgspec",
    "zmq",
    "uvicorn",
)


def test_import_loads_nothing_heavy() -> None:
    code = f"import sys, blockmgr; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_extension_is_built_for_the_stable_abi() -> None:
    """Otherwise it would work with only one Python version, and its tag would be wrong."""
    assert _core.__file__ is not None
    assert Path(_core.__file__).name.endswith((".abi3.so", ".pyd"))


@pytest.mark.skipif(
    importlib.util.find_spec("nanobind") is None, reason="nanobind generates the stub"
)
@pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="with Python 3.12 the generator adds __buffer__"
)
@pytest.mark.parametrize("name", ["_core", "_core_testing"])
def test_the_committed_stub_is_the_generated_one(name: str) -> None:
    """Generated from the loaded extension, because another process might load another one."""
    module = _core if name == "_core" else core_testing()
    stubs = importlib.import_module("nanobind.stubgen").StubGen(module=module)
    stubs.put(module)
    committed = Path(blockmgr.__file__).parent / f"{name}.pyi"
    assert stubs.get() == committed.read_text()


def test_every_public_name_is_there_and_documented() -> None:
    assert len(set(blockmgr.__all__)) == len(blockmgr.__all__)
    for name in blockmgr.__all__:
        value = getattr(blockmgr, name)
        assert name.startswith("__") or not callable(value) or value.__doc__, name


def test_the_version_is_a_version() -> None:
    assert blockmgr.__version__.split(".")[0].isdigit()
