"""Verdicts on mutants that survived, and the totals of a run."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

FILE = Path(__file__).parent / "survivors.toml"
EQUIVALENT, MISSED = "equivalent", "missed"
REFUSED, SAME, KILLED, SURVIVED = "refused", "same", "killed", "survived"


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one mutant."""

    name: str
    half: str
    operator: str
    line: int
    state: str
    """``refused`` by the compiler, compiled to the ``same`` code, ``killed`` or ``survived``."""

    by: str = ""
    """The run that killed it, and how."""

    seconds: float = 0.0

    @property
    def counts(self) -> bool:
        return self.state in (KILLED, SURVIVED)


@dataclass(frozen=True, slots=True)
class Verdict:
    """On a survivor: no input distinguishes it from the unchanged code, or no test does so far."""

    kind: str
    why: str


def read(file: Path = FILE) -> dict[str, Verdict]:
    """The verdicts by name. Raises ValueError for an incomplete or duplicate one."""
    verdicts: dict[str, Verdict] = {}
    for entry in tomllib.loads(file.read_text()).get("survivor", []):
        if set(entry) != {"name", "verdict", "why"} or not entry["why"].strip():
            raise ValueError(f"a survivor has a name, a verdict and why, got {entry}")
        if entry["verdict"] not in (EQUIVALENT, MISSED):
            raise ValueError(f"{entry['name']}: verdict is {entry['verdict']!r}")
        if entry["name"] in verdicts:
            raise ValueError(f"{entry['name']}: two verdicts")
        verdicts[entry["name"]] = Verdict(entry["verdict"], entry["why"])
    return verdicts


@dataclass
class Balance:
    """Results compared with verdicts."""

    states: Counter[str] = field(default_factory=Counter)
    equivalent: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    unjudged: list[str] = field(default_factory=list)
    misjudged: list[str] = field(default_factory=list)
    """Killed although a verdict says that no test can."""

    @property
    def killed(self) -> int:
        return self.states[KILLED]

    @property
    def counted(self) -> int:
        """The number of mutants that a test could find."""
        return self.killed + len(self.missed) + len(self.unjudged)

    @property
    def rate(self) -> float:
        return self.killed / self.counted if self.counted else 0.0


def balance(results: Iterable[Result], verdicts: Mapping[str, Verdict]) -> Balance:
    found = Balance()
    for result in results:
        found.states[result.state] += 1
        verdict = verdicts.get(result.name)
        if result.state == SURVIVED:
            if verdict is None:
                found.unjudged.append(result.name)
            elif verdict.kind == EQUIVALENT:
                found.equivalent.append(result.name)
            else:
                found.missed.append(result.name)
        elif result.state == KILLED and verdict is not None:
            found.misjudged.append(result.name)
    return found


def stale(verdicts: Collection[str], names: Collection[str]) -> list[str]:
    """Verdicts on mutants that the code no longer has."""
    return sorted(set(verdicts) - set(names))
