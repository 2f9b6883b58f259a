"""The bands of the pool over time: idle blocks by age, in bands of similar size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from blockmgr.lab.page.words import age_names

if TYPE_CHECKING:
    from blockmgr.lab.page.facts import Report

__all__ = ["Band", "pool_bands"]

# Quantiles of all idle blocks in all frames at which to divide the bands.
PARTS: Final = (0.25, 0.5, 0.75)


@dataclass(frozen=True, slots=True, eq=False)
class Band:
    """Blocks of the pool in one state.

    Attributes:
        name: Their state.
        role: Their colour, as a role.
        blocks: Their number in each frame: ``int64[frames]``.
    """

    name: str
    role: str
    blocks: npt.NDArray[np.int64]


def pool_bands(report: Report) -> list[Band]:
    """The pool of a report in bands, from used blocks at the bottom to free ones on top.

    Frames count idle blocks in fine age bins. This merges the bins into bands of similar size,
    whether the pool keeps blocks for seconds or for hours.
    """
    watched = report.seen
    idle = np.array([frame.idle for frame in watched.frames], dtype=np.int64)
    cuts = _cuts(idle.sum(axis=0))
    names = age_names([watched.age_bounds_ms[cut - 1] for cut in cuts])
    groups = np.split(idle, cuts, axis=1)
    shared = np.array([frame.shared for frame in watched.frames], dtype=np.int64)
    alone = np.array([frame.alone for frame in watched.frames], dtype=np.int64)
    free = np.array([frame.free for frame in watched.frames], dtype=np.int64)
    return [
        Band("in use, shared", "shared", shared),
        Band("in use, alone", "alone", alone),
        *(
            Band(f"idle, used {name}", f"idle-{number}", group.sum(axis=1))
            for number, (name, group) in enumerate(zip(names, groups, strict=True))
        ),
        Band("free", "free", free),
    ]


def _cuts(by_age: npt.NDArray[np.int64]) -> list[int]:
    """The ages at which all bands except the first one begin; at least one."""
    reached = np.cumsum(by_age) / max(1, by_age.sum())
    cuts = {int(np.argmin(np.abs(reached[:-1] - part))) + 1 for part in PARTS}
    return sorted(cuts)
