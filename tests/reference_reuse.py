"""A slow version of the adaptive policy's estimator: each fit counts every wait again."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

BINS, PER_OCTAVE, LEVELS = 48, 4, 24
TRAITS = [range(9), range(3), range(4), range(4)]
CELLS = [None, *product(*TRAITS)]
LEVEL_FACTORS = [2 ** ((i - 12) / 3) for i in range(LEVELS)]
KEEP = 0.99


@dataclass
class Wait:
    cell: int
    level: int
    age: float
    used: bool
    over: bool
    weight: float = 1.0


@dataclass
class SlowReuseModel:
    unit: int
    waits: list[Wait] = field(default_factory=list)
    factors: list[float] = field(default_factory=lambda: [1.0] * len(CELLS))
    curves: list[list[float]] = field(default_factory=list)

    def starts(self) -> list[float]:
        """The start of each bin, and the end of the last one."""
        starts = [float(i * self.unit) for i in range(PER_OCTAVE)]
        width = float(self.unit)
        while len(starts) <= BINS:
            begin = width * PER_OCTAVE
            starts += [begin + i * width for i in range(PER_OCTAVE)]
            width *= 2
        return starts[: BINS + 1]

    def bin(self, age: float) -> int:
        return max(i for i, start in enumerate(self.starts()[:BINS]) if start <= age)

    def end(self, cell: int, level: int, age: float, used: bool) -> None:
        self.waits.append(Wait(cell, level, age, used, over=True))

    def clear_waiting(self) -> None:
        self.waits = [wait for wait in self.waits if wait.over]

    def waiting(self, cell: int, level: int, age: float) -> None:
        self.waits.append(Wait(cell, level, age, used=False, over=False))

    def hazard(self, waits: list[Wait], trust: float, prior: list[float]) -> list[float]:
        """The fraction used in each bin of those idle at its start, shrunk towards the prior."""
        bins = [(self.bin(wait.age), wait) for wait in waits]
        hazard = []
        for b in range(BINS):
            hits = sum(wait.weight for at, wait in bins if at == b and wait.used)
            at_risk = sum(wait.weight for at, wait in bins if at >= b)
            total = at_risk + trust
            hazard.append((hits + trust * prior[b]) / total if total else 0.0)
        return hazard

    def fit(self) -> None:
        common = self.hazard(self.waits, 0, [0.0] * BINS)
        self.fit_factors(common)
        self.curves = [self.curve(level, common) for level in range(LEVELS)]
        for wait in self.waits:
            if wait.over:
                wait.weight *= KEEP

    def fit_factors(self, common: list[float]) -> None:
        until = [sum(common[: b + 1]) for b in range(BINS)]
        octaves = [
            sum(until[b] for b in range(o, o + PER_OCTAVE)) / PER_OCTAVE
            for o in range(0, BINS, PER_OCTAVE)
        ]
        hits, expected = [0.0] * len(CELLS), [0.0] * len(CELLS)
        for wait in self.waits:
            hits[wait.cell] += wait.weight * wait.used
            expected[wait.cell] += wait.weight * octaves[self.bin(wait.age) // PER_OCTAVE]
        factors = [1.0] * len(CELLS)
        for _ in range(4):
            for trait, values in enumerate(TRAITS):
                for value in values:
                    cells = [
                        c for c, traits in enumerate(CELLS) if traits and traits[trait] == value
                    ]
                    seen = sum(hits[c] for c in cells)
                    due = sum(expected[c] * factors[c] for c in cells)
                    for c in cells:
                        factors[c] *= (seen + 8) / (due + 8)
        self.factors = [
            f * (hits[c] + 128) / (expected[c] * f + 128) for c, f in enumerate(factors)
        ]

    def level(self, cell: int) -> int:
        """The level whose factor is nearest, by ratio."""
        ratios = [max(self.factors[cell] / f, f / self.factors[cell]) for f in LEVEL_FACTORS]
        return ratios.index(min(ratios))

    def curve(self, level: int, common: list[float]) -> list[float]:
        """The value at each age bin, by trying every T."""
        starts = self.starts()
        widths = [starts[b + 1] - starts[b] for b in range(BINS)]
        waits = [wait for wait in self.waits if wait.level == level]
        raw = self.hazard(waits, 400, [LEVEL_FACTORS[level] * h for h in common])
        rate = [min(1.0, h) / w for h, w in zip(raw, widths, strict=True)]
        near = [rate[max(0, b - 3) : b + 4] for b in range(BINS)]
        hazard = [min(1.0, sum(n) / len(n) * w) for n, w in zip(near, widths, strict=True)]
        return [
            max(self.gain(hazard, widths, b, until) for until in range(b + 1, BINS + 1))
            for b in range(BINS)
        ]

    @staticmethod
    def gain(hazard: list[float], widths: list[float], begin: int, end: int) -> float:
        """Probability of a use from ``begin`` to ``end``, over the time held until then."""
        idle, held = 1.0, 0.0
        for b in range(begin, end):
            left = idle * (1 - hazard[b])
            held += widths[b] * (idle + left) / 2
            idle = left
        return (1 - idle) / held if held else 0.0

    def worth(self, level: int, age: float) -> float:
        return self.curves[level][self.bin(age)]
