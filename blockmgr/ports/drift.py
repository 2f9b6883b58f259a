"""Compares an engine's interface with the versions that a port was tried with.

A port lists what it uses of the engine as an ``Interface``: parameters of methods, fields of
structures, names of attributes, modules that contain a name. This module compares each with the
installed engine.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

__all__ = ["Difference", "Interface"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference.

    Attributes:
        place: Location, such as ``KVCacheManager.free``.
        what: The difference.
        is_fatal: Whether it makes the port unusable.
    """

    place: str
    what: str
    is_fatal: bool

    def __str__(self) -> str:
        return f"{self.place}: {self.what}"


def _member(path: str) -> Any:
    module, _, name = path.rpartition(":")
    value = importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _short(path: str) -> str:
    return path.rpartition(":")[2]


def methods(expected: Mapping[str, tuple[str, ...]]) -> Iterator[Difference]:
    """Methods, as ``module:Class.method``, that are missing or have other parameters."""
    for path, names in expected.items():
        try:
            method = _member(path)
        except (AttributeError, ImportError):
            yield Difference(_short(path), "is gone", is_fatal=True)
            continue
        found = [name for name in inspect.signature(method).parameters if name != "self"]
        added = [name for name in found if name not in names]
        gone = [name for name in names if name not in found]
        if added:
            yield Difference(_short(path), f"also takes {', '.join(added)}", is_fatal=True)
        if gone:
            yield Difference(_short(path), f"no longer takes {', '.join(gone)}", is_fatal=False)


def structures(expected: Mapping[str, tuple[str, ...]]) -> Iterator[Difference]:
    """Structures with other fields. An additional field without a default is fatal."""
    for path, names in expected.items():
        try:
            fields = inspect.signature(_member(path)).parameters
        except (AttributeError, ImportError):
            yield Difference(_short(path), "is gone", is_fatal=True)
            continue
        for name, parameter in fields.items():
            if name not in names:
                must = parameter.default is inspect.Parameter.empty
                yield Difference(
                    _short(path), f"also has {name}{', without a default' * must}", is_fatal=must
                )
        for name in names:
            if name not in fields:
                yield Difference(_short(path), f"no longer has {name}", is_fatal=True)
        kept = [name for name in names if name in fields]
        if kept != [name for name in fields if name in names]:
            yield Difference(_short(path), "has its fields in another order", is_fatal=True)


def attributes(expected: Mapping[str, Iterable[str]]) -> Iterator[Difference]:
    """Names that classes no longer have or mention."""
    for path, names in expected.items():
        try:
            kind = _member(path)
            source = inspect.getsource(kind)
        except (AttributeError, ImportError):
            yield Difference(_short(path), "is gone", is_fatal=True)
            continue
        for name in names:
            if not hasattr(kind, name) and name not in source:
                yield Difference(_short(path), f"has no {name}", is_fatal=True)


def places(expected: Iterable[tuple[str, str]]) -> Iterator[Difference]:
    """Names that modules no longer have."""
    for module, name in expected:
        try:
            getattr(importlib.import_module(module), name)
        except (AttributeError, ImportError):
            yield Difference(f"{module}.{name}", "is gone", is_fatal=True)


def asked(
    modules: Iterable[str], names: Collection[str], known: Collection[str]
) -> Iterator[Difference]:
    """Attributes, unknown to the port, that modules read of variables with these names."""
    for module in modules:
        path = inspect.getfile(importlib.import_module(module))
        found = read_of(Path(path).read_text(encoding="utf-8"), names)
        for name in sorted(found - set(known)):
            yield Difference(module, f"asks for {name}", is_fatal=True)


def read_of(source: str, names: Collection[str]) -> set[str]:
    """The attributes that a module reads of variables or attributes with these names."""

    def is_one(node: ast.expr) -> bool:
        return (isinstance(node, ast.Attribute) and node.attr in names) or (
            isinstance(node, ast.Name) and node.id in names
        )

    return {
        node.attr
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and is_one(node.value)
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Interface:
    """The interface of an engine that a port uses, compared with the installed engine.

    Attributes:
        engine: Name of the engine.
        module: The module that has its ``__version__``.
        tried: Versions that the port was tried with, the newest last; each also covers the versions
            that begin with it.
        methods: Methods, as ``module:Class.method``, and their parameters.
        attributes: Classes, and the names that they have or mention.
        places: Modules, and a name in each that the port replaces or calls.
        callers: Modules that use the class that the port replaces.
        names: Their variables that hold its object.
        known: Its attributes that the port has.
        structures: Structures that the port fills, and their fields.
        changed: By version that was tried, the parameters and fields that differ from ``methods``
            and ``structures``.
    """

    engine: str
    module: str
    tried: tuple[str, ...]
    methods: Mapping[str, tuple[str, ...]]
    attributes: Mapping[str, tuple[str, ...]]
    places: tuple[tuple[str, str], ...]
    callers: tuple[str, ...]
    names: tuple[str, ...]
    known: Collection[str]
    structures: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    changed: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)

    def version(self) -> str:
        """Version of the installed engine."""
        return str(importlib.import_module(self.module).__version__)

    def is_tried(self) -> bool:
        """Whether it is one of the versions that were tried."""
        return self._as_tried() is not None

    def _as_tried(self) -> str | None:
        version = self.version()
        for tried in self.tried:
            if version == tried or version.startswith(f"{tried}."):
                return tried
        return None

    def as_of(self, tried: str) -> Interface:
        """The expected methods and structures of a version that was tried."""
        changes = self.changed.get(tried, {})
        return replace(
            self,
            tried=(tried,),
            methods={path: changes.get(path, names) for path, names in self.methods.items()},
            structures={path: changes.get(path, names) for path, names in self.structures.items()},
            changed={},
        )

    def as_installed(self) -> Interface:
        """The same for the installed engine: for its version, or else the newest tried one."""
        return self.as_of(self._as_tried() or self.tried[-1]) if self.tried else self

    def differences(self) -> list[Difference]:
        """All differences from the version that was tried, fatal ones first.

        An untried version is compared with the newest one that was tried.
        """
        expected = self.as_installed()
        found = [
            *methods(expected.methods),
            *structures(expected.structures),
            *attributes(self.attributes),
            *places(self.places),
            *asked(self.callers, self.names, self.known),
        ]
        return sorted(found, key=lambda difference: not difference.is_fatal)

    def warning(self, found: Iterable[Difference]) -> str:
        """One line about an untried engine and its differences."""
        named = "; ".join(map(str, found)) or "nothing that is looked at"
        tried = ", ".join(self.tried)
        return (
            f"blockmgr was tried with {self.engine} {tried}, this is {self.version()}; "
            f"what differs: {named}"
        )

    def report(self) -> str:
        """A readable report of the comparison."""
        tried = "tried" if self.is_tried() else f"not tried, as {', '.join(self.tried)} was"
        looked_at = len(self.methods) + len(self.structures) + len(self.places)
        looked_at += sum(map(len, self.attributes.values()))
        rows = [f"{'FATAL ' if d.is_fatal else 'differs'}  {d}" for d in self.differences()]
        first = (
            f"{self.engine} {self.version()} ({tried}): "
            f"{looked_at} signatures and names compared, {len(rows)} differ"
        )
        return "\n".join([first, *rows])

    def main(self) -> int:
        """Prints the report; returns 1 if the port cannot work with the installed engine."""
        print(self.report())
        return int(any(difference.is_fatal for difference in self.differences()))
