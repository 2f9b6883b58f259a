"""Stand-ins for packages that SGLang imports and its scheduler does not use on a CPU.

Import this before any module of SGLang: kernels, image codecs and grammars are then modules in
which every name is an empty class.
"""

from __future__ import annotations

import importlib.abc
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ClassVar

PACKAGES = frozenset(
    {
        "av", "cuda", "cutlass", "decord", "decord2", "deep_gemm", "flash_attn", "flashinfer",
        "llguidance", "outlines", "quack", "sgl_kernel", "timm", "torch_memory_saver", "torchao",
        "torchvision", "tvm_ffi", "xgrammar",
    }
)  # fmt: skip


class AnyName(type):
    """A class whose attributes are their own names."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name

    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> dict[str, str]:
        return {"type": "any"}


class StandIn(ModuleType):
    """A module: lower-case names are submodules, all others are empty classes."""

    __path__: ClassVar[list[str]] = []  # type: ignore[misc]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value: Any
        if name[0].islower():
            full = f"{self.__name__}.{name}"
            value = sys.modules[full] = StandIn(full)
            value.__spec__ = ModuleSpec(full, None, is_package=True)
        else:
            value = AnyName(name, (), {"__init__": lambda self, *args, **named: None})
        setattr(self, name, value)
        return value

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Used as a decorator, it does nothing, with or without options."""
        is_decorator = len(arguments) == 1 and callable(arguments[0]) and not named
        return arguments[0] if is_decorator else self


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a stand-in for each of the packages."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        del path, target
        known = name.partition(".")[0] in PACKAGES
        return ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__version__"] = "0.0"


sys.meta_path.append(Finder())
