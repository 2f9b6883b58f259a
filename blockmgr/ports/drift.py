"""How far an engine's interface has moved since a port of it was last tried.

A port says what it knows of the engine, as an ``Interface``: parameters of methods, fields of
structures, names of attributes, places where a name stands. Each is compared with the engine that
is installed.
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
    """One thing that is not as it was.

    Attributes:
        place: Where, such as ``KVCacheManager.free``.
        what: What differs.
        is_fatal: Whether the port cannot work with it.
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
    """Methods, as ``module:Class.method``, that take other parameters than these, or are gone."""
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
    """Structures that have other fields than these. One that has to be filled is fatal."""
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
    """Names that classes no longer have, nor mention."""
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
    """Attributes of variables with these names that modules read and the port does not know."""
    for module in modules:
        path = inspect.getfile(importlib.import_module(module))
        found = read_of(Path(path).read_text(encoding="utf-8"), names)
        for name in sorted(found - set(known)):
            yield Difference(module, f"asks for {name}", is_fatal=True)


def read_of(source: str, names: Collection[str]) -> set[str]:
    """Attributes of variables or attributes with these names in a module."""

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
    """What a port knows of its engine, and the engine that is installed beside it.

    Attributes:
        engine: Its name.
        module: The module that has its ``__version__``.
        tried: Versions the port was tried with; each also stands for those that continue it.
            The last is the newest.
        methods: Methods, as ``module:Class.method``, and their parameters.
        attributes: Classes, and names that they have or mention.
        places: Modules, and a name in each that the port replaces or calls.
        callers: Modules that use what the port stands in for.
        names: Their variables that hold it.
        known: Attributes of it that the port has.
        structures: Structures that the port fills, and their fields.
        changed: What methods take and structures have in a version that was tried, where that is
            not what ``methods`` and ``structures`` say; by version.
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
        """Of the engine that is installed."""
        return str(importlib.import_module(self.module).__version__)

    def is_tried(self) -> bool:
        """Whether it is one of those that were tried."""
        return self._as_tried() is not None

    def _as_tried(self) -> str | None:
        version = self.version()
        for tried in self.tried:
            if version == tried or version.startswith(f"{tried}."):
                return tried
        return None

    def as_of(self, tried: str) -> Interface:
        """What is expected of one of the versions that were tried."""
        changes = self.changed.get(tried, {})
        return replace(
            self,
            tried=(tried,),
            methods={path: changes.get(path, names) for path, names in self.methods.items()},
            structures={path: changes.get(path, names) for path, names in self.structures.items()},
            changed={},
        )

    def as_installed(self) -> Interface:
        """What is expected of the engine that is installed: its own version, or the newest."""
        return self.as_of(self._as_tried() or self.tried[-1]) if self.tried else self

    def differences(self) -> list[Difference]:
        """All that is not as it was when the version was tried, fatal ones first.

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
        """One line on an engine that was not tried, and what differs in it."""
        named = "; ".join(map(str, found)) or "nothing that is looked at"
        tried = ", ".join(self.tried)
        return (
            f"blockmgr was tried with {self.engine} {tried}, this is {self.version()}; "
            f"what differs: {named}"
        )

    def report(self) -> str:
        """What was compared and what differs, for people."""
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
        """Prints the report; 1 if the port cannot work with the engine that is installed."""
        print(self.report())
        return int(any(difference.is_fatal for difference in self.differences()))
