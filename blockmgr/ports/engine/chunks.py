"""Admits prompts, and splits them into chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blockmgr.blocks import Admission
from blockmgr.errors import NeverFitsError, OutOfBlocksError

if TYPE_CHECKING:
    from blockmgr.manager import BlockManager
    from blockmgr.ports.engine.jobs import Track
    from blockmgr.prompt import Prompt

__all__ = ["aim", "enter", "reserve_some"]


def enter(manager: BlockManager, track: Track, prompt: Prompt, num_slots: int) -> bool:
    """Admits or resumes a track; returns False if there is no room for this many slots."""
    if track.handle is None:
        if manager.can_admit(prompt, num_slots=num_slots) is not Admission.NOW:
            return False
        track.handle = manager.admit(prompt, num_slots=num_slots)
        return True
    try:
        manager.resume(track.handle, num_slots=num_slots)
    except (OutOfBlocksError, NeverFitsError):
        return False
    return True


def aim(manager: BlockManager, track: Track, target: int) -> None:
    """Sets the target of a chunk, so that it ends where the manager can keep a state."""
    stops = manager.stops(track.live()) if manager.config.groups else ()
    track.target = min([target, *(stop for stop in stops if stop > track.written)])


def reserve_some(manager: BlockManager, track: Track, size: int) -> int:
    """Takes slots for a chunk of ``size`` tokens, or of fewer that fit; returns how many."""
    while size:
        try:
            manager.reserve(track.live(), track.written + size)
        except OutOfBlocksError:
            size //= 2
        else:
            break
    return size
