"""The bands of the pool over time: idle blocks by age, or the blocks of each group of layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from blockmgr.lab.page.chapter import Table
from blockmgr.lab.page.words import age_names, duration

if TYPE_CHECKING:
    from blockmgr.lab.page.facts import Report

__all__ = ["Band", "pool_bands", "pool_frames", "pool_table"]

# Quantiles of all idle blocks in all frames at which to divide the bands.
PARTS: Final = (0.25, 0.5, 0.75)
FRAMES_IN_TABLE: Final = 24
COLOURED: Final = 4
"""Number of groups with a separate colour."""


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
    """The pool of a report in bands, from used blocks at the bottom to free ones on top."""
    return _of_groups(report) if report.config.groups else _by_age(report)


def pool_frames(report: Report) -> tuple[list[int], npt.NDArray[np.int64]]:
    """The times of the frames in milliseconds, and the blocks in use at each: ``int64[frames]``."""
    if report.config.groups:
        grouped = report.group_frames
        return [f.time_ms for f in grouped], np.array([sum(f.used) for f in grouped], np.int64)
    frames = report.seen.frames
    return [f.time_ms for f in frames], np.array([f.shared + f.alone for f in frames], np.int64)


def pool_table(report: Report) -> Table:
    """The bands at some of the frames."""
    bands, (times, _) = pool_bands(report), pool_frames(report)
    chosen = np.linspace(0, len(times) - 1, min(FRAMES_IN_TABLE, len(times))).astype(int)
    rows = tuple(
        (duration(times[n] - times[0]), *(f"{int(band.blocks[n]):,}" for band in bands))
        for n in np.unique(chosen).tolist()
    )
    return Table("Blocks over time", ("time", *(band.name for band in bands)), rows)


def _of_groups(report: Report) -> list[Band]:
    """For each group used blocks, then cached ones."""
    frames = report.group_frames
    bands = []
    for place, name in enumerate(dict.fromkeys(map(repr, report.config.groups))):
        role = f"group-{place % COLOURED}"
        used = np.array([frame.used[place] for frame in frames], dtype=np.int64)
        cached = np.array([frame.cached[place] for frame in frames], dtype=np.int64)
        bands += [
            Band(f"{name}, in use", role, used),
            Band(f"{name}, cached", f"{role}-soft", cached),
        ]
    free = np.array([frame.free for frame in frames], dtype=np.int64)
    return [*bands, Band("free", "free", free)]


def _by_age(report: Report) -> list[Band]:
    """Idle blocks by age.

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
