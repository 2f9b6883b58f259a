"""Access to a result of ``python -m benchmarks.peers``: cells, ratios, the fastest system."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["RESULTS", "Result", "RowResult", "newest"]

RESULTS = Path(__file__).parent.with_name("results")
OURS = "blockmgr"
_NAME = re.compile(r".*-(?P<version>\d+(\.\d+)*)(-(?P<kind>[a-z]+))?\.json")


def newest(kind: str, folder: Path = RESULTS) -> dict[str, Any] | None:
    """The result of the newest version whose file name ends in ``-kind``; of budgets, in none."""
    names = [(_NAME.fullmatch(path.name), path) for path in folder.glob("*.json")]
    paths = sorted(
        (tuple(map(int, name["version"].split("."))), path)
        for name, path in names
        if name and (name["kind"] or "") == kind
    )
    return json.loads(paths[-1][1].read_text(encoding="utf-8")) if paths else None


@dataclass(frozen=True)
class RowResult:
    """One row, of all systems."""

    document: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.document["row"])

    @property
    def unit(self) -> str:
        return str(self.document["unit"])

    @property
    def cells(self) -> dict[str, dict[str, Any]]:
        """The cell of the system with this name."""
        return {cell["peer"]: cell for cell in self.document["cells"]}

    @property
    def ours(self) -> dict[str, Any]:
        """blockmgr's, from arrays: the first."""
        return self.document["cells"][0]

    @property
    def timed_peers(self) -> list[dict[str, Any]]:
        """The other systems that did the work, the fastest first."""
        cells = [
            cell
            for cell in self.document["cells"]
            if not cell["peer"].startswith(OURS) and "min_ns" in cell
        ]
        return sorted(cells, key=lambda cell: cell["min_ns"])

    def ratio(self, cell: dict[str, Any], which: str = "min_ns") -> float | None:
        """Its time divided by ours."""
        if which not in cell or which not in self.ours:
            return None
        return float(cell[which] / self.ours[which])


@dataclass(frozen=True)
class Result:
    """A whole run."""

    document: dict[str, Any]

    def part(self, name: str) -> list[RowResult]:
        """``rows``, ``scattered``, ``growth`` or ``replay``."""
        return [RowResult(row) for row in self.document[name]]

    @property
    def compared(self) -> list[RowResult]:
        """Every row that has its own sizes: all but growth."""
        return [*self.part("rows"), *self.part("scattered"), *self.part("replay")]

    def row(self, key: str) -> RowResult | None:
        """The row with this key."""
        return next((row for row in self.compared if row.document["key"] == key), None)

    def growth(self) -> dict[str, dict[int, RowResult]]:
        """Rows by operation and pool size."""
        table: dict[str, dict[int, RowResult]] = {}
        for row in self.part("growth"):
            table.setdefault(row.name, {})[row.document["blocks"]] = row
        return table
