"""The targets of the copies, and whether they were met. Reported, never asserted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from benchmarks.kv.cell import Cell

__all__ = ["Verdict", "judge"]

MIB = 1 << 20
LARGE = 64 * MIB
MIDDLE = 8 * MIB
ONE_PAIR_MODEL = "Llama-3-8B bf16"
"""Its block is 2 MiB."""


@dataclass(frozen=True)
class Verdict:
    """One target: ``met``, ``met at best``, ``missed`` or ``not measured``, and the worst cell."""

    target: str
    verdict: str
    detail: str


@dataclass(frozen=True)
class _Bound:
    """A figure of every cell that has it, and the bound for the worst of them."""

    target: str
    figure: Callable[[Cell], float | None]
    bound: float
    at_least: bool = False
    at_best: Callable[[Cell], float | None] | None = None

    def judge(self, cells: Sequence[Cell]) -> Verdict:
        figures = [(value, c) for c in cells if (value := self.figure(c)) is not None]
        if not figures:
            return Verdict(self.target, "not measured", "no cell of this run has it")
        pick = min if self.at_least else max
        worst, cell = pick(figures, key=lambda pair: pair[0])
        detail = f"worst {worst:.2f}: {cell.model}, {cell.pairs} pairs, {cell.blocks} blocks"
        if self._kept(worst):
            return Verdict(self.target, "met", detail)
        kept = sum(self._kept(value) for value, _ in figures)
        detail += f"; kept in {kept} of {len(figures)} cells"
        if self.at_best is not None and all(
            self._kept(value) for c in cells if (value := self.at_best(c)) is not None
        ):
            return Verdict(self.target, "met at best", detail)
        return Verdict(self.target, "missed", detail)

    def _kept(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound


def _ratio(
    over: tuple[str, str],
    under: tuple[str, str],
    where: Callable[[Cell], bool],
    statistic: str = "median",
) -> Callable[[Cell], float | None]:
    """The ratio of two (way, quantity) pairs, in the cells for which ``where`` holds."""

    def figure(cell: Cell) -> float | None:
        if not where(cell):
            return None
        top, bottom = (
            cell.ways.get(way, {}).get(quantity, {}).get(statistic)
            for way, quantity in (over, under)
        )
        return None if top is None or bottom is None else top / bottom

    return figure


def _where(
    *, blocks: str = "whole", at_least: int = 0, less_than: float = float("inf"), pairs: range
) -> Callable[[Cell], bool]:
    return lambda c: c.blocks == blocks and at_least <= c.num_bytes < less_than and c.pairs in pairs


ANY = range(1 << 20)


def _host_bounds() -> Iterator[_Bound]:
    for name, way in (
        ("plain index_select + index_copy_", "plain"),
        ("the same on 8-byte integers", "plain int64"),
    ):
        sides = (("blockmgr", "wall"), (way, "wall"), _where(pairs=ANY))
        yield _Bound(
            f"torch backend within 1.3 x of {name}",
            _ratio(*sides),
            1.3,
            at_best=_ratio(*sides, statistic="min"),
        )


def _device_bounds() -> Iterator[_Bound]:
    ours, contiguous = ("blockmgr", "gpu"), ("contiguous", "gpu")
    for target, bound, where in (
        (
            ">= 90 % of a contiguous copy's bandwidth from 64 MiB",
            0.9,
            _where(at_least=LARGE, pairs=ANY),
        ),
        (">= 75 % from 8 to 64 MiB", 0.75, _where(at_least=MIDDLE, less_than=LARGE, pairs=ANY)),
    ):
        yield _Bound(target, _ratio(contiguous, ours, where), bound, at_least=True)

    def one_pair(cell: Cell) -> float | None:
        wanted = cell.model == ONE_PAIR_MODEL and cell.pairs == 1 and cell.blocks == "whole"
        return cell.median(*ours) if wanted else None

    def over_empty(cell: Cell) -> float | None:
        time, empty = one_pair(cell), cell.median("empty launch", "gpu")
        return None if time is None or empty is None else time - empty

    yield _Bound("one pair of 2 MiB: <= 4 us on the device", one_pair, 4.0)
    yield _Bound("one pair: <= an empty launch + 2 us", over_empty, 2.0)
    yield _Bound("enqueue <= 12 us, list included", lambda c: c.median("blockmgr", "enqueue"), 12.0)
    walls = (("per layer", "wall"), ("blockmgr", "wall"))
    for target, bound, pairs in (
        (">= 20 x less wall time than per-layer indexing at 1 to 8 pairs", 20.0, range(1, 9)),
        (">= 1.8 x less at 2,048 pairs", 1.8, range(2048, 2049)),
    ):
        yield _Bound(target, _ratio(*walls, _where(pairs=pairs)), bound, at_least=True)


def _partial_in_proportion(cells: Sequence[Cell]) -> Verdict:
    """Microseconds per byte of partial copies over those of whole ones, same model and pairs."""
    whole = {(c.model, c.pairs): c for c in cells if c.blocks == "whole"}

    def figure(cell: Cell) -> float | None:
        full = whole.get((cell.model, cell.pairs))
        if cell.blocks == "whole" or cell.num_bytes < LARGE or full is None:
            return None
        time, full_time = cell.median("blockmgr", "gpu"), full.median("blockmgr", "gpu")
        if time is None or full_time is None:
            return None
        return (time / cell.num_bytes) / (full_time / full.num_bytes)

    target = "partial blocks: time in proportion to bytes within 15 %, from 64 MiB"
    return _Bound(target, figure, 1.15).judge(cells)


NONE_PER_CALL = "no synchronisation, no allocation, one kernel a call"
SANITIZER = "compute-sanitizer clean"


def judge(cells: Sequence[Cell], proof: dict[str, Any] | None, device: str) -> Iterable[Verdict]:
    """Every target with its verdict; targets of the other kind of device are not measured."""
    on_device = device != "cpu"
    for bound in _host_bounds():
        yield _not_measured(bound.target, "a CPU run has it") if on_device else bound.judge(cells)
    for bound in _device_bounds():
        yield bound.judge(cells) if on_device else _not_measured(bound.target)
    if on_device:
        yield _partial_in_proportion(cells)
        yield _proved(proof or {})
    else:
        yield _not_measured("partial blocks: time in proportion to bytes within 15 %, from 64 MiB")
        yield _not_measured(NONE_PER_CALL)
    yield _not_measured(SANITIZER, "run tests/gpu/sanitize on a CUDA device")


def _not_measured(target: str, why: str = "no CUDA or ROCm device") -> Verdict:
    return Verdict(target, "not measured", why)


def _proved(proof: dict[str, Any]) -> Verdict:
    if "error" in proof or not proof:
        return Verdict(NONE_PER_CALL, "not measured", proof.get("error", "not tried"))
    wanted = {"synchronisations": 0, "allocations": 0, "kernels_per_call": 1.0}
    met = all(proof[name] == value for name, value in wanted.items())
    detail = ", ".join(f"{name.replace('_', ' ')} {proof[name]}" for name in wanted)
    return Verdict(NONE_PER_CALL, "met" if met else "missed", detail)
