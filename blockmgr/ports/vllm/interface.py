"""What vLLM's scheduler, engine core and connectors call, as blockmgr knows it.

``python -m blockmgr.ports.vllm.interface`` compares it with the vLLM that is installed.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockmgr.ports.vllm.expected import ATTRIBUTES, METHODS, OURS, PLACES

__all__ = ["TRIED", "Difference", "differences", "is_tried", "report", "version"]

TRIED = ("0.32",)
"""Versions that everything here was tried with, up to their last number."""

SCHEDULER = "vllm.v1.core.sched.scheduler"


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as it was.

    Attributes:
        place: Where, such as ``KVCacheManager.free``.
        what: What differs.
        is_fatal: Whether it cannot work so.
    """

    place: str
    what: str
    is_fatal: bool

    def __str__(self) -> str:
        return f"{self.place}: {self.what}"


def version() -> str:
    """Of the vLLM that is installed."""
    return str(importlib.import_module("vllm").__version__)


def is_tried() -> bool:
    """Whether it is one of those that were tried."""
    return any(version() == tried or version().startswith(f"{tried}.") for tried in TRIED)


def differences() -> list[Difference]:
    """Everything of the installed vLLM that is not as it was in the versions that were tried."""
    found = [*_of_methods(), *_of_attributes(), *_of_places(), *_of_calls()]
    return sorted(found, key=lambda difference: not difference.is_fatal)


def _member(path: str) -> Any:
    module, _, name = path.rpartition(":")
    value = importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _short(path: str) -> str:
    return path.rpartition(":")[2]


def _of_methods() -> list[Difference]:
    found = []
    for path, expected in METHODS.items():
        try:
            method = _member(path)
        except (AttributeError, ImportError):
            found.append(Difference(_short(path), "is gone", is_fatal=True))
            continue
        names = tuple(name for name in inspect.signature(method).parameters if name != "self")
        added = [name for name in names if name not in expected]
        gone = [name for name in expected if name not in names]
        if added:
            found.append(Difference(_short(path), f"also takes {', '.join(added)}", is_fatal=True))
        if gone:
            found.append(
                Difference(_short(path), f"no longer takes {', '.join(gone)}", is_fatal=False)
            )
    return found


def _of_attributes() -> list[Difference]:
    found = []
    for path, names in ATTRIBUTES.items():
        try:
            source = inspect.getsource(_member(path))
        except (AttributeError, ImportError):
            found.append(Difference(_short(path), "is gone", is_fatal=True))
            continue
        found += [
            Difference(_short(path), f"has no {name}", is_fatal=True)
            for name in names
            if not hasattr(_member(path), name) and name not in source
        ]
    return found


def _of_places() -> list[Difference]:
    """Names that are exchanged, or relied on to be read when they are."""
    found = []
    for module, name in PLACES:
        try:
            getattr(importlib.import_module(module), name)
        except (AttributeError, ImportError):
            found.append(Difference(f"{module}.{name}", "is gone", is_fatal=True))
    return found


def _of_calls() -> list[Difference]:
    """Calls of the schedulers that are missing here."""
    known = {name for names in OURS.values() for name in names}
    found = []
    for module in (SCHEDULER, "vllm.v1.core.sched.async_scheduler", "vllm.v1.engine.core"):
        asked = called(Path(inspect.getfile(importlib.import_module(module))).read_text())
        found += [
            Difference(module, f"asks the manager for {name}", is_fatal=True)
            for name in sorted(asked - known)
        ]
    return found


def called(source: str) -> set[str]:
    """Attributes of whatever is called ``kv_cache_manager`` in a module."""
    managers = {"kv_cache_manager", "cache_manager"}

    def is_manager(node: ast.expr) -> bool:
        return (isinstance(node, ast.Attribute) and node.attr in managers) or (
            isinstance(node, ast.Name) and node.id in managers
        )

    return {
        node.attr
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and is_manager(node.value)
    }


def report() -> str:
    """All that was looked at, and what differs, for people."""
    found = differences()
    looked_at = len(METHODS) + sum(map(len, ATTRIBUTES.values())) + len(PLACES)
    tried = "tried" if is_tried() else f"not tried, as {', '.join(TRIED)} was"
    lines = [
        f"vLLM {version()} ({tried}): {looked_at} signatures and names looked at, "
        f"{len(found)} differ"
    ]
    lines += [f"{'FATAL ' if d.is_fatal else 'differs'}  {d}" for d in found]
    return "\n".join(lines)


if __name__ == "__main__":
    print(report())
    sys.exit(bool([d for d in differences() if d.is_fatal]))
