"""The cost of the import, and properties of the built extension."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import blockmgr
from blockmgr import _core
from tests.fingerprints import core_testing
from tests.stubs import SOURCES, functions

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


def types_of(node: ast.FunctionDef) -> list[str]:
    """What a function returns, and the types of its parameters but self."""
    parameters = [a for a in (*node.args.posonlyargs, *node.args.args) if a.arg != "self"]
    return [
        ast.unparse(each) for each in (node.returns, *(a.annotation for a in parameters)) if each
    ]


def agrees(built: str, stub: str) -> bool:
    """Whether the stub says the type that was built, or more: of an object, which one it is."""
    wanted = re.escape(built.removesuffix(" | None")).replace("object", ".+")
    return re.fullmatch(rf"{wanted}(\[.+\])?", stub) is not None


@pytest.mark.skipif(
    importlib.util.find_spec("nanobind") is None, reason="nanobind says what was built"
)
@pytest.mark.parametrize("name", ["_core", "_core_testing"])
def test_the_stub_has_the_functions_that_were_built(name: str) -> None:
    """With as many parameters, the same defaults, and each type that the build knows."""
    module = _core if name == "_core" else core_testing()
    generator = importlib.import_module("nanobind.stubgen").StubGen(module=module)
    generator.put(module)
    built = dict(functions(generator.get()))
    stub = dict(functions((SOURCES / f"{name}.pyi").read_text(encoding="utf-8")))
    assert stub.keys() == {each for each in built if not each.endswith("__buffer__")}
    for each, node in stub.items():
        given, own = types_of(built[each]), types_of(node)
        assert len(given) == len(own), each
        assert all(map(agrees, given, own)), (each, given, own)
        defaults = [list(map(ast.unparse, one.args.defaults)) for one in (built[each], node)]
        assert defaults[0] == defaults[1], each


def test_a_stub_that_says_another_type_is_noticed() -> None:
    assert agrees("object | None", "bytes")
    assert agrees("tuple", "tuple[int, int]")
    assert agrees("tuple[object, int]", "tuple[_I32, int]")
    assert not agrees("int", "bytes")
    assert not agrees("tuple[int, int]", "tuple[int]")


def test_every_public_name_is_there_and_documented() -> None:
    assert len(set(blockmgr.__all__)) == len(blockmgr.__all__)
    for name in blockmgr.__all__:
        value = getattr(blockmgr, name)
        assert name.startswith("__") or not callable(value) or value.__doc__, name


def test_the_version_is_a_version() -> None:
    assert blockmgr.__version__.split(".")[0].isdigit()
